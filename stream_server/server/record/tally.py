"""How many samples a record has, of which simulations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stream_server.server.record.dealing import Dealing
from stream_server.server.record.layout import SAMPLES, Entries, Kind
from stream_server.server.record.rank_record import RankRecord


class Tally:
    """What is in some files of a record.

    Attributes:
        samples: for each rank of the replay, how many samples of which simulation it is given.
        parameters: those of the simulations.
        finished, withdrawn: simulations of which all steps came, and those that are not to be trained on.
    """

    def __init__(self, num_ranks: int) -> None:
        self.samples: list[Counter[int]] = [Counter() for _ in range(num_ranks)]
        self.parameters: dict[int, npt.NDArray[np.float64]] = {}
        self.finished: set[int] = set()
        self.withdrawn: set[int] = set()

    @property
    def simulations(self) -> list[int]:
        """All of which there is a sample."""
        return sorted({simulation for of_rank in self.samples for simulation in of_rank})

    def num_samples(self, simulation: int) -> int:
        """How many samples of a simulation all ranks have."""
        return sum(of_rank[simulation] for of_rank in self.samples)

    def count(self, record: RankRecord, dealing: Dealing) -> None:
        """Add what a rank recorded."""
        for heads in record.heads():
            self._count_samples(record.rank, heads, dealing)
            for head in heads[heads["kind"] == Kind.PARAMETERS]:
                self.parameters[int(head["simulation"])] = record.read(int(head["number"])).parameters
            self.finished |= _simulations(heads, Kind.FINISHED)
            self.withdrawn |= _simulations(heads, Kind.WITHDRAWN)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the other ranks."""
        return {
            "samples": [dict(of_rank) for of_rank in self.samples],
            "parameters": {simulation: values.tolist() for simulation, values in self.parameters.items()},
            "finished": sorted(self.finished),
            "withdrawn": sorted(self.withdrawn),
        }

    @classmethod
    def sum(cls, tallies: Sequence[Mapping[str, Any]], num_ranks: int) -> Self:
        """What is in the files of all tallies, each as `to_json` gave it."""
        total = cls(num_ranks)
        for plain in tallies:
            for mine, samples in zip(total.samples, plain["samples"], strict=True):
                mine.update({int(simulation): num for simulation, num in samples.items()})
            for simulation, values in plain["parameters"].items():
                total.parameters[int(simulation)] = np.array(values, np.float64)
            total.finished.update(plain["finished"])
            total.withdrawn.update(plain["withdrawn"])
        return total

    def _count_samples(self, file: int, heads: Entries, dealing: Dealing) -> None:
        heads = heads[np.isin(heads["kind"], SAMPLES)]
        steps, num = dealing.time_steps, dealing.num_ranks
        # Which rank has a step depends on its index by nothing but the rest of a division by their number.
        rests = (heads["time_step"] - steps.first) // steps.every % num
        pairs, counts = np.unique(heads["simulation"] * num + rests, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            simulation, rest = divmod(pair, num)
            self.samples[dealing.owner(file, simulation, rest)][simulation] += count


def _simulations(heads: Entries, kind: Kind) -> set[int]:
    return set(heads["simulation"][heads["kind"] == kind].tolist())
