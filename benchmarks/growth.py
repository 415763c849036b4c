"""The cost of a simulation for the launcher and rank 0, in a study of more and more simulations.

Each simulation is some time steps of eight numbers, five by default; two persistent workers compute them, and a
checkpoint is saved every ten seconds. The CPU time is that from the first attempt until the end, without that of the
workers; the memory is the peak of the process. Every study must end with an account that balances.

    python -m benchmarks.growth                      # 200, 2,000 and 20,000 simulations: about ten minutes
    python -m benchmarks.growth 200 2000
    python -m benchmarks.growth --tcp 2000           # with keys over TCP, as from other nodes
    python -m benchmarks.growth --tcp --steps 105 200   # a hundred more time steps: what they add is the cost of steps
    python -m benchmarks.growth --live 2000          # all live at once, with keys over TCP
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

STUDY = Path(__file__).with_name("launched") / "study.json"
SIZES = (200, 2_000, 20_000)
STEPS = 5
CHECKPOINT_S = 10
LAUNCHER = "stream_server.launcher.supervision.cli"
LOOK_S = 0.1
ANOTHER_NODE = "another node"
TICKS = os.sysconf("SC_CLK_TCK")
MB = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """The CPU time that a process has used, and the peak of its memory so far."""

    cpu_s: float
    peak_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Use | None":
        """Those of a process; None once it has ended."""
        try:
            times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            return None
        if "VmHWM" not in status:
            return None
        return cls(cpu_s=(int(times[11]) + int(times[12])) / TICKS, peak_bytes=1024 * int(status["VmHWM"].split()[0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """One study: how fast it was, and what rank 0 and the launcher took for a simulation."""

    num: int
    rate: float
    rank_ms: float
    launcher_ms: float
    rank_bytes: int
    launcher_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.num:>6} {self.rate:>10.1f} {self.rank_ms:>12.2f} {self.launcher_ms:>12.2f}"
            f" {self.rank_bytes / MB:>10.0f} {self.launcher_bytes / MB:>10.0f}"
        )


def measure(num: int, folder: Path, *, steps: int, over_tcp: bool) -> Growth:
    """Run a study of `num` simulations of so many time steps to its end."""
    run = folder / "run"
    program = ["python", "worker.py", str(steps), *([ANOTHER_NODE] if over_tcp else [])]
    settings = {
        "simulation.command": program,
        "simulation.per_worker": "many",
        "study.time_steps": steps,
        "checkpoint.every_s": CHECKPOINT_S,
    }
    with _study(num, folder, settings) as server:
        first, last, began_s = _watch(server, run)
    rank, launcher = ((last[i].cpu_s - first[i].cpu_s) / num * 1e3 for i in range(2))
    return Growth(
        num=num,
        rate=num / ((run / "report.json").stat().st_mtime - began_s),
        rank_ms=rank,
        launcher_ms=launcher,
        rank_bytes=last[0].peak_bytes,
        launcher_bytes=last[1].peak_bytes,
    )


def live(num: int, folder: Path) -> tuple[float, float]:
    """Attach `num` simulations that are all live at once; gives when all were open and when all had ended, in s."""
    settings = {"simulation.command": None, "launcher": {}, "client.max_attached": num, "buffer.capacity": 2 * num}
    with _study(num, folder, settings) as server:
        connection = folder / "run" / "connection.json"
        while not connection.exists():
            assert server.poll() is None, (folder / "output").read_text()
            time.sleep(LOOK_S)
        told = subprocess.run(
            [sys.executable, str(STUDY.with_name("live.py")), str(num), ANOTHER_NODE],
            env={**os.environ, "STREAM_CONNECTION": str(connection)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    opened_s, ended_s = map(float, told.stdout.split())
    return opened_s, ended_s


@contextmanager
def _study(num: int, folder: Path, settings: dict[str, object]) -> Iterator["subprocess.Popen[bytes]"]:
    """A study of `num` simulations, which must end well after the block."""
    run = folder / "run"
    command = [str(Path(sys.executable).with_name("stream-server")), "--config", str(STUDY)]
    for name, value in {**settings, "study.output_dir": str(run), "study.simulations": num}.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    with (folder / "output").open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield server
            server.wait()
        finally:
            server.kill()
            server.wait()
    report = json.loads((run / "report.json").read_text())
    assert server.returncode == 0, (folder / "output").read_text()
    assert report["balanced"]
    assert report["simulations"]["finished"] == num


def _watch(server: "subprocess.Popen[bytes]", run: Path) -> tuple[list[Use], list[Use], float]:
    """Those of rank 0 and launcher when the first attempt was made and at their ends, and the time of the former."""
    first: list[Use] = []
    last: list[Use] = []
    began_s = 0.0
    pids: list[int] = []
    while server.poll() is None:
        time.sleep(LOOK_S)
        pids = pids or _rank_and_launcher(server.pid)
        for i, use in enumerate(map(Use.of, pids)):
            if use is not None:
                last[i : i + 1] = [use]
        if len(last) == 2 and not first and next(run.glob("simulations/*/attempt-0/connection.json"), None):
            first, began_s = list(last), time.time()
    return first, last, began_s


def _rank_and_launcher(server: int) -> list[int]:
    with suppress(psutil.Error):
        for process in psutil.Process(server).children(recursive=True):
            if LAUNCHER in process.cmdline():
                return [process.ppid(), process.pid]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", allow_abbrev=False)
    parser.add_argument("sizes", type=int, nargs="*", default=SIZES, metavar="SIMULATIONS")
    parser.add_argument("--tcp", action="store_true", help="with keys over TCP, as from other nodes")
    parser.add_argument("--steps", type=int, default=STEPS, help="time steps of a simulation (%(default)s)")
    parser.add_argument("--live", action="store_true", help="all live at once, with keys over TCP")
    options = parser.parse_args()
    if options.live:
        for num in options.sizes:
            with tempfile.TemporaryDirectory() as folder:
                opened_s, ended_s = live(num, Path(folder))
                print(f"{num:>6} live: all open after {opened_s:.1f} s, all ended after {ended_s:.1f} s", flush=True)
        return
    print(f"{'':>6} {'1/s':>10} {'rank 0, ms':>12} {'launcher, ms':>12} {'MB':>10} {'MB':>10}", flush=True)
    for num in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(num, Path(folder), steps=options.steps, over_tcp=options.tcp), flush=True)


if __name__ == "__main__":
    main()
