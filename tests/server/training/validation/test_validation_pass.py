"""A validation that is left half-way goes on where it was left, or begins anew when that would be wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stream_server.server.progress.schedules import Schedule
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.training.validation.validation import Validation
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.fakes.thread_ranks import on_ranks
from tests.server.training.validation.validating import Server, Written, at, resume, step, validation

BATCHES = [np.array([float(i)]) for i in range(6)]
MEAN = {"loss": 2.5}


class Signalled(Server):
    """Its rank is told to leave while it evaluates the value `at`."""

    def __init__(self, loader: Any, at: float | None = None) -> None:
        super().__init__(loader)
        self.at = at
        self.must_leave = False
        self.seen: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(float(batch[0]))
        self.must_leave |= self.seen[-1] == self.at
        return batch[0]


def due(server: Signalled, ranks: Ranks | None = None, batch: int = 10, **options: Any) -> Validation:
    """A validation that is due after this batch."""
    return validation(
        server,
        ranks,
        progress=at(batch),
        **{"schedule": Schedule(every=10)} | options,
        must_leave=lambda: server.must_leave,
    )


def left_at(value: float, loader: Any = BATCHES, ranks: Ranks | None = None, **options: Any) -> dict[str, Any]:
    """The state of a validation that was left while it evaluated `value`."""
    one = due(Signalled(loader, value), ranks, **options)
    step(one)
    assert one.history == []
    return from_bytes(to_bytes(one.state_dict()))  # type: ignore[no-any-return]


def resumed(state: dict[str, Any], loader: Any = BATCHES, **options: Any) -> tuple[list[float], Validation, Written]:
    """Continue a validation from this state; the losses that it evaluates."""
    server, written = Signalled(loader), Written()
    one = due(server, metrics=written, **options)
    one.load_state_dict(state)
    resume(one)
    return server.seen, one, written


def test_it_goes_on_with_the_next_batch_and_gives_the_mean_of_all() -> None:
    seen, one, written = resumed(left_at(2.0))
    assert seen == [3.0, 4.0, 5.0]
    assert written.records == [(10, {"val/loss": 2.5})]
    assert one.state_dict()["left"] is None


def test_it_goes_on_within_the_set_in_which_it_was_left() -> None:
    sets = {"near": BATCHES[:3], "far": BATCHES[3:]}
    seen, _, written = resumed(left_at(4.0, sets), sets)
    assert seen == [5.0]
    assert written.records == [(10, {"val/loss": 2.5, "val/near/loss": 1.0, "val/far/loss": 4.0})]


def test_it_may_be_left_again_and_again() -> None:
    state = left_at(1.0)
    for stop in (3.0, 5.0):
        server = Signalled(BATCHES, stop)
        one = due(server)
        one.load_state_dict(state)
        resume(one)
        state = one.state_dict()
    seen, one, _ = resumed(state)
    assert (seen, one.best) == ([], {"batch": 10} | MEAN)


def test_nothing_is_written_or_told_of_a_validation_that_was_left() -> None:
    server, written = Signalled(BATCHES, 2.0), Written()
    step(due(server, metrics=written))
    assert (server.heard, written.records) == (["start"], [])


def test_the_validation_at_the_end_is_not_left() -> None:
    server = Signalled(BATCHES, 0.0)
    one = due(server)
    one.on_train_end(None)
    assert len(one.history) == 1


def test_a_model_that_has_learned_meanwhile_is_validated_anew() -> None:
    seen, one, _ = resumed(left_at(2.0), batch=11)
    assert len(seen) == 6
    assert one.history == [{"batch": 11, "loss": 2.5}]


def test_other_held_out_simulations_are_validated_anew() -> None:
    state = left_at(2.0, None, values=[1.0, 2.0, 3.0], batch_size=1)
    same, _, _ = resumed(state, None, values=[1.0, 2.0, 3.0], batch_size=1)
    more, one, _ = resumed(state, None, values=[1.0, 2.0, 3.0, 4.0], batch_size=1)
    assert (same, more) == ([4.0, 6.0], [2.0, 4.0, 6.0, 8.0])
    assert one.best["loss"] == 5.0


def test_batches_of_another_size_are_validated_anew() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    seen, one, _ = resumed(left_at(2.0, None, values=values, batch_size=1), None, values=values, batch_size=2)
    assert seen == [2.0, 6.0]
    assert one.best["loss"] == 4.0


def test_a_part_of_the_sets_that_was_left_goes_on_with_that_part() -> None:
    def options() -> dict[str, Any]:
        return {"batch": 15, "schedule": Schedule(every=20), "schedules": {"far": Schedule(every=5)}}

    sets = {"near": BATCHES[:3], "far": BATCHES[3:]}
    state = left_at(4.0, sets, **options())
    seen, one, written = resumed(state, sets, **options())
    assert (seen, written.records) == ([5.0], [(15, {"val/far/loss": 4.0})])
    assert one.history == [{"batch": 15, "far/loss": 4.0}]


@pytest.mark.parametrize(
    ("third", "given"), [("set_name", ["near", "far"]), ("batch_idx", [7, 7]), ("set_name=''", ["near", "far"])]
)
def test_a_third_argument_is_the_set_or_as_in_melissa_the_number_of_batches(third: str, given: list[Any]) -> None:
    scope: dict[str, Any] = {"given": []}
    exec(f"def step(self, batch, index, {third}):\n    given.append({third.split('=')[0]})\n    return 0.0", scope)
    server: Any = type("Named", (Server,), {"validation_step": scope["step"], "progress": at(7)})
    validation(server({"near": BATCHES[:1], "far": BATCHES[:1]})).run()
    assert scope["given"] == given


def each(num_ranks: int, function: Callable[[Ranks], Any]) -> list[Any]:
    return on_ranks(num_ranks, function)


def test_all_ranks_leave_at_the_same_batch_when_one_is_told_to() -> None:
    def leave(ranks: Ranks) -> tuple[list[float], Any]:
        server = Signalled(BATCHES, 3.0)
        one = due(server, ranks)
        step(one)
        return server.seen, one.state_dict()["left"]

    (first, one), (second, other) = each(2, leave)
    assert (first, second) == ([0.0, 2.0], [1.0, 3.0])
    assert one == other


def test_the_ranks_go_on_together_and_weigh_each_sample_once() -> None:
    states = each(2, lambda ranks: left_at(3.0, ranks=ranks))

    def go_on(ranks: Ranks) -> tuple[list[float], list[Any]]:
        # All ranks take back what rank 0 has saved.
        seen, _, written = resumed(states[0], ranks=ranks)
        return seen, written.records

    assert each(2, go_on) == [([4.0], [(10, {"val/loss": 2.5})]), ([5.0], [(10, {"val/loss": 2.5})])]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_another_number_of_ranks_begins_anew(num_ranks: int) -> None:
    state = each(2, lambda ranks: left_at(3.0, ranks=ranks))[0]
    found = each(num_ranks, lambda ranks: resumed(state, ranks=ranks)[0])
    assert sorted(value for seen in found for value in seen) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
