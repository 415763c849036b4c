"""The files of a record: record.json, and for each rank files of entries, all of one size.

An entry is a head and either the fields of a sample, the parameters of a simulation, or a piece of the fields that are
sent once per simulation. Each start of a study writes
files of its own, and says in their names where they begin. So a server that was left behind, and goes on writing into
its own file, changes nothing: of every file only what comes before the beginnings of the later ones is part of the
record.
"""

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, DamagedRecord
from stream_server.messages.client import FieldSpec
from stream_server.server.run import build
from stream_server.storage import disk
from stream_server.storage.checksums import checksummed_json, parse_checksummed_json
from stream_server.storage.typed import quoted, typed

FORMAT = 1
FACTS_FILE = "record.json"
MAGIC = b"stream-record\n\0\1"
CHECKSUM_BYTES = 8

Entries = npt.NDArray[Any]

HEAD = np.dtype(
    [
        ("checksum", "<u8"),
        ("number", "<u8"),
        ("simulation", "<i8"),
        ("time_step", "<i8"),
        ("present", "<u8"),
        ("kind", "<u8"),
    ]
)

_HEAD = struct.Struct("<QQqqQQ")
# Size and checksum of the description that follows, and the checksum of all before.
_NUMBERS = struct.Struct("<QQQ")
PREAMBLE_BYTES = len(MAGIC) + _NUMBERS.size
_NAME = re.compile(r"rank-(\d+)\.incarnation-(\d+)\.from-(\d+)\.samples")


class EntryKind(IntEnum):
    """The kinds of entries: a sample, for training or held out, or an event of the study."""

    SAMPLE = 0
    HELD_OUT = 1
    PARAMETERS = 2
    FINISHED = 3
    WITHDRAWN = 4
    END = 5
    STATICS = 6


SAMPLES = (EntryKind.SAMPLE, EntryKind.HELD_OUT)


class EntryHead(NamedTuple):
    """The first bytes of an entry. `number` counts a rank's entries, bit i of `present` stands for field i.

    `time_step` is the label of a sample; of a piece of static fields, how many pieces follow. Where the attempts of a
    simulation differ its parameters come again, with `present` 1: the steps behind `time_step` are of another
    trajectory.
    """

    checksum: int
    number: int
    simulation: int
    time_step: int
    present: int
    kind: int

    @classmethod
    def unpack(cls, data: bytes) -> "EntryHead":
        return cls(*_HEAD.unpack_from(data))


class EntryLayout:
    """The layout of the entries of a file, as the NumPy type `dtype`: little-endian, C order, without gaps.

    All entries have the size of a sample, so that the place of each follows from its number. Of a ragged field an entry
    has the length too, and zeros behind the rows that there are. The static fields of a simulation, one after the
    other, take some entries, one at least, the last of which may end with zeros; all have the lengths of ragged ones.
    """

    def __init__(self, fields: Sequence[FieldSpec], num_parameters: int) -> None:
        self.fields = tuple(fields)
        self.step_fields = tuple(field for field in fields if not field.is_static)
        self.static_fields = tuple(field for field in fields if field.is_static)
        self.num_parameters = num_parameters
        sample = np.dtype([(field.name, _dtype_of(field), field.shape) for field in self.step_fields])
        lengths = np.dtype([(field.name, "<u8") for field in fields if field.ragged])
        parameters = np.dtype(("<f8", (num_parameters,)))
        start = HEAD.itemsize + lengths.itemsize
        piece_bytes = max(sample.itemsize, parameters.itemsize)
        self.dtype = np.dtype(
            {
                "names": ["head", "lengths", "fields", "parameters", "piece"],
                "formats": [HEAD, lengths, sample, parameters, np.dtype(("u1", (piece_bytes,)))],
                "offsets": [0, HEAD.itemsize, start, start, start],
                "itemsize": start + piece_bytes,
            }
        )

    @property
    def num_bytes(self) -> int:
        """The size of one entry."""
        return self.dtype.itemsize

    def static_shapes(self, lengths: Any) -> dict[str, tuple[int, ...]]:
        """The shapes of the static fields of a simulation, `lengths` being those of an entry with a piece of them.

        Raises:
            ValueError: a length is larger than the field may have.
        """
        shapes = {
            it.name: (int(lengths[it.name]), *it.shape[1:]) if it.ragged else it.shape for it in self.static_fields
        }
        if any(it.ragged and shapes[it.name][0] > it.shape[0] for it in self.static_fields):
            raise ValueError(f"static fields of the shapes {shapes} are larger than they may be")
        return shapes

    def num_pieces(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """How many entries static fields of these shapes take."""
        num_bytes = sum(_dtype_of(it).itemsize * math.prod(shapes[it.name]) for it in self.static_fields)
        return max(len(self.static_fields[:1]), -(-num_bytes // max(1, self.dtype["piece"].itemsize)))

    def pieces(self, statics: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
        """The static fields of a simulation as an array of shape (number of pieces, bytes of a piece)."""
        data = b"".join(statics[it.name].astype(_dtype_of(it), copy=False).tobytes() for it in self.static_fields)
        num = self.num_pieces({name: array.shape for name, array in statics.items()})
        shape = (num, *self.dtype["piece"].shape)
        return np.frombuffer(data.ljust(math.prod(shape), b"\0"), np.uint8).reshape(shape)

    def joined(self, pieces: Iterable[bytes], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[Any]]:
        """The static fields of a simulation, whose pieces and shapes these are."""
        data, start, found = b"".join(pieces), 0, {}
        for field in self.static_fields:
            shape = shapes[field.name]
            values = np.frombuffer(data, _dtype_of(field), math.prod(shape), start)
            found[field.name] = values.reshape(shape)
            start += values.nbytes
        return found


def _dtype_of(field: FieldSpec) -> np.dtype[Any]:
    return np.dtype(field.dtype).newbyteorder("<")


def set_checksums(entries: Entries) -> None:
    """Set the checksums of entries whose other bytes are final."""
    size, data = entries.itemsize, entries.view(np.uint8).data
    starts = range(0, size * len(entries), size)
    entries["head"]["checksum"] = [xxh3_64_intdigest(data[start + CHECKSUM_BYTES : start + size]) for start in starts]


def is_sound(data: bytes, head: EntryHead) -> bool:
    """Return whether the bytes of an entry are those that were written."""
    return xxh3_64_intdigest(memoryview(data)[CHECKSUM_BYTES:]) == head.checksum


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One file of one rank: what it wrote in one incarnation, from its entry number `begin` on."""

    incarnation: int
    begin: int
    rank: int

    @property
    def name(self) -> str:
        return f"rank-{self.rank}.incarnation-{self.incarnation}.from-{self.begin}.samples"

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """The segment that a file of this name holds; None if it is another file."""
        if not (match := _NAME.fullmatch(name)):
            return None
        rank, incarnation, begin = map(int, match.groups())
        return cls(incarnation=incarnation, begin=begin, rank=rank)

    def preamble(self, layout: EntryLayout, study: str = "") -> bytes:
        """The first bytes of the file: what it is, of which study, and how its entries are laid out."""
        described = {
            "format": FORMAT,
            "study": study,
            **asdict(self),
            "num_parameters": layout.num_parameters,
            "fields": msgspec.to_builtins(layout.fields),
        }
        text = json.dumps(described).encode()
        start = MAGIC + _NUMBERS.pack(len(text), xxh3_64_intdigest(text), 0)[:-CHECKSUM_BYTES]
        return start + xxh3_64_intdigest(start).to_bytes(CHECKSUM_BYTES, "little") + text

    def read_preamble(self, path: Path) -> tuple[str, EntryLayout, int] | None:
        """The study, the layout and where the entries begin; None if the preamble is not complete, as after a crash.

        Raises:
            DamagedRecord: the file is not what was written as this segment.
        """
        with open(path, "rb", opener=disk.ordinary) as file:
            preamble = file.read(PREAMBLE_BYTES)
            if not (preamble.startswith(MAGIC) or MAGIC.startswith(preamble)):
                raise DamagedRecord(f"{path} is no record of samples of format {FORMAT}: expected {MAGIC!r} in front")
            if len(preamble) < PREAMBLE_BYTES:
                return None
            num_bytes, checksum, checksum_before = _NUMBERS.unpack(preamble[len(MAGIC) :])
            if checksum_before != xxh3_64_intdigest(preamble[:-CHECKSUM_BYTES]):
                raise _undescribed(path)
            if num_bytes > path.stat().st_size - PREAMBLE_BYTES:
                return None
            if num_bytes > disk.MAX_TEXT_BYTES:
                raise _undescribed(path)
            text = file.read(num_bytes)
        if checksum != xxh3_64_intdigest(text):
            raise _undescribed(path)
        try:
            described = json.loads(text)
            written = typed(Segment, {name: described[name] for name in asdict(self)})
            study = str(described["study"])
            fields = typed(tuple[FieldSpec, ...], described["fields"])
            layout = EntryLayout(fields, described["num_parameters"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError, MemoryError) as error:
            raise _undescribed(path) from error
        if written != self:
            raise DamagedRecord(f"{path} was written as {written.name}. Give it its name again")
        return study, layout, PREAMBLE_BYTES + num_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFacts:
    """record.json: a recorded study, and whether another study can be trained from it.

    `ranks` is how many ranks have files, `latest_ranks` how many the last start of the study had, 0 for as many; the
    dtype of a field is "" where it was kept as sent. `first` and `every` number the time steps, `num_held_out`
    simulations were held out for validation.
    """

    study: str
    ranks: int
    fields: tuple[FieldSpec, ...]
    parameters: tuple[str, ...]
    routing: str
    first: int
    every: int
    num_held_out: int
    nonfinite: str
    seed: int
    latest_ranks: int = 0

    @property
    def identity(self) -> str:
        """A digest that tells this study from others, of values that no restart changes."""
        names = [field.name for field in self.fields]
        return xxh3_64_hexdigest(json.dumps([self.study, self.seed, names, self.parameters]).encode())

    @classmethod
    def of(cls, config: StudyConfig, parameters: Sequence[str], num_ranks: int) -> Self:
        """The facts of a study whose parameters have these names."""
        steps = build.time_steps(config)
        return cls(
            study=config.study.name,
            ranks=num_ranks,
            fields=build.field_specs(config),
            parameters=tuple(parameters),
            routing=config.buffer.routing,
            first=steps.first,
            every=steps.every,
            num_held_out=config.validation.simulations,
            nonfinite=config.training.nonfinite,
            seed=config.study.seed,
            latest_ranks=num_ranks,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The facts of the record in a folder.

        Raises:
            ConfigError: there is none that this version can read.
        """
        path = folder / FACTS_FILE
        try:
            data = disk.read_file(path)
            plain = json.loads(data)
        except FileNotFoundError as error:
            raise ConfigError(
                f'{folder} holds no record: {FACTS_FILE} was expected in it. Give the folder "record" of a study that '
                'ran with checkpoint.record = true, or a folder with files of simulations (*.h5), such as "samples" of '
                "a study that ran with offline.write_files = true"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedRecord(f"{path} cannot be read: {error}. Put back a copy of it") from error
        found = plain.get("format") if isinstance(plain, dict) else None
        if found != FORMAT:
            raise ConfigError(
                f"{path}: expected format {FORMAT}, found {quoted(found)}: replay it with the release it is of"
            )
        try:
            plain = {name: value for name, value in parse_checksummed_json(data).items() if name != "format"}
            facts = typed(cls, plain)
            if facts.ranks < 1 or facts.every < 1 or min(facts.num_held_out, facts.latest_ranks) < 0:
                raise ValueError("a number is too small")
            return facts
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRecord(f"{path} is damaged: {error}. Put back a copy of it") from error

    def write(self, folder: Path) -> None:
        """Put them into a folder; a record there that has files of more ranks keeps them."""
        path = folder / FACTS_FILE
        earlier = RecordFacts.read(folder).ranks if path.exists() else 0
        facts = replace(self, ranks=max(self.ranks, earlier))
        disk.remove_leftovers(path)
        disk.replace_file(path, checksummed_json({"format": FORMAT, **msgspec.to_builtins(facts)}))

    def check(self, config: StudyConfig, parameters: Sequence[str], *, where: str) -> None:
        """Refuse a study whose samples would differ from those of the record `where`.

        Raises:
            ConfigError: study.json differs from the record; the message lists every difference.
        """
        wanted = RecordFacts.of(config, parameters, self.ranks)
        problems = [*self._problems_of_fields(wanted), *self._problems_of_samples(wanted)]
        if problems:
            listed = "".join(f"\n  {problem}" for problem in problems)
            raise ConfigError(
                f"study.json does not fit the record in {where}, from which it is to be replayed:{listed}"
            )

    def _problems_of_fields(self, wanted: Self) -> Iterator[str]:
        mine, others = _by_name(self.fields), _by_name(wanted.fields)
        if set(mine) != set(others):
            yield _differs("study.fields", f"the fields {', '.join(mine)}", ", ".join(others))
        for name in mine.keys() & others.keys():
            recorded, asked = mine[name], others[name]
            key = f"study.fields.{name}"
            if recorded.shape != asked.shape:
                yield _differs(f"{key}.shape", list(recorded.shape), list(asked.shape))
            if recorded.per != asked.per:
                yield _differs(f"{key}.per", f'"{recorded.per}"', f'"{asked.per}"')
            if recorded.ragged != asked.ragged:
                sizes = {True: "one that may differ", False: "always the same"}
                yield _differs(f"{key}.shape: a first extent", sizes[recorded.ragged], sizes[asked.ragged])
            if recorded.dtype and asked.dtype and recorded.dtype != asked.dtype:
                yield _differs(f"{key}.dtype", recorded.dtype, asked.dtype)
            if recorded.optional and not asked.optional:
                yield _differs(f"{key}.optional", "true", "false")

    def _problems_of_samples(self, wanted: Self) -> Iterator[str]:
        if self.parameters != wanted.parameters:
            yield _differs("parameters", list(self.parameters), list(wanted.parameters))
        if (self.first, self.every) != (wanted.first, wanted.every):
            recorded, asked = ({"first": each.first, "every": each.every} for each in (self, wanted))
            yield _differs("study.time_steps", recorded, asked)
        if self.nonfinite == "keep" != wanted.nonfinite:
            yield _differs("training.nonfinite", '"keep"', f'"{wanted.nonfinite}"')


def _undescribed(path: Path) -> DamagedRecord:
    return DamagedRecord(f"{path}: the description of its samples is damaged. Put back a copy of the file")


def _by_name(fields: Sequence[FieldSpec]) -> Mapping[str, FieldSpec]:
    return {field.name: field for field in fields}


def _differs(key: str, recorded: Any, found: Any) -> str:
    return f"{key}: expected {recorded}, as recorded, but found {found}. Write what was recorded."
