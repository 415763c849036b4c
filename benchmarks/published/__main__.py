"""python -m benchmarks.published STUDY: run a study by several buffers and from files; writes tables and pictures."""

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.published.heat import HeatStudy
from benchmarks.published.ks import KsStudy
from benchmarks.published.lorenz import LorenzStudy
from benchmarks.published.runs import Row, Run

Study = HeatStudy | LorenzStudy | KsStudy
STUDIES: dict[str, type[Study]] = {"heat": HeatStudy, "lorenz": LorenzStudy, "ks": KsStudy}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    studies = parser.add_subparsers(dest="study", required=True)
    for name, kind in STUDIES.items():
        sub = studies.add_parser(name, help=(kind.__doc__ or "").splitlines()[0])
        sub.add_argument("--seeds", type=int, default=3)
        sub.add_argument("--to", type=Path, default=Path(f"runs/study-{name}"), help="folder of tables and pictures")
        for setting in fields(kind):
            option = f"--{setting.name.removeprefix('num_').replace('_', '-')}"
            sub.add_argument(option, dest=setting.name, type=type(setting.default), default=setting.default)
    options = vars(parser.parse_args(argv))
    name, seeds, to = options.pop("study"), options.pop("seeds"), options.pop("to")
    study = STUDIES[name](**options)
    to.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    for run in study.rounds(seeds):
        runs.append(run)
        shown = {key: round(it, 6) if isinstance(it, float) else it for key, it in run.result.items()}
        print(json.dumps(shown), flush=True)
        write(to, name, study, runs)
    print(table([run.result for run in runs], study.unit))
    return 0


def write(folder: Path, name: str, study: Study, runs: Sequence[Run]) -> None:
    """Tables and pictures of what there is so far."""
    courses = [{"kind": run.kind, "seed": run.seed, **it} for run in runs for it in run.course]
    seen = [
        {"kind": run.kind, "seed": run.seed, "least_draws": least, "most_draws": most, "samples": num}
        for run in runs
        for least, most, num in run.seen
    ]
    for file_name, rows in (("results", [run.result for run in runs]), ("courses", courses), ("seen", seen)):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with (folder / f"{file_name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    for of, figure in (("", draw(courses, study, seen)), ("-time", draw_over_time(courses, study))):
        for ending in ("png", "svg"):
            figure.savefig(folder / f"{name}{of}.{ending}", dpi=150)


def table(results: list[Row], unit: str) -> str:
    """Means over the seeds, of the error also the smallest and largest value, in Markdown."""
    lines = [
        f"| | MSE ({unit}) at the end | best | draws of a sample | batches | s | samples/s | samples in the buffer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(row["kind"] for row in results):
        rows = [row for row in results if row["kind"] == kind]
        values = {key: [row[key] for row in rows if row[key] is not None] for key in rows[0]}
        mean = {key: float(np.mean(it)) for key, it in values.items() if it and key not in ("kind", "seed")}
        population = f"{mean['population']:.0f}" if "population" in mean else ""
        lines.append(
            f"| {kind} | {mean['mse']:.4g} ({min(values['mse']):.4g} … {max(values['mse']):.4g}) | "
            f"{mean['best_mse']:.4g} | {mean['draws_per_sample']:.1f} | {mean['batches']:.0f} | {mean['wall_s']:.0f} | "
            f"{mean['samples_per_s']:.0f} | {population} |"
        )
    return "\n".join(lines)


def draw(courses: list[Row], study: Study, seen: list[Row]) -> Figure:
    """The error over batches and over time, the throughput, the population and the draws; a line for each run."""
    figure = Figure(figsize=(11, 11), layout="constrained")
    panels = figure.subplots(3, 2)
    error = f"MSE, held out ({study.unit})"
    plot(panels[0, 0], courses, ("batch", "batches"), ("mse", error))
    plot(panels[0, 1], courses, ("wall_s", study.clock), ("mse", error))
    plot(panels[1, 0], smoothed(courses), ("wall_s", "s"), ("samples_per_s", "samples/s that are trained"))
    plot(panels[1, 1], courses, ("wall_s", "s"), ("population", "samples in the buffer"))
    plot_seen(panels[2, 0], seen, list(dict.fromkeys(row["kind"] for row in courses)))
    panels[2, 1].axis("off")
    panels[2, 1].legend(*panels[0, 0].get_legend_handles_labels(), loc="center", frameon=False)
    return figure


def draw_over_time(courses: list[Row], study: Study) -> Figure:
    """The error over time alone."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    panel = figure.subplots()
    plot(panel, courses, ("wall_s", study.clock), ("mse", f"MSE, held out ({study.unit})"))
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right upper")
    return figure


def plot(panel: Any, courses: list[Row], x: tuple[str, str], y: tuple[str, str]) -> None:
    """A line for each run, where both columns are known; x and y are columns and labels."""
    kinds = list(dict.fromkeys(row["kind"] for row in courses))
    for (kind, seed), run in groupby(courses, key=lambda row: (row["kind"], row["seed"])):
        points = [(row[x[0]], row[y[0]]) for row in run if y[0] in row]
        if points:
            label = kind if seed == 0 else None
            panel.plot(*zip(*points, strict=True), color=f"C{kinds.index(kind)}", lw=1, label=label)
    panel.set(xlabel=x[1], ylabel=y[1])
    panel.grid(alpha=0.3)
    if y[0] == "mse":
        panel.set_yscale("log")


def smoothed(courses: list[Row]) -> list[Row]:
    """The throughput of each run, as means over a hundredth of the longest one."""
    width = max(row["wall_s"] for row in courses) / 100
    known = (row for row in courses if "samples_per_s" in row)
    return [
        {
            "kind": kind,
            "seed": seed,
            "wall_s": (number + 0.5) * width,
            "samples_per_s": float(np.mean([row["samples_per_s"] for row in rows])),
        }
        for (kind, seed, number), rows in groupby(
            known, key=lambda row: (row["kind"], row["seed"], row["wall_s"] // width)
        )
    ]


def plot_seen(panel: Any, seen: list[Row], kinds: Sequence[str]) -> None:
    """How many samples of a full buffer were drawn so often, in the first run of each kind that has a buffer."""
    for kind, intervals in groupby((row for row in seen if row["seed"] == 0), key=itemgetter("kind")):
        rows = list(intervals)
        heights = [row["samples"] / (row["most_draws"] - row["least_draws"] + 1) for row in rows]
        panel.plot(
            [(row["least_draws"] + row["most_draws"]) / 2 for row in rows], heights, ".-", color=f"C{kinds.index(kind)}"
        )
    panel.set(xlabel="draws of a sample in the buffer", ylabel="samples with so many draws", yscale="log")
    panel.grid(alpha=0.3)


if __name__ == "__main__":
    raise SystemExit(main())
