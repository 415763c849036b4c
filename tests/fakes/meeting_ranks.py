"""The common base of the stand-ins for MPI's ranks."""

import json
from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Job(Protocol):
    """The state that the ranks share: a meeting for `sum` and `offer`, and one for all other collectives."""

    size: int
    rounds: Any
    others: Any


class MeetingRanks(ABC):
    """One rank's view, with the promises of `server.ranks.Ranks`: each makes of what all gave the same.

    `_meet` waits for all, in the same order on each rank, and gives what they gave.
    """

    node = 0
    num_nodes = 1
    mpi_version = ""
    num_cores = 1
    is_cut_short = False

    def __init__(self, job: Job, rank: int) -> None:
        self._meetings = job
        self.rank = self.local_rank = rank
        self.size = self.local_size = job.size

    def sum(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        total: NDArray[np.int64] = np.sum(self._meet(self._meetings.rounds, values.copy()), axis=0)
        return total

    def all_reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        total: NDArray[Any] = np.sum(self._meet(self._meetings.others, values.copy()), axis=0)
        return total

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return json.loads(self._meet(self._meetings.others, json.dumps(value))[root])

    def broadcast_bytes(self, data: bytes, root: int = 0) -> bytes:
        received: bytes = self._meet(self._meetings.others, data)[root]
        return received

    def gather(self, value: Any) -> list[Any] | None:
        gathered = [json.loads(text) for text in self._meet(self._meetings.others, json.dumps(value))]
        return gathered if self.rank == 0 else None

    def abandon_calls(self) -> None:
        assert not self.is_cut_short

    def barrier(self) -> None:
        self._meet(self._meetings.others, None)

    @abstractmethod
    def _meet(self, meeting: Any, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
