"""The losses and scores of each simulation, over all ranks, from which a class that suggests parameters learns.

Why: docs/decisions/0064-feedback-by-simulation.md
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stream_server.server.progress.batches import Batch, StepOutcome
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.user.callbacks import Callback
from stream_server.server.user.losses import numbers

LOSS, FIRST_LOSS, DEVIATION = "loss", "first_loss", "deviation"
OF_HELD_OUT = ("validation_loss", "rollout_error")
OWN = frozenset({"simulation", LOSS, FIRST_LOSS, DEVIATION, "num_losses", "failed", "held_out", *OF_HELD_OUT})

Result = dict[str, float]
EMPTY: Result = {LOSS: np.nan, "num_losses": 0.0, "failed": 0.0}


class SampleScores:
    """Sums and counts of what the samples of each simulation scored on this rank, since the last `take`. Main thread.

    Of each batch these are the losses, those of samples that were never drawn before (at first sight), and
    by how many standard deviations of the batch a loss is above the batch's mean, 0 for those below it (Dymchenko and
    Raffin 2024). A mean of the batch stands for each of its samples, if nothing else is known. No score may have the
    name of one of the `parameters`, with which a class finds it.
    """

    def __init__(self, parameters: Iterable[str] = ()) -> None:
        self._parameters = frozenset(parameters)
        self._sums: defaultdict[int, dict[str, list[float]]] = defaultdict(dict)

    def note(self, batch: Batch, outcome: StepOutcome) -> None:
        """Take the losses of a batch that was trained."""
        if outcome.loss is None:
            return
        simulations = batch.keys[0]
        # A loader of the user's may mix in samples that are of no simulation.
        if outcome.sample_losses is None or len(simulations) != batch.size:
            losses = np.full(len(simulations), outcome.loss)
        else:
            losses = numbers(outcome.sample_losses).astype(np.float64)
        spread = float(losses.std())
        deviations = np.maximum(losses - losses.mean(), 0.0) / spread if spread > 0 else np.zeros(len(losses))
        firsts = np.where(batch.is_first, losses, np.nan)
        self._add(simulations, {LOSS: losses, DEVIATION: deviations, FIRST_LOSS: firsts})

    def note_held_out(self, name: str, simulations: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Take one of the errors `OF_HELD_OUT` of held-out samples."""
        assert name in OF_HELD_OUT
        self._add(simulations, {name: np.asarray(values, np.float64)})

    def report(self, simulation_ids: ArrayLike, time_steps: ArrayLike, scores: Mapping[str, ArrayLike]) -> None:
        """Take what the user's class says of samples: see `StreamServer.report`."""
        simulations, steps = np.asarray(simulation_ids, np.int64).reshape(-1), np.asarray(time_steps)
        if len(simulations) != steps.size:
            raise ValueError(f"report: {len(simulations)} simulation_ids, but {steps.size} time_steps")
        for name, values in scores.items():
            if name in OWN:
                raise ValueError(f"report: {name} is a result that every simulation has: choose another name")
            if name in self._parameters:
                raise ValueError(f"report: {name} is a parameter of the study: choose another name")
            self._add(simulations, {name: np.broadcast_to(np.asarray(values, np.float64), simulations.shape)})

    def take(self) -> dict[int, dict[str, list[float]]]:
        """Sum and count of each score of each simulation, from which the next ones are counted from zero."""
        taken, self._sums = dict(self._sums), defaultdict(dict)
        return taken

    def state_dict(self) -> list[list[Any]]:
        """Simulation, score, sum and count of each sum that `take` would give."""
        return [[simulation, name, *total] for simulation, sums in self._sums.items() for name, total in sums.items()]

    def load_state_dict(self, state: Iterable[Sequence[Any]]) -> None:
        for simulation, name, total, num in state:
            self._count(simulation, name, total, num)

    @staticmethod
    def redealt(states: Sequence[list[list[Any]]], rank: int, dealing: object) -> list[list[Any]]:
        """All of them on rank 0: sums add up on whatever rank."""
        return [] if rank else [*chain.from_iterable(states)]

    def _add(self, simulations: NDArray[np.int64], scores: Mapping[str, NDArray[np.float64]]) -> None:
        """Add scores of samples; values that are not finite are left out."""
        ids, places = np.unique(simulations, return_inverse=True)
        for name, values in scores.items():
            is_finite = np.isfinite(values)
            totals = np.bincount(places, np.where(is_finite, values, 0.0), len(ids)).tolist()
            counts = np.bincount(places, is_finite, len(ids)).tolist()
            for simulation, total, num in zip(ids.tolist(), totals, counts, strict=True):
                if num:
                    self._count(simulation, name, total, num)

    def _count(self, simulation: int, name: str, total: float, num: float) -> None:
        known = self._sums[simulation].setdefault(name, [0.0, 0.0])
        known[0] += total
        known[1] += num


class Feedback(Callback):
    """Gathers the scores of all ranks and tells the class that suggests. Collective.

    It does so whenever its schedule says so, and at the end of each of `study.rounds`.

    `ingest` and `failures` are rank 0's: where the results of simulations go, by id, and which simulations have failed
    for good. The newest results of all simulations are in each checkpoint, and what each rank has counted since then.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        schedule: Schedule,
        progress: Progress,
        ingest: Callable[[Mapping[int, Result]], None],
        failures: Callable[[], Iterable[int]],
        parameters: Iterable[str] = (),
    ) -> None:
        self.scores = SampleScores(parameters)
        self._ranks = ranks
        self._schedule = schedule
        self._progress = progress
        self._ingest = ingest
        self._failures = failures
        self._results: dict[int, Result] = {}
        self._firsts: dict[int, list[float]] = {}

    def on_train_start(self, server: Any) -> None:
        server.hold_attributes(_take_scores=self.scores.report)

    def on_round(self, server: Any) -> None:
        if self._schedule.is_due(self._progress):
            self._schedule.done(self._progress)
            self.gather()

    def state_dict(self) -> dict[str, Any]:
        names = sorted({name for result in self._results.values() for name in result})
        rows = [[result.get(name, np.nan) for name in names] for result in self._results.values()]
        return {
            "simulations": np.array(list(self._results), np.int64),
            "names": names,
            "values": np.array(rows, np.float64).reshape(len(rows), len(names)),
            "firsts": np.array([self._firsts.get(i, (0.0, 0.0)) for i in self._results], np.float64).reshape(-1, 2),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        simulations = np.asarray(state["simulations"]).tolist()
        for simulation, row, firsts in zip(
            simulations, state["values"].tolist(), state["firsts"].tolist(), strict=True
        ):
            known = zip(state["names"], row, strict=True)
            self._results[simulation] = {name: value for name, value in known if name == LOSS or not np.isnan(value)}
            self._firsts[simulation] = firsts
        if self._ranks.rank == 0:
            self._ingest(self._results)

    def gather(self) -> None:
        """Tell it now, what has failed too."""
        own = self.scores.state_dict()
        self.scores.take()
        gathered = self._ranks.gather(own)
        if gathered is None:
            return
        together = SampleScores()
        for of_rank in gathered:
            together.load_state_dict(of_rank)
        changed = {simulation: self._result(simulation, sums) for simulation, sums in together.take().items()}
        for simulation in self._failures():
            if not self._results.get(simulation, {}).get("failed"):
                changed[simulation] = changed.get(simulation) or self._known(simulation)
                changed[simulation]["failed"] = 1.0
        self._results |= changed
        self._ingest(changed)

    def _known(self, simulation: int) -> Result:
        """A copy of its newest result."""
        return EMPTY | self._results.get(simulation, {})

    def _result(self, simulation: int, sums: Mapping[str, list[float]]) -> Result:
        result = self._known(simulation)
        for name, (total, num) in sums.items():
            if name == FIRST_LOSS:
                firsts = self._firsts.setdefault(simulation, [0.0, 0.0])
                firsts[0] += total
                firsts[1] += num
                total, num = firsts
            if num:
                result[name] = total / num
        result["num_losses"] += sums[LOSS][1] if LOSS in sums else 0.0
        return result
