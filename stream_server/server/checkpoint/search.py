"""The search for the checkpoint that a start of the server continues."""

import heapq
import logging
from collections.abc import Mapping

from stream_server.errors import DamagedCheckpoint, NoUsableCheckpoint, OtherFormat
from stream_server.server.checkpoint.folder import CheckpointFolder, Manifest
from stream_server.server.checkpoint.incarnations import Incarnations, read_incarnations
from stream_server.server.ranks.communicator import Ranks
from stream_server.storage.checksums import FileRecord
from stream_server.storage.typed import listed

_log = logging.getLogger(__name__)


def find_usable(checkpoints: CheckpointFolder, ranks: Ranks) -> Manifest | None:
    """Find the newest checkpoint whose bytes are all as written; None if none was ever made.

    Every rank reads its share of the files. Newer checkpoints that are damaged are set aside once an older one has
    proved good; when none has, the folder is left as it is. Collective, main thread.

    Raises:
        NoUsableCheckpoint: there are checkpoints, but none of them is good; on all ranks.
    """
    damaged: dict[int, str] = {}
    while True:
        word, text = ranks.broadcast(_candidate(checkpoints, damaged) if ranks.rank == 0 else None)
        if word == "error":
            raise NoUsableCheckpoint(text)
        if word == "none":
            return None
        manifest = Manifest.from_bytes(text.encode())
        share = dealt(manifest.files, ranks.size)[ranks.rank]
        problems = ranks.gather(list(checkpoints.verify(manifest, share).values()))
        if problems is not None and any(problems):
            damaged[manifest.checkpoint] = listed([problem for of_rank in problems for problem in of_rank], "; ")
        elif problems is not None:
            _set_aside(checkpoints, damaged)
        if ranks.broadcast(manifest.checkpoint not in damaged):
            return manifest


def newest_readable(
    checkpoints: CheckpointFolder, incarnations: Incarnations, damaged: dict[int, str]
) -> Manifest | None:
    """Find the newest valid checkpoint whose manifest can be read; changes nothing on disk.

    Those in `damaged` are left out, and newer ones than that which is found are added, each with the reason.
    Checkpoints of an older incarnation that its successor does not continue are passed over in silence.

    Raises:
        OtherFormat: another release wrote the newest.
        DamagedCheckpoint: it is of an incarnation that `incarnations` does not know.
    """
    for number in reversed(checkpoints.numbers()):
        if number in damaged:
            continue
        try:
            manifest = checkpoints.manifest(number)
        except OtherFormat:
            raise
        except DamagedCheckpoint as error:
            damaged[number] = str(error)
            continue
        if manifest.incarnation > incarnations.newest:
            raise DamagedCheckpoint(
                f"checkpoint {number} is of incarnation {manifest.incarnation}, but the newest is {incarnations.newest}"
            )
        if incarnations.is_valid(number, manifest.incarnation):
            return manifest
    return None


def dealt(files: Mapping[str, FileRecord], num_ranks: int) -> list[list[str]]:
    """The paths of the files each rank reads, so that all have about as many bytes to read."""
    shares: list[list[str]] = [[] for _ in range(num_ranks)]
    loads = [(0, rank) for rank in range(num_ranks)]
    for path in sorted(files, key=lambda path: (-files[path].num_bytes, path)):
        num_bytes, rank = loads[0]
        shares[rank].append(path)
        heapq.heapreplace(loads, (num_bytes + files[path].num_bytes, rank))
    return shares


def _candidate(checkpoints: CheckpointFolder, damaged: dict[int, str]) -> tuple[str, str]:
    """The message of rank 0 to all: a manifest to verify, that there is none, or why none can be used."""
    folder = checkpoints.folder
    try:
        incarnations = read_incarnations(folder)
        manifest = newest_readable(checkpoints, incarnations, damaged)
        if manifest is not None:
            return "manifest", manifest.to_bytes().decode()
        were_there = checkpoints.were_damaged() or any(start.base for start in incarnations.starts)
    except (DamagedCheckpoint, OSError) as error:
        return "error", f"{folder} cannot be continued: {error}. --fresh begins the study anew"
    if not damaged and not were_there:
        return "none", ""
    reasons = "; ".join(f"{number}: {why}" for number, why in sorted(damaged.items(), reverse=True))
    text = f"{folder} has no checkpoint that can be used ({reasons or 'earlier ones are gone'})"
    return "error", f"{text}. --fresh begins the study anew"


def _set_aside(checkpoints: CheckpointFolder, damaged: Mapping[int, str]) -> None:
    for number, why in damaged.items():
        try:
            checkpoints.set_aside(number, why)
        except OSError as error:
            _log.warning("checkpoint %d is damaged (%s) and could not be set aside: %s", number, why, error)
