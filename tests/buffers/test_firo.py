from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.buffers import Firo
from tests.buffers.models import FiroModel, are_equally_likely
from tests.buffers.policy_machine import MACHINE_SETTINGS, PolicyMachine

sizes = st.integers(1, 12).flatmap(lambda capacity: st.tuples(st.just(capacity), st.integers(1, capacity)))


class FiroMachine(PolicyMachine):
    pairs = st.builds(
        lambda size, incarnations, seed: (
            lambda: Firo(capacity=size[0], watermark=size[1], pseudo_epochs=incarnations, seed=seed),
            lambda: FiroModel(size[0], size[1], incarnations),
        ),
        sizes,
        st.integers(1, 3),
        st.integers(0, 100),
    )


TestFiroBehavesAsItsModel = FiroMachine.TestCase
TestFiroBehavesAsItsModel.settings = MACHINE_SETTINGS


@given(num=st.integers(1, 40), pseudo_epochs=st.integers(1, 5), batch=st.integers(1, 12), seed=st.integers(0, 9))
def test_a_closed_firo_draws_each_sample_pseudo_epochs_times_in_even_batches(
    num: int, pseudo_epochs: int, batch: int, seed: int
) -> None:
    policy = Firo(capacity=40, watermark=40, pseudo_epochs=pseudo_epochs, seed=seed)
    policy.put(range(num))
    policy.close()
    batches = []
    while size := policy.ready(batch):
        batches.append(policy.draw(size).slots.tolist())
    assert Counter(slot for slots in batches for slot in slots) == dict.fromkeys(range(num), pseudo_epochs)
    assert len(batches) == -(-num * pseudo_epochs // batch)
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


def test_a_batch_larger_than_a_closed_firo_draws_for_the_first_time_only_what_is_in_it() -> None:
    for seed in range(20):
        policy = Firo(capacity=4, watermark=4, pseudo_epochs=3, seed=seed)
        policy.put(range(4))
        policy.close()
        drawn = policy.draw(5)
        assert drawn.num_first == len(set(drawn.slots.tolist()))


@pytest.mark.parametrize(("population", "num"), [(9, 2), (6, 3)])
def test_all_batches_of_firo_are_equally_likely(population: int, num: int) -> None:
    policy = Firo(capacity=population, watermark=1, seed=(3, 1))
    counts = dict.fromkeys(combinations(range(population), num), 0)
    for _ in range(100 * len(counts)):
        policy.put(sorted(set(range(population)) - set(policy.slots().tolist())))
        counts[tuple(sorted(policy.draw(num).slots.tolist()))] += 1
    assert are_equally_likely(list(counts.values()))


def test_firo_waits_for_its_watermark_again_and_again() -> None:
    policy = Firo(capacity=8, watermark=4, seed=1)
    policy.put([0, 1, 2, 3])
    assert policy.ready(2) == 2
    policy.draw(2)
    assert policy.ready(2) == 0
    policy.put([4, 5])
    assert policy.ready(2) == 2


def test_firo_refuses_less_than_one_pseudo_epoch() -> None:
    with pytest.raises(ValueError, match="pseudo_epochs must be at least 1, but is 0"):
        Firo(capacity=8, watermark=4, pseudo_epochs=0, seed=1)
