"""The terminal behind an mpirun, and texts that must not reach one."""

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_server.machine.log_end import log_end
from stream_server.machine.screen import escaped, size_shown
from stream_server.machine.terminal import size_of, terminal_of_stderr


@pytest.fixture
def terminal() -> Iterator[Path]:
    ours, theirs = pty.openpty()
    yield Path(os.ttyname(theirs))
    os.close(ours)
    os.close(theirs)


def processes(proc: Path, *above: tuple[str, str], own: str) -> Path:
    """A /proc in which the processes above this one, the nearest first, have these names and standard errors."""
    for number, (name, stderr) in enumerate((("python", own), *above)):
        pid = "self" if number == 0 else str(os.getppid() + number - 1)
        (proc / pid / "fd").mkdir(parents=True)
        (proc / pid / "comm").write_text(f"{name}\n")
        parent = os.getppid() + number if number < len(above) else 1
        (proc / pid / "stat").write_text(f"7 (a ) name) S {parent} 7 7")
        (proc / pid / "fd" / "2").symlink_to(stderr)
    return proc


@pytest.mark.parametrize("programs", [("hydra_pmi_proxy", "mpirun"), ("prterun",), ("orted", "mpiexec")])
def test_behind_the_pipes_of_mpirun_its_terminal_is_found(tmp_path: Path, terminal: Path, programs: list[str]) -> None:
    *inner, outer = programs
    above = [*((name, "pipe:[7]") for name in inner), (outer, str(terminal)), ("bash", "/dev/null")]
    assert terminal_of_stderr(processes(tmp_path, *above, own="pipe:[6]")) == terminal


def test_an_mpirun_whose_output_goes_elsewhere_has_no_terminal(tmp_path: Path, terminal: Path) -> None:
    """`mpirun … 2>&1 | tee log` in a shell that has one."""
    above = [("hydra_pmi_proxy", "pipe:[7]"), ("mpirun", "pipe:[8]"), ("bash", str(terminal))]
    assert terminal_of_stderr(processes(tmp_path, *above, own="pipe:[6]")) is None


def test_without_mpirun_our_own_standard_error_counts(tmp_path: Path, terminal: Path) -> None:
    above = [("bash", str(terminal))]
    assert terminal_of_stderr(processes(tmp_path / "a", *above, own=str(terminal))) == terminal
    assert terminal_of_stderr(processes(tmp_path / "b", *above, own="/dev/null")) is None


def test_a_file_is_no_terminal(tmp_path: Path) -> None:
    assert size_of(tmp_path) is None
    assert size_of(tmp_path / "none") is None


def test_a_terminal_that_has_not_told_its_size_has_the_usual_one(terminal: Path) -> None:
    assert size_of(terminal) == (80, 25)


def test_what_a_terminal_would_obey_is_shown(tmp_path: Path) -> None:
    assert escaped("\ta\r\nb\x1b[31m\x07\x9b\x7f é") == "\ta\nb\\x1b[31m\\x07\\x9b\\x7f é"
    log = tmp_path / "output.log"
    log.write_text("\x1b]0;title\x07 done\n")
    assert log_end(log) == "\\x1b]0;title\\x07 done"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1600, "1.6 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (int(23.5 * 2**30), "23.5 GiB"),
        (5000 * 2**40, "5,000.0 TiB"),
    ],
)
def test_sizes_are_told_in_units_of_1024(num_bytes: int, text: str) -> None:
    assert size_shown(num_bytes) == text
