"""The hint about the capacity of the buffer, held against runs with other capacities."""

import pytest

from stream_server.server.study.report import capacity_hint, judge_capacity
from tests.support.scripted_buffer import ScriptedRun


def run(capacity: int, *, burst: int, compute_s: float, num_bursts: int = 20) -> tuple[dict[str, float], float]:
    """The times of a scripted run, and how long it took."""
    scripted = ScriptedRun(capacity=capacity, burst=burst, compute_s=compute_s, num_bursts=num_bursts)
    return scripted.train().counts, scripted.clock.now


def test_a_capacity_that_would_have_helped_is_told_and_does_help() -> None:
    """Bursts of 100 for 50 places, every 12 s: simulations are held up for 2 s, and training waits for 7 s."""
    bursts = {"burst": 100, "compute_s": 10.0}
    counts, took_s = run(50, **bursts)
    judged = judge_capacity(50, [counts])
    assert judged["full"] == pytest.approx(2 / 12, rel=0.06)
    assert judged["waiting"] == pytest.approx(7 / 12, rel=0.06)
    # In 2 s the simulations would have sent a fifth of what they send in 10 s.
    assert judged["enough"] == pytest.approx(70, abs=3)
    assert capacity_hint(judged) == (
        f"a buffer.capacity of {judged['enough']} or more would have helped: training waited after it was full "
        f"(full {judged['full']:.0%} of the time, training waited for data {judged['waiting']:.0%})"
    )
    again, faster_s = run(judged["enough"], **bursts)
    # Half of the 2 s that were lost with each burst.
    assert took_s - faster_s == pytest.approx(19 * 1.0, rel=0.06)
    assert judge_capacity(judged["enough"], [again])["full"] < judged["full"]


def test_that_a_larger_one_would_not_have_helped_a_training_that_waits_is_told_and_true() -> None:
    bursts = {"burst": 40, "compute_s": 10.0}
    counts, took_s = run(50, **bursts)
    judged = judge_capacity(50, [counts])
    assert judged["enough"] is None
    assert capacity_hint(judged).startswith(
        "a larger buffer.capacity would not have helped: training waited, and hardly"
    )
    assert run(500, **bursts)[1] == took_s


def test_that_a_larger_one_would_have_helped_simulations_alone_is_told_and_true() -> None:
    bursts = {"burst": 100, "compute_s": 0.5}
    counts, took_s = run(50, **bursts)
    judged = judge_capacity(50, [counts])
    assert judged["full"] > 0.8
    assert judged["enough"] is None
    assert capacity_hint(judged).startswith(
        "with a larger buffer.capacity simulations would have waited less, and training"
    )
    assert run(500, **bursts)[1] == pytest.approx(took_s, rel=0.01)


def test_nothing_is_said_where_neither_waited_or_of_a_moment_or_of_a_run_that_never_began() -> None:
    counts, _ = run(400, burst=100, compute_s=4.9, num_bursts=10)
    judged = judge_capacity(400, [counts])
    assert max(judged["full"], judged["waiting"]) < 0.1
    assert capacity_hint(judged) == ""
    moment = {"open_s": 0.9, "waited_s": 0.4, "full_s": 0.4, "num_first": 20, "num_turns": 2}
    assert capacity_hint(judge_capacity(10, [moment, moment])) == ""
    for nothing in ([], [{}]):
        assert judge_capacity(10, nothing) == {"seconds": 0.0, "waiting": 0.0, "full": 0.0, "enough": None}
        assert capacity_hint(judge_capacity(10, nothing)) == ""


def test_a_buffer_that_was_full_only_after_the_waits_was_not_too_small() -> None:
    times = {"open_s": 10.0, "waited_s": 3.0, "full_s": 3.0, "num_first": 20, "num_turns": 0}
    judged = judge_capacity(10, [times])
    assert judged["enough"] is None
    assert "would not have helped" in capacity_hint(judged)
