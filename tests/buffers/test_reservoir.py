from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stream_server.buffers import Fifo, Reservoir
from tests.buffers.models import ReservoirModel, are_equally_likely
from tests.buffers.policy_machine import MACHINE_SETTINGS, PolicyMachine
from tests.support.examples import examples

sizes = st.integers(1, 12).flatmap(lambda capacity: st.tuples(st.just(capacity), st.integers(1, capacity)))
ratios = st.sampled_from([1, 1.5, 2, 2.3, 10])


class ReservoirMachine(PolicyMachine):
    pairs = st.builds(
        lambda size, ratio, seed: (
            lambda: Reservoir(capacity=size[0], watermark=size[1], draws_per_sample=ratio, seed=seed),
            lambda: ReservoirModel(size[0], size[1], ratio),
        ),
        sizes,
        st.none() | ratios,
        st.integers(0, 100),
    )


TestReservoirBehavesAsItsModel = ReservoirMachine.TestCase
TestReservoirBehavesAsItsModel.settings = MACHINE_SETTINGS


def half_seen(population: int, num_seen: int) -> Reservoir:
    """A full Reservoir whose slots 0 … num_seen-1 have been drawn."""
    policy = Reservoir(capacity=population, watermark=1, seed=(7, 0))
    policy.put(range(num_seen))
    policy.draw(num_seen)
    policy.put(range(num_seen, population))
    return policy


@pytest.mark.parametrize(("population", "num"), [(9, 1), (9, 2), (9, 3), (6, 3), (6, 5)])
def test_all_batches_over_seen_and_unseen_are_equally_likely(population: int, num: int) -> None:
    policy = half_seen(population, population // 2)
    counts = dict.fromkeys(combinations(range(population), num), 0)
    for _ in range(100 * len(counts)):
        counts[tuple(sorted(policy.draw(num).slots.tolist()))] += 1
    assert are_equally_likely(list(counts.values()))


@pytest.mark.parametrize("num", [1, 2, 5])
def test_all_evictions_from_the_seen_are_equally_likely(num: int) -> None:
    policy = half_seen(16, 6)
    state = policy.state_dict()
    counts = dict.fromkeys(combinations(range(6), num), 0)
    for _ in range(200 * len(counts)):
        policy.load_state_dict({**state, "random": policy.state_dict()["random"]})
        counts[tuple(sorted(policy.put(range(100, 100 + num)).tolist()))] += 1
    assert are_equally_likely(list(counts.values()))


def test_eviction_stays_uniform_over_the_seen_in_a_long_run() -> None:
    policy = Reservoir(capacity=12, watermark=1, seed=5)
    policy.put(range(12))
    seen: list[int] = []
    counts = np.zeros(6, np.int64)
    for slot in range(12, 20_000):
        seen += [it for it in policy.draw(1).slots.tolist() if it not in seen]
        if len(seen) < 6:
            continue
        (evicted,) = policy.put([slot]).tolist()
        counts[seen.index(evicted)] += 1
        seen.remove(evicted)
    assert counts.sum() > 5_000
    assert are_equally_likely(counts)


def test_reservoir_never_evicts_an_unseen_sample() -> None:
    policy = half_seen(16, 3)
    assert policy.room == 3
    assert sorted(policy.put([20, 21, 22]).tolist()) == [0, 1, 2]
    assert policy.room == 0


def test_a_sample_that_takes_the_place_of_a_removed_one_is_unseen() -> None:
    policy = half_seen(4, 4)
    policy.remove(np.array([2]))
    policy.put([9])
    assert policy.num_unseen == policy.draw(4).num_first == 1


def test_samples_can_be_removed_while_a_closed_reservoir_drains() -> None:
    policy = Reservoir(capacity=6, watermark=1, seed=1)
    policy.put(range(6))
    policy.close()
    drawn = policy.draw(3).slots.tolist()
    kept, *removed = sorted(set(range(6)) - set(drawn))
    assert policy.remove(np.array(removed)) == 2
    assert policy.slots().tolist() == [kept]
    assert policy.draw(1).num_first == 1


def test_when_draining_begins_within_a_batch_all_samples_are_equally_likely_to_leave() -> None:
    counts = np.zeros(6, np.int64)
    policy = Reservoir(capacity=6, watermark=1, draws_per_sample=1.5, seed=1)
    policy.put(range(6))
    policy.close()
    state = policy.state_dict()
    for _ in range(1200):
        policy.load_state_dict({**state, "random": policy.state_dict()["random"]})
        (removed,) = policy.draw(4).removed.tolist()
        counts[removed] += 1
    assert are_equally_likely(counts)


def test_a_reservoir_without_room_can_be_drawn_from_whatever_its_restored_counters_say() -> None:
    policy = Reservoir(capacity=4, watermark=1, draws_per_sample=2, seed=1)
    policy.put(range(4))
    policy.load_state_dict({**policy.state_dict(), "num_draws": 100})
    assert policy.room == 0
    assert policy.ready(2) == 2


def test_a_reservoir_that_is_opened_again_while_it_drains_evicts_only_seen_samples() -> None:
    for seed in range(40):
        policy = Reservoir(capacity=12, watermark=1, draws_per_sample=1.5, seed=seed)
        policy.put(range(12))
        policy.close()
        while policy.num_left > policy.population:
            policy.draw(policy.ready(2))
        policy.draw(policy.ready(5))
        policy.reopen()
        unseen = policy.num_unseen
        num_free = 12 - policy.population
        evicted = policy.put(range(20, 20 + policy.room))
        assert len(evicted) == 12 - unseen - num_free
        assert policy.num_unseen == policy.population == 12


def test_reservoir_over_its_capacity_shrinks_by_evicting_the_seen() -> None:
    large = half_seen(16, 10)
    policy = Reservoir(capacity=8, watermark=1, seed=1)
    policy.load_state_dict(large.state_dict())
    assert policy.room == 2
    assert len(policy.put([20])) == 9
    assert policy.population == 8
    assert set(policy.slots().tolist()) >= {10, 11, 12, 13, 14, 15, 20}


def stream(policy: Reservoir, num_samples: int, batch: int, seed: int) -> list[list[int]]:
    """All batches of a stream whose samples come and are drawn in a random interleaving."""
    random = np.random.default_rng(seed)
    batches: list[list[int]] = []
    next_slot = 0
    while next_slot < num_samples:
        ready = policy.ready(batch)
        assert ready or policy.room, "neither side can go on"
        if ready and (not policy.room or random.random() < 0.5):
            batches.append(policy.draw(ready).slots.tolist())
        else:
            num = min(int(random.integers(1, 5)), policy.room, num_samples - next_slot)
            policy.put(range(next_slot, next_slot + num))
            next_slot += num
    policy.close()
    while ready := policy.ready(batch):
        batches.append(policy.draw(ready).slots.tolist())
    return batches


@settings(max_examples=examples(150))
@given(size=sizes, ratio=ratios, batch=st.integers(1, 8), num_samples=st.integers(1, 60), seed=st.integers(0, 999))
def test_draws_per_sample_makes_the_number_of_batches_exact(
    size: tuple[int, int], ratio: float, batch: int, num_samples: int, seed: int
) -> None:
    assume(batch <= min(size[0], num_samples))
    policy = Reservoir(capacity=size[0], watermark=size[1], draws_per_sample=ratio, seed=seed)
    batches = stream(policy, num_samples, batch, seed)
    draws = Counter(slot for slots in batches for slot in slots)
    assert len(batches) == -(-round(ratio * num_samples) // batch)
    assert draws.total() == round(ratio * num_samples)
    assert set(draws) == set(range(num_samples))


def test_a_single_sample_too_many_at_the_close_is_evicted() -> None:
    policy = Reservoir(capacity=4, watermark=1, draws_per_sample=1.5, seed=1)
    policy.put(range(4))
    for _ in range(3):
        policy.draw(policy.ready(1))
    assert len(policy.close()) == 1
    while size := policy.ready(2):
        policy.draw(size)
    assert policy.population == 0


def test_one_draw_per_sample_draws_each_exactly_once() -> None:
    policy = Reservoir(capacity=10, watermark=5, draws_per_sample=1, seed=3)
    batches = stream(policy, 103, 4, seed=2)
    assert sorted(slot for slots in batches for slot in slots) == list(range(103))


@given(size=sizes, batch=st.integers(1, 8), num_samples=st.integers(1, 60), seed=st.integers(0, 999))
def test_every_sample_is_drawn_and_the_last_batches_are_even(
    size: tuple[int, int], batch: int, num_samples: int, seed: int
) -> None:
    assume(batch <= size[0])
    batches = stream(Reservoir(capacity=size[0], watermark=size[1], seed=seed), num_samples, batch, seed)
    assert {slot for slots in batches for slot in slots} == set(range(num_samples))
    assert min(map(len, batches)) >= min(batch, num_samples) // 2


@pytest.mark.parametrize("ratio", [0, 0.99, float("inf"), float("nan")])
def test_reservoir_refuses_a_ratio_that_is_no_number_of_at_least_one(ratio: float) -> None:
    with pytest.raises(ValueError, match="draws_per_sample must be a number of at least 1"):
        Reservoir(capacity=4, watermark=1, draws_per_sample=ratio, seed=0)


@pytest.mark.parametrize("draws_per_sample", [None, 1.0, 3.0])
def test_at_the_end_of_a_round_what_was_never_drawn_is_and_all_stay(draws_per_sample: float | None) -> None:
    policy = Reservoir(capacity=12, watermark=1, draws_per_sample=draws_per_sample, seed=(7, 0))
    seen: Counter[int] = Counter()
    for first in (0, 10):
        assert len(policy.put(range(first, first + 10))) == (8 if first else 0)
        seen.update(policy.draw(3).slots.tolist())
        assert policy.end_round().tolist() == []
        while num := policy.ready(4):
            drawn = policy.draw(num)
            seen.update(drawn.slots.tolist())
            assert drawn.removed.tolist() == []
        assert policy.num_unseen == 0
        assert set(seen) == set(range(first + 10))
        if draws_per_sample is not None:
            assert policy.population <= draws_per_sample * (first + 10) - seen.total() + policy.population
        policy.reopen()
    policy.close()
    while num := policy.ready(4):
        seen.update(policy.draw(num).slots.tolist())
    assert policy.population == 0
    if draws_per_sample is not None:
        assert seen.total() == round(draws_per_sample * 20)


@pytest.mark.parametrize(("before", "now"), [(2.0, 3.5), (3.0, 1.0), (2.5, 2.0), (None, 2.0)])
def test_another_bound_on_draws_holds_for_the_samples_to_come(before: float | None, now: float) -> None:
    """20 samples come by the old bound, and 30 by the new one."""
    policy = Reservoir(capacity=10, watermark=1, draws_per_sample=before, seed=1)
    first = pour(policy, range(20), most=60)
    other = Reservoir(capacity=10, watermark=1, draws_per_sample=now, seed=2)
    other.load_state_dict(Reservoir.with_other_bound(policy.state_dict(), before, now))
    second = pour(other, range(20, 50), most=1000)
    other.close()
    while num := other.ready(1):
        second.update(other.draw(num).slots.tolist())
    drawn = first + second
    assert set(drawn) == set(range(50))
    if before is not None:
        least = 20 * before + 30 * now
        # None of the unseen stays so, whatever the bound.
        assert least - 1 <= drawn.total() <= least + 10
    else:
        assert second.total() <= 30 * now + 10


def test_samples_of_a_closed_buffer_that_gets_a_bound_are_drawn_once_more_as_without() -> None:
    policy = Reservoir(capacity=20, watermark=1, seed=1)
    policy.put(range(20))
    while policy.num_unseen:
        policy.draw(1)
    policy.close()
    other = Reservoir(capacity=20, watermark=1, draws_per_sample=3.0, seed=2)
    other.load_state_dict(Reservoir.with_other_bound(policy.state_dict(), None, 3.0))
    assert other.num_left == policy.num_left == 20
    drawn = [slot for _ in range(5) for slot in other.draw(other.ready(4)).slots.tolist()]
    assert (sorted(drawn), other.num_left) == ([*range(20)], 0)


@pytest.mark.parametrize(("before", "now"), [(2.3, 1.1), (1.1, 2.3), (3.7, 3.6)])
def test_another_bound_leaves_exactly_the_draws_that_were_left(before: float, now: float) -> None:
    policy = Reservoir(capacity=50, watermark=1, draws_per_sample=before, seed=1)
    for size in range(1, 50):
        policy.put([size])
        if policy.ready(1):
            policy.draw(1)
        other = Reservoir(capacity=50, watermark=1, draws_per_sample=now, seed=2)
        other.load_state_dict(Reservoir.with_other_bound(policy.state_dict(), before, now))
        assert other.num_left == policy.num_left


def test_a_policy_without_such_counts_stays_as_it_is() -> None:
    state = Fifo(capacity=3).state_dict()
    assert Fifo.with_other_bound(state, 2.0, 3.0) is state


def pour(policy: Reservoir, slots: range, *, most: int) -> Counter[int]:
    """Put samples as there is room, and draw whatever may be drawn, so many samples at most."""
    drawn: Counter[int] = Counter()
    waiting = [*slots]
    while waiting:
        while waiting and policy.room:
            policy.put([waiting.pop(0)])
        while drawn.total() < most and (num := policy.ready(1)):
            drawn.update(policy.draw(num).slots.tolist())
            if policy.draws_per_sample is None and policy.room:
                break
    return drawn
