"""Reads what a study has left behind."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from stream_server.errors import DamagedCheckpoint
from stream_server.server.checkpoint.folder import MANIFEST_FILE, Manifest
from stream_server.storage.checksums import record_of
from tests.faults.chaos.audit import Key, Trained, committed_checkpoints, read_audit, read_incarnations
from tests.faults.chaos.invariants import Evidence
from tests.faults.chaos.plan import Plan
from tests.faults.chaos.study.network import loss_of, make_network, scaled
from tests.faults.chaos.study.payload import wave
from tests.faults.chaos.timeline import surviving


def gather(plan: Plan, output_dir: Path, exit_code: int, leftovers: Sequence[str]) -> Evidence:
    """All that the invariants are about."""
    report = output_dir / "report.json"
    incarnations, audit = read_incarnations(output_dir), read_audit(output_dir)
    has_shards = plan.learner == "shards"
    return Evidence(
        plan=plan,
        exit_code=exit_code,
        report=json.loads(report.read_text()) if report.exists() else {},
        incarnations=incarnations,
        audit=audit,
        weights=read_weights(output_dir) if has_shards else {},
        expected_weights=trained_plainly(surviving(incarnations, audit.trained)) if has_shards else {},
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


def read_weights(output_dir: Path) -> dict[str, NDArray[np.float64]]:
    """The model that is exported at the end; none when there is none."""
    file = output_dir / "model" / "model.safetensors"
    return load_file(file) if file.exists() else {}


def trained_plainly(trained: Iterable[Trained]) -> dict[str, NDArray[np.float64]]:
    """The weights of one process that trains the same batches of all ranks, one after the other."""
    keys: dict[int, list[Key]] = {}
    for one in trained:
        keys.setdefault(one.batch, []).extend(one.keys)
    model, optimizer = make_network()
    for batch in sorted(keys):
        waves = np.stack([wave(*key) for key in keys[batch]])
        optimizer.zero_grad()
        loss_of(model, scaled(waves, torch.float64)).backward()
        optimizer.step()
    return {name: values.detach().numpy() for name, values in model.state_dict().items()}


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
