"""Receivers that are started again while real clients go on: real sockets, and files as a checkpoint writes them."""

from collections import Counter
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from stream_server.buffers import Firo, Reservoir
from stream_server.client_api import connect, session, watch
from stream_server.client_api.simulation import Simulation
from stream_server.messages import launcher_link
from stream_server.messages.client import (
    Ack,
    Block,
    Data,
    End,
    Hello,
    Invalidate,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    Routing,
    TimeSteps,
)
from stream_server.server.intake import mailbox
from stream_server.server.intake.ledger import LedgerEntry, saved_entries
from stream_server.server.intake.mailbox import CheckpointCommitted
from stream_server.server.reception.receiver import Receiver
from tests.support.reception import (
    DEADLINE_S,
    INCARNATION,
    STUDY,
    Crew,
    Rank,
    RawClient,
    Reception,
    SavedReception,
    StudyShape,
    reception,
)

Key = tuple[int, int]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look for a new server soon."""
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(session, "PING_S", 0.05)
    monkeypatch.setattr(session, "REOPEN_S", 0.05)


def value(simulation: int, step: int) -> np.ndarray:
    return np.arange(4.0) + 10 * step + 1000 * simulation


def opening(simulation: int = 0, incarnation: int = INCARNATION) -> Open:
    block = Block(field="u", dtype="<f8", shape=(4,), offset=(0,), count=(4,))
    return Open(
        study=STUDY, simulation=simulation, attempt=0, incarnation=incarnation, rank=0, num_ranks=1, blocks=(block,)
    )


def data(sequence: int, index: int, incarnation: int = INCARNATION) -> Data:
    return Data(
        simulation=0,
        attempt=0,
        incarnation=incarnation,
        sequence=sequence,
        index=index,
        num_steps=1,
        present=1,
        field=2**16 - 1,
    )


def welcomed(study: Reception, simulation: int = 0, *, goes_on: bool = False) -> None:
    """Wait until an attempt has begun on all ranks."""
    study.launch(simulation, goes_on=goes_on)
    with RawClient(study.endpoints[0].control[0]) as client:
        hello = Hello(study=STUDY, simulation=simulation, attempt=0, rank=0, num_ranks=1)
        while isinstance(client.ask(hello), Refusal):
            pass


def send_raw(client: RawClient, *steps: int, incarnation: int = INCARNATION) -> Ack:
    """Send steps whose sequence is their index; gives the answer once all are received."""
    for step in steps:
        client.say(data(step, step, incarnation), [value(0, step).tobytes()])
    return ask_until(client, lambda ack: ack.received > steps[-1])


def ask_until(client: RawClient, is_enough: object) -> Ack:
    while not isinstance(answer := client.ask(Ping()), Ack) or not is_enough(answer):  # type: ignore[operator]
        assert not isinstance(answer, Refusal), answer
    return answer


def test_a_step_is_durable_only_once_a_checkpoint_with_it_is_committed(tmp_path: Path) -> None:
    with reception(StudyShape()) as study:
        welcomed(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            assert send_raw(client, 0, 1) == Ack(received=2, durable=0)
            saved = study.save(tmp_path)
            assert send_raw(client, 2, 3) == Ack(received=4, durable=0)
            study.commit(saved)
            assert ask_until(client, lambda ack: ack.durable) == Ack(received=4, durable=2)
            later = study.save(tmp_path / "later")
            study.commit(later)
            assert ask_until(client, lambda ack: ack.durable > 2) == Ack(received=4, durable=4)
            # Word of an older checkpoint takes nothing back.
            study.commit(saved)
            assert send_raw(client, 4) == Ack(received=5, durable=4)


def test_what_comes_after_the_last_snapshot_stays_with_its_client(tmp_path: Path) -> None:
    """A client that heard that all is received would leave, and its simulation would have to run again."""
    with reception(StudyShape(num_simulations=2, time_steps=TimeSteps(num=3))) as study:
        welcomed(study)
        welcomed(study, 1)
        with RawClient(study.endpoints[0].data[0]) as client, RawClient(study.endpoints[0].data[0]) as late:
            assert isinstance(client.ask(opening()), Opened)
            assert send_raw(client, 0) == Ack(received=1, durable=0)
            study.first.receiver.stop_receiving()
            saved = study.save(tmp_path)
            for step in (1, 2):
                client.say(data(step, step), [value(0, step).tobytes()])
            client.say(End(simulation=0, attempt=0, incarnation=INCARNATION, share=3, total=3))
            study.commit(saved)
            assert ask_until(client, lambda ack: ack.durable) == Ack(received=1, durable=1)
            assert study.first.receiver.num_received == 1
            assert isinstance(answer := late.ask(opening(1)), Refusal)
            assert answer.reason is Reason.BUSY
            study.first.receiver.post(launcher_link.StopSimulations(reason="saved", grace_s=1))
            assert ask_until(client, lambda ack: ack.stop).received == 1


def test_a_commit_is_told_without_being_asked(tmp_path: Path) -> None:
    with reception(StudyShape()) as study:
        welcomed(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            client.ask(opening())
            send_raw(client, 0)
            study.commit(study.save(tmp_path))
            while not isinstance(answer := client.hear(), Ack) or not answer.durable:
                pass
            assert answer == Ack(received=1, durable=1)


def test_what_waits_for_room_is_neither_received_nor_durable(tmp_path: Path) -> None:
    with reception(StudyShape(capacity=1)) as study:
        welcomed(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            client.ask(opening())
            for step in range(3):
                client.say(data(step, step), [value(0, step).tobytes()])
            while study.first.receiver.num_received < 3:
                client.ask(Ping())
            saved = study.save(tmp_path)
            study.commit(saved)
            assert ask_until(client, lambda ack: ack.durable) == Ack(received=1, durable=1)
        restored = saved.restore(study.shape)[0]
        assert restored.waiting == [0, 0]


def test_the_launcher_is_told_of_every_commit() -> None:
    with reception(StudyShape()) as study:
        study.first.receiver.post(CheckpointCommitted(received_marks={b"gone": 7}, checkpoint=4, batches=120))
        assert study.from_server(launcher_link.Committed) == launcher_link.Committed(checkpoint=4, batches=120)


@pytest.mark.parametrize("ask", [Receiver.account, Receiver.snapshot, Receiver.num_received.fget])
def test_the_main_thread_reads_the_ledger_only_between_two_turns(ask: Callable[[Receiver], object]) -> None:
    """A simulation that is new to the ledger in the middle of it would be an error in the training."""
    with reception(StudyShape()) as study:
        receiver = study.first.receiver

        class Guarded(dict[int, LedgerEntry]):
            def __iter__(self) -> Iterator[int]:
                assert receiver.turn.locked()
                return super().__iter__()

            def items(self) -> ItemsView[int, LedgerEntry]:
                assert receiver.turn.locked()
                return super().items()

            def values(self) -> ValuesView[LedgerEntry]:
                assert receiver.turn.locked()
                return super().values()

        ledger = receiver.intake.state.ledger
        ledger[0].accept(range(1))
        ledger._entries = Guarded(ledger._entries)
        ask(receiver)


def keys_in(saved: SavedReception) -> tuple[list[Key], list[Key], set[Key]]:
    """The steps in the buffers, those held out, and all that the ledgers accepted."""
    in_buffers: list[Key] = []
    held_out: list[Key] = []
    accepted: set[Key] = set()
    for taken in saved.taken:
        state = taken.buffer.state()
        in_buffers += zip(state["simulation_ids"].tolist(), state["time_steps"].tolist(), strict=True)
        rows = taken.validation
        held_out += [(i, row.time_step) for i, row in zip(rows.simulation_ids, rows.steps, strict=True)]
        for entry in saved_entries(taken.state["intake"]["ledger"]):
            accepted |= {(entry.simulation, index) for index in entry.settled.array().tolist()}
    return in_buffers, held_out, accepted


@pytest.mark.slow
@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("num_clients", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_snapshot_has_each_step_of_its_ledger_exactly_once(
    routing: Routing, num_clients: int, tmp_path: Path
) -> None:
    num_steps = 60
    shape = StudyShape(
        num_ranks=2,
        num_simulations=4,
        num_validation=1,
        at_once=4,
        capacity=6,
        routing=routing,
        time_steps=TimeSteps(num=num_steps),
    )

    def simulate_rank(study: Reception, simulation: int, rank: int) -> None:
        with study.run(simulation, rank=rank, num_ranks=num_clients) as run:
            run.declare_field("u", shape=(4,))
            for step in range(num_steps):
                run.send(step, u=np.array_split(value(simulation, step), num_clients)[rank])

    with reception(shape) as study:
        crew = Crew()
        for simulation in range(4):
            study.launch(simulation)
            for rank in range(num_clients):
                crew.start(simulate_rank, study, simulation, rank)
        num_saved = 0
        while sum(len(rank.drawn) for rank in study.ranks) < 3 * num_steps:
            for rank in study.ranks:
                if len(rank.drawn) < owed(shape, rank.receiver.rank, num_steps):
                    rank.draw()
            saved = study.save(tmp_path / str(num_saved))
            num_saved += 1
            in_buffers, held_out, accepted = keys_in(saved)
            assert sorted([*saved.drawn, *in_buffers, *held_out]) == sorted(accepted)
        crew.join()
        assert num_saved > 10


def owed(shape: StudyShape, rank: int, num_steps: int) -> int:
    """How many steps a rank is to train on."""
    keys = [(i, step) for i in range(shape.num_validation, shape.num_simulations) for step in range(num_steps)]
    if shape.routing is Routing.SIMULATIONS:
        return sum(i % shape.num_ranks == rank for i, _ in keys)
    return sum((i + step) % shape.num_ranks == rank for i, step in keys)


def draw_all(rank: Rank) -> None:
    """Train on what an earlier incarnation had drawn, and then on all the rest."""
    while (draw := rank.buffer.take_restored()) is not None:
        rank.buffer.release(draw)
    rank.drain()


def simulate(path: Path, steps: range) -> None:
    """The whole life of a simulation."""
    with connect(path, timeout_s=DEADLINE_S) as run:
        send(run, steps)


def send(run: Simulation, steps: range) -> None:
    for step in steps:
        assert run.send(step, u=value(run.id, step))


def go_on(study: Reception, path: Path, simulation: int = 0) -> None:
    """The launcher finds that a simulation still runs, and tells it where the server is."""
    study.launch(simulation, goes_on=True).write(path)


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 1), (1, 2), (3, 2)])
def test_a_client_goes_on_with_the_next_server_and_each_of_its_steps_is_accepted_once(
    routing: Routing, before: int, after: int, tmp_path: Path
) -> None:
    # More than the old server can hold and draw: a client that had ended there would not come to the new one.
    num_steps = 30 * before
    old, new = (
        StudyShape(num_ranks=num, routing=routing, time_steps=TimeSteps(num=num_steps), capacity=4)
        for num in (before, after)
    )
    crew = Crew()
    with reception(old) as study:
        study.launch(0).write(tmp_path / "connection.json")
        crew.start(simulate, tmp_path / "connection.json", range(num_steps))
        wait_for_steps(study, 6)
        for rank in study.ranks:
            if rank.buffer.population:
                rank.draw()
        saved = study.save(tmp_path / "1")
        # These are lost with the server, and so is what comes in their place.
        for rank in study.ranks:
            if rank.buffer.population:
                rank.draw()
    with reception(new, incarnation=INCARNATION + 1, saved=saved) as study:
        go_on(study, tmp_path / "connection.json")
        for rank in study.ranks:
            crew.start(draw_all, rank)
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        drawn = Counter([*saved.drawn, *(key for rank in study.ranks for key in rank.drawn)])
        assert drawn == {(0, step): 1 for step in range(num_steps)}
        for rank in study.ranks:
            for (simulation, step), row in rank.rows.items():
                np.testing.assert_array_equal(row["u"], value(simulation, step))
        accounts = [rank.receiver.account() for rank in study.ranks]
        assert sum(account.intake[0].accepted for account in accounts) == num_steps
        assert [account.duplicates for account in accounts] == [0] * after
        assert study.roster.num_survived == 1


def wait_for_steps(study: Reception, num: int) -> None:
    """Wait until the ranks together have settled so many steps."""
    while sum(rank.receiver.num_received for rank in study.ranks) < num:
        study.from_server(launcher_link.ProgressReport)


@pytest.mark.parametrize("num_ahead", [0, 1, 3])
def test_a_parallel_client_goes_on_whose_steps_were_half_assembled(num_ahead: int, tmp_path: Path) -> None:
    shape = StudyShape(time_steps=TimeSteps(num=12))
    path = tmp_path / "connection.json"
    is_saved = Event()

    def simulate_rank(rank: int) -> None:
        with connect(path, rank=rank, num_ranks=2, timeout_s=DEADLINE_S) as run:
            run.declare_field("u", shape=(4,))
            for step in range(12):
                if rank == 1 and step == 3:
                    assert is_saved.wait(DEADLINE_S)
                if rank == 0 and step == 3 + num_ahead:
                    assert is_saved.wait(DEADLINE_S)
                assert run.send(step, u=np.array_split(value(0, step), 2)[rank])

    crew = Crew()
    with reception(shape) as study:
        study.launch(0).write(path)
        for rank in range(2):
            crew.start(simulate_rank, rank)
        wait_for_steps(study, 2)
        saved = study.save(tmp_path / "1")
    is_saved.set()
    with reception(shape, incarnation=INCARNATION + 1, saved=saved) as study:
        go_on(study, path)
        crew.start(draw_all, study.first)
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sorted(study.first.drawn) == [(0, step) for step in range(12)]
        for (simulation, step), row in study.first.rows.items():
            np.testing.assert_array_equal(row["u"], value(simulation, step))
        assert study.first.receiver.account().duplicates == 0


def test_a_client_of_the_old_incarnation_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with reception(StudyShape()) as study:
        welcomed(study)
        saved = study.save(tmp_path)
    with reception(StudyShape(), incarnation=INCARNATION + 1, saved=saved) as study:
        welcomed(study, goes_on=True)
        with RawClient(study.endpoints[0].data[0]) as client:
            refusal = client.ask(opening())
            assert isinstance(refusal, Refusal)
            assert refusal.reason is Reason.STALE_INCARNATION
            refusal = client.ask(data(0, 0), [value(0, 0).tobytes()])
            assert isinstance(refusal, Refusal)
            assert refusal.reason is Reason.NOT_OPEN
            assert isinstance(client.ask(opening(incarnation=INCARNATION + 1)), Opened)
            refusal = client.ask(data(0, 0), [value(0, 0).tobytes()])
            assert isinstance(refusal, Refusal)
            assert refusal.reason is Reason.STALE_INCARNATION
        account = study.first.receiver.account()
        assert account.refused == {"stale_incarnation": 2, "not_open": 1}
        assert account.intake[0].accepted == 0


@pytest.mark.parametrize("is_known", [False, True])
def test_the_next_attempt_sends_only_what_the_checkpoint_does_not_have(tmp_path: Path, *, is_known: bool) -> None:
    with reception(StudyShape()) as study:
        welcomed(study)
        if not is_known:
            saved = study.save(tmp_path)
        with RawClient(study.endpoints[0].data[0]) as client:
            client.ask(opening())
            send_raw(client, 0, 1, 2)
            if is_known:
                saved = study.save(tmp_path)
    with reception(StudyShape(), incarnation=INCARNATION + 1, saved=saved) as study:
        assert [(it.simulation, it.attempt) for it in study.roster.plan] == [(0, 0)]
        crew = Crew()
        crew.start(draw_all, study.first)
        study.launch(0, 1)
        with study.run(0, 1) as run:
            send(run, range(6))
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sorted(study.first.drawn) == [(0, step) for step in range(6)]
        assert study.first.receiver.account().duplicates == (3 if is_known else 0)
        assert study.roster.num_survived == 0


def test_held_out_steps_of_both_incarnations_make_one_validation_set(tmp_path: Path) -> None:
    shape = StudyShape(num_simulations=2, num_validation=1)
    with reception(shape) as study:
        study.launch(0).write(tmp_path / "connection.json")
        run = connect(tmp_path / "connection.json", timeout_s=DEADLINE_S)
        send(run, range(4))
        wait_for_steps(study, 1)
        saved = study.save(tmp_path / "1")
    with reception(shape, incarnation=INCARNATION + 1, saved=saved) as study:
        go_on(study, tmp_path / "connection.json")
        send(run, range(4, 6))
        run.finish()
        study.first.wait_for(mailbox.SimulationFinished)
        held_out = study.first.validation.complete_rows()
        np.testing.assert_array_equal(held_out.time_steps, range(6))
        np.testing.assert_array_equal(held_out.rows("u", 0, 6), [value(0, step) for step in range(6)])


@pytest.mark.parametrize(
    "policy",
    [
        lambda capacity: Firo(capacity=capacity, watermark=1, seed=(1,)),
        lambda capacity: Reservoir(capacity=capacity, watermark=1, seed=(1,)),
    ],
    ids=["firo", "reservoir"],
)
def test_a_study_of_which_all_has_come_ends_reception_at_once(policy: object, tmp_path: Path) -> None:
    shape = StudyShape(num_simulations=2, num_validation=1, policy=policy)  # type: ignore[arg-type]
    with reception(shape) as study:
        for simulation in range(2):
            study.launch(simulation)
            with study.run(simulation) as run:
                send(run, range(6))
        study.first.wait_for(mailbox.ReceptionEnded)
        saved = study.save(tmp_path)
    with reception(shape, incarnation=INCARNATION + 1, saved=saved) as study:
        study.first.wait_for(mailbox.ReceptionEnded)
        draw_all(study.first)
        assert set(study.first.drawn) == {(1, step) for step in range(6)}
        held_out = study.first.validation.complete_rows()
        assert len(held_out) == 6


def test_a_simulation_that_was_withdrawn_stays_withdrawn_on_ranks_that_had_not_heard_of_it(tmp_path: Path) -> None:
    shape = StudyShape(num_simulations=2)
    with reception(shape) as study:
        welcomed(study)
        with RawClient(study.endpoints[0].data[0]) as client, RawClient(study.endpoints[0].control[0]) as control:
            client.ask(opening())
            send_raw(client, *range(4))
            before = study.save(tmp_path / "before")
            control.ask(Invalidate(study=STUDY, simulation=0, attempt=0, reason="diverged"))
            after = study.save(tmp_path / "after")
    # Rank 0 knew of it when its part was saved, another rank did not; here both are one.
    (tmp_path / "before" / "study.state").write_bytes((tmp_path / "after" / "study.state").read_bytes())
    for saved in (before, after):
        with reception(shape, incarnation=INCARNATION + 1, saved=saved) as study:
            assert study.roster.table.counts()["invalid"] == 1
            assert (study.first.buffer.population, study.first.buffer.num_waiting) == (0, 0)
            assert study.first.receiver.account().withdrawn == 4
