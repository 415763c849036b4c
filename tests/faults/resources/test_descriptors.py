"""Too few open files: clear words at the start, no hang, nothing lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stream_server.machine.descriptors import OWN
from tests.faults.resources.victim import NUM_SIMULATIONS, limited, victim
from tests.support.runs import NUMPY_STUDY, run_study


@pytest.mark.parametrize(("program", "num"), [("stream-server", 30), ("stream-launcher", OWN)])
def test_a_command_that_may_open_too_few_files_says_how_many_it_needs(tmp_path: Path, program: str, num: int) -> None:
    done = run_study(NUMPY_STUDY, tmp_path / "run", mpi=None, program=program, within=limited("-n", num))
    assert done.exit_code == 2
    assert f"open files are needed, {'72 of' if program == 'stream-server' else '5 of'} them for" in done.output
    assert f"but only {num} are allowed here (ulimit -Hn)" in done.output
    assert "Traceback" not in done.output


def test_a_soft_limit_that_may_be_raised_is_raised(tmp_path: Path) -> None:
    within = limited("-Sn", 20)
    done = run_study(NUMPY_STUDY, tmp_path / "run", mpi=None, within=within, settings={"study.simulations": 1})
    assert done.exit_code == 0, done.output


def test_a_client_that_may_open_too_few_files_says_so_and_ends_no_process_of_a_user() -> None:
    with victim() as it:
        command = [sys.executable, "-m", "tests.faults.resources.client_limits", str(it.live.connection), "0", "40"]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        *refused, last = json.loads(told.stdout).values()
        assert last == "finished"
        assert len(refused) > 8
        assert all("open files, but only" in words for words in refused), refused
        it.simulate(*range(1, NUM_SIMULATIONS))
        it.end()
