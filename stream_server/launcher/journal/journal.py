"""The journal of a study's launchers: what one that was killed leaves to the next.

Why: docs/decisions/0060-journal-lines.md
"""

import contextlib
import logging
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from stream_server.errors import ConfigError
from stream_server.failpoints import failpoint
from stream_server.launcher.journal import records
from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.records import DamagedJournal, JournalRecord, OtherJournalFormat
from stream_server.machine import processes
from stream_server.machine.run_folder import JOURNAL_FILE
from stream_server.storage import disk
from stream_server.storage.lines import LineFile, whole_lines
from stream_server.wording import counted

LEAVE_S = 20.0
LOOK_S = 0.1

log = logging.getLogger(__name__)


class Journal:
    """The file of records, which are on disk when `write` returns: one line for all of a call and for
    what was deferred before it. Main thread only.

    As long as the `with` block lasts, no other launcher can open it. `history` is what was in it.
    """

    def __init__(self, output_dir: Path) -> None:
        self.file = output_dir / JOURNAL_FILE
        self.history = History()
        self._lines = LineFile(self.file)
        self._unwritten: list[JournalRecord] = []
        self._is_behind = False

    def __enter__(self) -> Self:
        """Open it, and read what is there.

        Raises:
            ConfigError: another launcher has it open, it is damaged, or it cannot be read.
        """
        try:
            disk.make_folder(self.file.parent)
            self._lines.open()
        except OSError as error:
            raise ConfigError(f"{self.file} cannot be opened: {error}") from error
        try:
            _lock(self._lines.descriptor, self.file.parent)
            self._read()
        except BaseException:
            self._lines.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._unwritten:
            log.error("%s never came into %s", counted(len(self._unwritten), "record"), self.file)
        self._lines.close()

    @classmethod
    def check_free(cls, output_dir: Path) -> None:
        """Make sure that no launcher runs the study in this folder; one whose server was killed is waited for.

        Raises:
            ConfigError: one does, and goes on.
        """
        give_up_at = time.monotonic() + LEAVE_S
        with contextlib.suppress(FileNotFoundError, disk.UnusableFile):
            descriptor = disk.open_regular(output_dir / JOURNAL_FILE)
            try:
                # A lock that another process holds can only be asked for again.
                while time.monotonic() < give_up_at:
                    with contextlib.suppress(ConfigError):
                        return _lock(descriptor, output_dir)
                    time.sleep(LOOK_S)
                _lock(descriptor, output_dir)
            finally:
                os.close(descriptor)

    def write(self, *written: JournalRecord) -> None:
        """Put records on disk.

        Raises:
            OSError: it is not there.
        """
        failpoint("launcher.before_journal")
        if together := (*self._unwritten, *written):
            self._lines.append(records.encode(*together))
        self._unwritten.clear()
        self._is_behind = False
        failpoint("launcher.after_journal")

    def note(self, *noted: JournalRecord) -> None:
        """Put records on disk, or, while that cannot take them, before the next ones."""
        try:
            self.write(*noted)
        except OSError as error:
            if not self._is_behind:
                log.error("%s cannot be written, and is behind from now on: %s", self.file, error)
            self._is_behind = True
            self._unwritten += noted

    def defer(self, *deferred: JournalRecord) -> None:
        """Put records on disk with the next ones, or in `flush`: only for records on which nothing depends yet."""
        self._unwritten += deferred

    def flush(self) -> None:
        """Put on disk what was deferred, if anything was."""
        if self._unwritten:
            self.note()

    def _read(self) -> None:
        try:
            self.history = History.of(records.decode(self._lines.read()))
        except OSError as error:
            raise ConfigError(f"{self.file} cannot be read: {error}") from error
        except OtherJournalFormat as error:
            raise ConfigError(
                f"{self.file} was written by another version: {error}. Go on with that version, or move the file away"
            ) from error
        except DamagedJournal as error:
            raise ConfigError(
                f"{self.file} is damaged: {error}. Move it away to continue without it: the numbers of attempts then "
                "go on from their folders, but simulations that still run are started again"
            ) from error


def _lock(descriptor: int, output_dir: Path) -> None:
    try:
        is_free = disk.lock(descriptor)
    except disk.NoLocks:
        is_free = not _is_written(descriptor)
    if not is_free:
        raise ConfigError(
            f"another launcher runs the study in {output_dir} (it writes {JOURNAL_FILE}): "
            "wait for its end or end it, or write another study.output_dir"
        )


def _is_written(descriptor: int) -> bool:
    """Whether the launcher of a rank 0 that was killed still runs here; one that supervises has its `StudyLock`."""
    try:
        history = History.of(records.decode(whole_lines(disk.read_descriptor(descriptor))))
    except DamagedJournal:
        return False
    last = history.launcher
    return last is not None and last.boot == processes.this_boot() and last.link in processes.command_line(last.pid)
