"""Large steps of one node through a client's memory and through sockets, in turn: CPU time of all processes.

For each pattern and run a line of ratios (sockets / segment) while clients fill their windows, and after that; at the
end their medians, with the µs per MB of both.

    python -m benchmarks.segment [RUNS]
"""

import json
import statistics
import subprocess
import sys
from collections import defaultdict

WINDOW_BYTES = 64 * 2**20
ROUNDS = 4
# Clients, and bytes of a step. Two rounds fill the windows.
PATTERNS = ((16, 400_000), (4, 40_000), (1, 1_000_000))


def main(num_runs: int) -> None:
    for num_clients, step_bytes in PATTERNS:
        figures = defaultdict(list)
        for run in range(num_runs):
            for way in ("segment", "sockets") if run % 2 else ("sockets", "segment"):
                rounds = cpu_us(num_clients, step_bytes, way)
                figures[way, "filling"].append(statistics.mean(rounds[: ROUNDS // 2]))
                figures[way, "after"].append(statistics.mean(rounds[ROUNDS // 2 :]))
        for phase in ("filling", "after"):
            sockets, segment = figures["sockets", phase], figures["segment", phase]
            ratios = sorted(one / other for one, other in zip(sockets, segment, strict=True))
            print(
                f"{num_clients} × {step_bytes / 1000:g} kB, {phase}: sockets {statistics.median(sockets):.0f} µs/MB, "
                f"segment {statistics.median(segment):.0f}, ratio {statistics.median(ratios):.2f} "
                f"({ratios[0]:.2f} … {ratios[-1]:.2f})",
                flush=True,
            )


def cpu_us(num_clients: int, step_bytes: int, way: str) -> list[float]:
    """CPU time of clients and rank for each MB, in each round."""
    num_steps = WINDOW_BYTES // step_bytes // (ROUNDS // 2) + 1
    options = {"--clients": num_clients, "--bytes": step_bytes, "--steps": num_steps, "--rounds": ROUNDS}
    argv = [sys.executable, "-m", "benchmarks.transport", *(str(word) for pair in options.items() for word in pair)]
    ended = subprocess.run(
        [*argv, *(["--sockets"] if way == "sockets" else [])], stdout=subprocess.PIPE, text=True, check=True
    )
    rounds = map(json.loads, ended.stdout.splitlines())
    return [it["clients"] + it["rank"] for it in rounds]


if __name__ == "__main__":
    main(int(*sys.argv[1:]) if sys.argv[1:] else 5)
