"""The C client while it waits: for credit, for answers, and for a study that has no time or nothing left."""

import dataclasses
import signal
import subprocess
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

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
)
from tests.native.conformance import build
from tests.native.conformance.values import values
from tests.native.native_client import (
    QUICK,
    RELEASE_S,
    SMALL,
    NativeClient,
    assert_has,
    built,
    client,
    library,
    messages,
    program,
)
from tests.support.fake_server import FakeServer

__all__ = ["client", "library", "program"]


def num_pings(server: FakeServer) -> int:
    return len(messages(server, Ping))


@pytest.mark.parametrize("transport", ["ipc", "tcp", "curve"])
@pytest.mark.parametrize("routing", Routing)
def test_every_step_arrives_at_its_rank(client: NativeClient, transport: str, routing: Routing) -> None:
    with FakeServer(SMALL, num_ranks=3, transport=transport) as server:
        server.routing = routing
        assert client.connect(server) == "ok"
        assert set(client.send(*range(50))) == {"ok"}
        assert client.ask("finish") == "ok"
        assert_has(server, 50)
        data = messages(server, Data)
    assert {it.checksum is not None for it in data} == {transport == "tcp"}
    assert {it.field for it in data} == {ALL_FIELDS}


def test_a_step_above_the_largest_part_travels_in_parts_between_gathered_ones(client: NativeClient) -> None:
    shape = (3, MAX_PART_BYTES // 16)
    fields = (FieldSpec(name="u", shape=shape, optional=True), FieldSpec(name="v", shape=(5,)))
    with FakeServer(fields, num_ranks=1, transport="tcp") as server:
        client.connect(server)
        for step in range(4):
            if step != 1:
                client.ask(f"put u float64 {shape[0]},{shape[1]} {step}")
            client.ask(f"put v float64 5 {step}")
            assert client.ask(f"send {step}") == "ok"
        assert client.ask("finish") == "ok"
        for step in range(4):
            assert np.array_equal(server.steps[7, step]["v"], values("float64", (5,), step))
            if step != 1:
                assert np.array_equal(server.steps[7, step]["u"], values("float64", shape, step))
    assert "u" not in server.steps[7, 1]
    parts = [(it.field, it.offset, it.last) for it in messages(server, Data) if it.index == 2]
    assert parts == [(0, 0, False), (0, MAX_PART_BYTES, False), (1, 0, True)]


def test_quick_small_steps_travel_together(library: Path, tmp_path: Path) -> None:
    threads = built(library, tmp_path, "threads.c")
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 1000
        subprocess.run([str(threads), str(server.path), "1", "1000"], check=True, timeout=120)
        data = messages(server, Data)
    assert sum(it.num_steps for it in data) == 1000
    assert len(data) < 400
    assert all(server.steps[0, step]["u"].tolist() == [0, step, 0, 0] for step in range(1000))


def test_steps_that_travel_together_give_back_their_credit(library: Path, tmp_path: Path) -> None:
    threads = built(library, tmp_path, "threads.c")
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 16
        subprocess.run([str(threads), str(server.path), "1", "500"], check=True, timeout=120)
        assert len(messages(server, Data)) < 300
    assert len(server.steps) == 500


def test_any_number_of_messages_waits_for_a_server_that_is_busy(client: NativeClient) -> None:
    fields = (FieldSpec(name="u", shape=(4,)), FieldSpec(name="v", shape=(), optional=True))
    free = threading.Event()
    with FakeServer(fields, num_ranks=1) as server:
        server.credit = 10_000
        client.connect(server)
        assert client.send(0) == ["ok"]
        server.do(lambda: free.wait(100))
        # Each step is a message of its own, since its neighbours have other fields.
        for step in range(1, 5000):
            if step % 2:
                client.ask(f"put v float64 . {step}")
            assert client.send(step) == ["ok"]
        free.set()
        assert client.ask("finish") == "ok"
        assert len(server.steps) == 5000


def test_memory_that_is_used_again_holds_what_is_sent_now(client: NativeClient) -> None:
    # Rows that begin anywhere in a cache line; 12 MB in all, of which 6 MB are kept.
    size = 5001
    with FakeServer((FieldSpec(name="u", shape=(size,)),), num_ranks=1) as server:
        server.window_bytes = 6_000_000
        client.connect(server)
        assert set(client.send(*range(300), count=str(size))) == {"ok"}
        assert client.ask("finish") == "ok"
        assert len(server.steps) == 300
        assert all(np.array_equal(server.steps[7, step]["u"], values("float64", (size,), step)) for step in range(300))


def test_only_steps_with_the_same_fields_travel_together(client: NativeClient) -> None:
    fields = (FieldSpec(name="u", shape=(4,)), FieldSpec(name="v", shape=(2, 3), dtype="<f4", optional=True))
    with_v = {step for step in range(40) if step % 7 > 3}
    with FakeServer(fields, num_ranks=1) as server:
        client.connect(server)
        for step in range(40):
            if step in with_v:
                client.say(f"put v float64 2,3 {step}")
            client.say(f"put u float64 4 {step}")
            client.say(f"send {step}")
        assert {client.hear() for _ in range(80 + len(with_v))} == {"staged", "ok"}
        assert client.ask("finish") == "ok"
        assert_has(server, 40)
        for step in with_v:
            assert np.array_equal(server.steps[7, step]["v"], values("float64", (2, 3), step).astype("<f4"))
        assert {step for _, step in server.steps if "v" in server.steps[7, step]} == with_v
        assert len(messages(server, Data)) < 40


def test_never_more_steps_than_the_credit_are_unacknowledged(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 3
        server.withholds_acks = True
        client.connect(server)
        sending = client.begin_to_send(*range(10))
        server.wait_until(lambda: num_pings(server) == 1)
        assert sum(it.num_steps for it in messages(server, Data)) == 3
        server.do(server.acknowledge_all)
        assert sending() == ["ok"] * 10
        assert client.ask("finish") == "ok"
        assert_has(server, 10)


def test_a_rank_of_several_keeps_as_many_steps_as_its_credit_and_goes_on(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit, server.withholds_acks = 3, True
        client.connect(server, "simulation=5", rank=1, num_ranks=2)
        assert client.send(*range(6), count="2") == ["ok"] * 6
        answers = client.begin_to_send(6, count="2")
        before = num_pings(server)
        server.wait_until(lambda: num_pings(server) > before + 4)
        assert [it.index for it in messages(server, Data)] == [0, 1, 2]
        server.do(server.acknowledge_all)
        assert answers() == ["ok"]
        assert client.ask("finish") == "ok"
        assert [it.index + i for it in messages(server, Data) for i in range(it.num_steps)] == list(range(7))
        assert [(it.share, it.total) for it in messages(server, End)] == [(7, 7)]


def test_the_silence_of_a_server_adds_up_while_steps_are_kept(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 50
        client.connect(server, "simulation=5", f"timeout={4 * RELEASE_S}", rank=1, num_ranks=2)
        assert client.send(0, count="2") == ["ok"]
        server.do_now(lambda: setattr(server, "silent", True))
        answers = client.send(*range(1, 70), count="2")
        failed = [step for step, answer in enumerate(answers, start=1) if "UNREACHABLE" in answer]
        assert 50 <= failed[0] < 60


def test_a_rank_that_waits_for_credit_holds_nothing_back_for_the_others(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 4
        server.withholds_acks = True
        client.connect(server, "simulation=0")
        # The second step of server rank 1 waits for company.
        sending = client.begin_to_send(1, 3, 0, 2, 4, 6, 8)
        server.wait_until(lambda: num_pings(server) == 1)
        assert [it.index for it in server.messages[1] if isinstance(it, Data)] == [1, 3]
        server.do(server.acknowledge_all)
        assert sending() == ["ok"] * 7
        assert client.ask("finish") == "ok"


def test_lost_acknowledgements_are_asked_for_again(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 2
        server.drops_acks = True
        client.connect(server)
        assert client.send(0, 1, 2) == ["ok"] * 3
        assert client.ask("finish") == "ok"
        assert_has(server, 3)


def test_what_the_server_knows_is_not_sent_again_but_counts(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.known = {0: bytes([0b0101]), 1: b""}
        client.connect(server, "simulation=0")
        client.send(*range(6))
        assert client.ask("finish") == "ok"
    assert sorted(server.steps) == [(0, 1), (0, 3), (0, 4), (0, 5)]
    assert [(it.share, it.total) for it in messages(server, End)] == [(3, 6), (3, 6)]


def test_a_step_sent_twice_counts_once(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server)
        client.send(0, 1, 1)
        assert client.ask("finish") == "ok"
    assert [(it.share, it.total) for it in messages(server, End)] == [(2, 2)]
    assert sum(it.num_steps for it in messages(server, Data)) == 3


def test_a_simulation_that_sends_nothing_finishes_with_an_empty_share(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        client.connect(server)
        assert client.ask("finish") == "ok"
    for rank in (0, 1):
        opening, end = server.messages[rank]
        assert isinstance(opening, Open)
        assert opening.blocks == ()
        assert isinstance(end, End)
        assert (end.share, end.total) == (0, 0)


def test_without_a_number_of_steps_labels_are_still_bounded(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        client.connect(server)
        assert client.send(1_000_000) == ["error ARGUMENT: the study has the time steps 0 to 999999, but not 1000000"]
        assert client.ask("send 0") == "error ARGUMENT: field 'u' is missing in the first sample"
        assert client.send(0) == ["ok"]
        assert client.ask("finish") == "ok"


def test_send_says_stop_once_the_study_has_ended(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 2
        client.connect(server)
        assert client.send(0) == ["ok"]
        server.withholds_acks = True
        server.do(server.stop_study)
        answers = client.send(*range(1, 20))
        first = answers.index("stop")
        assert set(answers[first:]) == {"stop"}
        assert client.ask("stop_reason") == "ok training converged"
        assert client.ask("send 1000000000") == "stop"
        assert client.ask("finish") == "stop"


def test_a_client_that_waits_learns_that_the_study_has_ended(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 2
        server.withholds_acks = True
        client.connect(server)
        sending = client.begin_to_send(*range(9))
        server.wait_until(lambda: num_pings(server) == 1)
        server.do(server.stop_study)
        assert sending()[-1] == "stop"
        assert client.ask("stop_reason") == "ok training converged"
        server.do_now(lambda: server.answers_to_hello.append(Stop(text="over")))
        assert client.ask("next") == "stop"
        assert client.ask("finish") == "ok"


def test_a_simulation_that_comes_too_late_runs_on_without_a_study(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Stop(text="over")]
        msgspec.structs.replace(server.connection, simulation=3, attempt=1, parameters={"viscosity": 2.0}).write(
            server.path
        )
        assert client.connect(server) == "stop"
        assert client.ask("id") == "ok 3"
        assert client.ask("attempt") == "ok 1"
        assert client.ask("parameter viscosity") == "stop"
        assert client.send(0) == ["stop"]
        assert client.ask("stop_reason") == "ok over"
        assert client.ask("abandon") == "ok"


def test_refused_data_fails_the_users_call_and_every_later_one(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 1
        server.answers_to_data = [Refusal(reason=Reason.WRONG_STEP, text="step 0 is not wanted", sequence=0)]
        client.connect(server)
        answers = {*client.send(0, 1, 2), client.ask("next"), client.ask("invalidate it"), client.ask("finish")} - {
            "ok"
        }
    (refused,) = answers
    assert refused.startswith("error REFUSED: server rank 0 at ipc://")
    assert refused.endswith("refused simulation 7: step 0 is not wanted")


def test_a_refused_open_fails_the_first_send(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_open = [Refusal(reason=Reason.WRONG_BLOCKS, text="the blocks overlap")]
        client.connect(server)
        (answer,) = client.send(0)
        assert "REFUSED" in answer
        assert "the blocks overlap" in answer


def test_a_refused_hello_fails_connect(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Refusal(reason=Reason.UNKNOWN_SIMULATION, text="there is no simulation 900")]
        assert client.connect(server, "simulation=900") == (
            "error REFUSED: simulation 900 rank 0 cannot take part in study heat/1: there is no simulation 900"
        )


def test_a_busy_server_is_asked_again_later(client: NativeClient) -> None:
    busy = Refusal(reason=Reason.BUSY, text="later")
    with FakeServer(SMALL, num_ranks=1) as server:
        server.answers_to_hello = [busy]
        server.answers_to_open = [busy]
        assert client.connect(server, "timeout=20") == "ok"
        assert client.send(0) == ["ok"]
        assert client.ask("finish") == "ok"
    assert len(server.hellos) == 2


def test_a_hello_without_an_answer_is_said_again(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [None]
        assert client.connect(server) == "ok"
        assert client.ask("abandon") == "ok"
    assert server.hellos[0] == server.hellos[1]


def test_a_silent_server_is_unreachable_after_the_time_limit(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        server.silent = True
        answer = client.connect(server, "timeout=0.1")
    assert answer.startswith("error UNREACHABLE: a simulation rank 0 waits for study heat/1 at ipc://")
    assert "no word for 0.1 s. Is the study still running, and is the connection file its newest?" in answer


def test_a_server_that_falls_silent_is_named(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=3) as server:
        client.connect(server, "simulation=17", "timeout=1")
        assert client.send(0) == ["ok"]
        server.do_now(lambda: setattr(server, "silent", True))
        answer = client.ask("finish")
    assert answer.startswith("error UNREACHABLE: simulation 17 rank 0 waits for server rank ")
    assert answer.endswith("no word for 1 s")


def test_a_slow_server_that_answers_is_waited_for_beyond_the_time_limit(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.withholds_acks = True
        client.connect(server, "timeout=1")
        client.send(0)
        finishing = client.begin("finish")
        server.wait_until(lambda: num_pings(server) >= 25)
        server.do(server.acknowledge_all)
        assert finishing() == "ok"


def spend(seconds: float, program: Path) -> None:
    """Wait as long as a simulation waits for a server that says nothing."""
    with NativeClient(program) as other, FakeServer(SMALL) as silent:
        silent.silent = True
        assert "UNREACHABLE" in other.connect(silent, f"timeout={seconds}")


def test_a_rank_that_was_stopped_while_it_waits_for_credit_listens_before_it_gives_up(
    client: NativeClient, program: Path
) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        server.credit = 1
        server.withholds_acks = True
        client.connect(server, "timeout=3")
        sending = client.begin_to_send(0, 1)
        server.wait_until(lambda: num_pings(server) > 1)
        # No answer is on its way when it is stopped.
        server.do_now(lambda: setattr(server, "silent", True))
        num_before = num_pings(server)
        server.wait_until(lambda: num_pings(server) > num_before)
        client.process.send_signal(signal.SIGSTOP)
        spend(4, program)
        server.do_now(lambda: setattr(server, "silent", False))
        num_before = num_pings(server)
        client.process.send_signal(signal.SIGCONT)
        server.wait_until(lambda: num_pings(server) > num_before + 2)
        server.do(server.acknowledge_all)
        assert sending() == ["ok"] * 2
        assert client.ask("finish") == "ok"


def test_a_rank_that_was_stopped_while_it_says_hello_listens_before_it_gives_up(
    client: NativeClient, program: Path
) -> None:
    with FakeServer(SMALL) as server:
        server.silent = True
        client.say(f"connect 0 1 connection={server.path} timeout=3")
        server.wait_until(lambda: len(server.hellos) == 1)
        client.process.send_signal(signal.SIGSTOP)
        spend(4, program)
        server.do_now(lambda: setattr(server, "silent", False))
        client.process.send_signal(signal.SIGCONT)
        assert client.hear() == "ok"
        assert client.ask("abandon") == "ok"


def test_with_too_few_files_it_fails_and_does_not_end_the_process(program: Path, tmp_path: Path) -> None:
    limited = tmp_path / "limited"
    outcomes = []
    with FakeServer(SMALL, num_ranks=1) as server:
        for num_files in range(5, 21):
            limited.write_text(f'#!/bin/sh\nulimit -n {num_files}\nexec "{program}"\n')
            limited.chmod(0o755)
            with NativeClient(limited) as client:
                outcomes.append(client.connect(server, "timeout=60"))
                client.ask("abandon")
    assert outcomes[-1] == "ok"
    first = outcomes.index("ok")
    assert set(outcomes[first:]) == {"ok"}
    assert set(outcomes[:first]) == {
        "error SYSTEM: ZeroMQ cannot be started: this process may not open more files (ulimit -n tells how many it may)"
    }


def test_more_server_ranks_than_zeromqs_default_can_be_connected_to(library: Path, tmp_path: Path) -> None:
    sockets = built(library, tmp_path, "sockets.c")
    done = subprocess.run([str(sockets)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("-7 ")
    assert "ulimit -n" in done.stdout


def test_a_child_process_can_only_leave(library: Path, tmp_path: Path) -> None:
    forked = built(library, tmp_path, "forked.c")
    with FakeServer(SMALL, num_ranks=2) as server:
        done = subprocess.run([str(forked), str(server.path)], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "0\n0\n"
        assert sorted(server.steps) == [(7, 0), (7, 1)]
    assert [(it.share, it.total) for it in messages(server, End)] == [(1, 2), (1, 2)]


def test_two_threads_that_use_one_simulation_at_once_are_told_and_it_does_not_end_well(
    library: Path, tmp_path: Path
) -> None:
    shared = built(library, tmp_path, "shared.c")
    with FakeServer(SMALL, num_ranks=1) as server:
        done = subprocess.run([str(shared), str(server.path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr.startswith(
        "stream_client, rank 0, stream_finish: a simulation was used by two threads at once: "
    )
    assert messages(server, End) == []


def test_a_simulation_whose_every_step_was_a_mistake_does_not_finish(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        client.connect(server)
        missing = client.ask("send 0")
        assert missing == "error ARGUMENT: field 'u' is missing in the first sample"
        assert client.send(-1)[0].startswith("error ARGUMENT: the study has the time steps ")
        assert client.ask("next") == missing
        assert client.ask("finish") == missing
        assert [*server.messages[0], *server.messages[1]] == []


def test_abandoning_leaves_a_simulation_unfinished_but_sends_what_was_pending(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        client.connect(server)
        client.send(0, 1, 2)
        assert client.ask("abandon") == "ok"
        server.wait_until(lambda: len(server.steps) == 3)
    assert messages(server, End) == []


def test_an_invalidated_simulation_is_withdrawn_and_a_worker_goes_on(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        client.connect(server)
        client.send(0)
        assert client.ask("invalidate it diverged") == "ok"
        assert client.ask("invalidate twice") == "ok"
        assert client.send(1) == ["stop"]
        assert client.ask("next") == "ok"
        assert client.send(0) == ["ok"]
        assert client.ask("finish") == "ok"
    assert [(it.simulation, it.reason) for it in server.invalidated] == [(7, "it diverged")]
    assert len(messages(server, End)) == 2


def test_a_simulation_that_cannot_be_withdrawn_any_more_fails(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_invalidate = [Refusal(reason=Reason.STALE_ATTEMPT, text="simulation 7 is finished already")]
        client.connect(server)
        client.send(0)
        refused = client.ask("invalidate it diverged")
        assert client.ask("finish") == refused
    assert refused == "error REFUSED: simulation 7 rank 0 could not be invalidated: simulation 7 is finished already"


def test_a_worker_gets_simulations_until_none_is_left(client: NativeClient) -> None:
    none_left = Refusal(reason=Reason.NO_SIMULATION_LEFT, text="none left")
    with FakeServer(SMALL) as server:
        client.connect(server, "viscosity:2")
        for _ in range(2):
            assert client.send(0) == ["ok"]
            assert client.ask("next") == "ok"
        server.do_now(lambda: server.answers_to_hello.append(none_left))
        assert [client.ask("next"), client.ask("next"), client.ask("send 0")] == ["stop"] * 3
        assert client.ask("finish") == "ok"
    assert [(it.attempt, it.parameters) for it in server.hellos] == [
        (ATTACHING, {"viscosity": 2.0}),
        *[(ATTACHING, None)] * 3,
    ]
    assert len(messages(server, End)) == 6


def test_a_worker_that_finds_no_simulation_at_all_is_told_to_stop(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        server.answers_to_hello = [Refusal(reason=Reason.NO_SIMULATION_LEFT, text="none left")]
        assert client.connect(server) == "stop"
        assert client.ask("next") == "stop"
        assert client.ask("finish") == "ok"


def test_a_worker_that_was_launched_for_one_simulation_gets_that_one(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        msgspec.structs.replace(server.connection, simulation=4, attempt=2).write(server.path)
        assert client.connect(server) == "ok"
        assert client.ask("next") == "stop"
        assert client.ask("finish") == "ok"
    assert [(it.simulation, it.attempt) for it in server.hellos] == [(4, 2)]


def test_alone_there_is_no_next_simulation(client: NativeClient) -> None:
    assert client.ask("connect 0 1 connection=none simulation=12 viscosity:1.5") == "ok"
    assert client.ask("id") == "ok 12"
    assert client.ask("parameter viscosity") == "ok 1.500"
    assert client.send(5) == ["ok"]
    assert client.ask("next") == "stop"
    assert client.ask("finish") == "ok"


def test_alone_the_parameters_come_from_the_environment(program: Path) -> None:
    with NativeClient(program, STREAM_PARAMETERS='{"initial": 300, "left": -1.5}') as client:
        assert client.ask("connect 0 1 connection=none") == "ok"
        assert client.ask("parameter left") == "ok -1.500"
        assert client.ask("finish") == "ok"
        assert client.ask("connect 0 1 connection=none viscosity:1.5") == "ok"
        assert client.ask("parameter viscosity") == "ok 1.500"
        assert client.ask("finish") == "ok"


@pytest.mark.parametrize("variable", ["300", "[1]", '{"initial": "hot"}', "initial=300"])
def test_parameters_that_are_none_are_refused(program: Path, variable: str) -> None:
    with NativeClient(program, STREAM_PARAMETERS=variable) as client:
        told = client.ask("connect 0 1 connection=none")
    assert 'STREAM_PARAMETERS must be a JSON object such as {"initial": 300, "left": 100}, but is' in told


def test_a_key_of_another_run_does_not_get_in(client: NativeClient) -> None:
    with FakeServer(SMALL, transport="curve") as server, FakeServer(SMALL, transport="curve") as other:
        msgspec.structs.replace(server.connection, security=other.connection.security).write(server.path)
        assert "is the connection file its newest" in client.connect(server, "timeout=0.2")
    assert server.hellos == []


def test_ipc_is_used_only_on_the_servers_own_node(client: NativeClient) -> None:
    with FakeServer(SMALL) as server:
        msgspec.structs.replace(server.connection, host="another-node").write(server.path)
        answer = client.connect(server)
    assert answer.startswith("error UNREACHABLE: none of the server's addresses can be used from ")
    assert server.connection.control[0] in answer


def test_a_server_on_this_node_whose_socket_file_is_gone_is_waited_for(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1) as server:
        gone = f"ipc://{server.path.parent}/gone"
        msgspec.structs.replace(server.connection, control=(gone,)).write(server.path)
        assert f"waits for study heat/1 at {gone}: no word for 0.1 s" in client.connect(server, "timeout=0.1")


def test_the_first_address_that_means_something_here_is_taken(client: NativeClient) -> None:
    with FakeServer(SMALL, num_ranks=1, transport="tcp") as server:
        (address,) = server.connection.control
        gone = f"ipc://{server.path.parent}/gone"
        msgspec.structs.replace(server.connection, control=(gone, address)).write(server.path)
        server.endpoints = tuple((gone, *addresses) for addresses in server.endpoints)
        assert client.connect(server) == "ok"
        assert client.send(0) == ["ok"]
        assert client.ask("finish") == "ok"


def test_a_call_without_what_it_needs_says_so_and_does_nothing(library: Path, tmp_path: Path) -> None:
    nothing_given = built(library, tmp_path, "nothing_given.c")
    with FakeServer(SMALL, num_ranks=1) as server:
        done = subprocess.run([str(nothing_given), str(server.path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(server.steps) == [(7, 0)]


def test_signals_do_not_disturb_it(library: Path, tmp_path: Path) -> None:
    interrupted = built(library, tmp_path, "interrupted.c")

    def start_again() -> None:
        server.withholds_acks = False
        server.die()
        server.restart(incarnation=4, known={0})

    with FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 3
        server.withholds_acks = True
        words = [str(interrupted), str(server.path), "30"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            server.wait_until(lambda: num_pings(server) > 3)
            server.do_now(start_again)
            told, complaints = process.communicate(timeout=120)
    assert (process.returncode, told, complaints) == (0, "interrupted\n", "")
    assert sorted(server.steps) == [(7, step) for step in range(30)]


@pytest.mark.full
def test_a_lack_of_memory_at_any_moment_is_an_error_and_no_crash(tmp_path: Path) -> None:
    library = build.client_archive(tmp_path / "watchful", *build.SANITIZERS, *QUICK, "-USC_LOOK_S", "-DSC_LOOK_S=0.0")
    functions = ("malloc", "calloc", "realloc", "strdup", "posix_memalign")
    scarce = built(library, tmp_path, "scarce.c", *(f"-Wl,--wrap={function}" for function in functions))
    with FakeServer(SMALL, num_ranks=2) as server:
        done = subprocess.run([str(scarce), str(server.path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert set(done.stderr.splitlines()) <= {"stream_client, rank 0, stream_finish: no memory"}
    assert int(done.stdout) > 60
    # Those conversations that came far enough have met a new start.
    assert sum(it.simulation == 7 for it in server.hellos) > 20


def test_simulations_in_several_threads_know_nothing_of_each_other(library: Path, tmp_path: Path) -> None:
    threads = built(library, tmp_path, "threads.c")
    with FakeServer(SMALL, num_ranks=2) as server:
        done = subprocess.run([str(threads), str(server.path), "6", "50"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    expected = {(i, step): [i, step, 0, 0] for i in range(6) for step in range(50)}
    assert {key: it["u"].tolist() for key, it in server.steps.items()} == expected


@pytest.mark.parametrize(("kept", "small"), [("<f2", 3e-9), ("<f4", -1e-60), ("<c8", 1e-60)])
def test_a_field_of_which_nothing_but_zeros_is_left_is_told_once(
    kept: str, small: float, library: Path, tmp_path: Path
) -> None:
    vanishing = built(library, tmp_path, "vanishing.c")
    with FakeServer((dataclasses.replace(SMALL[0], dtype=kept),)) as server:
        done = subprocess.run(
            [str(vanishing), str(server.path), str(small)], capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0
    assert done.stderr == (
        f"stream_client, rank 0: field 'u' is sent as {np.dtype(kept)}, in which all its values become 0 (the largest "
        f"is {abs(small):g}): give the field a wider dtype in study.json, or send it in another unit\n"
    )


def test_a_process_that_forgets_to_finish_still_ends(library: Path, tmp_path: Path) -> None:
    forgetful = built(library, tmp_path, "forgetful.c")
    with FakeServer(SMALL, num_ranks=1) as server:
        subprocess.run([str(forgetful), str(server.path)], check=True, timeout=120)
    assert messages(server, End) == []


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("shape", "field 'u' has the shape (4,) in study.json, but is declared with (5,)"),
        ("name", "the study has no field 'temperature'"),
        ("nothing", "field 'u'"),
    ],
)
def test_the_first_mistake_of_a_program_that_looks_at_no_result_is_told_on_stderr(
    library: Path, tmp_path: Path, mistake: str, told: str
) -> None:
    careless = built(library, tmp_path, "careless.c")
    with FakeServer(SMALL, num_ranks=1) as server:
        words = [str(careless), str(server.path), mistake]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.startswith("stream_client, rank 0, stream_finish: ")
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
    assert not server.steps


def test_a_parameter_that_there_is_not_is_told_on_stderr_of_a_program_that_looks_at_no_result(
    library: Path, tmp_path: Path
) -> None:
    """It computes with what stood in the place of the value, and all of its time steps are good ones."""
    careless = built(library, tmp_path, "careless.c")
    with FakeServer(SMALL, num_ranks=1) as server:
        words = [str(careless), str(server.path), "parameter"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.startswith(
        "stream_client, rank 0, stream_parameter: the study has no parameter 'stifness', only "
    )
    assert len(server.steps) == 3


@pytest.mark.full
def test_valgrind_finds_nothing_in_a_restart(tmp_path: Path) -> None:
    driver = build.c_driver(build.client_archive(tmp_path / "plain", *QUICK))
    under_valgrind = tmp_path / "under-valgrind"
    options = "--quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect"
    under_valgrind.write_text(f"#!/bin/sh\nexec valgrind {options} --show-leak-kinds=definite,indirect {driver}\n")
    under_valgrind.chmod(0o755)
    with NativeClient(under_valgrind) as client, FakeServer(SMALL, num_ranks=2) as server:
        server.credit = 4
        client.connect(server)
        client.send(*range(20))
        server.wait_until(lambda: {key[1] for key in server.steps} >= {0, 1, 2})
        server.move(incarnation=4, known={0, 1, 2}, num_ranks=3)
        client.send(*range(20, 30))
        assert client.ask("finish") == "ok"
        assert_has(server, 30)
