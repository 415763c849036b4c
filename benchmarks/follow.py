"""The cost of following files beside sending arrays: what `stream-follow` does before it calls `send`.

`follow.FORMAT.SIZE` is the CPU time of one step: the look at the folder, the decision that a file is finished, and its
array in memory. The reference is the copy of the same bytes: the file, opened and read into memory that is there
already. There is no study, so that `send`, which costs the same either way, does nothing.

    python -m benchmarks.follow
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

from benchmarks.measure import Result, alternated, show
from stream_server.adapters.follow_steps import StepFileFollower
from stream_server.client_api import connect

ROUND_BYTES = 64 * 2**20
SIZES = {"40kB": 40_000, "1MB": 1_000_000, "16MB": 16_000_000}


def results() -> Iterator[Result]:
    """follow.{npy,hdf5}.{40kB,1MB,16MB}."""
    for kind, write in {"npy": _npy, "h5": _hdf5}.items():
        for size, num_bytes in SIZES.items():
            with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
                paths = [Path(folder, f"step_{step:05d}.{kind}") for step in range(max(4, ROUND_BYTES // num_bytes))]
                for path in paths:
                    write(path, np.random.default_rng(0).random(num_bytes // 8))
                yield alternated(f"follow.{kind}.{size}", "µs", _following(folder, kind, len(paths)), _copying(paths))


def _npy(path: Path, values: np.ndarray) -> None:
    np.save(path, values)


def _hdf5(path: Path, values: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["u"] = values


def _following(folder: str, kind: str, num: int) -> Callable[[], float]:
    """A round in which all files are followed; µs of CPU time of each."""
    options = argparse.Namespace(
        pattern=f"{folder}/step_*.{kind}",
        field=["u=u"],
        finished_by="quiet",
        quiet_s=2.0,
        patience_s=60.0,
        earlier=True,
        in_order=False,
        delete=False,
    )

    def one_round() -> float:
        with connect("none") as simulation:
            follower = StepFileFollower(options, simulation)
            start = time.thread_time()
            follower.turn(has_ended=False)
            return (time.thread_time() - start) / (num - 1) * 1e6

    return one_round


def _copying(paths: list[Path]) -> Callable[[], float]:
    """A round in which the bytes of all files are copied; µs of CPU time of each."""
    memory = bytearray(os.path.getsize(paths[0]))

    def one_round() -> float:
        start = time.thread_time()
        for path in paths:
            with path.open("rb", buffering=0) as file:
                file.readinto(memory)
        return (time.thread_time() - start) / len(paths) * 1e6

    return one_round


if __name__ == "__main__":
    show(results())
