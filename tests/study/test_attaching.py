"""Simulations that nobody launched attach with the study's own connection file."""

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stream_server.client_api import connect, simulations
from stream_server.client_api.handshake import ask
from stream_server.client_api.simulation import Simulation
from stream_server.client_api.watch import ConnectionWatch
from stream_server.errors import Refused, Unreachable
from stream_server.messages.client import Invalidate, Reason, Refusal
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair
from tests.study.numpy_study.ripple import send_all, signal_at
from tests.support.runs import LiveRun, assert_complete, failpoints

# No command: the study only waits for simulations.
NOBODY_LAUNCHES: dict[str, Any] = {
    "simulation.command": None,
    "simulation.retries": 2,
    "launcher.max_running": 1,
    "server.class": "strict_server.py:RippleServer",
}
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


def test_a_study_without_a_command_takes_whoever_attaches(start: Callable[..., Any]) -> None:
    with start(num_ranks=2, settings=NOBODY_LAUNCHES) as live:
        live.wait_until(live.connection.exists)
        with connect(live.connection) as first:
            assert (first.id, first.attempt) == (0, 0)
            assert send_all(first)
        with connect(live.connection, simulation_id=3, parameters=OWN_PARAMETERS) as third:
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
        for simulation in simulations(live.connection):
            worked_on.append(simulation.id)
            assert send_all(simulation)
        assert worked_on == [1, 2, 4, 5, 6]
        assert_complete(live.end(), num_simulations=6)


def test_no_more_than_max_attached_are_let_in_at_once(start: Callable[..., Any]) -> None:
    settings = NOBODY_LAUNCHES | {"client.max_attached": 1, "study.simulations": 1}
    with start(settings=settings) as live, ThreadPoolExecutor() as threads:
        live.wait_until(live.connection.exists)
        first = connect(live.connection)
        second = threads.submit(connect, live.connection)
        assert send_all(first)
        assert not second.done()
        first.finish()
        with second.result(timeout=20) as simulation:
            assert simulation.id != first.id
            assert send_all(simulation)
        assert_complete(live.end(), num_simulations=1)


def test_a_worker_helps_a_study_that_launches_simulations_itself(start: Callable[..., Any], tmp_path: Path) -> None:
    go = tmp_path / "go"
    settings = {"simulation.command": ["python", "patient.py", str(go)], "launcher.max_running": 1}
    with start(num_ranks=2, settings=settings) as live:
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
        assert_complete(live.end(), num_simulations=6)


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
        worked_on = sorted(simulation for worker in workers for simulation in worker.result(timeout=30))
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


def test_an_attached_simulation_that_fails_is_one_to_try_again(start: Callable[..., Any]) -> None:
    settings = NOBODY_LAUNCHES | {"study.simulations": 1, "simulation.timeout_s": 1}
    with start(settings=settings) as live:
        live.wait_until(live.connection.exists)
        with pytest.raises(ArithmeticError):
            fail_after_one_step(live.connection)
        for simulation in simulations(live.connection):
            assert send_all(simulation)
        done = live.end()
        assert done.exit_code == 0, done.output
        assert done.report["simulations"]["finished"] == 2


@pytest.mark.parametrize("security", ["curve", "none"])
def test_a_simulation_on_another_node_sends_over_tcp(start: Callable[..., Any], security: str) -> None:
    settings = NOBODY_LAUNCHES | {"study.simulations": 2, "network.security": security}
    with start(num_ranks=2, settings=settings) as live:
        live.wait_until(live.connection.exists)
        file = over_tcp(live.connection)
        assert (file.security is None) == (security == "none")
        if file.security is not None:
            keys = KeyPair.make()
            stranger = security_with(file, client_public_key=keys.public, client_secret_key=keys.secret)
            for unwanted in (stranger, None):
                with pytest.raises(Unreachable):
                    connect(replace(file, security=unwanted), timeout_s=0.5)
        for simulation in simulations(file):
            assert send_all(simulation)
        assert_complete(live.end(), num_simulations=2)


@pytest.fixture
def waiting_study(start: Callable[..., Any], tmp_path: Path) -> Iterator[LiveRun]:
    """A study whose simulations 0 and 1 are half-way, and wait for the file `go`."""
    settings = {"simulation.command": ["python", "patient.py", str(tmp_path / "go")], "study.simulations": 2}
    with start(num_ranks=2, settings=settings) as live:
        live.wait_until(lambda: all("waiting" in live.log(simulation) for simulation in (0, 1)))
        yield live


def attempt_file(live: LiveRun, simulation: int) -> Path:
    return live.output_dir / "simulations" / str(simulation) / "attempt-0" / "connection.json"


def let_in(file: ConnectionFile) -> Simulation:
    return connect(file, timeout_s=5)


def test_a_key_speaks_for_its_own_attempt_only(waiting_study: LiveRun, tmp_path: Path) -> None:
    live = waiting_study
    files = [over_tcp(attempt_file(live, simulation)) for simulation in (0, 1)]
    with pytest.raises(Refused, match="this key does not speak for simulation 1, attempt 0"):
        let_in(replace(files[0], simulation=1))
    with pytest.raises(Refused, match="this key does not speak for simulation 0, attempt 1"):
        let_in(replace(files[0], attempt=1))
    with pytest.raises(Refused, match="this key does not speak for simulation 1, attempt 0"):
        let_in(replace(over_tcp(live.connection), simulation=1))
    for file in (files[0], over_tcp(live.connection)):
        withdraw = Invalidate(study=file.study, simulation=1, attempt=0, reason="not mine")
        answer = ask(withdraw, ConnectionWatch(file), who="a stranger", timeout_s=5)
        assert isinstance(answer, Refusal)
        assert answer.reason is Reason.WRONG_KEY
    (tmp_path / "go").touch()
    assert_complete(live.end(), num_simulations=2)


def test_nothing_secret_is_in_reports_logs_or_command_lines(waiting_study: LiveRun, tmp_path: Path) -> None:
    live = waiting_study
    files = [live.connection, live.output_dir / "operator.json", attempt_file(live, 0), attempt_file(live, 1)]
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
    secrets = [json.loads(file.read_text())["security"]["client_secret_key"] for file in files]
    lines = [word for process in live.processes() for word in process.cmdline()]
    lines += [entry for process in live.processes() for entry in process.environ().values()]
    (tmp_path / "go").touch()
    done = live.end()
    assert_complete(done, num_simulations=2)
    secret_files = {file.name for file in files}
    others = [path for path in live.output_dir.rglob("*") if path.is_file() and path.name not in secret_files]
    assert live.output_dir / "report.json" in others
    texts = [done.output, *lines, *(path.read_text(errors="replace") for path in others)]
    for secret in secrets:
        assert len(secret) == 40
        assert not any(secret in text for text in texts)
