"""python -m benchmarks.peers: every way in turn, several rounds; writes benchmarks/peers.json."""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.round import ADAPTERS, OURS
from benchmarks.peers.work import Work

RESULTS = Path(__file__).parents[1] / "peers.json"
NAMES = (OURS, *sorted(it.stem for it in ADAPTERS.glob("*.py") if it.stem not in ("__init__", "receiving")))
FIGURES = ("samples_per_s", "batches_per_s", "memory_MB", "cpu_s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--draws", type=int, nargs="+", default=[1, 4], help="how often each sample is drawn")
    parser.add_argument("--samples", type=int, default=2000, help="of each of the four simulations")
    parser.add_argument("--values", type=int, default=10_000, help="float32 of a sample")
    options = parser.parse_args()
    work = Work(num_samples=options.samples, num_values=options.values)
    results = []
    for draws in options.draws:
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in options.names}
        for _ in range(options.rounds):
            for name in options.names:
                rounds[name].append(one_round(name, replace(work, draws=draws)))
                print(json.dumps({"draws": draws, **rounds[name][-1]}), flush=True)
        results += [summary(name, draws, rounds[name], rounds.get(OURS)) for name in options.names]
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(it) for it in results) + "\n]\n")
    print(table(results))
    return 0


def one_round(name: str, work: Work) -> dict[str, Any]:
    """One way, once."""
    argv = [sys.executable, "-m", "benchmarks.peers.round", "run", name]
    environment = os.environ | work.to_environment()
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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


if __name__ == "__main__":
    raise SystemExit(main())
