"""The restoration of ranks from a checkpoint, on as many ranks as saved it and on other numbers."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_server.buffers import Buffer, Fifo, Firo, Policy, Reservoir, Slots
from stream_server.errors import DamagedCheckpoint
from stream_server.messages.client import Routing
from stream_server.server.checkpoint.folder import FORMAT, RANK, rank_folder
from stream_server.server.intake.account import SimulationEnd, TrainedCounts, close_account
from stream_server.server.intake.ledger import finished_simulations
from stream_server.server.replay.record_format import Segment
from stream_server.server.replay.recorder import begins_and_ends
from stream_server.storage.plain_state import read_state, to_bytes
from tests.support.examples import examples
from tests.support.saved_ranks import (
    NUM_HELD_OUT,
    NUM_STEPS,
    Key,
    SavedStudyRank,
    deal,
    restore_all,
    save_all,
    value,
)

POLICIES: dict[str, Callable[[int], Policy]] = {
    "fifo": lambda rank: Fifo(capacity=8),
    "firo": lambda rank: Firo(capacity=8, watermark=2, pseudo_epochs=2, seed=(rank,)),
    "reservoir": lambda rank: Reservoir(capacity=8, watermark=2, seed=(rank,)),
}

for_all_policies = pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)


def samples(rank: SavedStudyRank) -> list[Key]:
    """The samples that can be drawn or wait for room, in order."""
    return [*rank.keys(rank.policy.slots()), *rank.keys(rank.buffer._backlog)]


def held_out(rank: SavedStudyRank) -> list[Key]:
    rows = rank.store.freeze()
    return [(simulation, row.time_step) for simulation, row in zip(rows.simulation_ids, rows.steps, strict=True)]


def assert_has_its_values(rank: SavedStudyRank) -> None:
    arrays = rank.buffer.slots.arrays
    slots = [*rank.policy.slots().tolist(), *rank.buffer._backlog]
    for slot, key in zip(slots, rank.keys(slots), strict=True):
        np.testing.assert_array_equal(arrays["u"][slot], value(key))
    for key, row in zip(held_out(rank), rank.store.freeze().steps, strict=True):
        np.testing.assert_array_equal(row.fields["u"], value(key))


def busy_ranks(num: int, make_policy: Callable[[int], Policy]) -> list[SavedStudyRank]:
    """Ranks in the middle of their work: some drew, one holds a batch, samples wait and were rejected or withdrawn."""
    ranks = [SavedStudyRank(make_policy(rank), rank, num) for rank in range(num)]
    deal([(0, step) for step in range(9)], ranks)
    deal([(1, step) for step in range(2 * num)], ranks)
    deal([(2, step) for step in range(3 * num)], ranks)
    for rank in ranks:
        rank.draw(2)
    ranks[-1].withdraw(1)
    deal([(3, step) for step in range(6 * num)], ranks)
    ranks[0].reject((4, 4 * num - 4))
    ranks[-1].draw(2, release=False)
    return ranks


@for_all_policies
def test_a_rank_takes_back_just_what_it_had(make_policy: Callable[[int], Policy], tmp_path: Path) -> None:
    ranks = busy_ranks(2, make_policy)
    restores, found = restore_all(save_all(ranks, tmp_path), 2, 2, make_policy)
    for saved, part, rank in zip(ranks, restores, found, strict=True):
        assert part.is_own
        assert samples(rank) == samples(saved)
        assert held_out(rank) == held_out(saved)
        assert rank.account() == saved.account()
        assert to_bytes(rank.parameters.state_dict()) == to_bytes(saved.parameters.state_dict())
        assert part.saved[0].state["random"]["framework"] == {"cpu": rank.rank}
        assert_has_its_values(rank)


@for_all_policies
def test_batches_that_were_held_are_drawn_first_and_as_they_were(
    make_policy: Callable[[int], Policy], tmp_path: Path
) -> None:
    rank = SavedStudyRank(make_policy(0))
    rank.receive(*[(1, step) for step in range(8)])
    batches = [rank.draw(3, release=False), rank.draw(2, release=False)]
    num_drawn = rank.num_drawn
    _, [found] = restore_all(save_all([rank], tmp_path), 1, 1, make_policy)
    for batch in batches:
        draw = found.buffer.take_restored()
        assert draw is not None
        assert found.keys(draw.slots) == batch
        np.testing.assert_array_equal(found.buffer.gather(draw)["u"], [value(key) for key in batch])
        found.buffer.release(draw)
    assert found.buffer.take_restored() is None
    assert found.num_drawn == num_drawn


@for_all_policies
def test_a_rank_goes_on_drawing_as_it_would_have(make_policy: Callable[[int], Policy], tmp_path: Path) -> None:
    [rank] = busy_ranks(1, make_policy)
    _, [found] = restore_all(save_all([rank], tmp_path), 1, 1, make_policy)
    for _ in range(6):
        assert found.draw(2) == rank.draw(2)


@for_all_policies
@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 3), (2, 1), (3, 1), (3, 2), (2, 3), (4, 3)])
def test_on_another_number_of_ranks_each_rank_accounts_for_what_it_accepted(
    make_policy: Callable[[int], Policy], before: int, after: int, tmp_path: Path
) -> None:
    ranks = busy_ranks(before, make_policy)
    _, found = restore_all(save_all(ranks, tmp_path), before, after, make_policy)
    ends = {i: SimulationEnd(state="stopped", num_steps=NUM_STEPS, held_out=i < NUM_HELD_OUT) for i in range(5)}
    num_drawn = sum(rank.num_drawn for rank in ranks)
    learned = TrainedCounts(trained=num_drawn, untrained_reason="max_batches")
    old, new = (
        close_account([rank.account() for rank in each], ends, learned, complete=False) for each in (ranks, found)
    )
    assert new.problems == []
    assert new == old


@for_all_policies
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_on_another_number_of_ranks_no_sample_is_lost_and_none_is_there_twice(
    make_policy: Callable[[int], Policy], before: int, after: int, tmp_path: Path
) -> None:
    ranks = busy_ranks(before, make_policy)
    _, found = restore_all(save_all(ranks, tmp_path), before, after, make_policy)
    assert Counter(key for rank in found for key in samples(rank)) == Counter(
        key for rank in ranks for key in samples(rank)
    )
    assert Counter(key for rank in found for key in held_out(rank)) == Counter((0, step) for step in range(9))
    for rank in found:
        assert_has_its_values(rank)


def test_held_out_samples_are_dealt_to_all_ranks(tmp_path: Path) -> None:
    ranks = busy_ranks(1, POLICIES["fifo"])
    _, found = restore_all(save_all(ranks, tmp_path), 1, 2, POLICIES["fifo"])
    assert [len(held_out(rank)) for rank in found] == [5, 4]


def test_held_out_samples_go_on_as_they_were(tmp_path: Path) -> None:
    rank = SavedStudyRank(Fifo(capacity=8))
    rank.receive((0, 1), (0, 0))
    rank.store.add(0, 3, {"u": np.zeros(4)}, {"u": False})
    _, [found] = restore_all(save_all([rank], tmp_path), 1, 1, POLICIES["fifo"])
    for it in (rank, found):
        it.receive((0, 2))
        it.store.complete(0)
    rows, expected = found.store.complete_rows(), rank.store.complete_rows()
    assert rows.time_steps.tolist() == expected.time_steps.tolist() == [0, 1, 2, 3]
    assert rows.present["u"].tolist() == [True, True, True, False]
    np.testing.assert_array_equal(rows.rows("u", 0, 4), expected.rows("u", 0, 4))


@pytest.mark.parametrize("told", [[0, 1], [1], []])
def test_a_held_out_simulation_is_complete_on_any_number_of_ranks_if_all_its_shares_are(
    told: list[int], tmp_path: Path
) -> None:
    ranks = busy_ranks(2, POLICIES["fifo"])
    for rank in told:
        ranks[rank].intake.end_simulation(0, "finished")
    for num in (1, 2, 3):
        _, found = restore_all(save_all(ranks, tmp_path / str(num)), 2, num, POLICIES["fifo"])
        assert [len(rank.store.complete_rows()) for rank in found] == [0] * num
        news = [rank.intake.restore_ended(finished=[0], invalid=[]) for rank in found]
        assert news == [[] if rank in told else [0] for rank in range(num)]
        complete = [rank.store.complete_rows() for rank in found]
        assert sorted(step for it in complete for step in it.time_steps.tolist()) == list(range(9))


def test_what_was_counted_is_counted_once_on_another_number_of_ranks(tmp_path: Path) -> None:
    ranks = busy_ranks(3, POLICIES["fifo"])
    for rank in ranks:
        rank.intake.state.refused["checksum"] = 2
        rank.intake.state.ledger.duplicates = 5
    _, found = restore_all(save_all(ranks, tmp_path), 3, 2, POLICIES["fifo"])
    assert [rank.intake.state.refused["checksum"] for rank in found] == [6, 0]
    assert [rank.intake.state.ledger.duplicates for rank in found] == [15, 0]
    assert [rank.num_withdrawn for rank in found] == [sum(rank.num_withdrawn for rank in ranks), 0]


def test_every_rank_knows_the_parameters_of_all_simulations(tmp_path: Path) -> None:
    ranks = [SavedStudyRank(Fifo(capacity=8), rank, 2) for rank in range(2)]
    deal([(1, 0), (2, 0)], ranks, Routing.SIMULATIONS)
    _, found = restore_all(save_all(ranks, tmp_path), 2, 3, POLICIES["fifo"], Routing.SIMULATIONS)
    assert [rank.parameters.state_dict()["simulations"].tolist() for rank in found] == [[1, 2]] * 3


def test_ranks_that_received_nothing_can_be_taken_back(tmp_path: Path) -> None:
    ranks = [SavedStudyRank(Fifo(capacity=8), rank, 2) for rank in range(2)]
    ranks[1].receive((1, 2))
    for num in (1, 2, 3):
        _, found = restore_all(save_all(ranks, tmp_path / str(num)), 2, num, POLICIES["fifo"])
        assert [key for rank in found for key in samples(rank)] == [(1, 2)]


@pytest.mark.parametrize("nothing_on", [0, 1])
def test_a_rank_on_which_nobody_had_opened_yet_can_be_dealt_out(nothing_on: int, tmp_path: Path) -> None:
    ranks = [SavedStudyRank(Fifo(capacity=8), rank, 2) for rank in range(2)]
    ranks[nothing_on].buffer = Buffer(Fifo(capacity=8), Slots({"u": (4,)}, 8))
    ranks[1 - nothing_on].receive((1, 2 - nothing_on), (0, 3))
    for num in (1, 2, 3):
        _, found = restore_all(save_all(ranks, tmp_path / str(num)), 2, num, POLICIES["fifo"])
        assert [key for rank in found for key in samples(rank)] == [(1, 2 - nothing_on)]
        assert [key for rank in found for key in held_out(rank)] == [(0, 3)]
        for rank in found:
            assert_has_its_values(rank)
            assert all(rank.buffer.slots.present["u"][rank.policy.slots()])


def test_shares_are_whole_on_other_ranks_if_they_were_on_all(tmp_path: Path) -> None:
    ranks = busy_ranks(2, POLICIES["fifo"])
    for rank, whole in zip(ranks, ([1, 2], [2, 3]), strict=True):
        for simulation in whole:
            rank.intake.state.ledger[simulation].complete = True
            rank.intake.state.ledger[simulation].total = 6
    save_all(ranks, tmp_path)
    for num in (1, 2, 3):
        _, found = restore_all(tmp_path, 2, num, POLICIES["fifo"])
        whole = [rank.intake.state.ledger.complete() for rank in found]
        assert whole == ([{1: 6, 2: 6}, {2: 6, 3: 6}] if num == 2 else [{2: 6}] * num)
        assert finished_simulations(whole) == {2: 6}


@pytest.mark.parametrize(
    ("complete", "finished"),
    [
        ([{1: 4, 2: None}], {1: 4, 2: None}),
        ([{1: None, 2: 3}, {1: 4}], {1: 4}),
        ([{1: 4}, {}], {}),
    ],
)
def test_a_simulation_has_finished_if_it_is_complete_everywhere(
    complete: list[dict[int, int | None]], finished: dict[int, int | None]
) -> None:
    assert finished_simulations(complete) == finished


@pytest.mark.parametrize(
    ("positions", "files", "after", "expected"),
    [
        ([3, 5], [], 2, [(3, {}), (5, {})]),
        ([3, 5], [], 1, [(3, {1: 5})]),
        ([3, 5, 7, 9], [], 2, [(3, {2: 7, 3: 9}), (5, {})]),
        ([3, 5], [], 3, [(3, {}), (5, {}), (0, {})]),
        ([3, None], [], 1, [(None, {})]),
        ([None, 5], [], 3, [(None, {}), (None, {}), (None, {})]),
        # An earlier start had a third rank up to its entry 4, before the one that saved the checkpoint.
        ([3, 5], [(1, 0), (7, 4)], 3, [(3, {}), (5, {}), (4, {})]),
        ([3, 5], [(1, 0), (7, 4)], 2, [(3, {2: 4}), (5, {})]),
        # A later one had it, and saved no checkpoint.
        ([3, 5], [(8, 0)], 3, [(3, {}), (5, {}), (0, {})]),
        ([3, 5], [(8, 0)], 2, [(3, {2: 0}), (5, {})]),
        ([3], [(8, 0)], 2, [(3, {2: 0}), (0, {})]),
        ([], [(1, 0)], 2, [(0, {2: 0}), (0, {})]),
    ],
)
def test_the_record_goes_on_where_each_rank_left_it(
    positions: list[int | None],
    files: list[tuple[int, int]],
    after: int,
    expected: list[tuple[int | None, dict[int, int]]],
    tmp_path: Path,
) -> None:
    """`files` of a third rank are there: the incarnations that began them, and the entries from which on."""
    record = tmp_path / "record"
    record.mkdir()
    for incarnation, begin in files:
        (record / Segment(incarnation=incarnation, begin=begin, rank=2).name).touch()
    ranks = [SavedStudyRank(Fifo(capacity=8), rank, len(positions)) for rank in range(len(positions))]
    for rank, position in zip(ranks, positions, strict=True):
        rank.position = position
    saved: list[dict[int, int | None]] = [{}] * after
    if ranks:
        restores, _ = restore_all(save_all(ranks, tmp_path), len(positions), after, POLICIES["fifo"])
        saved = [restore.recorded() for restore in restores]
    found = [
        begins_and_ends(record, saved[rank], incarnation=7 if ranks else 0, rank=rank, num_ranks=after)
        for rank in range(after)
    ]
    assert found == expected


@for_all_policies
@settings(max_examples=examples(25))
@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from(Routing),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, NUM_STEPS - 1)), unique=True, max_size=40),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=8),
)
def test_the_account_balances_after_any_number_of_restarts(
    make_policy: Callable[[int], Policy],
    before: int,
    sizes: list[int],
    routing: Routing,
    keys: list[Key],
    draws: list[tuple[int, int, bool]],
) -> None:
    ranks = [SavedStudyRank(make_policy(rank), rank, before, routing) for rank in range(before)]
    ends = {i: SimulationEnd(state="stopped", num_steps=NUM_STEPS, held_out=i < NUM_HELD_OUT) for i in range(5)}
    with TemporaryDirectory() as folder:
        for number, size in enumerate(sizes):
            part = keys[number :: len(sizes)]
            deal(part[:20], ranks, routing)
            for rank, num, release in draws:
                ranks[rank % len(ranks)].draw(num, release=release)
            path = save_all(ranks, Path(folder) / str(number))
            num_drawn = sum(rank.num_drawn for rank in ranks)
            _, ranks = restore_all(path, len(ranks), size, make_policy, routing)
            for rank in ranks:
                while (draw := rank.buffer.take_restored()) is not None:
                    rank.buffer.release(draw)
            learned = TrainedCounts(trained=num_drawn, untrained_reason="max_batches")
            account = close_account([rank.account() for rank in ranks], ends, learned, complete=False)
            assert account.problems == []
            assert sum(rank.num_drawn for rank in ranks) == num_drawn


def test_what_ranks_have_observed_since_the_last_sync_comes_to_one_rank(tmp_path: Path) -> None:
    folder = save_all(busy_ranks(3, POLICIES["fifo"]), tmp_path)
    for num, expected in ((2, [3, 0]), (3, [1, 1, 1]), (4, [3, 0, 0, 0])):
        _, found = restore_all(folder, 3, num, POLICIES["fifo"])
        assert [rank.observed.num_samples for rank in found] == expected


def test_a_state_with_other_names_has_another_format(tmp_path: Path) -> None:
    """A change of what is saved needs another `FORMAT`, or older checkpoints are taken for damaged ones."""
    state = read_state(save_all([SavedStudyRank(Fifo(capacity=8))], tmp_path) / rank_folder(0) / RANK)
    state["ledger"] = state["intake"]["ledger"]
    names = {name: " ".join(sorted(part)) for name, part in state.items() if isinstance(part, dict)}
    assert names == {
        # An older checkpoint without `times` is taken as one of which they are not known.
        "stream": "num_drawn num_dropped prefetch_s times",
        "random": "framework numpy python",
        "intake": "dtypes ledger refused withdrawn",
        "ledger": "duplicates entries",
        "parameters": "simulations values",
        "buffer": "backlog draws layout policy present seen simulation_ids time_steps",
        "held_out": "complete layout present simulation_ids time_steps",
    }
    assert FORMAT == 9


def saved_and_restored(folder: Path, num_ranks: int, change: Callable[[dict[str, Any]], None]) -> None:
    """One rank is saved, its state is changed, and it is restored on `num_ranks`."""
    path = save_all([SavedStudyRank(Fifo(capacity=8))], folder) / rank_folder(0) / RANK
    state = read_state(path)
    change(state)
    path.write_bytes(to_bytes(state))
    restore_all(folder, 1, num_ranks, POLICIES["fifo"])


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("name", ["intake", "parameters", "stream", "normalization"])
def test_a_part_that_is_missing_is_damage(num_ranks: int, name: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match=f"lacks '{name}'"):
        saved_and_restored(tmp_path, num_ranks, lambda state: state.pop(name))


def test_a_part_that_is_optional_begins_anew(tmp_path: Path) -> None:
    [restored], _ = restore_all(save_all([SavedStudyRank(Fifo(capacity=8))], tmp_path), 1, 1, POLICIES["fifo"])
    restored.load({"scores": SavedStudyRank(Fifo(capacity=8)).stream}, optional=["scores"])


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("entries", [b"junk", b"\x91\x90", 7])
def test_a_ledger_of_other_values_is_damage(num_ranks: int, entries: object, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="intake cannot be what was saved"):
        saved_and_restored(tmp_path, num_ranks, lambda state: state["intake"]["ledger"].update(entries=entries))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_part_that_lacks_a_value_is_damage(num_ranks: int, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="stream cannot be what was saved"):
        saved_and_restored(tmp_path, num_ranks, lambda state: state["stream"].pop("num_drawn"))
