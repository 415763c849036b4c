"""What a generation consists of, as one small file that says so of itself too."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from stream_server.errors import DamagedCheckpoint, OtherFormat

FORMAT = 1
MAX_BYTES = 64 << 20
MANIFEST_FILE = "manifest.json"
MILESTONE_FILE = "milestone.txt"

_PART = re.compile(r"[^/\\\x00-\x1f\x7f]+")
_XXH3 = re.compile(r"[0-9a-f]{32}")
_COUNTS = ("format", "generation", "epoch", "base", "ranks", "batches")
_TEXTS = ("created", "config_digest")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """Size and xxh3_128 checksum of a file."""

    num_bytes: int
    xxh3: str

    def to_json(self) -> list[Any]:
        return [self.num_bytes, self.xxh3]

    @classmethod
    def from_json(cls, plain: Any) -> "FileRecord":
        """What `to_json` gave.

        Raises:
            DamagedCheckpoint: it is something else.
        """
        match plain:
            case [int(num_bytes), str(xxh3)] if num_bytes >= 0 and type(num_bytes) is int and _XXH3.fullmatch(xxh3):
                return cls(num_bytes=num_bytes, xxh3=xxh3)
        raise DamagedCheckpoint(f"a file's record must be its size and checksum, but is {str(plain)[:80]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A generation: which start of the server wrote it, on which basis, when, and every file by its relative path.

    `base` is the generation that the epoch continued, 0 for none; `created` is for people.
    """

    generation: int
    epoch: int
    base: int
    ranks: int
    batches: int
    created: str
    config_digest: str
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """JSON, of which one line is the checksum of the rest; the same manifest always gives the same bytes."""
        plain = {name: getattr(self, name) for name in (*_COUNTS, *_TEXTS)}
        plain["versions"] = dict(self.versions)
        plain["files"] = {path: record.to_json() for path, record in self.files.items()}
        return _sealed(plain)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Read back what `to_bytes` gave; every single byte of it counts.

        Raises:
            DamagedCheckpoint: these bytes are no manifest.
            OtherFormat: they are one of another release.
        """
        try:
            plain = json.loads(data)["manifest"]
            whole = _sealed(plain) == data
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DamagedCheckpoint(f"{MANIFEST_FILE} is no manifest: {error}"[:200]) from error
        if not whole or not isinstance(plain, dict):
            raise DamagedCheckpoint(f"{MANIFEST_FILE} does not match its own checksum")
        if plain.get("format") != FORMAT:
            raise OtherFormat(f"it has format {plain.get('format')}, and this release reads format {FORMAT}")
        _check(plain)
        files = {path: FileRecord.from_json(record) for path, record in plain["files"].items()}
        return cls(**{**plain, "files": files})


def _sealed(plain: Mapping[str, Any]) -> bytes:
    text = json.dumps(plain, indent=1, sort_keys=True)
    whole = {"manifest": plain, "xxh3": xxhash.xxh3_128_hexdigest(text.encode())}
    return (json.dumps(whole, indent=1, sort_keys=True) + "\n").encode()


def _check(plain: Mapping[str, Any]) -> None:
    wrong = [name for name in _COUNTS if type(plain.get(name)) is not int or plain[name] < 0]
    wrong += [name for name in _TEXTS if not isinstance(plain.get(name), str)]
    versions, files = plain.get("versions"), plain.get("files")
    if not isinstance(versions, dict) or not all(isinstance(version, str) for version in versions.values()):
        wrong.append("versions")
    if not isinstance(files, dict) or not all(is_inside(path) for path in files):
        wrong.append("files")
    unknown = sorted(set(plain) - {*_COUNTS, *_TEXTS, "versions", "files"})
    if wrong or unknown:
        raise DamagedCheckpoint(f"{MANIFEST_FILE} has wrong or unknown entries: {', '.join(wrong + unknown)}"[:200])


def is_inside(path: str) -> bool:
    """Whether this names a file within a generation: relative, with no way out of it, and not the manifest."""
    parts = path.split("/")
    return path != MANIFEST_FILE and all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
