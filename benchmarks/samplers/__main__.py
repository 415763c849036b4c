"""python -m benchmarks.samplers: compare samplers of parameters, and write tables and pictures.

Each study runs once for each sampler and seed, with the same number of simulations. Its exported model then forecasts
held-out trajectories that the study has not seen. What is done is kept: the same command goes on where it was left.
"""

import argparse
import csv
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.samplers.runs import Result, Run
from benchmarks.samplers.statistics import MEASURES, estimate, ratio
from stream_server.errors import ConfigError

STUDIES = ("ks", "gray-scott", "advection")
COLORS = ("tab:gray", "tab:red", "tab:blue", "tab:green", "tab:orange")
SETTING_OF_A_RUN = ("parameters.sampler", "study.seed", "study.output_dir")

INTERRUPTED = 75

Groups = dict[str, dict[str, list[Result]]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers", description=__doc__)
    parser.add_argument("--studies", nargs="+", default=STUDIES, choices=STUDIES, metavar="STUDY")
    parser.add_argument("--samplers", nargs="+", default=["uniform", "breed"], metavar="SAMPLER")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each sampler")
    parser.add_argument("--simulations", type=int, help="training simulations of a run; those of study.json by default")
    parser.add_argument("--held-out", type=int, default=500, help="trajectories that are forecast")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of study.json, in all runs")
    parser.add_argument("--to", type=Path, default=Path("runs/study-steering"), help="folder of all results")
    options = parser.parse_args(argv)
    for setting in options.set:
        if setting.partition("=")[0] in SETTING_OF_A_RUN:
            parser.error(f"--set {setting}: this differs between the runs")
    settings = list(options.set)
    if options.simulations is not None:
        settings.append(f"study.simulations={options.simulations}")
    runs = [
        Run(study=study, sampler=sampler, seed=seed, num_held_out=options.held_out, settings=settings)
        for seed in range(options.seeds)
        for study in options.studies
        for sampler in options.samplers
    ]
    try:
        for run in runs:
            _ = run.config
    except ConfigError as error:
        parser.error(str(error))
    # A study that is left saves a checkpoint first, also where a batch system ends this process.
    for number_of_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number_of_signal, signal.default_int_handler)
    results: list[Result] = []
    for number, run in enumerate(runs, start=1):
        print(f"{number}/{len(runs)} {run.study}, {run.sampler}, seed {run.seed}", end=": ", flush=True)
        was_done = run.path_in(options.to).exists()
        try:
            result = run.result(options.to)
        except KeyboardInterrupt:
            print("interrupted; the same command goes on here")
            return INTERRUPTED
        errors = np.array(result["errors"])
        shown = ", ".join(f"{name} {float(of(errors)):.3g}" for name, of in MEASURES.items())
        print(f"{shown}, {result['wall_s']:.0f} s", flush=True)
        results.append(result)
        # Pictures take seconds, of which results that are only read again need none.
        if not was_done or run is runs[-1]:
            write(options.to, results)
    print((options.to / "table.md").read_text(), end="")
    return 0


def write(folder: Path, results: list[Result]) -> None:
    """Tables and pictures of what there is so far."""
    groups = by_sampler(results)
    rows = summary(groups)
    (folder / "table.md").write_text(table(rows))
    (folder / "results.json").write_text(json.dumps({"summary": rows, "runs": results}, indent=1))
    lists = ("overrides", "errors", "errors_by_lead_time", "first_parameter", "warnings")
    with (folder / "results.csv").open("w", newline="") as file:
        columns = [key for key in results[0] if key not in lists]
        writer = csv.DictWriter(file, [*columns, *MEASURES], extrasaction="ignore")
        writer.writeheader()
        for result in results:
            errors = np.array(result["errors"])
            writer.writerow(result | {name: float(of(errors)) for name, of in MEASURES.items()})
    figure = draw(groups)
    for ending in ("png", "svg"):
        figure.savefig(folder / f"steering.{ending}", dpi=150)


def by_sampler(results: list[Result]) -> Groups:
    """The results of each study and sampler, in the order of their seeds."""
    groups: Groups = {}
    for result in results:
        groups.setdefault(result["study"], {}).setdefault(result["sampler"], []).append(result)
    return groups


def summary(groups: Groups) -> list[dict[str, Any]]:
    """A row for each study and sampler; ratios are to the first sampler of the study, over the seeds that both have."""
    rows = []
    for study, samplers in groups.items():
        reference = next(iter(samplers))
        for sampler, results in samplers.items():
            num = min(len(results), len(samplers[reference]))
            row: dict[str, Any] = {"study": study, "sampler": sampler, "seeds": len(results)}
            for measure in MEASURES:
                row[measure] = str(estimate(errors_of(results), measure))
                if sampler != reference:
                    pair = errors_of(results[:num]), errors_of(samplers[reference][:num])
                    row[f"{measure} ratio"] = str(ratio(*pair, measure))
            for key in ("simulations", "batches", "wall_s", "cpu_s"):
                row[key] = float(np.mean([it[key] for it in results]))
            rows.append(row)
    return rows


def errors_of(results: list[Result]) -> NDArray[np.float64]:
    """The errors of whole trajectories: shape (seeds, trajectories)."""
    return np.array([it["errors"] for it in results])


def table(rows: list[dict[str, Any]]) -> str:
    """The summary in Markdown; in parentheses are 95 % confidence intervals."""
    lines = [
        "| study | sampler | seeds | simulations | batches | mean error | 99th percentile | mean, relative | "
        "99th percentile, relative | wall s | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        relative = [row.get(f"{measure} ratio", "1") for measure in MEASURES]
        cells = [row["study"], row["sampler"], row["seeds"], f"{row['simulations']:.0f}", f"{row['batches']:.0f}"]
        cells += [*(row[measure] for measure in MEASURES), *relative, f"{row['wall_s']:.0f}", f"{row['cpu_s']:.0f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def draw(groups: Groups) -> Figure:
    """For each study the errors of all trajectories, their growth with the lead time, and where simulations were."""
    figure = Figure(figsize=(12, 3.4 * len(groups) + 0.6), layout="constrained")
    panels = figure.subplots(len(groups), 3, squeeze=False)
    names = list(dict.fromkeys(sampler for samplers in groups.values() for sampler in samplers))
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    for (study, samplers), (tail, growth, places) in zip(groups.items(), panels, strict=True):
        for sampler, results in samplers.items():
            for number, result in enumerate(results):
                style = {"color": colors[sampler], "lw": 1, "label": sampler if number == 0 else None}
                errors = np.sort(result["errors"])
                tail.plot(errors, 1 - np.arange(len(errors)) / len(errors), **style)
                growth.plot(1 + np.arange(len(result["errors_by_lead_time"])), result["errors_by_lead_time"], **style)
            values = np.concatenate([it["first_parameter"][1] for it in results])
            places.hist(values, bins=20, density=True, histtype="step", color=colors[sampler])
            places.set_xlabel(results[0]["first_parameter"][0])
        tail.set(xscale="log", yscale="log", xlabel="RMSE of a trajectory", ylabel="part of trajectories above")
        tail.set_title(study, loc="left")
        growth.set(yscale="log", xlabel="lead time in steps", ylabel="RMSE")
        places.set_ylabel("density of training simulations")
        for panel in (tail, growth, places):
            panel.grid(alpha=0.3)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(names))
    return figure


if __name__ == "__main__":
    sys.exit(main())
