"""Whom a campaign kills, and when."""

import itertools
import random

import psutil

from tests.faults.chaos.kills import WEIGHTS, next_blow, victim
from tests.faults.chaos.processes import KINDS

ME = psutil.Process()
SPARED = frozenset({"client", "shell"})


def test_the_blows_of_a_seed_are_always_the_same() -> None:
    one, other = random.Random(5), random.Random(5)
    assert [next_blow(one, stops=True) for _ in range(50)] == [next_blow(other, stops=True) for _ in range(50)]


def test_nothing_is_stopped_unless_asked() -> None:
    draw = random.Random(5)
    assert {next_blow(draw, stops=False).pause_s for _ in range(50)} == {None}
    pauses = [next_blow(draw, stops=True).pause_s for _ in range(200)]
    assert None in pauses
    assert float("inf") in pauses


def test_every_kind_of_process_is_killed_unless_it_is_spared() -> None:
    assert set(WEIGHTS) == set(KINDS)
    everything = {kind: [ME] for kind in KINDS}
    draw = random.Random(5)
    victims = [victim(draw, everything, spared) for _, spared in itertools.product(range(200), (frozenset(), SPARED))]
    assert {one[0] for one in victims[::2] if one} == set(KINDS)
    assert {one[0] for one in victims[1::2] if one} == set(KINDS) - SPARED


def test_nobody_is_killed_where_nobody_is() -> None:
    nothing = {kind: [] for kind in KINDS}
    assert victim(random.Random(5), nothing, frozenset()) is None
