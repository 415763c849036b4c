"""Run the benchmarks, or those named on the command line, and write benchmarks/results.json.

python -m benchmarks [NAME …]
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from benchmarks import (
    accumulate,
    ack,
    checkpoint,
    client,
    clients,
    ddp,
    draw,
    flood,
    follow,
    intake,
    launch,
    log,
    memory,
    prefetch,
    restart,
    round,
    sharding,
    steering,
    step,
    validation,
    windows,
)
from benchmarks.measure import Result, dumps, loads, with_newer

RESULTS = Path(__file__).with_name("results.json")
BENCHMARKS: dict[str, Callable[[], Iterable[Result]]] = {
    "draw": draw.results,
    "intake": intake.results,
    "clients": clients.results,
    "flood": flood.results,
    "round": round.results,
    "step": step.results,
    "prefetch": prefetch.results,
    "memory": memory.results,
    "checkpoint": checkpoint.results,
    "restart": restart.results,
    "launch": launch.results,
    "windows": windows.results,
    "ack": ack.results,
    "log": log.results,
    "validation": validation.results,
    "steering": steering.results,
    "ddp": ddp.results,
    "sharding": sharding.speeds,
    "accumulate": accumulate.results,
    "client": client.results,
    "follow": follow.results,
}
# What the ratio is to reach, by the beginning of the name; the first that fits counts.
AT_LEAST = {
    "draw.batch": 0.7,
    "draw.window": 0.8,
    "intake.ipc.4kB": 1.0,
    "intake.tcp.4kB": 1.0,
    "intake.clients": 0.5,
    "intake.flood": 0.9,
    "intake": 0.7,
    "step.overhead": 0.95,
    "prefetch.hidden": 0.95,
    "checkpoint.write": 0.7,
    "ack.cost": 0.9,
    "validation.overhead": 0.9,
    "ddp.overhead": 0.95,
    "sharding.step": 0.95,
    "launch.rate": 3.0,
    "client.c.": 0.8,
}
AT_MOST = {
    "memory": 1.15,
    "checkpoint.stall": 0.2,
    "checkpoint.memory": 0.15,
    "log.overhead": 0.01,
    "steering.overhead": 0.02,
    "accumulate.allreduce": 1.0,
    "client.overhead": 1.05,
    "follow.npy": 1.3,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; all by default")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]}, only {', '.join(BENCHMARKS)}")
    console = Console(width=max(110, Console().width))
    results: list[Result] = []
    started_s = time.monotonic()
    for name in names:
        for result in BENCHMARKS[name]():
            results.append(result)
            RESULTS.write_text(dumps(with_newer(loads(RESULTS.read_text()), [result])))
            console.print(
                f"[dim]{time.monotonic() - started_s:5.0f} s[/]  {result['name']}  ratio {result['ratio']:.2f}"
            )
    console.print(table(results))
    console.print(f"Written to {RESULTS}")
    return 0


def table(results: Iterable[Result]) -> Table:
    """The results with what they are to reach."""
    titles = ("value", "reference", "unit", "ratio", "quartiles", "target")
    shown = Table("benchmark", *(Column(title, justify="right") for title in titles))
    for it in results:
        low, high = it["quartiles"]
        shown.add_row(
            it["name"],
            f"{it['value']:,.1f}",
            f"{it['reference']:,.1f}",
            it["unit"],
            f"{it['ratio']:.3f}",
            f"{low:.3f} … {high:.3f}",
            _target(it),
        )
    return shown


def _target(result: Result) -> str:
    for targets, sign, holds in ((AT_LEAST, "≥", float.__ge__), (AT_MOST, "≤", float.__le__)):
        for beginning, target in targets.items():
            if result["name"].startswith(beginning):
                colour = "green" if holds(result["ratio"], target) else "red"
                return f"[{colour}]{sign} {target:g}[/]"
    return ""


if __name__ == "__main__":
    sys.exit(main())
