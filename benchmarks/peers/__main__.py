"""python -m benchmarks.peers: every way in turn, several rounds; writes benchmarks/peers.json and draws its picture."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from benchmarks.peers.round import ADAPTERS, OURS
from benchmarks.peers.work import Work

RESULTS = Path(__file__).parents[1] / "peers.json"
CGROUPS = Path("/sys/fs/cgroup")
PICTURE = Path(__file__).parents[2] / "docs" / "guide" / "pictures" / "peers.png"
LABELS = {
    "hdf5": "files, HDF5",
    "npy": "files, .npy",
    "queue": "queue of pickles",
    "redis": "Redis",
    "shm": "shared memory",
    "sst": "ADIOS2 SST",
    "staged": "files as they come",
}
LABELS |= {"stream-server": "Stream Server", "torchrl": "TorchRL"}
NAMES = (OURS, *sorted(it.stem for it in ADAPTERS.glob("*.py") if it.stem not in ("__init__", "receiving")))
FIGURES = ("samples_per_s", "batches_per_s", "memory_MB", "cpu_s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--draws", type=int, nargs="+", default=[1, 4], help="how often each sample is drawn")
    parser.add_argument("--simulations", type=int, default=4)
    parser.add_argument("--samples", type=int, default=2000, help="of each simulation")
    parser.add_argument("--values", type=int, default=10_000, help="float32 of a sample")
    parser.add_argument("--memory-mb", type=int, help="of each way with its simulations, page cache included")
    parser.add_argument("--to", type=Path, default=RESULTS, help="the file of the results")
    options = parser.parse_args()
    work = Work(num_producers=options.simulations, num_samples=options.samples, num_values=options.values)
    results = []
    for draws in options.draws:
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in options.names}
        for _ in range(options.rounds):
            for name in options.names:
                rounds[name].append(one_round(name, replace(work, draws=draws), options.memory_mb))
                print(json.dumps({"draws": draws, **rounds[name][-1]}), flush=True)
        results += [summary(name, draws, rounds[name], rounds.get(OURS)) for name in options.names]
    options.to.write_text("[\n" + ",\n".join(json.dumps(it) for it in results) + "\n]\n")
    if options.to == RESULTS:
        draw(results).savefig(PICTURE, dpi=150)
    print(table(results))
    return 0


def one_round(name: str, work: Work, memory_mb: int | None = None) -> dict[str, Any]:
    """One way, once."""
    argv = [sys.executable, "-m", "benchmarks.peers.round", "run", name]
    environment = os.environ | work.to_environment()
    with ExitStack() as stack:
        join = None if memory_mb is None else stack.enter_context(memory_of(memory_mb * 2**20))
        done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=join)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def memory_of(num_bytes: int) -> Iterator[Callable[[], object]]:
    """A cgroup of so much memory, page cache included, and what a process calls to join it. Needs root."""
    is_v2 = (CGROUPS / "cgroup.controllers").exists()
    group = (CGROUPS if is_v2 else CGROUPS / "memory") / f"peers-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(num_bytes))
        processes = group / "cgroup.procs"
        yield lambda: processes.write_text(str(os.getpid()))
    finally:
        group.rmdir()


def summary(name: str, draws: int, rounds: list[dict[str, Any]], ours: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Medians over the rounds, and how many times as fast we are in the same round."""
    middle = {key: round(median(it[key] for it in rounds), 1) for key in FIGURES}
    ratio = None
    if ours is not None:
        pairs = zip(ours, rounds, strict=True)
        ratio = round(median(a["samples_per_s"] / b["samples_per_s"] for a, b in pairs), 2)
    torn, lines, seen = sum(it["torn"] for it in rounds), rounds[0]["lines"], min(it["seen"] for it in rounds)
    found = {"torn": torn, "seen": round(seen, 3), "lines": lines, "ours_over_it": ratio}
    return {"name": name, "draws": draws, **middle, **found}


def table(results: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    names = list(results[0])
    rows = [names, ["---"] * len(names), *([str(it[name]) for name in names] for it in results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(results: list[dict[str, Any]]) -> Figure:
    """How fast each way is, and which part of the samples it leaves out; a panel for each number of draws."""
    every = sorted({it["draws"] for it in results})
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for panel, draws in zip(figure.subplots(1, len(every), sharey=True, squeeze=False)[0], every, strict=True):
        shown = sorted((it for it in results if it["draws"] == draws), key=lambda it: it["samples_per_s"])
        for number, it in enumerate(shown):
            color = "tab:red" if it["name"] == OURS else "tab:gray"
            panel.plot(it["samples_per_s"], 100 * it["seen"], "o", color=color)
            label = LABELS.get(it["name"], it["name"])
            place = {"ha": "left", "va": "bottom"} if number % 2 else {"ha": "right", "va": "top"}
            place |= {"xytext": (0, 5 if number % 2 else -5), "textcoords": "offset points", "rotation": 30}
            panel.annotate(label, (it["samples_per_s"], 100 * it["seen"]), fontsize=8, color=color, **place)
        panel.set(xscale="log", xlabel="samples/s", title=f"{draws} {'draw' if draws == 1 else 'draws'} of each sample")
        panel.margins(0.25)
        panel.grid(alpha=0.3)
    figure.axes[0].set(ylabel="% of the samples that were trained", ylim=(25, 125), yticks=range(40, 101, 20))
    return figure


if __name__ == "__main__":
    raise SystemExit(main())
