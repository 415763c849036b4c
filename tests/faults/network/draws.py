"""Networks that are drawn from a seed. Every fault of theirs heals, so that all has to end well."""

import random

from tests.faults.network.faults import CLEAR, Close, Fault, Flip, HalfOpen, Reset, Silence, Slow, Way
from tests.faults.network.ordeal import Ordeal

LONGEST_S = 0.6
# A field of so many values travels in parts.
LARGE = 600_000


def ordeal(seed: str) -> Ordeal:
    """A study of a campaign."""
    draw = random.Random(seed)
    secure = draw.random() < 0.6
    num_values = draw.choice((1, 4, 200, 3000)) if draw.random() < 0.93 else LARGE
    is_large = num_values == LARGE
    num_bytes = num_values * 8 * (4 if is_large else 30)
    return Ordeal(
        seed=seed,
        secure=secure,
        data=tuple(course(draw, 8, num_bytes, flips=secure) for _ in range(draw.choice((1, 2)))),
        control=course(draw, 3, 300, flips=secure),
        num_simulations=draw.choice((1, 2, 3)),
        num_client_ranks=draw.choice((1, 1, 2)),
        in_step=draw.random() < 0.5,
        num_steps=4 if is_large else draw.choice((6, 30, 100)),
        num_values=num_values,
        credit=draw.choice((1, 2, 4, 16)),
        capacity=draw.choice((1, 5, 100)),
    )


def course(draw: random.Random, most: int, num_bytes: int, *, flips: bool) -> tuple[Fault, ...]:
    """The faults of the first connections of a socket, each of which sends about `num_bytes`."""
    return tuple(
        CLEAR if draw.random() < 0.3 else fault(draw, num_bytes, flips=flips) for _ in range(draw.randint(0, most))
    )


def fault(draw: random.Random, num_bytes: int, *, flips: bool) -> Fault:
    """Any fault, somewhere in a connection of about `num_bytes`."""
    way = draw.choice((Way.UP, Way.UP, Way.DOWN))
    # Early bytes are the more interesting ones, and answers are short.
    after_bytes = round(draw.uniform(0, 1) ** 2 * (max(500, num_bytes) if way is Way.UP else 1000))
    heals_s = draw.uniform(0.02, LONGEST_S)
    kind = draw.choice((Slow, Reset, Reset, Close, Silence, HalfOpen, *((Flip, Flip) if flips else ())))
    if kind is Slow:
        return slow(draw, num_bytes)
    if kind is Flip:
        return Flip(at_byte=after_bytes, bit=draw.randrange(8), way=way)
    if kind is Reset:
        return Reset(after_bytes=after_bytes, way=way)
    if kind is Close:
        return Close(after_bytes=after_bytes, way=way)
    if kind is Silence:
        return Silence(after_bytes=after_bytes, way=way, heals_s=heals_s)
    return HalfOpen(after_bytes=after_bytes, way=way, heals_s=heals_s)


def slow(draw: random.Random, num_bytes: int) -> Slow:
    """A network that is slow in one manner; it takes no longer than seconds."""
    manner = draw.randrange(3)
    if manner == 0:
        return Slow(delay_s=draw.uniform(0, 0.01), jitter_s=draw.uniform(0, 0.02))
    if manner == 1:
        return Slow(bytes_per_s=max(20_000.0, num_bytes / draw.uniform(0.5, 2)), piece_bytes=max(500, num_bytes // 50))
    return Slow(piece_bytes=1 if num_bytes < 10_000 else 997)
