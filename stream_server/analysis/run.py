"""Where a run is."""

from dataclasses import dataclass
from pathlib import Path

from stream_server.config import load
from stream_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Run:
    """The output folder of a study."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"


def find_run(path: Path) -> Run:
    """The run in an output folder, or that of a study of which `path` is the folder or the study.json.

    Raises:
        ConfigError: there is none, or the study.json cannot be read.
    """
    if not path.exists():
        raise ConfigError(f"there is no {path}: give the output folder of a run, or a study's folder or study.json")
    folder, study = (path, path / "study.json") if path.is_dir() else (path.parent, path)
    if (folder / "metrics").is_dir():
        return Run(folder)
    if not study.exists():
        raise ConfigError(
            f"there is no run in {path}, neither metrics/ nor a study.json: give the output folder of a run, or a "
            "study's folder or study.json"
        )
    output = load(study).study.output_dir
    if not output.exists():
        raise ConfigError(f"{study} was not run yet: there is no {output}")
    return Run(output)
