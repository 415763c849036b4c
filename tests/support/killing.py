"""Kills studies at failpoints, and starts them again by the same command."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_server.machine.study_lock import LOCKS
from tests.support.failpoints import failpoints
from tests.support.runs import Run, run_study


def killed_at(
    point: str, study: Path, output_dir: Path, *, environment: Mapping[str, str] | None = None, **options: Any
) -> Run:
    """Run a study until a process of it is killed at a failpoint, such as `checkpoint.renamed=kill@2`."""
    met = output_dir.with_suffix(f".{point}")
    run = run_study(study, output_dir, environment={**(environment or {}), **failpoints(met, point)}, **options)
    assert list(met.iterdir()), f"no process came to {point}:\n{run.output}"
    assert run.exit_code not in (0, 75), run.output
    return run


def run_through(points: Sequence[str], study: Path, output_dir: Path, **options: Any) -> Run:
    """Kill a study at one failpoint after the other, and let it end then."""
    for point in points:
        killed_at(point, study, output_dir, **options)
    return run_study(study, output_dir, **options)


def copy_of(run: Run, folder: Path) -> Path:
    """Copy the output folder of a run, to continue it elsewhere."""
    return shutil.copytree(run.output_dir, folder / "run")


def checkpoints(output_dir: Path) -> list[str]:
    """The names of the committed checkpoints, oldest first."""
    return sorted(folder.name for folder in (output_dir / "checkpoints").iterdir() if folder.name.isdecimal())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for those that say who uses it."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in LOCKS]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def model_of(output_dir: Path) -> dict[str, bytes]:
    """The model and the user's state in the newest checkpoint."""
    return contents(output_dir / "checkpoints" / checkpoints(output_dir)[-1] / "model")


def flip_a_byte(file: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
