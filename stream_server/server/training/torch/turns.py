"""Collective operations in the order on which the ranks agree, whichever of them comes to which.

Why: docs/decisions/0101-sharded-training.md
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import torch

from stream_server.errors import PeerFailed
from stream_server.server.ranks.communicator import Ranks

DONE, FAILED, MEAN = 0, 1, 2
EQUAL_PASSES = 8
"""Number of equal passes in a row from which on the next one follows their script."""
_BITS = 62
Script = tuple[tuple[int, int], ...]


class Turn(NamedTuple):
    """An operation of all ranks: its number, which parts any rank has for it, as bits, and the lowest that wants it."""

    operation: int
    parts: int
    caller: int


@dataclass(slots=True)
class _Pass:
    """What all ranks do between the opening of the turns and the end.

    Attributes:
        script: the rest of what they do without asking.
        done: all that they did so far, with the parts that were there for it.
        own: the parts that this rank had for what was done since the last exchange.
        wanted: what was done before that, with the parts that any rank had for it.
    """

    script: deque[tuple[int, int]] = field(default_factory=deque)
    done: list[tuple[int, int]] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    wanted: list[tuple[int, int]] = field(default_factory=list)


class Turns:
    """Lets ranks that run different code, or none, take part in each collective operation that one of them comes to.

    Before each operation all ranks say which one they want, and the one of the lowest rank is next. Whoever wants
    another, or is done, serves that one first: adds zeros, and gives what it has. So no rank needs a batch, and no two
    can wait for each other. A mean waits until all that are not done have come to one: whoever serves it has no part in
    it.

    What the ranks did in the last passes, if it was the same in each, is the script of the next one: as long as it
    lasts, its operations are done without asking, and whoever does not come to the next one serves it. Only before a
    mean all are asked, and the script ends if they want something else. At the next exchange they hear what was served
    in vain.

    Operations are numbers from `MEAN` on; each has at most `most_parts` parts. `add_up` replaces integers by their sums
    over the ranks. Any thread, one at a time.

    Attributes:
        serve: called with each turn of another rank.
        settle: called at the end of a pass in which something was served in vain, with what ranks wanted in it.
        has_served: whether it was since the turns were opened.
    """

    def __init__(self, ranks: Ranks, add_up: Callable[[torch.Tensor], Any], *, most_parts: int) -> None:
        self.is_open = False
        self.serve: Callable[[Turn], None] = lambda turn: None
        self.settle: Callable[[Script], None] = lambda wanted: None
        self._ranks = ranks
        self._add_up = add_up
        self._shifts = range(0, max(most_parts, 1), _BITS)
        self._is_serving = self._has_failed = False
        self.has_served = False
        self._last: dict[bool, tuple[Script, int]] = {}
        self._pass = _Pass()

    @contextmanager
    def open(self, at_end: Callable[[], None] = lambda: None, *, learns: bool = True) -> Iterator[None]:
        """Within, ranks take turns; whoever comes to the end calls `at_end` and serves the others until all are there.

        Passes in which the ranks learn and those in which they do not, as in a validation, have a script each.

        Raises:
            PeerFailed: another rank has raised an error within.
        """
        if self._ranks.size == 1 or self.is_open:
            yield
            at_end()
            return
        last, num_equal = self._last.pop(learns, ((), 0))
        self._pass = _Pass(script=deque(last if num_equal >= EQUAL_PASSES else ()))
        self.is_open, self.has_served, self._has_failed = True, False, False
        try:
            yield
            at_end()
            self.take(DONE)
        except PeerFailed:
            raise
        except Exception:
            # Of a peer that has died or failed the error is known already.
            with suppress(Exception):
                self.take(FAILED)
            raise
        else:
            wanted = tuple((operation, parts) for operation, parts in self._pass.wanted if parts)
            self._last[learns] = wanted, num_equal + 1 if wanted == last else 1
            if self._pass.wanted != self._pass.done:
                self.settle(wanted)
        finally:
            self.is_open = False

    def take(self, operation: int, parts: int = 1) -> Turn:
        """Wait for the turn of an operation, and serve the others until then; gives what those who want it have.

        Raises:
            PeerFailed: another rank has raised an error.
        """
        while self.is_open and not self._is_serving:
            turn = self._next(operation, parts)
            is_own = turn.operation == operation and not parts & ~turn.parts
            if turn.operation != DONE:
                self._pass.done.append((turn.operation, turn.parts))
                self._pass.own.append(parts if is_own else 0)
            if is_own:
                return turn
            self._is_serving = self.has_served = True
            try:
                # User code on this rank may have come here within inference mode, and that of others not.
                with torch.inference_mode(False), torch.no_grad():
                    self.serve(turn)
            finally:
                self._is_serving = False
        return Turn(operation, parts, self._ranks.rank)

    def take_mean(self) -> int:
        return self.take(MEAN).caller

    def _next(self, operation: int, parts: int) -> Turn:
        # User code may have caught the first of these errors.
        if not self._has_failed:
            scripted = self._pass.script.popleft() if self._pass.script else None
            if scripted is not None and scripted[0] != MEAN:
                return Turn(*scripted, self._ranks.rank)
            kinds, had = self._exchange(operation, parts)
            self._has_failed = FAILED in kinds
        if self._has_failed:
            raise PeerFailed("another rank failed; exit.json in the output folder says why")
        agreed = min((kind for kind in kinds if kind != DONE), key=MEAN.__eq__, default=DONE)
        if agreed != MEAN:
            self._pass.script.clear()
        callers = [rank for rank, kind in enumerate(kinds) if kind == agreed]
        return Turn(agreed, reduce(or_, (had[rank] for rank in callers)), callers[0])

    def _exchange(self, operation: int, parts: int) -> tuple[Sequence[int], Sequence[int]]:
        """What each rank wants, and which parts it has; notes which parts any had in the operations since the last."""
        done, wanted = self._pass.done, self._pass.wanted
        own = (operation, parts, *self._pass.own)
        said = torch.zeros(self._ranks.size, len(own), len(self._shifts), dtype=torch.int64)
        said[self._ranks.rank] = torch.tensor([*map(self._words, own)])
        self._add_up(said)
        kinds, had = zip(*map(self._numbers, said[:, :2].tolist()), strict=True)
        of_all = self._numbers(reduce(torch.bitwise_or, said[:, 2:]).tolist())
        wanted += [(kind, any_has) for (kind, _), any_has in zip(done[len(wanted) :], of_all, strict=True)]
        self._pass.own = []
        return kinds, had

    def _words(self, number: int) -> list[int]:
        return [number >> shift & (1 << _BITS) - 1 for shift in self._shifts]

    def _numbers(self, said: Iterable[Sequence[int]]) -> list[int]:
        return [sum(word << shift for word, shift in zip(words, self._shifts, strict=True)) for words in said]
