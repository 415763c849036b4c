"""Collective operations in the order on which the ranks agree, whichever of them comes to which.

Why: docs/decisions/0101-sharded-training.md
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from stream_server.errors import PeerFailed
from stream_server.server.ranks.communicator import Ranks

DONE, FAILED, MEAN = 0, 1, 2
_BITS = 62


class Turn(NamedTuple):
    """An operation of all ranks: its number, the lowest rank that wants it, and which parts any rank has for it."""

    operation: int
    caller: int
    parts: list[bool]


class Turns:
    """Lets ranks that run different code, or none, take part in each collective operation that one of them comes to.

    Before each operation all ranks say which one they want, and the one of the lowest rank is next. Whoever wants
    another, or is done, serves that one first: adds zeros, and gives what it has. So no rank needs a batch, and no two
    can wait for each other. A mean waits until all that are not done have come to one: whoever serves it has no part in
    it.

    Operations are numbers from `MEAN` on; each has at most `most_parts` parts. `add_up` replaces integers by their sums
    over the ranks. Any thread, one at a time.

    Attributes:
        serve: called with each turn of another rank.
        has_served: whether it was since the turns were opened.
    """

    def __init__(self, ranks: Ranks, add_up: Callable[[torch.Tensor], Any], *, most_parts: int) -> None:
        self.is_open = False
        self.serve: Callable[[Turn], None] = lambda turn: None
        self._ranks = ranks
        self._add_up = add_up
        self._num_words = 1 + -(-most_parts // _BITS)
        self._is_serving = self._has_failed = False
        self.has_served = False

    @contextmanager
    def open(self, at_end: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Within, ranks take turns; whoever comes to the end calls `at_end` and serves the others until all are there.

        Raises:
            PeerFailed: another rank has raised an error within.
        """
        if self._ranks.size == 1 or self.is_open:
            yield
            at_end()
            return
        self.is_open, self.has_served, self._has_failed = True, False, False
        try:
            yield
            at_end()
            self.take(DONE)
        except PeerFailed:
            raise
        except Exception:
            # Of a peer that has died or failed the error is known already.
            with suppress(RuntimeError):
                if not self._has_failed:
                    self._exchange(FAILED, ())
            raise
        finally:
            self.is_open = False

    def take(self, operation: int, parts: Sequence[bool] = ()) -> Turn:
        """Wait for the turn of an operation, and serve the others until then; gives what those who want it have.

        Raises:
            PeerFailed: another rank has raised an error.
        """
        while self.is_open and not self._is_serving:
            # User code may have caught the first of these errors.
            said = [] if self._has_failed else self._exchange(operation, parts)
            self._has_failed |= FAILED in (kind for kind, _ in said)
            if self._has_failed:
                raise PeerFailed("another rank failed; exit.json in the output folder says why")
            wanted = sorted((kind for kind, _ in said if kind != DONE), key=MEAN.__eq__)
            turn = self._turn(wanted[0] if wanted else DONE, said)
            if turn.operation == operation:
                return turn
            self._is_serving = self.has_served = True
            try:
                self.serve(turn)
            finally:
                self._is_serving = False
        return Turn(operation, self._ranks.rank, list(parts))

    def take_mean(self) -> int:
        return self.take(MEAN).caller

    def _exchange(self, operation: int, parts: Sequence[bool]) -> list[tuple[int, list[int]]]:
        """What each rank wants, and which parts it has, in words of `_BITS`."""
        rank, words = self._ranks.rank, [operation] + [0] * (self._num_words - 1)
        for index, has in enumerate(parts):
            words[1 + index // _BITS] |= has << index % _BITS
        said = torch.zeros(self._ranks.size, self._num_words, dtype=torch.int64)
        said[rank] = torch.tensor(words)
        self._add_up(said)
        return [(kind, of_rank) for kind, *of_rank in said.tolist()]

    def _turn(self, operation: int, said: Sequence[tuple[int, list[int]]]) -> Turn:
        callers = [rank for rank, (kind, _) in enumerate(said) if kind == operation]
        words = [0] * (self._num_words - 1)
        for caller in callers:
            words = [word | other for word, other in zip(words, said[caller][1], strict=True)]
        parts = [bool(word >> bit & 1) for word in words for bit in range(_BITS)]
        return Turn(operation, callers[0], parts)
