"""The process in which a class suggests parameters in a simulated study, and what is left of its suggestions."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_server.server.checkpoint.folder import RANK, STUDY
from stream_server.server.steering.generator_process import LATE, NoAnswer
from stream_server.storage.plain_state import read_state
from tests.faults.chaos.audit import committed_checkpoints
from tests.support.generators import GeneratorHere

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

MEAN_ANSWER_S = 0.3
FAILS = 0.04


def read_history(output_dir: Path) -> tuple[tuple[int, float], ...]:
    """The simulation and the parameter of each suggestion, in the order in which they were written."""
    lines = (output_dir / "suggestions.jsonl").read_text().splitlines()
    return tuple((row[0], row[1][0]) for line in lines for row in json.loads(line)["suggestions"])


def read_num_losses(output_dir: Path) -> dict[int, int]:
    """How many losses of each simulation the newest checkpoint has: those that were told, and those of each rank."""
    checkpoints = committed_checkpoints(output_dir / "checkpoints")
    if not checkpoints:
        return {}
    newest = checkpoints[-1]
    results = read_state(newest / STUDY)["callbacks"].get("Feedback", {"simulations": (), "names": ()})
    column = results["values"][:, results["names"].index("num_losses")] if results["names"] else []
    found = Counter({int(simulation): int(num) for simulation, num in zip(results["simulations"], column, strict=True)})
    for file in newest.glob(f"*/{RANK}"):
        for simulation, name, _, num in read_state(file).get("scores", ()):
            found[simulation] += int(num) if name == "loss" else 0
    return found


class SimulatedGenerator(GeneratorHere):
    """The stand-in for `GeneratorProcess`: the same worker, which takes its time, and now and then hangs or dies."""

    world: "World"
    _is_closed = False

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        draw, threads = self.world.draw, self.world.threads
        # What fails before there is any suggestion ends the study, as it should.
        fails = bool(self.world.trained) and draw.random() < FAILS
        threads.sleep(min(timeout_s, draw.expovariate(1 / MEAN_ANSWER_S)))
        if fails or self._is_closed:
            self._worker = None
            raise NoAnswer(LATE)
        if request["do"] == "ingest":
            self.world.told(request["results"])
        answer = super().ask(request, timeout_s)
        self.world.ended_early.update(answer.get("stop", ()))
        return answer

    def stop(self) -> None:
        self._is_closed = True
