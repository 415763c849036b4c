"""A few steps as the device saw them: the share of time in which it computed, and a picture."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.loops import DEVICE

COMPUTES, COPIES = "kernel", "gpu_memcpy"
# What a CPU does stands for both where there is no GPU.
SHOWN = (COMPUTES, COPIES, "gpu_memset") if DEVICE.type == "cuda" else ("cpu_op",)
SHOWN_US = 40_000.0
COLOURS = {"HtoD": "tab:orange", "DtoH": "tab:red", "DtoD": "tab:purple", "Memset": "tab:gray"}
Span = tuple[float, float, str]


class Timeline:
    """What ran on each stream of the device, in µs."""

    def __init__(self, run: Callable[[], object], trace: Path) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE.type == "cuda" else [])]
        with profile(activities=activities) as profiled:
            run()
        profiled.export_chrome_trace(str(trace))
        with (gzip.open if trace.suffix == ".gz" else open)(trace, "rt") as file:
            events = json.load(file)["traceEvents"]
        self.streams: defaultdict[Any, list[Span]] = defaultdict(list)
        for it in events:
            if it.get("ph") == "X" and it.get("cat") in SHOWN:
                stream = it["tid"] if DEVICE.type == "cpu" else it["args"]["stream"]
                self.streams[stream].append((it["ts"], it["dur"], it["name"]))

    def busy(self, *, copies: bool) -> float:
        """The share of the time from the first to the last event in which the device computed, or copied a batch."""
        spans = [
            (start, start + length)
            for stream in self.streams.values()
            for start, length, name in stream
            if ("HtoD" in name if copies else "Memcpy" not in name)
        ]
        everything = [(start, start + length) for stream in self.streams.values() for start, length, _ in stream]
        whole = max(end for _, end in everything) - min(start for start, _ in everything)
        return _covered(spans) / whole

    def draw(self, title: str) -> Figure:
        """A row for each stream, of the last part of the run."""
        last = max(start + length for stream in self.streams.values() for start, length, _ in stream)
        first = max(last - SHOWN_US, min(start for stream in self.streams.values() for start, _, _ in stream))
        figure = Figure(figsize=(12, 1.2 + 0.7 * len(self.streams)), layout="constrained")
        axes = figure.subplots()
        names = sorted(self.streams, key=str)
        for place, stream in enumerate(names):
            shown = [it for it in self.streams[stream] if it[0] >= first]
            axes.broken_barh(
                [((start - first) / 1e3, length / 1e3) for start, length, _ in shown],
                (place - 0.4, 0.8),
                facecolors=[_colour(name) for _, _, name in shown],
            )
        axes.set_yticks(range(len(names)), [f"stream {it}" for it in names])
        axes.set_xlabel("ms")
        axes.set_title(f"{title} (blue: kernels, orange: copies to the device, red: from it)", fontsize="medium")
        return figure


def _colour(name: str) -> str:
    return next((colour for part, colour in COLOURS.items() if part in name), "tab:blue")


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of some spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
