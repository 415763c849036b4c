"""The time steps that a solver writes: which they are in the study, and whether they are whole."""

import argparse
import math
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stream_server.adapters.fields import FieldsOfFiles
from stream_server.adapters.follow_files import WHEN_QUIET, WILDCARD, Signature, StepFile, StepFiles, signature, two_of
from stream_server.adapters.follow_formats import Unreadable, reader_of, reading
from stream_server.adapters.follow_series import WholeSteps, series_reader_of
from stream_server.client_api import Simulation
from stream_server.errors import ConfigError

# A file that did not change may be readable later where a file system shows its parts one by one.
RETRY_S = 1.0


class SentFile(NamedTuple):
    """The file of a step that was sent: what it was when it was read, () once it is deleted."""

    path: Path
    signature: Signature
    step: int


class Follower:
    """Sends the steps that are whole; `is_wanted` is False once the study wants nothing more.

    `look_s` is the time of this thread that the last look for them took, without reading and sending.

    Raises:
        ConfigError: an option does not fit the files or the study.
    """

    def __init__(self, options: argparse.Namespace, simulation: Simulation) -> None:
        self.is_wanted = True
        self.look_s = 0.0
        self._options = options
        self._pattern = str(Path(options.pattern))
        self._simulation = simulation
        self._fields = FieldsOfFiles(options.field, simulation.fields)
        self._num_sent = 0
        self._has_told = False
        # By the number of the file, as are those that the study has no step for and those that were seen at all.
        self._sent: dict[float, SentFile] = {}
        self._surplus: dict[float, Path] = {}
        self._seen: dict[float, Path] = {}
        # Of the rows that were sent while the solver ran.
        self._checksums: list[int] = []
        # What each file that cannot be read was, since when it is so, and when it was last tried.
        self._unreadable: dict[Path, tuple[Signature, float, float]] = {}
        self._last_number = -math.inf
        suffix = Path(self._pattern).suffix
        # Who looks at files without a study has them already.
        earlier = options.earlier or not simulation.fields
        if options.in_order and options.earlier and options.delete:
            raise ConfigError(
                "--in-order counts the files, of which the next attempt would not find those that this one has "
                "deleted: leave out --delete or --earlier, or --in-order if the names have the numbers of time steps"
            )
        self._files: StepFiles | None = None
        if WILDCARD.search(self._pattern):
            self._read = reader_of(suffix)
            self._files = StepFiles(
                self._pattern, finished_by=options.finished_by, quiet_s=options.quiet_s, earlier=earlier
            )
            return
        self._before = () if earlier else signature(Path(self._pattern))
        self._read_series = series_reader_of(suffix)
        if options.delete or options.in_order or options.finished_by != WHEN_QUIET:
            raise ConfigError(
                f"{self._pattern!r} has no wildcard and so is one file that grows: --delete, --in-order and "
                "--finished-by are for a file of each step, such as 'out/step_*.npy'"
            )

    def turn(self, *, has_ended: bool) -> None:
        """Send what is finished, which all is once the solver `has_ended` well.

        Raises:
            ConfigError: what the solver writes does not fit the study.
            Unreadable: what is finished cannot be read.
            SimulationError: as for `Simulation.send`.
        """
        if self._files is None:
            self._send_series(Path(self._pattern), has_ended=has_ended)
            return
        begun = time.thread_time()
        found = self._files.look()
        self.look_s = time.thread_time() - begun
        waiting = [file for file in found if not self._is_done(file)]
        self._seen.update({file.number: file.path for file in waiting})
        if self._options.in_order:
            self._refuse_vanished(found)
        for file in waiting:
            if not self.is_wanted:
                break
            step = self._step_of(file)
            if step is None:
                self._surplus[file.number] = self._seen.pop(file.number)
                continue
            is_finished = self._files.is_finished(file.path, next_is_there=file is not found[-1])
            if is_finished or (has_ended and self._files.finished_by == WHEN_QUIET):
                self._send_file(file, step, may_wait=not has_ended)
            if self._options.in_order and file.number not in self._sent:
                break
        self.delete_durable()

    def delete_durable(self) -> None:
        """Delete the files whose steps are in a checkpoint, if that is asked for."""
        if self._files is None or not self._options.delete:
            return
        for number, sent in self._sent.items():
            if sent.signature and self._simulation.is_durable(sent.step):
                _refuse_changed(sent)
                self._files.remove(sent.path)
                self._sent[number] = sent._replace(signature=())

    def check(self) -> None:
        """Find what went wrong without a sign, once the solver has ended well.

        Raises:
            ConfigError: nothing was sent, a file was never finished, vanished before it was sent, or changed after.
        """
        if not self.is_wanted:
            return
        for sent in self._sent.values():
            _refuse_changed(sent)
        found = self._files.look() if self._files else []
        for file in found:
            if not self._is_done(file):
                assert self._files is not None
                raise ConfigError(
                    f"{file.path} was never finished: the solver has ended, and {self._files.why_unfinished(file.path)}"
                )
        self._refuse_vanished(found)
        if self._surplus:
            num, first = len(self._surplus), next(iter(self._surplus.values()))
            print(f"stream-follow: {num} not sent, since the study has no such time step: {first}", file=sys.stderr)
        if not self._num_sent and not self._has_told:
            there = "it is not there, or has no time step of this run"
            there = self._files.neighbours() if self._files else there
            raise ConfigError(f"no time step came from {self._pattern!r}: the solver has ended, and {there}")

    def _is_done(self, file: StepFile) -> bool:
        """Whether nothing is left to do about a file of this number."""
        if file.number in self._surplus:
            return True
        sent = self._sent.get(file.number)
        if sent is not None and sent.path != file.path:
            raise two_of(file, sent.path)
        if sent is not None and not sent.signature:
            _refuse_changed(sent)
        return sent is not None

    def _refuse_vanished(self, found: Sequence[StepFile]) -> None:
        numbers = {file.number for file in found}
        for number, path in self._seen.items():
            if number not in numbers:
                raise ConfigError(
                    f"{path} is gone, and was not sent: expected the solver to keep a file until it is finished and "
                    "sent. Have it keep more of them, or say earlier when one is finished (--finished-by)"
                )

    def _send_file(self, file: StepFile, step: int, *, may_wait: bool) -> None:
        path, before = file.path, signature(file.path)
        now = time.monotonic()
        unreadable, since, tried = self._unreadable.get(path, ((), now, -math.inf))
        if unreadable == before and may_wait and now - tried < RETRY_S:
            return
        try:
            with reading(path), self._read(path) as arrays:
                statics, values = self._fields.take(arrays, path, is_first=not self._num_sent)
        except Unreadable:
            since = since if unreadable == before else now
            self._unreadable[path] = before, since, now
            if not may_wait or now - since >= self._options.patience_s:
                raise
            return
        if signature(path) == before:
            self._send(step, statics, values, path)
            self._sent[file.number] = SentFile(path, before, step)
            del self._seen[file.number]
            self._last_number = file.number

    def _send_series(self, path: Path, *, has_ended: bool) -> None:
        if signature(path) in ((), self._before):
            return
        begun = time.thread_time()
        try:
            with reading(path), self._read_series(path, self._fields.of_steps, has_ended) as steps:
                self.look_s = time.thread_time() - begun
                if has_ended and not steps.num:
                    _, values = self._fields.take(steps.at(0), path, is_first=True)
                    if not self._simulation.fields:
                        self._tell(values, path)
                if has_ended:
                    self._compare_rows(steps, path)
                while self.is_wanted and self._num_sent < steps.num:
                    step = self._step_at(self._num_sent)
                    if step is None:
                        break
                    statics, values = self._fields.take(steps.at(self._num_sent), path, is_first=not self._num_sent)
                    self._send(step, statics, values, path)
                    if not has_ended:
                        self._checksums.append(_checksum(values))
        except Unreadable:
            if has_ended:
                raise

    def _compare_rows(self, steps: WholeSteps, path: Path) -> None:
        """Compare the rows that were sent while the solver ran with those that are there now."""
        for index, before in enumerate(self._checksums):
            now = _checksum(self._fields.take(steps.at(index), path, is_first=False)[1]) if index < steps.num else None
            if now != before:
                raise ConfigError(
                    f"row {index} of {path} was changed after it was sent: expected rows that are whole once the next "
                    "one is there. Have the solver append them, or write the file without SWMR, so that it is read at "
                    "the end"
                )

    def _step_of(self, file: StepFile) -> int | None:
        """The study's time step of this file; None if it has none."""
        if self._options.in_order:
            if file.number < self._last_number:
                raise ConfigError(
                    f"{file.path} came after the file of a later step, so that files cannot be counted: leave out "
                    "--in-order, if the numbers in their names are those of the time steps"
                )
            return self._step_at(self._num_sent)
        if file.number % 1:
            raise ConfigError(f"{file.path} has a time in its name, and no time step: --in-order counts the files")
        step, known = int(file.number), self._simulation.time_steps
        return step if known is None or step in known else None

    def _step_at(self, position: int) -> int | None:
        known = self._simulation.time_steps
        if known is None:
            return position
        return known[position] if position < len(known) else None

    def _send(self, step: int, statics: Mapping[str, Any], values: Mapping[str, Any], path: Path) -> None:
        if not self._num_sent and not self._simulation.fields:
            self._tell(values, path)
        try:
            self._simulation.send_static(**statics)
            self.is_wanted = self._simulation.send(step, **values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        self._num_sent += 1

    def _tell(self, values: Mapping[str, Any], path: Path) -> None:
        told = ", ".join(f"{name or 'an array'} {it.dtype.name} {it.shape}" for name, it in values.items())
        print(f"stream-follow: without a study; {path} has {told}", file=sys.stderr)
        self._has_told = True


def _refuse_changed(sent: SentFile) -> None:
    """Raise if the file is there, and is not what was sent."""
    if signature(sent.path) not in ((), sent.signature):
        raise ConfigError(
            f"{sent.path} was changed after it was sent, so it had not been finished: have the solver say when a "
            "file is (--finished-by), or wait for longer (--quiet-s)"
        )


def _checksum(values: Mapping[str, Any]) -> int:
    checksum = 0
    for name in sorted(values):
        checksum = zlib.crc32(np.ascontiguousarray(values[name]).data, checksum)
    return checksum
