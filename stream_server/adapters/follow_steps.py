"""The time steps that a solver writes: which they are in the study, and whether they are whole."""

import argparse
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stream_server.adapters.fields import FieldsOfFiles
from stream_server.adapters.follow_files import WHEN_QUIET, WILDCARD, Signature, StepFile, StepFiles, signature
from stream_server.adapters.follow_formats import Unreadable, reader_of, reading
from stream_server.adapters.follow_series import series_reader_of
from stream_server.client_api import Simulation
from stream_server.errors import ConfigError

# A file that did not change may be readable later where a file system shows its parts one by one.
RETRY_S = 1.0


class Follower:
    """Sends the steps that are whole; `is_wanted` is False once the study wants nothing more.

    Raises:
        ConfigError: an option does not fit the files or the study.
    """

    def __init__(self, options: argparse.Namespace, simulation: Simulation) -> None:
        self.is_wanted = True
        self._options = options
        self._pattern: str = options.pattern
        self._simulation = simulation
        self._fields = FieldsOfFiles(options.field, simulation.fields)
        self._num_sent = 0
        # What each file was when it was read, and its step.
        self._sent: dict[Path, tuple[Signature, int]] = {}
        self._surplus: dict[Path, Signature] = {}
        # What each file that cannot be read was, since when it is so, and when it was last tried.
        self._unreadable: dict[Path, tuple[Signature, float, float]] = {}
        self._last_number = -math.inf
        suffix = Path(self._pattern).suffix
        self._files: StepFiles | None = None
        if WILDCARD.search(self._pattern):
            self._read = reader_of(suffix)
            self._files = StepFiles(
                self._pattern, finished_by=options.finished_by, quiet_s=options.quiet_s, earlier=options.earlier
            )
            return
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
        found = self._files.look()
        for position, file in enumerate(found):
            if not self.is_wanted:
                break
            if file.path in self._sent or file.path in self._surplus:
                continue
            is_finished = self._files.is_finished(file.path, next_is_there=position + 1 < len(found))
            if is_finished or (has_ended and self._files.finished_by == WHEN_QUIET):
                self._send_file(file, may_wait=not has_ended)
            if self._options.in_order and file.path not in self._sent:
                break
        self.delete_durable()

    def delete_durable(self) -> None:
        """Delete the files whose steps are in a checkpoint, if that is asked for."""
        if self._files is None or not self._options.delete:
            return
        for path in [path for path, (_, step) in self._sent.items() if self._simulation.is_durable(step)]:
            self._files.remove(path)
            del self._sent[path]

    def check(self) -> None:
        """Find what went wrong without a sign, once the solver has ended well.

        Raises:
            ConfigError: nothing was sent, a file was never finished, or changed after it was sent.
        """
        if not self.is_wanted:
            return
        for path, (before, _) in self._sent.items():
            if signature(path) != before:
                raise ConfigError(
                    f"{path} was changed after it was sent, so it had not been finished: have the solver say when a "
                    "file is (--finished-by), or wait for longer (--quiet-s)"
                )
        for file in self._files.look() if self._files else ():
            if file.path not in self._sent and file.path not in self._surplus:
                assert self._files is not None
                raise ConfigError(
                    f"{file.path} was never finished: the solver has ended, and {self._files.why_unfinished(file.path)}"
                )
        if self._surplus:
            num, first = len(self._surplus), next(iter(self._surplus))
            print(f"stream-follow: {num} not sent, since the study has no such time step: {first}", file=sys.stderr)
        if not self._num_sent:
            there = self._files.neighbours() if self._files else "it is not there, or has no time step"
            raise ConfigError(f"no time step came from {self._pattern!r}: the solver has ended, and {there}")

    def _send_file(self, file: StepFile, *, may_wait: bool) -> None:
        path, before = file.path, signature(file.path)
        step = self._step_of(file)
        if step is None:
            self._surplus[path] = before
            return
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
            self._sent[path] = before, step
            self._last_number = file.number

    def _send_series(self, path: Path, *, has_ended: bool) -> None:
        if not path.exists():
            return
        try:
            with reading(path), self._read_series(path, self._fields.of_steps, has_ended) as steps:
                if has_ended and not steps.num:
                    self._fields.take(steps.at(0), path, is_first=True)
                while self.is_wanted and self._num_sent < steps.num:
                    step = self._step_at(self._num_sent)
                    if step is None:
                        break
                    arrays = steps.at(self._num_sent)
                    self._send(step, *self._fields.take(arrays, path, is_first=not self._num_sent), path)
        except Unreadable:
            if has_ended:
                raise

    def _step_of(self, file: StepFile) -> int | None:
        """The study's time step of this file; None if it has none."""
        if self._options.in_order:
            if file.number < self._last_number:
                raise ConfigError(
                    f"{file.path} came after the file of a later step, so that files cannot be counted: leave out "
                    "--in-order, if the numbers in their names are those of the time steps"
                )
            return self._step_at(self._num_sent)
        if not file.number.is_integer():
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
            told = ", ".join(f"{name or 'an array'} {it.dtype.name} {it.shape}" for name, it in values.items())
            print(f"stream-follow: without a study; {path} has {told}", file=sys.stderr)
        try:
            self._simulation.send_static(**statics)
            self.is_wanted = self._simulation.send(step, **values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        self._num_sent += 1
