"""The heat study as it is shipped, against the best setting of ranks, threads and simulations that a search finds.

Each run is the study at its published size, with fewer simulations, each sample drawn equally often, so that all runs
train on the same number of samples; the time is that of the whole command. The search tries every combination once. Its
best is then run in turn with the study as shipped; the ratio is the speed of the latter to that of the former.

    python -m benchmarks.cores              # about a quarter of an hour on two cores
    python -m benchmarks.cores --busy 2     # beside so many programs that never rest
"""

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import result, show

STUDY = Path(__file__).parents[1] / "configs" / "heat" / "small-scale.json"
NUM_SIMULATIONS = 10
DRAWS_PER_SAMPLE = 8
NUM_PAIRS = 5
DEADLINE_S = 600.0
RANKS = (1, 2)
THREADS = (1, 2)
AT_ONCE = (1, 2, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The settings that a user may choose by hand; those that are None stay as they are shipped."""

    ranks: int = 1
    threads: int | None = None
    simulations: int | None = None
    simulation_threads: int | None = None

    @property
    def command(self) -> list[str]:
        """The study with it."""
        program = [str(Path(sys.executable).with_name("stream-server")), f"--config={STUDY}"]
        settings = {
            "study.simulations": NUM_SIMULATIONS,
            "validation.simulations": 1,
            "training.draws_per_sample": DRAWS_PER_SAMPLE,
            "launcher.max_running": self.simulations,
        }
        program += [f"--set={name}={value}" for name, value in settings.items() if value is not None]
        if self.simulation_threads is not None:
            program += [f'--set=simulation.job.environment={{"OMP_NUM_THREADS": "{self.simulation_threads}"}}']
        return program if self.ranks == 1 else ["mpirun", "-n", str(self.ranks), *program]

    def run_s(self) -> float:
        """Seconds of the command."""
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        as_found = {name: it for name, it in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            start_s = time.monotonic()
            done = subprocess.run(
                [*self.command, f"--set=study.output_dir={folder}/run"],
                env={**as_found, **threads},
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            taken_s = time.monotonic() - start_s
        if done.returncode:
            raise SystemExit(f"{self} ended with {done.returncode}:\n{done.stderr}")
        return taken_s

    def __str__(self) -> str:
        names = (self.ranks, self.threads, self.simulations, self.simulation_threads)
        return "ranks {}, threads {}, simulations at once {}, threads of each {}".format(*names)


SHIPPED = Setting()


def settings() -> Iterator[Setting]:
    """Those that are searched."""
    for ranks, threads, simulations, of_each in itertools.product(RANKS, THREADS, AT_ONCE, THREADS):
        yield Setting(ranks=ranks, threads=threads, simulations=simulations, simulation_threads=of_each)


@contextmanager
def busy(num: int) -> Iterator[None]:
    """So many programs that never rest."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--busy", type=int, default=0, metavar="NUM", help="programs beside it that never rest")
    num_busy = parser.parse_args().busy
    if shutil.which("mpirun") is None:
        parser.error("there is no mpirun on the PATH, which starts a server of two ranks")
    with busy(num_busy):
        found: dict[Setting, float] = {}
        for setting in settings():
            found[setting] = setting.run_s()
            print(f"{found[setting]:6.1f} s  {setting}", flush=True)
        best = min(found, key=found.__getitem__)
        print(f"best: {best}", flush=True)
        # A speed is one over the time: runs per hour.
        pairs = [(3600 / SHIPPED.run_s(), 3600 / best.run_s()) for _ in range(NUM_PAIRS)]
    show([result(f"cores.busy.{num_busy}" if num_busy else "cores.idle", "runs/h", pairs)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
