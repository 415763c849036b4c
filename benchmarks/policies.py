"""Buffer policies at equal numbers of batches: what a network has learned from the same stream, by each policy.

Policies see a stream of samples and decide what is trained; neither server nor simulations run, so that the machine has
no part in the result. Of several simulations at once a sample each comes in turn. Whenever a sample has come, as many
batches follow as give DRAWS draws for each sample. Three streams: the heat equation (a field from five temperatures and
the time), the Lorenz attractor and the Kuramoto-Sivashinsky equation (the next state from this one and the parameters).

    python -m benchmarks.policies               # half an hour of one core; --seeds 2 --studies heat makes it less
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from stream_server.buffers import Firo, Policy, Reservoir, UniformReservoir

CONFIGS = Path(__file__).parents[1] / "configs"
DRAWS = 8
BATCH = 16
HIDDEN = 64
NUM_SIMULATIONS = 24
NUM_HELD_OUT = 8
HELD_OUT_SEED = 999
# Samples of the buffer, and simulations at once.
CASES = ((96, 1), (192, 1), (192, 4))
POLICIES: Mapping[str, Callable[[int, int], Policy]] = {
    "reservoir": lambda capacity, seed: Reservoir(capacity=capacity, watermark=capacity // 5, seed=seed),
    "uniform": lambda capacity, seed: UniformReservoir(capacity=capacity, watermark=capacity // 5, seed=seed),
    f"firo, {DRAWS} draws": lambda capacity, seed: Firo(
        capacity=capacity, watermark=capacity // 5, pseudo_epochs=DRAWS, seed=seed
    ),
}
Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs and outputs, of shape (simulations, time steps, values), scaled to about one."""

    inputs: Array
    outputs: Array


def heat(seed: int, num: int) -> Samples:
    """The fields of 16 × 16 nodes, 50 time steps."""
    from heat import solve

    temperatures = np.random.default_rng(seed).uniform(100, 500, (num, 5))
    names = ("initial", "left", "right", "bottom", "top")
    inputs, outputs = [], []
    for each in (temperatures - 300) / 115:
        inputs.append([[*each, step / 25 - 1] for step in range(50)])
    for each in temperatures:
        fields = solve(size=16, **dict(zip(names, each.tolist(), strict=True)))
        outputs.append([(field.reshape(-1) - 300) / 100 for field, _ in zip(fields, range(50), strict=False)])
    return Samples(np.array(inputs, np.float32), np.array(outputs, np.float32))


def lorenz(seed: int, num: int) -> Samples:
    """One step of the attractor, 200 time steps."""
    from lorenz import trajectory

    constants = np.random.default_rng(seed).uniform([8, 24, 2], [12, 32, 3.3], (num, 3))
    inputs, outputs = [], []
    for number, each in enumerate(constants):
        pairs = [pair for pair, _ in zip(trajectory([seed, number], *each), range(200), strict=False)]
        states, following = (np.array(it) for it in zip(*pairs, strict=True))
        scaled = (each - [10, 28, 2.65]) / [1, 2, 0.4]
        inputs.append(np.column_stack([(states - [0, 0, 23]) / 9, np.tile(scaled, (len(states), 1))]))
        outputs.append(following - states)
    return Samples(np.array(inputs, np.float32), np.array(outputs, np.float32))


def ks(seed: int, num: int) -> Samples:
    """One step of the states of 64 nodes, 40 time steps."""
    from ks import NUM_WAVES, solve

    random = np.random.default_rng(seed)
    names = [f"{name}{wave}" for wave in range(1, NUM_WAVES + 1) for name in "ab"]
    parameters = {name: random.uniform(-1, 1, num) for name in names} | {"viscosity": random.uniform(0.5, 2, num)}
    states = np.array([fields["u"] for fields in solve(parameters)]).swapaxes(0, 1)
    viscosities = np.broadcast_to(parameters["viscosity"][:, None, None] - 1.25, (*states[:, 1:, 0].shape, 1))
    inputs = np.concatenate([states[:, :-1], viscosities], axis=-1)
    return Samples(inputs.astype(np.float32), np.diff(states, axis=1).astype(np.float32))


STUDIES: Mapping[str, Callable[[int, int], Samples]] = {"heat": heat, "lorenz": lorenz, "ks": ks}


@cache
def held_out(study: str) -> Samples:
    return STUDIES[study](HELD_OUT_SEED, NUM_HELD_OUT)


def stream(num_simulations: int, num_steps: int, at_once: int) -> Iterator[tuple[int, int]]:
    """Simulation and time step of the samples, in the order in which they come."""
    waiting = iter(range(num_simulations))
    running = {simulation: 0 for _, simulation in zip(range(at_once), waiting, strict=False)}
    while running:
        for simulation, step in list(running.items()):
            yield simulation, step
            running[simulation] += 1
            if running[simulation] == num_steps:
                del running[simulation]
                running |= {following: 0 for _, following in zip(range(1), waiting, strict=False)}


class Trial:
    """One network that one policy trains."""

    def __init__(self, policy: Policy, samples: Samples, seed: int) -> None:
        self.policy = policy
        self.samples = samples
        torch.manual_seed(seed)
        num_inputs, num_outputs = samples.inputs.shape[-1], samples.outputs.shape[-1]
        widths = (num_inputs, HIDDEN, HIDDEN, num_outputs)
        first, second, third = (nn.Linear(*sizes) for sizes in pairwise(widths))
        self.model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3, fused=True)
        self.num_batches = 0
        self._free = list(range(policy.capacity + 1))
        self._in_slot: dict[int, tuple[int, int]] = {}

    def run(self, at_once: int) -> None:
        """Train on the whole stream."""
        num_simulations, num_steps, _ = self.samples.inputs.shape
        num_batches = num_simulations * num_steps * DRAWS // BATCH
        for number, sample in enumerate(stream(num_simulations, num_steps, at_once), start=1):
            while not self.policy.room:
                self.step()
            slot = self._free.pop()
            self._in_slot[slot] = sample
            self._release(self.policy.put([slot]).tolist())
            while self.num_batches < number * DRAWS // BATCH and self.policy.ready(BATCH):
                self.step()
        self._release(self.policy.close().tolist())
        while self.num_batches < num_batches and self.policy.ready(BATCH):
            self.step()

    def step(self) -> None:
        """Draw a batch and learn it."""
        drawn = self.policy.draw(self.policy.ready(BATCH))
        places = tuple(np.array([self._in_slot[slot] for slot in drawn.slots.tolist()]).T)
        inputs, outputs = (torch.from_numpy(it[places]) for it in (self.samples.inputs, self.samples.outputs))
        self.optimizer.zero_grad()
        functional.mse_loss(self.model(inputs), outputs).backward()
        self.optimizer.step()
        self.num_batches += 1
        self._release(drawn.removed.tolist())

    def error(self, samples: Samples) -> float:
        """The root of the mean squared error."""
        with torch.no_grad():
            predicted = self.model(torch.from_numpy(samples.inputs))
            return float(functional.mse_loss(predicted, torch.from_numpy(samples.outputs)).sqrt())

    def _release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self._in_slot[slot]
            self._free.append(slot)


def compare(study: str, capacity: int, at_once: int, num_seeds: int) -> Iterator[str]:
    """A row of the table for each policy: its error, and the ratio to that of the first."""
    errors: dict[str, list[float]] = {name: [] for name in POLICIES}
    batches: dict[str, list[int]] = {name: [] for name in POLICIES}
    for seed in range(num_seeds):
        samples = STUDIES[study](seed, NUM_SIMULATIONS)
        for name, make in POLICIES.items():
            trial = Trial(make(capacity, seed), samples, seed)
            trial.run(at_once)
            errors[name].append(trial.error(held_out(study)))
            batches[name].append(trial.num_batches)
    first = np.log(errors[next(iter(POLICIES))])
    for name, found in errors.items():
        ratios = np.log(found) - first
        spread = 1.96 * ratios.std() / len(found) ** 0.5
        low, middle, high = np.exp([ratios.mean() - spread, ratios.mean(), ratios.mean() + spread])
        yield (
            f"| {study} | {capacity} | {at_once} | {name} | {np.mean(found):.3f} | "
            f"{middle:.2f} ({low:.2f} … {high:.2f}) | {np.mean(batches[name]):.0f} |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    sys.path[:0] = [str(CONFIGS / name) for name in STUDIES]
    print("| study | capacity | at once | policy | error | ratio to the first (95 %) | batches |")
    print("|---" * 7 + "|")
    for study in options.studies:
        for capacity, at_once in CASES:
            for row in compare(study, capacity, at_once, options.seeds):
                print(row, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
