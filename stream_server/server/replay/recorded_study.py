"""record.json: the study that a record is of, which tells whether another study can be trained from it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec
from xxhash import xxh3_64_hexdigest

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, DamagedRecord
from stream_server.messages.client import FieldSpec
from stream_server.messages.operator import Change
from stream_server.server.replay.record_format import FORMAT
from stream_server.server.run import build
from stream_server.storage import disk
from stream_server.storage.checksums import checksummed_json, parse_checksummed_json
from stream_server.storage.typed import from_json, quoted

STUDY_FILE = "record.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStudy:
    """The study that was recorded.

    `ranks` is how many ranks have files, `latest_ranks` how many the last start of the study had, 0 for as many; the
    dtype of a field is "" where it was kept as sent. `first` and `every` number the time steps. `changes` are what
    restarts have changed.
    """

    study: str
    ranks: int
    fields: tuple[FieldSpec, ...]
    parameters: tuple[str, ...]
    first: int
    every: int
    nonfinite: str
    seed: int
    latest_ranks: int = 0
    changes: tuple[Change, ...] = ()

    @property
    def identity(self) -> str:
        """A digest that tells this study from others, of values that no restart changes."""
        names = [field.name for field in self.fields]
        return xxh3_64_hexdigest(json.dumps([self.study, self.seed, names, self.parameters]).encode())

    @classmethod
    def of(cls, config: StudyConfig, parameters: Sequence[str], num_ranks: int, changes: Iterable[Change] = ()) -> Self:
        """A study whose parameters have these names, on so many ranks."""
        steps = build.time_steps(config)
        return cls(
            study=config.study.name,
            ranks=num_ranks,
            fields=build.field_specs(config),
            parameters=tuple(parameters),
            first=steps.first,
            every=steps.every,
            nonfinite=config.training.nonfinite,
            seed=config.study.data_seed,
            latest_ranks=num_ranks,
            changes=tuple(changes),
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The study of the record in a folder.

        Raises:
            ConfigError: there is none that this version can read.
        """
        path = folder / STUDY_FILE
        try:
            data = disk.read_file(path)
            plain = json.loads(data)
        except FileNotFoundError as error:
            raise ConfigError(
                f'{folder} holds no record: {STUDY_FILE} was expected in it. Give the folder "record" of a study that '
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
            study = from_json(cls, plain)
            if study.ranks < 1 or study.every < 1 or study.latest_ranks < 0:
                raise ValueError("a number is too small")
            return study
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRecord(f"{path} is damaged: {error}. Put back a copy of it") from error

    def write(self, folder: Path) -> None:
        """Put it into a folder; a record there that has files of more ranks keeps them."""
        path = folder / STUDY_FILE
        earlier = RecordedStudy.read(folder).ranks if path.exists() else 0
        study = replace(self, ranks=max(self.ranks, earlier))
        disk.remove_leftovers(path)
        plain = msgspec.to_builtins(study)
        if not study.changes:
            # So that the release before, which does not know them, reads the record.
            del plain["changes"]
        disk.replace_file(path, checksummed_json({"format": FORMAT, **plain}))

    def check(self, config: StudyConfig, parameters: Sequence[str], *, where: str) -> None:
        """Refuse a study whose samples would differ from those of the record `where`.

        Raises:
            ConfigError: study.json differs from the record; the message lists every difference.
        """
        wanted = RecordedStudy.of(config, parameters, self.ranks)
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


def _by_name(fields: Sequence[FieldSpec]) -> Mapping[str, FieldSpec]:
    return {field.name: field for field in fields}


def _differs(key: str, recorded: Any, found: Any) -> str:
    return f"{key}: expected {recorded}, as recorded, but found {found}. Write what was recorded."
