"""Compares two ways of doing the same work, in alternated rounds so that the machine's moods hit both."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypedDict

import numpy as np

NUM_PAIRS = 15
ROUND_S = 0.05


class Result(TypedDict):
    """One line of results.json.

    `value` and `reference` are medians over the rounds, `ratio` is the median of value / reference of each pair of
    rounds, and `quartiles` are the first and third quartile of that ratio.
    """

    name: str
    value: float
    reference: float
    ratio: float
    unit: str
    quartiles: list[float]


def alternated(
    name: str, unit: str, ours: Callable[[], float], reference: Callable[[], float], num_pairs: int = NUM_PAIRS
) -> Result:
    """Run both in turn, `num_pairs` times; each call is one round and gives its figure in `unit`."""
    assert num_pairs >= 9
    ours(), reference()
    return result(name, unit, [_pair(ours, reference, turn) for turn in range(num_pairs)])


def result(name: str, unit: str, pairs: Sequence[tuple[float, float]]) -> Result:
    """The result of pairs of figures, ours and the reference."""
    figures = np.array(pairs)
    low, ratio, high = np.quantile(figures[:, 0] / figures[:, 1], [0.25, 0.5, 0.75])
    value, limit = np.median(figures, axis=0)
    return Result(
        name=name,
        value=float(value),
        reference=float(limit),
        ratio=float(ratio),
        unit=unit,
        quartiles=[float(low), float(high)],
    )


def cpu_rate(step: Callable[[], object], amount: float, round_s: float = ROUND_S) -> Callable[[], float]:
    """A round of `step` for about `round_s`, which gives `amount` × steps per second of this thread's CPU time."""
    num_steps = max(1, round(round_s / _duration(step)))

    def one_round() -> float:
        start = time.thread_time()
        for _ in range(num_steps):
            step()
        return amount * num_steps / (time.thread_time() - start)

    return one_round


def show(results: Iterable[Result]) -> None:
    """Print one line per result."""
    for it in results:
        low, high = it["quartiles"]
        print(
            f"{it['name']:<24} {it['value']:>14,.1f} {it['unit']:<10} reference {it['reference']:>14,.1f}"
            f"   ratio {it['ratio']:.2f}  ({low:.2f} … {high:.2f})",
            flush=True,
        )


def dumps(results: Iterable[Result]) -> str:
    """The text of results.json."""
    return json.dumps(list(results), indent=2) + "\n"


def loads(text: str) -> list[Result]:
    """Load the results that `dumps` wrote."""
    results: list[Result] = json.loads(text)
    return results


def with_newer(older: Iterable[Result], newer: Iterable[Result]) -> list[Result]:
    """The newest of each benchmark, in the order in which they came first."""
    return list(({it["name"]: it for it in older} | {it["name"]: it for it in newer}).values())


def _pair(ours: Callable[[], float], reference: Callable[[], float], turn: int) -> tuple[float, float]:
    """One round of each; who comes first changes from turn to turn."""
    if turn % 2:
        second = reference()
        return ours(), second
    return ours(), reference()


def _duration(step: Callable[[], object]) -> float:
    """Seconds of one step, after a first one that touches the memory."""
    step()
    num_steps, elapsed = 0, 0.0
    start = time.perf_counter()
    while elapsed < 0.01:
        step()
        num_steps += 1
        elapsed = time.perf_counter() - start
    return elapsed / num_steps
