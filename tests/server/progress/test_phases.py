"""Every second belongs to exactly one phase."""

from stream_server.server.progress.phases import Phases, mean_over_ranks
from tests.support.timing import Clock


def test_a_phase_is_counted_as_long_as_it_lasts() -> None:
    clock = Clock()
    phases = Phases(clock)
    for seconds in (2.0, 3.0):
        with phases.measure("step"):
            clock.now += seconds
        clock.now += 10.0
    assert phases.seconds == {"step": 5.0}


def test_a_nested_phase_is_not_counted_twice() -> None:
    clock = Clock()
    phases = Phases(clock)
    with phases.measure("step"):
        clock.now += 1.0
        with phases.measure("all_reduce"):
            clock.now += 4.0
        clock.now += 2.0
    assert phases.seconds == {"step": 3.0, "all_reduce": 4.0}


def test_a_phase_inside_itself_is_counted_once() -> None:
    clock = Clock()
    phases = Phases(clock)
    with phases.measure("step"), phases.measure("step"):
        clock.now += 1.0
    assert phases.seconds == {"step": 1.0}


def test_a_phase_that_raises_is_counted_and_left() -> None:
    clock = Clock()
    phases = Phases(clock)
    try:
        with phases.measure("validation"):
            clock.now += 1.0
            raise KeyError
    except KeyError:
        pass
    assert phases.seconds == {"validation": 1.0}
    assert phases.current is None


def test_the_current_phase_is_the_innermost_one() -> None:
    phases = Phases(Clock())
    with phases.measure("step"):
        with phases.measure("all_reduce"):
            assert phases.current == "all_reduce"
        assert phases.current == "step"


def test_time_measured_elsewhere_can_be_added() -> None:
    phases = Phases(Clock())
    phases.add("receive", 0.5)
    phases.add("receive", 0.25)
    assert phases.seconds == {"receive": 0.75}


def test_the_seconds_before_a_restart_count_too() -> None:
    before, phases = Phases(Clock()), Phases(Clock())
    before.add("step", 2.0)
    phases.add("step", 0.5)
    phases.load_state_dict(before.state_dict())
    assert phases.seconds == {"step": 2.5}


def test_the_mean_over_ranks_counts_a_missing_phase_as_zero() -> None:
    assert mean_over_ranks([{"step": 4.0}, {"step": 2.0, "validation": 1.0}]) == {"step": 3.0, "validation": 0.5}
