"""What only programs in C can do, or get wrong; the rest is in tests/client_api, for all languages."""

import signal
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest

from stream_server.messages.client import (
    ATTACHING,
    End,
    Reason,
    Refusal,
)
from tests.client_api.clients import SMALL, assert_has, messages, num_pings, received
from tests.fakes.server import FakeServer
from tests.native.conformance import build
from tests.native.native_client import QUICK, NativeClient, built, client, library, program
from tests.study.restarts.test_supervision import PACED, SUPERVISED
from tests.support.failpoints import failpoints
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

__all__ = ["client", "library", "program"]


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
    with FakeServer((msgspec.structs.replace(SMALL[0], dtype=kept),)) as server:
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


def test_a_client_that_changes_its_folder_still_finds_its_connection_file(library: Path, tmp_path: Path) -> None:
    wanderer = built(library, tmp_path, "wanderer.c")
    with FakeServer(SMALL, num_ranks=1) as server:
        words = [str(wanderer), server.path.name]
        with subprocess.Popen(words, cwd=server.path.parent, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            server.wait_until(lambda: received(server) == {0})
            server.move(incarnation=4)
            _, complaints = process.communicate(timeout=120)
        assert (process.returncode, complaints) == (0, b"")
        assert received(server) == {0}
        assert [it.incarnation for it in messages(server, End)] == [4]


@pytest.mark.full
def test_a_study_whose_server_is_killed_three_times_loses_nothing_of_a_c_simulation(
    library: Path, tmp_path: Path
) -> None:
    paced = built(library, tmp_path, "paced.c")
    points = ("checkpoint.renamed=kill@1", "checkpoint.before_manifest=kill@1", "buffer.released=kill@1")
    done = run_study(
        NUMPY_STUDY,
        tmp_path / "run",
        settings=PACED | {"simulation.command": [str(paced), "0.05"]},
        environment=failpoints(tmp_path / "met", *points),
        **SUPERVISED,
    )
    assert_complete(done, num_simulations=4)
    assert done.report["restarts"] == 3
    assert done.report["simulations"]["survived_restarts"] > 0
    assert done.report["failures"] == []
