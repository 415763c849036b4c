"""Training data out of a record: the same draws, whatever the timing and wherever it is stopped."""

import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Slots, num_slots_to_load
from stream_server.config import StudyConfig
from stream_server.errors import Closed, ConfigError, DamagedRecord
from stream_server.server.intake import mailbox
from stream_server.server.intake.account import RankAccount, TrainedCounts, close_account
from stream_server.server.intake.source import ReceptionSnapshot
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.replay.export import export_record
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.source import ReplaySource
from stream_server.server.run import build
from stream_server.server.run.plan import make_plan
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.recorded import (
    PARAMETERS,
    Key,
    has_v,
    interleave,
    parameters_of,
    record,
    recorder,
    samples_file,
    slots_with,
    small_study,
    u_of,
    v_of,
)
from tests.support.settings import length_of
from tests.support.studies import Changes, StudyFolder

KEYS = interleave(range(10))
TRAINED = [key for key in KEYS if key[0] >= 2]

POLICIES: dict[str, Changes] = {
    "fifo": {"buffer.policy": "fifo"},
    "firo": {"buffer.policy": "firo"},
    "firo-3-incarnations": {"buffer.policy": "firo", "buffer.pseudo_epochs": 3},
    "reservoir": {"buffer.policy": "reservoir"},
    "reservoir-bounded": {"buffer.policy": "reservoir", "training.draws_per_sample": 2.5},
}

Batches = list[list[Key]]


@dataclass(frozen=True)
class Saved:
    """A checkpoint in memory."""

    state: Mapping[str, Any]
    buffer: Mapping[str, Any]
    rows: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, taken: ReceptionSnapshot) -> "Saved":
        frozen = taken.buffer
        rows = {name: frozen.rows(name, 0, len(frozen)).copy() for name in frozen.fields}
        return cls(taken.state, frozen.state(), rows)

    def load(self, parts: Mapping[str, Any]) -> None:
        for name, part in parts.items():
            part.load_state_dict(self.state[name])

    def into_buffer(self, buffer: Buffer) -> None:
        for name, array in buffer.slots.arrays.items():
            array[: len(self.rows[name])] = self.rows[name]
        buffer.load(dict(self.buffer))


class Player:
    """A replay without training."""

    def __init__(
        self, config: StudyConfig, folder: Path, *, ranks: Ranks | None = None, saved: Saved | None = None
    ) -> None:
        self.config = config
        ranks = ranks or SoloRanks()
        plan = make_plan(config)
        num_slots = plan.num_slots
        if saved is not None:
            num_slots = num_slots_to_load(dict(saved.buffer), capacity=plan.capacity, planned=num_slots)
        policy = build.make_policy(config, ranks.rank)
        self.buffer = build.make_buffer(config, policy, num_slots, most_kept=plan.most_kept)
        self.source = ReplaySource(config, ranks, folder, parameters=PARAMETERS, buffer=self.buffer, restored=saved)
        self.num_drawn = 0

    def batches(self) -> Iterator[list[Key]]:
        while True:
            self.source.before_draw()
            try:
                draw = self.buffer.draw(self.config.training.batch_size, 0)
            except Closed:
                return
            assert draw is not None, "a replay never waits"
            slots = self.buffer.slots
            keys = list(
                zip(slots.simulation_ids[draw.slots].tolist(), slots.time_steps[draw.slots].tolist(), strict=True)
            )
            for key, slot in zip(keys, draw.slots.tolist(), strict=True):
                assert slots.arrays["u"][slot].tolist() == u_of(key).tolist()
                assert slots.present["v"][slot] == has_v(key)
            self.num_drawn += draw.num_first
            self.buffer.release(draw)
            yield keys


def played(config: StudyConfig, folder: Path, ranks: Ranks | None = None) -> Batches:
    player = Player(config, folder, ranks=ranks)
    with player.source:
        return list(player.batches())


def flat(batches: Batches) -> list[Key]:
    return [key for batch in batches for key in batch]


@pytest.fixture(params=POLICIES)
def config(folder: StudyFolder, request: pytest.FixtureRequest) -> StudyConfig:
    return small_study(folder, POLICIES[request.param])


def fifo(folder: StudyFolder, changes: Changes | None = None) -> StudyConfig:
    return small_study(folder, {**POLICIES["fifo"], **(changes or {})})


def test_fifo_trains_on_the_samples_in_the_order_in_which_they_were_recorded(folder: StudyFolder) -> None:
    config = fifo(folder)
    assert flat(played(config, record(config, KEYS))) == TRAINED


def test_every_sample_is_trained_as_often_as_the_policy_says(config: StudyConfig) -> None:
    counts = Counter(flat(played(config, record(config, KEYS))))
    assert set(counts) == set(TRAINED)
    if config.buffer.policy != "reservoir":
        assert set(counts.values()) == {config.buffer.pseudo_epochs}
    elif config.training.draws_per_sample is not None:
        assert counts.total() == round(config.training.draws_per_sample * len(TRAINED))


def test_a_bound_of_the_reuse_spreads_it_over_the_whole_study(folder: StudyFolder) -> None:
    config = small_study(folder, {**POLICIES["reservoir-bounded"], "buffer.capacity": 20})
    keys = interleave(range(2, 10), 40)
    counts = Counter(flat(played(config, record(config, keys))))
    early, late = keys[: len(keys) // 2], keys[len(keys) // 2 :]
    num_early, num_late = (sum(counts[key] for key in half) for half in (early, late))
    assert 0.8 < num_early / num_late < 1.25


def test_two_replays_draw_the_same(config: StudyConfig) -> None:
    path = record(config, KEYS)
    assert played(config, path) == played(config, path)


def test_a_replay_stopped_between_any_two_batches_goes_on_with_the_same_batches(config: StudyConfig) -> None:
    path = record(config, KEYS)
    expected = played(config, path)
    for num in range(len(expected) + 1):
        first = Player(config, path)
        with first.source:
            batches = first.batches()
            done = [next(batches) for _ in range(num)]
            saved = Saved.of(first.source.snapshot())
        second = Player(config, path, saved=saved)
        with second.source:
            assert done + list(second.batches()) == expected
            assert second.source.num_received == len(TRAINED)


def test_a_replay_stopped_after_every_batch_draws_the_same(config: StudyConfig) -> None:
    path = record(config, KEYS)
    expected, done, saved = played(config, path), [], None
    while True:
        player = Player(config, path, saved=saved)
        with player.source:
            batch = next(player.batches(), None)
            if batch is None:
                break
            done.append(batch)
            saved = Saved.of(player.source.snapshot())
    assert done == expected


def test_a_checkpoint_that_is_being_written_changes_no_draw(config: StudyConfig) -> None:
    path = record(config, KEYS)
    expected = played(config, path)
    player = Player(config, path)
    done: Batches = []
    with player.source:
        batches = player.batches()
        done.append(next(batches))
        frozen = player.buffer.freeze()

        def write() -> None:
            for row in range(len(frozen)):
                player.buffer.thaw(frozen, row, row + 1)

        writer = Thread(target=write)
        writer.start()
        done += batches
        writer.join()
    assert done == expected


def test_a_replay_waits_for_the_slots_that_a_checkpoint_keeps_back(folder: StudyFolder) -> None:
    config = fifo(folder)
    path = record(config, KEYS)
    player, done = Player(config, path), []
    with player.source:
        batches = player.batches()
        done.append(next(batches))
        frozen = player.buffer.freeze()
        trainer = Thread(target=lambda: done.extend(batches))
        trainer.start()
        trainer.join(0.3)
        assert trainer.is_alive()
        player.buffer.thaw_all(frozen)
        trainer.join(100)
        assert not trainer.is_alive()
    assert flat(done) == TRAINED


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_as_many_ranks_as_were_recorded_play_what_each_received(folder: StudyFolder, num_ranks: int) -> None:
    config = fifo(folder)
    path = record(config, KEYS, num_ranks=num_ranks)
    ranks = on_ranks(num_ranks, lambda ranks: flat(played(config, path, ranks)))
    assert ranks == [[key for key in TRAINED if sum(key) % num_ranks == rank] for rank in range(num_ranks)]


@pytest.mark.parametrize(("num_recorded", "num_ranks"), [(1, 2), (2, 1), (3, 2), (2, 3), (1, 3)])
def test_another_number_of_ranks_shares_out_all_samples(config: StudyConfig, num_recorded: int, num_ranks: int) -> None:
    path = record(config, KEYS, num_ranks=num_recorded)
    first, again = (on_ranks(num_ranks, lambda ranks: played(config, path, ranks)) for _ in range(2))
    assert first == again
    for rank, batches in enumerate(first):
        assert set(flat(batches)) == {key for key in TRAINED if sum(key) % num_ranks == rank}


def test_another_number_of_ranks_goes_through_the_files_in_turn(folder: StudyFolder) -> None:
    config = fifo(folder)
    path = record(config, KEYS, num_ranks=2)
    halves = [[key for key in TRAINED if sum(key) % 2 == rank] for rank in range(2)]
    order = flat(played(config, path))
    assert [[key for key in order if sum(key) % 2 == rank] for rank in range(2)] == halves
    assert {sum(key) % 2 for key in order[: len(order) // 4]} == {0, 1}


def test_another_number_of_ranks_goes_on_where_it_was_stopped(config: StudyConfig) -> None:
    path = record(config, KEYS, num_ranks=3)

    def stop_and_go_on(ranks: ThreadRanks) -> Batches:
        first = Player(config, path, ranks=ranks)
        with first.source:
            batches = first.batches()
            done = [next(batches) for _ in range(4)]
            saved = Saved.of(first.source.snapshot())
        second = Player(config, path, ranks=ranks, saved=saved)
        with second.source:
            return done + list(second.batches())

    assert on_ranks(2, stop_and_go_on) == on_ranks(2, lambda ranks: played(config, path, ranks))


def test_held_out_simulations_are_complete_before_the_first_batch(folder: StudyFolder) -> None:
    config = fifo(folder)
    player = Player(config, record(config, KEYS))
    with player.source:
        held_out = player.source.validation_store.complete_rows()
    assert held_out.simulation_ids.tolist() == [0] * 12 + [1] * 12
    assert held_out.time_steps.tolist() == list(range(12)) * 2
    assert held_out.take("u", np.array([5])).tolist() == [u_of((0, 5)).tolist()]
    assert held_out.take("v", np.array([0, 1])).tolist() == [v_of((0, 0)), 0.0]
    assert held_out.present["v"].tolist() == [has_v((0, step)) for step in range(12)] * 2


def test_the_study_says_what_is_held_out(folder: StudyFolder) -> None:
    recorded_as, replayed_as = fifo(folder), fifo(folder, {"validation.simulations": 3})
    path = record(recorded_as, KEYS)
    player = Player(replayed_as, path)
    with player.source:
        assert len(player.source.validation_store.freeze().complete) == 3
        assert flat(list(player.batches())) == [key for key in KEYS if key[0] >= 3]


def test_a_withdrawn_simulation_is_left_out_and_an_unfinished_one_is_not_validated(folder: StudyFolder) -> None:
    config = fifo(folder)
    with recorder(config, slots_with(KEYS)) as it:
        for slot, (simulation, _) in enumerate(KEYS):
            (it.append if simulation >= 2 else it.append_held_out)([slot])
        it.finish(0)
        it.withdraw(5)
    player = Player(config, it.folder)
    with player.source:
        assert len(player.source.validation_store.freeze().complete) == 1
        assert flat(list(player.batches())) == [key for key in TRAINED if key[0] != 5]
        assert player.source.account is not None
        assert player.source.account.withdrawn == 12
        assert player.source.num_left == 0
        assert player.source.simulations is not None
        assert player.source.simulations.ends[5].state == "invalid"


@pytest.mark.parametrize(
    ("told", "latest_ranks", "complete"),
    [
        ([0, 1, 2], 3, 1),
        ([0, 2], 3, 0),
        # The third rank is no more since a restart on two.
        ([0, 1], 2, 1),
        ([1, 2], 2, 0),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_held_out_simulation_is_validated_if_all_ranks_say_that_it_is_whole(
    folder: StudyFolder, told: list[int], latest_ranks: int, complete: int, num_ranks: int
) -> None:
    config = fifo(folder)
    for rank in (2, 1, 0):
        mine = [key for key in KEYS if sum(key) % 3 == rank]
        with recorder(config, slots_with(mine), rank=rank, num_ranks=3 if rank else latest_ranks) as it:
            for slot, (simulation, _) in enumerate(mine):
                (it.append if simulation >= 2 else it.append_held_out)([slot])
            if rank == 1:
                it.study.write(it.folder)
            for simulation in (0, 2) if rank in told else ():
                it.finish(simulation)

    def play(ranks: ThreadRanks) -> tuple[int, list[int], list[str]]:
        player = Player(config, it.folder, ranks=ranks)
        with player.source:
            list(player.batches())
            events = player.source.events()
            finished = [event.simulation for event in events if isinstance(event, mailbox.SimulationFinished)]
            return len(player.source.validation_store.freeze().complete), finished, player.source.warnings

    found, ends, warnings = zip(*on_ranks(num_ranks, play), strict=True)
    assert list(found) == [complete] * num_ranks
    assert all(not it or it == [2] or it == [0, 2] for it in ends)
    assert any(ends) == bool(complete)
    incomplete = "1" if complete else "0, 1"
    told_of = f"not all is there of the held-out simulations {incomplete}: they are left out of the validation"
    assert warnings[0] == [told_of]


def recorded_on_changing_ranks(config: StudyConfig) -> Path:
    """Begun on three ranks, of which two are no more after a third of the steps; one simulation is withdrawn."""
    third = len(TRAINED) // 3
    for rank in range(3):
        mine = [key for key in TRAINED[:third] if sum(key) % 3 == rank] + (TRAINED[third:] if rank == 0 else [])
        with recorder(config, slots_with(mine), rank=rank, num_ranks=3) as it:
            for slot in range(len(mine)):
                it.append([slot])
            if rank == 0:
                it.withdraw(5)
    return config.output_dir / "record"


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_the_length_of_a_replay_is_exact_also_of_a_record_made_on_changing_ranks(
    config: StudyConfig, num_ranks: int
) -> None:
    path = recorded_on_changing_ranks(config)

    def play(ranks: ThreadRanks) -> tuple[list[int], Batches]:
        player = Player(config, path, ranks=ranks)
        with ExitStack() as stack:
            counted = player.source.count(stack)
            stack.enter_context(player.source)
            return counted, list(player.batches())

    done = on_ranks(num_ranks, play)
    counted, batches = done[0][0], [batches for _, batches in done]
    assert [each for each, _ in done] == [counted] * num_ranks
    assert counted == [len(set(flat(each))) for each in batches]
    assert sum(counted) == len(TRAINED) - 12
    length = length_of(config, num_ranks, counted)
    if length.draws is not None:
        assert abs(length.draws - sum(map(len, map(flat, batches)))) < num_ranks
        assert length.batches is not None
        assert length.batches <= max(map(len, batches)) <= length.batches + 1


def account_of(players: list[Player], learned: TrainedCounts, *, complete: bool) -> Any:
    ranks = []
    for player in players:
        taken = player.source.account
        assert taken is not None
        left = player.buffer.num_unseen + player.buffer.num_waiting + taken.left
        ranks.append(RankAccount(intake=taken.intake, drawn=player.num_drawn, withdrawn=taken.withdrawn, left=left))
    roster = players[0].source.simulations
    assert roster is not None
    return close_account(ranks, roster.ends, learned, complete=complete)


def test_the_closing_account_balances(config: StudyConfig) -> None:
    path = record(config, KEYS, num_ranks=2)

    def play(ranks: ThreadRanks) -> Player:
        player = Player(config, path, ranks=ranks)
        with player.source:
            list(player.batches())
        return player

    account = account_of(on_ranks(2, play), TrainedCounts(trained=len(TRAINED)), complete=True)
    assert account.problems == []
    assert account.expected == account.accepted == len(TRAINED)
    assert account.held_out["accepted"] == 24


def test_what_a_replay_that_is_ended_early_has_not_played_is_untrained(folder: StudyFolder) -> None:
    config = fifo(folder)
    player = Player(config, record(config, KEYS))
    with player.source:
        batches = player.batches()
        done = flat([next(batches), next(batches)])
    learned = TrainedCounts(trained=len(done), untrained_reason="max_batches")
    account = account_of([player], learned, complete=False)
    assert account.problems == []
    assert account.untrained_reasons == {"max_batches": len(TRAINED) - len(done)}


def told_by(player: Player) -> list[mailbox.Event]:
    return player.source.events()


def test_finished_simulations_and_the_end_are_told_once(folder: StudyFolder) -> None:
    config = fifo(folder)
    with recorder(config, slots_with(TRAINED)) as it:
        for slot, key in enumerate(TRAINED):
            it.append([slot])
            if key == (4, 11):
                it.finish(4)
        it.finish(4)
        it.finish(3)
    first = Player(config, it.folder)
    with first.source:
        batches = first.batches()
        told: list[mailbox.Event] = []
        while not told:
            next(batches)
            told += told_by(first)
        saved = Saved.of(first.source.snapshot())
    second = Player(config, it.folder, saved=saved)
    with second.source:
        list(second.batches())
    assert told == [mailbox.SimulationFinished(simulation=4)]
    assert told_by(second) == [mailbox.SimulationFinished(simulation=3), mailbox.ReceptionEnded()]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_replay_says_that_the_record_is_not_whole_where_its_other_warnings_are(
    folder: StudyFolder, num_ranks: int
) -> None:
    config = fifo(folder)
    path = record(config, TRAINED, num_ranks=2)
    (path / "rank-1.incomplete").write_text("No space left on device")
    file = samples_file(path, 0)
    file.write_bytes(file.read_bytes()[:-10])
    sources = on_ranks(num_ranks, lambda ranks: _entered(Player(config, path, ranks=ranks).source))
    no_end, torn, incomplete = sources[0].warnings
    assert "the record of rank 0 has no end" in no_end
    assert "is not all there, and its samples are left out" in torn
    assert incomplete == "rank 1 recorded only some of its samples: No space left on device"
    assert [source.warnings for source in sources[1:]] == [[]] * (num_ranks - 1)


def test_parameters_come_from_the_record(folder: StudyFolder) -> None:
    config = fifo(folder)
    path = record(config, KEYS, num_ranks=2)
    sources = on_ranks(2, lambda ranks: _entered(Player(config, path, ranks=ranks).source))
    for source in sources:
        assert [source.parameters_of(i).tolist() for i in range(10)] == [parameters_of(i).tolist() for i in range(10)]
    roster = sources[0].simulations
    assert roster is not None
    assert roster.parameters[3] == {"initial": 1.0, "left": -3.0}
    states, num_samples = sources[0].counts()
    assert states["finished"] == 10
    assert roster.ends[3].num_steps == 12
    assert num_samples == len(KEYS)
    assert sources[1].simulations is None


def _entered(source: ReplaySource) -> ReplaySource:
    with source:
        return source


def test_fields_that_are_kept_as_sent_have_the_recorded_type(folder: StudyFolder) -> None:
    config = fifo(folder)
    player = Player(config, record(config, KEYS))
    with player.source:
        assert {name: array.dtype for name, array in player.buffer.slots.arrays.items()} == {
            "u": np.float32,
            "v": np.float64,
        }


def test_a_record_without_a_sample_is_a_stream_that_ends(config: StudyConfig) -> None:
    assert played(config, record(config, [])) == []


def test_damage_is_told_when_it_is_reached_and_by_all_ranks_when_it_is_found_at_the_start(folder: StudyFolder) -> None:
    config = fifo(folder)
    path = record(config, KEYS, num_ranks=2)
    file = samples_file(path, 1)
    whole = file.read_bytes()
    at = whole.index(u_of((5, 4)).tobytes())
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(DamagedRecord, match=rf"{file}: the entry \d+ is not as it was written"):
        played(config, path)
    file.write_bytes(b"\0" * 1000)

    def refused(ranks: ThreadRanks) -> str:
        with pytest.raises(ConfigError) as caught, Player(config, path, ranks=ranks).source:
            pass
        return str(caught.value)

    first, second = on_ranks(2, refused)
    assert first == second
    assert "is no record of samples" in first


@pytest.mark.parametrize("victim", [7, 0], ids=["trained on", "held out"])
def test_a_sample_that_became_one_of_a_withdrawn_simulation_is_noticed(folder: StudyFolder, victim: int) -> None:
    config = fifo(folder)
    withdrawn = 5 if victim >= 2 else 1
    with recorder(config, slots_with(KEYS)) as it:
        for slot, (simulation, _) in enumerate(KEYS):
            (it.append if simulation >= 2 else it.append_held_out)([slot])
        it.withdraw(withdrawn)
    path = samples_file(it.folder)
    data = path.read_bytes()
    kind = EntryKind.SAMPLE if victim >= 2 else EntryKind.HELD_OUT
    head = np.array([kind, victim, 6], "<i8").tobytes()
    assert data.count(head) == 1
    path.write_bytes(data.replace(head, np.array([kind, withdrawn, 6], "<i8").tobytes()))
    with pytest.raises(ConfigError, match="is not as it was written"):
        played(config, it.folder)


def test_a_study_that_does_not_fit_is_refused(folder: StudyFolder) -> None:
    path = record(fifo(folder), KEYS)
    other = fifo(folder, {"study.fields.u.shape": [6]})
    with pytest.raises(ConfigError, match=r"study\.fields\.u\.shape"), Player(other, path).source:
        pass


def test_a_record_far_larger_than_memory_is_played_with_little(folder: StudyFolder) -> None:
    config = fifo(folder, {"study.fields": {"u": {"shape": [4000], "dtype": "float64"}}})
    slots = Slots({"u": (4000,)}, 50)
    slots.allocate({"u": np.float64})
    slots.simulation_ids[:], slots.arrays["u"][:] = 3, 0.5
    with recorder(config, slots) as it:
        for first in range(0, 1500, 50):
            slots.time_steps[:] = range(first, first + 50)
            it.append(list(range(50)))
    player = Player(config, it.folder)
    draw = partial(player.buffer.draw, config.training.batch_size, 0)
    assert samples_file(it.folder).stat().st_size > 48_000_000
    num = 0
    with player.source:
        player.source.before_draw()
        player.buffer.slots.arrays["u"][:] = 0
        tracemalloc.start()
        while player.source.num_left:
            player.source.before_draw()
            drawn = draw()
            assert drawn is not None
            num += len(drawn.slots)
            player.buffer.release(drawn)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert num > 1400
    assert peak_bytes < 1_000_000


WINDOWS: Changes = {
    "samples": {"window": {"length": 3}},
    "study.time_steps": 30,
    "buffer.policy": "fifo",
    "buffer.capacity": 60,
    "launcher.max_running": 1,
    "client.max_attached": 0,
}
ALL_WINDOWS = Counter((simulation, step) for simulation in range(2, 10) for step in range(28))


def recorded_by_ranks_apart(config: StudyConfig, num_ranks: int, trajectory_ends: Iterable[Key] = ()) -> Path:
    """The record of a study that ran all simulations at once, in which the first rank had the held-out ones.

    Each rank says where trajectories ended, as far as it has these steps.
    """
    keys = interleave(range(10), num_steps=30)
    for rank in range(num_ranks):
        mine = [key for key in keys if (0 if key[0] < 2 else sum(key) % num_ranks) == rank]
        mine.sort(key=lambda key: key[0] >= 2)
        with recorder(config, slots_with(mine), rank=rank, num_ranks=num_ranks) as it:
            for slot, (simulation, _) in enumerate(mine):
                (it.append_held_out if simulation < 2 else it.append)([slot])
            for key in trajectory_ends:
                if key in mine:
                    it.end_trajectory(*key)
            for simulation in range(10):
                it.finish(simulation)
    return config.output_dir / "record"


@pytest.mark.parametrize(("num_recorded", "num_ranks"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_a_replay_makes_every_window_however_the_simulations_and_ranks_ran(
    folder: StudyFolder, num_recorded: int, num_ranks: int
) -> None:
    config = small_study(folder, WINDOWS)
    path = recorded_by_ranks_apart(config, num_recorded)

    def play(ranks: ThreadRanks) -> tuple[Player, Batches]:
        player = Player(config, path, ranks=ranks)
        with player.source:
            return player, list(player.batches())

    done = on_ranks(num_ranks, play)
    assert sum((Counter(flat(batches)) for _, batches in done), Counter()) == ALL_WINDOWS
    players = [player for player, _ in done]
    account = account_of(players, TrainedCounts(trained=ALL_WINDOWS.total()), complete=True)
    assert account.problems == []
    assert account.windows is not None
    assert (account.windows["made"], account.windows["late"]) == (224, 0)
    assert all(player.source.num_left == 0 for player in players)


def test_a_replay_of_windows_that_was_saved_goes_on_with_the_same_draws_from_anywhere(folder: StudyFolder) -> None:
    config = small_study(folder, WINDOWS)
    path = recorded_by_ranks_apart(config, 2, TRAJECTORY_ENDS)
    whole = played(config, path)
    for num in range(0, len(whole), 3):
        first = Player(config, path)
        with first.source:
            batches = first.batches()
            done = [next(batches) for _ in range(num)]
            saved = Saved.of(first.source.snapshot())
        second = Player(config, path, saved=saved)
        with second.source:
            assert done + list(second.batches()) == whole


def test_a_withdrawn_simulation_keeps_its_turns_among_windows(folder: StudyFolder) -> None:
    config = small_study(folder, {**WINDOWS, "launcher.max_running": 2})
    keys = interleave(range(2, 10), num_steps=30)
    with recorder(config, slots_with(keys)) as it:
        it.append(range(len(keys)))
        for simulation in range(2, 10):
            it.finish(simulation)
        it.withdraw(5)
    player = Player(config, it.folder)
    with player.source:
        drawn = [simulation for simulation, _ in flat(list(player.batches()))]
        assert player.source.state_dict()["num_entries"] == player.source.state_dict()["position"] == len(keys) + 8
    assert drawn == [2, 3] * 28 + [4] * 28 + [6, 7] * 28 + [8, 9] * 28


TRAJECTORY_ENDS = [(1, 4), (3, 10), (4, 10), (4, 11), (5, 29)]
OF_TWO_TRAJECTORIES = {(3, 9), (3, 10), (4, 9), (4, 10), (4, 11)}


@pytest.mark.parametrize(("num_recorded", "num_ranks", "of_files"), [(1, 1, False), (3, 2, False), (2, 1, True)])
def test_a_replay_makes_no_window_of_two_trajectories(
    folder: StudyFolder, num_recorded: int, num_ranks: int, of_files: bool
) -> None:
    config = small_study(folder, WINDOWS)
    path = recorded_by_ranks_apart(config, num_recorded, TRAJECTORY_ENDS)
    if of_files:
        files = config.output_dir / "samples"
        assert export_record(SoloRanks(), path, files, finished=range(10), invalid=())
        path = files

    def play(ranks: ThreadRanks) -> tuple[Player, Batches]:
        player = Player(config, path, ranks=ranks)
        with player.source:
            return player, list(player.batches())

    done = on_ranks(num_ranks, play)
    made = Counter({key: num for key, num in ALL_WINDOWS.items() if key not in OF_TWO_TRAJECTORIES})
    assert sum((Counter(flat(batches)) for _, batches in done), Counter()) == made
    players = [player for player, _ in done]
    account = account_of(players, TrainedCounts(trained=made.total()), complete=True)
    assert account.problems == []
    assert account.windows is not None
    assert (account.windows["made"], account.windows["late"]) == (219, 5)
    assert players[0].source.warnings == [
        "5 windows left out of the training, with steps of two attempts that computed something else, of the "
        "simulations 3, 4"
    ]
    assert all(player.source.num_left == 0 for player in players)


def test_of_windows_a_simulation_has_finished_when_its_last_one_has_come(folder: StudyFolder) -> None:
    config = small_study(folder, WINDOWS)
    player = Player(config, recorded_by_ranks_apart(config, 2))
    drawn: list[int] = []
    finished: list[int] = []
    with player.source:
        for keys in player.batches():
            drawn += [simulation for simulation, _ in keys]
            told = [event.simulation for event in told_by(player) if isinstance(event, mailbox.SimulationFinished)]
            assert set(drawn) <= {*finished, *told, drawn[-1]}
            finished += told
    assert finished == [*dict.fromkeys(drawn), 0, 1]
