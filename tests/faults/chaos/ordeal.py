"""A study whose processes are killed while it runs."""

import math
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.faults.chaos.audit import committed_checkpoints
from tests.faults.chaos.kills import Blow, Kill, next_blow, victim
from tests.faults.chaos.live import LiveStudy
from tests.faults.chaos.moments import Moments
from tests.faults.chaos.plan import Plan
from tests.support.timing import Deadline

LOOK_S = 0.02
AIM_S = 3.0
AIM_LOOK_S = 0.001
STRIKE_S = (0.0, 0.03)
# A study that has saved nothing yet has little to lose.
SHARE_AT_THE_START = 0.25
FIRST_S = 20.0
BACK_AFTER_S = (0.0, 1.5)
# Nobody watches over these two: whoever stops one must also continue it.
UNWATCHED = frozenset({"launcher", "shell"})
# Before the first sample three failures of simulations in a row stop a study, as they should, and so does a class that
# dies before it has suggested anything.
NOT_AT_THE_START = frozenset({"client", "shell", "sampler"})


class Hung(Exception):
    """The study did not end in time; what it printed ends with the stacks of its processes."""


@dataclass(kw_only=True)
class Ordeal:
    """Runs the study of a plan, strikes `max_kills` times or until it ends, and then leaves it `calm_s` to end.

    A launcher that was killed is started again by the same command, a while later.
    `environment` takes the place of the traces by which the moments of kills are known.
    """

    plan: Plan
    output_dir: Path
    max_kills: int
    mpi: str = "mpich"
    stops: bool = False
    calm_s: float = 90.0
    environment: Mapping[str, str] | None = None
    kills: list[Kill] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)

    def run(self) -> int:
        """Run the study to its end and return the exit code of its last launcher.

        Raises:
            Hung: it did not end within the time it has.
        """
        self._draw = random.Random(self.plan.seed)
        self._paused: list[tuple[float, psutil.Process]] = []
        self._back_at: float | None = None
        self._moments = Moments(output_dir=self.output_dir)
        environment = self._moments.environment if self.environment is None else self.environment
        with LiveStudy(self.plan, self.output_dir, mpi=self.mpi, environment=environment) as self._study:
            if self.max_kills and self._draw.random() >= SHARE_AT_THE_START:
                self._wait_for_a_checkpoint()
            while len(self.kills) < self.max_kills:
                blow = next_blow(self._draw, stops=self.stops)
                strikes_at = time.monotonic() + blow.wait_s
                if self._has_ended_before(lambda at=strikes_at: time.monotonic() >= at):
                    break
                self._strike(blow)
            deadline = Deadline(self.calm_s)
            if not self._has_ended_before(lambda: deadline.has_passed):
                self._study.dump_stacks()
                raise Hung(f"did not end within {self.calm_s:g} s after the last kill:\n{self._study.said()}")
            self.leftovers = self._study.leftovers()
            exit_code = self._study.exit_code
        assert exit_code is not None
        return exit_code

    def _wait_for_a_checkpoint(self) -> None:
        deadline = time.monotonic() + FIRST_S
        while not committed_checkpoints(self.output_dir / "checkpoints") and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _has_ended_before(self, time_is_up: Callable[[], bool]) -> bool:
        """Wait, unless the study ends by itself; the launcher comes back meanwhile, and so does what paused."""
        while not self._has_ended():
            if time_is_up():
                return False
            self._continue_paused()
            time.sleep(LOOK_S)
        return True

    def _has_ended(self) -> bool:
        exit_code = self._study.exit_code
        if exit_code is None:
            return False
        if exit_code != -signal.SIGKILL:
            return True
        if self._back_at is None:
            self._back_at = time.monotonic() + self._draw.uniform(*BACK_AFTER_S)
        elif time.monotonic() >= self._back_at:
            self._back_at = None
            self._study.start()
        return False

    def _strike(self, blow: Blow) -> None:
        processes = self._study.processes()
        spared = NOT_AT_THE_START if self._moments.now(processes) == "start" else frozenset()
        chosen = victim(self._draw, processes, spared)
        if chosen is None:
            return
        kind, process = chosen
        if blow.aim is not None:
            self._lie_in_wait(blow.aim, {client.pid for client in processes["client"]})
        number = signal.SIGKILL if blow.pause_s is None else signal.SIGSTOP
        moment = self._moments.now(processes)
        try:
            name = process.name()
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return
        kill = Kill(kind=kind, name=name, pid=process.pid, number=number, moment=moment, time=time.time())
        if blow.pause_s is not None:
            pause_s = min(blow.pause_s, AIM_S) if kind in UNWATCHED else blow.pause_s
            self._paused.append((time.monotonic() + pause_s, process))
        self.kills.append(kill)

    def _lie_in_wait(self, aim: str, clients: set[int]) -> None:
        """Wait for a moment that is short, if it comes soon."""
        begin, deadline = time.time(), time.monotonic() + AIM_S
        while time.monotonic() < deadline:
            if aim == "commit" and self._moments.is_committing(since=begin):
                time.sleep(self._draw.uniform(*STRIKE_S))
                return
            if aim == "reconnect" and clients & self._moments.reconnecting():
                return
            time.sleep(AIM_LOOK_S)

    def _continue_paused(self) -> None:
        now = time.monotonic()
        for due, process in self._paused:
            if now >= due and process.is_running():
                process.resume()
        self._paused = [(due, process) for due, process in self._paused if now < due < math.inf]
