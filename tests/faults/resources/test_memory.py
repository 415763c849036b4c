"""The memory of a server is bounded whatever its clients do, and a rank that is refused memory says so."""

from pathlib import Path

import pytest

from tests.faults.resources import sieges
from tests.faults.resources.victim import STUDY, limited
from tests.support.runs import NUMPY_STUDY, run_study

NUM = 40
GIGABYTE = 1 << 20  # in kB, as ulimit has it


@pytest.mark.parametrize(
    "siege", [sieges.unheld, pytest.param(sieges.held, marks=pytest.mark.full)], ids=lambda siege: siege.__name__
)
def test_no_client_makes_the_memory_of_a_server_grow_beyond_its_plan(siege: sieges.Siege) -> None:
    effects = siege(NUM)
    assert effects
    assert [effect for effect in effects if effect.is_too_much] == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("study", "capacity"),
    [
        pytest.param(STUDY, "6GiB", id="its samples", marks=pytest.mark.full),
        pytest.param(NUMPY_STUDY, 80_000_000, id="their places"),
    ],
)
def test_a_rank_that_is_refused_the_memory_of_its_buffer_says_so_at_its_start(
    tmp_path: Path, study: Path, capacity: str | int
) -> None:
    settings = {"buffer.capacity": capacity}
    done = run_study(study, tmp_path / "run", mpi=None, settings=settings, within=limited("-v", 4 * GIGABYTE))
    assert done.exit_code == 2
    assert "buffer.capacity: the system refuses a rank the memory of its buffer" in done.output
    assert "Write a smaller capacity, or give the ranks more memory" in done.output
