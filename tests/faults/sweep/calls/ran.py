"""The outcome of a program that ran under strace."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.sweep.calls.faults import Fault, Kind
from tests.faults.sweep.calls.trace import Trace

READY = "ready"
GO = b"go"
DONE = "done"
RAISED = "raised: "
WARNED = "warned: "

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A run: what the program said while it could, what the product warned of, and what strace saw."""

    fault: Fault | None
    said: tuple[str, ...]
    warnings: tuple[str, ...]
    trace: Trace

    @property
    def was_struck(self) -> bool:
        """The fault has come about, and is not only asked for."""
        return self.trace.was_killed or bool(self.trace.struck)

    @property
    def target(self) -> str:
        """The call that was struck, as strace shows it: with paths."""
        lines = self.trace.struck or [line for line in self.trace.lines if line.endswith("= ?")]
        return lines[0] if lines else ""

    @property
    def must_succeed(self) -> bool:
        """The program must come to the same end as without the fault.

        CPython tries again what a signal has interrupted, but for opening a folder to list it.
        """
        assert self.fault is not None
        lists_folder = "O_NONBLOCK" in self.target and "O_DIRECTORY" in self.target
        return self.fault.is_harmless and not (self.fault.kind is Kind.EINTR and lists_folder)

    @property
    def is_done(self) -> bool:
        """The program came to its end."""
        return DONE in self.said

    @property
    def raised(self) -> list[str]:
        """The errors that the program did not expect."""
        return [line.removeprefix(RAISED) for line in self.said if line.startswith(RAISED)]

    def told(self, word: str) -> list[str]:
        """The rest of each line that begins with this word."""
        return [line.removeprefix(word).strip() for line in self.said if line.split()[:1] == [word]]
