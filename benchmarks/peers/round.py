"""One round of one way, in processes of its own.

python -m benchmarks.peers.round run NAME             prints what came of it, as JSON
python -m benchmarks.peers.round produce NAME PLACE NUMBER
python -m benchmarks.peers.round consume NAME PLACE
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.work import Work, begin, end, look_at_all, meet, ready

ROOT = Path(__file__).parents[2]
STREAM = Path(__file__).with_name("stream")
ADAPTERS = Path(__file__).with_name("adapters")
OURS = "stream-server"
DEADLINE_S = 600.0
# Each process has one of the cores, as the server gives its own simulations.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run(name: str, work: Work) -> dict[str, Any]:
    """Do the work, and judge it."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        place = Path(folder)
        environment = os.environ | ONE_THREAD | work.to_environment()
        commands = ours(place, work) if name == OURS else theirs(name, place, work)
        processes = [subprocess.Popen(it, env=environment, stdout=subprocess.DEVNULL) for it in commands]
        codes = [process.wait(DEADLINE_S) for process in processes]
        assert not any(codes), f"{name} ended with {codes}"
        found = json.loads((place / "found.json").read_text())
        start = min(float(file.read_text()) for file in place.glob("start-*"))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = found["end"] - start
    return {
        "name": name,
        "samples_per_s": work.num_total / wall_s,
        "batches_per_s": found["batches"] / wall_s,
        "torn": found["torn"],
        "seen": found["seen"] / work.num_total,
        "memory_MB": found["memory_bytes"] / 1e6,
        "cpu_s": used.ru_utime + used.ru_stime,
        "lines": num_lines(name),
    }


def theirs(name: str, place: Path, work: Work) -> list[list[str]]:
    """The training and the simulations, as commands."""
    program = [sys.executable, "-m", "benchmarks.peers.round"]
    producers = [[*program, "produce", name, str(place), str(number)] for number in range(work.num_producers)]
    return [[*program, "consume", name, str(place)], *producers]


def ours(place: Path, work: Work) -> list[list[str]]:
    """The server, which starts the simulations: it is there when they are."""
    ready(place)
    settings = {
        "study.output_dir": str(place / "run"),
        "study.simulations": work.num_producers,
        "study.time_steps": work.num_samples,
        "study.fields": {"field": {"shape": [work.num_values], "dtype": "float32"}},
        "simulation.command": [sys.executable, "solver.py", str(place)],
        "launcher.max_running": work.num_producers,
        "training.batch_size": work.batch_size,
        "buffer.pseudo_epochs": work.draws,
        "user.place": str(place),
    }
    program = str(Path(sys.executable).with_name("stream-server"))
    options = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    return [[program, f"--config={STREAM / 'study.json'}", *options]]


def num_lines(name: str) -> int:
    """The lines that a user writes, without blank ones and docstrings."""
    files = [ADAPTERS / f"{name}.py"]
    if name == OURS:
        files = [it for it in STREAM.iterdir() if it.is_file()]
    elif "adapters.receiving" in files[0].read_text():
        files.append(ADAPTERS / "receiving.py")
    lines = [line.strip() for file in files for line in file.read_text().splitlines()]
    return sum(bool(line) and not line.startswith('"""') for line in lines)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["run", name]:
            print(json.dumps(run(name, Work.from_environment())))
        case ["produce", name, folder, number]:
            place, producer, work = Path(folder), int(number), Work.from_environment()
            produce = import_module(f"benchmarks.peers.adapters.{name}").produce
            meet(place, producer, work)
            begin(place, producer)
            produce(place, producer, work)
            end(place, producer)
        case ["consume", name, place]:
            batches = import_module(f"benchmarks.peers.adapters.{name}").batches
            look_at_all(batches(Path(place), Work.from_environment()), Path(place))


if __name__ == "__main__":
    main(sys.argv[1:])
