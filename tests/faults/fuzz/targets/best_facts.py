"""facts.json of a best model: as it was written, or `DamagedCheckpoint`."""

from stream_server.errors import DamagedCheckpoint
from stream_server.server.model.best_models import FACTS_FILE, FORMAT, read_facts
from stream_server.storage.checksums import checksummed_json
from tests.faults.fuzz import scratch
from tests.faults.fuzz.sealing import resealed
from tests.faults.fuzz.target import Target

FOLDER = scratch.folder()
EXAMPLE = {
    "format": FORMAT,
    "batch": 120,
    "monitor": "val/loss",
    "value": 0.25,
    "files": {"model/model.state": [3, "06b05ab6733a618578af5f94892f3950"]},
}


def run(data: bytes) -> None:
    """Read it, and the same with a checksum that fits."""
    _read(data)
    _read(resealed(data))


def _read(data: bytes) -> None:
    (FOLDER / FACTS_FILE).write_bytes(data)
    try:
        facts = read_facts(FOLDER)
    except DamagedCheckpoint:
        return
    assert type(facts["batch"]) is int


(FOLDER / "model").mkdir()
(FOLDER / "model" / "model.state").write_bytes(b"abc")
without_files = {**EXAMPLE, "files": {}}
TARGET = Target(run=run, seeds=tuple(map(checksummed_json, (EXAMPLE, without_files))), is_json=True)
