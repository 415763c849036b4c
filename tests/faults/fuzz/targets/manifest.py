"""manifest.json of a checkpoint: a manifest, or `DamagedCheckpoint`, whether its checksum fits or not."""

from stream_server.errors import DamagedCheckpoint
from stream_server.server.checkpoint.folder import Manifest
from stream_server.storage.checksums import FileRecord
from stream_server.storage.folders import is_inside
from tests.faults.fuzz.sealing import resealed
from tests.faults.fuzz.target import Target

EXAMPLE = Manifest(
    checkpoint=42,
    incarnation=3,
    base=41,
    ranks=2,
    batches=1200,
    created="2026-01-31T12:00:00+00:00",
    class_digest="0123456789abcdef",
    versions={"numpy": "2.4"},
    files={"rank-0/samples.rows": FileRecord(num_bytes=4096, xxh3="0" * 32)},
)


def run(data: bytes) -> None:
    """Read the bytes, and the same with a checksum that fits."""
    _read(data)
    _read(resealed(data))


def _read(data: bytes) -> None:
    try:
        manifest = Manifest.from_bytes(data)
    except DamagedCheckpoint:
        return
    assert all(map(is_inside, manifest.files))
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


TARGET = Target(run=run, seeds=(EXAMPLE.to_bytes(),), is_json=True)
