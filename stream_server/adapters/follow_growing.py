"""One file that grows: its time steps are sent row by row."""

import argparse
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stream_server.adapters.follow_files import WHEN_QUIET, signature
from stream_server.adapters.follow_formats import Unreadable, reading
from stream_server.adapters.follow_sending import Follower
from stream_server.adapters.follow_series import WholeSteps, series_reader_of
from stream_server.client_api import Simulation
from stream_server.errors import ConfigError


class GrowingFileFollower(Follower):
    """Follows a file in which each time step is a row.

    Raises:
        ConfigError: an option does not fit the file or the study.
    """

    def __init__(self, options: argparse.Namespace, simulation: Simulation) -> None:
        super().__init__(options.field, simulation)
        self._path = path = Path(options.pattern)
        # Of the rows that were sent while the solver ran.
        self._checksums: list[int] = []
        # Who looks at a file without a study has it already.
        self._before = () if options.earlier or not simulation.fields else signature(path)
        self._read = series_reader_of(path.suffix)
        if options.delete or options.in_order or options.finished_by != WHEN_QUIET:
            raise ConfigError(
                f"{str(path)!r} has no wildcard and so is one file that grows: --delete, --in-order and "
                "--finished-by are for a file of each step, such as 'out/step_*.npy'"
            )

    def turn(self, *, has_ended: bool) -> None:
        path = self._path
        if signature(path) in ((), self._before):
            return
        begun = time.thread_time()
        try:
            with reading(path), self._read(path, self.fields.of_steps, has_ended) as steps:
                self.look_s = time.thread_time() - begun
                if has_ended and not steps.num:
                    _, values = self.fields.take(steps.at(0), path, is_first=True)
                    if not self.simulation.fields:
                        self.tell(values, path)
                if has_ended:
                    self._compare_rows(steps, path)
                while self.is_wanted and self.num_sent < steps.num:
                    step = self.step_at(self.num_sent)
                    if step is None:
                        break
                    statics, values = self.fields.take(steps.at(self.num_sent), path, is_first=not self.num_sent)
                    self.send(step, statics, values, path)
                    if not has_ended:
                        self._checksums.append(_checksum(values))
        except Unreadable:
            if has_ended:
                raise

    def _compare_rows(self, steps: WholeSteps, path: Path) -> None:
        """Compare the rows that were sent while the solver ran with those that are there now."""
        for index, before in enumerate(self._checksums):
            now = _checksum(self.fields.take(steps.at(index), path, is_first=False)[1]) if index < steps.num else None
            if now != before:
                raise ConfigError(
                    f"row {index} of {path} was changed after it was sent: expected rows that are whole once the next "
                    "one is there. Have the solver append them, or write the file without SWMR, so that it is read at "
                    "the end"
                )

    def check(self) -> None:
        if self.is_wanted and not self.num_sent and not self.has_told:
            there = "it is not there, or has no time step of this run"
            raise ConfigError(f"no time step came from {str(self._path)!r}: the solver has ended, and {there}")


def _checksum(values: Mapping[str, Any]) -> int:
    checksum = 0
    for name in sorted(values):
        checksum = zlib.crc32(np.ascontiguousarray(values[name]).data, checksum)
    return checksum
