"""Runs an adapter, or a program that streams, of which a file keeps what it sends, in place of a study.

python -P -m tests.adapters.collecting MODULE FILE WORD …
python -P -m tests.adapters.collecting PROGRAM.py FILE PARAMETER=VALUE …
"""

import importlib
import os
import pickle
import runpy
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from stream_server import client_api
from stream_server.client_api.device_arrays import DeviceArrays
from stream_server.messages.client import PER_SIMULATION, PER_STEP, FieldSpec

SHAPE = (4, 3)
ENOUGH = 40
STATIC = "coefficient"
SLOW_S = 0.4


class Collector:
    """Stands in for the simulation of a study: the calls that an adapter may make."""

    time_steps = range(100, 200, 10)

    def __init__(self, path: Path, words: Sequence[str] = ()) -> None:
        self._path = path
        names = [pair.partition("=")[0] for option, pair in pairwise(words) if option == "--field"]
        self.fields = {
            name: FieldSpec(name=name, shape=(), per=PER_SIMULATION if name == STATIC else PER_STEP) for name in names
        }
        self.sent: list[tuple[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sent.append(("finished" if kind is None else "abandoned", None))
        self._path.write_bytes(pickle.dumps(self.sent))

    def send_static(self, **fields: Any) -> None:
        if fields:
            self.sent.append(("static", {name: np.array(it) for name, it in fields.items()}))

    def send(self, time_step: int, **fields: Any) -> bool:
        missing = [name for name, it in fields.items() if it is None]
        if missing:
            raise ValueError(f"field {missing[0]!r} is missing")
        if "slow" in fields:
            time.sleep(SLOW_S)
        if "u" in fields and fields["u"].shape != SHAPE:
            raise ValueError(f"field 'u' must have the shape {SHAPE}, but has {fields['u'].shape}")
        self.sent.append((str(time_step), {name: np.array(it) for name, it in fields.items()}))
        return len(self.sent) < ENOUGH


class Rank(Collector):
    """Stands in for one rank of a solver's simulation; the file of each rank has its number as suffix."""

    def __init__(self, path: Path, parameters: dict[str, float], rank: int) -> None:
        super().__init__(path.with_suffix(f".{rank}"))
        self.parameters = parameters

    def declare_field(self, name: str, *, shape: Sequence[int], offset: Sequence[int]) -> None:
        self.sent.append((f"declared {name}", (tuple(shape), tuple(offset))))

    def send(self, time_step: int, **fields: Any) -> bool:
        on_host = DeviceArrays().on_host
        self.sent.append((str(time_step), {name: np.array(on_host(name, it)) for name, it in fields.items()}))
        return True


def run_solver(program: str, path: Path, parameters: dict[str, float]) -> None:
    def connect(*, rank: int = 0, num_ranks: int = 1) -> Rank:
        return Rank(path, parameters, rank)

    client_api.connect = connect
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    module, path, *words = sys.argv[1:]
    if module.endswith(".py"):
        run_solver(module, Path(path), {name: float(value) for name, value in (it.split("=") for it in words)})
        sys.exit()
    adapter = importlib.import_module(module)
    adapter.connect = lambda: Collector(Path(path), words)
    result = adapter.adapt(words)
    sys.stdout.flush()
    os._exit(result)
