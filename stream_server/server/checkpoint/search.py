"""Which generation a start of the server continues; all ranks find out together."""

import heapq
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stream_server.errors import DamagedCheckpoint, NoUsableCheckpoint, OtherFormat
from stream_server.server.checkpoint.epochs import Epochs, read_epochs
from stream_server.server.checkpoint.generations import Generations
from stream_server.server.checkpoint.manifest import FileRecord, Manifest
from stream_server.server.ranks import Ranks

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The newest generation that counts, if any, and why newer ones do not, by number."""

    manifest: Manifest | None
    damaged: Mapping[int, str] = field(default_factory=dict)


def find_usable(generations: Generations, ranks: Ranks) -> Found:
    """The newest generation of which every byte is as it was written, on all ranks; None in it when none was ever made.

    Every rank reads its share of the files. Newer generations that are damaged are set aside once an older one has
    proved good; when none has, the folder is left as it is. Collective, main thread.

    Raises:
        NoUsableCheckpoint: there are generations, but none of them is good; on all ranks.
    """
    damaged: dict[int, str] = {}
    while True:
        word, text = ranks.broadcast(_candidate(generations, damaged) if ranks.rank == 0 else None)
        if word == "error":
            raise NoUsableCheckpoint(text)
        if word == "none":
            return Found(manifest=None)
        manifest = Manifest.from_bytes(text.encode())
        share = dealt(manifest.files, ranks.size)[ranks.rank]
        problems = ranks.gather(list(generations.verify(manifest, share).values()))
        if problems is not None and any(problems):
            damaged[manifest.generation] = "; ".join(problem for of_rank in problems for problem in of_rank)
        elif problems is not None:
            _set_aside(generations, damaged)
        is_good, found = ranks.broadcast([manifest.generation not in damaged, sorted(damaged.items())])
        if is_good:
            return Found(manifest=manifest, damaged=dict(found))


def newest_readable(generations: Generations, epochs: Epochs, *, but: Collection[int] = ()) -> Found:
    """The newest generation whose manifest is good, leaving out those in `but`; changes nothing.

    Generations of an older epoch that its successor does not continue are passed over in silence.

    Raises:
        OtherFormat: another release wrote the newest.
        DamagedCheckpoint: it is of an epoch that `epochs` does not know.
    """
    damaged: dict[int, str] = {}
    for number in reversed(generations.numbers()):
        if number in but:
            continue
        try:
            manifest = generations.manifest(number)
        except OtherFormat:
            raise
        except DamagedCheckpoint as error:
            damaged[number] = str(error)
            continue
        if manifest.epoch > epochs.newest:
            raise DamagedCheckpoint(
                f"generation {number} is of epoch {manifest.epoch}, but the newest known is {epochs.newest}"
            )
        if epochs.is_valid(number, manifest.epoch):
            return Found(manifest=manifest, damaged=damaged)
    return Found(manifest=None, damaged=damaged)


def dealt(files: Mapping[str, FileRecord], num_ranks: int) -> list[list[str]]:
    """The files, given to the ranks so that each has about as many bytes to read."""
    shares: list[list[str]] = [[] for _ in range(num_ranks)]
    loads = [(0, rank) for rank in range(num_ranks)]
    for path in sorted(files, key=lambda path: (-files[path].num_bytes, path)):
        num_bytes, rank = loads[0]
        shares[rank].append(path)
        heapq.heapreplace(loads, (num_bytes + files[path].num_bytes, rank))
    return shares


def _candidate(generations: Generations, damaged: dict[int, str]) -> tuple[str, str]:
    """What rank 0 tells all: a manifest to verify, that there is none, or why none can be used."""
    folder = generations.folder
    try:
        epochs = read_epochs(folder)
        found = newest_readable(generations, epochs, but=damaged)
        damaged.update(found.damaged)
        if found.manifest is not None:
            return "manifest", found.manifest.to_bytes().decode()
        were_there = generations.were_damaged() or any(start.base for start in epochs.starts)
    except (DamagedCheckpoint, OSError) as error:
        return "error", f"{folder} cannot be continued: {error}. --fresh begins the study anew"
    if not damaged and not were_there:
        return "none", ""
    reasons = "; ".join(f"{number}: {why}" for number, why in sorted(damaged.items(), reverse=True))
    text = f"{folder} has no checkpoint that can be used ({reasons or 'earlier ones are gone'})"
    return "error", f"{text}. --fresh begins the study anew"


def _set_aside(generations: Generations, damaged: Mapping[int, str]) -> None:
    for number, why in damaged.items():
        try:
            generations.set_aside(number, why)
        except OSError as error:
            _log.warning("checkpoint %d is damaged (%s) and could not be set aside: %s", number, why, error)
