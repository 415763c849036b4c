"""Which slots of a frozen buffer are not on disk yet, so that nothing new is written into them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stream_server.buffers.policy import SlotArray


class Retention:
    """Keeps frozen slots back that would be free, until they are thawed. For one thread at a time.

    What is kept back takes the place of new samples. All windows find a slot as long as no more than `limit` slots are
    in the population, kept back here, or frozen in the backlog; for `limit`, the spare slots must be as many as all
    windows together at least. A sample that waited at the freeze may always enter the population: it brings
    its place along.

    Attributes:
        num_retained: slots that are kept back now.
        num_waiting: samples of the backlog that were there at the freeze; they lead it.
    """

    def __init__(self, frozen: npt.NDArray[np.bool_], *, num_waiting: int, limit: int) -> None:
        self.num_retained = 0
        self.num_waiting = num_waiting
        self._frozen = frozen
        self._num_frozen = int(np.count_nonzero(frozen))
        self._retained = np.zeros(len(frozen), bool)
        self._limit = limit

    @property
    def done(self) -> bool:
        """Everything is thawed."""
        return not self._num_frozen

    def num_admissible(self, population: int) -> int:
        """How many samples of the backlog may enter a population of this size, if the policy has room."""
        taken = population + self.num_retained + self.num_waiting
        return self.num_waiting + max(0, self._limit - taken)

    def admit(self, num: int) -> None:
        """Say that the first `num` samples of the backlog entered the population."""
        self.num_waiting -= min(num, self.num_waiting)

    def retain(self, slots: Sequence[int]) -> list[int]:
        """Take slots that nobody holds any more; gives those that are free at once and keeps the frozen ones back."""
        numbers = np.asarray(slots, np.intp)
        frozen = self._frozen[numbers]
        kept = numbers[frozen]
        self._retained[kept] = True
        self.num_retained += len(kept)
        return list(numbers[~frozen].tolist())

    def thaw(self, slots: SlotArray) -> list[int]:
        """Say that these rows are on disk; gives the slots that are free by this."""
        self._num_frozen -= int(np.count_nonzero(self._frozen[slots]))
        self._frozen[slots] = False
        freed = slots[self._retained[slots]]
        self._retained[freed] = False
        self.num_retained -= len(freed)
        return list(freed.tolist())

    def thaw_all(self) -> list[int]:
        """Say that no row is needed any more; gives the slots that are free by this."""
        return self.thaw(np.flatnonzero(self._frozen))
