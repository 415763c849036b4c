"""A backend that a study brings along, under a real launcher."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_server.config import load
from stream_server.errors import ConfigError, UserCodeError
from stream_server.launcher.backends.backend import Outage
from stream_server.launcher.backends.local import LocalBackend
from stream_server.launcher.backends.registry import load_backend
from stream_server.launcher.backends.scheduler import JobKind
from stream_server.messages import launcher_link
from tests.cluster.jobs import simulations_backend
from tests.fakes.rank_0 import Rank0
from tests.launcher.backends.test_backends import folder_worker, has_ended
from tests.launcher.study_run import SLEEPING, StudyRun
from tests.support.runs import NUMPY_STUDY, run_study
from tests.support.studies import StudyFolder

SOURCE = Path(__file__).parent / "folder_queue.py"
EXAMPLE = Path(__file__).parent / "ssh_backend.py"
DOCS = Path(__file__).parents[3] / "docs" / "guide" / "backends.md"
FOLDER_QUEUE = "launcher.backend=folder_queue.py:FolderQueue"
CRASHING = "import os, sys; sys.exit(3 if os.environ['STREAM_ATTEMPT'] == '0' else print(os.getpid(), flush=True))"


@pytest.fixture
def study_dir(tmp_path: Path) -> Iterator[Path]:
    """The folder of a study that brings FolderQueue along, whose worker runs."""
    shutil.copy(SOURCE, tmp_path)
    with folder_worker(tmp_path):
        yield tmp_path


def test_simulations_run_on_a_backend_of_the_study_and_fail_and_are_retried_as_on_any(study_dir: Path) -> None:
    with Rank0(study_dir, CRASHING, FOLDER_QUEUE) as rank_0:
        rank_0.plan(1)
        assert rank_0.wait_for(launcher_link.Failed).reason == "ended with exit code 3"
        assert rank_0.wait_for(launcher_link.Attempt).attempt == 1
        rank_0.wait_for_output(0, 1)
        assert {file.name for file in (study_dir / "queue").glob("*.job")} == {"0-attempt-0.job", "0-attempt-1.job"}


def test_a_job_outlives_its_launcher_on_a_backend_of_the_study_and_is_ended_by_the_next(study_dir: Path) -> None:
    with Rank0(study_dir, SLEEPING, FOLDER_QUEUE) as rank_0:
        rank_0.plan(1)
        pid = int(rank_0.wait_for_output(0))
        rank_0.kill_and_restart_launcher()
        rank_0.plan(1, attempt=0)
        going_on = launcher_link.Attempt(simulation=0, attempt=0, public_key=None, goes_on=True)
        assert rank_0.wait_for(launcher_link.Attempt) == going_on
        assert not has_ended(pid)
        rank_0.send(launcher_link.StopSimulations(reason="enough", grace_s=0.0))
        rank_0.wait_for(launcher_link.LauncherDone)
        assert has_ended(pid)


def test_rank_0_hears_that_a_job_waits_in_the_queue_and_that_it_runs(tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path)
    (tmp_path / "queue").mkdir()
    with Rank0(tmp_path, SLEEPING, FOLDER_QUEUE) as rank_0:
        rank_0.plan(1)
        assert rank_0.wait_for(launcher_link.Queued) == launcher_link.Queued(simulations=(0,), waits_for="")
        # A server that is new has not heard that.
        rank_0.plan(1, attempt=0, incarnation=2)
        assert rank_0.wait_for(launcher_link.Queued) == launcher_link.Queued(simulations=(0,), waits_for="")
        with folder_worker(tmp_path):
            assert rank_0.wait_for(launcher_link.Queued) == launcher_link.Queued(simulations=(0,), waits_for=None)
            rank_0.send(launcher_link.StopSimulations(reason="enough", grace_s=0.0))
            rank_0.wait_for(launcher_link.LauncherDone)


def test_a_new_run_ends_the_jobs_that_an_earlier_one_has_left_on_its_backend(study_dir: Path) -> None:
    with Rank0(study_dir, SLEEPING, FOLDER_QUEUE) as first:
        first.plan(1)
        pid = int(first.wait_for_output(0))
        first.launcher.kill()
        first.launcher.wait()
        with Rank0(study_dir, SLEEPING, FOLDER_QUEUE) as second:
            second.plan(1)
            assert second.wait_for(launcher_link.Attempt).attempt == 1
            assert has_ended(pid)


REFUSING = """
from stream_server.errors import ConfigError
from stream_server.launcher.backends.local import LocalBackend

class Refusing(LocalBackend):
    def check(self):
        raise ConfigError("simulation.job: the queue is closed")
"""


def test_a_study_that_its_backend_refuses_is_not_run_for_a_server_that_was_started_by_hand_either(
    tmp_path: Path,
) -> None:
    study = tmp_path / "ripple"
    shutil.copytree(NUMPY_STUDY.parent, study, ignore=shutil.ignore_patterns("__pycache__"))
    (study / "refusing.py").write_text(REFUSING)
    settings = {"launcher.backend": "refusing.py:Refusing"}
    done = run_study(study / NUMPY_STUDY.name, tmp_path / "run", settings=settings, mpi=None)
    assert done.exit_code == 2
    assert "simulation.job: the queue is closed" in done.output
    assert not (tmp_path / "run" / "simulations").exists()


@pytest.mark.parametrize(
    ("method", "returns", "told"),
    [
        ("query", "'running'", "must return a dict of a JobStatus for each handle, but returned 'running'"),
        (
            "query",
            "{'7': 'running'}",
            "must return a JobStatus with a JobState for each handle, but returned 'running' for '7'",
        ),
        (
            "query",
            "{'7': JobStatus(state='running')}",
            "JobState for each handle, but returned JobStatus\\(state='running'",
        ),
        ("query", "1 / 0", "raised ZeroDivisionError: division by zero"),
        ("submit", "None", "must return a handle, which is one line of text, but returned None"),
        ("submit", "'Job <7>\\nis submitted'", "must return a handle"),
        ("reattach", "7", "must return a handle, which is one line of text, but returned 7"),
    ],
)
def test_what_a_backend_does_outside_the_protocol_names_its_class_and_method(
    tmp_path: Path, method: str, returns: str, told: str
) -> None:
    folder = StudyFolder(tmp_path)
    folder.write("own.py", f"{OWN}\n    def {method}(self, _):\n        return {returns}\n")
    backend = simulations_backend(load(folder.study({"launcher.backend": "own.py:Own"})))
    with pytest.raises(UserCodeError, match=f"own.py:Own: {method} .*{told}"):
        getattr(backend, method)(None)


WRONG = """
from stream_server.launcher.backends.local import LocalBackend

class Wrong(LocalBackend):
    def query(self, handles):
        super().query(handles)
        return dict.fromkeys(handles, "running")
"""


# Its thread ends, and it waits for that for ever.
LEFT_ALONE = """
from threading import Thread

from stream_server.launcher.backends.local import LocalBackend

class Wrong(LocalBackend):
    def submit(self, spec):
        Thread(target=lambda: 1 / 0).start()
        return super().submit(spec)
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (WRONG, "query must return a JobStatus with a JobState for each handle"),
        (LEFT_ALONE, "a thread of it raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_backend_that_answers_wrong_or_whose_thread_ends_ends_the_study_in_order_and_leaves_no_server_behind(
    tmp_path: Path, code: str, told: str
) -> None:
    acts = [["live"], ["plan", 1], ["wait_for_attempts", 1], ["stay"]]
    with_wrong = ("--set", "launcher.backend=wrong.py:Wrong")
    (tmp_path / "wrong.py").write_text(code)
    with StudyRun(tmp_path, acts, arguments=with_wrong) as run:
        assert run.end() == UserCodeError.exit_code
        assert f"wrong.py:Wrong: {told}" in run.errors
        assert "Traceback" not in run.errors
        assert "Traceback" in run.log
        assert run.journal[-1].items() >= {"message": "LauncherLeft", "exit_code": 3}.items()


OWN = """
from stream_server.backends import JobStatus

class Own:
    query_interval_s = 0.0
    submit = cancel = query = reattach = close = print

    def __init__(self, config, kind):
        self.kind = kind
"""


def test_the_backend_of_a_study_is_loaded_by_its_name(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    assert isinstance(simulations_backend(load(folder.study({}))), LocalBackend)
    folder.write("own.py", OWN)
    config = load(folder.study({"launcher.backend": "own.py:Own", "simulation.job.options": {"queue": "long"}}))
    assert simulations_backend(config).backend.kind.resources.options == {"queue": "long"}  # type: ignore[attr-defined]


def test_a_backend_of_ones_own_may_be_asked_less_often_after_a_while(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.write("own.py", OWN)
    backend = simulations_backend(load(folder.study({"launcher.backend": "own.py:Own"})))
    backend.backend.query_interval_s = 30.0  # type: ignore[attr-defined]
    assert backend.query_interval_s == 30.0


def test_a_backend_that_does_not_exist_or_cannot_be_made_is_told(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    with pytest.raises(ConfigError, match=r'launcher\.backend: "moab" is not a backend\. Write "local", "slurm"'):
        load(folder.study({"launcher.backend": "moab"}))
    with pytest.raises(ConfigError, match=r"launcher\.backend must name a class, but there is no file"):
        simulations_backend(load(folder.study({"launcher.backend": "cluster.py:Own"})))
    folder.write("partial.py", OWN.replace("submit = cancel =", "submit ="))
    with pytest.raises(ConfigError, match=r"partial\.py:Own lacks cancel"):
        simulations_backend(load(folder.study({"launcher.backend": "partial.py:Own"})))
    for lines in ("outage = property(print)", "__slots__ = ('kind',)"):
        folder.write("closed.py", f"{OWN}\n    {lines}\n")
        with pytest.raises(ConfigError, match=r"launcher\.backend: `outage` of .*closed\.py:Own cannot be set"):
            simulations_backend(load(folder.study({"launcher.backend": "closed.py:Own"})))
    folder.write("broken.py", "class Own:\n    def __init__(self, config, kind):\n        raise OSError('no route')\n")
    with pytest.raises(UserCodeError, match="no route"):
        simulations_backend(load(folder.study({"launcher.backend": "broken.py:Own"})))


def test_a_package_gives_its_backend_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "packages" / "moab_backend-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: moab-backend\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[stream_server.backends]\nmoab = moab_backend:Own\n")
    (tmp_path / "packages" / "moab_backend.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    folder = StudyFolder(tmp_path)
    config = load(folder.study({"launcher.backend": "moab", "server.backend": "moab"}))
    backends = (simulations_backend(config), load_backend(config, JobKind.of_server(config), Outage()))
    assert [it.backend.kind.section for it in backends] == ["simulation.job", "server.job"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r'server\.backend: "maob" is not a backend of the server\. Write "moab"'):
        load(folder.study({"server.backend": "maob"}))


@pytest.mark.slow
def test_the_server_runs_on_a_backend_of_the_study_too(study_dir: Path) -> None:
    study = study_dir / "ripple"
    shutil.copytree(NUMPY_STUDY.parent, study, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE, study)
    (study / "queue").symlink_to(study_dir / "queue")
    both = {"launcher.backend": "folder_queue.py:FolderQueue", "server.backend": "folder_queue.py:FolderQueue"}
    done = run_study(study / NUMPY_STUDY.name, study_dir / "run", settings=both, mpi=None, program="stream-launcher")
    assert done.exit_code == 0
    assert "server-start-1.job" in {file.name for file in (study / "queue").iterdir()}


def test_the_example_in_the_docs_is_the_backend_that_is_tested() -> None:
    assert f"```python\n{EXAMPLE.read_text()}```\n" in DOCS.read_text()
