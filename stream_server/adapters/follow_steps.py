"""Files of one time step each: which steps they are in the study, and whether they are whole."""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stream_server.adapters.follow_files import WHEN_QUIET, Signature, StepFile, StepFiles, signature, two_of
from stream_server.adapters.follow_formats import Unreadable, reader_of, reading
from stream_server.adapters.follow_sending import Follower
from stream_server.client_api import Simulation
from stream_server.errors import ConfigError

# A file that did not change may be readable later where a file system shows its parts one by one.
RETRY_S = 1.0


class SentFile(NamedTuple):
    """The file of a step that was sent: what it was when it was read, () once it is deleted."""

    path: Path
    signature: Signature
    step: int


class StepFileFollower(Follower):
    """Follows files that match a pattern, each of which has one time step.

    Raises:
        ConfigError: an option does not fit the files or the study.
    """

    def __init__(self, options: argparse.Namespace, simulation: Simulation) -> None:
        super().__init__(options.field, simulation)
        self._options = options
        # By the number of the file, as are those that the study has no step for and those that were seen at all.
        self._sent: dict[float, SentFile] = {}
        self._surplus: dict[float, Path] = {}
        self._seen: dict[float, Path] = {}
        # What each file that cannot be read was, since when it is so, and when it was last tried.
        self._unreadable: dict[Path, tuple[Signature, float, float]] = {}
        self._last_number = -math.inf
        if options.in_order and options.earlier and options.delete:
            raise ConfigError(
                "--in-order counts the files, of which the next attempt would not find those that this one has "
                "deleted: leave out --delete or --earlier, or --in-order if the names have the numbers of time steps"
            )
        self._read = reader_of(Path(options.pattern).suffix)
        self._files = StepFiles(
            options.pattern,
            finished_by=options.finished_by,
            quiet_s=options.quiet_s,
            # Who looks at files without a study has them already.
            earlier=options.earlier or not simulation.fields,
        )

    def turn(self, *, has_ended: bool) -> None:
        begun = time.thread_time()
        found = self._files.look()
        self.look_s = time.thread_time() - begun
        waiting = [file for file in found if not self._is_done(file)]
        self._seen.update({file.number: file.path for file in waiting})
        if self._options.in_order:
            self._refuse_vanished(found)
        problem: Unreadable | None = None
        for file in waiting:
            if not self.is_wanted:
                break
            step = self._step_of(file)
            if step is None:
                self._surplus[file.number] = self._seen.pop(file.number)
                continue
            is_finished = self._files.is_finished(file.path, next_is_there=file is not found[-1])
            if is_finished or (has_ended and self._files.finished_by == WHEN_QUIET):
                try:
                    self._send_file(file, step, may_wait=not has_ended)
                except Unreadable as error:
                    problem = problem or error
            if self._options.in_order and file.number not in self._sent:
                break
        self.delete_durable()
        if problem is not None:
            raise problem

    def delete_durable(self) -> None:
        if not self._options.delete:
            return
        for number, sent in self._sent.items():
            if sent.signature and self.simulation.is_durable(sent.step):
                _refuse_changed(sent)
                self._files.remove(sent.path)
                self._sent[number] = sent._replace(signature=())

    def check(self) -> None:
        if not self.is_wanted:
            return
        for sent in self._sent.values():
            _refuse_changed(sent)
        found = self._files.look()
        for file in found:
            if not self._is_done(file):
                raise ConfigError(
                    f"{file.path} was never finished: the solver has ended, and {self._files.why_unfinished(file.path)}"
                )
        self._refuse_vanished(found)
        if self._surplus:
            num, first = len(self._surplus), next(iter(self._surplus.values()))
            print(f"stream-follow: {num} not sent, since the study has no such time step: {first}", file=sys.stderr)
        if not self.num_sent and not self.has_told:
            there = self._files.neighbours()
            raise ConfigError(f"no time step came from {self._files.pattern!r}: the solver has ended, and {there}")

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
                statics, values = self.fields.take(arrays, path, is_first=not self.num_sent)
        except Unreadable:
            since = since if unreadable == before else now
            self._unreadable[path] = before, since, now
            if not may_wait or now - since >= self._options.patience_s:
                raise
            return
        if signature(path) == before:
            self.send(step, statics, values, path)
            self._sent[file.number] = SentFile(path, before, step)
            del self._seen[file.number]
            self._last_number = file.number

    def _step_of(self, file: StepFile) -> int | None:
        """The study's time step of this file; None if it has none."""
        if self._options.in_order:
            if file.number < self._last_number:
                raise ConfigError(
                    f"{file.path} came after the file of a later step, so that files cannot be counted: leave out "
                    "--in-order, if the numbers in their names are those of the time steps"
                )
            return self.step_at(self.num_sent)
        if file.number % 1:
            raise ConfigError(f"{file.path} has a time in its name, and no time step: --in-order counts the files")
        step, known = int(file.number), self.simulation.time_steps
        return step if known is None or step in known else None


def _refuse_changed(sent: SentFile) -> None:
    """Raise if the file is there, and is not what was sent."""
    if signature(sent.path) not in ((), sent.signature):
        raise ConfigError(
            f"{sent.path} was changed after it was sent, so it had not been finished: have the solver say when a "
            "file is (--finished-by), or wait for longer (--quiet-s)"
        )
