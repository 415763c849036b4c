"""Learning-rate schedules end with the run, whatever ranks, partial steps and failed simulations it had."""

import json
from collections.abc import Iterator
from copy import deepcopy
from fractions import Fraction
from math import ceil
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.server.progress.batches import StepCounts, StepOutcome, UnionBatch
from stream_server.server.progress.progress import Progress
from tests.server.progress.runs_of_ranks import full_batches, study
from tests.support.examples import examples
from tests.support.settings import length_of


class History:
    """A study as it may happen, and its schedules by other means: exact fractions of what is trained of what will be.

    `is_told`: simulations that fail are known to be missing at once, and not only at the end by what has not come.
    """

    def __init__(self, config: Any, clock: str, random: Random, *, is_told: bool) -> None:
        self.config = config
        self.clock = clock
        self.is_told = is_told
        self._random = random
        self._num_kills = 0
        num_ranks = self._num_ranks()
        self.progress = self._started(num_ranks)
        self.num_steps = self._num_steps(num_ranks)
        self.now = SimpleNamespace(
            num_new=self.config.study.simulations,
            num_draws=self.config.study.simulations * self.config.buffer.pseudo_epochs,
            num_missing=0,
            told=0,
            drawn=0,
            drawn_new=0,
            settled=0,
            batches=0,
            lr_steps=0,
        )
        self._saved = self._snapshot()

    @property
    def is_over(self) -> bool:
        return self.now.num_draws == 0 or self.now.batches == self.config.training.max_batches

    def events(self) -> Iterator[str]:
        """All that happens, one by one, until nothing is left to train."""
        happenings = {"step": self._step, "restart": self._restart, "kill": self._kill, "failure": self._fail}
        while not self.is_over:
            [name] = self._random.choices(list(happenings), [20, 3, 1, 1])
            happenings[name]()
            yield name
        if self.now.settled:
            self._update()
            yield "last update"

    def _num_ranks(self) -> int:
        return self._random.randint(1, 4)

    def _started(self, num_ranks: int) -> Progress:
        return Progress(num_ranks, length=length_of(self.config, num_ranks), lr_clock=self.clock)

    def _num_steps(self, num_ranks: int) -> int:
        training, num_samples = self.config.training, self.config.study.simulations
        if self.clock == "samples":
            num_batches = ceil(num_samples / (num_ranks * training.batch_size))
        else:
            share = ceil(num_samples / num_ranks) * self.config.buffer.pseudo_epochs
            num_batches = ceil(share / training.batch_size)
        return ceil(min(num_batches, training.max_batches or num_batches) / training.accumulate)

    def _step(self) -> None:
        now, num_ranks = self.now, len(self.progress.batches_per_rank)
        sizes, left = [], now.num_draws
        for rank in range(num_ranks):
            least = 1 if rank == num_ranks - 1 and not any(sizes) else 0
            sizes.append(self._random.randint(least, min(left, self.config.training.batch_size)))
            left -= sizes[-1]
        num = sum(sizes)
        num_first = self._random.randint(max(0, now.num_new - left), min(num, now.num_new))
        now.num_new -= num_first
        now.num_draws = left
        now.drawn, now.drawn_new, now.batches = now.drawn + num, now.drawn_new + num_first, now.batches + 1
        now.told = now.num_missing if self.is_told else 0
        self.progress.count_batch(
            UnionBatch(own=None, sizes=tuple(sizes), counts=StepCounts(num_first=num_first, num_missing=now.told))
        )
        now.settled += 1
        if now.settled == self.config.training.accumulate:
            self._update()

    def _update(self) -> None:
        now = self.now
        now.settled = 0
        self.progress.count_update(StepOutcome(skipped=self._random.random() < 0.2))
        now.lr_steps = max(now.lr_steps, self._position())

    def _position(self) -> int:
        now, training = self.now, self.config.training
        total = self.config.study.simulations - now.told
        incarnations = 1 if self.clock == "samples" else self.config.buffer.pseudo_epochs
        done = now.drawn_new if self.clock == "samples" else now.drawn
        share = Fraction(done, max(1, total * incarnations))
        if training.max_batches:
            share = max(share, Fraction(now.batches, training.max_batches))
        return int(self.num_steps * min(share, Fraction(1)))

    def _snapshot(self) -> tuple[Any, Any]:
        return json.dumps(self.progress.state_dict()), deepcopy(self.now)

    def _restart(self) -> None:
        """Checkpoints are taken between two updates."""
        if self.now.settled == 0:
            self._saved = self._snapshot()
            self._kill()

    def _kill(self) -> None:
        state, now = self._saved
        self.now = deepcopy(now)
        self.progress = self._started(self._num_ranks())
        self.progress.load_state_dict(json.loads(state))

    def _fail(self) -> None:
        now, incarnations = self.now, self.config.buffer.pseudo_epochs
        most = min(
            now.num_new, (now.num_draws - now.num_new) // max(1, incarnations - 1) if incarnations > 1 else now.num_new
        )
        num = self._random.randint(0, most)
        now.num_new, now.num_draws = now.num_new - num, now.num_draws - num * incarnations
        now.num_missing += num


@settings(max_examples=examples(300))
@given(
    num_samples=st.integers(1, 120),
    pseudo_epochs=st.integers(1, 3),
    batch_size=st.integers(1, 8),
    accumulate=st.integers(1, 3),
    max_batches=st.none() | st.integers(1, 30),
    clock=st.sampled_from(["updates", "samples"]),
    is_told=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_a_schedule_never_exceeds_its_steps_never_goes_back_and_ends_with_the_run(
    clock: str, is_told: bool, seed: int, **numbers: Any
) -> None:
    history = History(study(**numbers), clock, Random(seed), is_told=is_told)
    lr_steps, fraction = 0, 0.0
    for event in history.events():
        progress = history.progress
        assert progress.expected_lr_steps == history.num_steps
        assert progress.lr_steps == history.now.lr_steps
        assert progress.lr_steps <= history.num_steps
        assert progress.fraction is not None
        assert progress.fraction <= 1.0
        if event != "kill":
            assert progress.lr_steps >= lr_steps
            assert progress.fraction >= fraction
        lr_steps, fraction = progress.lr_steps, progress.fraction
    if history.now.num_missing == 0 and history.clock == "updates":
        assert (lr_steps, fraction) == (history.num_steps, 1.0)
    history.progress.end()
    assert (history.progress.lr_steps, history.progress.fraction) == (history.num_steps, 1.0)


@given(
    num_samples=st.integers(1, 200),
    num_ranks=st.integers(1, 4),
    batch_size=st.integers(1, 9),
    accumulate=st.integers(1, 4),
    clock=st.sampled_from(["updates", "samples"]),
)
def test_where_all_batches_but_the_last_are_full_each_update_is_a_step(
    num_samples: int, num_ranks: int, batch_size: int, accumulate: int, clock: str
) -> None:
    config = study(num_samples=num_samples, batch_size=batch_size, accumulate=accumulate)
    progress = Progress(num_ranks, length=length_of(config, num_ranks), lr_clock=clock)
    union_batches, num_updates = list(full_batches(num_ranks, batch_size, num_samples)), 0
    for number, union_batch in enumerate(union_batches, 1):
        progress.count_batch(union_batch)
        if number % accumulate == 0 or number == len(union_batches):
            progress.count_update(StepOutcome())
            num_updates += 1
            assert progress.lr_steps == num_updates
    assert progress.expected_lr_steps == num_updates
