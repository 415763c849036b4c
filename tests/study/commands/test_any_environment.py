"""Studies in the environments of clusters: each works, or is refused in words with the right exit code."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.machine.test_program import LONG, NO_UTF8
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study, start_study

NAME = "Wärme-π"
SETTINGS = {"study.simulations": 2, "study.name": NAME}
SHIM = Path(__file__).parents[2] / "support" / "lesser_disk.c"


@pytest.fixture
def long_folder(tmp_path: Path) -> Iterator[str]:
    """A folder for temporary files whose path has more than 107 bytes."""
    folder = tmp_path / LONG
    folder.mkdir()
    yield str(folder)
    assert not any(it.name.startswith("stream-") for it in folder.iterdir())


@pytest.mark.parametrize(
    ("program", "num_ranks"),
    [
        ("stream-server", 1),
        pytest.param("stream-server", 2, marks=pytest.mark.full),
        pytest.param("stream-launcher", 1, marks=pytest.mark.full),
    ],
)
def test_a_study_needs_neither_a_locale_with_utf_8_nor_a_short_folder_for_temporary_files(
    tmp_path: Path, long_folder: str, program: str, num_ranks: int
) -> None:
    environment = {**NO_UTF8, "TMPDIR": long_folder, "PYTHONIOENCODING": "ascii"}
    done = run_study(
        *(NUMPY_STUDY, tmp_path / "π"), num_ranks=num_ranks, program=program, settings=SETTINGS, environment=environment
    )
    assert_complete(done, num_simulations=2)
    assert done.report["study"] == NAME
    assert NAME.encode("ascii", "backslashreplace").decode() in done.output


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something in an environment: a line of sh before the command, and variables, of which None are unset."""

    before: str = ""
    redirected: str = ""
    variables: dict[str, str | None] = field(default_factory=dict)
    exit_code: int = 0
    words: str = ""

    @property
    def within(self) -> Sequence[str]:
        unset = " ".join(f"unset {name};" for name, value in self.variables.items() if value is None)
        return ["/bin/bash", "-c", f'{self.before or ":"} && {unset} exec "$@" {self.redirected}', "bash"]

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in self.variables.items() if value is not None}


CASES = {
    "no temporary folder": Case(variables={"TMPDIR": "/nowhere"}),
    "a file in the place of the temporary folder": Case(variables={"TMPDIR": "/dev/null"}),
    "an empty TMPDIR": Case(variables={"TMPDIR": ""}),
    "a locale that is not there": Case(variables={"LC_ALL": "xx_YY.UTF-8", "LANG": None}),
    "the locale C": Case(variables={"LC_ALL": "C"}),
    "no home": Case(variables={"HOME": None, "USER": None, "LOGNAME": None}),
    "a home that is not there": Case(variables={"HOME": "/nowhere", "XDG_CACHE_HOME": "/nowhere"}),
    "a PATH that leads nowhere": Case(variables={"PATH": "/nowhere"}),
    "no terminal": Case(variables={"TERM": None, "COLUMNS": "0", "LINES": "x"}),
    "a number of threads that is none": Case(variables={"OMP_NUM_THREADS": "garbage"}),
    "a time zone that is none": Case(variables={"TZ": "Nowhere/None"}),
    "all warnings are errors": Case(variables={"PYTHONWARNINGS": "error"}),
    "an open umask": Case(before="umask 000"),
    "a closed umask": Case(before="umask 777"),
    "closed streams": Case(redirected="<&- >&- 2>&-"),
    "full outputs": Case(redirected=">/dev/full 2>&1"),
    "a removed folder": Case(before="cd $(mktemp -d) && rmdir $PWD", words="the current folder was removed"),
    "no core files": Case(before="ulimit -c 0"),
    "no locked memory": Case(before="ulimit -l 0"),
    "no queues of messages": Case(before="ulimit -q 0"),
    "no pending signals": Case(before="ulimit -i 0"),
    "a small stack": Case(before="ulimit -s 256"),
    "any stack": Case(before="ulimit -s unlimited"),
    "few open files": Case(before="ulimit -n 64", exit_code=2, words="(ulimit -Hn): have the limit raised"),
    "little memory": Case(before="ulimit -v 400000", exit_code=2, words="-v"),
    "small files": Case(before="ulimit -f 1", exit_code=2, words="(ulimit -f)"),
}


@pytest.mark.full
@pytest.mark.parametrize("program", ["stream-server", "stream-launcher"])
@pytest.mark.parametrize("name", CASES)
def test_a_study_works_in_any_environment_or_says_what_to_do(tmp_path: Path, name: str, program: str) -> None:
    case = CASES[name]
    done = run_study(
        *(NUMPY_STUDY, tmp_path / "run"),
        program=program,
        settings=SETTINGS,
        within=case.within,
        environment=case.environment,
    )
    if case.exit_code == 0:
        assert_complete(done, num_simulations=2)
    assert done.exit_code == case.exit_code, done.output
    assert case.words in done.output
    assert "Traceback" not in done.output


@pytest.mark.full
@pytest.mark.parametrize("program", ["stream-server", "stream-launcher"])
def test_a_study_runs_without_locks_and_without_syncing_folders_and_a_second_start_is_refused(
    tmp_path: Path, program: str
) -> None:
    library = tmp_path / "lesser_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(library)}
    settings = SETTINGS | {
        "simulation.command": [
            "sh",
            "-c",
            f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; exec {sys.executable} {NUMPY_STUDY.parent}/ripple.py",
        ]
    }
    run = tmp_path / "run"
    with start_study(NUMPY_STUDY, run, program=program, mpi=None, settings=settings, environment=environment) as live:
        live.wait_until(lambda: live.connection.exists())
        status = [str(Path(sys.prefix, "bin", "stream-study")), "status", str(run)]
        told = subprocess.run(status, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100)
        assert (told.returncode, told.stderr) == (0, "")
        assert "running" in told.stdout
        second = run_study(NUMPY_STUDY, run, program=program, settings=settings, environment=environment)
        assert second.exit_code == 2
        assert f"is in use: {program}, process" in second.output
        (tmp_path / "go").touch()
        done = live.end()
    assert_complete(done, num_simulations=2)
    assert "is on a file system without locks" in done.output
    assert "does not sync folders" in done.output
