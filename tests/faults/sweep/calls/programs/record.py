"""A restarted study goes on with its record of accepted samples, and ends in order."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stream_server.errors import ConfigError
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.record_reader import RankRecord
from tests.faults.sweep.calls import faults
from tests.faults.sweep.calls.programs.program import Program
from tests.faults.sweep.calls.ran import Ran, Say
from tests.faults.sweep.records import recorder
from tests.support.recorded import Key, u_of

BEFORE: list[Key] = [(2, step) for step in range(6)]
DURING: list[Key] = [(3, step) for step in range(6)]
AFTER: list[Key] = [(4, step) for step in range(3)]
# The parameters of a simulation come before its first sample.
POSITION = 1 + 4
KEPT = BEFORE[: POSITION - 1]


def make(folder: Path) -> None:
    """Incarnation 1 recorded two samples more than its last checkpoint speaks of."""
    with recorder(folder, BEFORE, incarnation=1, position=0) as opened:
        opened.append(range(len(KEPT)))
        assert opened.position() == POSITION
        opened.append(range(len(KEPT), len(BEFORE)))


def run(folder: Path, say: Say) -> None:
    with recorder(folder, DURING, incarnation=2, position=POSITION) as opened:
        for slots in (range(2), range(2, 4), range(4, 6)):
            opened.append(slots)
            say(f"synced {opened.sync(opened.position())}")
    say(f"ended {opened.error}")


def judge(folder: Path, ran: Ran) -> Iterator[str]:
    """All that a checkpoint speaks of is there for the next start, which goes on; an error only ends the recording."""
    assert ran.fault is not None
    synced = [int(number) for number in ran.told("synced") if number != "None"]
    ended_well = ran.told("ended") == ["None"]
    if ran.must_succeed and not ended_well:
        yield "the recording ended for something that a program does not notice"
    if ran.is_done and not ended_well and not ran.warnings:
        yield "the recording ended, and nobody was told"
    # On a disk on which nothing can be made any more nothing can be left, but what the log says.
    is_read_only = ran.fault.kind is faults.Kind.FULL and ran.fault.call == "openat"
    yield from _of_what_is_there(folder, synced, must_tell=ran.is_done and not ended_well and not is_read_only)
    position = max(synced, default=POSITION)
    with recorder(folder, AFTER, incarnation=3, position=position) as opened:
        opened.append(range(len(AFTER)))
    if opened.error is not None:
        yield f"the recording does not go on: {opened.error}"
        return
    wanted = [*KEPT, *DURING[: max(0, position - POSITION - 1)], *AFTER]
    found, warnings = _samples(folder)
    if found != wanted or warnings:
        yield f"from {position} on, {wanted} were to be there, but found {found}"
    left = sorted(path.name for path in folder.iterdir() if path.suffix not in (".samples", ".json"))
    if left:
        yield f"left over after the restart: {left}"


def _of_what_is_there(folder: Path, synced: Sequence[int], *, must_tell: bool) -> Iterator[str]:
    """A replay of what is left finds whole samples in their order, and is told when there should be more."""
    try:
        found, warnings = _samples(folder)
    except ConfigError as error:
        yield f"what was recorded cannot be read: {error}"
        return
    first = len(BEFORE) if found[len(KEPT) : len(BEFORE)] == BEFORE[len(KEPT) :] else len(KEPT)
    if found != [*BEFORE[:first], *DURING][: len(found)]:
        yield f"what is there was never recorded like that: {found}"
    num_synced = max(synced, default=0) - POSITION - 1
    if len(found) < len(KEPT) + max(0, num_synced):
        yield f"up to {synced} is on disk, but found {found}"
    if must_tell and len(found) < len(KEPT) + len(DURING) and not warnings:
        yield "samples are missing, and a replay does not hear of it"


def _samples(folder: Path) -> tuple[list[Key], list[str]]:
    """All samples by their keys, with their values checked; and what is told of those that are missing."""
    record = RankRecord(folder, 0)
    try:
        entries = [record.read(number) for number in range(len(record))]
        warnings = record.warnings
    finally:
        record.close()
    samples = [entry for entry in entries if entry.kind is EntryKind.SAMPLE]
    for entry in samples:
        np.testing.assert_array_equal(entry.fields["u"], u_of((entry.simulation, entry.time_step)))
    return [(entry.simulation, entry.time_step) for entry in samples], warnings


PROGRAM = Program(name="record", make=make, run=run, judge=judge)
