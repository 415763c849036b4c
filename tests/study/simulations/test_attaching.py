"""Simulations that nobody launched attach with the study's own connection file."""

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stream_server.client_api import connect, simulations
from stream_server.client_api.hello import ask
from stream_server.client_api.watch import ConnectionWatch
from stream_server.errors import Refused, Unreachable
from stream_server.messages.client import Invalidate, Reason, Refusal
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair
from tests.study.numpy_study.ripple import send_all, signal_at
from tests.support.failpoints import failpoints
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, start_study

# No command: the study only waits for simulations.
NOBODY_LAUNCHES: dict[str, Any] = {
    "simulation.command": None,
    "simulation.retries": 2,
    "launcher.max_running": 1,
    "server.class": "strict_server.py:RippleServer",
}
SECRET_FILES = {"connection.json", "operator.json"}
OWN_PARAMETERS = {"slope": -0.75, "offset": 0.25}


def over_tcp(path: Path, **changes: Any) -> ConnectionFile:
    """The connection as another node sees it: the addresses of ipc mean nothing there."""
    file = ConnectionFile.read(path)
    control = tuple(address for address in file.control if address.startswith("tcp://"))
    assert control
    return replace(file, host="another node", control=control, **changes)


def security_with(file: ConnectionFile, **changes: str) -> Security:
    assert file.security is not None
    return replace(file.security, **changes)


def test_a_study_without_a_command_takes_whoever_attaches_also_from_another_node(start: Callable[..., Any]) -> None:
    with start(num_ranks=2, settings=NOBODY_LAUNCHES | {"study.simulations": 4}) as live:
        live.wait_until(live.connection.exists)
        with connect(live.connection) as first:
            assert (first.id, first.attempt) == (0, 0)
            assert send_all(first)
        elsewhere = over_tcp(live.connection)
        keys = KeyPair.make()
        stranger = security_with(elsewhere, client_public_key=keys.public, client_secret_key=keys.secret)
        for unwanted in (stranger, None):
            with pytest.raises(Unreachable):
                connect(replace(elsewhere, security=unwanted), timeout_s=0.5)
        with connect(elsewhere, simulation_id=3, parameters=OWN_PARAMETERS) as third:
            assert (third.id, third.parameters) == (3, OWN_PARAMETERS)
            assert send_all(third)
        live.wait_until(lambda: "simulation 3 finished" in (live.output_dir / "logs" / "launcher.log").read_text())
        with pytest.raises(Refused, match="simulation 3 is finished already"):
            connect(live.connection, simulation_id=3)
        with pytest.raises(Refused, match="simulation 70 is not in the study"):
            connect(live.connection, simulation_id=70)
        with pytest.raises(Refused, match="the study has the parameters offset, slope, but these are slop"):
            connect(live.connection, parameters={"slop": 1})
        worked_on = []
        for simulation in simulations(elsewhere):
            worked_on.append(simulation.id)
            assert send_all(simulation)
        assert worked_on == [1, 2, 4]
        assert_complete(live.end(), num_simulations=4)


@pytest.mark.full
def test_a_simulation_on_another_node_sends_over_tcp_without_security(start: Callable[..., Any]) -> None:
    settings = NOBODY_LAUNCHES | {"study.simulations": 2, "network.security": "none"}
    with start(num_ranks=2, settings=settings) as live:
        live.wait_until(live.connection.exists)
        file = over_tcp(live.connection)
        assert file.security is None
        for simulation in simulations(file):
            assert send_all(simulation)
        assert_complete(live.end(), num_simulations=2)


def test_no_more_than_max_attached_are_let_in_at_once_and_one_that_fails_is_one_to_try_again(
    start: Callable[..., Any],
) -> None:
    changes = {"client.max_attached": 1, "study.simulations": 2, "simulation.timeout_s": 6}
    with start(settings=NOBODY_LAUNCHES | changes) as live, ThreadPoolExecutor() as threads:
        live.wait_until(live.connection.exists)
        first = connect(live.connection)
        second = threads.submit(connect, live.connection)
        assert send_all(first)
        assert not second.done()
        first.finish()
        with second.result(timeout=120) as simulation:
            assert simulation.id != first.id
            assert send_all(simulation)
        with pytest.raises(ArithmeticError):
            fail_after_one_step(live.connection)
        attempts = []
        for simulation in simulations(live.connection):
            attempts.append((simulation.id, simulation.attempt))
            assert send_all(simulation)
        done = live.end()
    assert attempts == [(2, 1)]
    assert_complete(done, num_simulations=2)


@pytest.mark.full
def test_a_worker_helps_a_study_that_launches_simulations_itself(start: Callable[..., Any], tmp_path: Path) -> None:
    go = tmp_path / "go"
    settings = {"simulation.command": ["python", "patient.py", str(go)], "launcher.max_running": 1}
    with start(settings=settings | {"study.simulations": 4}) as live:
        live.wait_until(lambda: "waiting" in live.log(0))
        with pytest.raises(Refused, match="simulation 0 is run by the study itself"):
            connect(live.connection, simulation_id=0, timeout_s=1)
        worked_on = []
        for simulation in simulations(live.connection):
            worked_on.append(simulation.id)
            assert send_all(simulation)
            if len(worked_on) == 3:
                go.touch()
        assert worked_on[:3] == [1, 2, 3]
        assert_complete(live.end(), num_simulations=4)


@pytest.mark.full
def test_simulations_whose_clients_had_not_heard_of_them_when_the_server_died_are_theirs_afterwards(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    settings = NOBODY_LAUNCHES | {"client.max_attached": 2, "study.simulations": 1}
    # They have been given out, and rank 0 dies before it has told their clients.
    killing = failpoints(tmp_path / "met", "receiver.before_notice=kill")
    supervised: dict[str, Any] = {"program": "stream-launcher", "mpi": None, "environment": killing}
    with start(**supervised, settings=settings) as live, ThreadPoolExecutor() as threads:
        live.wait_until(live.connection.exists)
        workers = [threads.submit(work, live.connection, parameters) for parameters in (None, OWN_PARAMETERS)]
        worked_on = sorted(simulation for worker in workers for simulation in worker.result(timeout=120))
        done = live.end()
    assert (tmp_path / "met" / "receiver.before_notice").exists()
    assert worked_on == [0, 1]
    assert_complete(done, num_simulations=1)
    assert done.report["restarts"] == 1
    assert "is declined" not in done.launcher_log


def test_a_study_says_that_it_waits_for_somebody_to_attach(start: Callable[..., Any]) -> None:
    with start(settings=NOBODY_LAUNCHES | {"study.simulations": 2}) as live:
        awaited = "somebody to attach for 3 simulations, since simulation.command starts none"
        live.wait_until(lambda: f"WAITS FOR {awaited}" in live.said)
        live.process.send_signal(signal.SIGINT)
        done = live.end()
    assert done.exit_code == 75, done.output
    assert done.report["awaited"] == awaited


def work(connection: Path, parameters: dict[str, float] | None) -> list[int]:
    """Run a simulation, and return its id."""
    with connect(connection, parameters=parameters) as simulation:
        assert parameters in (None, simulation.parameters)
        assert send_all(simulation)
        return [simulation.id]


def fail_after_one_step(connection: Path) -> None:
    with connect(connection) as simulation:
        assert simulation.send(1, signal=signal_at(1, simulation.parameters))
        raise ArithmeticError


def attempt_file(live: LiveRun, simulation: int) -> Path:
    return live.output_dir / "simulations" / str(simulation) / "attempt-0" / "connection.json"


@dataclass(frozen=True, kw_only=True)
class Overheard:
    """A study whose simulations 0 and 1 waited half-way meanwhile, and what could be learned of it."""

    done: Run
    refusals: list[str]
    answers: list[object]
    modes: list[int]
    secrets: list[str]
    words: list[str]


@pytest.fixture(scope="module")
def overheard(tmp_path_factory: pytest.TempPathFactory) -> Overheard:
    folder = tmp_path_factory.mktemp("overheard")
    settings = {"simulation.command": ["python", "patient.py", str(folder / "go")], "study.simulations": 2}
    with start_study(NUMPY_STUDY, folder / "run", settings=settings) as live:
        live.wait_until(lambda: all("waiting" in live.log(simulation) for simulation in (0, 1)))
        own, whole = over_tcp(attempt_file(live, 0)), over_tcp(live.connection)
        wrong = (
            replace(own, simulation=1),
            replace(own, attempt=1),
            replace(whole, simulation=1),
        )
        refusals = [refusal(file) for file in wrong]
        withdraw = Invalidate(study=own.study, simulation=1, attempt=0, reason="not mine")
        answers = [ask(withdraw, ConnectionWatch(file), who="a stranger", timeout_s=5) for file in (own, whole)]
        files = [live.connection, live.output_dir / "operator.json", attempt_file(live, 0), attempt_file(live, 1)]
        secrets = [json.loads(file.read_text())["security"]["client_secret_key"] for file in files]
        words = [word for process in live.processes() for word in process.cmdline()]
        words += [entry for process in live.processes() for entry in process.environ().values()]
        modes = [file.stat().st_mode & 0o777 for file in files]
        (folder / "go").touch()
        done = live.end()
    return Overheard(done=done, refusals=refusals, answers=answers, modes=modes, secrets=secrets, words=words)


def refusal(file: ConnectionFile) -> str:
    with pytest.raises(Refused) as refused:
        connect(file, timeout_s=5)
    return str(refused.value)


def test_a_key_speaks_for_its_own_attempt_only(overheard: Overheard) -> None:
    claimed = ["simulation 1, attempt 0", "simulation 0, attempt 1", "simulation 1, attempt 0"]
    for said, attempt in zip(overheard.refusals, claimed, strict=True):
        assert f"this key does not speak for {attempt}" in said
    for answer in overheard.answers:
        assert isinstance(answer, Refusal)
        assert answer.reason is Reason.WRONG_KEY
    assert_complete(overheard.done, num_simulations=2)


def test_nothing_secret_is_in_reports_logs_or_command_lines(overheard: Overheard) -> None:
    done = overheard.done
    assert overheard.modes == [0o600] * 4
    others = [path for path in done.output_dir.rglob("*") if path.is_file() and path.name not in SECRET_FILES]
    assert done.output_dir / "report.json" in others
    texts = [done.output, *overheard.words, *(path.read_text(errors="replace") for path in others)]
    for secret in overheard.secrets:
        assert len(secret) == 40
        assert not any(secret in text for text in texts)
