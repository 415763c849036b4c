"""What one rank of a replay is given of a record, entry by entry."""

from collections.abc import Callable, Sequence
from typing import Self

from stream_server.server.record.dealing import Dealing, in_turn
from stream_server.server.record.layout import SAMPLES, Head, Kind
from stream_server.server.record.rank_record import Entry, RankRecord


class Playback:
    """Iterates over the samples of this rank, in an order that depends on nothing but the record and `dealing`.

    Between them come the entries that say that a simulation has finished. Samples of simulations that are not `wanted`
    are passed over. Nothing is read ahead: what comes next is a function of `position` alone.
    """

    def __init__(
        self, files: Sequence[RankRecord], dealing: Dealing, rank: int, *, wanted: Callable[[int], bool]
    ) -> None:
        self._files = [(number, files[number]) for number in dealing.files(rank)]
        self._dealing = dealing
        self._rank = rank
        self._wanted = wanted
        self.seek(0)

    def seek(self, position: int) -> None:
        """Go on at an earlier `position`: the number of entries, of whomever, that come before."""
        self.position = position
        self._places = in_turn([len(record) for _, record in self._files], position)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        for place, number in self._places:
            self.position += 1
            file, record = self._files[place]
            if self._concerns_me(file, record.head(number)):
                entry = record.read(number)
                if entry.kind in SAMPLES or entry.kind is Kind.FINISHED:
                    return entry
        raise StopIteration

    def _concerns_me(self, file: int, head: Head) -> bool:
        if head.kind not in SAMPLES:
            return True
        index = self._dealing.index(head.time_step)
        return self._wanted(head.simulation) and self._dealing.owner(file, head.simulation, index) == self._rank
