"""The thread that ends a rank which the others have left alone, or whose mpirun is gone.

Why: docs/decisions/0005-watchdog.md
"""

import faulthandler
import json
import logging
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import stream_server
from stream_server.config import StudyConfig
from stream_server.errors import RankLost
from stream_server.machine import exit_watch
from stream_server.machine.signals import ThreadErrors, is_started_by
from stream_server.server.ranks.collectives import CollectiveCalls
from stream_server.server.ranks.communicator import Ranks, environment_rank, leave_mpi
from stream_server.server.study.failure import Failure
from stream_server.storage.disk import open_regular, read_text, remove_file

LONGEST_TICK_S = 1.0
NOTE_S = 60.0
ABORT_S = 5.0
PACKAGE = str(Path(stream_server.__file__).parent) + os.sep

_log = logging.getLogger(__name__)


class Verdict(Enum):
    """The action that the time since the last collective call calls for."""

    NOTHING = auto()
    RESUMED = auto()
    NOTE = auto()
    TELL = auto()
    LEAVE = auto()


class Stall:
    """The time since the ranks last met: first comes a note, then, once all have left theirs, a word. Pure.

    That is after a minute, or half of `stall_s` if that is less; after all of it comes the end. When the ranks have met
    after all, the next word takes twice as long, up to half of `stall_s`.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.waited_s = 0.0
        self._mark: object = None
        self._note_s = min(NOTE_S, stall_s / 2)
        self._last = Verdict.NOTHING

    def look(self, mark: object, elapsed_s: float) -> Verdict:
        """`mark` changes with every collective call; `elapsed_s` have gone by since the last look."""
        if mark != self._mark:
            last, self._last = self._last, Verdict.NOTHING
            self._mark, self.waited_s = mark, 0.0
            if last is Verdict.TELL:
                self._note_s = min(2 * self._note_s, self.stall_s / 2)
            return Verdict.NOTHING if last is Verdict.NOTHING else Verdict.RESUMED
        self.waited_s += elapsed_s
        if self.waited_s >= self.stall_s:
            return Verdict.LEAVE
        if self._last is Verdict.NOTHING and self.waited_s >= self._note_s:
            self._last = Verdict.NOTE
            return Verdict.NOTE
        if self._last is Verdict.NOTE and self.waited_s >= self._note_s * 9 / 8:
            self._last = Verdict.TELL
            return Verdict.TELL
        return Verdict.NOTHING


class Watchdog:
    """Watches the main thread of this rank while the `with` block lasts, and leaves MPI. Entered in the main thread.

    A rank that has met the others in no collective call for a minute leaves a note beside the logs, and says in its log
    where it is, with the stacks of all threads; rank 0 names those that are elsewhere. After `stall_s` the first of
    them writes into exit.json where all are, as far as their notes tell, and aborts the job. A rank alone goes on.
    Without `output_dir` no file is written.

    `is_under_mpirun`: what has started this process is part of an mpirun, without which ranks cannot even abort. When
    it is gone, this rank ends at once. So it does when a thread of ours ends with an exception.
    """

    def __init__(
        self, collectives: CollectiveCalls, *, rank: int, stall_s: float, output_dir: Path | None, is_under_mpirun: bool
    ) -> None:
        self.num_ranks = 1
        self.abort: Callable[[int], object] = exit_watch.leave
        self.is_outdated: Callable[[], bool] = lambda: False
        self._collectives = collectives
        self._rank = rank
        self._stall = Stall(stall_s)
        self._tick_s = min(stall_s / 8, LONGEST_TICK_S)
        self._output_dir = output_dir
        self._is_under_mpirun = is_under_mpirun
        self._main = threading.get_ident()
        self._parent = exit_watch.starter()
        self._thread = threading.Thread(target=self._run, name=f"watchdog-{rank}")
        self._errors = ThreadErrors(self._thread_ended)

    @classmethod
    def of(cls, config: StudyConfig, collectives: CollectiveCalls, output_dir: Path | None) -> Self:
        """The watchdog of this rank of a study."""
        rank, stall_s = environment_rank(), config.server.stall_s
        is_under_mpirun = rank is not None
        return cls(collectives, rank=rank or 0, stall_s=stall_s, output_dir=output_dir, is_under_mpirun=is_under_mpirun)

    def __enter__(self) -> Self:
        self._remove_note()
        self._errors.__enter__()
        self._is_over, self._end = os.pipe2(os.O_CLOEXEC)
        self._thread.start()
        if self._is_under_mpirun:
            self._limit_call_of_mpi()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._end)
        self._thread.join()
        self._errors.__exit__(kind, error, trace)
        os.close(self._is_over)
        self._remove_note()
        if self._is_under_mpirun:
            # At the end of the process nothing could end a rank whose peers never come to MPI_Finalize.
            self._limit_call_of_mpi()
            leave_mpi()
            faulthandler.cancel_dump_traceback_later()

    def watch(self, ranks: Ranks) -> None:
        """From now on there are these ranks."""
        if self._is_under_mpirun:
            faulthandler.cancel_dump_traceback_later()
        self.num_ranks, self.abort = ranks.size, ranks.abort

    def _limit_call_of_mpi(self) -> None:
        # MPI_Init and MPI_Finalize hold the lock of the interpreter, without which only this can end a process.
        limit_s = min(self._stall.stall_s, threading.TIMEOUT_MAX)
        faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or sys.stderr)

    def _run(self) -> None:
        before = time.monotonic()
        while not select.select([self._is_over], [], [], self._tick_s)[0]:
            if self._is_under_mpirun and exit_watch.starter() != self._parent:
                self._leave_orphaned()
            now = time.monotonic()
            # While this process was stopped, or its interpreter locked, the others may have been so, too.
            self._look(min(now - before, 2 * self._tick_s))
            before = now

    def _look(self, elapsed_s: float) -> None:
        match self._stall.look((self._collectives.num, self._collectives.under_way), elapsed_s):
            case Verdict.NOTE:
                self._note()
            case Verdict.TELL:
                self._tell()
            case Verdict.RESUMED:
                self._remove_note()
            case Verdict.LEAVE if self.num_ranks > 1 or self._collectives.under_way:
                self._leave()

    def _note(self) -> None:
        """Leave a note for the others of where this rank is."""
        if (note := self._note_of(self._rank)) is not None:
            with suppress(OSError), open(note, "w", encoding="utf-8", opener=open_regular) as file:
                json.dump({"doing": self._doing()}, file)

    def _tell(self) -> None:
        """Say in the log where this rank is; rank 0, whose warnings are seen, also which others are elsewhere."""
        doing, waited_s = self._doing(), self._stall.waited_s
        if self.num_ranks == 1:
            _log.warning("rank %d has come to no control round for %.0f s: it %s", self._rank, waited_s, doing)
        else:
            of_others = [(rank, self._doing_of(rank)) for rank in range(1, self.num_ranks) if self._rank == 0]
            where = "; ".join([doing, *(f"rank {rank} {other}" for rank, other in of_others if other != doing)])
            end = f"The job is ended after {self._stall.stall_s:g} s (server.stall_s), unless they meet before"
            _log.warning("rank %d has met no other rank for %.0f s: it %s. %s", self._rank, waited_s, where, end)
        _log.info("the stacks of rank %d:\n%s", self._rank, _stacks())

    def _leave(self) -> None:
        """End the job: the ranks do not meet any more."""
        places = [
            f"rank {rank} {self._doing() if rank == self._rank else self._doing_of(rank)}"
            for rank in range(self.num_ranks)
        ]
        where = "; ".join(places)
        self._end_rank(f"the ranks have not met for {self._stall.stall_s:g} s (server.stall_s): {where}")

    def _leave_orphaned(self) -> None:
        """End this rank: there is no MPI job any more."""
        self.abort = exit_watch.leave
        text = "mpirun, or the process of it that started this rank, is gone"
        self._end_rank(f"{text}: rank {self._rank} leaves")

    def _thread_ended(self, error: BaseException) -> None:
        """Hear of what has ended a thread, in that thread: the others wait for one of ours for ever."""
        name = threading.current_thread().name
        trace = "".join(traceback.format_exception(error))
        _log.error("rank %d: the thread %s has ended:\n%s", self._rank, name, trace)
        if is_started_by(error, PACKAGE):
            failure = Failure.of(error, rank=self._rank, phase="own code")
            self._end_rank(f"its thread {name} has ended: {failure.message}", failure)

    def _end_rank(self, text: str, failure: Failure | None = None) -> None:
        # MPI may be what hangs. This needs no lock of the interpreter.
        faulthandler.dump_traceback_later(ABORT_S, exit=True, file=sys.__stderr__ or sys.stderr)
        failure = failure or Failure(
            rank=self._rank,
            thread=threading.current_thread().name,
            phase=self._collectives.under_way or "own code",
            message=text,
            traceback="".join(traceback.format_stack(sys._current_frames().get(self._main))),
            exit_code=RankLost.exit_code,
        )
        try:
            # Told before it is written: a rank that finds exit.json written aborts, which ends this one as well.
            _log.info("the stacks of rank %d:\n%s", self._rank, _stacks())
            _log.error("%s", text)
            with suppress(OSError):
                print(f"rank {self._rank}: {text}", file=sys.stderr, flush=True)
            if self._output_dir is not None and not self.is_outdated():
                failure.record(self._output_dir)
        finally:
            self.abort(failure.exit_code)

    def _doing(self) -> str:
        if self._collectives.under_way:
            return f"waits for the others in {self._collectives.under_way}"
        return f"is in {_place(sys._current_frames().get(self._main))}"

    def _doing_of(self, rank: int) -> str:
        if (note := self._note_of(rank)) is None:
            return "tells nothing"
        try:
            return str(json.loads(read_text(note))["doing"])
        except (OSError, ValueError, KeyError, TypeError):
            return "has said nothing: it is stopped, holds the interpreter or is gone"

    def _note_of(self, rank: int) -> Path | None:
        return None if self._output_dir is None else self._output_dir / "logs" / f"watchdog-{rank}.json"

    def _remove_note(self) -> None:
        if (note := self._note_of(self._rank)) is not None:
            with suppress(OSError):
                remove_file(note)


def _place(frame: FrameType | None) -> str:
    """The function that our code has called, or the innermost one of ours, and its line."""
    outside: FrameType | None = None
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        outside, frame = frame, frame.f_back
    place = outside or frame
    if place is None:
        return "no code of Python"
    return f"{place.f_code.co_qualname} ({place.f_code.co_filename}:{place.f_lineno})"


def _stacks() -> str:
    """The stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = (
        f"thread {names.get(ident, ident)} of process {os.getpid()} on {socket.gethostname()}:\n"
        + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()
    )
    return "".join(stacks)
