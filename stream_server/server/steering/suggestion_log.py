"""The parameters that were suggested for each simulation, on disk before anybody else hears of them.

Why: docs/decisions/0062-suggestion-log.md
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from stream_server.errors import ConfigError
from stream_server.storage.checksums import checksummed_json, parse_checksummed_json
from stream_server.storage.lines import LineFile

SUGGESTIONS_FILE = "suggestions.jsonl"


class Suggestion(msgspec.Struct, frozen=True, array_like=True):
    """The parameters of one simulation, by whom and when they were proposed, and the score that they had there."""

    simulation: int
    values: tuple[float, ...]
    by: str
    at: str
    score: float | None = None


class SuggestionLog:
    """The suggestions for the simulations 0, 1, 2, …, each made once in the life of a study. A context manager.

    A checkpoint would not do: a simulation that began after the newest one goes on while the server is started again,
    and must find the parameters that it was told. One thread at a time. An older server that still runs writes nothing
    any more once a newer one has opened it.
    """

    def __init__(self, folder: Path, num_parameters: int) -> None:
        self.suggestions: list[Suggestion] = []
        self._num_parameters = num_parameters
        self._lines = LineFile(folder / SUGGESTIONS_FILE)

    def __enter__(self) -> Self:
        """Open it and read what is there.

        Raises:
            ConfigError: it cannot be read, or is damaged.
        """
        path = self._lines.path
        try:
            self._lines.open()
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error}") from error
        try:
            for number, line in enumerate(self._lines.take_over().splitlines(keepends=True), start=1):
                self.suggestions += self._decode(number, line)
        except (OSError, ValueError) as error:
            self._lines.close()
            raise ConfigError(
                f"{path}, which has the parameters of the simulations of this run, is damaged: {error}. "
                "--fresh starts over"
            ) from error
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._lines.close()

    def append(self, suggestions: Sequence[Suggestion]) -> None:
        """Put suggestions on disk, all of them or none.

        Raises:
            OSError: they are not there.
        """
        self._lines.append(checksummed_json({"suggestions": msgspec.to_builtins(suggestions)}, indent=None))
        self.suggestions += suggestions

    def _decode(self, number: int, line: bytes) -> list[Suggestion]:
        try:
            suggestions = msgspec.convert(parse_checksummed_json(line)["suggestions"], list[Suggestion])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"line {number}: {error}") from error
        known = len(self.suggestions)
        if [suggestion.simulation for suggestion in suggestions] != list(range(known, known + len(suggestions))):
            raise ValueError(f"line {number} is not about simulation {known}, which is next")
        if any(len(suggestion.values) != self._num_parameters for suggestion in suggestions):
            raise ValueError(f"line {number} has not {self._num_parameters} parameters")
        return suggestions
