"""Classes that suggest parameters, and a stand-in for the process in which such a class runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from stream_server.errors import UserCodeError
from stream_server.server.steering.generator_worker import GeneratorWorker

SPREAD = 0.3


class Wandering:
    """Suggests points beside the one with the highest loss that it knows."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self.results: dict[float, Mapping[str, float]] = {}

    def suggest(self, num: int) -> list[dict[str, float]]:
        losses = {phase: result["loss"] for phase, result in self.results.items()}
        centre = max(losses, key=losses.__getitem__, default=0.5)
        ends = max(0.0, centre - SPREAD), min(1.0, centre + SPREAD)
        return [{"phase": self._draw.uniform(*ends)} for _ in range(num)]

    def ingest(self, results: Sequence[Mapping[str, float]]) -> None:
        self.results |= {row["phase"]: row for row in results}


class Demanding(Wandering):
    """Wants nothing more of a simulation of which it has `enough` losses."""

    def __init__(self, seed: int, enough: int) -> None:
        super().__init__(seed)
        self._enough = enough

    def to_stop(self) -> list[int]:
        return [int(it["simulation"]) for it in self.results.values() if it["num_losses"] >= self._enough]


class GeneratorHere:
    """The stand-in for `GeneratorProcess`: the same worker, in the process of who asks."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._worker: GeneratorWorker | None = None

    @property
    def runs(self) -> bool:
        return self._worker is not None

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self._worker = self._worker or GeneratorWorker()
        answer: dict[str, Any] = json.loads(json.dumps(self._worker.answer(json.loads(json.dumps(request)))))
        if "error" in answer:
            raise UserCodeError(answer["error"])
        return answer

    def stop(self) -> None:
        """Nothing is computed between two questions."""

    def close(self) -> None:
        self.stop()
