"""Simulations of different parameters that send the same data are noticed."""

from collections.abc import Sequence

import numpy as np
import pytest

from stream_server.buffers import Slots
from stream_server.server.intake.attempts import AttemptState, StepRun
from stream_server.server.intake.comparison import EqualSimulations, MissingFields
from stream_server.server.intake.ledger import LedgerEntry


def sent(
    equal: EqualSimulations, simulation: int, *values: float, absent: tuple[str, ...] = (), first: int = 0
) -> None:
    """A simulation sends steps, each full of a value."""
    equal.slots.arrays["u"][: len(values)] = np.array(values)[:, None]
    attempt = AttemptState(simulation=simulation, attempt=0, entry=LedgerEntry(simulation))
    indices = range(first, first + len(values))
    equal.note(StepRun(attempt, 0, indices, list(range(len(values))), absent, []))


@pytest.fixture
def equal() -> EqualSimulations:
    slots = Slots({"u": (4,), "v": ()}, 10)
    slots.allocate({"u": np.float64, "v": np.int32})
    slots.arrays["v"][:] = 0
    return EqualSimulations(slots, is_open=True, stride=1)


def test_they_are_told_of_once_and_counted_at_the_end(equal: EqualSimulations) -> None:
    told = []
    for simulation in range(5):
        sent(equal, simulation, 1.0, 2.0)
        told += equal.finish(simulation, [float(simulation)])
    assert [text.split(" simulations")[0] for text in (*told, *equal.warnings)] == ["all 3", "all 5"]
    sent(equal, 5, 1.0, 2.5)
    assert equal.warnings == []


def test_a_common_initial_state_is_no_sameness(equal: EqualSimulations) -> None:
    for simulation in range(4):
        sent(equal, simulation, 1.0, 2.0 + simulation)
        assert equal.finish(simulation, [float(simulation)]) == []
    assert not equal.is_open


def test_a_field_that_only_one_sends_is_a_difference(equal: EqualSimulations) -> None:
    for simulation in range(3):
        sent(equal, simulation, 1.0, absent=("v",) if simulation == 2 else ())
        assert equal.finish(simulation, [float(simulation)]) == []


def test_the_same_parameters_may_give_the_same(equal: EqualSimulations) -> None:
    for simulation in range(4):
        sent(equal, simulation, 1.0)
        assert equal.finish(simulation, [float(simulation // 2)]) == []


def test_a_simulation_of_which_nothing_was_accepted_is_not_counted(equal: EqualSimulations) -> None:
    for simulation in range(4):
        assert equal.finish(simulation, [float(simulation)]) == []


def test_simulations_of_which_a_rank_has_other_steps_are_not_taken_to_be_equal(equal: EqualSimulations) -> None:
    told = []
    for simulation in range(6):
        sent(equal, simulation, 1.0, first=simulation % 3)
        told.append(equal.finish(simulation, [float(simulation)]))
    assert told[:5] == [[]] * 5
    assert told[5]
    assert told[5] == equal.warnings


def test_a_step_that_a_simulation_repeats_is_compared_with_no_other(equal: EqualSimulations) -> None:
    for simulation in range(3):
        sent(equal, simulation, 1.0, first=simulation)
        sent(equal, simulation, 1.0, first=simulation)
        assert equal.finish(simulation, [float(simulation)]) == []


@pytest.mark.parametrize("first", [0, 1, 90, 128, 300, 5000])
def test_a_difference_that_begins_late_is_noticed_if_it_lasts(equal: EqualSimulations, first: int) -> None:
    num = first + first // 64 + 1
    for simulation in range(3):
        values = [1.0 + simulation * (index >= first) for index in range(num)]
        for at in range(0, num, 10):
            sent(equal, simulation, *values[at : at + 10], first=at)
        equal.finish(simulation, [float(simulation)])
    assert not equal.warnings


def test_of_many_steps_few_are_compared_and_the_same_however_many_come_at_once(equal: EqualSimulations) -> None:
    num = 10_000
    for at in range(0, num, 10):
        sent(equal, 0, *[1.0] * 10, first=at)
    for simulation in (1, 2):
        for index in range(num):
            sent(equal, simulation, 1.0, first=index)
    for simulation in range(3):
        equal.finish(simulation, [float(simulation)])
    assert equal.warnings, "each step that was compared came of two"
    assert len(equal._checksums) < 128 * (1 + num.bit_length() - 7)


@pytest.mark.parametrize("labels", [range(50, 1000, 100), range(1001, 1091, 3), [0, *range(1001, 3000, 2)]])
def test_labels_of_steps_may_be_far_apart(equal: EqualSimulations, labels: Sequence[int]) -> None:
    for simulation in range(2):
        for label in labels:
            sent(equal, simulation, 1.0 + simulation * (label > labels[0]), first=label)
    assert not equal.is_open


def test_a_rank_of_several_compares_as_many_of_its_own_steps() -> None:
    slots = Slots({"u": (4,)}, 10)
    slots.allocate({"u": np.float64})
    equal = EqualSimulations(slots, is_open=True, stride=3)
    for index in range(0, 360, 3):
        sent(equal, 0, 1.0, first=index)
    sent(equal, 0, 1.0, first=379)
    sent(equal, 1, 2.0, first=379)
    assert not equal.is_open


def test_an_optional_field_that_no_simulation_sends_is_told_of_once_and_at_the_end() -> None:
    missing = MissingFields(["label", "mask"], num_ranks=1)
    told = []
    for simulation in range(5):
        attempt = AttemptState(simulation=simulation, attempt=0, entry=LedgerEntry(simulation))
        missing.note(StepRun(attempt, 0, range(1), [0], ("label",) if simulation == 4 else ("label", "mask"), []))
        told += missing.finish(simulation, [])
    assert [text.split(", which")[0] for text in (*told, *missing.warnings)] == [
        "no time step that was received has label, mask",
        "no time step that was received has label",
    ]
    assert missing.is_open


def test_nothing_is_told_of_optional_fields_that_came_or_where_nothing_came() -> None:
    missing = MissingFields(["label"], num_ranks=1)
    assert [missing.finish(simulation, []) for simulation in range(4)] == [[]] * 4
    assert missing.warnings == []
    missing.note(StepRun(AttemptState(simulation=0, attempt=0, entry=LedgerEntry(0)), 0, range(1), [0], (), []))
    assert missing.warnings == []
    assert not missing.is_open


def test_a_rank_that_sees_some_steps_of_each_simulation_waits_for_more_of_them() -> None:
    missing = MissingFields(["label"], num_ranks=4)
    for simulation in range(12):
        assert missing.warnings == []
        missing.note(
            StepRun(
                AttemptState(simulation=simulation, attempt=0, entry=LedgerEntry(simulation)),
                0,
                range(1),
                [0],
                ("label",),
                [],
            )
        )
        assert len(missing.finish(simulation, [])) == (simulation == 11)
    assert len(missing.warnings) == 1
