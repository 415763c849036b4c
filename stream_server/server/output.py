"""The output folder of a study: what is there before a run, and where the run puts what."""

import json
from dataclasses import dataclass
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """The files of a run, by name."""

    path: Path

    @property
    def study(self) -> Path:
        return self.path / "study.json"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def exit(self) -> Path:
        """Why the first rank that failed did so."""
        return self.path / "exit.json"

    @property
    def connection(self) -> Path:
        return self.path / "connection.json"

    @property
    def parameters(self) -> Path:
        return self.path / "parameters.csv"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def simulations(self) -> Path:
        """A folder for each simulation, and in it one for each attempt."""
        return self.path / "simulations"

    def is_finished(self) -> bool:
        """The study in this folder came to its end; there is nothing left to do."""
        try:
            report = json.loads(self.report.read_text())
            return (report["exit_code"], report["exit_reason"]) == (0, "finished")
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def prepare(self, config: StudyConfig, *, fresh: bool) -> None:
        """Make the folder and put the resolved study into it.

        Raises:
            ConfigError: it holds an earlier run, which this version cannot continue.
        """
        if self.path.exists() and any(self.path.iterdir()):
            if not fresh:
                raise ConfigError(
                    f"{self.path} holds a run that did not finish, and this version cannot continue one: "
                    f"--fresh renames it and starts over"
                )
            self.path.rename(self._free_name())
        self.path.mkdir(parents=True, exist_ok=True)
        self.study.write_text(json.dumps(config.resolved(), indent=2) + "\n")

    def _free_name(self) -> Path:
        number = 1
        while (candidate := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        return candidate
