"""record.json: what was recorded, and whether a study can be trained from it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from xxhash import xxh3_64_hexdigest

from stream_server.client_api.messages import FieldSpec
from stream_server.config import StudyConfig
from stream_server.disk import read_file, remove_leftovers, replace_file
from stream_server.errors import ConfigError, DamagedRecord
from stream_server.launcher.typed import typed
from stream_server.server import parts
from stream_server.server.record.segments import FORMAT, field_specs
from stream_server.server.sealed import sealed, unsealed

FILE_NAME = "record.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFacts:
    """A recorded study. `ranks` is how many ranks have files; the dtype of a field is "" where it was kept as sent.

    `first` and `every` number the time steps, `num_held_out` simulations were held out for validation.
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

    @property
    def identity(self) -> str:
        """What tells a record from those of other studies: all of it that no restart of a study changes."""
        names = [field.name for field in self.fields]
        return xxh3_64_hexdigest(json.dumps([self.study, self.seed, names, self.parameters]).encode())

    @classmethod
    def of(cls, config: StudyConfig, parameters: Sequence[str], num_ranks: int) -> Self:
        """Those of a study whose parameters have these names."""
        steps = parts.time_steps(config)
        return cls(
            study=config.study.name,
            ranks=num_ranks,
            fields=parts.field_specs(config),
            parameters=tuple(parameters),
            routing=config.buffer.routing,
            first=steps.first,
            every=steps.every,
            num_held_out=config.validation.simulations,
            nonfinite=config.training.nonfinite,
            seed=config.study.seed,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Those of the record in a folder.

        Raises:
            ConfigError: there is none that this version can read.
        """
        path = folder / FILE_NAME
        try:
            data = read_file(path)
            found = _format_of(json.loads(data))
        except FileNotFoundError as error:
            raise ConfigError(
                f'{folder} holds no record: {FILE_NAME} was expected in it. Give the folder "record" of a study that '
                "ran with checkpoint.record = true"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedRecord(f"{path} cannot be read: {error}. Put back a copy of it") from error
        if found != FORMAT:
            raise ConfigError(f"{path}: expected format {FORMAT}, found {found}: replay it with the release it is of")
        try:
            plain = {name: value for name, value in unsealed(data).items() if name != "format"}
            named = {"fields": field_specs(plain["fields"]), "parameters": tuple(plain["parameters"])}
            facts = typed(cls, {**plain, **named})
            if facts.ranks < 1 or facts.every < 1 or facts.num_held_out < 0:
                raise ValueError("a number is too small")
            return facts
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRecord(f"{path} is damaged: {error}. Put back a copy of it") from error

    def write(self, folder: Path) -> None:
        """Put them into a folder; a record there that has files of more ranks keeps them."""
        earlier = RecordFacts.read(folder).ranks if (folder / FILE_NAME).exists() else 0
        facts = replace(self, ranks=max(self.ranks, earlier))
        remove_leftovers(folder / FILE_NAME)
        replace_file(folder / FILE_NAME, sealed({"format": FORMAT, **asdict(facts)}))

    def check(self, config: StudyConfig, parameters: Sequence[str], *, where: str) -> None:
        """Refuse a study whose samples would be other ones than those of the record `where`.

        Raises:
            ConfigError: what of study.json is another than in the record, all of it.
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


def _format_of(plain: Any) -> Any:
    return plain.get("format") if isinstance(plain, dict) else None


def _by_name(fields: Sequence[FieldSpec]) -> Mapping[str, FieldSpec]:
    return {field.name: field for field in fields}


def _differs(key: str, recorded: Any, found: Any) -> str:
    return f"{key}: expected {recorded}, as recorded, but found {found}. Write what was recorded."
