"""The ranks of the server: the only door to MPI.

Why: docs/decisions/0002-mpi-in-the-main-thread.md
"""

import contextlib
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import ConfigError, PeerFailed, RankLost
from stream_server.machine import exit_watch, shared_memory
from stream_server.machine.cgroups import within_quota
from stream_server.machine.program import outside_of_folders
from stream_server.server.ranks.collectives import CollectiveCalls

# What only the mpirun of this implementation tells its ranks.
SIGNS = {"MPICH": "HYDI_CONTROL_FD", "Open MPI": "OMPI_COMM_WORLD_SIZE"}
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")

INSTALL_MPI = "Install one with `pip install mpich`, or load the MPI module of the cluster"
SPIN_S = 0.002
LONGEST_NAP_S = 0.005

_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def launcher_sizes(environment: Mapping[str, str]) -> set[int]:
    """Numbers of ranks according to whatever started this one."""
    return {int(environment[name]) for name in SIZES if environment.get(name, "").isdecimal()}


def mismatch(environment: Mapping[str, str], library: str) -> str:
    """Say which mpirun to use instead of the one that left this environment, "" if it is the right one.

    `library` is the MPI that is loaded, such as "MPICH 5.0.2". Under another's mpirun it stops at MPI_Init, or makes a
    world of its own for each rank.
    """
    own = "Open MPI" if library.startswith("Open MPI") else "MPICH"
    started_by = next((name for name, sign in SIGNS.items() if sign in environment), own)
    if SIGNS[own] in environment or started_by == own:
        return ""
    return f"this rank was started by the mpirun of {started_by}, but the MPI here is {library}: {_advice(library)}"


def alone(environment: Mapping[str, str], size: int, library: str) -> str:
    """Say what to do when a world of `size` ranks is not the one that was started, "" if it is."""
    sizes = launcher_sizes(environment)
    if size != 1 or not sizes or size in sizes:
        return ""
    return (
        f"this rank is one of {max(sizes)}, but finds no other: the program that started them does not belong to the "
        f"MPI here, {library}. S{_advice(library)[1:]}"
    )


def _advice(library: str) -> str:
    beside = Path(sys.executable).with_name("mpirun")
    return f"start it with {beside}" if beside.exists() else f"start it with the mpirun of {library}"


class Ranks(Protocol):
    """The ranks of the job, and this one among them.

    Main thread only, except `abort`. Every method but `offer`, `abandon_calls` and `abort` is collective: all ranks
    call it, in the same order. Values travel as JSON; nothing is pickled. A call raises `PeerFailed` when another rank
    has offered a failure instead of coming to it; `sum` does not, for it meets what was offered.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    num_nodes: int
    num_cores: int
    """How many cores the ranks of this node and their child processes may use together."""
    mpi_version: str
    """Which MPI runs this job, such as "MPICH 5.0.2"; "" without one."""

    @property
    def is_cut_short(self) -> bool:
        """This rank has left a call to which a failed one never comes. Then it cannot leave MPI but by `abort`."""
        ...

    def sum(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add up over the ranks; rounds are kept apart from all other collectives."""
        ...

    def offer(self, values: NDArray[np.int64], timeout_s: float) -> NDArray[np.int64] | None:
        """Take part in the next `sum` of the others, or give None if they do not come to it in time.

        It tells them that this rank has failed, unless it `is_cut_short`, so that they leave any other call for the
        `sum`. After None nothing else but `abort` may be called.
        """
        ...

    def abandon_calls(self) -> None:
        """From now on calls meet only each other, and none that was under way on some rank."""
        ...

    def all_reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum over the ranks of float32 or float64 arrays of one shape."""
        ...

    def broadcast(self, value: Any, root: int = 0) -> Any: ...

    def broadcast_bytes(self, data: bytes, root: int = 0) -> bytes:
        """The bytes that `root` passed, on every rank."""
        ...

    def gather(self, value: Any) -> list[Any] | None:
        """On rank 0 what every rank passed, in their order; None elsewhere."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        ...

    def abort(self, exit_code: int) -> NoReturn:
        """End all ranks at once, from any thread."""
        ...


class SoloRanks:
    """One rank, no MPI."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    node = 0
    num_nodes = 1
    mpi_version = ""
    is_cut_short = False

    def __init__(self, collectives: CollectiveCalls | None = None) -> None:
        self.num_cores = within_quota(len(os.sched_getaffinity(0)))
        self._collectives = collectives or CollectiveCalls()

    def sum(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        self._collectives.end()
        return values.copy()

    def offer(self, values: NDArray[np.int64], timeout_s: float) -> NDArray[np.int64] | None:
        return values.copy()

    def abandon_calls(self) -> None:
        pass

    def all_reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        self._collectives.end()
        return values.copy()

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return value

    def broadcast_bytes(self, data: bytes, root: int = 0) -> bytes:
        return data

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def barrier(self) -> None:
        pass

    def abort(self, exit_code: int) -> NoReturn:
        exit_watch.leave(exit_code)


class MpiRanks:
    """The ranks of one MPI job. Making the first one calls MPI_Init. `collectives` records each collective call.

    Raises:
        ConfigError: there is no MPI, or another MPI's mpirun has started this rank.
        RankLost: somebody else has a part in the memory by which MPI passes on what the ranks say.
    """

    def __init__(self, collectives: CollectiveCalls | None = None) -> None:
        self._collectives = collectives or CollectiveCalls()
        self._mpi = mpi = _loaded_mpi()
        self.mpi_version = mpi_library()
        _require(mismatch(os.environ, self.mpi_version))
        with shared_memory.keep_private(self.mpi_version):
            with self._collectives.call("MPI_Init"):
                _initialize(mpi)
            if problem := shared_memory.problem():
                raise RankLost(problem)
            _require(alone(os.environ, mpi.COMM_WORLD.Get_size(), self.mpi_version))
            # An error offered to the round must never match another collective of the peers, nor their last words one
            # that was under way.
            self._rounds, self._others, self._last = (mpi.COMM_WORLD.Dup() for _ in range(3))
            self._left: Any = None
            self._failures: list[Any] = []
            self.rank = self._rounds.Get_rank()
            self.size = self._rounds.Get_size()
            places = self.broadcast(self.gather([socket.gethostname(), sorted(_cores_of_the_job())]))
        hosts = [host for host, _ in places]
        here = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        self.local_rank = here.index(self.rank)
        self.local_size = len(here)
        if self.local_rank == 0:
            # All ranks have left MPI_Init by now, and none looks for the name again.
            shared_memory.remove(shared_memory.names_of())
        nodes = list(dict.fromkeys(hosts))
        self.node = nodes.index(hosts[self.rank])
        self.num_nodes = len(nodes)
        # A union, since some launchers bind each rank to cores of its own and others let all ranks share them.
        self.num_cores = within_quota(len({core for rank in here for core in places[rank][1]}))

    def sum(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        total = np.empty_like(values)
        self._meet("the control round", self._rounds.Iallreduce(values, total), needs_all=False)
        return total

    def offer(self, values: NDArray[np.int64], timeout_s: float) -> NDArray[np.int64] | None:
        if not self.is_cut_short:
            self._failures = [self._rounds.Isend(b"", rank) for rank in range(self.size) if rank != self.rank]
        total = np.empty_like(values)
        return total if _wait(self._rounds.Iallreduce(values, total), timeout_s) else None

    @property
    def is_cut_short(self) -> bool:
        return self._left is not None

    def abandon_calls(self) -> None:
        self._others = self._last

    def all_reduce(self, values: NDArray[Any]) -> NDArray[Any]:
        values = np.ascontiguousarray(values)
        total = np.empty_like(values)
        self._meet("all_reduce", self._others.Iallreduce(values, total))
        return total

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return json.loads(self.broadcast_bytes(json.dumps(value).encode(), root))

    def broadcast_bytes(self, data: bytes, root: int = 0) -> bytes:
        num_bytes = np.array([len(data)], np.int64)
        self._meet("a broadcast", self._others.Ibcast(num_bytes, root))
        buffer = bytearray(data) if self.rank == root else bytearray(num_bytes[0])
        self._meet("a broadcast", self._others.Ibcast(buffer, root))
        return bytes(buffer)

    def gather(self, value: Any) -> list[Any] | None:
        text = np.frombuffer(bytearray(json.dumps(value).encode()), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self._meet("a gather", self._others.Igather(np.array([text.size], np.int64), sizes))
        if self.rank != 0:
            self._meet("a gather", self._others.Igatherv(text, None))
            return None
        ends = np.cumsum(sizes)
        gathered = np.empty(ends[-1], np.uint8)
        self._meet("a gather", self._others.Igatherv(text, [gathered, sizes.tolist()]))
        return [json.loads(gathered[end - size : end].tobytes()) for size, end in zip(sizes, ends, strict=True)]

    def barrier(self) -> None:
        self._meet("a barrier", self._others.Ibarrier())

    def abort(self, exit_code: int) -> NoReturn:
        exit_watch.is_ours(exit_code)
        self._mpi.COMM_WORLD.Abort(exit_code)
        os._exit(exit_code)

    def _meet(self, name: str, request: Any, *, needs_all: bool = True) -> None:
        self._collectives.begin(name)
        _wait(request, look=partial(self._look_for_failure, request) if needs_all else lambda: None)
        self._collectives.end()

    def _look_for_failure(self, request: Any) -> None:
        if self._others is not self._last and self._rounds.Iprobe():
            # MPI may still write into its buffers.
            self._left = request
            raise PeerFailed("another rank failed; exit.json in the output folder says why")


def is_awaited() -> bool:
    """Whether other ranks wait, or will, in MPI_Init for this process, which has not been there."""
    mpi = sys.modules.get("mpi4py.MPI")
    return (environment_size() or 1) > 1 and (mpi is None or not mpi.Is_initialized())


def refuse(exit_code: int) -> None:
    """End all ranks from one that `is_awaited` and cannot go on: MPICH's mpirun would let the others wait for ever.

    Returns where there is no MPI by which to tell.
    """
    with contextlib.suppress(ConfigError):
        mpi = _loaded_mpi()
        with shared_memory.keep_private(mpi_library()):
            _initialize(mpi)
        exit_watch.is_ours(exit_code)
        mpi.COMM_WORLD.Abort(exit_code)


def _initialize(mpi: Any) -> None:
    with _end_by_signals(), _with_closed_ports():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)


def _cores_of_the_job() -> set[int]:
    """The cores that this process may use, and those of Open MPI's mpirun, which binds its ranks to some of them."""
    cores = os.sched_getaffinity(0)
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        with contextlib.suppress(OSError):
            cores |= os.sched_getaffinity(exit_watch.starter())
    return cores


def _wait(request: Any, timeout_s: float = math.inf, look: Callable[[], None] = lambda: None) -> bool:
    """Wait for a request without burning a core; False: not done within `timeout_s`.

    A blocking MPI call spins. Naps from the start would cost 0.2 to 4 ms a round, so the first 2 ms only yield. After
    each nap it takes a `look`.
    """
    start = time.monotonic()
    while not request.Test():
        waited_s = time.monotonic() - start
        if waited_s > timeout_s:
            return False
        if waited_s < SPIN_S:
            os.sched_yield()
        else:
            time.sleep(min(waited_s / 8, LONGEST_NAP_S))
            look()
    return True


def mpi_library() -> str:
    """Name and version of the MPI that is loaded here, such as "MPICH 5.0.2", without MPI_Init.

    Raises:
        ConfigError: there is none that mpi4py can load.
    """
    return _short(_loaded_mpi().Get_library_version())


def _loaded_mpi() -> Any:
    """MPI, loaded but not initialised yet: afterwards it may be too late to report what is wrong with it.

    Raises:
        ConfigError: there is none that mpi4py can load.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True
        with outside_of_folders():
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"mpi4py loads no MPI: {' '.join(str(error).split())}. {INSTALL_MPI}; see `stream-study doctor`"
        ) from error
    return MPI


@contextmanager
def _with_closed_ports() -> Iterator[None]:
    """Within, MPI is told to listen to nobody where it can do without, unless the user tells it otherwise.

    An empty message to the sockets of UCX, which no folder guards, ends a rank where it lets a transport sleep. The
    port by which UCX (MPICH) speaks to other nodes is open to anyone who reaches it, and writes what he sends to the
    address that he names; at that of Open MPI a rank stands still while a connection does not say who it is. Neither
    is needed where the starter of the ranks says that all are on one node.
    """
    wanted = {"UCX_ADAPTIVE_PROGRESS": "n"}
    if _is_same("MPI_LOCALNRANKS", "PMI_SIZE"):
        wanted["UCX_TLS"] = "self,posix"
    if _is_same("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"):
        wanted["OMPI_MCA_btl"] = "^tcp"
    wanted = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(wanted)
    try:
        yield
    finally:
        # Simulations may have other nodes.
        for name in wanted:
            del os.environ[name]


def _is_same(one: str, other: str) -> bool:
    """Whether two variables of the environment have the same value."""
    return os.environ.get(one, "") == os.environ.get(other)


@contextmanager
def _end_by_signals() -> Iterator[None]:
    """Within, INT and TERM end the process: MPI_Init holds the lock of the interpreter, so that no handler runs."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _require(problem: str) -> None:
    if problem:
        raise ConfigError(problem)


def _short(text: str) -> str:
    """Name and version, from the version string of an MPI library."""
    first_line = text.splitlines()[0].partition(",")[0]
    return " ".join(first_line.replace("Version:", "").split())


def leave_mpi() -> None:
    """Leave MPI, if this process is in it; nothing that needs MPI may follow. Collective."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def environment_rank() -> int | None:
    """This process's rank as the MPI launcher wrote it into the environment, or None outside of MPI."""
    for name in _RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return int(os.environ["SLURM_PROCID"])
    return None


def environment_size() -> int | None:
    """Number of ranks that the MPI launcher started, from the environment; None outside of MPI."""
    return None if environment_rank() is None else max(launcher_sizes(os.environ), default=1)


def ranks_from_environment(collectives: CollectiveCalls | None = None) -> Ranks:
    """The ranks this process was started as; a process outside of MPI never calls MPI_Init."""
    return SoloRanks(collectives) if environment_rank() is None else MpiRanks(collectives)
