"""The trace of a program by strace."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"(\d+) +(\w+)\((.*)")
_STRUCK = ("(INJECTED)", "(DELAYED)")
_KILLED = "+++ killed by SIGKILL +++"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A system call: its name, the how-manieth of that name it is in its thread, and how strace shows it.

    `before` counts the calls of its thread before it, by name.
    """

    thread: int
    name: str
    number: int
    text: str
    before: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Trace:
    """All calls that strace was asked to show, in their order."""

    lines: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Trace":
        return cls(tuple(path.read_text(errors="replace").splitlines()))

    def calls(self) -> Iterator[Call]:
        """Each that was begun. strace counts per thread what it makes fail."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for line in self.lines:
            if match := _LINE.fullmatch(line):
                thread, name, rest = match.groups()
                count = counts[thread]
                yield Call(
                    thread=int(thread),
                    name=name,
                    number=count[name] + 1,
                    text=f"{name}({rest}",
                    before=dict(count),
                )
                count[name] += 1

    @property
    def was_killed(self) -> bool:
        return any(_KILLED in line for line in self.lines)

    @property
    def struck(self) -> list[str]:
        """The calls that failed or waited because strace made them."""
        return [line for line in self.lines if line.endswith(_STRUCK)]
