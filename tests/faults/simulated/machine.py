"""The processes of a simulated machine, and what the kernel knows of them: pids, sessions, signals, pipes, locks."""

import itertools
import os
import signal
from collections.abc import Callable, Collection, Mapping

from stream_server.machine import processes
from tests.faults.simulated.network import Network
from tests.faults.simulated.threads import Process, Threads

# Beyond what any kernel gives, so that nothing real can ever be meant.
FIRST_PID = 100_000_000
FIRST_PIPE = 1_000_000
TICKS_PER_S = 100
CHILD_S = 0.02


class Program(Process):
    """A process. `status` is None while it runs, then its exit code, or −n after signal n.

    Of a rank of the server: `incarnation` is its own once that is known, `has_come` that it has shown that it lives.
    """

    def __init__(self, name: str, pid: int, started: int, session: int, environment: Mapping[str, str]) -> None:
        super().__init__(name)
        self.pid = pid
        self.started = started
        self.session = session or pid
        self.environment = environment
        self.status: int | None = None
        self.incarnation = 0
        self.has_come = False
        self.traps_term = False
        self.error: BaseException | None = None
        self.signals: set[signal.Signals] = set()
        self.signal_pipe: int | None = None
        self.on_end: list[Callable[[int], None]] = []


class Machine:
    """Runs programs. What is killed here stays killed: its sockets and locks are let go, its files stay as they are."""

    def __init__(self, threads: Threads, network: Network) -> None:
        self.threads = threads
        self.network = network
        self.programs: dict[int, Program] = {}
        self._pids = itertools.count(FIRST_PID)
        self._pipes: dict[int, bool] = {}
        self._locks: dict[tuple[int, int], tuple[Program, int]] = {}

    @property
    def current(self) -> Program:
        """The program that runs."""
        assert self.threads.current is not None
        process = self.threads.current.process
        assert isinstance(process, Program)
        return process

    def start(
        self,
        name: str,
        main: Callable[[], int] | None,
        *,
        environment: Mapping[str, str],
        session: int = 0,
    ) -> Program:
        """Start a program; without `main` it has no thread of its own, and ends when somebody ends it."""
        started = round(self.threads.now * TICKS_PER_S)
        program = Program(name, next(self._pids), started, session, environment)
        self.programs[program.pid] = program
        if main is not None:
            self.threads.spawn(lambda: self._run(program, main), name=name, process=program)
        return program

    def kill(self, program: Program, number: signal.Signals = signal.SIGKILL) -> None:
        """End it at once, by a signal."""
        self.end(program, -number)

    def end(self, program: Program, status: int) -> None:
        """It is over; does not return to a thread of the program itself."""
        if program.status is not None:
            return
        program.status = status
        program.is_stopped = False
        self.network.lose(program)
        for told in program.on_end:
            told(status)
        self.threads.kill(program)

    def living(self) -> list[Program]:
        """Those that have not ended, oldest first."""
        return [program for program in self.programs.values() if program.status is None]

    def running(self, mark_name: str, *, since: int = 0) -> list[processes.Process]:
        """The stand-in for `processes.running`."""
        return [
            processes.Process(
                pid=it.pid,
                session=it.session,
                started=it.started,
                mark=it.environment.get(mark_name, ""),
                stopped=it.is_stopped,
            )
            for it in self.living()
            if it.started >= since
        ]

    def of_pid(self, pid: int) -> tuple[int, int, bool] | None:
        """Session and start of a process that runs, and whether it is stopped."""
        program = self.programs.get(pid)
        if program is None or program.status is not None:
            return None
        return program.session, program.started, program.is_stopped

    def send(self, pids: Collection[int], number: signal.Signals) -> None:
        """The stand-in for `processes.send`. TERM ends those that do not trap it, when they are not stopped."""
        for program in [self.programs[pid] for pid in sorted(pids) if pid in self.programs]:
            if number == signal.SIGKILL or (number == signal.SIGTERM and not program.traps_term):
                self.kill(program, number)

    def tell(self, program: Program, number: signal.Signals) -> None:
        """A signal that a program waits for with `Signals`."""
        program.signals.add(number)
        if program.signal_pipe is not None:
            self._pipes[program.signal_pipe] = True

    def pipe(self) -> tuple[int, int]:
        """A pipe that knows only whether something is in it; both ends have one number."""
        number = FIRST_PIPE + len(self._pipes)
        self._pipes[number] = False
        return number, number

    def has_bytes(self, pipe: int) -> bool:
        return self._pipes[pipe]

    def fill(self, pipe: int, data: bytes) -> int:
        self._pipes[pipe] = True
        self.threads.switch("pipe filled")
        return len(data)

    def empty(self, pipe: int, num: int) -> bytes:
        was, self._pipes[pipe] = self._pipes[pipe], False
        return b"." if was else b""

    def flock(self, descriptor: int, operation: int) -> None:
        """An exclusive lock of a program on a file; it goes with the program, or when that closes the file."""
        key = _inode(descriptor)
        program, held_by = self._locks.get(key, (None, descriptor))
        if program is not None and program.status is None and held_by != descriptor and _inode(held_by) == key:
            raise BlockingIOError
        self._locks[key] = self.current, descriptor

    def _run(self, program: Program, main: Callable[[], int]) -> None:
        try:
            code = main()
        except Exception as error:
            program.error, code = error, 1
        self.end(program, code)


def _inode(descriptor: int) -> tuple[int, int]:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return -1, descriptor
    return status.st_dev, status.st_ino
