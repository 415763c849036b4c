"""Receivers, real clients and real sockets in one process."""

from contextlib import ExitStack

import numpy as np
import pytest
from msgspec.structs import replace

from stream_server.client_api import connect
from stream_server.errors import NonFiniteData, ProducerFailed, Refused, Unreachable
from stream_server.messages import launcher_link
from stream_server.messages.client import (
    ATTACHING,
    Ack,
    Block,
    Data,
    End,
    FieldSpec,
    Hello,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
)
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.curve import KeyPair
from stream_server.messages.notices import EndEarly
from stream_server.server.intake import mailbox
from tests.support.reception import DEADLINE_S, INCARNATION, STUDY, Crew, RawClient, Reception, StudyShape, reception


def value(simulation: int, step: int) -> np.ndarray:
    return np.arange(4.0) + 10 * step + 1000 * simulation


def simulate(study: Reception, simulation: int, steps: range, attempt: int = 0) -> None:
    with study.run(simulation, attempt) as run:
        for step in steps:
            assert run.send(step, u=value(simulation, step))


def test_every_step_of_every_simulation_reaches_the_stream_once() -> None:
    with reception(StudyShape(num_simulations=3)) as study:
        crew = Crew()
        crew.start(study.first.drain)
        for simulation in range(3):
            study.launch(simulation)
            crew.start(simulate, study, simulation, range(6))
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sorted(study.first.drawn) == [(s, i) for s in range(3) for i in range(6)]
        for (simulation, step), row in study.first.rows.items():
            np.testing.assert_array_equal(row["u"], value(simulation, step))


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("num", [None, 7])
def test_steps_are_shared_by_all_ranks_and_reception_ends_on_each(routing: Routing, num: int | None) -> None:
    shape = StudyShape(num_ranks=3, num_simulations=4, at_once=4, routing=routing, time_steps=TimeSteps(num=num))
    with reception(shape) as study:
        crew = Crew()
        for rank in study.ranks:
            crew.start(rank.drain)
        for simulation in range(4):
            study.launch(simulation)
            crew.start(simulate, study, simulation, range(7))
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sorted(key for rank in study.ranks for key in rank.drawn) == [(s, i) for s in range(4) for i in range(7)]
        accounts = [rank.receiver.account() for rank in study.ranks]
        assert sum(account.intake[s].accepted for account in accounts for s in account.intake) == 28
        assert {event.simulation for event in study.ranks[2].seen if isinstance(event, mailbox.SimulationFinished)} == {
            0,
            1,
            2,
            3,
        }


def test_a_client_that_asks_before_the_first_turn_is_made_known_to_the_launcher() -> None:
    # The launcher drops what comes from a rank 0 that it does not know yet, and a request is not repeated.
    with ExitStack() as stack:

        def come_early(study: Reception) -> None:
            client = stack.enter_context(RawClient(study.endpoints[0].control[0]))
            client.say(Hello(study=STUDY, simulation=None, attempt=ATTACHING, rank=0, num_ranks=1, parameters=None))
            assert study.first.receiver.sockets.wait(DEADLINE_S)

        with reception(StudyShape(), before_start=come_early) as study:
            assert study.from_server(launcher_link.AttachRequest) == launcher_link.AttachRequest(
                token=0, simulation=None
            )


@pytest.mark.parametrize("num_clients", [2, 3])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_parallel_simulations_never_hang_with_the_smallest_buffers(num_clients: int, num_ranks: int) -> None:
    shape = StudyShape(
        fields=(FieldSpec(name="u", shape=(6, 2)), FieldSpec(name="v", shape=())),
        time_steps=TimeSteps(num=40),
        num_ranks=num_ranks,
        num_simulations=3,
        capacity=1,
        credit=2,
        at_once=3,
        held=1,
    )

    def simulate_rank(study: Reception, simulation: int, rank: int) -> None:
        with study.run(simulation, rank=rank, num_ranks=num_clients) as run:
            run.declare_field("u", shape=(6, 2))
            for step in range(40):
                u = np.full((6, 2), 100.0 * simulation + step)
                share = np.array_split(u, num_clients)[rank]
                assert run.send(step, u=share, **({"v": np.float64(step)} if rank == num_clients - 1 else {}))

    with reception(shape) as study:
        crew = Crew()
        for rank in study.ranks:
            crew.start(rank.drain)
        for simulation in range(3):
            study.launch(simulation)
            for rank in range(num_clients):
                crew.start(simulate_rank, study, simulation, rank)
        for server_rank in study.ranks:
            server_rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        rows = {key: row for rank in study.ranks for key, row in rank.rows.items()}
        assert sorted(rows) == [(s, i) for s in range(3) for i in range(40)]
        for (simulation, step), row in rows.items():
            np.testing.assert_array_equal(row["u"], np.full((6, 2), 100.0 * simulation + step))
            assert row["v"] == step


def test_fields_of_many_megabytes_come_in_parts() -> None:
    shape = StudyShape(
        fields=(FieldSpec(name="u", shape=(3, 400_000)), FieldSpec(name="w", shape=(2,), dtype="<f4")),
        time_steps=TimeSteps(num=3),
        capacity=4,
    )

    def parallel(study: Reception, rank: int) -> None:
        with study.run(0, rank=rank, num_ranks=2) as run:
            offset = 150_000 * rank
            run.declare_field("u", shape=(3, 400_000), offset=(0, offset))
            for step in range(3):
                u = np.arange(1_200_000.0).reshape(3, 400_000) + step
                block = u[:, :150_000] if rank == 0 else u[:, 150_000:]
                assert run.send(step, u=block, **({"w": np.ones(2)} if rank == 0 else {}))

    with reception(shape) as study:
        crew = Crew()
        crew.start(study.first.drain)
        study.launch(0)
        for rank in range(2):
            crew.start(parallel, study, rank)
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        for step in range(3):
            np.testing.assert_array_equal(
                study.first.rows[0, step]["u"], np.arange(1_200_000.0).reshape(3, 400_000) + step
            )
        assert study.first.rows[0, 0]["w"].dtype == np.float32


def test_simulations_of_other_parameters_that_send_the_same_are_told_of() -> None:
    with reception(StudyShape(num_simulations=3)) as study:
        crew = Crew()
        crew.start(study.first.drain)
        for simulation in range(3):
            study.launch(simulation)
            with study.run(simulation) as run:
                for step in range(6):
                    run.send(step, u=value(7, step))
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        [warning] = [event.text for event in study.first.seen if isinstance(event, mailbox.SimulationWarning)]
        assert warning.startswith("all 3 simulations that have finished sent the same values in every time step")


def test_a_new_attempt_repeats_only_what_is_not_known_and_the_rest_counts_as_duplicates() -> None:
    with reception(StudyShape()) as study:
        crew = Crew()
        crew.start(study.first.drain)
        study.launch(0)
        lost = study.run(0)
        for step in range(4):
            lost.send(step, u=value(0, step))
        # The window is 4: once the next step may be sent, the first one has arrived.
        lost.send(4, u=value(0, 4))
        lost.__exit__(RuntimeError, RuntimeError("the simulation dies"), None)
        study.launcher.send(launcher_link.Failed(simulation=0, attempt=0, reason="exit code 1", log=""))
        study.launch(0, 1)
        simulate(study, 0, range(6), attempt=1)
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sorted(study.first.drawn) == [(0, i) for i in range(6)]
        assert study.first.receiver.account().duplicates >= 1


def test_a_sample_with_nan_is_rejected_settled_and_never_drawn() -> None:
    with reception(StudyShape()) as study:
        crew = Crew()
        crew.start(study.first.drain)
        study.launch(0)
        with study.run(0) as run:
            for step in range(6):
                run.send(step, u=value(0, step) * (np.nan if step == 2 else 1))
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sorted(study.first.drawn) == [(0, i) for i in (0, 1, 3, 4, 5)]
        taken = study.first.receiver.account().intake[0]
        assert (taken.accepted, taken.rejected) == (5, {"nonfinite": 1})


def test_with_nonfinite_stop_a_nan_ends_the_stream_with_an_error_that_names_it() -> None:
    with reception(StudyShape(nonfinite="stop")) as study:
        study.launch(0)
        run = study.run(0)
        run.send(0, u=np.full(4, np.inf))
        with pytest.raises(ProducerFailed) as failure:
            study.first.buffer.draw(1, 20)
        assert isinstance(failure.value.__cause__, NonFiniteData)
        assert "simulation 0" in str(study.first.receiver.error)
        run.__exit__(RuntimeError, RuntimeError("leave"), None)


def test_held_out_simulations_go_to_the_validation_store_and_not_to_the_buffer() -> None:
    with reception(StudyShape(num_simulations=2, num_validation=1)) as study:
        crew = Crew()
        crew.start(study.first.drain)
        for simulation in range(2):
            study.launch(simulation)
            crew.start(simulate, study, simulation, range(6))
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert {simulation for simulation, _ in study.first.drawn} == {1}
        held_out = study.first.validation.complete_rows()
        np.testing.assert_array_equal(held_out.time_steps, range(6))
        np.testing.assert_array_equal(held_out.rows("u", 0, 6)[3], value(0, 3))


def test_an_invalidated_simulation_is_withdrawn_from_the_buffer() -> None:
    with reception(StudyShape(num_simulations=2)) as study:
        study.launch(0)
        run = study.run(0)
        for step in range(5):
            run.send(step, u=value(0, step))
        run.invalidate("it blew up")
        assert study.from_server(launcher_link.Invalid) == launcher_link.Invalid(simulation=0, reason="it blew up")
        study.launch(1)
        simulate(study, 1, range(6))
        study.first.wait_for(mailbox.ReceptionEnded)
        study.first.drain()
        assert {simulation for simulation, _ in study.first.drawn} == {1}
        account = study.first.receiver.account()
        assert account.intake[0].accepted == account.withdrawn


def test_what_has_all_arrived_cannot_be_withdrawn_and_its_program_is_told() -> None:
    with reception(StudyShape(num_simulations=2)) as study:
        study.launch(0)
        run = study.run(0)
        for step in range(6):
            run.send(step, u=value(0, step))
        run.finish()
        with pytest.raises(
            Refused, match=r"could not be invalidated: simulation 0 is finished already.*last time step"
        ):
            run.invalidate("the energy drifts")
        assert "the energy drifts" in study.first.wait_for(mailbox.SimulationWarning).text


def test_once_the_study_is_stopped_clients_hear_it_and_do_not_fail() -> None:
    with reception(StudyShape(capacity=1, num_simulations=2, num_ranks=2)) as study:
        study.launch(0)
        run = study.run(0)
        assert run.send(0, u=value(0, 0))
        order = launcher_link.StopSimulations(reason="time limit", grace_s=0.0)
        study.first.receiver.post(order)
        assert study.from_server(launcher_link.StopSimulations) == order
        step = 1
        while run.send(step % 6, u=value(0, step)):
            step += 1
        run.finish()
        assert not study.run(1).send(0, u=value(1, 0))


@pytest.mark.parametrize("asks", [0, 1])
def test_a_simulation_is_stopped_early_on_all_ranks_whichever_asks_and_keeps_what_has_come(
    asks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reception(StudyShape(num_simulations=2, num_ranks=2, time_steps=TimeSteps(num=400), at_once=2)) as study:
        crew = Crew()
        # Windows let go of a simulation then.
        ended: list[list[int]] = [[], []]
        for rank, mine in zip(study.ranks, ended, strict=True):
            monkeypatch.setattr(rank.buffer, "end", mine.extend)
        study.launch(0)
        run = study.run(0)
        for step in range(6):
            assert run.send(step, u=value(0, step))
        study.ranks[asks].receiver.post(EndEarly(simulation=0, reason="it is known"))
        step = 6
        # Nothing is drawn meanwhile: it cannot be at its end before it hears of that.
        while run.send(step, u=value(0, step)):
            step += 1
        run.finish()
        for rank in study.ranks:
            crew.start(rank.drain)
        assert run.stop_reason == "it is known"
        assert study.from_server(launcher_link.Finished) == launcher_link.Finished(simulation=0)
        # One that lost its connection, and one that comes only now.
        for rank in study.ranks:
            with RawClient(study.endpoints[study.ranks.index(rank)].data[0]) as client:
                assert client.ask(opening()) == Stop(text="it is known")
        late = study.run(0)
        assert not late.send(0, u=value(0, 0))
        study.launch(1)
        simulate(study, 1, range(400))
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert [mine[0] for mine in ended] == [0, 0]
        drawn = sorted(key for rank in study.ranks for key in rank.drawn)
        first = [index for simulation, index in drawn if simulation == 0]
        # Steps that were under way when the word came are lost, or came: also the one whose `send` brought the word.
        assert set(first) <= set(range(step + 1))
        assert len(first) < 400
        assert len(set(drawn)) == len(drawn) == len(first) + 400
        accepted = sum(rank.receiver.account().intake[0].accepted for rank in study.ranks)
        assert accepted == len(first)


def opening(**changes: object) -> Open:
    block = Block(field="u", dtype="<f8", shape=(4,), offset=(0,), count=(4,))
    values = {"study": STUDY, "simulation": 0, "attempt": 0, "incarnation": INCARNATION, "rank": 0, "num_ranks": 1}
    return Open(**{**values, "blocks": (block,), **changes})  # type: ignore[arg-type]


def data(sequence: int, index: int, **changes: object) -> Data:
    values = {"simulation": 0, "attempt": 0, "incarnation": INCARNATION, "num_steps": 1, "present": 1}
    return Data(**{**values, "sequence": sequence, "index": index, **changes})  # type: ignore[arg-type]


def welcome(study: Reception, simulation: int = 0) -> None:
    """Wait until an attempt has begun on all ranks."""
    study.launch(simulation)
    with RawClient(study.endpoints[0].control[0]) as client:
        hello = Hello(study=STUDY, simulation=simulation, attempt=0, rank=0, num_ranks=1)
        while isinstance(answer := client.ask(hello), Refusal) and answer.reason in (
            Reason.BUSY,
            Reason.STALE_ATTEMPT,
            Reason.UNKNOWN_SIMULATION,
        ):
            pass


def test_a_client_that_did_not_hear_of_an_early_stop_hears_it_when_it_sends_on() -> None:
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            study.first.receiver.post(EndEarly(simulation=0, reason="it is known"))
            heard = [client.hear(), client.hear()]
            assert heard == [Stop(text="it is known"), Ack(received=0, durable=0, stop=True)]
            for message in (
                data(0, 0),
                End(simulation=0, attempt=0, incarnation=INCARNATION, share=6, total=6),
                Ping(),
            ):
                payload = [value(0, 0).tobytes()] if isinstance(message, Data) else ()
                assert client.ask(message, payload) == Stop(text="it is known")
        assert study.first.receiver.account().refused == {}


def test_a_client_that_did_not_hear_that_the_study_has_ended_hears_why_when_it_sends_on() -> None:
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            study.first.receiver.post(launcher_link.StopSimulations(reason="converged", grace_s=60.0))
            assert client.hear() == Stop(text="converged")
            assert client.hear() == Ack(received=0, durable=0, stop=True)
            assert client.ask(data(0, 0), [value(0, 0).tobytes()]) == Stop(text="converged")
            assert client.ask(Ping()) == Stop(text="converged")
        with RawClient(study.endpoints[0].data[0]) as newcomer:
            assert newcomer.ask(opening()) == Stop(text="converged")


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        (opening(study="other"), Reason.WRONG_STUDY, "study-1"),
        (opening(incarnation=INCARNATION - 1), Reason.STALE_INCARNATION, "incarnation 3"),
        (opening(simulation=77), Reason.UNKNOWN_SIMULATION, "77"),
        (opening(attempt=5), Reason.STALE_ATTEMPT, "attempt 5"),
        (
            opening(blocks=(Block(field="w", dtype="<f8", shape=(4,), offset=(0,), count=(4,)),)),
            Reason.WRONG_FIELDS,
            "no field w",
        ),
        (
            opening(blocks=(Block(field="u", dtype="<c16", shape=(4,), offset=(0,), count=(4,)),)),
            Reason.WRONG_FIELDS,
            "complex128",
        ),
        (
            opening(blocks=(Block(field="u", dtype="<f8", shape=(5,), offset=(0,), count=(5,)),)),
            Reason.WRONG_BLOCKS,
            "(4,)",
        ),
        (
            opening(blocks=(Block(field="u", dtype="<f8", shape=(4,), offset=(1,), count=(3,)),)),
            Reason.WRONG_BLOCKS,
            "3 of the 4",
        ),
        (data(0, 0), Reason.NOT_OPEN, "opened"),
        (Ping(), Reason.NOT_OPEN, "opened"),
        (Hello(study=STUDY, simulation=0, attempt=0, rank=0, num_ranks=1), Reason.STALE_INCARNATION, "started again"),
        (Ack(received=0, durable=0), Reason.MALFORMED, "Ack"),
    ],
)
def test_what_does_not_belong_is_refused_with_a_clear_text(message: Open, reason: Reason, words: str) -> None:
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            answer = client.ask(message, [b"12345678"] if isinstance(message, Data) else ())
        assert isinstance(answer, Refusal)
        assert answer.reason is reason
        assert words in answer.text
        assert study.first.receiver.account().refused == {reason.name.lower(): 1}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (opening(), Reason.STALE_INCARNATION),
        (data(0, 0), Reason.STALE_INCARNATION),
        (Ping(), Reason.STALE_INCARNATION),
        (Ack(received=0, durable=0), Reason.MALFORMED),
    ],
)
def test_what_belongs_on_a_data_connection_tells_of_a_restart_on_the_control_connection(
    message: Open, reason: Reason
) -> None:
    with reception(StudyShape()) as study, RawClient(study.endpoints[0].control[0]) as client:
        answer = client.ask(message)
    assert isinstance(answer, Refusal)
    assert answer.reason is reason


def test_the_last_step_once_more_hears_that_the_simulation_is_finished() -> None:
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            client.ask(opening())
            for step in range(4):
                client.say(data(step, step), [value(0, step).tobytes()])
            while client.ask(Ping()).received < 4:
                pass
            for step in (4, 5):
                client.say(data(step, step), [value(0, step).tobytes()])
            study.first.drain()
            client.say(data(6, 5), [value(0, 5).tobytes()])
            while not isinstance(answer := client.hear(), Stop):
                assert isinstance(answer, Ack), answer
            assert answer.text == "simulation 0 is finished"


@pytest.mark.parametrize(
    ("message", "payload", "reason"),
    [
        (data(0, 0), [bytes(24)], Reason.MALFORMED),
        (data(0, 0), [], Reason.MALFORMED),
        (data(0, 0), [bytes(32), b"more"], Reason.MALFORMED),
        (data(0, 0, checksum=1), [bytes(32)], Reason.CHECKSUM),
        (data(3, 0), [bytes(32)], Reason.MALFORMED),
        (data(0, 6), [bytes(32)], Reason.WRONG_STEP),
        (data(0, 0, present=3), [bytes(32), bytes(32)], Reason.WRONG_BLOCKS),
        (data(0, 0, incarnation=1), [bytes(32)], Reason.STALE_INCARNATION),
        (data(0, 0, attempt=1), [bytes(32)], Reason.STALE_ATTEMPT),
        (data(0, 0, num_steps=5), [bytes(160)], Reason.BEYOND_CREDIT),
        (data(0, 0, num_steps=2**32 - 1), [bytes(32)], Reason.BEYOND_CREDIT),
        (data(0, 0, field=0, offset=4 * 2**20), [bytes(32)], Reason.WRONG_STEP),
    ],
)
def test_data_that_is_not_as_announced_is_refused_and_the_connection_lives_on(
    message: Data, payload: list[bytes], reason: Reason
) -> None:
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            refusal = client.ask(message, payload)
            assert isinstance(refusal, Refusal)
            assert (refusal.reason, refusal.sequence) == (reason, message.sequence)
            sequence = 0 if message.sequence else 1
            client.say(data(sequence, 2), [value(0, 2).tobytes()])
            while not isinstance(answer := client.hear(), Ack) or answer.received <= sequence:
                client.say(Ping())
        assert study.first.receiver.account().intake[0].accepted == 1
        draw = study.first.buffer.draw(1, 5)
        assert draw is not None
        np.testing.assert_array_equal(study.first.buffer.gather(draw)["u"][0], value(0, 2))


def test_a_step_outside_the_window_is_refused_and_the_window_still_works() -> None:
    with reception(StudyShape(capacity=1, credit=2)) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            for step in range(2):
                client.say(data(step, step), [value(0, step).tobytes()])
            while not isinstance(answer := client.ask(Ping()), Ack) or answer.received < 1:
                pass
            with study.first.receiver.turn:
                # What is said now is heard in a later turn, while step 1 waits for room.
                pass
            for step in (2, 3):
                client.say(data(step, step), [value(0, step).tobytes()])
            answers = [client.hear()]
            while not isinstance(answers[-1], Refusal):
                answers.append(client.hear())
            refusal = answers[-1]
            assert isinstance(refusal, Refusal)
            assert (refusal.reason, refusal.sequence) == (Reason.BEYOND_CREDIT, 3)
            assert "credit is 2" in refusal.text
            for _ in range(3):
                draw = study.first.buffer.draw(1, 5)
                assert draw is not None
                study.first.buffer.release(draw)
            while not isinstance(answer := client.ask(Ping()), Ack) or answer.received < 4:
                pass


def test_a_client_that_floods_rejected_samples_without_waiting_does_no_harm() -> None:
    shape = StudyShape(capacity=1, credit=2, at_once=1, held=1, time_steps=TimeSteps(num=300))
    with reception(shape) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            for step in range(300):
                client.say(data(step, step), [np.full(4, np.nan).tobytes()])
            while not isinstance(answer := client.ask(Ping()), Ack) or answer.received < 300:
                pass
        study.first.wait_for(mailbox.ReceptionEnded)
        assert study.first.receiver.account().intake[0].rejected == {"nonfinite": 300}


def test_junk_from_strangers_is_counted_and_the_study_goes_on() -> None:
    generator = np.random.default_rng(5)
    with reception(StudyShape()) as study:
        crew = Crew()
        crew.start(study.first.drain)
        with RawClient(study.endpoints[0].data[0]) as a, RawClient(study.endpoints[0].control[1]) as b:
            for size in generator.integers(0, 300, 500):
                for stranger in (a, b):
                    frames = [generator.bytes(size)] * int(generator.integers(1, 5))
                    stranger.socket.send_multipart(frames)
            study.launch(0)
            simulate(study, 0, range(6))
            a.say(Ping())
            answer: object = None
            while not (isinstance(answer, Refusal) and answer.reason is Reason.NOT_OPEN):
                if a.socket.poll(2000):
                    answer = a.hear()
                else:
                    # The queue of 64 answers was full of refusals when its turn came. Clients ask again, too.
                    a.say(Ping())
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert len(study.first.drawn) == 6
        assert study.first.receiver.account().refused["malformed"] >= 500


def test_simulations_beyond_the_room_wait_until_others_are_done() -> None:
    with reception(StudyShape(num_simulations=6, at_once=1, credit=2, capacity=1)) as study:
        crew = Crew()
        for simulation in range(6):
            study.launch(simulation)
            crew.start(simulate, study, simulation, range(6))
        crew.start(study.first.drain)
        study.first.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert len(study.first.drawn) == 36


def test_a_study_with_keys_lets_in_the_holder_of_the_attempts_key_over_tcp() -> None:
    with reception(StudyShape(secure=True, num_ranks=2)) as study:
        key = KeyPair.make()
        crew = Crew()
        for rank in study.ranks:
            crew.start(rank.drain)
        file = study.launch(0, key=key)
        tcp_only = [it.data for it in study.endpoints]
        assert all(addresses[1].startswith("tcp://") for addresses in tcp_only)
        with connect(over_tcp(file), timeout_s=20) as run:
            for step in range(6):
                assert run.send(step, u=value(0, step))
        study.first.wait_for(mailbox.ReceptionEnded)
        study.ranks[1].wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sum(len(rank.drawn) for rank in study.ranks) == 6


def test_a_stranger_with_a_key_of_its_own_is_not_let_in() -> None:
    with reception(StudyShape(secure=True)) as study:
        study.launch(0, key=KeyPair.make())
        with pytest.raises(Unreachable):
            connect(over_tcp(study.connection(0, key=KeyPair.make())), timeout_s=0.5)


def test_a_key_speaks_for_its_own_attempt_only() -> None:
    with reception(StudyShape(secure=True, num_simulations=2)) as study:
        key = KeyPair.make()
        study.launch(0, key=key)
        study.launch(1, key=KeyPair.make())
        with pytest.raises(Refused, match="does not speak for simulation 1"):
            connect(over_tcp(study.connection(1, key=key)), timeout_s=20)


def over_tcp(file: ConnectionFile) -> ConnectionFile:
    return replace(file, control=(file.control[1],), host="elsewhere")


def test_two_ends_that_disagree_are_refused() -> None:
    with reception(StudyShape(time_steps=TimeSteps(num=None))) as study:
        welcome(study)
        halves = [Block(field="u", dtype="<f8", shape=(4,), offset=(2 * i,), count=(2,)) for i in range(2)]
        with RawClient(study.endpoints[0].data[0]) as one, RawClient(study.endpoints[0].data[0]) as other:
            for i, client in enumerate((one, other)):
                assert isinstance(client.ask(opening(rank=i, num_ranks=2, blocks=(halves[i],))), Opened)
            one.say(End(simulation=0, attempt=0, incarnation=INCARNATION, share=3, total=3))
            assert isinstance(one.hear(), Ack)
            answer = other.ask(End(simulation=0, attempt=0, incarnation=INCARNATION, share=4, total=4))
            assert isinstance(answer, Refusal)
            assert answer.reason is Reason.WRONG_STEP


def test_what_opens_a_connection_is_answered_again_and_nothing_else_opens_it_anew() -> None:
    with reception(StudyShape()) as study:
        welcome(study)
        with RawClient(study.endpoints[0].data[0]) as client:
            assert isinstance(client.ask(opening()), Opened)
            assert isinstance(client.ask(opening()), Opened)
            refusal = client.ask(opening(blocks=()))
            assert isinstance(refusal, Refusal)
            assert (refusal.reason, refusal.text) == (Reason.WRONG_BLOCKS, "the connection was opened before")
