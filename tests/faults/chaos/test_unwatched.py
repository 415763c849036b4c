"""Processes that die while nobody watches."""

import time
from pathlib import Path

import pytest

from tests.faults.chaos.audit import committed_checkpoints
from tests.faults.chaos.evidence import gather
from tests.faults.chaos.invariants import violations
from tests.faults.chaos.live import LiveStudy
from tests.faults.chaos.plan import Plan
from tests.support.timing import Deadline, until

PLAN = Plan(seed="unwatched", num_simulations=8, num_steps=30)
LIMIT_S = 45.0
LOOK_S = 0.02


def wait_until_saved(output_dir: Path) -> None:
    until(lambda: committed_checkpoints(output_dir / "checkpoints"), LIMIT_S)


def exit_code(study: LiveStudy) -> int | None:
    """How the study ended, None when it has not within the limit."""
    deadline = Deadline(LIMIT_S)
    while study.exit_code is None and not deadline.has_passed:
        time.sleep(LOOK_S)
    return study.exit_code


@pytest.mark.full
def test_a_launcher_that_comes_back_misses_a_rank_that_died_meanwhile(tmp_path: Path) -> None:
    """Nobody sees how a rank ends without what has started it, and the launcher that counted them is gone, too."""
    output_dir = tmp_path / "run"
    with LiveStudy(PLAN, output_dir, mpi="mpich", environment={}) as study:
        wait_until_saved(output_dir)
        processes = study.processes()
        (starter,) = processes["mpirun"]
        (launcher,) = processes["launcher"]
        for process in (starter, launcher, processes["rank"][1]):
            process.kill()
        assert study.wait() == -9
        study.start()
        code = exit_code(study)
        if code is None:
            study.dump_stacks()
        assert code == 0, study.said()
        leftovers = study.leftovers()
    assert violations(gather(PLAN, output_dir, code, leftovers)) == []
