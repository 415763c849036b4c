"""Small C programs that do what a line of words says, and answer with another line."""

import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

Word = int | float | str | bytes


class Probe:
    """One of the programs `probe_….c`, running. It was built with sanitizers, and dies of what they find."""

    def __init__(self, program: Path) -> None:
        self._stderr = program.with_suffix(".stderr")
        with self._stderr.open("w") as stderr:
            self._process = subprocess.Popen(
                [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )

    def ask(self, *request: Word) -> list[str]:
        """The words of the answer. The first word of the request is a command, texts among the others are values."""
        command, *values = request
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(" ".join([str(command), *map(word, values)]) + "\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer.endswith("\n"), f"the probe died of {request}: {self._stderr.read_text()[-4000:]}"
        return answer.split()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()
        if kind is None:
            assert self._process.returncode == 0, self._stderr.read_text()[-4000:]


def word(value: Word) -> str:
    """How a value is written in requests and answers."""
    if isinstance(value, float):
        return str(struct.unpack("<Q", struct.pack("<d", value))[0])
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return "x" + value.hex()
    return str(int(value))


def words(*values: Word) -> list[str]:
    """Several of them."""
    return [word(it) for it in values]


def text(answer: str) -> str:
    """The text that a word stands for."""
    return bytes.fromhex(answer.removeprefix("x")).decode()


def extents(sizes: tuple[int, ...] | None) -> list[int]:
    """Sizes behind their number; None is written as -1 of them."""
    return [-1] if sizes is None else [len(sizes), *sizes]
