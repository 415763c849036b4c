"""python -m benchmarks.published: run the heat study, and write its tables and pictures."""

import argparse
import csv
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.published.heat import HeatStudy, batches_per_s, rounds

COLORS = ("tab:red", "tab:orange", "tab:blue", "tab:gray", "black")

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=20, help="how often the Reservoir is to draw a sample")
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=100, help="along one side of the plate")
    parser.add_argument("--capacity", type=int, default=2500)
    parser.add_argument("--to", type=Path, default=Path("runs/study-heat"), help="folder of tables and pictures")
    options = parser.parse_args()
    study = HeatStudy(num_simulations=options.simulations, num_nodes=options.nodes, capacity=options.capacity)
    speed = batches_per_s(study)
    study = study.paced(options.draws, speed)
    options.to.mkdir(parents=True, exist_ok=True)
    print(
        f"the training alone takes {speed:.1f} batches/s, so a time step takes {study.step_s:.4f} s; "
        f"a run about {study.simulations_s / 60:.1f} minutes, {5 * options.seeds} runs"
    )
    results, courses = [], []
    for result, course in rounds(study, seeds=options.seeds, draws=options.draws):
        results.append(result)
        courses += [{"kind": result["kind"], "seed": result["seed"], **it} for it in course]
        print(
            json.dumps({key: round(it, 3) if isinstance(it, float) else it for key, it in result.items()}), flush=True
        )
        write(options.to, results, courses)
    print(table(results))
    return 0


def write(folder: Path, results: list[Row], courses: list[Row]) -> None:
    """Tables and pictures of what there is so far."""
    for name, rows in (("results", results), ("courses", courses)):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    figure = draw(courses)
    for ending in ("png", "svg"):
        figure.savefig(folder / f"heat.{ending}", dpi=150)


def table(results: list[Row]) -> str:
    """Means over the seeds with the smallest and largest value, in Markdown."""
    lines = [
        "| | MSE in K² at the end | best | draws of a sample | batches | s | samples/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(row["kind"] for row in results):
        rows = [row for row in results if row["kind"] == kind]
        mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key not in ("kind", "seed")}
        spread = f"{min(row['mse'] for row in rows):.1f} … {max(row['mse'] for row in rows):.1f}"
        lines.append(
            f"| {kind} | {mean['mse']:.1f} ({spread}) | {mean['best_mse']:.1f} | {mean['draws_per_sample']:.1f} | "
            f"{mean['batches']:.0f} | {mean['wall_s']:.0f} | {mean['samples_per_s']:.0f} |"
        )
    return "\n".join(lines)


def draw(courses: list[Row]) -> Figure:
    """The error over batches and over time, the throughput and the population; a line for each run."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2)
    shown = (
        (panels[0, 0], "batch", "mse", "batches", "MSE of held-out samples in K²"),
        (panels[0, 1], "wall_s", "mse", "s, simulations included", "MSE of held-out samples in K²"),
        (panels[1, 0], "wall_s", "samples_per_s", "s", "samples/s that are trained"),
        (panels[1, 1], "wall_s", "population", "s", "samples in the buffer"),
    )
    colors = dict(zip(dict.fromkeys(row["kind"] for row in courses), COLORS, strict=False))
    for (kind, seed), run in groupby(courses, key=lambda row: (row["kind"], row["seed"])):
        rows = list(run)
        for panel, x, y, _, _ in shown:
            points = [(row[x], row[y]) for row in rows if y in row]
            if points:
                panel.plot(*zip(*points, strict=True), color=colors[kind], lw=1, label=kind if seed == 0 else None)
    for panel, _, y, x_label, y_label in shown:
        panel.set_xlabel(x_label)
        panel.set_ylabel(y_label)
        panel.grid(alpha=0.3)
        if y == "mse":
            panel.set_yscale("log")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(colors))
    return figure


if __name__ == "__main__":
    raise SystemExit(main())
