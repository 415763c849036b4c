"""Reads what a study has left behind."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from stream_server.errors import DamagedCheckpoint
from stream_server.server.checkpoint.folder import MANIFEST_FILE, Manifest
from stream_server.storage.checksums import record_of
from tests.faults.chaos.audit import committed_checkpoints, read_audit, read_incarnations
from tests.faults.chaos.invariants import Evidence
from tests.faults.chaos.plan import Plan


def gather(plan: Plan, output_dir: Path, exit_code: int, leftovers: Sequence[str]) -> Evidence:
    """All that the invariants are about."""
    report = output_dir / "report.json"
    return Evidence(
        plan=plan,
        exit_code=exit_code,
        report=json.loads(report.read_text()) if report.exists() else {},
        incarnations=read_incarnations(output_dir),
        audit=read_audit(output_dir),
        suggested=read_suggested(output_dir) if plan.is_steered else {},
        given=read_given(output_dir) if plan.is_steered else (),
        damage=tuple(damage(output_dir / "checkpoints")),
        leftovers=(*leftovers, *unfinished_files(output_dir)),
    )


def read_suggested(output_dir: Path) -> dict[int, float]:
    """The parameter of each simulation, as the table of the run has it at the end."""
    with (output_dir / "parameters.csv").open() as file:
        return {int(row["simulation"]): float(row["phase"]) for row in csv.DictReader(file)}


def read_given(output_dir: Path) -> list[tuple[int, float]]:
    """The simulation and the parameter of each attempt that has begun."""
    lines = (output_dir / "given.txt").read_text().splitlines()
    return [(int(simulation), float(phase)) for simulation, phase in map(str.split, lines)]


def damage(checkpoints: Path) -> Iterator[str]:
    """The problems of the checkpoints that are there."""
    folders = committed_checkpoints(checkpoints)
    if not folders:
        yield "no checkpoint is left"
    for folder in folders:
        yield from (f"checkpoint {folder.name}: {problem}" for problem in problems_of(folder))


def problems_of(checkpoint: Path) -> Iterator[str]:
    """The differences of a checkpoint from its manifest."""
    try:
        manifest = Manifest.from_bytes((checkpoint / MANIFEST_FILE).read_bytes())
    except (OSError, DamagedCheckpoint) as error:
        yield str(error)
        return
    files = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()}
    for path in sorted(files ^ {*manifest.files, MANIFEST_FILE}):
        yield f"{path} is missing" if path in manifest.files else f"{path} is not in the manifest"
    for path in sorted(files & set(manifest.files)):
        if record_of(checkpoint / path) != manifest.files[path]:
            yield f"{path} is not what was saved"


def unfinished_files(output_dir: Path) -> Iterator[str]:
    """Files left unrenamed or unremoved, and checkpoints set aside although nobody has damaged them."""
    checkpoints = output_dir / "checkpoints"
    beside = {*checkpoints.glob("[0-9]*")} - {*committed_checkpoints(checkpoints)}
    for path in sorted({*output_dir.rglob("*.tmp"), *beside}):
        yield f"left in the output folder: {path.relative_to(output_dir)}"
