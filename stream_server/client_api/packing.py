"""How a value lies in bytes: little-endian, packed, counts in front of lists; nothing is ever guessed.

A codec reads exactly what it writes. Reading is total: it gives a value or raises `MalformedMessage`,
and takes time and memory in proportion to the bytes that are there, whatever a count claims.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar

from stream_server.errors import MalformedMessage

T = TypeVar("T")
ChoiceT = TypeVar("ChoiceT", bound=IntEnum)


class Source:
    """The bytes that are still to be read."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._position = 0

    def take(self, num: int) -> memoryview:
        """The next `num` bytes."""
        end = self._position + num
        if end > len(self._data):
            raise MalformedMessage(f"the message ends after {len(self._data)} bytes where at least {end} are due")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def finish(self) -> None:
        """Refuses bytes that nobody asked for."""
        if self._position != len(self._data):
            raise MalformedMessage(f"{len(self._data) - self._position} bytes too many at the end of the message")


class Codec(Protocol[T]):
    """Writes a value as bytes and reads it back; `write` raises ValueError for a value that has no bytes."""

    def write(self, value: T) -> bytes: ...

    def read(self, source: Source) -> T: ...


class Integer(Codec[int]):
    """A whole number in the layout of a `struct` format character, within bounds."""

    def __init__(self, layout: str, *, low: int, high: int) -> None:
        self._struct = struct.Struct("<" + layout)
        self._low, self._high = low, high

    def write(self, value: int) -> bytes:
        if not self._low <= value <= self._high:
            raise ValueError(f"{value} is not between {self._low} and {self._high}")
        return self._struct.pack(value)

    def read(self, source: Source) -> int:
        value: int = self._struct.unpack(source.take(self._struct.size))[0]
        if not self._low <= value <= self._high:
            raise MalformedMessage(f"{value} is not between {self._low} and {self._high}")
        return value


class Real(Codec[float]):
    """A finite float64."""

    def write(self, value: float) -> bytes:
        if not math.isfinite(value):
            raise ValueError(f"{value} is not finite")
        return struct.pack("<d", value)

    def read(self, source: Source) -> float:
        value: float = struct.unpack("<d", source.take(8))[0]
        if not math.isfinite(value):
            raise MalformedMessage(f"{value} is not finite")
        return value


class Flag(Codec[bool]):
    """One byte: 0 or 1."""

    def write(self, value: bool) -> bytes:
        return b"\x01" if value else b"\x00"

    def read(self, source: Source) -> bool:
        value = source.take(1)[0]
        if value > 1:
            raise MalformedMessage(f"a flag is 0 or 1, not {value}")
        return value == 1


class Text(Codec[str]):
    """UTF-8 behind its number of bytes. Prose longer than `cut_at` bytes is cut when written."""

    def __init__(self, cut_at: int | None = None) -> None:
        self._cut_at = cut_at

    def write(self, value: str) -> bytes:
        encoded = value.encode()
        if self._cut_at is not None and len(encoded) > self._cut_at:
            encoded = encoded[: self._cut_at].decode(errors="ignore").encode()
        return U16.write(len(encoded)) + encoded

    def read(self, source: Source) -> str:
        taken = bytes(source.take(U16.read(source)))
        try:
            return taken.decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage("a text is not UTF-8") from error


class Blob(Codec[bytes]):
    """Bytes behind their number."""

    def write(self, value: bytes) -> bytes:
        return U32.write(len(value)) + value

    def read(self, source: Source) -> bytes:
        return bytes(source.take(U32.read(source)))


class Choice(Codec[ChoiceT]):
    """A member of an enumeration, as its number."""

    def __init__(self, members: type[ChoiceT], number: Codec[int]) -> None:
        self._members, self._number = members, number

    def write(self, value: ChoiceT) -> bytes:
        return self._number.write(value)

    def read(self, source: Source) -> ChoiceT:
        number = self._number.read(source)
        try:
            return self._members(number)
        except ValueError as error:
            raise MalformedMessage(f"{number} is no {self._members.__name__}") from error


class Maybe(Codec[T | None], Generic[T]):
    """A flag, and the value behind it if the flag is 1."""

    def __init__(self, codec: Codec[T]) -> None:
        self._codec = codec

    def write(self, value: T | None) -> bytes:
        return b"\x00" if value is None else b"\x01" + self._codec.write(value)

    def read(self, source: Source) -> T | None:
        return self._codec.read(source) if FLAG.read(source) else None


class Many(Codec[tuple[T, ...]], Generic[T]):
    """Values behind their number, which is at most `limit`."""

    def __init__(self, codec: Codec[T], *, limit: int) -> None:
        self._codec = codec
        self._count = Integer("H", low=0, high=limit)

    def write(self, value: Sequence[T]) -> bytes:
        return self._count.write(len(value)) + b"".join(map(self._codec.write, value))

    def read(self, source: Source) -> tuple[T, ...]:
        return tuple(self._codec.read(source) for _ in range(self._count.read(source)))


class Named(Codec[dict[str, T]], Generic[T]):
    """Values by name, behind their number, in the order of the dictionary."""

    def __init__(self, codec: Codec[T]) -> None:
        self._codec = codec

    def write(self, value: dict[str, T]) -> bytes:
        entries = (TEXT.write(name) + self._codec.write(it) for name, it in value.items())
        return U16.write(len(value)) + b"".join(entries)

    def read(self, source: Source) -> dict[str, T]:
        num = U16.read(source)
        values = {TEXT.read(source): self._codec.read(source) for _ in range(num)}
        if len(values) != num:
            raise MalformedMessage("a name occurs twice")
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(Codec[T], Generic[T]):
    """The attributes of a dataclass, one after the other; `problem` says what is wrong with it as a whole."""

    cls: type[T]
    attributes: dict[str, Codec[Any]]
    problem: Callable[[T], str | None] = lambda value: None

    def write(self, value: T) -> bytes:
        if problem := self.problem(value):
            raise ValueError(problem)
        return b"".join(codec.write(getattr(value, name)) for name, codec in self.attributes.items())

    def read(self, source: Source) -> T:
        value = self.cls(**{name: codec.read(source) for name, codec in self.attributes.items()})
        if problem := self.problem(value):
            raise MalformedMessage(problem)
        return value


U8 = Integer("B", low=0, high=2**8 - 1)
U16 = Integer("H", low=0, high=2**16 - 1)
U32 = Integer("I", low=0, high=2**32 - 1)
COUNT = Integer("Q", low=0, high=2**63 - 1)
LABEL = Integer("q", low=-(2**63), high=2**63 - 1)
FLAG = Flag()
REAL = Real()
TEXT = Text()
PROSE = Text(cut_at=4096)
BLOB = Blob()
