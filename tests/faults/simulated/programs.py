"""The programs of a simulated study: the product's code, called as its commands call it.

Ours are the learner, which notes what it trains, and the simulation, which sends what its plan says.
"""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from stream_server import StreamServer
from stream_server.client_api import Simulation, connect, simulations
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, NoUsableCheckpoint
from stream_server.launcher.supervision import runs
from stream_server.launcher.supervision.server_job import ServerCommand
from stream_server.messages.connection import NEXT_VARIABLE
from stream_server.server.progress.stop import StopRequests
from stream_server.server.run.start import StartOptions
from stream_server.server.study import study
from stream_server.server.study.failure import Failure
from tests.faults.chaos.audit import Committed, Trained
from tests.faults.simulated.machine import Machine
from tests.faults.simulated.plan import MESH_SIZE, MOST_EDGES, MOST_PARTICLES, Plan
from tests.faults.simulated.ranks import Job, Meeting, SimulatedRanks

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

# Stands where a watchdog does: a simulated rank that waits for ever is seen by its world.
NOBODY: Any = SimpleNamespace(is_outdated=None)

STARTS_S = 1.0


def value(simulation: int, time_step: int) -> np.ndarray:
    """The values of a sample."""
    return np.array([simulation, time_step], np.float64)


def edges(simulation: int) -> np.ndarray:
    """The static fields of a simulation; some have no rows."""
    return np.full(3 * simulation % (MOST_EDGES + 1), float(simulation))


def mesh(simulation: int) -> np.ndarray:
    """The field that all samples of a simulation share."""
    return simulation + np.arange(MESH_SIZE) / MESH_SIZE


def particles(simulation: int, time_step: int) -> np.ndarray:
    """A field of which each time step has another number of rows, perhaps none."""
    return np.full((simulation + time_step) % (MOST_PARTICLES + 1), 100.0 * simulation + time_step)


class Learner(StreamServer):
    """Learns nothing, slowly, and notes every sample that it was given."""

    def __init__(self, world: "World", config: StudyConfig) -> None:
        super().__init__(config)
        self.world = world
        self.mean = np.zeros(2)

    def process_batch(self, batch: Any, config: Any) -> Any:
        plan = self.world.plan
        for row, simulation in enumerate(batch.simulation_ids.tolist()):
            self._check(simulation, batch.parameters[row], batch.fields["mesh"][row] if plan.statics else None)
            if plan.statics and plan.ragged and not np.array_equal(batch.fields["edges"][row], edges(simulation)):
                raise ArithmeticError(f"a sample of simulation {simulation} has the edges {batch.fields['edges'][row]}")
            if plan.ragged:
                _check_particles(simulation, batch.time_steps[row], batch.fields["particles"][row])
        return batch.simulation_ids, batch.time_steps, batch.fields["u"]

    def training_step(self, batch: Any, batch_idx: int) -> float:
        simulations, steps, values = batch
        for simulation, of_sample, rows in zip(simulations, steps.reshape(len(steps), -1), values, strict=True):
            for step, row in zip(of_sample, rows.reshape(-1, 2), strict=True):
                if not np.array_equal(row, value(simulation, step)):
                    raise ArithmeticError(f"time step {step} of simulation {simulation} holds {row}")
            window = self.world.plan.window
            if window is not None and of_sample.tolist() != [*window.steps(int(of_sample[0]))]:
                raise ArithmeticError(f"a window of simulation {simulation} has the time steps {of_sample}")
        self.world.threads.sleep(self.world.plan.step_s)
        (gradient,) = self.all_reduce([self.mean - values.reshape(-1, 2).mean(axis=0)])
        self.mean -= 0.1 * gradient
        return float(gradient @ gradient)

    def _check(self, simulation: int, parameters: np.ndarray, shared: np.ndarray | None) -> None:
        """See that a sample comes with what its simulation was given, and what it has sent once."""
        given = self.world.parameters[simulation]
        if parameters.tolist() != [given]:
            raise ArithmeticError(f"a sample of simulation {simulation} has {parameters}, and was made with {given}")
        if shared is not None and not np.array_equal(shared, mesh(simulation)):
            raise ArithmeticError(f"a sample of simulation {simulation} has the mesh {shared}")

    def on_batch_end(self, batch: Any, batch_idx: int, loss: Any) -> None:
        firsts = batch[1].reshape(len(batch[1]), -1)[:, 0]
        keys = tuple(zip(batch[0].tolist(), firsts.tolist(), strict=True))
        world = self.world
        world.trained.append(
            Trained(
                incarnation=world.machine.current.incarnation,
                rank=self.rank,
                batch=batch_idx,
                keys=keys,
                time=world.threads.now,
            )
        )

    def on_checkpoint(self, path: Path) -> None:
        if self.rank == 0:
            self.world.committed.append(
                Committed(incarnation=self.world.machine.current.incarnation, checkpoint=int(path.name))
            )

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


def _check_particles(simulation: int, time_steps: np.ndarray, found: np.ndarray) -> None:
    """Look at the particles of a sample, of a window at those of each step."""
    steps, arrays = ([int(time_steps)], [found]) if time_steps.ndim == 0 else (time_steps.tolist(), found)
    for step, array in zip(steps, arrays, strict=True):
        if not np.array_equal(array, particles(simulation, step)):
            raise ArithmeticError(f"time step {step} of simulation {simulation} has the particles {array}")


def serve(world: "World", job: Job, rank: int, start: StartOptions) -> int:
    """One rank of the server, as `run_study` and the command do it."""
    world.threads.sleep(world.draw.uniform(0.0, STARTS_S))
    ranks = SimulatedRanks(job, rank)
    assert start.alive is not None
    world.machine.current.has_come = True
    world.signs.come(start.alive, rank, world.machine.current, world.threads.now)
    try:
        code = study._run(world.config, ranks, start, StopRequests(), NOBODY)
    except (ConfigError, NoUsableCheckpoint) as error:
        world.machine.current.error = error
        code = error.exit_code
    except Exception as error:
        world.machine.current.error = error
        ranks.abort(Failure.of(error, rank=rank, phase="start").exit_code)
    world.signs.leave(start.alive, rank)
    return code


def launch(world: "World") -> int:
    """The command stream-launcher."""
    command = ServerCommand(
        study=world.config,
        file=world.folder / "study.json",
        overrides=(),
        resume=False,
        ranks=world.plan.num_ranks,
    )
    return runs.supervise_study(world.config, command, ends_at=math.inf)


@dataclass(frozen=True, slots=True)
class Course:
    """The random choices of a rank of an attempt: `draw` for it alone, `common` for all ranks."""

    draw: Random
    common: Random
    crash_at: int | None

    @classmethod
    def of(cls, world: "World", simulation: int, attempt: int, rank: int) -> "Course":
        """Rank 0 may crash before one of the steps."""
        seed = f"{world.plan.seed}/{simulation}/{attempt}"
        draw = Random(f"{seed}/{rank}")
        crash_at = _crash_at(world, simulation, draw) if rank == 0 else None
        return cls(draw, Random(seed), crash_at)


def simulate(world: "World", environment: Mapping[str, str], rank: int, solver: Meeting) -> int:
    """A rank of a simulation, or of a worker, which runs several one after another."""
    course = Course.of(world, int(environment["STREAM_SIMULATION_ID"]), int(environment["STREAM_ATTEMPT"]), rank)
    world.threads.sleep(course.draw.uniform(0.0, STARTS_S))
    world.num_attempts += rank == 0
    num_ranks = world.plan.client_ranks
    if NEXT_VARIABLE in environment:
        for simulation in simulations(rank=rank, num_ranks=num_ranks):
            _send_all(world, simulation, Course.of(world, simulation.id, simulation.attempt, rank), rank, solver)
    else:
        with connect(rank=rank, num_ranks=num_ranks) as simulation:
            _send_all(world, simulation, course, rank, solver)
    return 0


def _send_all(world: "World", simulation: Simulation, course: Course, rank: int, solver: Meeting) -> None:
    """Send the part of a rank of each step, sometimes twice."""
    plan, threads, number = world.plan, world.threads, simulation.id
    draw, common, crash_at = course.draw, course.common, course.crash_at
    own = slice(None) if plan.client_ranks == 1 else slice(rank, rank + 1)
    of_mesh = _part_of_mesh(plan, common, rank)
    if rank == 0:
        world.begun(number, simulation.parameters["phase"])
    if of_mesh is not None:
        simulation.declare_field("mesh", shape=(MESH_SIZE,), offset=(of_mesh.start,))
        simulation.send_static(mesh=mesh(number)[of_mesh])
    if plan.statics and plan.ragged:
        # Another attempt may share them out otherwise.
        parts = np.array_split(edges(number), plan.client_ranks if common.random() < 0.5 else 1)
        simulation.send_static(edges=parts[rank] if rank < len(parts) else np.zeros(0))
    if plan.ragged and rank == 0:
        simulation.declare_field("particles", shape=(MOST_PARTICLES,))
    simulation.declare_field("u", shape=(2,))
    for step in simulation.time_steps or ():
        threads.sleep(draw.expovariate(1.0 / plan.simulation_step_s))
        if step == crash_at:
            world.happened["crash of a simulation"] += 1
            raise ArithmeticError("a simulation crashes")
        fields = {"u": value(number, step)[own]}
        if plan.ragged and rank == 0:
            fields["particles"] = particles(number, step)
        is_wanted = simulation.send(step, **fields)
        if is_wanted and common.random() < plan.duplicates:
            world.happened["duplicate"] += 1
            simulation.send(step, **fields)
        if not all(solver.exchange(rank, is_wanted) or ()):
            break


def _part_of_mesh(plan: Plan, common: Random, rank: int) -> slice | None:
    """The part that a rank sends: its share, or all of it or nothing. Another attempt may share it out otherwise."""
    if not plan.statics:
        return None
    sender = common.randrange(plan.client_ranks) if common.random() < 0.5 else None
    if sender is None:
        share = MESH_SIZE // plan.client_ranks
        return slice(rank * share, (rank + 1) * share)
    return slice(0, MESH_SIZE) if rank == sender else None


def _crash_at(world: "World", number: int, draw: Random) -> int | None:
    plan = world.plan
    if number == plan.crasher:
        return draw.randrange(3)
    # Three failures in a row before the first sample stop a study, as they should.
    return draw.randrange(plan.num_steps) if draw.random() < plan.crash and world.trained else None


class NotedRank(study.StudyRank):
    """A rank that tells its incarnation."""

    machine: Machine

    def __init__(
        self,
        config: StudyConfig,
        ranks: Any,
        folder: Any,
        continuation: Any,
        start: StartOptions,
        stops: StopRequests,
        collector: Any,
    ) -> None:
        self.machine.current.incarnation = continuation.identity.incarnation
        super().__init__(config, ranks, folder, continuation, start, stops, collector)


def silent(*_: Any, **__: Any) -> Any:
    """A context without any effect, in place of what people look at."""
    return nullcontext(SimpleNamespace(show=lambda snapshot: None, make_way=lambda: None))
