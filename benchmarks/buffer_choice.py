"""Which buffer, how large, and how many simulations at once: one small study with each, and what it has learned.

Simulations take STEP_S for each time step and a training step takes `user.step_s`, both mostly asleep: as if each
simulation had nodes of its own and the training a GPU. So what is measured is the work of the buffer, not that of the
machine, as long as it has time to spare.

    python -m benchmarks.buffer_choice           # ten minutes; writes buffer_choice.json and the picture of the page
    python -m benchmarks.buffer_choice --draw    # draws the picture again
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "benchmarks" / "buffering" / "study.json"
RESULTS = ROOT / "benchmarks" / "buffer_choice.json"
PICTURE = ROOT / "docs" / "guide" / "pictures" / "buffers.png"
POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {"buffer.policy": "fifo"},
    "firo": {"buffer.policy": "firo"},
    "firo, 4 epochs": {"buffer.policy": "firo", "buffer.pseudo_epochs": 4},
    "reservoir": {"buffer.policy": "reservoir"},
}
CAPACITIES = (48, 192, 768)
AT_ONCE = (1, 4)
SEEDS = (0, 1, 2)
STEP_S = 0.004
DEADLINE_S = 120.0
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["stream_server.server.commands.cli", "stream_server.server.training.torch.framework"])


def rows() -> Iterator[dict[str, Any]]:
    """One study for each policy, capacity, number of simulations at once, and seed; the seeds are the outer loop."""
    for seed, at_once, capacity, policy in product(SEEDS, AT_ONCE, CAPACITIES, POLICIES):
        settings = {
            **POLICIES[policy],
            "buffer.capacity": capacity,
            "client.max_attached": at_once,
            "study.seed": seed,
        }
        yield {"policy": policy, "capacity": capacity, "at_once": at_once, "seed": seed} | run(settings, at_once)


def run(settings: dict[str, Any], at_once: int) -> dict[str, float]:
    """Run the study once; its figures are from its report."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        output = Path(folder) / "run"
        server = PROCESSES.Process(target=_serve, args=(settings, output))
        solvers = [PROCESSES.Process(target=_solve, args=(output / "connection.json",)) for _ in range(at_once)]
        for process in (server, *solvers):
            process.start()
        _join([server, *solvers])
        report = json.loads((output / "report.json").read_text())
    return figures(report)


def figures(report: dict[str, Any]) -> dict[str, float]:
    """The compared figures of a report.json."""
    wall_s = report["wall_s"]
    return {
        "error_K": 100 * report["validation"][-1]["loss"] ** 0.5,
        "updates": report["updates"],
        "draws_per_sample": report["draws"] / report["samples"]["trained"],
        "samples_per_s": report["samples"]["trained"] / wall_s,
        "wait_for_data": report["phases_s"].get("wait_for_data", 0.0) / wall_s,
        "wall_s": wall_s,
    }


def _join(processes: list[BaseProcess]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert not any(codes), codes


def _serve(settings: dict[str, Any], output: Path) -> None:
    from stream_server.server.commands.cli import main

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    options = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    sys.exit(main([f"--config={STUDY}", f"--set=study.output_dir={output}", *options]))


def _solve(connection: Path) -> None:
    """A worker that takes one simulation after the other."""
    from stream_server.client_api import simulations

    sys.path.insert(0, str(ROOT / "configs" / "heat"))
    from heat import solve

    while not connection.exists():
        time.sleep(0.02)
    for simulation in simulations(connection):
        fields = solve(size=16, **simulation.parameters)
        for step, temperature in zip(simulation.time_steps or (), fields, strict=False):
            time.sleep(STEP_S)
            simulation.send(step, temperature=temperature)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.buffer_choice", description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the picture of the results that are there")
    if not parser.parse_args().draw:
        found = []
        for row in rows():
            found.append(row)
            RESULTS.write_text("[\n" + ",\n".join(json.dumps(it) for it in found) + "\n]\n")
            print(*(f"{it:.3g}" if isinstance(it, float) else it for it in row.values()), flush=True)
    results = json.loads(RESULTS.read_text())
    print(table(results))
    draw(results).savefig(PICTURE, dpi=150)
    return 0


def summary(results: list[dict[str, Any]], name: str, **which: Any) -> tuple[float, float, float]:
    """The mean, smallest and largest value over the seeds."""
    values = [it[name] for it in results if all(it[key] == value for key, value in which.items())]
    return float(np.mean(values)), min(values), max(values)


def table(results: list[dict[str, Any]]) -> str:
    """The table of the page, in Markdown."""
    lines = [
        "| at once | policy | capacity | error in K | draws of a sample | new samples/s | training waits | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for at_once, policy, capacity in product(AT_ONCE, POLICIES, CAPACITIES):
        which = {"at_once": at_once, "policy": policy, "capacity": capacity}
        error = "{:.1f} ({:.1f} … {:.1f})".format(*summary(results, "error_K", **which))
        draws, rate, waits, seconds = (
            summary(results, name, **which)[0]
            for name in ("draws_per_sample", "samples_per_s", "wait_for_data", "wall_s")
        )
        lines.append(
            f"| {at_once} | {policy} | {capacity} | {error} | {draws:.1f} | {rate:.0f} | {waits:.0%} | {seconds:.1f} |"
        )
    return "\n".join(lines)


def draw(results: list[dict[str, Any]]) -> Figure:
    """Error, throughput and waiting over the capacity; a line for each policy, a row for each number at once."""
    shown = (("error_K", "error in K"), ("samples_per_s", "new samples/s"), ("wait_for_data", "training waits"))
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(len(AT_ONCE), len(shown), sharex=True, sharey="col", squeeze=False)
    for (row, at_once), (column, (name, label)) in product(enumerate(AT_ONCE), enumerate(shown)):
        panel = axes[row, column]
        for policy in POLICIES:
            points = [summary(results, name, at_once=at_once, policy=policy, capacity=it) for it in CAPACITIES]
            means, lows, highs = np.array(points).T
            panel.errorbar(CAPACITIES, means, yerr=(means - lows, highs - means), marker="o", capsize=3, label=policy)
        panel.set_xscale("log", base=2)
        panel.set_xticks(CAPACITIES, [str(it) for it in CAPACITIES])
        panel.grid(alpha=0.3)
        panel.set_ylabel(label)
        if row == len(AT_ONCE) - 1:
            panel.set_xlabel("capacity in samples")
        if column == 1:
            panel.set_title(f"{at_once} at once" if at_once > 1 else "1 simulation at a time")
    for panel in axes.flat:
        panel.set_ylim(bottom=0)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(POLICIES))
    return figure


if __name__ == "__main__":
    sys.exit(main())
