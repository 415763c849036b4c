"""The command `stream-follow`, beside a server that is imitated."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from stream_server.adapters import follow as follow_module
from stream_server.adapters import follow_lock
from stream_server.adapters.follow import main
from stream_server.client_api import Simulation
from stream_server.messages.client import PER_SIMULATION, FieldSpec, TimeSteps
from tests.adapters.files import POINTS, WRITERS, arrays, write
from tests.fakes.server import FakeServer
from tests.support.timing import Clock, until

NUM_STEPS = 4
FIELDS = (FieldSpec(name="u", shape=(4,)), FieldSpec(name="v", shape=(4, 3), optional=True))
# Files are made before, so that the solver is quick: it moves or copies them, one after the other.
PUT = "mkdir -p out; for file in made/*; do cp -r $file out/; done"
PATTERN = "out/step_*.npz"
Follow = Callable[..., int]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(FIELDS, num_ranks=2, time_steps=TimeSteps(num=NUM_STEPS)) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the attempt, with files of `NUM_STEPS` steps that a solver may put into `out`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    for step in range(NUM_STEPS):
        write(tmp_path / "made", ".npz", step)
    return tmp_path


@pytest.fixture
def follow(server: FakeServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Runs the command with a line of shell as the solver; gives its exit status."""
    monkeypatch.setenv("STREAM_CONNECTION", str(server.path))

    def follow(solver: str = PUT, *options: str, pattern: str = PATTERN) -> int:
        return main([pattern, "--field", "v=velocity", *options, "--", "sh", "-c", solver])

    return follow


def assert_has(server: FakeServer, num: int = NUM_STEPS) -> None:
    """The server has these steps, each of which was sent once."""
    assert server.num_sent == dict.fromkeys(range(num), 1)
    for step in range(num):
        assert np.array_equal(server.steps[7, step]["u"], arrays(step)["u"])
        if "v" in server.steps[7, step]:
            assert np.array_equal(server.steps[7, step]["v"], arrays(step)["velocity"])


@pytest.mark.parametrize("ending", WRITERS)
def test_each_step_is_sent_once(follow: Follow, folder: Path, server: FakeServer, ending: str) -> None:
    for file in (folder / "made").iterdir():
        file.unlink()
    for step in range(NUM_STEPS):
        write(folder / "made", ending, step)
    if ending == ".npy":
        server.fields = FIELDS[:1]
        assert main([f"out/step_*{ending}", "--", "sh", "-c", PUT]) == 0
    else:
        assert follow(pattern=f"out/step_*{ending}") == 0
    assert_has(server)
    assert ending == ".npy" or "v" in server.steps[7, 0]


def test_one_file_with_all_steps_is_sent(follow: Follow, folder: Path, server: FakeServer) -> None:
    server.fields = (*FIELDS, FieldSpec(name="mesh/points", shape=(4, 3), per=PER_SIMULATION))
    with h5py.File(folder / "all.h5", "w") as file:
        for name in ("u", "velocity"):
            file[name] = np.stack([arrays(step)[name] for step in range(NUM_STEPS + 1)])
        file["mesh/points"] = POINTS
    assert follow("mv all.h5 result.h5", pattern="result.h5") == 0
    assert_has(server)
    assert np.array_equal(server.statics[7, 0]["mesh/points"], POINTS)


def test_files_may_be_counted_instead(follow: Follow, folder: Path, server: FakeServer) -> None:
    times = "mkdir out; i=0; for file in made/*; do cp $file out/t_$(printf 0.%02d $i).npz; i=$((i + 5)); done"
    assert follow(times, "--in-order", pattern="out/t_*.npz") == 0
    assert_has(server)


def test_a_send_that_waits_does_not_hold_back_the_next_look(
    follow: Follow, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("go")
    clock, send = Clock(), Simulation.send

    def slow(simulation: Simulation, time_step: int, **fields: Any) -> bool:
        clock.now += 1e4
        return send(simulation, time_step, **fields)

    monkeypatch.setattr(Simulation, "send", slow)
    monkeypatch.setattr(follow_module, "time", clock, raising=False)

    def go_on() -> None:
        server.wait_until(lambda: (7, 0) in server.steps)
        Path("go").write_text("go\n")
        server.wait_until(lambda: (7, 2) in server.steps)
        server.do_now(server.stop_study)

    other = Thread(target=go_on)
    other.start()
    put_all = "mkdir out; cp made/step_00[01]* out; read line < go; cp made/step_00[23]* out; exec sleep 1000"
    assert follow(put_all) == 0
    other.join()


def test_rows_that_were_there_before_are_not_sent(
    follow: Follow, folder: Path, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(folder / "all.h5", "w") as file:
        for name in ("u", "velocity"):
            file[name] = np.stack([arrays(step)[name] for step in range(NUM_STEPS)])
    assert follow("true", pattern="all.h5") == 2
    assert not server.num_sent
    assert "it is not there, or has no time step of this run" in capfd.readouterr().err
    assert follow("touch -d '2020-01-01' all.h5", pattern="all.h5") == 0
    assert_has(server)


# Writes a file for SWMR with rows of zeros, which become others once it is told to go on.
SWMR = f"""
import h5py, warnings
import numpy as np
warnings.simplefilter("ignore")
with h5py.File("all.h5", "w", libver="latest") as file:
    u = file.create_dataset("u", ({NUM_STEPS}, 4), "f8", maxshape=(None, 4), chunks=(1, 4))
    file.swmr_mode = True
    u.flush()
    open("go").read()
    u[1] = np.ones(4)
"""


def test_rows_that_change_after_they_were_sent_are_told(
    follow: Follow, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.fields = FIELDS[:1]
    Path("writer.py").write_text(SWMR)
    os.mkfifo("go")

    def write_again() -> None:
        server.wait_until(lambda: (7, 1) in server.steps)
        Path("go").write_text("go\n")

    other = Thread(target=write_again)
    other.start()
    assert main(["all.h5", "--", sys.executable, "writer.py"]) == 2
    other.join()
    assert "row 1 of all.h5 was changed after it was sent" in capfd.readouterr().err


def test_output_and_status_are_those_of_the_solver(
    follow: Follow, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        follow("mkdir out; cp made/step_00[01]* out; echo said; echo complained >&2; exit 3")
    assert ended.value.code == 3
    assert capfd.readouterr() == ("said\n", "complained\n")
    # The last file may be half of one. What was sent may come a moment after the command has ended.
    server.wait_until(lambda: bool(server.num_sent))
    assert set(server.num_sent) == {0}


def test_what_a_killed_solver_had_finished_is_sent(follow: Follow, server: FakeServer) -> None:
    with pytest.raises(SystemExit) as ended:
        follow("mkdir out; cp made/step_00[012]* out; kill -9 $$")
    assert ended.value.code == 128 + signal.SIGKILL
    # What was sent may come a moment after the command has ended.
    server.wait_until(lambda: set(server.num_sent) == {0, 1})


def test_files_of_steps_that_are_durable_are_deleted(follow: Follow, folder: Path, server: FakeServer) -> None:
    server.makes_durable = True
    server.credit = 2
    assert follow(PUT, "--delete") == 0
    assert_has(server)
    assert sorted(os.listdir("out")) == []


@pytest.mark.parametrize("again", ["echo >> out/step_000.npz", "cp made/step_000.npz out"])
def test_a_file_that_changes_before_or_after_it_is_deleted_is_told_and_stays(
    follow: Follow, server: FakeServer, capfd: pytest.CaptureFixture[str], again: str
) -> None:
    os.mkfifo("go")
    is_late = again.startswith("cp")
    server.makes_durable = is_late

    def write_again() -> None:
        server.wait_until(lambda: (7, 1) in server.steps)
        if is_late:
            until(lambda: not Path("out/step_000.npz").exists())
        Path("go").write_text("go\n")
        if not is_late:
            until(lambda: Path("changed").exists())
            server.do_now(server.commit)

    other = Thread(target=write_again)
    other.start()
    solver = f"mkdir out; cp made/step_00[012]* out; read line < go; {again}; touch changed; exec sleep 1000"
    assert follow(solver, "--delete") == 2
    other.join()
    assert "out/step_000.npz was changed after it was sent" in capfd.readouterr().err
    assert Path("out/step_000.npz").exists()


def test_a_solver_may_remove_what_was_sent(follow: Follow, server: FakeServer) -> None:
    os.mkfifo("go")

    def go_on() -> None:
        server.wait_until(lambda: (7, 1) in server.steps)
        Path("go").write_text("go\n")

    other = Thread(target=go_on)
    other.start()
    solver = "mkdir out; cp made/step_00[012]* out; read line < go; rm out/step_000.npz; cp made/step_003* out"
    assert follow(solver) == 0
    other.join()
    assert_has(server)


@pytest.mark.parametrize("options", [(), ("--in-order",)])
def test_a_file_that_is_gone_before_it_was_sent_is_told(
    follow: Follow, server: FakeServer, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    os.mkfifo("go")

    def go_on() -> None:
        server.wait_until(lambda: (7, 1) in server.steps)
        Path("go").write_text("go\n")

    other = Thread(target=go_on)
    other.start()
    solver = "mkdir out; cp made/step_00[012]* out; read line < go; rm out/step_002.npz; cp made/step_003* out"
    assert follow(solver, "--quiet-s", "1000", *options) == 2
    assert set(server.num_sent) == ({0, 1} if options else {0, 1, 3})
    other.join()
    assert "out/step_002.npz is gone, and was not sent" in capfd.readouterr().err


def test_two_files_of_one_step_are_told(follow: Follow, server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    solver = "mkdir out; cp made/step_000* out/a_1.npz; cp made/step_001* out/b_1.npz; exec sleep 1000"
    assert follow(solver, "--quiet-s", "1000", pattern="out/*.npz") == 2
    assert "out/a_1.npz and out/b_1.npz are both files of 1" in capfd.readouterr().err
    assert not server.num_sent


def test_a_second_file_of_a_step_that_was_sent_is_told(
    follow: Follow, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("go")

    def go_on() -> None:
        server.wait_until(lambda: (7, 0) in server.steps)
        Path("go").write_text("go\n")

    other = Thread(target=go_on)
    other.start()
    solver = "mkdir out; cp made/step_00[01]* out; read line < go; mv out/step_000.npz out/other_0.npz; exec sleep 1000"
    assert follow(solver, "--quiet-s", "1000", pattern="out/*.npz") == 2
    other.join()
    assert "out/step_000.npz and out/other_0.npz are both files of 0" in capfd.readouterr().err


def test_files_of_steps_that_are_in_no_checkpoint_stay(follow: Follow, folder: Path, server: FakeServer) -> None:
    assert follow(PUT, "--delete") == 0
    assert len(os.listdir("out")) == NUM_STEPS


def test_a_server_that_starts_again_is_sent_what_it_lacks(follow: Follow, folder: Path, server: FakeServer) -> None:
    waiting = folder / "go"
    os.mkfifo(waiting)

    def once_it_has_two() -> None:
        server.wait_until(lambda: (7, 1) in server.steps)
        server.move(incarnation=4, known={0})
        waiting.write_text("go\n")

    other = Thread(target=once_it_has_two)
    other.start()
    solver = "mkdir out; cp made/step_00[012]* out; read line < go; cp made/step_003* out"
    assert follow(solver) == 0
    other.join()
    assert_has_at_least_once(server)


def assert_has_at_least_once(server: FakeServer) -> None:
    assert {step for _, step in server.steps} == set(range(NUM_STEPS))
    for step in range(NUM_STEPS):
        assert np.array_equal(server.steps[7, step]["u"], arrays(step)["u"])
        assert server.num_sent[step] <= 1


def test_a_study_that_wants_nothing_more_ends_the_solver(follow: Follow, server: FakeServer) -> None:
    server.credit = 1
    server.withholds_acks = True

    def stop() -> None:
        server.wait_until(lambda: (7, 0) in server.steps)
        server.do_now(server.stop_study)

    other = Thread(target=stop)
    other.start()
    assert follow(f"{PUT}; sleep 1000") == 0
    other.join()


def test_a_study_without_a_server_shows_what_the_files_have(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAM_CONNECTION", "none")
    assert main([PATTERN, "--", "sh", "-c", PUT]) == 0
    expected = "without a study; out/step_000.npz has u float64 (4,), velocity float64 (4, 3)\n"
    assert capfd.readouterr().err == f"stream-follow: {expected}"


def test_a_file_that_is_there_is_shown_without_a_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAM_CONNECTION", "none")
    with h5py.File("grow.h5", "w") as file:
        file["u"], file["mesh/points"] = np.zeros((5, 4)), POINTS
    assert main(["grow.h5", "--", "true"]) == 0
    expected = "without a study; grow.h5 has mesh/points float64 (4, 3), u float64 (5, 4)\n"
    assert capfd.readouterr().err == f"stream-follow: {expected}"
    assert main(["made/*.npz", "--", "true"]) == 0
    assert "without a study; made/step_000.npz has u float64 (4,)" in capfd.readouterr().err


def other_shape(folder: Path) -> None:
    np.savez(folder / "made" / "step_002.npz", u=np.zeros(5))


def cut(folder: Path) -> None:
    path = folder / "made" / "step_002.npz"
    path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize(
    ("damage", "solver", "options", "pattern", "expected"),
    [
        (None, PUT, (), "out/step_*.foo", "files that end with '.foo' cannot be followed: expected one of .npy"),
        (None, PUT, (), "out/stop_*.npz", "no time step came from 'out/stop_*.npz': the solver has ended, and"),
        (None, "true", (), PATTERN, "the solver has ended, and there is no folder out"),
        (None, "true", (), "all.h5", "the solver has ended, and it is not there, or has no time step"),
        (
            None,
            PUT,
            ("--field", "u=speed"),
            PATTERN,
            "has no 'speed', which field 'u' was expected to be: it has u",
        ),
        (None, PUT, ("--field", "w=u"), PATTERN, "--field w=u must be FIELD=NAME, such as velocity=U; the study has"),
        (None, PUT, ("--finished-by", "{}.done"), PATTERN, "was never finished: the solver has ended, and there is no"),
        (None, PUT, ("--delete",), "all.h5", "'all.h5' has no wildcard and so is one file that grows"),
        (None, "./none", (), PATTERN, None),
        (None, PUT, ("--quiet-s", "-5"), PATTERN, "'-5' must be a number of seconds, from 0 on"),
        (None, PUT, ("--patience-s", "nan"), PATTERN, "'nan' must be a number of seconds, from 0 on"),
        (None, PUT, ("--patience-s", "soon"), PATTERN, "argument --patience-s: 'soon' must be a number of seconds"),
        (None, PUT, ("--field", "v=u"), PATTERN, "--field v=u is the second for this field: expected one"),
        (None, PUT, ("--finished-by", "out/done"), PATTERN, "--finished-by out/done would be one marker for all files"),
        (None, PUT, ("--in-order", "--earlier", "--delete"), PATTERN, "--in-order counts the files, of which the next"),
        (other_shape, PUT, (), PATTERN, "out/step_002.npz: field 'u' must have the shape (4,), but has (5,)"),
        (cut, PUT, (), PATTERN, "out/step_002.npz cannot be read: "),
        (cut, f"{PUT}; sleep 1000", ("--patience-s", "0.1"), PATTERN, "out/step_002.npz cannot be read: "),
    ],
)
def test_what_does_not_fit_is_told_and_loses_nothing(
    follow: Follow,
    folder: Path,
    server: FakeServer,
    capfd: pytest.CaptureFixture[str],
    damage: Callable[[Path], None] | None,
    solver: str,
    options: tuple[str, ...],
    pattern: str,
    expected: str | None,
) -> None:
    if damage is not None:
        damage(folder)
    try:
        code: Any = follow(solver, *options, pattern=pattern)
    except SystemExit as ended:
        code = ended.code
    told = capfd.readouterr().err
    assert code in (2, 127), told
    if expected is not None:
        assert expected in told
    if damage is not None:
        assert {0, 1} <= set(server.num_sent)


def test_what_is_whole_beside_a_file_that_is_not_is_sent(follow: Follow, folder: Path, server: FakeServer) -> None:
    cut(folder)
    assert follow() == 2
    assert set(server.num_sent) == {0, 1, 3}


def test_a_file_that_changes_after_it_was_sent_is_told(
    follow: Follow, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("go")

    def write_again() -> None:
        server.wait_until(lambda: (7, 1) in server.steps)
        Path("go").write_text("go\n")

    other = Thread(target=write_again)
    other.start()
    assert follow(f"{PUT}; read line < go; echo >> out/step_001.npz", "--quiet-s", "0.01") == 2
    other.join()
    assert "out/step_001.npz was changed after it was sent" in capfd.readouterr().err


def test_files_of_steps_that_the_study_does_not_have_are_told(
    follow: Follow, folder: Path, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    write(folder / "made", ".npz", NUM_STEPS)
    assert follow() == 0
    assert_has(server)
    assert "1 not sent, since the study has no such time step: out/step_004.npz" in capfd.readouterr().err


def test_a_second_follower_of_a_folder_is_refused(
    follow: Follow, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow_lock, "LOCK_WAIT_S", 0.0)
    with follow_lock.lock_of(PATTERN):
        assert follow() == 2
    assert "is followed already, by process" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_solver_ends_with_its_follower(folder: Path, number: signal.Signals) -> None:
    solver = "echo $$ > pid; exec sleep 1000"
    command = [sys.executable, "-m", "stream_server.adapters.follow", PATTERN, "--", "sh", "-c", solver]
    environment = {**os.environ, "STREAM_CONNECTION": "none"}
    with subprocess.Popen(command, env=environment) as follower:
        pid = int(until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip()))
        process = psutil.Process(pid)
        follower.send_signal(number)
        code = follower.wait(60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert process.wait(60) is None or not process.is_running()
