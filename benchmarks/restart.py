"""How long a study stands still when its server is killed.

`stream-launcher` runs a server of two ranks. Each time a checkpoint is committed, rank 0 is killed with SIGKILL;
the value is the time from then until the next server has trained a batch. The reference is the time from the command
until the first server had. `restart.s` has a learner without torch; `restart.torch.s` is the heat study.

    python -m benchmarks.restart
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.measure import Result, result, show

ROOT = Path(__file__).parents[1]
DEADLINE_S = 60.0
NUM_STUDIES = 2
NUM_KILLS = 3
NUM_KILLS_TORCH = 2
HEAT = (
    f"server.class={ROOT}/benchmarks/restarted/heat.py:TimedHeatServer",
    "server.ranks=2",
    "checkpoint.every_s=1",
)


def results() -> Iterator[Result]:
    """restart.s and restart.torch.s."""
    pairs = [
        pair for _ in range(NUM_STUDIES) for pair in _measured(ROOT / "benchmarks/restarted/study.json", NUM_KILLS)
    ]
    yield result("restart.s", "s", pairs)
    yield result("restart.torch.s", "s", _measured(ROOT / "configs/heat/study.json", NUM_KILLS_TORCH, HEAT))


class Study:
    """A study under its launcher; at the end of the block it is stopped in order."""

    def __init__(self, config: Path, settings: Sequence[str]) -> None:
        self._config = config
        self._settings = settings
        self._stack = ExitStack()
        self._lines = b""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
            pipe = folder / "pipe"
            os.mkfifo(pipe)
            # Open for both, so that it never ends.
            self._pipe = os.open(pipe, os.O_RDWR)
            stack.callback(os.close, self._pipe)
            self._output = folder / "output"
            settings = [*self._settings, f"study.output_dir={folder / 'run'}", f"user.pipe={pipe}"]
            self.started_s = time.monotonic()
            program = Path(sys.executable).with_name("stream-launcher")
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    [program, f"--config={self._config}", *(f"--set={it}" for it in settings)],
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            stack.callback(self._stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def wait_for(self, what: str) -> tuple[int, float]:
        """The next time that this is told: by which process, and when.

        Raises:
            TimeoutError: it is not within a minute.
        """
        give_up_at = time.monotonic() + DEADLINE_S
        while True:
            line, end, rest = self._lines.partition(b"\n")
            if end:
                self._lines = rest
                said, pid, seconds = line.decode().split()
                if said == what:
                    return int(pid), float(seconds)
                continue
            if select.select([self._pipe], [], [], 1.0)[0]:
                self._lines += os.read(self._pipe, 4096)
            elif self._process.poll() is not None or time.monotonic() > give_up_at:
                raise TimeoutError(f"no server has {what} anything:\n{self._output.read_text()[-2000:]}")

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)


def _measured(config: Path, num_kills: int, settings: Sequence[str] = ()) -> list[tuple[float, float]]:
    """Seconds of each restart, and of the first start."""
    with Study(config, settings) as study:
        first_s = study.wait_for("trained")[1] - study.started_s
        pairs = []
        for _ in range(num_kills):
            victim, _ = study.wait_for("saved")
            killed_s = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            pairs.append((study.wait_for("trained")[1] - killed_s, first_s))
        return pairs


if __name__ == "__main__":
    show(results())
