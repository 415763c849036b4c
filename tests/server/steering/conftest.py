"""A study whose parameters a class suggests, and its suggester without a server around it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from stream_server.server.steering.suggester import Suggester
from tests.support.studies import StudyFolder

DEADLINE_S = 100.0


class Suggesting:
    """A suggester that has started, and what it has delivered."""

    def __init__(self, suggester: Suggester) -> None:
        self.suggester = suggester
        self.first = suggester.parameters
        self._delivered: SimpleQueue[Mapping[int, dict[str, float]]] = SimpleQueue()
        self._stopped: SimpleQueue[int] = SimpleQueue()
        self._finished: SimpleQueue[str] = SimpleQueue()
        suggester.start(self._delivered.put, lambda simulation, _: self._stopped.put(simulation), self._finished.put)

    @property
    def is_silent(self) -> bool:
        """Nothing is delivered that was not taken yet."""
        return self._delivered.empty()

    def next_finish(self) -> str:
        """Why the class wants no further simulation."""
        return self._finished.get(timeout=DEADLINE_S)

    def next_stopped(self) -> int:
        """The next simulation of which the class wants nothing more."""
        return self._stopped.get(timeout=DEADLINE_S)

    def next(self, num: int) -> dict[int, dict[str, float]]:
        """Want the parameters of the first `num` simulations, and return those that are delivered for it."""
        known = len(self.suggester.suggestions)
        self.suggester.want(num)
        delivered: dict[int, dict[str, float]] = {}
        while known + len(delivered) < num:
            delivered |= self._delivered.get(timeout=DEADLINE_S)
        return delivered


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "heat")


@pytest.fixture
def suggesting(folder: StudyFolder) -> Iterator[Callable[..., Suggesting]]:
    """`suggesting(code, **changes)` starts the suggester of a study with this class `Points`; again: a later start."""
    with ExitStack() as stack:

        def start(code: str, output: str = "run", **changes: Any) -> Suggesting:
            stack.close()
            (folder.path / "points.py").write_text(code)
            sampler = {"class": "points.py:Points", **changes.pop("sampler", {})}
            config = folder.load(
                {
                    "parameters.bounds": {"x": [0, 1], "y": [1, 100, "log"]},
                    "parameters.sampler": sampler,
                    "simulation.command": ["true"],
                    "study.simulations": 20,
                    "validation.simulations": 2,
                    "launcher.max_running": 4,
                    **changes,
                }
            )
            path = folder.path / output
            path.mkdir(exist_ok=True)
            return Suggesting(stack.enter_context(Suggester(config, path, parameters_csv=path / "parameters.csv")))

        yield start
