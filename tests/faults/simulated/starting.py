"""How programs are started on the simulated machine: mpirun with its ranks, and the shell of a simulation."""

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stream_server.launcher.backends.backend import EXIT_FILE
from stream_server.server.run.start import StartOptions
from tests.faults.simulated.machine import Machine, Program
from tests.faults.simulated.programs import serve, simulate
from tests.faults.simulated.ranks import Job, Meeting

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

MPIRUN_NOTICES_S = 2.0
SHELL_S = 0.01


class Mpirun:
    """`subprocess.Popen` of the server's command line: mpirun, and the ranks that it starts."""

    def __init__(self, world: "World", command: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
        self._world = world
        self._program = world.machine.start("mpirun", None, environment=env)
        self.pid = self._program.pid
        options = dict(pairwise(command))
        start = StartOptions(link=options["--link"], alive=options["--alive"])
        job = Job(world.machine, world.plan.num_ranks)
        for rank in range(job.size):
            main = partial(serve, world, job, rank, start)
            member = world.machine.start(f"rank {rank}", main, environment=env, session=self.pid)
            member.on_end.append(partial(self._has_ended, job, member))
            job.members.append(member)

    def poll(self) -> int | None:
        return self._program.status

    def _has_ended(self, job: Job, member: Program, status: int) -> None:
        world = self._world
        if all(member.status is not None for member in job.members):
            worst = max((abs(member.status or 0) for member in job.members), default=0)
            world.threads.after(SHELL_S, lambda: world.machine.end(self._program, worst))
        elif status < 0 and (world.plan.mpirun_notices or not member.has_come):
            delay_s = world.draw.uniform(0.0, MPIRUN_NOTICES_S)
            world.threads.after(delay_s, partial(_kill, world.machine, job.members))


class Shell:
    """`subprocess.Popen` of a job: a shell that starts the simulation and writes how it ended."""

    def __init__(self, world: "World", command: Sequence[str], *, env: Mapping[str, str], cwd: Path, **_: Any) -> None:
        self._world = world
        machine, environment, folder = world.machine, env, cwd
        self._look(environment["STREAM_SIMULATION_ID"])
        shell = machine.start("shell", None, environment=environment)
        shell.traps_term = True
        launcher, solver = machine.current, Meeting(world.threads, world.plan.client_ranks)
        clients = [
            machine.start(
                "client",
                partial(simulate, world, environment, rank, solver),
                environment=environment,
                session=shell.pid,
            )
            for rank in range(world.plan.client_ranks)
        ]

        def has_ended(status: int) -> None:
            if all(client.status is not None for client in clients):
                worst = next((client.status for client in clients if client.status), 0)
                world.threads.after(SHELL_S, lambda: self._leave(shell, launcher, folder, worst))
            elif status:
                world.threads.after(world.draw.uniform(0.0, MPIRUN_NOTICES_S), partial(_kill, machine, clients))

        for client in clients:
            client.on_end.append(has_ended)
        self._shell = shell
        self.pid = shell.pid

    def poll(self) -> int | None:
        return self._shell.status

    def _look(self, simulation: str) -> None:
        """Before another one starts: no more run than may, and none of the same simulation."""
        world = self._world
        shells = [it for it in world.machine.living() if it.name == "shell"]
        if len(shells) >= world.plan.max_running:
            world.seen.append(f"{len(shells) + 1} jobs run at once, launcher.max_running is {world.plan.max_running}")
        # A worker that has moved on goes on with its list while what a new server misses of it is computed again.
        is_worker = world.plan.per_worker > 1
        if not is_worker and any(
            it.environment.get("STREAM_SIMULATION_ID") == simulation for it in world.machine.living()
        ):
            world.seen.append(f"two attempts of simulation {simulation} run at once")

    def _leave(self, shell: Program, launcher: Program, folder: Path, status: int) -> None:
        if shell.status is not None:
            return
        code = status if status >= 0 else 128 - status
        if folder.is_dir():
            (folder / EXIT_FILE).write_text(f"{code}\n")
        machine = self._world.machine
        machine.end(shell, code)
        if launcher.status is None:
            machine.tell(launcher, signal.SIGCHLD)


def _kill(machine: Machine, members: Sequence[Program]) -> None:
    for member in members:
        machine.kill(member)


def subprocess_of(world: "World") -> SimpleNamespace:
    """The stand-in for the module `subprocess` where the server is started."""
    return SimpleNamespace(Popen=partial(Mpirun, world), DEVNULL=None)


def shell_of(world: "World") -> SimpleNamespace:
    """The stand-in for the module `subprocess` where jobs are started."""
    return SimpleNamespace(Popen=partial(Shell, world), DEVNULL=None)
