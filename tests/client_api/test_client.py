"""A simulation and a server, end to end over sockets."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stream_server.client_api import connect, simulations
from stream_server.client_api.retention import ENTRY_BYTES
from stream_server.errors import ConfigError, Refused, SimulationError
from stream_server.messages.client import (
    ATTACHING,
    End,
    FieldSpec,
    Reason,
    Refusal,
    TimeSteps,
)
from tests.fakes.server import FakeServer
from tests.support.timing import until

SMALL = (FieldSpec(name="u", shape=(4,)),)
TINY = np.arange(4.0)


def test_a_parameter_that_the_study_does_not_have_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        server_has = dict(simulation.parameters)
        simulation.send(0, u=TINY)
    assert server_has == {"viscosity": 0.5}
    assert simulation.parameters.get("viscosity", 1.0) == 0.5
    assert capsys.readouterr().err == ""
    assert [simulation.parameters.get("visocsity", 1.0) for _ in range(2)] == [1.0, 1.0]
    assert simulation.parameters.get("pressure") is None
    misspelt, absent = capsys.readouterr().err.splitlines()
    assert misspelt == (
        "stream-server: WARNING: the study has no parameter 'visocsity', only 'viscosity'; did you mean 'viscosity'? "
        "1.0 is used"
    )
    assert absent == "stream-server: WARNING: the study has no parameter 'pressure', only 'viscosity'. None is used"
    with pytest.raises(KeyError, match="did you mean 'viscosity'"):
        simulation.parameters["visocsity"]


def test_a_simulation_knows_the_fields_of_the_study_and_which_steps_are_in_a_checkpoint() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        # Too little for two steps in one message.
        server.credit = 3
        simulation = connect(server.path)
        assert {name: spec.shape for name, spec in simulation.fields.items()} == {"u": (4,)}
        for step in range(4):
            simulation.send(step, u=TINY)
            assert not simulation.is_durable(step)
        server.wait_until(lambda: len(server.steps) == 4)
        server.do_now(server.commit)
        until(lambda: simulation.is_durable(3))
        simulation.send(4, u=TINY)
        assert [simulation.is_durable(step) for step in range(6)] == [True] * 4 + [False] * 2
        server.wait_until(lambda: len(server.steps) == 5)
        # What a new server knows is in its checkpoint.
        server.move(incarnation=4, known=set(range(5)))
        until(lambda: simulation.send(5, u=TINY) and simulation.is_durable(4))
        assert not simulation.is_durable(5)
        simulation.finish()
    with connect("none") as simulation:
        assert simulation.fields == {}
        assert not simulation.is_durable(0)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f4", "f8", "c8", "c16", ">f4", ">i8"])
def test_any_numeric_type_arrives_as_it_was_sent(dtype: str) -> None:
    sent = (np.arange(4) % 2).astype(dtype)
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        simulation.send(0, u=sent)
        simulation.finish()
    received = server.steps[7, 0]["u"]
    assert received.tolist() == sent.tolist()
    assert received.dtype == sent.dtype.newbyteorder("<")


@pytest.mark.parametrize(
    "arrange",
    [np.asfortranarray, lambda u: u[::-1, ::-1], lambda u: np.repeat(u, 2, axis=1)[:, ::2], np.ndarray.tolist],
    ids=["fortran", "reversed", "strided", "list"],
)
@pytest.mark.parametrize("size", [4, 600], ids=["together", "alone"])
def test_any_memory_layout_arrives_in_c_order(arrange: Callable[[np.ndarray], np.ndarray], size: int) -> None:
    sent = arrange(np.arange(float(size * size)).reshape(size, size))
    with FakeServer((FieldSpec(name="u", shape=(size, size)),)) as server, connect(server.connection) as simulation:
        simulation.send(0, u=sent)
        simulation.finish()
    assert np.array_equal(server.steps[7, 0]["u"], sent)


def test_the_user_may_change_an_array_as_soon_as_it_is_sent() -> None:
    with FakeServer((FieldSpec(name="u", shape=(1000, 100)),)) as server, connect(server.connection) as simulation:
        u = np.empty((1000, 100))
        for step in range(20):
            u[:] = step
            simulation.send(step, u=u)
            u[:] = -1
        simulation.finish()
    assert all((server.steps[7, step]["u"] == step).all() for step in range(20))


def test_the_ranks_of_a_parallel_simulation_send_their_blocks() -> None:
    whole = np.arange(60.0).reshape(6, 10)

    def run(server: FakeServer, rank: int) -> None:
        row, column = divmod(rank, 2)
        with connect(server.connection, rank=rank, num_ranks=4, simulation_id=5) as simulation:
            simulation.declare_field("u", shape=(6, 10), offset=(3 * row, 5 * column))
            for step in range(20):
                simulation.send(step, u=whole[3 * row : 3 * row + 3, 5 * column : 5 * column + 5] + step)

    with FakeServer((FieldSpec(name="u", shape=(6, 10)),)) as server, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda rank: run(server, rank), range(4)))
    assert all(np.array_equal(server.steps[5, step]["u"], whole + step) for step in range(20))


def test_time_steps_are_labels() -> None:
    steps = TimeSteps(num=4, first=10, every=5)
    with FakeServer(SMALL, num_ranks=1, time_steps=steps) as server, connect(server.connection) as simulation:
        assert simulation.time_steps == range(10, 30, 5)
        for label in simulation.time_steps:
            simulation.send(np.int64(label), u=TINY)
        for wrong in (9, 11, 30, -5):
            with pytest.raises(ValueError, match="time steps 10 to 25, every 5, but not"):
                simulation.send(wrong, u=TINY)
        simulation.finish()
    assert sorted(server.steps) == [(7, index) for index in range(4)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (True, "True (bool)"),
        (np.False_, "False (bool)"),
        (2.0, "2.0 (float)"),
        (np.float64(0.5), "0.5 (float64)"),
        ("3", "'3' (str)"),
        (None, "None (NoneType)"),
        (np.zeros(3), "array([0., 0., 0.]) (ndarray)"),
    ],
)
def test_what_is_no_integer_is_no_time_step(wrong: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAM_CONNECTION", "none")
    with connect(parameters={}) as simulation:
        with pytest.raises(TypeError, match=r"the time step must be an integer, but is .*: count the steps") as error:
            simulation.send(wrong, u=TINY)
        assert told.partition(" ")[2] in str(error.value)
        assert told.partition(" ")[0] in str(error.value)
        simulation.send(np.int64(1), u=TINY)


def test_a_mistake_raises_at_the_users_send_and_the_simulation_goes_on() -> None:
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        with pytest.raises(ValueError, match="no field 'v'"):
            simulation.send(0, v=TINY)
        simulation.send(0, u=TINY)
        with pytest.raises(ValueError, match="shape"):
            simulation.send(1, u=np.zeros(3))
        simulation.send(1, u=TINY)
    assert len(server.steps) == 2


def test_finish_may_be_called_twice_and_nothing_is_sent_afterwards() -> None:
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        simulation.send(0, u=TINY)
        simulation.finish()
        simulation.finish()
        with pytest.raises(ValueError, match="simulation 7 is finished"):
            simulation.send(1, u=TINY)


def test_an_attaching_client_says_so_and_takes_what_the_server_gives() -> None:
    with FakeServer(SMALL) as server, connect(server.connection, parameters={"viscosity": 1}) as simulation:
        assert simulation.id == 7
        assert simulation.parameters == {"viscosity": 0.5}
    (hello,) = server.hellos
    assert (hello.simulation, hello.attempt, hello.parameters) == (None, ATTACHING, {"viscosity": 1.0})


def test_a_launched_client_cannot_be_another_simulation() -> None:
    with FakeServer(SMALL) as server, pytest.raises(ValueError, match="started as simulation 4, not 5"):
        connect(msgspec.structs.replace(server.connection, simulation=4), simulation_id=5)


def test_a_parallel_client_that_attaches_must_say_which_simulation_it_is() -> None:
    with FakeServer(SMALL) as server, pytest.raises(ValueError, match="same simulation_id on all ranks"):
        connect(server.connection, rank=1, num_ranks=2)


@pytest.mark.parametrize(("rank", "num_ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_of_its_ranks_is_told(rank: int, num_ranks: int) -> None:
    with pytest.raises(ValueError, match="rank must be between"):
        connect("none", rank=rank, num_ranks=num_ranks)


def test_a_worker_gets_simulations_until_none_is_left() -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = []
        seen = []
        for simulation in simulations(server.connection):
            simulation.send(0, u=TINY)
            seen.append(simulation.id)
            if len(seen) == 3:
                server.answers_to_hello = [Refusal(reason=Reason.NO_SIMULATION_LEFT, text="none left")]
        assert seen == [7, 7, 7]
    assert sum(isinstance(it, End) for it in server.messages[0]) == 3


def test_alone_every_call_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAM_CONNECTION", "none")
    monkeypatch.setenv("STREAM_SIMULATION_ID", "12")
    with connect(parameters={"viscosity": 1.0}) as simulation:
        assert (simulation.id, simulation.parameters, simulation.time_steps) == (12, {"viscosity": 1.0}, None)
        simulation.declare_field("anything", shape=(3,))
        assert simulation.send(5, whatever="goes") is True
    assert [it.id for it in simulations()] == [12]


@pytest.mark.parametrize(
    ("variable", "arguments", "expected"),
    [
        (None, [], {}),
        ('{"initial": 300, "left": -1.5}', ["--initial", "7"], {"initial": 300.0, "left": -1.5}),
        (None, ["--initial", "300", "--left=-1.5", "-n", "3", "file", "--verbose"], {"initial": 300.0, "left": -1.5}),
        (None, ["--name", "text", "--heat-flux", "1e3"], {"heat_flux": 1000.0}),
    ],
)
def test_alone_the_parameters_come_from_the_environment_or_the_command_line(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, arguments: list[str], expected: dict[str, float]
) -> None:
    monkeypatch.setattr(sys, "argv", ["heat.py", *arguments])
    if variable is not None:
        monkeypatch.setenv("STREAM_PARAMETERS", variable)
    with connect("none") as simulation:
        assert simulation.parameters == expected
    with connect("none", parameters={"x": 1.0}) as simulation:
        assert simulation.parameters == {"x": 1.0}


@pytest.mark.parametrize("variable", ["300", "[1]", '{"initial": "hot"}', '{"initial": null}', "initial=300"])
def test_parameters_that_are_none_are_refused_with_an_example(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("STREAM_PARAMETERS", variable)
    with pytest.raises(ConfigError, match=r'STREAM_PARAMETERS must be a JSON object such as \{"initial": 300'):
        connect("none")


def test_a_process_that_forgets_to_finish_still_ends(tmp_path: Path) -> None:
    script = (
        "import sys, numpy; from stream_server.client_api import connect\n"
        "simulation = connect(sys.argv[1]); simulation.send(0, u=numpy.zeros(4))\n"
    )
    with FakeServer(SMALL, num_ranks=1) as server:
        server.connection.write(tmp_path / "connection.json")
        subprocess.run([sys.executable, "-c", script, str(tmp_path / "connection.json")], check=True, timeout=60)
        server.wait_until(lambda: len(server.steps) == 1)
    assert not any(isinstance(it, End) for it in server.messages[0])


@pytest.mark.parametrize("call", ["send", "finish"])
def test_a_second_thread_in_a_call_is_refused_and_the_simulation_does_not_end_well(call: str) -> None:
    refusals = []

    class Meanwhile:
        def __array__(self, *_: Any, **__: Any) -> Any:
            calls: dict[str, Callable[[], object]] = {
                "send": lambda: simulation.send(2, u=TINY),
                "finish": simulation.finish,
            }
            with ThreadPoolExecutor(1) as other:
                refusals.append(other.submit(calls[call]).exception(60))
            return TINY

    with FakeServer(SMALL) as server:
        simulation = connect(server.connection)
        simulation.send(0, u=TINY)
        simulation.send(1, u=Meanwhile())
        with pytest.raises(SimulationError, match="used by two threads at once: call send and finish in one"):
            simulation.finish()
        assert "used by two threads at once" in str(refusals)
        assert not any(isinstance(it, End) for it in server.messages[0])


def test_one_thread_after_another_may_send() -> None:
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        for step in range(3):
            with ThreadPoolExecutor(1) as thread:
                assert thread.submit(simulation.send, step, u=TINY).result(60)
    assert len(server.steps) == 3


def test_a_forked_process_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    script = """
import multiprocessing, sys
from stream_server.client_api import connect
from stream_server.errors import SimulationError

def work(step):
    try:
        with simulation:
            simulation.send(step, u=[step] * 4)
    except SimulationError as error:
        return str(error)

with connect(sys.argv[1]) as simulation:
    simulation.send(0, u=[0] * 4)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for text in pool.map(work, [1, 2]):
            assert "a forked process cannot send by the connection of its parent" in text, text
    simulation.send(3, u=[3] * 4)
"""
    with FakeServer(SMALL, num_ranks=1) as server:
        server.connection.write(tmp_path / "connection.json")
        subprocess.run([sys.executable, "-c", script, str(tmp_path / "connection.json")], check=True, timeout=60)
        server.wait_until(lambda: any(isinstance(it, End) for it in server.messages[0]))
    assert sorted(step for _, step in server.steps) == [0, 3]


def test_what_is_kept_stays_within_the_window() -> None:
    with FakeServer(SMALL, num_ranks=3) as server:
        server.credit, server.window_bytes = 8, 100_000
        with connect(server.path) as simulation:
            for index in range(500):
                simulation.send(index, u=TINY)
                retention = simulation._session._retention  # type: ignore[attr-defined]
                # To each of three ranks eight steps may be on their way, each alone in its message.
                assert retention.num_bytes <= 100_000 + 24 * (ENTRY_BYTES + TINY.nbytes)
            assert retention.num_bytes > 50_000


def test_without_the_path_of_a_file_a_new_server_cannot_be_found() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        simulation = connect(server.connection)
        simulation.send(0, u=TINY)
        server.do_now(lambda: server.restart_in_place(incarnation=4))
        with pytest.raises(Refused, match=r"was started again: .* not given the path of a connection file"):
            simulation.finish()
