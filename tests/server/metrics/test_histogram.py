"""Counts in fixed intervals, which ranks can add up."""

import math

import numpy as np

from stream_server.server.metrics.histogram import LIMITS, Histogram


def test_a_histogram_counts_each_value_in_its_interval() -> None:
    values = np.concatenate((np.random.default_rng(0).normal(size=1000), [0.0, 1e-30, -1e30]))
    histogram = Histogram.of(values)
    assert histogram.num == sum(histogram.counts.values()) == 1003
    for place, num in histogram.counts.items():
        lower = LIMITS[place - 1] if place else -math.inf
        assert num == np.count_nonzero((values > lower) & (values <= LIMITS[place]))


def test_a_histogram_leaves_out_what_is_not_finite() -> None:
    assert Histogram.of([1.0, math.inf, math.nan]) == Histogram.of([1.0])


def test_whole_numbers_up_to_ten_are_kept_apart_in_a_histogram() -> None:
    assert len(Histogram.of(np.arange(11)).counts) == 11


def test_the_limit_of_an_interval_belongs_to_it() -> None:
    place = int(np.searchsorted(LIMITS, 3.0))
    assert Histogram.of([LIMITS[place - 1], LIMITS[place]]).counts == {place - 1: 1, place: 1}


def test_the_statistics_are_those_of_the_values() -> None:
    values = np.random.default_rng(0).normal(300.0, 5.0, size=1000)
    statistics = Histogram.of(values).statistics
    assert math.isclose(statistics["mean"], values.mean())
    assert math.isclose(statistics["std"], values.std(), rel_tol=1e-9)
    assert (statistics["min"], statistics["max"]) == (values.min(), values.max())


def test_equal_values_have_no_spread_in_spite_of_rounding() -> None:
    assert Histogram.of([0.1] * 3).statistics["std"] < 1e-8


def test_intervals_lie_within_the_smallest_and_the_largest_value() -> None:
    assert Histogram.of([-1e30, 2.0, 2.0]).intervals() == [(-1e30, LIMITS[0], 1), (LIMITS[LIMITS < 2.0][-1], 2.0, 2)]


def test_histograms_of_two_ranks_add_up_to_that_of_all_values() -> None:
    first, second = np.random.default_rng(0).normal(size=(2, 100))
    histogram = Histogram.of(first)
    histogram.add(Histogram.of(second))
    together = Histogram.of(np.concatenate((first, second)))
    assert (histogram.num, histogram.counts) == (together.num, together.counts)
    assert (histogram.min, histogram.max) == (together.min, together.max)
