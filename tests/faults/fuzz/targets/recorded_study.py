"""record.json: the facts of a record, which are written alike again, or `ConfigError`."""

from stream_server.errors import ConfigError
from stream_server.messages.client import FieldSpec
from stream_server.server.replay.recorded_study import STUDY_FILE, RecordedStudy
from tests.faults.fuzz import scratch
from tests.faults.fuzz.sealing import resealed
from tests.faults.fuzz.target import Target

FOLDER, AGAIN = scratch.folder(), scratch.folder()
EXAMPLE = RecordedStudy(
    study="heat",
    ranks=2,
    fields=(FieldSpec(name="u", shape=(6, 4), dtype="<f4"), FieldSpec(name="v", shape=(), optional=True)),
    parameters=("left", "right"),
    first=0,
    every=10,
    nonfinite="reject",
    seed=7,
)


def run(data: bytes) -> None:
    """Read it, and the same with a checksum that fits."""
    _read(data)
    _read(resealed(data))


def _read(data: bytes) -> None:
    (FOLDER / STUDY_FILE).write_bytes(data)
    try:
        facts = RecordedStudy.read(FOLDER)
    except ConfigError:
        return
    assert facts.ranks >= 1 <= facts.every
    assert all(type(extent) is int for field in facts.fields for extent in field.shape)
    (AGAIN / STUDY_FILE).unlink(missing_ok=True)
    facts.write(AGAIN)
    assert RecordedStudy.read(AGAIN) == facts


AGAIN.mkdir(exist_ok=True)
EXAMPLE.write(FOLDER)
TARGET = Target(run=run, seeds=((FOLDER / STUDY_FILE).read_bytes(),), is_json=True)
