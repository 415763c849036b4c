"""How many simulations a second a study gets through that take no time themselves.

Each is five time steps of eight numbers; two run at once. The value is with persistent workers
(`"simulation.per_worker": "many"`), the reference with a process for each simulation. The time is that from the first
attempt until the report.

    python -m benchmarks.launch
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Result, result, show

STUDY = Path(__file__).with_name("launched") / "study.json"
NUM_PAIRS = 3
DEADLINE_S = 300.0


def results() -> Iterator[Result]:
    """launch.rate."""
    yield result("launch.rate", "1/s", [(_rate("many"), _rate(1)) for _ in range(NUM_PAIRS)])


def _rate(per_worker: int | str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("stream-server")), "--config", str(STUDY)]
        for setting in (f"study.output_dir={folder}/run", f"simulation.per_worker={json.dumps(per_worker)}"):
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr.decode()
        run = Path(folder) / "run"
        report = run / "report.json"
        began_s = min(it.stat().st_mtime for it in run.glob("simulations/*/attempt-0/connection.json"))
        assert json.loads(report.read_text())["balanced"]
        return float(json.loads(report.read_text())["simulations"]["finished"] / (report.stat().st_mtime - began_s))


if __name__ == "__main__":
    show(results())
