"""Writes the samples of a record to files, one for each simulation: the last act of a study without training.

Why: docs/decisions/0043-offline-files.md
"""

import logging
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from stream_server.errors import ConfigError, DamagedRecord, SamplesNotWritten
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.replay.dealing import RecordCounts, find_entries, is_sample
from stream_server.server.replay.record_reader import Recording
from stream_server.server.replay.share import on_all_ranks
from stream_server.server.replay.simulation_file import Arrays, path_of, write_simulation
from stream_server.storage import disk

T = TypeVar("T")

log = logging.getLogger(__name__)


def export_record(
    ranks: Ranks,
    record: Path,
    folder: Path,
    *,
    finished: Collection[int],
    invalid: Collection[int],
    must_leave: Callable[[], bool] = lambda: False,
) -> bool:
    """Write a file for each simulation of a record that has none yet; the ranks share the work. Collective.

    Whatever ends it, the next call goes on with the files that are missing. Invalid simulations get none; files of
    simulations that are not `finished` say so. The ranks meet after each file, and leave early if one of them must.

    Returns:
        Whether all files are there.

    Raises:
        SamplesNotWritten: the disk is full or fails, or the record is damaged; the same on all ranks.
    """
    with ExitStack() as stack:
        index = _on_all_ranks(ranks, folder, lambda: _open(record, folder, stack))
        missing = [it for it in index.simulations if it not in invalid and not path_of(folder, it).exists()]
        # One list for all: another rank may have begun to write.
        missing = ranks.broadcast(missing)

        def write(number: int) -> None:
            if number < len(missing):
                simulation = missing[number]
                index.write(path_of(folder, simulation), simulation, finished=simulation in finished)

        for first in range(0, len(missing), ranks.size):
            if ranks.sum(np.array([must_leave()], np.int64)).any():
                return False
            _on_all_ranks(ranks, folder, partial(write, first + ranks.rank))
    return True


def _open(record: Path, folder: Path, stack: ExitStack) -> "RecordIndex":
    disk.make_folder(folder)
    recording = stack.enter_context(closing(Recording(record)))
    for warning in recording.warnings:
        log.warning("%s: %s", record, warning)
    return RecordIndex(recording)


def _on_all_ranks(ranks: Ranks, folder: Path, act: Callable[[], T]) -> T:
    try:
        # HDF5 tells of some failures of the disk by a RuntimeError.
        return on_all_ranks(ranks, act, failures=(ConfigError, OSError, RuntimeError))
    except ConfigError as error:
        raise SamplesNotWritten(
            f"{folder}: not all samples could be written to files: {error}. Make room and run the same command "
            "again: nothing is simulated again"
        ) from error


class RecordIndex:
    """Knows where the samples of each simulation are in a record."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._counts = RecordCounts()
        heads, places = find_entries(recording.ranks, is_sample, self._counts)
        order = np.lexsort((heads["time_step"], heads["simulation"]))
        self._heads, self._places = heads[order], places[order]

    @property
    def simulations(self) -> list[int]:
        """The simulations of which there is a sample."""
        return [int(simulation) for simulation in np.unique(self._heads["simulation"])]

    def write(self, path: Path, simulation: int, *, finished: bool) -> None:
        """Write the file of a simulation.

        Raises:
            OSError: the disk is full or fails.
            DamagedRecord: a sample is not as it was recorded.
        """
        study, counts, dtypes = self._recording.study, self._counts, self._recording.recorded_dtypes
        # In the types in which they were recorded.
        fields = [replace(field, dtype=dtypes[field.name].str) for field in study.fields if field.name in dtypes]
        first, stop = np.searchsorted(self._heads["simulation"], [simulation, simulation + 1])
        statics: Arrays = {}
        if any(field.is_static for field in study.fields):
            if simulation not in counts.statics:
                raise DamagedRecord(
                    f"{self._recording.folder}: what simulation {simulation} sent once was expected in it"
                )
            statics = self._fields_at(*counts.statics[simulation])
        write_simulation(
            path,
            study=study.study,
            simulation=simulation,
            parameters=dict(zip(study.parameters, counts.parameters[simulation], strict=True)),
            time_steps=self._heads["time_step"][first:stop].tolist(),
            trajectory_ends=sorted(counts.trajectory_ends.get(simulation, ())),
            finished=finished,
            fields=fields,
            samples=starmap(self._fields_at, self._places[first:stop].tolist()),
            statics=statics,
        )

    def _fields_at(self, file: int, number: int) -> Arrays:
        return self._recording.ranks[file].read(number).fields
