"""Jobs of Slurm that run a study, for tests of what befalls a study within its allocation."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster import LOGIN, Cluster
from tests.support.runs import Run, launcher_log
from tests.support.timing import until

LIMIT_S = 150.0
LOOK_S = 0.5
# The states that Slurm's manual calls final. A job that goes back into the queue may pass through one for a moment.
FINAL = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)
STAYS_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of Slurm that runs a study in the folder `study`."""

    cluster: Cluster
    study: Path
    number: str

    def queue(self, what: str) -> str:
        """What squeue says of it, also for some minutes after its end."""
        lines = self.cluster.run(LOGIN, "squeue", "-h", "-t", "all", "-o", f"%i {what}").splitlines()
        return next((line.partition(" ")[2] for line in lines if line.split()[0] == self.number), "")

    def has_ended(self) -> bool:
        return _stays(lambda: self.queue("%T") in FINAL)

    def waits_to_begin(self) -> bool:
        """Whether it is in the queue again, and its old script is gone, whose exit code would end the new one."""
        return _stays(lambda: self.queue("%T %r") == "PENDING BeginTime")

    @property
    def output(self) -> str:
        file = self.study / "output"
        return file.read_text() if file.exists() else ""

    @property
    def log(self) -> str:
        return launcher_log(self.study / "run")

    def wait_until(self, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
        def is_so() -> bool:
            if condition():
                return True
            assert not self.has_ended(), self._story()
            return False

        until(is_so, limit_s, look_s=LOOK_S, told=self._story)

    def end(self, limit_s: float = LIMIT_S) -> Run:
        """Wait for its end."""
        until(self.has_ended, limit_s, look_s=LOOK_S, told=self._story)
        state = self.queue("%T")
        return Run(
            exit_code=0 if state == "COMPLETED" else 1,
            output=f"{self.output}{self.log}\nthe job is {state}",
            output_dir=self.study / "run",
            wall_s=0,
        )

    def cancel(self) -> None:
        """See that nothing of it is left."""
        self.cluster.run(LOGIN, "scancel", self.number)
        until(self.has_ended, LIMIT_S, look_s=LOOK_S)

    def _story(self) -> str:
        return f"{self.queue('%T %r')}\n{self.output}\n{self.log[-5000:]}"


def _stays(condition: Callable[[], bool]) -> bool:
    if not condition():
        return False
    time.sleep(STAYS_S)
    return condition()


def submitted(cluster: Cluster, study: Path, script: str, *words: str, **environment: str) -> Job:
    """A job that was submitted from the folder of the study."""
    told = [f"{name}={value}" for name, value in environment.items()]
    command = [*cluster.on(LOGIN, study), *told, "sbatch", "--parsable", "--output=output", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Job(cluster=cluster, study=study, number=done.stdout.strip())
