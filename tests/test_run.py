"""Several pytest processes share one run: nothing is run twice, and nothing that goes wrong is overlooked."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.needs import ACCESS_LISTS, NEEDS, what_brings
from tests.sharing import FIRST, IMPORTS_TORCH_LATER, LONGEST_FIRST, TESTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PASSING = "def test_it_passes(): pass\n"
FAILING = "def test_it_fails(): assert 1 == 2\n"
DYING = "import os\ndef test_it_dies(): os._exit(1)\ndef test_it_never_comes(): pass\n"
HANGING = "import threading\ndef test_it_hangs(): threading.Event().wait()\n"
NOTING = """\
def test_it_notes_that_it_ran():
    with open("ran", "a") as file:
        file.write(__name__ + " ")
"""
# Plugins take a second of each process, and none is needed but for this option.
WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
OPTION = "def pytest_addoption(parser): parser.addoption('--hypothesis-seed')\n"
MESSY = """\
import pathlib, subprocess
def test_it_leaves_something():
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    pathlib.Path("left").write_text(str(process.pid))
"""


def run(folder: Path, *arguments: str, parts: int = 1, **files: str) -> "subprocess.CompletedProcess[str]":
    """Run test files in so many processes."""
    (folder / "conftest.py").write_text(OPTION)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "tests.run", f"--parts={parts}", *arguments],
        cwd=folder,
        env=os.environ | WITHOUT_PLUGINS | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_every_file_that_has_a_place_of_its_own_in_the_order_is_there() -> None:
    assert [file for file in (*FIRST, *LONGEST_FIRST, *IMPORTS_TORCH_LATER) if not (TESTS / file).exists()] == []


def test_every_file_is_run_by_one_process(tmp_path: Path) -> None:
    ran = run(tmp_path, parts=3, **dict.fromkeys("abcde", NOTING))
    assert ran.returncode == 0, ran.stdout
    assert "passed: 5 passed, 0 failed, 0 skipped" in ran.stdout
    assert sorted((tmp_path / "ran").read_text().split()) == [f"test_{name}" for name in "abcde"]


def test_arguments_go_to_pytest(tmp_path: Path) -> None:
    ran = run(tmp_path, "-k", "passes", a=PASSING, b=FAILING)
    assert ran.returncode == 0, ran.stdout
    assert "passed: 1 passed, 0 failed, 0 skipped" in ran.stdout


def test_a_failure_is_told_with_its_reason(tmp_path: Path) -> None:
    ran = run(tmp_path, parts=2, a=PASSING, b=FAILING, c=PASSING)
    assert ran.returncode == 1
    assert "FAILED test_b.py::test_it_fails" in ran.stdout
    assert "\nFAILED test_b.py::test_it_fails: assert 1 == 2\n" in ran.stdout
    assert "FAILED: 2 passed, 1 failed, 0 skipped" in ran.stdout


def test_a_process_that_dies_fails_the_run_and_the_others_go_on(tmp_path: Path) -> None:
    ran = run(tmp_path, parts=2, a=DYING, b=PASSING, c=PASSING, d=PASSING)
    assert ran.returncode == 1
    assert "died in test_a.py::test_it_dies (status 1)" in ran.stdout
    assert "2 tests have no outcome" in ran.stdout
    assert "FAILED: 3 passed, 0 failed, 0 skipped" in ran.stdout


def test_a_process_that_dies_in_the_last_test_of_a_file_is_said_to_have_died_there(tmp_path: Path) -> None:
    ran = run(tmp_path, a=DYING.partition("def test_it_never")[0], b=PASSING)
    assert ran.returncode == 1
    assert "died in test_a.py::test_it_dies (status 1)" in ran.stdout


def test_a_run_that_is_not_at_its_end_in_time_is_ended_and_shows_where_it_was(tmp_path: Path) -> None:
    ran = run(tmp_path, "--deadline-s", "5", a=PASSING, b=HANGING)
    assert ran.returncode == 1
    assert "not at its end after 5 s" in ran.stdout
    assert "died in test_b.py::test_it_hangs (status -6)" in ran.stdout
    assert "in test_it_hangs" in ran.stdout


def test_what_a_process_leaves_behind_is_told_and_ended(tmp_path: Path) -> None:
    ran = run(tmp_path, a=MESSY)
    assert ran.returncode == 1
    assert "left behind: psutil.Process(pid=" in ran.stdout
    left = int((tmp_path / "left").read_text())
    # A container without an init keeps the dead.
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_what_needs_quiet_runs_when_all_others_have_ended(tmp_path: Path) -> None:
    quiet = "import pytest\n@pytest.mark.quiet\n" + NOTING
    noisy = "import time\n" + NOTING.replace("    with", "    time.sleep(1)\n    with")
    ran = run(tmp_path, "-o", "markers=quiet", parts=3, a=quiet, b=noisy, c=noisy, d=quiet)
    assert ran.returncode == 0, ran.stdout
    ran_in_order = (tmp_path / "ran").read_text().split()
    assert sorted(ran_in_order[:2]) == ["test_b", "test_c"]
    assert sorted(ran_in_order[2:]) == ["test_a", "test_d"]


@pytest.mark.parametrize("text", ["import nowhere\n", "def test_it_is_no_test(:\n"])
def test_a_file_that_cannot_be_collected_fails_the_run(tmp_path: Path, text: str) -> None:
    ran = run(tmp_path, a=PASSING, b=text)
    assert ran.returncode == 1
    assert "ERROR collecting test_b.py" in ran.stdout


def test_a_run_without_a_test_fails(tmp_path: Path) -> None:
    assert run(tmp_path, a="").returncode == 1


NEEDING = """\
from tests import needs
needs.PACKAGES["flute"] = ("no-such-command",)
needs.NEEDS["music"] = needs.Need(packages=("flute",))
needs.NEEDS["office"] = needs.Need(forbids=lambda: "the key of the office")
def test_it_plays(): needs.need("music")
def test_it_plays_on(): needs.need("music")
def test_it_sits_in_the_office(): needs.need("music", "office")
"""


def test_what_a_machine_lacks_is_left_out_and_told_by_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "hall").mkdir()
    (tmp_path / "hall" / "test_b.py").write_text(NEEDING)
    ran = run(tmp_path, a=PASSING)
    assert ran.returncode == 0, ran.stdout
    told = "left out: 3 tests\n      2  hall: needs flute\n      1  hall: needs flute, the key of the office\n"
    assert f"{told}This brings them: sudo make test\npassed: 1 passed, 0 failed, 3 skipped in " in ran.stdout


def test_in_ci_nothing_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    ran = run(tmp_path, a=NEEDING)
    assert ran.returncode == 1
    assert "FAILED: 0 passed, 0 failed, 3 skipped" in ran.stdout


@pytest.mark.parametrize(
    ("reasons", "command"),
    [
        ([], ""),
        (["needs cmake, gfortran", "needs strace"], "sudo apt-get install cmake gfortran strace"),
        (["needs cmake", "needs root's rights"], "sudo make test"),
        (["needs a file system with access lists below /tmp"], ""),
        (["there is a GPU"], ""),
    ],
)
def test_one_command_brings_what_tests_were_left_out_for(reasons: list[str], command: str) -> None:
    assert what_brings(reasons) == command


def test_a_test_is_left_out_by_need_alone() -> None:
    leaving_out = re.compile(r"pytest\.skip\(")
    files = [path for path in (ROOT / "tests").rglob("*.py") if leaving_out.search(path.read_text())]
    assert [path.name for path in files] == ["needs.py"]


def test_a_file_system_without_access_lists_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "setxattr", refused)
    assert NEEDS["access lists"].forbids() == ACCESS_LISTS


def test_a_user_who_may_not_install_tools_is_told_what_tests_lack(tmp_path: Path) -> None:
    identity = "import os, sys; os.geteuid = lambda: 1000; from tests import needs; "
    for before, exit_code in (("os.environ.pop('CI', None); ", 0), ("os.environ['CI'] = '1'; ", 1)):
        lines = f"{identity}needs.SBIN = (); os.environ['PATH'] = {str(tmp_path)!r}; {before}sys.exit(needs.main())"
        told = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True)
        assert told.returncode == exit_code, told.stderr
        assert "To run them, too: sudo apt-get install build-essential " in told.stderr
        assert {"gfortran", "cmake", "valgrind", "libmpich-dev", "libopenmpi-dev"} < set(told.stderr.split())
