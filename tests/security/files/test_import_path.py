"""No file of the folder one stands in, or beside study.json, is taken for a module of Python or of a package.

Not the studies' own: what `simulation.command` starts has the import path that Python gives it.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import stream_server
from stream_server import Study
from stream_server.machine.interpreter import python_environment
from tests.fakes import scheduler_commands as fake_scheduler
from tests.support.decoys import STANDARD, installed, present, write_decoys
from tests.support.launch import alone
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

PACKAGE = Path(stream_server.__file__).parent
LIMIT_S = 200.0
# What is imported until a command has left behind what somebody's PYTHONPATH said.
BEGINNING = "import re, stream_server.entry_points, sys; print(*sys.modules)"

SCRIPT = """\
#!{python}
import re
import sys
from stream_server.entry_points import {name}
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit({name}())
"""

# The class imports a file beside it, and so do the processes that multiprocessing starts for it.
SERVER = """
import os, random
from multiprocessing import get_context

from beside import Base, work

class Server(Base):
    def prepare_training_attributes(self):
        super().prepare_training_attributes()
        assert os.getcwd() == os.path.dirname(__file__)
        assert random.Random(1).random() > 0
        for method in ("spawn", "forkserver") if self.rank == 0 else ():
            process = get_context(method).Process(target=work)
            process.start()
            process.join()
            assert process.exitcode == 0
"""
BESIDE = """
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "simulation"))
from linear_server import LinearServer as Base

def work():
    import copy, numpy, secrets
"""


class Place:
    """A folder to stand in, and a study in another one, both full of decoys; `notes` tells what was used."""

    def __init__(self, folder: Path, names: frozenset[str] = STANDARD | installed()) -> None:
        self.here, self.study_dir, self.bin = (folder / name for name in ("here", "study", "bin"))
        self.notes = folder / "notes"
        self.study = self.study_dir / "study.json"
        for each in (self.here, self.study_dir, self.bin, self.study_dir / "simulation"):
            each.mkdir()
        write_decoys(self.here, names, self.notes)
        # UCX writes its log over what that names.
        (self.here / "ucx.conf").write_text(f"UCX_LOG_FILE={self.notes}\nUCX_LOG_LEVEL=info\n")
        # Ours may be installed to be edited: Python finds such a package behind all folders.
        write_decoys(self.study_dir, names & present() - {"stream_server"}, self.notes)
        source = NUMPY_STUDY.parent
        for name, copy in ("server.py", "linear_server.py"), ("ripple.py", "ripple.py"):
            (self.study_dir / "simulation" / copy).write_text((source / name).read_text())
        (self.study_dir / "server_class.py").write_text(SERVER)
        (self.study_dir / "beside.py").write_text(BESIDE)
        (self.study_dir / "points.py").write_text((source / "learning_sampler.py").read_text())
        plain = json.loads(NUMPY_STUDY.read_text())
        plain["study"]["simulations"] = 2
        plain["simulation"]["command"] = ["python", "simulation/ripple.py"]
        plain["server"]["class"] = "server_class.py:Server"
        plain["parameters"]["sampler"] = "points.py:Evenly"
        self.study.write_text(json.dumps(plain))

    def program(self, name: str) -> str:
        """One of the commands, as pip installs it."""
        path = self.bin / name
        path.write_text(SCRIPT.format(python=sys.executable, name=name.removeprefix("stream-")))
        path.chmod(0o755)
        return str(path)

    @property
    def imported(self) -> str:
        return self.notes.read_text() if self.notes.exists() else ""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    monkeypatch.chdir(made.here)
    return made


def run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """The output of a command that must be good."""
    done = subprocess.run(
        command,
        env=alone([]).environment | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_a_file_where_one_stands_or_beside_the_study_is_no_module_for_a_process_of_ours(
    place: Place, tmp_path: Path
) -> None:
    program = place.program("stream-server")
    done = run_study(Path("../study/study.json"), tmp_path / "run", program=program, mpi="mpich")
    assert place.imported == ""
    assert_complete(done, 2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.full)])
def test_nor_of_a_study_that_is_started_from_python_though_pythonpath_ends_with_a_colon(
    ranks: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:")
    changes = {"study.simulations": 1, "parameters.sampler": "uniform", "server.class": "beside.py:Base"}
    ended = Study.load(place.study, changes).start(ranks).wait(LIMIT_S)
    assert place.imported == ""
    assert ended.state == "finished"


@pytest.mark.full
def test_nor_of_any_other_command(place: Place, tmp_path: Path) -> None:
    server, launcher, study = (place.program(f"stream-{name}") for name in ("server", "launcher", "study"))
    output_dir = tmp_path / "run"
    config = ("--config", str(place.study), f'--set=study.output_dir="{output_dir}"')
    for words in ["--check"], ["--fast-dev-run"], [], ["--evaluate", str(output_dir)]:
        run(server, *config, *words)
    run(launcher, *config, "--check")
    run(launcher, *config, "--fresh", "--set=server.ranks=2")
    for words in ["list", str(tmp_path)], ["new", "heat-numpy", str(tmp_path / "new")], ["plot", str(output_dir)]:
        run(study, *words)
    run(study, "export", str(output_dir), "--to", str(tmp_path / "metrics.parquet"))
    with subprocess.Popen([study, "serve", str(tmp_path), "--port", "0"], stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        assert page.stdout.readline().startswith("http://")
        page.terminate()
    assert place.imported == ""


@pytest.mark.full
def test_nor_of_a_server_and_simulations_that_are_jobs(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_scheduler.install(tmp_path / "cluster")
    path = os.pathsep.join([str(tmp_path / "cluster" / "bin"), alone([]).environment["PATH"]])
    jobs = [f'--set={section}.backend="lsf"' for section in ("server", "launcher")]
    said = run(place.program("stream-launcher"), "--config", str(place.study), *jobs, environment={"PATH": path})
    assert place.imported == ""
    assert "finished" in said


def test_a_command_leaves_behind_what_is_relative_in_pythonpath(tmp_path: Path) -> None:
    before = subprocess.check_output([sys.executable, "-P", "-c", BEGINNING], text=True).split()
    place = Place(tmp_path, STANDARD & present() - set(before))
    told = subprocess.run(
        [place.program("stream-server"), "--config", str(place.study), "--check"],
        cwd=place.here,
        env=alone([]).environment | {"PYTHONPATH": ":here:"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert place.imported == ""
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    ("given", "kept"), [("", None), (":", None), (".:lib", None), ("/a::/b:", "/a:/b"), ("/a:./b", "/a")]
)
def test_the_absolute_folders_of_pythonpath_stay(given: str, kept: str | None) -> None:
    others = {"PATH": ":/bin", "HOME": "home"}
    assert python_environment(others | {"PYTHONPATH": given}) == others | ({"PYTHONPATH": kept} if kept else {})


def test_no_command_line_of_ours_begins_with_the_interpreter_but_that_of_the_one_place() -> None:
    begins = re.compile(r"\[sys\.executable\b|\bsys\.executable,")
    files = {str(it.relative_to(PACKAGE)) for it in PACKAGE.rglob("*.py") if begins.search(it.read_text())}
    assert files == {"entry_points.py", "machine/interpreter.py"}
