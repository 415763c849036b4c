"""epochs.jsonl: the starts 1, 2, … of a study, whose lines are these bytes, or `DamagedCheckpoint`."""

import json

import xxhash

from stream_server.errors import DamagedCheckpoint
from stream_server.server.checkpoint.epochs import EPOCHS_FILE, Epoch, read_epochs
from tests.fuzz import scratch
from tests.fuzz.target import Target

FOLDER = scratch.folder()
EXAMPLE = b"".join(
    Epoch(epoch=epoch, base=base, batches=100 * base, ranks=2, started="2026-01-31T12:00:00+00:00").to_line()
    for epoch, base in ((1, 0), (2, 3), (3, 7))
)


def run(data: bytes) -> None:
    """Read the bytes, and their lines with checksums that fit."""
    _read(data)
    _read(b"\n".join(map(_sealed, data.split(b"\n"))))


def _read(data: bytes) -> None:
    (FOLDER / EPOCHS_FILE).write_bytes(data)
    try:
        epochs = read_epochs(FOLDER)
    except DamagedCheckpoint:
        return
    lines = b"".join(start.to_line() for start in epochs.starts)
    # All of a line is one, though its end be missing.
    whole = data if data.startswith(lines) else data + b"\n"
    assert whole.startswith(lines), "what was read is not what was written"
    assert b"\n" not in whole.removeprefix(lines), "a line was left out that is not the last"


def _sealed(line: bytes) -> bytes:
    try:
        plain = json.loads(line)
        plain.pop("xxh3", None)
        return json.dumps({**plain, "xxh3": xxhash.xxh3_64_hexdigest(json.dumps(plain).encode())}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return line


TARGET = Target(run=run, seeds=(EXAMPLE, EXAMPLE[:-20]), is_json=True)
