"""A study that was killed, stopped or damaged goes on when the same command is given again, and loses nothing."""

import json
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from stream_server.machine.study_lock import LOCKS
from tests.faults.chaos.evidence import damage
from tests.needs import need
from tests.study.conftest import KILLED
from tests.support.failpoints import failpoints
from tests.support.killing import checkpoints, contents, copy_of, flip_a_byte, killed_at, run_through
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, run_here, run_study, start_study

Start = Callable[..., AbstractContextManager[LiveRun]]

SAVES: dict[str, Any] = {"checkpoint.every_batches": 2}
# Long enough to be met on its way.
PACED: dict[str, Any] = SAVES | {"study.simulations": 3, "simulation.command": ["python", "paced.py", "0.04"]}
# The launcher removes the folder of the sockets of a rank 0 that was killed, and is not there yet, or has left.
WITHOUT_LAUNCHER = ("incarnations.appended", "server.before_announcement", "server.before_end", "server.before_report")
ENDLESS: dict[str, Any] = {"simulation.command": ["python", "endless.py"], "study.time_steps": None}


@pytest.mark.parametrize(
    ("mpi", "points"),
    [
        ("openmpi", ["server.before_report=kill"]),
        pytest.param("mpich", ["buffer.drawn=kill@3", "checkpoint.renamed=kill@2"], marks=pytest.mark.full),
        pytest.param(
            "mpich", ["incarnations.appended=kill", "checkpoint.before_rename=kill@2"], marks=pytest.mark.full
        ),
        pytest.param("mpich", ["server.before_announcement=kill", "server.before_end=kill"], marks=pytest.mark.full),
        pytest.param("mpich", ["checkpoint.before_manifest=kill@2"], marks=pytest.mark.full),
        pytest.param("mpich", ["server.before_last_checkpoint=kill"], marks=pytest.mark.full),
        pytest.param("openmpi", ["checkpoint.part_written=kill@9"], marks=pytest.mark.full),
        pytest.param("openmpi", ["server.before_conclusion=kill@2"], marks=pytest.mark.full),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(point.partition("=")[0] for point in value),
)
def test_a_study_that_is_killed_goes_on_from_its_newest_checkpoint_and_trains_all(
    tmp_path: Path, mpi: str, points: Sequence[str]
) -> None:
    settings = SAVES | {"study.simulations": 3}
    # In a folder of the test's the path of a socket would be too long.
    with tempfile.TemporaryDirectory() as temporary:
        options: dict[str, Any] = {"num_ranks": 2, "mpi": mpi, "settings": settings}
        done = run_through(points, NUMPY_STUDY, tmp_path / "run", environment={"TMPDIR": temporary}, **options)
        left = [path for path in Path(temporary).iterdir() if path.name.startswith("stream-")]
        assert len(left) <= sum(point.partition("=")[0] in WITHOUT_LAUNCHER for point in points)
    assert_complete(done, num_simulations=3)
    assert done.account["trained"] == 60
    assert done.report["restarts"] == len(points)


@pytest.mark.parametrize(
    "policy", ["fifo", pytest.param("firo", marks=pytest.mark.full), pytest.param("reservoir", marks=pytest.mark.full)]
)
def test_a_study_goes_on_with_another_number_of_ranks(tmp_path: Path, policy: str) -> None:
    output_dir = tmp_path / "run"
    settings = {"checkpoint.every_batches": 1, "buffer.policy": policy, "study.simulations": 4}
    killed_at("checkpoint.renamed=kill", NUMPY_STUDY, output_dir, num_ranks=3, settings=settings)
    killed_at("buffer.drawn=kill@3", NUMPY_STUDY, output_dir, num_ranks=1, mpi=None, settings=settings)
    done = run_study(NUMPY_STUDY, output_dir, num_ranks=2, settings=settings)
    assert_complete(done, num_simulations=4)
    assert (done.report["restarts"], done.report["ranks"]) == (2, 2)
    assert "\nripple: goes on from checkpoint " in done.output


@pytest.mark.parametrize(
    ("mpi", "name"),
    [
        pytest.param("mpich", "SIGUSR1", marks=pytest.mark.full),
        pytest.param("mpich", "SIGTERM", marks=pytest.mark.full),
        pytest.param("mpich", "SIGINT", marks=pytest.mark.full),
        ("openmpi", "SIGUSR1"),
    ],
)
def test_a_study_that_a_signal_has_stopped_goes_on(start: Start, run: Callable[..., Run], mpi: str, name: str) -> None:
    with start(num_ranks=2, mpi=mpi, settings=PACED) as live:
        live.wait_until(lambda: (live.output_dir / "checkpoints" / "000001").exists())
        live.process.send_signal(signal.Signals[name])
        stopped = live.end()
    assert stopped.exit_code == 75, stopped.output
    assert stopped.report["exit_reason"] == "saved"
    newest = checkpoints(stopped.output_dir)[-1]
    done = run(num_ranks=2, mpi=mpi, settings=PACED)
    assert_complete(done, num_simulations=3)
    assert done.report["restarts"] == 1
    assert int(checkpoints(done.output_dir)[-1]) > int(newest)


def test_a_study_saves_and_leaves_before_its_time_is_over(tmp_path: Path) -> None:
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=ENDLESS, arguments=["--time-limit", "00:00:04"])
    assert done.exit_code == 75, done.output
    assert (done.report["exit_reason"], done.report["balanced"]) == ("saved", True)
    assert checkpoints(done.output_dir) == ["000001"]


def test_resume_insists_on_an_earlier_run(tmp_path: Path) -> None:
    done = run_here(NUMPY_STUDY, tmp_path / "run", arguments=["--resume"])
    assert done.exit_code == 2
    assert "--resume was given, but there is no run in" in done.output
    assert not done.output_dir.exists()


def test_fresh_starts_over_what_was_killed_and_keeps_the_old_folder(killed: Run, tmp_path: Path) -> None:
    before = contents(copy_of(killed, tmp_path))
    settings = KILLED | {"study.simulations": 1}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings, arguments=["--fresh"])
    assert_complete(done, num_simulations=1)
    assert done.report["restarts"] == 0
    assert contents(tmp_path / "run.1") == before
    assert f"stream-server: the earlier run in {tmp_path / 'run'} is kept as run.1" in done.output


def test_a_change_that_matters_is_refused_with_both_values(killed: Run, tmp_path: Path) -> None:
    before = contents(copy_of(killed, tmp_path))
    changed = KILLED | {"study.seed": 7, "buffer.policy": "firo"}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=changed)
    assert done.exit_code == 2
    for told in ("study.seed", "0", "7", "buffer.policy", '"fifo"', '"firo"'):
        assert told in done.output
    assert contents(tmp_path / "run") == before


def test_a_finished_study_says_so_and_goes_on_when_more_batches_or_simulations_are_asked_for(tmp_path: Path) -> None:
    output_dir, study = tmp_path / "run", tmp_path / "study" / NUMPY_STUDY.name
    shutil.copytree(NUMPY_STUDY.parent, study.parent)
    settings = SAVES | {"study.simulations": 2, "training.max_batches": 2}
    stopped = run_here(study, output_dir, settings=settings)
    assert (stopped.exit_code, stopped.report["exit_reason"], stopped.report["batches"]) == (0, "max_batches", 2)
    again = run_here(study, output_dir, settings=settings)
    assert again.exit_code == 0
    assert "ripple is finished" in again.output
    assert again.report == stopped.report
    settings["training.max_batches"] = None
    first = run_here(study, output_dir, settings=settings)
    assert_complete(first, num_simulations=2)
    assert first.report["restarts"] == 1
    attempts = first.attempts
    again = run_here(study, output_dir, settings=settings)
    assert again.exit_code == 0
    assert "ripple is finished" in again.output
    assert again.report == first.report
    assert "has changed" not in again.output
    before = contents(output_dir)
    other = run_here(study, output_dir, settings=settings | {"training.batch_size": 7})
    assert other.exit_code == 0
    assert "What study.json has changed since then (training.batch_size) has no effect on it." in other.output
    other = run_here(study, output_dir, settings=settings | {"study.seed": 7})
    assert other.exit_code == 2
    for told in ("study.seed: 7, but the run began with 0", "another study.output_dir", "--fresh"):
        assert told in other.output
    with (study.parent / "server.py").open("a") as file:
        file.write("# other\n")
    again = run_here(study, output_dir, settings=settings | {"server.stall_s": 999})
    assert again.exit_code == 0
    assert "The file with the server class has changed since then, and its model has not." in again.output
    assert contents(output_dir) == before
    done = run_here(study, output_dir, settings=settings | {"study.simulations": 3})
    assert_complete(done, num_simulations=3)
    assert (done.report["restarts"], done.attempts) == (2, attempts | {3: 1})


def test_a_restart_that_fails_in_its_set_up_says_why_and_nothing_of_an_account(
    killed: Run, run: Callable[..., Run], tmp_path: Path
) -> None:
    """The next one goes on, with more simulations and what was held out."""
    copy_of(killed, tmp_path)
    failed = run(mpi=None, settings=KILLED, environment={"TROUBLE": "prepare_training_attributes"})
    assert failed.exit_code == 3
    assert "trouble in prepare_training_attributes of rank 0" in failed.report["message"]
    assert "BALANCED" not in failed.output
    assert (failed.report["unbalanced"], failed.account["untrained"]) == ([], 0)
    assert failed.report["phases_s"]["wait_for_data"] > 0, "those of the start before"
    done = run(num_ranks=2, settings=KILLED | {"study.simulations": 5}, arguments=["--resume"])
    assert_complete(done, num_simulations=5)
    assert done.attempts[0] == 1
    assert done.account["held_out"] == {"expected": 20, "accepted": 20, "rejected": 0, "never_produced": 0}
    validated = [entry["batch"] for entry in done.report["validation"]]
    assert validated[0] == 3
    assert validated == sorted(set(validated))


def test_no_random_number_comes_twice_on_other_numbers_of_ranks(torch_restarted: Run) -> None:
    files = sorted(torch_restarted.output_dir.glob("dice-*.txt"))
    of_both_starts, of_the_first = (file.read_text().splitlines() for file in files)
    assert len(of_both_starts) > len(of_the_first) >= 4
    thrown = [line.split() for line in of_both_starts + of_the_first]
    for of_one_library in zip(*thrown, strict=True):
        assert len(set(of_one_library)) == len(thrown), thrown


@pytest.mark.parametrize(
    "file",
    [
        "model/user.state",
        pytest.param("rank-1/held-out.rows", marks=pytest.mark.full),
        pytest.param("manifest.json", marks=pytest.mark.full),
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_continued(
    killed: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    output_dir = copy_of(killed, tmp_path)
    *_, older, newest = checkpoints(output_dir)
    flip_a_byte(output_dir / "checkpoints" / newest / file)
    done = run_here(NUMPY_STUDY, output_dir, settings=KILLED)
    assert_complete(done, num_simulations=4)
    assert (output_dir / "checkpoints" / f"{newest}.damaged" / "reason.txt").exists()
    assert f"checkpoint {int(newest)} is damaged and was set aside" in caplog.text
    incarnations = json.loads((output_dir / "checkpoints" / "incarnations.json").read_text())
    assert [start["base"] for start in incarnations["starts"]] == [0, int(older)]


def test_a_study_of_which_no_checkpoint_can_be_used_ends_with_6_and_changes_none(killed: Run, tmp_path: Path) -> None:
    output_dir = copy_of(killed, tmp_path)
    for checkpoint in checkpoints(output_dir):
        flip_a_byte(output_dir / "checkpoints" / checkpoint / "study.state")
    before = contents(output_dir / "checkpoints")
    done = run_here(NUMPY_STUDY, output_dir, settings=KILLED)
    assert done.exit_code == 6
    assert "study.state does not match its checksum" in done.output
    assert "--fresh" in done.output
    assert contents(output_dir / "checkpoints") == before


def on_a_small_disk(disk: Path, kept: Path) -> list[str]:
    """Runs a command with a small disk of its own at `disk`, whose content it keeps."""
    script = (
        'mount -t tmpfs -o size=256k none "$0" && kept=$1 && shift && "$@"; code=$?; cp -r "$0" "$kept"; exit $code'
    )
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(disk), str(kept)]


@pytest.mark.parametrize("clear_at", [8, None])
def test_a_full_disk_stops_no_training_and_destroys_no_good_checkpoint(
    run: Callable[..., Run], tmp_path: Path, clear_at: int | None
) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    need("a small disk")
    settings = SAVES | {
        "server.class": "ballast_server.py:BallastServer",
        "checkpoint.dir": str(disk / "checkpoints"),
        "user.clear_at": clear_at,
        "study.simulations": 4,
    }
    disk.mkdir(exist_ok=True)
    num_ranks = 1 if clear_at is None else 2
    done = run(num_ranks=num_ranks, settings=settings, within=on_a_small_disk(disk, kept))
    assert any("the disk is full" in warning for warning in done.report["warnings"])
    assert (done.account["trained"], done.account["untrained"]) == (80, 0)
    if clear_at is not None:
        assert_complete(done, num_simulations=4)
        assert len(checkpoints(kept)) == 2
    else:
        assert (done.exit_code, done.report["exit_code"]) == (5, 5)
        assert "the last checkpoint could not be committed" in done.report["message"]
        assert checkpoints(kept) == ["000001"]
    assert not list(damage(kept / "checkpoints"))


def written(folder: Path) -> dict[str, tuple[int, bytes]]:
    """When each file below a folder was written last, and what is in it: the same bytes may be written again."""
    return {name: ((folder / name).stat().st_mtime_ns, content) for name, content in contents(folder).items()}


@pytest.mark.parametrize(
    "point",
    [
        "checkpoint.before_rename=stop@2",
        "best.renamed=stop",
        pytest.param("checkpoint.before_part=stop@2", marks=pytest.mark.full),
    ],
)
def test_a_server_that_wakes_up_after_another_has_taken_over_changes_nothing(
    killed: Run, tmp_path: Path, point: str
) -> None:
    output_dir = tmp_path / "run"
    settings = SAVES | {"validation.every_batches": 1}
    options: dict[str, Any] = {
        "num_ranks": 1,
        "mpi": None,
        "settings": settings,
        "arguments": ["--replay", str(killed.output_dir)],
        "environment": failpoints(tmp_path / "met", point),
    }
    with start_study(NUMPY_STUDY, output_dir, **options) as old:
        old.wait_until(lambda: [it.status() for it in old.ranks] == [psutil.STATUS_STOPPED])
        refused = run_here(NUMPY_STUDY, output_dir, settings=settings, arguments=options["arguments"])
        assert refused.exit_code == 2, refused.output
        # As when its node is lost to a network file system, which forgets the locks of the dead.
        for lock in LOCKS:
            (output_dir / lock).unlink()
        new = run_here(NUMPY_STUDY, output_dir, settings=settings, arguments=options["arguments"])
        assert new.exit_code == 0, new.output
        after = written(output_dir / "checkpoints")
        old.ranks[0].send_signal(signal.SIGCONT)
        woken = old.end()
    assert woken.exit_code == 7
    assert "a newer start of the server has taken over" in woken.output
    assert new.report["exit_reason"] == "finished"
    assert not (output_dir / "exit.json").exists()
    # All it may leave is a checkpoint or a model that does not count.
    assert after.items() <= written(output_dir / "checkpoints").items()
    again = run_here(NUMPY_STUDY, output_dir, settings=settings, arguments=options["arguments"])
    assert "ripple is finished" in again.output
