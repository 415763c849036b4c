"""One schedule: a study on a simulated machine, struck by the faults of its plan."""

import contextlib
import io
import json
import logging
import shutil
import signal
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from stream_server.config import load
from stream_server.errors import StepsLost
from tests.faults.chaos.audit import Audit, Committed, Trained, read_incarnations
from tests.faults.chaos.evidence import read_suggested
from tests.faults.simulated import doors
from tests.faults.simulated.end import End, Steered
from tests.faults.simulated.faults import Faults
from tests.faults.simulated.machine import Machine, Program
from tests.faults.simulated.network import Network
from tests.faults.simulated.plan import Plan
from tests.faults.simulated.programs import launch
from tests.faults.simulated.signs import Signs
from tests.faults.simulated.steering import read_history, read_num_losses
from tests.faults.simulated.threads import Threads

CALM_S = 300.0
BACK_AFTER_S = 3.0
IN_MEMORY = Path("/dev/shm")


class World:
    """Everything of one schedule. `draw` decides about the machine; `happened` counts what befell it.

    `given` has the parameter of each attempt that got one, `parameters` that of the first attempt of each simulation,
    and `ended_early` the simulations of which the class that suggests wanted nothing more.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.draw = Random(plan.seed)
        self.threads = Threads(Random(f"{plan.seed}/threads"), linger=plan.linger)
        self.network = Network(self.threads, Random(f"{plan.seed}/network"), delay_s=plan.delay_s)
        self.machine = Machine(self.threads, self.network)
        self.signs = Signs()
        self.trained: list[Trained] = []
        self.committed: list[Committed] = []
        self.happened: Counter[str] = Counter()
        self.num_attempts = 0
        self.given: list[tuple[int, float]] = []
        self.parameters: dict[int, float] = {}
        self.ended_early: set[int] = set()
        self.seen: list[str] = []
        self._passages: Counter[str] = Counter()
        (folder / "learner.py").write_text("class Learner: ...\n")
        # The launcher wants the program to be there; `programs.simulate` runs in its place.
        (folder / "none.py").touch()
        file = folder / "study.json"
        file.write_text(json.dumps(plan.settings()))
        self.config = load(file)
        self._faults = Faults(self)

    def passed(self, failpoint: str) -> None:
        """A program comes by a failpoint."""
        self._passages[failpoint] += 1
        self._faults.passed(failpoint, self._passages[failpoint])

    def begun(self, simulation: int, parameter: float) -> None:
        """An attempt of a simulation has got its parameter."""
        self.given.append((simulation, parameter))
        self.parameters.setdefault(simulation, parameter)

    def told(self, results: Sequence[Mapping[str, float]]) -> None:
        """The class that suggests is told results, each with the parameter of its simulation."""
        for row in results:
            simulation, parameter = int(row["simulation"]), row["phase"]
            if parameter != self.parameters.get(simulation):
                self.seen.append(f"results of simulation {simulation} came with the parameter {parameter}, not its own")

    def calm_from(self, when: float) -> None:
        """Nothing bad happens after this time, as far as is known: the study has to end soon after it."""
        self.threads.ends_at = max(self.threads.ends_at, when + CALM_S)

    def run(self) -> int:
        """The study from its beginning to its end; returns the exit code of the last launcher."""
        user = self.threads.spawn(self._use, name="user")
        self.threads.run(user, limit_s=CALM_S)
        assert isinstance(user.result, int)
        return user.result

    def _use(self) -> int:
        """Start stream-launcher, and start it again when it was killed."""
        while True:
            launcher = self.machine.start("launcher", partial(launch, self), environment={})
            self.threads.wait(partial(_has_ended, launcher), None, "the launcher")
            assert launcher.status is not None
            if launcher.status != -signal.SIGKILL:
                return launcher.status
            self.threads.sleep(self.draw.uniform(0.0, BACK_AFTER_S))


def run(plan: Plan) -> End:
    """Run a schedule."""
    root = Path(tempfile.mkdtemp(prefix="simulated-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()), _no_logging():
            return _run(plan, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run(plan: Plan, folder: Path) -> End:
    world = World(plan, folder)
    exit_code, hang = None, ""
    # The threads are left first: what their unwinding does must meet doors that are shut, not those of this machine.
    with doors.opened(world), world.threads:
        try:
            exit_code = world.run()
        except AssertionError as error:
            hang = f"{type(error).__name__}: {error}"
        return _judged(world, exit_code, hang)


def _judged(world: World, exit_code: int | None, hang: str) -> End:
    output_dir = world.config.output_dir
    report = output_dir / "report.json"
    errors = [
        f"{it.name} ({it.pid}): {''.join(traceback.format_exception(it.error))}"
        for it in world.machine.programs.values()
        if it.error is not None and it.name != "client"
    ]
    return End(
        plan=world.plan,
        exit_code=exit_code,
        report=json.loads(report.read_text()) if report.exists() else {},
        incarnations=read_incarnations(output_dir),
        audit=Audit(trained=tuple(world.trained), committed=tuple(world.committed)),
        happened=world.happened,
        virtual_s=world.threads.now,
        num_switches=world.threads.num_switches,
        num_messages=world.network.num_carried,
        num_attempts=world.num_attempts,
        num_failed=_num_failed(world),
        steered=_steered(world) if world.plan.is_steered and report.exists() else None,
        lost_steps=sum(isinstance(it.error, StepsLost) for it in world.machine.programs.values()),
        trace=world.threads.trace,
        hang=hang,
        errors=tuple(errors),
        seen=tuple(world.seen),
    )


def _steered(world: World) -> Steered:
    output_dir = world.config.output_dir
    return Steered(
        history=read_history(output_dir),
        table=read_suggested(output_dir),
        given=tuple(world.given),
        ended_early=frozenset(world.ended_early),
        num_losses=read_num_losses(output_dir),
    )


def _num_failed(world: World) -> int:
    """Attempts of which no rank ended well: what a rank has sent that is gone only a new attempt can send again."""
    statuses = defaultdict(set)
    for it in world.machine.programs.values():
        if it.name == "client":
            statuses[it.environment["STREAM_SIMULATION_ID"], it.environment["STREAM_ATTEMPT"]].add(it.status)
    return sum(0 not in ended for ended in statuses.values())


def _has_ended(program: Program) -> bool:
    return program.status is not None


@contextlib.contextmanager
def _no_logging() -> Any:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
