"""The faults of one TCP connection, as values. Bytes are counted per connection and per direction."""

from dataclasses import dataclass
from enum import Enum


class Way(Enum):
    """The two directions of a connection."""

    UP = "client to server"
    DOWN = "server to client"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """Every piece of at most `piece_bytes` comes `delay_s` later, and up to `jitter_s` more; at most `bytes_per_s`."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    piece_bytes: int = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class Reset:
    """Both ends get a RST in place of what follows `after_bytes`; 0: nobody gets in."""

    after_bytes: int
    way: Way = Way.UP


@dataclass(frozen=True, kw_only=True, slots=True)
class Close:
    """Both ends get an orderly FIN in place of what follows `after_bytes`."""

    after_bytes: int
    way: Way = Way.UP


@dataclass(frozen=True, kw_only=True, slots=True)
class Silence:
    """One way swallows what follows `after_bytes`, while the connection stays; both ends get a RST after `heals_s`."""

    after_bytes: int
    way: Way
    heals_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfOpen:
    """After `after_bytes` the server loses the client, which is not told; it gets a RST after `heals_s`."""

    after_bytes: int
    way: Way = Way.UP
    heals_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """One bit of byte number `at_byte` arrives as its opposite."""

    at_byte: int
    bit: int = 0
    way: Way = Way.UP


Fault = Slow | Reset | Close | Silence | HalfOpen | Flip
CLEAR = Slow()
