"""Which rank of a replay is given which recorded sample, and in which order. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stream_server.client_api import routing
from stream_server.client_api.messages import Routing, TimeSteps

Place = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealing:
    """Deals `num_recorded` files to `num_ranks` ranks.

    As many ranks as files: each has a file. Otherwise each goes through all files at once, in turn an entry of each,
    and takes what belongs to it by the study's routing.
    """

    num_recorded: int
    num_ranks: int
    routing: Routing
    time_steps: TimeSteps

    @property
    def is_same(self) -> bool:
        """Every rank of the replay has a file of its own."""
        return self.num_ranks == self.num_recorded

    def files(self, rank: int) -> range:
        """The files that a rank goes through."""
        return range(rank, rank + 1) if self.is_same else range(self.num_recorded)

    def owner(self, file: int, simulation: int, index: int) -> int:
        """The rank that is given step `index` of a simulation, recorded in `file`."""
        return file if self.is_same else routing.server_rank(self.routing, simulation, index, self.num_ranks)

    def index(self, time_step: int) -> int:
        """The index of a time step, which counts from 0 whatever the steps are called."""
        return (time_step - self.time_steps.first) // self.time_steps.every


def in_turn(lengths: Sequence[int], position: int) -> Iterator[Place]:
    """Go through files of these lengths, in turn an entry of each: pairs of file and number, from `position` on."""
    first = _rounds_before(lengths, position)
    skipped = position - _num_before(lengths, first)
    for number in range(first, max(lengths, default=0)):
        for file, length in enumerate(lengths):
            if number < length:
                if skipped:
                    skipped -= 1
                else:
                    yield file, number


def _num_before(lengths: Sequence[int], number: int) -> int:
    return sum(min(length, number) for length in lengths)


def _rounds_before(lengths: Sequence[int], position: int) -> int:
    """How many whole rounds there are before `position`."""
    low, high = 0, max(lengths, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if _num_before(lengths, middle) <= position:
            low = middle
        else:
            high = middle - 1
    return low
