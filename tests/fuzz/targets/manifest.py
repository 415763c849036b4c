"""manifest.json of a generation: a manifest whose bytes are these, or `DamagedCheckpoint`, sealed rightly or not."""

import json

import xxhash

from stream_server.errors import DamagedCheckpoint
from stream_server.server.checkpoint.manifest import FileRecord, Manifest, is_inside
from tests.fuzz.target import Target

EXAMPLE = Manifest(
    generation=42,
    epoch=3,
    base=41,
    ranks=2,
    batches=1200,
    created="2026-01-31T12:00:00+00:00",
    config_digest="0123456789abcdef",
    versions={"numpy": "2.4"},
    files={"rank-0/samples.rows": FileRecord(num_bytes=4096, xxh3="0" * 32)},
)


def run(data: bytes) -> None:
    """Read the bytes, and what they say with a checksum that fits."""
    _read(data)
    try:
        plain = json.loads(data)["manifest"]
        sealed = _sealed(plain)
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    _read(sealed)


def _read(data: bytes) -> None:
    try:
        manifest = Manifest.from_bytes(data)
    except DamagedCheckpoint:
        return
    assert manifest.to_bytes() == data
    assert all(map(is_inside, manifest.files))


def _sealed(plain: object) -> bytes:
    text = json.dumps(plain, indent=1, sort_keys=True)
    whole = {"manifest": plain, "xxh3": xxhash.xxh3_128_hexdigest(text.encode())}
    return (json.dumps(whole, indent=1, sort_keys=True) + "\n").encode()


TARGET = Target(run=run, seeds=(EXAMPLE.to_bytes(),), is_json=True)
