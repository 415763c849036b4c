"""A whole study whose output folder is a small disk: it ends or waits in words, and goes on once there is room.

    python -m tests.faults.resources.disk_study FOLDER NUM_BYTES SETTINGS

FOLDER is where the small disk is mounted; it has NUM_BYTES at first. Prints a line of JSON: how it went on the full
disk, and the violations.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.chaos.evidence import damage, unfinished_files
from tests.support.killing import checkpoints
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, run_study, start_study
from tests.support.small_disk import SmallDisk

NUM_SAMPLES = 120
ROOM = 64 << 20
LIMIT_S = 120.0
LOOK_S = 0.05
WAITED = "waited"
# Neither the user's class nor the simulations are to blame.
CODES = frozenset({0, 2, 5, 7, 70})
WAITS = "no simulation is started as long as the disk refuses"
FAILED = "a checkpoint failed"
# The disk is full while the parts are written, or another rank's is.
MAX_CAUSES = 2
WORDS = ("No space left on device", "the disk is full", "could not be committed")


def meet_the_end(folder: Path, num_bytes: int, settings: dict[str, Any]) -> tuple[str, list[str]]:
    """Run the study on a disk of this size, and on with room; how it went on the full disk, and what was wrong."""
    disk = SmallDisk(folder)
    options: dict[str, Any] = {"num_ranks": 2, "settings": settings}
    resize(disk, num_bytes)
    with start_study(NUMPY_STUDY, folder, **options) as live:
        wait_for_word(live)
        if live.process.poll() is None:
            found = list(wrong_checkpoints(folder))
            resize(disk, ROOM)
            return WAITED, [*found, *incomplete(live.end(LIMIT_S))]
        run = live.end(LIMIT_S)
    found = [*wrong_end(run), *wrong_checkpoints(folder)]
    resize(disk, ROOM)
    again = run_study(NUMPY_STUDY, folder, limit_s=LIMIT_S, **options)
    return f"exit code {run.exit_code}", [*found, *incomplete(again)]


def resize(disk: SmallDisk, num_bytes: int) -> None:
    """Make the disk larger or smaller; what is in it must fit."""
    # Without the options that it has: they name a user who is another one in the namespace.
    options = ["--options-mode", "ignore", "-o", f"remount,size={num_bytes}"]
    subprocess.run(["mount", *options, str(disk.folder)], check=True)


def wait_for_word(live: LiveRun) -> None:
    """Until the study has ended, or says on its screen that it waits for room; what does neither hangs (G9)."""
    deadline = time.monotonic() + LIMIT_S
    while live.process.poll() is None and WAITS not in live.said:
        if time.monotonic() > deadline:
            live.end(0)
        time.sleep(LOOK_S)


def wrong_end(run: Run) -> Iterator[str]:
    """A study on a full disk says of itself how it ended, and of what (G8, G18)."""
    report = json.loads(text) if (text := _text(run.output_dir / "report.json")) else {}
    if run.exit_code not in CODES:
        yield f"ended with exit code {run.exit_code}: {run.output[-2000:]}"
    if run.exit_code and not any(word in run.output for word in WORDS):
        yield f"ended with exit code {run.exit_code}, and nobody says that the disk is full: {run.output[-2000:]}"
    if report and report["exit_code"] != run.exit_code:
        yield f"ended with exit code {run.exit_code}, but the report says {report['exit_code']}"
    if not run.exit_code and not (report.get("balanced") and report["samples"]["trained"] == NUM_SAMPLES):
        yield f"ended with exit code 0, but the report is {report}"
    if run.output.count(FAILED) > MAX_CAUSES:
        yield f"one cause was more than one warning: {run.output[-3000:]}"
    if report and FAILED in run.output and not any("disk is full" in it for it in report["warnings"]):
        yield f"checkpoints failed, but the report warns of {report['warnings']}"


def wrong_checkpoints(output_dir: Path) -> Iterator[str]:
    """Whatever is committed is whole (G3, G18)."""
    for problem in damage(output_dir / "checkpoints"):
        if problem != "no checkpoint is left":
            yield problem


def incomplete(run: Run) -> Iterator[str]:
    """With room, the study comes to its end, with every sample trained (G2, G5)."""
    if run.exit_code:
        yield f"with room it ended with exit code {run.exit_code}: {run.output[-3000:]}"
        return
    account = run.account
    if (account["accepted"], account["trained"], account["untrained"]) != (NUM_SAMPLES, NUM_SAMPLES, 0):
        yield f"with room the account is {account}"
    if not checkpoints(run.output_dir):
        yield "with room no checkpoint was committed"
    yield from (f"with room: {it}" for it in damage(run.output_dir / "checkpoints"))
    yield from unfinished_files(run.output_dir)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    how, violations = meet_the_end(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
    print(json.dumps({"how": how, "violations": violations}))
