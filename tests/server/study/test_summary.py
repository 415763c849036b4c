"""What held a run up is said from the time of its phases."""

import pytest

from stream_server.server.study.closing import bottleneck_of_run


@pytest.mark.parametrize(
    ("phases_s", "told"),
    [
        ({"wait_for_data": 70.0, "step": 10.0, "forward": 20.0}, "training waited for data 70% of the time"),
        ({"wait_for_data": 5.0, "step": 10.0, "forward": 20.0, "backward": 15.0}, "training was busy 90% of the time"),
        ({"all_reduce": 42.0, "round": 20.0, "backward": 18.0, "validation": 20.0}, "the ranks took 62% of the time"),
        ({"transform": 30.0, "gather": 10.0, "forward": 30.0, "wait_for_data": 30.0}, "forming batches took 40%"),
        ({"validation": 50.0, "forward": 30.0, "wait_for_data": 20.0}, "validation took 50% of the time"),
        ({"checkpoint": 50.0, "forward": 30.0, "wait_for_data": 20.0}, "checkpoints took 50% of the time"),
        ({"log": 40.0, "step": 35.0, "gather": 25.0}, "writing metrics took 40% of the time"),
    ],
)
def test_what_took_most_of_the_time_is_named(phases_s: dict[str, float], told: str) -> None:
    assert told in bottleneck_of_run(phases_s)


def test_no_more_simulations_are_advised_where_there_are_no_cores_for_them() -> None:
    waited = {"wait_for_data": 8.0, "forward": 2.0}
    assert "run more simulations at once" in bottleneck_of_run(waited)
    told = bottleneck_of_run(waited, oversubscribed=True)
    assert told.startswith("training waited for data 80% of the time, and simulations for cores")


def test_threads_beside_the_training_count_for_nothing() -> None:
    assert "waited for data 80%" in bottleneck_of_run(
        {"receive": 500.0, "prefetch": 500.0, "wait_for_data": 8.0, "forward": 2.0}
    )


@pytest.mark.parametrize(
    "phases_s",
    [{}, {"wait_for_data": 0.4}, {"wait_for_data": 29.0, "validation": 29.0, "transform": 29.0, "log": 29.0}],
)
def test_nothing_is_said_of_a_moment_or_where_nothing_stands_out(phases_s: dict[str, float]) -> None:
    assert bottleneck_of_run(phases_s) == ""
