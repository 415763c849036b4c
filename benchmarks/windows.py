"""Windows made of time steps that are sent once, against a simulation that sends every window.

Both studies train on the same windows of 5 steps of 16 KiB, of four simulations one after another, once each. Of each
study the CPU time of the receiver thread and of the simulations, and the bytes of the fields that were sent.

    python -m benchmarks.windows
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Result, result, show
from stream_server.config import load

STUDY = Path(__file__).with_name("windowed") / "study.json"
LENGTH = 5
NUM_PAIRS = 5
DEADLINE_S = 300.0
FIGURES = {"receive": "µs", "client": "µs", "sent": "kB"}


def results() -> Iterator[Result]:
    """windows.{receive,client,sent}: of each window."""
    pairs = [(_study(), _study(LENGTH)) for _ in range(NUM_PAIRS)]
    for name, unit in FIGURES.items():
        yield result(f"windows.{name}", unit, [(ours[name], theirs[name]) for ours, theirs in pairs])


def _study(length: int | None = None) -> dict[str, float]:
    """Run the study, in which simulations send time steps, or every window of `length`."""
    settings: dict[str, object] = {}
    if length is not None:
        study = json.loads(STUDY.read_text())["study"]
        field = study["fields"]["u"]
        settings = {
            "study.time_steps": study["time_steps"] - length + 1,
            "study.fields": {"u": {**field, "shape": [length, *field["shape"]]}},
            "samples": None,
            "simulation.command": ["python", "simulation.py", str(length)],
        }
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("stream-server")), f"--config={STUDY}"]
        for name, value in {**settings, "study.output_dir": f"{folder}/run"}.items():
            command.append(f"--set={name}={json.dumps(value)}")
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr.decode()
        run = Path(folder) / "run"
        report = json.loads((run / "report.json").read_text())
        config = load(run / "study.json")
        assert report["balanced"]
        client_s = sum(float(file.read_text()) for file in run.glob("simulations/*/attempt-0/cpu.txt"))
    return {
        "receive": 1e6 * report["phases_s"]["receive"] / report["draws"],
        "client": 1e6 * client_s / report["draws"],
        "sent": 1e-3 * report["samples"]["accepted"] * config.study.fields["u"].num_bytes / report["draws"],
    }


if __name__ == "__main__":
    show(results())
