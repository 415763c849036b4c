"""Which samples of the stream the uniform reservoir holds in the end."""

import numpy as np
import numpy.typing as npt

from stream_server.buffers import Policy, Reservoir, UniformReservoir

CAPACITY = 200
NUM = 20 * CAPACITY
BATCH = 16


def arrivals_of_seen(policy: Policy) -> npt.NDArray[np.intp]:
    """The arrival numbers of the seen samples that are left of NUM samples; each arrives before a batch is drawn."""
    arrival: dict[int, int] = {}
    seen: set[int] = set()
    free = list(range(CAPACITY + 1))
    for number in range(NUM):
        slot = free.pop()
        arrival[slot] = number
        evicted = policy.put([slot]).tolist()
        assert seen.issuperset(evicted)
        seen.difference_update(evicted)
        free += evicted
        if policy.ready(BATCH):
            seen.update(policy.draw(BATCH).slots.tolist())
    return np.array([arrival[slot] for slot in seen])


def parts(arrivals: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """The parts that are of the four quarters of the stream."""
    return np.histogram(arrivals, 4, (0, NUM))[0] / len(arrivals)


def test_every_quarter_of_the_stream_is_there() -> None:
    found = [arrivals_of_seen(UniformReservoir(capacity=CAPACITY, watermark=1, seed=seed)) for seed in range(5)]
    # A quarter each, were it not for those that have just come, and that only 16 are compared.
    assert parts(np.concatenate(found)).min() > 0.15
    young = parts(arrivals_of_seen(Reservoir(capacity=CAPACITY, watermark=1, seed=0)))
    assert young[-1] > 0.95


def test_the_keys_stay_with_their_samples_over_a_restart_and_on_other_ranks() -> None:
    policy = UniformReservoir(capacity=8, watermark=1, seed=1)
    policy.put([9, 2, 30, 4])
    policy.draw(4)
    state = policy.state_dict()
    key_of = dict(zip(state["slots"].tolist(), state["keys"].tolist(), strict=True))
    assert len(set(key_of.values())) == 4
    dealt = UniformReservoir.deal([state, state], seeds=[(1, 0), (1, 1), (1, 2)])
    assert sorted(slot for it in dealt for slot in it["slots"].tolist()) == sorted([2, 4, 9, 30] * 2)
    for each in (state, *dealt):
        other = UniformReservoir(capacity=8, watermark=1, seed=2)
        other.load_state_dict(each)
        again = other.state_dict()
        assert {slot: key_of[slot] for slot in again["slots"].tolist()} == dict(
            zip(again["slots"].tolist(), again["keys"].tolist(), strict=True)
        )
