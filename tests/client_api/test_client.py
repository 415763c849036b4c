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
from stream_server.errors import ConfigError, Refused, SimulationError, Unreachable
from stream_server.messages.client import (
    ALL_FIELDS,
    ATTACHING,
    MAX_PART_BYTES,
    Data,
    End,
    FieldSpec,
    Open,
    Ping,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
)
from tests.support.fake_server import FakeServer

SMALL = (FieldSpec(name="u", shape=(4,)),)
TINY = np.arange(4.0)


def data(server: FakeServer, rank: int = 0) -> list[Data]:
    return [it for it in server.messages[rank] if isinstance(it, Data)]


def num_pings(server: FakeServer) -> int:
    return sum(isinstance(it, Ping) for messages in server.messages.values() for it in messages)


@pytest.mark.parametrize("transport", ["ipc", "tcp", "curve"])
@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("routing", Routing)
def test_every_step_arrives_at_its_rank_as_it_was_sent(transport: str, num_ranks: int, routing: Routing) -> None:
    fields = (FieldSpec(name="u", shape=(3, 4)), FieldSpec(name="energy", shape=(), optional=True))
    with FakeServer(fields, num_ranks=num_ranks, transport=transport) as server:
        server.routing = routing
        with connect(server.connection) as simulation:
            u = np.zeros((3, 4))
            for step in range(50):
                u[:] = step
                assert simulation.send(step, u=u, **({"energy": 2 * step} if step % 10 else {}))
    assert sorted(server.steps) == [(7, step) for step in range(50)]
    assert all((server.steps[7, step]["u"] == step).all() for step in range(50))
    assert all(server.steps[7, step]["energy"] == 2 * step for step in range(50) if step % 10)
    assert "energy" not in server.steps[7, 20]


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


def test_a_field_above_the_largest_part_travels_in_parts() -> None:
    shape = (3, MAX_PART_BYTES // 16)
    fields = (FieldSpec(name="u", shape=shape), FieldSpec(name="v", shape=(5,)))
    u, v = np.random.default_rng(1).random(shape), np.arange(5.0)
    with FakeServer(fields, num_ranks=1, transport="tcp") as server, connect(server.connection) as simulation:
        for step in range(3):
            simulation.send(step, u=u + step, v=v)
        simulation.finish()
    assert np.array_equal(server.steps[7, 2]["u"], u + 2)
    assert np.array_equal(server.steps[7, 2]["v"], v)
    parts = [(it.field, it.offset, it.last) for it in data(server) if it.index == 0]
    assert parts == [(0, 0, False), (0, MAX_PART_BYTES, False), (1, 0, True)]


def test_the_user_may_change_an_array_as_soon_as_it_is_sent() -> None:
    with FakeServer((FieldSpec(name="u", shape=(1000, 100)),)) as server, connect(server.connection) as simulation:
        u = np.empty((1000, 100))
        for step in range(20):
            u[:] = step
            simulation.send(step, u=u)
            u[:] = -1
        simulation.finish()
    assert all((server.steps[7, step]["u"] == step).all() for step in range(20))


def test_quick_small_steps_travel_together() -> None:
    with FakeServer(SMALL, num_ranks=2) as server, connect(server.connection) as simulation:
        server.credit = 1000
        for step in range(1000):
            simulation.send(step, u=TINY)
        simulation.finish()
    assert sum(it.num_steps for it in data(server, 0) + data(server, 1)) == 1000
    assert len(data(server, 0)) < 400


def test_never_more_steps_than_the_credit_are_unacknowledged() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 3
        server.withholds_acks = True
        with connect(server.connection) as simulation, ThreadPoolExecutor(1) as pool:
            sending = pool.submit(lambda: [simulation.send(step, u=TINY) for step in range(10)])
            server.wait_until(lambda: num_pings(server) == 1)
            assert sum(it.num_steps for it in data(server)) == 3
            server.do(server.acknowledge_all)
            assert sending.result(100) == [True] * 10
    assert len(server.steps) == 10


def test_a_rank_that_waits_for_credit_holds_nothing_back_for_the_others() -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 4
        server.withholds_acks = True
        with connect(server.connection, simulation_id=0) as simulation, ThreadPoolExecutor(1) as pool:
            odd_first = [1, 0, 2, 4, 6, 8]
            sending = pool.submit(lambda: [simulation.send(step, u=TINY) for step in odd_first])
            server.wait_until(lambda: num_pings(server) == 1)
            assert [it.index for it in data(server, 1)] == [1]
            server.do(server.acknowledge_all)
            assert all(sending.result(100))


def test_lost_acknowledgements_are_asked_for_again() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 2
        server.drops_acks = True
        with connect(server.connection) as simulation:
            assert all(simulation.send(step, u=TINY) for step in range(3))
    assert len(server.steps) == 3


def test_what_the_server_knows_is_not_sent_again_but_counts() -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.known = {0: bytes([0b0101]), 1: b""}
        with connect(server.connection, simulation_id=0) as simulation:
            assert all(simulation.send(step, u=TINY) for step in range(6))
    assert sorted(server.steps) == [(0, 1), (0, 3), (0, 4), (0, 5)]
    ends = [it for rank in (0, 1) for it in server.messages[rank] if isinstance(it, End)]
    assert [(it.share, it.total) for it in ends] == [(3, 6), (3, 6)]


def test_a_step_sent_twice_counts_once() -> None:
    with FakeServer(SMALL, num_ranks=1) as server, connect(server.connection) as simulation:
        for step in (0, 1, 1):
            simulation.send(step, u=TINY)
        simulation.finish()
    assert [(it.share, it.total) for it in server.messages[0] if isinstance(it, End)] == [(2, 2)]
    assert sum(it.num_steps for it in data(server)) == 3


def test_a_simulation_that_sends_nothing_finishes_with_an_empty_share() -> None:
    with FakeServer(SMALL, num_ranks=2) as server, connect(server.connection):
        pass
    for rank in (0, 1):
        opening, end = server.messages[rank]
        assert isinstance(opening, Open)
        assert opening.blocks == ()
        assert isinstance(end, End)
        assert (end.share, end.total) == (0, 0)


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


def test_without_a_number_of_steps_labels_are_still_bounded() -> None:
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        assert simulation.time_steps is None
        with pytest.raises(ValueError, match="0 to 999999"):
            simulation.send(1_000_000, u=TINY)


def test_a_mistake_raises_at_the_users_send_and_the_simulation_goes_on() -> None:
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        with pytest.raises(ValueError, match="no field 'v'"):
            simulation.send(0, v=TINY)
        simulation.send(0, u=TINY)
        with pytest.raises(ValueError, match="shape"):
            simulation.send(1, u=np.zeros(3))
        simulation.send(1, u=TINY)
    assert len(server.steps) == 2


def test_send_returns_false_once_the_study_has_ended() -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 2
        with connect(server.connection) as simulation:
            assert simulation.send(0, u=TINY)
            server.withholds_acks = True
            server.do(server.stop_study)
            answers = [simulation.send(step, u=TINY) for step in range(1, 20)]
            assert answers[-1] is False
            first = answers.index(False)
            assert not any(answers[first:])
            assert simulation.stop_reason == "training converged"
            assert simulation.send(10**9, u="nonsense is not even looked at") is False


def test_a_client_that_waits_learns_that_the_study_has_ended() -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 2
        server.withholds_acks = True
        with connect(server.connection) as simulation, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: [simulation.send(step, u=TINY) for step in range(9)])
            server.wait_until(lambda: num_pings(server) == 1)
            server.do(server.stop_study)
            assert waiting.result(100)[-1] is False
            assert simulation.stop_reason == "training converged"


def test_a_simulation_that_comes_too_late_runs_on_without_a_study() -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Stop(text="over")]
        late = msgspec.structs.replace(server.connection, simulation=3, attempt=1, parameters={"viscosity": 2.0})
        with connect(late) as simulation:
            assert simulation.parameters == {"viscosity": 2.0}
            assert simulation.send(0, u=TINY) is False
            assert simulation.stop_reason == "over"


def test_refused_data_raises_at_the_users_call_and_ends_the_simulation() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.answers_to_data = [Refusal(reason=Reason.WRONG_STEP, text="step 0 is not wanted", sequence=0)]
        simulation = connect(server.connection)

        def run() -> None:
            simulation.send(0, u=TINY)
            simulation.finish()

        with pytest.raises(Refused, match=r"server rank 0 .* refused simulation 7: step 0 is not wanted"):
            run()
        with pytest.raises(Refused, match="step 0 is not wanted"):
            simulation.send(5, u=TINY)


def test_a_refused_open_raises_at_the_first_send() -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_open = [Refusal(reason=Reason.WRONG_BLOCKS, text="the blocks overlap")]
        simulation = connect(server.connection)
        with pytest.raises(Refused, match="the blocks overlap"):
            simulation.send(0, u=TINY)


def test_a_refused_hello_raises_at_connect() -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Refusal(reason=Reason.UNKNOWN_SIMULATION, text="there is no simulation 900")]
        with pytest.raises(
            Refused, match="simulation 900 rank 0 cannot take part in study heat/1: there is no simulation"
        ):
            connect(server.connection, simulation_id=900)


def test_a_busy_server_is_asked_again_later() -> None:
    busy = Refusal(reason=Reason.BUSY, text="later")
    with FakeServer(SMALL, num_ranks=1) as server:
        server.answers_to_hello = [busy]
        server.answers_to_open = [busy]
        with connect(server.connection, timeout_s=20) as simulation:
            assert simulation.send(0, u=TINY)
    assert len(server.hellos) == 2


def test_a_hello_without_an_answer_is_said_again() -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [None]
        with connect(server.connection) as simulation:
            assert simulation.id == 7
    assert server.hellos[0] == server.hellos[1]


def test_a_silent_server_is_unreachable_after_the_time_limit() -> None:
    with FakeServer(SMALL) as server:
        server.silent = True
        with pytest.raises(Unreachable, match=r"rank 0 waits for study heat/1 at ipc://.*: no word for 0\.1 s"):
            connect(server.connection, timeout_s=0.1)


def test_a_server_that_falls_silent_is_named() -> None:
    with FakeServer(SMALL, num_ranks=3) as server:
        simulation = connect(server.connection, simulation_id=17, timeout_s=1)
        assert simulation.send(0, u=TINY)
        server.do(lambda: setattr(server, "silent", True))
        with pytest.raises(
            Unreachable, match=r"simulation 17 rank 0 waits for server rank \d at ipc://.*: no word for 1 s"
        ):
            simulation.finish()


def test_a_slow_server_that_answers_is_waited_for_beyond_the_time_limit() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.withholds_acks = True
        with connect(server.connection, timeout_s=0.7) as simulation, ThreadPoolExecutor(1) as pool:
            simulation.send(0, u=TINY)
            finishing = pool.submit(simulation.finish)
            server.wait_until(lambda: num_pings(server) >= 3)
            server.do(server.acknowledge_all)
            finishing.result(100)


def test_an_exception_leaves_the_simulation_unfinished_but_sends_what_was_pending() -> None:
    with FakeServer(SMALL, num_ranks=1) as server:

        def fail_after_three_steps() -> None:
            with connect(server.connection) as simulation:
                for step in range(3):
                    simulation.send(step, u=TINY)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_after_three_steps()
        server.wait_until(lambda: len(server.steps) == 3)
    assert not any(isinstance(it, End) for it in server.messages[0])


def test_finish_may_be_called_twice_and_nothing_is_sent_afterwards() -> None:
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        simulation.send(0, u=TINY)
        simulation.finish()
        simulation.finish()
        with pytest.raises(ValueError, match="simulation 7 is finished"):
            simulation.send(1, u=TINY)


def test_an_invalidated_simulation_is_withdrawn_and_sends_no_more() -> None:
    with FakeServer(SMALL) as server, connect(server.connection) as simulation:
        simulation.send(0, u=TINY)
        simulation.invalidate("diverged")
        assert simulation.send(1, u=TINY) is False
    assert [(it.simulation, it.reason) for it in server.invalidated] == [(7, "diverged")]
    assert not any(isinstance(it, End) for it in server.messages[0] + server.messages[1])


def test_an_attaching_client_says_so_and_takes_what_the_server_gives() -> None:
    with FakeServer(SMALL) as server, connect(server.connection, parameters={"viscosity": 1}) as simulation:
        assert simulation.id == 7
        assert simulation.parameters == {"viscosity": 0.5}
    (hello,) = server.hellos
    assert (hello.simulation, hello.attempt, hello.parameters) == (None, ATTACHING, {"viscosity": 1.0})


def test_a_launched_client_says_who_it_is() -> None:
    with FakeServer(SMALL) as server, connect(msgspec.structs.replace(server.connection, simulation=4, attempt=2)):
        pass
    assert (server.hellos[0].simulation, server.hellos[0].attempt) == (4, 2)


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


def test_a_worker_that_was_launched_for_one_simulation_gets_that_one() -> None:
    with FakeServer(SMALL) as server:
        launched = msgspec.structs.replace(server.connection, simulation=4)
        assert [simulation.id for simulation in simulations(launched)] == [4]


def test_a_worker_ends_when_the_study_has_ended() -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Stop(text="over")]
        assert list(simulations(server.connection)) == []


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


def test_checksums_are_sent_over_tcp_in_the_clear_only() -> None:
    for transport, expected in (("tcp", True), ("ipc", False), ("curve", False)):
        with FakeServer(SMALL, num_ranks=1, transport=transport) as server, connect(server.connection) as simulation:
            simulation.send(0, u=TINY)
            simulation.finish()
        assert [it.checksum is not None for it in data(server)] == [expected]
        assert data(server)[0].field == ALL_FIELDS


def test_a_key_of_another_run_does_not_get_in() -> None:
    with FakeServer(SMALL, transport="curve") as server, FakeServer(SMALL, transport="curve") as other:
        stale = msgspec.structs.replace(server.connection, security=other.connection.security)
        with pytest.raises(Unreachable, match="is the connection file its newest"):
            connect(stale, timeout_s=0.2)
    assert server.hellos == []


def test_ipc_is_used_only_on_the_servers_own_node() -> None:
    with FakeServer(SMALL) as server:
        elsewhere = msgspec.structs.replace(server.connection, host="another-node")
        with pytest.raises(Unreachable, match="none of the server's addresses can be used"):
            connect(elsewhere)


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
