"""The doors of the product to the machine it runs on, and what is put into them for a simulation.

Ours are: threads and clocks (`threads`, `stand_ins`), the module zmq and the network (`messaging`, `network`),
processes, signals and file locks (`machine`, `kernel`), mpirun, MPI and the shell of a job (`starting`, `ranks`), the
launcher's connections to the ranks, not its judgement of them (`signs`), the learner and the simulation (`programs`),
the process in which a class suggests parameters (`steering`), nothing where a person looks on, and no credit beyond a
share of the capacity. Everything else is the product's own code, from `connect` over receiver, buffer, rounds and
checkpoints to launcher, jobs and journal.

Files are real ones in memory: a process that is killed leaves what it wrote, and no power cut is simulated.
"""

import fcntl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from stream_server.client_api import transport
from stream_server.launcher.backends import local
from stream_server.launcher.simulations import remote_access, server_connection
from stream_server.launcher.supervision import runs, server_job, supervisor
from stream_server.machine import private_folder, processes
from stream_server.messages import connection
from stream_server.server.intake import credit
from stream_server.server.progress import stop
from stream_server.server.reception import build, sockets
from stream_server.server.steering import suggester
from stream_server.server.study import closing, set_up, study
from tests.faults.simulated import messaging
from tests.faults.simulated.kernel import Signals, os_of
from tests.faults.simulated.programs import Learner, NotedRank, silent
from tests.faults.simulated.signs import SimulatedLiveness
from tests.faults.simulated.stand_ins import stand_in
from tests.faults.simulated.starting import shell_of, subprocess_of
from tests.faults.simulated.steering import SimulatedGenerator

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

PART_BYTES = 16

PRODUCT = [module for name, module in sys.modules.items() if name.startswith("stream_server.")]


def _functions(module: Any) -> Iterator[FunctionType]:
    """The functions and methods that a module defines."""
    for it in vars(module).values():
        found = [it, *vars(it).values()] if isinstance(it, type) else [it]
        plain = (getattr(each, "__wrapped__", each) for each in found)
        yield from (each for each in plain if isinstance(each, FunctionType) and each.__module__ == module.__name__)


def _has_clock(function: FunctionType) -> bool:
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return any(it is time.monotonic for it in defaults)


# Their clock is a default value, which is as old as the module.
CLOCKED = [function for module in PRODUCT for function in _functions(module) if _has_clock(function)]


@contextmanager
def opened(world: "World") -> Iterator[None]:
    """The product runs on the simulated machine while the `with` block lasts."""
    with ExitStack() as stack:
        stack.enter_context(stand_in(world.threads, *PRODUCT, on_failpoint=world.passed))
        for function in CLOCKED:
            stack.enter_context(_clock(function, lambda: world.threads.now))
        for module, name, value in replaced(world):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def replaced(world: "World") -> list[tuple[Any, str, Any]]:
    """The replacements for what is not the product's: the network, processes, MPI, and what people look at."""
    machine = world.machine
    zmq = messaging.module(world.network, machine.has_bytes)
    locks = SimpleNamespace(**{**vars(fcntl), "flock": machine.flock})
    environment = SimpleNamespace(get=lambda name, default=None: machine.current.environment.get(name, default))
    return [
        (sockets, "zmq", zmq),
        (sockets, "Socket", messaging.Socket),
        (sockets, "PrivateIpcPaths", messaging.PrivateIpcPaths),
        (sockets, "ConnectionGuard", messaging.NoGuard),
        (transport, "PrivateIpcPaths", messaging.PrivateIpcPaths),
        (remote_access, "zmq", zmq),
        (server_connection, "zmq", zmq),
        (transport, "zmq", zmq),
        (sockets, "os", os_of(machine)),
        (build, "os", _os_with(build, environ=environment)),
        (connection, "os", _os_with(connection, environ=environment)),
        (processes, "running", machine.running),
        (processes, "_status", machine.of_pid),
        (processes, "send", machine.send),
        (local, "subprocess", shell_of(world)),
        (server_job, "subprocess", subprocess_of(world)),
        *((module, "fcntl", locks) for module in PRODUCT if vars(module).get("fcntl") is fcntl),
        (runs, "Signals", partial(Signals, machine)),
        (runs, "_start_log", lambda config: None),
        (private_folder, "new_name", lambda: world.folder / f"{private_folder.PREFIX}here"),
        (supervisor, "LivenessSocket", _of_world(SimulatedLiveness, world=world)),
        (supervisor, "say", lambda text: None),
        (study, "StudyRank", _of_world(NotedRank, machine=machine)),
        (study, "Logs", silent),
        (set_up, "load_server_class", lambda config: _named(partial(Learner, world))),
        (set_up, "open_writers", lambda *_, **options: []),
        (set_up, "open_own_writer", lambda *_: None),
        (set_up, "Display", silent),
        (stop.StopRequests, "on_signals", lambda self, say: nullcontext()),
        (suggester, "GeneratorProcess", _of_world(SimulatedGenerator, world=world)),
        *(_parts_of_fields(PART_BYTES) if world.plan.statics else ()),
        # These samples have a few bytes: with credit for that many of them no client would ever wait.
        (credit, "ENOUGH_BYTES", 0),
        (closing, "show_summary", lambda report, places, hands_over, is_online: None),
    ]


def _parts_of_fields(num_bytes: int) -> list[tuple[Any, str, Any]]:
    """A message holds a part of the mesh at most, as one of a large field does."""
    name = "MAX_PART_BYTES"
    return [(module, name, num_bytes) for module in PRODUCT if name in vars(module)]


@contextmanager
def _clock(function: FunctionType, clock: Callable[[], float]) -> Iterator[None]:
    """Let a function have another clock where `time.monotonic` is the default."""
    defaults, named = function.__defaults__, function.__kwdefaults__
    function.__defaults__ = tuple(clock if it is time.monotonic else it for it in defaults or ())
    function.__kwdefaults__ = {name: clock if it is time.monotonic else it for name, it in (named or {}).items()}
    try:
        yield
    finally:
        function.__defaults__, function.__kwdefaults__ = defaults, named


def _os_with(module: ModuleType, **names: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(vars(module)["os"]), **names})


def _of_world(cls: type, **names: Any) -> type:
    """A subclass that belongs to one simulation."""
    return type(cls.__name__, (cls,), names)


def _named(make: Any) -> Any:
    make.__name__ = "Learner"
    make.setup_environment = Learner.setup_environment
    return make
