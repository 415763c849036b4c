"""The questions that an operator may ask rank 0, and nobody else: real sockets in one process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from stream_server.analysis.live import OPERATOR_FILE, ask
from stream_server.errors import MalformedMessage, NotRunning
from stream_server.messages import launcher_link, operator, wire
from stream_server.messages.client import ATTACHING, Hello, Reason, Refusal
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair
from stream_server.server.intake import mailbox
from stream_server.server.reception.operator_desk import FINISH_TEXT, STOP_TEXT
from tests.support.reception import DEADLINE_S, HERE, INCARNATION, STUDY, Reception, StudyShape, reception
from tests.support.timing import until

SHORT_MS = 500
TRAINING = operator.TrainingStatus(
    at_s=0.0,
    batches=3,
    samples=12,
    batches_per_s=1.5,
    draws_per_s=6.0,
    loss=0.5,
    validation_loss=None,
    population=2,
    capacity=100,
    fraction=0.25,
    elapsed_s=2.0,
    left_s=6.0,
    is_degraded=False,
)


def write_file(study: Reception, folder: Path, *, key: KeyPair | None = None) -> None:
    """The operator.json of this study, or one with another key."""
    key = key or study.operator
    ConnectionFile(
        study=STUDY,
        incarnation=INCARNATION,
        host=HERE,
        control=study.endpoints[0].operator,
        security=Security(
            server_public_key=study.keys.public, client_public_key=key.public, client_secret_key=key.secret
        ),
    ).write(folder / OPERATOR_FILE)


def asked(
    folder: Path, question: operator.Question, timeout_s: float = DEADLINE_S
) -> operator.StudyStatus | operator.SimulationPage | operator.StopAccepted:
    kinds = {
        operator.AskStatus: operator.StudyStatus,
        operator.AskSimulations: operator.SimulationPage,
        operator.AskStop: operator.StopAccepted,
    }
    return ask(folder, question, kinds[type(question)], timeout_s=timeout_s, runs=lambda: True)  # type: ignore[type-var]


@contextmanager
def connected(address: str, server: KeyPair, key: KeyPair | None) -> Iterator["zmq.Socket[bytes]"]:
    """A socket that says what it wants, with the key of somebody or without any."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    if key is not None:
        dealer.curve_serverkey = server.public.encode()
        dealer.curve_publickey, dealer.curve_secretkey = key.public.encode(), key.secret.encode()
    dealer.connect(address)
    try:
        yield dealer
    finally:
        context.destroy(linger=0)


def is_answered(address: str, server: KeyPair, key: KeyPair | None, frame: bytes) -> bytes | None:
    """The answer to a frame; None if there is none, since nobody listens to this key there."""
    with connected(address, server, key) as dealer:
        try:
            dealer.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            # The key was turned away already, and a socket without any connection lets nobody send.
            return None
        return dealer.recv() if dealer.poll(SHORT_MS) else None


def test_an_operator_hears_how_the_study_is_doing(tmp_path: Path) -> None:
    with reception(StudyShape(num_simulations=3)) as study:
        write_file(study, tmp_path)
        before = asked(tmp_path, operator.AskStatus())
        assert isinstance(before, operator.StudyStatus)
        assert (before.stage, before.training, before.ranks, before.incarnation) == ("set-up", None, 1, INCARNATION)
        assert before.simulations["waiting"] == 3
        study.first.receiver.show(TRAINING)
        status = asked(tmp_path, operator.AskStatus())
        assert isinstance(status, operator.StudyStatus)
        assert (status.stage, status.training) == ("training", TRAINING)
        assert status.age_s > 0


def test_an_operator_hears_what_the_queued_simulations_wait_for(tmp_path: Path) -> None:
    with reception(StudyShape(num_simulations=3)) as study:
        write_file(study, tmp_path)
        study.launch(0)
        study.launcher.send(launcher_link.Queued(simulations=(0,), waits_for="Resources"))
        until(lambda: study.roster.table.queue())
        status = asked(tmp_path, operator.AskStatus())
        assert isinstance(status, operator.StudyStatus)
        assert (status.simulations["queued"], status.queue) == (1, {"Resources": 1})
        page = asked(tmp_path, operator.AskSimulations(first=0, num=1))
        assert isinstance(page, operator.SimulationPage)
        assert (page.rows[0].state, page.rows[0].reason) == ("queued", "Resources")


def test_the_table_of_simulations_comes_in_pages(tmp_path: Path) -> None:
    with reception(StudyShape(num_simulations=3)) as study:
        write_file(study, tmp_path)
        page = asked(tmp_path, operator.AskSimulations(first=0, num=2))
        assert isinstance(page, operator.SimulationPage)
        assert (page.num_all, [row.simulation for row in page.rows]) == (3, [0, 1])
        assert page.rows[1] == operator.SimulationRow(
            simulation=1, parameters={"x": 1.0}, state="waiting", attempt=-1, received=0
        )
        rest = asked(tmp_path, operator.AskSimulations(first=2, num=2))
        assert isinstance(rest, operator.SimulationPage)
        assert [row.simulation for row in rest.rows] == [2]


def test_a_stop_reaches_the_training_and_a_launcher_which_starts_no_server_then(tmp_path: Path) -> None:
    with reception(StudyShape()) as study:
        write_file(study, tmp_path)
        for _ in range(2):
            assert isinstance(asked(tmp_path, operator.AskStop(finish=False)), operator.StopAccepted)
        assert study.first.wait_for(mailbox.StopAsked) == mailbox.StopAsked(reason=STOP_TEXT)
        assert study.from_server(launcher_link.Stopping) == launcher_link.Stopping(reason=STOP_TEXT)
        assert study.first.receiver.events.empty()
        status = asked(tmp_path, operator.AskStatus())
        assert isinstance(status, operator.StudyStatus)
        assert status.stage == "ending"


def test_a_study_that_is_to_finish_ends_when_what_runs_has_ended(tmp_path: Path) -> None:
    with reception(StudyShape(num_simulations=3)) as study:
        write_file(study, tmp_path)
        study.first.receiver.show(TRAINING)
        asked(tmp_path, operator.AskStop(finish=True))
        order = study.from_server(launcher_link.FinishSimulations)
        assert order == launcher_link.FinishSimulations(reason=FINISH_TEXT)
        status = asked(tmp_path, operator.AskStatus())
        assert isinstance(status, operator.StudyStatus)
        assert status.stage == "finishing"
        study.launcher.send(launcher_link.Dropped(simulations=(1, 2), reason=FINISH_TEXT))
        study.launch(0)
        with study.run(0) as run:
            for step in range(6):
                run.send(step, u=[0.0] * 4)
        study.first.wait_for(mailbox.ReceptionEnded)
        ends = study.roster.ends
        assert [ends[i].state for i in range(3)] == ["finished", "stopped", "stopped"]
        assert ends[2].reason == FINISH_TEXT


def test_a_launcher_that_asks_for_its_plan_again_is_told_before_that_to_start_nothing(tmp_path: Path) -> None:
    with reception(StudyShape()) as study:
        write_file(study, tmp_path)
        asked(tmp_path, operator.AskStop(finish=True))
        study.from_server(launcher_link.FinishSimulations)
        study.launcher.send(launcher_link.AskPlan())
        study.from_server(launcher_link.Plan)
        before = [type(it) for it in study.unread]
        assert launcher_link.FinishSimulations in before


@pytest.mark.parametrize("secure", [True, False])
def test_no_key_but_the_operators_stops_a_study(tmp_path: Path, secure: bool) -> None:
    stop = operator.encode(operator.AskStop(finish=False))
    client = KeyPair.make()
    with reception(StudyShape(secure=secure)) as study:
        study.launch(0, key=client if secure else None)
        addresses = study.endpoints[0]
        # Clients in the private folder, and those in the clear, speak without keys, and are not understood.
        open_doors = [addresses.control[0], *([] if secure else [addresses.control[1]])]
        for address in open_doors:
            answer = is_answered(address, study.keys, None, stop)
            assert answer is not None
            refusal = wire.decode(answer)
            assert isinstance(refusal, Refusal)
            assert refusal.reason is Reason.MALFORMED
        for key in (None, KeyPair.make()):
            for address in addresses.operator:
                assert is_answered(address, study.keys, key, stop) is None
        for key in (client, study.attaching, study.keys) if secure else ():
            for address in addresses.operator:
                answer = is_answered(address, study.keys, key, stop)
                with pytest.raises(MalformedMessage):
                    operator.answer(answer or b"")
        assert study.first.receiver.events.empty()


def test_the_operators_key_is_no_clients(tmp_path: Path) -> None:
    hello = Hello(study=STUDY, simulation=0, attempt=ATTACHING, rank=0, num_ranks=1)
    with reception(StudyShape(secure=True)) as study:
        for address in study.endpoints[0].operator:
            answer = is_answered(address, study.keys, study.operator, wire.encode(hello)[0])  # type: ignore[arg-type]
            assert answer is not None
            assert isinstance(operator.answer(answer), operator.NotUnderstood)


def test_an_operator_waits_for_the_next_server_and_takes_its_key(tmp_path: Path) -> None:
    """While a server is started again, the folder has the file of the one before."""
    with reception(StudyShape()) as study:
        write_file(study, tmp_path, key=KeyPair.make())
        looks = iter(range(10))

        def runs() -> bool:
            if next(looks) == 1:
                write_file(study, tmp_path)
            return True

        status = ask(tmp_path, operator.AskStatus(), operator.StudyStatus, timeout_s=DEADLINE_S, runs=runs)
        assert status.ranks == 1


def test_nobody_answers_for_a_study_that_is_gone(tmp_path: Path) -> None:
    with reception(StudyShape()) as study:
        write_file(study, tmp_path)
    with pytest.raises(NotRunning, match=r"did not answer within 0\.2 s.*Try again"):
        asked(tmp_path, operator.AskStatus(), timeout_s=0.2)
    with pytest.raises(NotRunning, match="has ended meanwhile"):
        ask(tmp_path, operator.AskStatus(), operator.StudyStatus, timeout_s=DEADLINE_S, runs=lambda: False)


def test_the_operators_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    with reception(StudyShape()) as study:
        write_file(study, tmp_path)
    path = tmp_path / OPERATOR_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["simulation"] is None


@pytest.mark.parametrize(
    "message",
    [
        operator.AskStatus(),
        operator.AskSimulations(first=0, num=operator.MAX_ROWS),
        operator.AskStop(finish=True),
    ],
)
def test_a_question_comes_back_from_its_frame(message: operator.Question) -> None:
    assert operator.question(operator.encode(message)) == message
    with pytest.raises(MalformedMessage):
        operator.answer(operator.encode(message))
