"""The trained model is put in the place of an older one."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stream_server.server.model.model_export import MODEL_FILE, export_model
from stream_server.server.user.normalization import Normalization
from stream_server.storage.tensor_file import read_tensors
from tests.faults.sweep.calls.programs.output import CONFIG
from tests.faults.sweep.calls.programs.program import Program
from tests.faults.sweep.calls.ran import Ran, Say


def make(folder: Path) -> None:
    folder.mkdir()
    _export(folder, 1)


def run(folder: Path, say: Say) -> None:
    try:
        _export(folder, 2)
        say("written 2")
    except OSError as error:
        say(f"refused {error}")


def judge(folder: Path, ran: Ran) -> Iterator[str]:
    """There is a whole model, the new one if that was reported; and another one can be put in its place."""
    assert ran.fault is not None
    found = [number for number in (1, 2) if _is_whole(folder / "model", number)]
    aside = [number for number in (1, 2) if _is_whole(folder / "model.old", number)]
    if ran.told("written") and found != [2]:
        yield f"reported as written, but found {found}"
    if not found and not (aside and (ran.trace.was_killed or ran.fault.kind.lasts)):
        yield f"there is no whole model; aside: {aside}"
    if ran.must_succeed and not ran.told("written"):
        yield "not written"
    if not aside and list(folder.glob("model/SHA256SUMS")) == []:
        yield "there are no checksums"
    _export(folder, 3)
    if not _is_whole(folder / "model", 3):
        yield "the next model is not there"
    left = sorted(path.name for path in folder.iterdir() if path.name != "model")
    if left:
        yield f"left over: {left}"


def _export(folder: Path, number: int) -> None:
    tensors = {"weights": np.full((3, 2), number, np.float32)}
    export_model(folder / "model", tensors, owner="Server", config=CONFIG, normalization=Normalization.of(CONFIG))


def _is_whole(folder: Path, number: int) -> bool:
    try:
        weights = read_tensors(folder / MODEL_FILE, as_torch=False)["weights"]
    except (OSError, ValueError):
        return False
    return bool((weights == number).all()) and (folder / "README.txt").exists()


PROGRAM = Program(name="export", make=make, run=run, judge=judge)
