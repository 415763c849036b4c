"""Validation of the model on samples that it is never trained on."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stream_server.config.training_sections import ValidationSettings
from stream_server.errors import UserCodeError
from stream_server.failpoints import failpoint
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.validation.rollout import ROLLOUT, ROLLOUT_ERROR, RolloutErrors, Rollouts
from stream_server.server.training.validation.validation_batches import HeldOut, Observe, ValidationSet, ValidationSets
from stream_server.server.training.validation.validation_pass import LOSS, ValidationPass
from stream_server.server.training.validation.validation_record import ValidationRecord, batches_to_keep
from stream_server.server.user.callbacks import Callback, Callbacks
from stream_server.server.user.framework import Step
from stream_server.wording import counted

PREFIX = "val/"
OVER_VARIANCE = "error_over_variance"

_log = logging.getLogger(__name__)


class Validation(Callback):
    """Runs the user's `validation_step` over all validation sets when the schedule says so, and keeps the history.

    An entry of the history has the batch, the loss and, where a record knows it, the squared error over the variance.
    `schedules` are those of single sets, and under "" that of the others. Where some sets alone are due, the entry has
    their own values instead, and there are no rollouts. Before the first batch `settings.at_start` batches of each set
    are tried, of which the user's code alone is told.

    Main thread, collective: every rank calls `run` after the same batches. One that is due after a step waits for the
    next control round, when all else that belongs to the step is done, averages of the weights too. At the end of the
    training, and of each of `study.rounds`, it validates once more, unless this batch was validated already.
    `save_before` is called first each time, and `quiesce` before any code of the user's: it ends what runs on another
    thread.

    A validation that some rank `must_leave` half-way, on a signal or before the time limit, stays due: the study
    goes on with it when it is started again, from the batch at which it was left. It begins anew if the number of ranks
    or the held-out simulations are others than before, if the model has learned meanwhile, or if metrics objects take
    part, whose states are in no checkpoint. So does one that was due when the server died.

    A `record` keeps predictions of held-out samples, and their errors. `rollouts` come after the samples; those that
    are left half-way begin anew. `observe` gets the errors of both by simulation.

    Attributes:
        history: the validations so far.
        rollout: the errors of the last rollouts by lead time; None before.
    """

    def __init__(
        self,
        server: Any,
        ranks: Ranks,
        callbacks: Callbacks,
        step: Step,
        *,
        held_out: Callable[[], HeldOut | None],
        settings: ValidationSettings,
        progress: Progress,
        metrics: Metrics,
        schedules: Mapping[str, Schedule] | None = None,
        phases: Phases | None = None,
        must_leave: Callable[[], bool] = lambda: False,
        save_before: Callable[[], None] = lambda: None,
        quiesce: Callable[[], None] = lambda: None,
        record: ValidationRecord | None = None,
        rollouts: Rollouts | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.history: list[dict[str, Any]] = []
        self.rollout: dict[str, Any] | None = None
        self._server = server
        self._ranks = ranks
        self._callbacks = callbacks
        self._step = step
        self._sets = ValidationSets(server, ranks, held_out=held_out, settings=settings)
        self._settings = settings
        self._batch_size = settings.batch_size
        self._progress = progress
        self._metrics = metrics
        self._schedules = schedules or {"": Schedule()}
        self._phases = phases or Phases()
        self._must_leave = must_leave
        self._save_before = save_before
        self._quiesce = quiesce
        self._record = record
        self._rollouts = rollouts
        self._observe = observe
        self._held_out = held_out
        self._left: dict[str, Any] | None = None
        self._is_left = False
        self._is_next = False
        self._is_begun = True
        self._is_recorded = False
        self._told: list[str] = []

    @property
    def best(self) -> dict[str, Any]:
        """The entry of the history with the smallest loss, the earliest if there are several; or empty."""
        finite = [entry for entry in self.history if math.isfinite(entry.get(LOSS, math.nan))]
        return dict(min(finite, key=lambda entry: entry[LOSS])) if finite else {}

    @property
    def is_done(self) -> bool:
        """Whether the model has been validated since the last batch, so that the end needs no other validation."""
        return any(entry["batch"] == self._progress.batches and LOSS in entry for entry in self.history[-1:])

    def on_train_start(self, server: Any) -> None:
        # What was due when the study was left comes before the first batch.
        self._is_next = bool(self._due())
        self._is_begun = False
        if self._record is not None:
            # Validations after the checkpoint from which this goes on come again.
            self._record.prune(batches_to_keep(self.history, self.best))

    def on_step_end(self, server: Any) -> None:
        self._is_next = self._step.at_boundary and bool(self._due())

    def on_round(self, server: Any) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._begin()
        if self._is_next:
            self._is_next = False
            self._save_before()
            self.run(must_leave=self._must_leave, only_due=True)

    def on_train_end(self, server: Any) -> None:
        if not self.is_done:
            self._save_before()
            self.run()
        if not self.history and not self._schedules[""].is_empty:
            self._warn(
                "no validation took place: no held-out simulation came to its end, all that they sent was rejected, or "
                "val_dataloader was empty"
            )
        elif self.history and not self.best:
            self._warn(f"the loss of all validations was not finite: {counted(len(self.history), 'validation')}")

    def end_round(self) -> bool:
        """Validate, unless it is done; returns whether no rank left it half-way."""
        self._is_left = False
        if not self.is_done:
            self._save_before()
            self.run(must_leave=self._must_leave)
        return not self._is_left

    def run(self, *, must_leave: Callable[[], bool] = lambda: False, only_due: bool = False) -> dict[str, float]:
        """Validate now: the exact weighted means, "loss" among them, the same on every rank.

        Those of a set of several are called "SET/loss" and so on, beside the ones over all sets; errors of rollouts
        "rollout/FIELD" and "rollout/FIELD/lead_N". Empty, without a call of user code, while no held-out simulation is
        complete; and when the validation was left half-way.

        Raises:
            UserCodeError: the user's code raised, or returned something unusable.
            ConfigError: a loader shuffles, and there are several ranks, or study.json names a set that is not there.
        """
        with self._phases.measure("validation"):
            self._quiesce()
            sets, names = self._sets(), self._due() if only_due else [*self._schedules]
            due = [it for it in sets if (it.name if it.name in self._schedules else "") in names]
            values = self._go_through(due, must_leave, is_complete=len(due) == len(sets)) if due else {}
            self._is_left = values is None
            if values is None:
                return {}
            failpoint("validation.known")
            for name in names:
                self._schedules[name].done(self._progress)
            if values:
                self._conclude(values)
            elif due:
                self._warn(f"{' and '.join(it.name for it in due)} of validation.sets gave no batch to any rank")
            return values

    @property
    def warnings(self) -> list[str]:
        """The reasons why sets were not validated, predictions of this rank not recorded, or forecasts not made."""
        parts = (self._record, self._rollouts)
        return [*self._told, *(it for part in parts if part is not None for it in part.warnings)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "history": [dict(entry) for entry in self.history],
            "schedule": self._schedules[""].state_dict(),
            "schedules": {name: schedule.state_dict() for name, schedule in self._schedules.items()},
            "left": self._left,
            "rollout": self.rollout,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = [dict(entry) for entry in state["history"]]
        for name, saved in {**state.get("schedules", {}), "": state["schedule"]}.items():
            if name in self._schedules:
                self._schedules[name].load_state_dict(saved)
        self._left = state["left"]
        self.rollout = state["rollout"]

    def _due(self) -> list[str]:
        """The names of the schedules that are due."""
        due = [name for name, schedule in self._schedules.items() if schedule.is_due(self._progress)]
        if self._progress.batches >= self._settings.after_batches:
            return due
        for name in due:
            self._schedules[name].done(self._progress)
        return []

    def _warn(self, text: str) -> None:
        """Warn once, on rank 0."""
        if self._ranks.rank == 0 and text not in self._told:
            self._told.append(text)
            _log.warning("%s", text)

    def _begin(self) -> None:
        """See before the first batch that study.json and the sets go together, and that the user's code works."""
        if self._settings.sets:
            self._quiesce()
            have_own = all(it.name in self._schedules for it in self._sets())
            if have_own and not self._schedules[""].is_empty:
                self._warn(
                    "validation.every_batches, every_s and at have no effect: each set has every_batches of its own in "
                    "validation.sets"
                )
        if self._settings.at_start and not self._progress.batches:
            self._try(self._settings.at_start)

    def _try(self, num: int) -> None:
        """Call the user's code with the first batches of each set, to see whether it works."""
        with self._phases.measure("validation"), self._metrics.trial():
            self._quiesce()
            sets = [it.first(num) for it in self._sets()]
            self._callbacks.tell("on_validation_start")
            arguments = (self._server, self._ranks, self._step, self._metrics, sets)
            if (values := ValidationPass(*arguments, must_leave=self._must_leave).run()) is not None:
                self._callbacks.tell("on_validation_end", values, only_users=True)
                _log.info("%s of each set on each rank, before the training: %s", counted(num, "batch"), values)

    def _go_through(
        self, sets: list[ValidationSet], must_leave: Callable[[], bool], *, is_complete: bool
    ) -> dict[str, float] | None:
        """The values of all sets, and of the rollouts; None if they are not known yet."""
        now = {"batches": self._progress.batches, "batch_size": self._batch_size, "sets": [it.signature for it in sets]}
        left, self._left = self._left, None
        if left is not None and left["of"] != now:
            left = None
        self._callbacks.tell("on_validation_start")
        # Of the batches before the restart nothing is known: a part of the samples would be taken for all.
        rollouts = self._rollouts if is_complete else None
        is_ours = rollouts is not None or all(it.raw is not None for it in sets)
        self._is_recorded = self._record is not None and left is None and is_ours
        if self._is_recorded and self._record is not None:
            self._record.begin(now["sets"], self._held_out())
        values: dict[str, float] | None = None if left is None else left.get("values")
        if values is None:
            one = ValidationPass(
                self._server,
                self._ranks,
                self._step,
                self._metrics,
                sets,
                must_leave=must_leave,
                left=left,
                record=self._record if self._is_recorded else None,
                observe=self._observe,
                is_complete=is_complete,
            )
            values = one.run()
            if one.left is not None:
                self._left = {"of": now, **one.left}
        if values is None or rollouts is None:
            return values
        errors = rollouts.run(must_leave)
        if errors is None:
            self._left = {"of": now, "values": values}
            return None
        if self._observe is not None:
            self._observe(ROLLOUT_ERROR, rollouts.mine.simulations, rollouts.mine.means)
        return self._with_rollouts(values, errors)

    def _with_rollouts(self, values: dict[str, float], errors: RolloutErrors) -> dict[str, float]:
        found = errors.values() if errors.lead_times else {}
        if twice := sorted(found.keys() & values.keys()):
            where = f"{type(self._server).__name__}.validation_step"
            raise UserCodeError(f"{where} returned {twice[0]!r}, and the rollouts have this name too: rename it")
        if found:
            self.rollout = {"batch": self._progress.batches, **errors.to_json()}
        return values | found

    def _conclude(self, values: dict[str, float]) -> None:
        progress = self._progress
        # At the end all sets are due, maybe right after some of them, whose values are written already.
        written = next((it for it in self.history[-1:] if it["batch"] == progress.batches and LOSS not in it), {})
        self.history.append({"batch": progress.batches, **({LOSS: values[LOSS]} if LOSS in values else values)})
        progress.best = self.best
        forecast = () if self._rollouts is None else self._rollouts.fields
        if errors := {name: values[key] for name in forecast if (key := f"{ROLLOUT}/{name}") in values}:
            self.history[-1][ROLLOUT] = errors
        self._record_all(values)
        named = {f"{PREFIX}{name}": value for name, value in values.items() if name not in written}
        self._metrics.write_reduced(progress.batches, progress.elapsed_s, named)
        self._callbacks.tell("on_validation_end", dict(values))

    def _record_all(self, values: dict[str, float]) -> None:
        if self._is_recorded and self._record is not None:
            if (ratio := self._record.error_over_variance()) is not None:
                self.history[-1][OVER_VARIANCE] = ratio
            rollouts = None if self._rollouts is None else self._rollouts.mine
            keep = batches_to_keep(self.history, self.best)
            self._record.write(self._progress.batches, values, keep, rollouts)


def names_validated(history: Sequence[Mapping[str, Any]], batch: int) -> list[str] | None:
    """The names that a history has values of after a batch; None: all that there are."""
    last = next((entry for entry in history[-1:] if entry["batch"] == batch), {})
    return None if LOSS in last else [f"{PREFIX}{name}" for name in last]
