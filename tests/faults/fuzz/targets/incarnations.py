"""incarnations.json: the starts 1, 2, … of a study, whose bytes are these, or `DamagedCheckpoint`."""

from dataclasses import asdict

from stream_server.errors import DamagedCheckpoint
from stream_server.server.checkpoint.incarnations import FORMAT, INCARNATIONS_FILE, Incarnation, read_incarnations
from stream_server.storage.checksums import checksummed_json
from tests.faults.fuzz import scratch
from tests.faults.fuzz.sealing import resealed
from tests.faults.fuzz.target import Target

FOLDER = scratch.folder()


def encoded(starts: tuple[Incarnation, ...]) -> bytes:
    return checksummed_json({"format": FORMAT, "starts": [asdict(start) for start in starts]})


EXAMPLE = encoded(
    tuple(
        Incarnation(incarnation=number, base=base, batches=100 * base, ranks=2, started="2026-01-31T12:00:00+00:00")
        for number, base in ((1, 0), (2, 3), (3, 7))
    )
)


def run(data: bytes) -> None:
    """Read the bytes, and the same with a checksum that fits."""
    _read(data)
    _read(resealed(data))


def _read(data: bytes) -> None:
    (FOLDER / INCARNATIONS_FILE).write_bytes(data)
    try:
        incarnations = read_incarnations(FOLDER)
    except DamagedCheckpoint:
        return
    numbers = [start.incarnation for start in incarnations.starts]
    assert numbers == list(range(1, len(numbers) + 1)), "they are not numbered 1, 2, …"
    assert all(min(start.base, start.batches, start.ranks) >= 0 for start in incarnations.starts)


TARGET = Target(run=run, seeds=(EXAMPLE, encoded(())), is_json=True)
