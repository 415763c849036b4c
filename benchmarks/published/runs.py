"""One run of a published study, with Stream Server or from files: how good it became, and how."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_server.analysis.figures import draws_of_samples, while_full
from stream_server.analysis.reading import RunFolder, read_histograms, read_records

DEADLINE_S = 7200.0

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A way to train, with a seed: what its course was, in rows of `batch`, `wall_s` and what was known then.

    `seen` tells how often the samples in a buffer were drawn while it was full: the smallest and largest number of
    draws of each interval, and how many samples are in it.
    """

    kind: str
    seed: int
    course: list[Row]
    draws_per_sample: float
    wall_s: float
    num_draws: int
    seen: Sequence[tuple[int, int, int]] = ()

    @property
    def result(self) -> Row:
        """A row of the table."""
        errors = [it["mse"] for it in self.course if "mse" in it]
        populations = [it["population"] for it in self.course if "population" in it]
        return {
            "kind": self.kind,
            "seed": self.seed,
            "mse": errors[-1],
            "best_mse": min(errors),
            "draws_per_sample": self.draws_per_sample,
            "batches": self.course[-1]["batch"],
            "wall_s": self.wall_s,
            "samples_per_s": self.num_draws / self.wall_s,
            "population": sum(populations) / len(populations) if populations else None,
        }


def online(study: Path, kind: str, settings: Mapping[str, Any], seed: int, output: Path) -> Run:
    """Run a study with these settings, and read what it wrote."""
    program = str(Path(sys.executable).with_name("stream-server"))
    settings = {**settings, "study.seed": seed, "study.output_dir": str(output)}
    output_of([program, f"--config={study}", "--fresh"], settings)
    report = json.loads((output / "report.json").read_text())
    assert report["balanced"], report["unbalanced"]
    keys = {"val/loss": "mse", "buffer/population": "population", "speed/samples_per_s": "samples_per_s"}
    course = [
        {"batch": record["batch"], "wall_s": record["wall_s"]}
        | {name: record[key] for key, name in keys.items() if key in record}
        for record in read_records(RunFolder(output))
    ]
    return Run(
        kind=kind,
        seed=seed,
        course=course,
        draws_per_sample=report["draws"] / report["samples"]["trained"],
        wall_s=report["wall_s"],
        num_draws=report["draws"],
        seen=draws_of_samples(while_full(read_histograms(RunFolder(output), "buffer/seen"))),
    )


def from_files(course: Sequence[Row], *, num_samples: int, epochs: int, seed: int) -> Run:
    """The run that a training from files was."""
    return Run(
        kind="offline, 1 epoch" if epochs == 1 else f"offline, {epochs} epochs",
        seed=seed,
        course=list(course),
        draws_per_sample=epochs,
        wall_s=course[-1]["wall_s"],
        num_draws=epochs * num_samples,
    )


def output_of(program: Sequence[str], settings: Mapping[str, Any]) -> str:
    """The output of a program for a study with these settings, which must have succeeded."""
    argv = [*program, *(f"--set={it}" for it in overrides(settings))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}\nended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings as `stream_server.config.load` and `--set` take them."""
    return [f"{name}={json.dumps(value)}" for name, value in settings.items()]
