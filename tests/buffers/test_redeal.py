from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.buffers import Buffer, Fifo, Firo, Policy, Reservoir, Slots, num_slots_to_load, redeal
from stream_server.buffers.policy import Seed, State
from stream_server.buffers.redeal import Dealt
from stream_server.errors import Closed, UserCodeError
from tests.buffers.policies import POLICIES
from tests.buffers.test_restore import Player
from tests.support.buffer_saving import load, save
from tests.support.examples import examples

CAPACITY = 9
ENDING = [*[("draw", 4), ("admit", 0)] * 20, ("close", 0)]

for_all_policies = pytest.mark.parametrize("policy", POLICIES)
some_moves = st.lists(
    st.tuples(st.sampled_from(["fill", "fill", "admit", "admit", "draw", "draw", "release"]), st.integers(1, 5)),
    max_size=25,
)
some_ranks = st.lists(some_moves, min_size=1, max_size=4)
given_ranks = given(ranks=some_ranks, num=st.integers(1, 5), closed=st.booleans())


def seeds(num: int) -> list[tuple[int, ...]]:
    return [(5, 2, 1, rank) for rank in range(num)]


def kind(policy: str) -> type[Policy]:
    return type(POLICIES[policy](CAPACITY, 0))


def played(policy: str, ranks: list[list[tuple[str, int]]], *, closed: bool) -> list[Player]:
    """Some ranks in the middle of their work, or at its end."""
    players = [Player(POLICIES[policy](CAPACITY, rank), 150) for rank in range(len(ranks))]
    for rank, (player, moves) in enumerate(zip(players, ranks, strict=True)):
        player.play([*moves, *(ENDING if closed else [])], 1000 * rank)
    return players


def states_of(players: Sequence[Player]) -> list[State]:
    return [save(player.buffer)[0] for player in players]


def keys(state: State, rows: Any) -> list[tuple[Any, ...]]:
    columns = (state["simulation_ids"], state["time_steps"], state["seen"], state["present"]["v"])
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


def population(states: Sequence[State]) -> Counter[Any]:
    """Each sample that can be drawn, with what its policy says of it."""
    samples: Counter[Any] = Counter()
    for state in states:
        policy = state["policy"]
        says = policy.get("draws_left", policy.get("seen", policy["slots"] * 0))
        samples.update(zip(keys(state, policy["slots"]), says.tolist(), strict=True))
    return samples


def backlog(states: Sequence[State]) -> Counter[Any]:
    return Counter(sample for state in states for sample in keys(state, state["backlog"]))


def draws(states: Sequence[State]) -> list[Any]:
    return sorted((keys(state, draw["rows"]), draw["num_first"]) for state in states for draw in state["draws"])


def counter(states: Sequence[State], name: str) -> list[int]:
    return [state["policy"].get(name, 0) for state in states]


@for_all_policies
@settings(max_examples=examples(60), deadline=None)
@given_ranks
def test_nothing_is_lost_by_dealing_to_another_number_of_ranks(
    policy: str, ranks: list[list[tuple[str, int]]], num: int, closed: bool
) -> None:
    old = states_of(played(policy, ranks, closed=closed))
    dealt = redeal(old, policy=kind(policy), seeds=seeds(num))
    new = [it.state for it in dealt]
    assert population(new) == population(old)
    assert backlog(new) == backlog(old)
    assert draws(new) == draws(old)
    for name in ("num_inserts", "num_draws"):
        assert sum(counter(new, name)) == sum(counter(old, name))
    assert {state["policy"]["closed"] for state in new} == {all(state["policy"]["closed"] for state in old)}
    for it in dealt:
        for row, (rank, old_row) in enumerate(zip(it.ranks, it.rows, strict=True)):
            assert keys(it.state, [row]) == keys(old[rank], [old_row])


@for_all_policies
@settings(max_examples=examples(60), deadline=None)
@given_ranks
def test_every_rank_is_dealt_as_much(policy: str, ranks: list[list[tuple[str, int]]], num: int, closed: bool) -> None:
    dealt = redeal(states_of(played(policy, ranks, closed=closed)), policy=kind(policy), seeds=seeds(num))
    new = [it.state for it in dealt]
    for sizes in (
        [len(state["policy"]["slots"]) for state in new],
        [len(state["policy"]["slots"]) + len(state["backlog"]) for state in new],
        [int(np.count_nonzero(state["policy"]["seen"])) if "reservoir" in policy else 0 for state in new],
        counter(new, "num_inserts"),
        counter(new, "num_draws"),
        [len(state["draws"]) for state in new],
    ):
        assert max(sizes) - min(sizes) <= 1
    for it in dealt:
        assert list(zip(it.ranks, it.rows, strict=True)) == sorted(zip(it.ranks, it.rows, strict=True))


@for_all_policies
@settings(max_examples=examples(60), deadline=None)
@given_ranks
def test_what_was_dealt_is_trained_to_its_end(
    policy: str, ranks: list[list[tuple[str, int]]], num: int, closed: bool
) -> None:
    players = played(policy, ranks, closed=closed)
    saved = [save(player.buffer) for player in players]
    num_restored = num_first = 0
    for dealt in redeal([state for state, _ in saved], policy=kind(policy), seeds=seeds(num)):
        buffer = loaded(POLICIES[policy](CAPACITY, 0), dealt, [fields for _, fields in saved])
        while (draw := buffer.take_restored()) is not None:
            assert_whole(buffer, draw.slots)
            buffer.release(draw)
            num_restored += 1
        for draw in drained(buffer):
            assert_whole(buffer, draw.slots)
            num_first += draw.num_first
            buffer.release(draw)
        assert buffer.num_unseen == buffer.num_waiting == 0
        assert buffer.slots.num_free == buffer.slots.num_slots - buffer.population
    assert num_restored == sum(len(player.draws) for player in players)
    assert num_first == sum(player.buffer.num_unseen + player.buffer.num_waiting for player in players)


def loaded(policy: Policy, dealt: Dealt, fields: Sequence[Any]) -> Buffer:
    """A new rank's buffer, with its rows copied from those of the old ranks."""
    num_slots = num_slots_to_load(dealt.state, capacity=policy.capacity, planned=policy.capacity)
    slots = Slots({"u": (2,), "v": ()}, num_slots)
    slots.allocate({"u": np.float32, "v": np.int64})
    buffer = Buffer(policy, slots)
    rows = {name: np.empty((len(dealt.rows), *shape)) for name, shape in slots.shapes.items()}
    for name, values in rows.items():
        for rank, of_rank in enumerate(fields):
            values[dealt.ranks == rank] = of_rank[name][dealt.rows[dealt.ranks == rank]]
    load(buffer, dealt.state, rows)
    return buffer


def drained(buffer: Buffer) -> Iterator[Any]:
    while buffer.num_waiting:
        if not buffer.admit():
            yield buffer.draw(min(3, buffer.population), 0.0)
    buffer.close()
    try:
        while True:
            yield buffer.draw(3, 0.0)
    except Closed:
        return


def assert_whole(buffer: Buffer, slots: Any) -> None:
    rows, samples = buffer.slots.gather(slots), buffer.slots.time_steps[slots]
    assert (rows["u"] == samples[:, None]).all()
    assert (rows["v"] == np.where(buffer.slots.present["v"][slots], -samples, 0)).all()


def frozen_state(policy: Policy, num: int, num_waiting: int = 0) -> State:
    """The samples of a rank are told by their time steps: 0, 1, …, with `num_waiting` of them in the backlog."""
    player = Player(policy, 50)
    player.fill(num, 0)
    player.admit()
    player.fill(num_waiting, num)
    return save(player.buffer)[0]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_policy_that_loses_a_sample_or_deals_it_twice_is_refused(lost: int) -> None:
    class Careless(Fifo):
        @classmethod
        def deal(cls, states: Sequence[State], seeds: Sequence[Seed]) -> list[State]:
            first, second = super().deal(states, seeds)
            return [first, {**second, "slots": second["slots"][1:] if lost else first["slots"]}]

    with pytest.raises(UserCodeError, match=r"Careless\.deal must give each slot to exactly one of 2 ranks"):
        redeal([frozen_state(Careless(capacity=9), 4)], policy=Careless, seeds=seeds(2))


def test_the_samples_of_fifos_are_dealt_in_the_order_of_their_arrival() -> None:
    old = [frozen_state(Fifo(capacity=9), num, 2) for num in (4, 2)]
    dealt = redeal(old, policy=Fifo, seeds=seeds(3))
    assert [it.state["time_steps"][it.state["policy"]["slots"]].tolist() for it in dealt] == [[0, 1], [0, 2], [1, 3]]
    assert [it.state["time_steps"][it.state["backlog"]].tolist() for it in dealt] == [[4, 3], [2], [5]]


def test_the_draws_left_of_firos_are_dealt_evenly() -> None:
    players = [Player(Firo(capacity=9, watermark=1, pseudo_epochs=3, seed=rank), 50) for rank in range(2)]
    for player in players:
        player.play([("fill", 8), ("admit", 0), ("draw", 5), ("draw", 5), ("draw", 1)], 0)
    dealt = redeal(states_of(players), policy=Firo, seeds=seeds(3))
    sums = [int(it.state["policy"]["draws_left"].sum()) for it in dealt]
    assert sum(sums) == 2 * (24 - 11)
    assert max(sums) - min(sums) <= 2


def test_random_streams_begin_anew_from_the_given_seeds() -> None:
    old = [frozen_state(Reservoir(capacity=9, watermark=1, seed=1), 6)] * 2
    dealt = redeal(old, policy=Reservoir, seeds=[3, 4])
    expected = [Reservoir(capacity=9, watermark=1, seed=seed).state_dict()["random"] for seed in (3, 4)]
    assert [it.state["policy"]["random"] for it in dealt] == expected


def test_a_sample_that_a_draw_holds_may_be_dealt_to_two_ranks() -> None:
    player = Player(Reservoir(capacity=9, watermark=1, seed=1), 50)
    player.play([("fill", 4), ("admit", 0), ("draw", 4)], 0)
    first, second = redeal(states_of([player]), policy=Reservoir, seeds=seeds(2))
    assert len(first.rows) == 4
    assert len(second.rows) == 2
    assert len(first.state["draws"]) == 1
    assert not second.state["draws"]
