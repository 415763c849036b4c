"""Measure training on a GPU, and write benchmarks/gpu.json and pictures of some steps.

python -m benchmarks.gpu [CASE …] [--precisions …] [--rounds N] [--live] [--folder FOLDER] [--small]

Our loop, from a Reservoir that a real receiver fills, beside our loop over data that lies on the GPU (the reference)
and a bare loop over that: rounds of all of them in turn, batches per second of the wall clock. `--live`: clients send
all the while, as fast as the receiver takes it. `pinned` and `alone` are changes that are tried: gathering
into memory that the GPU reads, or by one thread.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cases import CASES, SMALL, Case
from benchmarks.gpu.loops import DEVICE, Bare, Loops, Resident, fill
from benchmarks.gpu.stages import stages
from benchmarks.gpu.timeline import Timeline
from benchmarks.measure import Result, result, show
from benchmarks.reception import Reception, reception
from benchmarks.sender import Sender, sender
from stream_server.buffers import Reservoir

FOLDER = Path(__file__).parents[1]
RESULTS = "gpu.json"
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
NUM_ROUNDS, NUM_CLIENTS, MAX_QUEUED_BYTES = 9, 4, 16 * 2**20
FOR_EVER = 10**9
TRACED = ("prefetch0", "prefetch1", "alone")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(it.name for it in CASES))
    parser.add_argument("--precisions", nargs="+", default=["32-true"], choices=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--live", action="store_true", help="while clients send")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for gpu.json and pictures")
    parser.add_argument("--small", action="store_true", help="the same code in seconds, on a CPU too: a test of it")
    options = parser.parse_args()
    if DEVICE.type == "cpu" and not options.small:
        parser.error("torch finds no GPU here (nvidia-smi, torch.cuda.is_available()); --small runs on the CPU")
    results: list[Result] = []
    facts: dict[str, Any] = {}
    options.folder.mkdir(parents=True, exist_ok=True)
    for case in SMALL if options.small else CASES:
        if options.cases and case.name not in options.cases:
            continue
        precisions = [it for it in options.precisions if DEVICE.type == "cuda" or it != "16-mixed"]
        with ExitStack() as stack:
            study, clients = stack.enter_context(filled(case))
            facts[f"{case.name}.stages_ms"] = stages(case, study.buffer)
            print(case.name, {name: round(ms, 3) for name, ms in facts[f"{case.name}.stages_ms"].items()}, flush=True)
            for precision in precisions:
                for it, more in compared(case, precision, study, clients, options):
                    results.append(it)
                    facts |= more
                    show([it])
                write(options.folder / RESULTS, results, facts)
    return 0


@contextmanager
def filled(case: Case) -> Iterator[tuple[Reception, list[Sender]]]:
    """A receiver whose Reservoir is full, and clients that are connected and wait."""
    policy = Reservoir(capacity=case.capacity, watermark=1, seed=1)
    credit = max(4, min(case.capacity, MAX_QUEUED_BYTES // case.sample_bytes) // NUM_CLIENTS)
    with ExitStack() as stack:
        study = stack.enter_context(
            reception(
                policy,
                sample_bytes=case.sample_bytes,
                credit=credit,
                num_simulations=NUM_CLIENTS,
                # Each of the streams that are compared has a batch or more.
                held=16 * case.batch_size,
            )
        )
        files = [study.write_connection(simulation) for simulation in range(NUM_CLIENTS)]
        clients = [stack.enter_context(sender("client", file, case.sample_bytes)) for file in files]
        # The receiver allocates the buffer with the first sample of each.
        for send in clients:
            send(1)
            send.cpu_s()
        study.wait_until(lambda: study.buffer.population == NUM_CLIENTS)
        fill(study.buffer)
        yield study, clients


def compared(
    case: Case, precision: str, study: Reception, clients: list[Sender], options: Any
) -> Iterator[tuple[Result, dict[str, Any]]]:
    """The loops of a case in one precision, against ours over resident data."""
    name = f"gpu.{case.name}.{precision}" + (".live" if options.live else "")
    with ExitStack() as stack:
        resident = Resident(case)
        loops = Loops(stack, case, precision, study.buffer)
        bare = Bare(case, resident, precision)
        reference = loops.resident(resident)
        ways: dict[str, Callable[[], float]] = {
            "bare": bare.rate,
            **{f"prefetch{num}": loops.streamed(num) for num in (0, 1, 2)},
            "alone": loops.streamed(1, alone=True),
            "pinned": loops.streamed(1, pinned=True),
        }
        if options.live:
            for send in clients:
                send(FOR_EVER)
        for way in (reference, *ways.values()):
            way()
        rates: dict[str, list[tuple[float, float]]] = {it: [] for it in ways}
        policy: Any = study.buffer.policy
        arrived, started_s = policy._num_inserts, time.monotonic()
        for turn in range(options.rounds):
            limit = reference()
            for it in list(ways) if turn % 2 else reversed(ways):
                rates[it].append((ways[it](), limit))
        elapsed_s = time.monotonic() - started_s
        facts: dict[str, Any] = {f"{name}.arrived_per_s": (policy._num_inserts - arrived) / elapsed_s}
        if DEVICE.type == "cuda":
            facts[f"{name}.device_peak_bytes"] = torch.cuda.max_memory_allocated()
        for it, pairs in rates.items():
            traced = traces(f"{name}.{it}", ways[it], options.folder) if it in ("bare", *TRACED) else {}
            samples = [(rate * case.batch_size, limit * case.batch_size) for rate, limit in pairs]
            yield result(f"{name}.{it}", "samples/s", samples), facts | traced
            facts = {}


def traces(name: str, way: Callable[[], float], folder: Path) -> dict[str, Any]:
    """The share of time in which the device computes and copies; a picture of the last steps."""
    trace = folder / f"{name}.trace.json.gz"
    timeline = Timeline(way, trace)
    busy = {f"{name}.computes": timeline.busy(copies=False), f"{name}.copies": timeline.busy(copies=True)}
    print(f"{name:<40} computes {busy[f'{name}.computes']:.2f} of the time, copies {busy[f'{name}.copies']:.2f}")
    timeline.draw(name).savefig(folder / f"{name}.png", dpi=110)
    trace.unlink()
    return busy


def write(path: Path, results: list[Result], facts: dict[str, Any]) -> None:
    """Add to a file of results, with what they were measured on."""
    older = json.loads(path.read_text()) if path.exists() else {"results": [], "facts": {}}
    lines = {it["name"]: it for it in (*older["results"], *results)}
    content = {
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.processor() or "CPU",
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
        "results": list(lines.values()),
        "facts": older["facts"] | facts,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
