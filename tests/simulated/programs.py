"""The programs of a simulated study: the product's code, called as its commands call it.

Ours are the learner, which notes what it trains, and the simulation, which sends what its plan says.
"""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from stream_server import StreamServer
from stream_server.client_api import connect
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, NoUsableCheckpoint
from stream_server.launcher.supervision import runs
from stream_server.launcher.supervision.server_job import ServerCommand
from stream_server.server.progress.stop import StopRequests
from stream_server.server.run.start import Start
from stream_server.server.study import study
from stream_server.server.study.failure import Failure
from tests.chaos.audit import Committed, Trained
from tests.simulated.machine import Machine
from tests.simulated.ranks import Job, Meeting, SimulatedRanks

if TYPE_CHECKING:
    from tests.simulated.world import World

# Stands where a watchdog does: a simulated rank that waits for ever is seen by its world.
NOBODY: Any = SimpleNamespace(is_outdated=None)

STARTS_S = 1.0


def value(simulation: int, time_step: int) -> np.ndarray:
    """The values of a sample."""
    return np.array([simulation, time_step], np.float64)


class Learner(StreamServer):
    """Learns nothing, slowly, and notes every sample that it was given."""

    def __init__(self, world: "World", config: StudyConfig) -> None:
        super().__init__(config)
        self.world = world
        self.mean = np.zeros(2)

    def process_batch(self, batch: Any, config: Any) -> Any:
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


def serve(world: "World", job: Job, rank: int, start: Start) -> int:
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
        config=world.folder / "study.json",
        overrides=(),
        resume=False,
        ranks=world.plan.num_ranks,
    )
    return runs.run_study(world.config, command, ends_at=math.inf)


def simulate(world: "World", environment: Mapping[str, str], rank: int, solver: Meeting) -> int:
    """A rank of a simulation: sends its part of each step, sometimes twice. Rank 0 may crash before any of them."""
    plan, threads = world.plan, world.threads
    number, attempt = int(environment["STREAM_SIMULATION_ID"]), int(environment["STREAM_ATTEMPT"])
    seed = f"{plan.seed}/{number}/{attempt}"
    draw, common = Random(f"{seed}/{rank}"), Random(seed)
    crash_at = _crash_at(world, number, draw) if rank == 0 else None
    threads.sleep(draw.uniform(0.0, STARTS_S))
    world.num_attempts += rank == 0
    own = slice(None) if plan.client_ranks == 1 else slice(rank, rank + 1)
    with connect(environment["STREAM_CONNECTION"], rank=rank, num_ranks=plan.client_ranks) as simulation:
        simulation.declare_field("u", shape=(2,))
        for step in simulation.time_steps or ():
            threads.sleep(draw.expovariate(1.0 / plan.simulation_step_s))
            if step == crash_at:
                world.happened["crash of a simulation"] += 1
                raise ArithmeticError("a simulation crashes")
            is_wanted = simulation.send(step, u=value(number, step)[own])
            if is_wanted and common.random() < plan.duplicates:
                world.happened["duplicate"] += 1
                simulation.send(step, u=value(number, step)[own])
            if not all(solver.exchange(rank, is_wanted) or ()):
                break
    return 0


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
        start: Start,
        stops: StopRequests,
        collector: Any,
    ) -> None:
        self.machine.current.incarnation = continuation.identity.incarnation
        super().__init__(config, ranks, folder, continuation, start, stops, collector)


def silent(*_: Any, **__: Any) -> Any:
    """A context without any effect, in place of what people look at."""
    return nullcontext(SimpleNamespace(update=lambda status: None))
