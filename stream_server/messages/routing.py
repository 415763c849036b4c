"""The routing of the time steps of simulations to server ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.messages.client import Routing

ENDLESS = 2**62


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealing:
    """The shares of server ranks in the steps of simulations: contiguous blocks, which go to the ranks in turn.

    Block b has the steps from b × `block` on, as many as `block` says and `overlap` more, which are the first ones of
    the next block, too, and go to the ranks of both. The first block of a step is the one that counts it: each step
    is in the account of one rank. `overlap` is less than `block`, so that a step is in two blocks at most.
    """

    num_ranks: int
    block: int = 1
    overlap: int = 0

    @classmethod
    def of(cls, routing: Routing, num_ranks: int, block: int = 1, overlap: int = 0) -> "Dealing":
        """The dealing that `Welcome` describes: by steps in blocks of this size, or each simulation as one block."""
        if routing is Routing.STEPS:
            return cls(num_ranks=num_ranks, block=block, overlap=overlap)
        return cls(num_ranks=num_ranks, block=ENDLESS)

    @property
    def stride(self) -> int:
        """How far apart two neighbouring steps of a simulation are in a run on one server rank."""
        return self.num_ranks if self.block == 1 else 1

    def blocks(self, index: int) -> range:
        """The blocks that have a step."""
        return range(max(0, index - self.overlap) // self.block, index // self.block + 1)

    def rank_of(self, simulation: int, block: int) -> int:
        """The server rank of a block."""
        return (simulation + block) % self.num_ranks

    def ranks_of(self, simulation: int, blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The server rank of each of these blocks."""
        return (simulation + blocks) % self.num_ranks

    def server_ranks(self, simulation: int, index: int) -> tuple[int, ...]:
        """The server ranks that get step `index` of `simulation`, the one that counts it first."""
        return tuple(dict.fromkeys(self.rank_of(simulation, block) for block in self.blocks(index)))

    def num_from(self, simulation: int, rank: int, index: int) -> int:
        """How many steps from `index` on, `stride` apart, belong to a rank without a gap: 0, or perhaps ENDLESS."""
        if rank not in self.server_ranks(simulation, index):
            return 0
        if self.num_ranks == 1 or self.block == 1:
            return ENDLESS
        [block] = [it for it in self.blocks(index) if self.rank_of(simulation, it) == rank]
        return (block + 1) * self.block + self.overlap - index

    def share(self, simulation: int, rank: int, num_steps: int) -> Iterator[range]:
        """The steps, of `num_steps` in all, that go to a rank: runs whose steps are `stride` apart, in their order."""
        first = (rank - simulation) % self.num_ranks
        if self.block == 1:
            yield range(first, num_steps, self.num_ranks)
        elif self.num_ranks == 1:
            yield range(num_steps)
        else:
            for start in range(first * self.block, num_steps, self.num_ranks * self.block):
                yield range(start, min(start + self.block + self.overlap, num_steps))

    def counts(self, simulation: int, rank: int, indices: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of these steps a rank counts; each is counted by one rank."""
        counted: npt.NDArray[np.bool_] = (
            self.ranks_of(simulation, np.maximum(0, indices - self.overlap) // self.block) == rank
        )
        return counted


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRouting:
    """The routing of a study: the same for all simulations, but the first `num_held_out` may go to one rank each.

    `block` and `overlap` are those of `Dealing`. Held-out simulations whose samples are windows stay whole: what is
    forecast along them needs all their steps.
    """

    routing: Routing
    block: int = 1
    overlap: int = 0
    num_held_out: int = 0

    def of(self, simulation: int) -> Routing:
        """The routing of one simulation."""
        return Routing.SIMULATIONS if self.overlap and simulation < self.num_held_out else self.routing

    def dealing(self, simulation: int, num_ranks: int) -> Dealing:
        """The shares of so many ranks in the steps of one simulation."""
        return Dealing.of(self.of(simulation), num_ranks, self.block, self.overlap)
