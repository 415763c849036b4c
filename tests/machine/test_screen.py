"""The output of a command may go into a file on a full disk."""

import errno
import os
from pathlib import Path

import pytest

from stream_server.machine.screen import LossyFile
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

INTO_A_FULL_DISK = ["sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mpi", "num_ranks"), [(None, 1), pytest.param("openmpi", 2, marks=pytest.mark.full)], ids=["alone", "openmpi"]
)
def test_a_study_that_can_print_nothing_trains_to_its_end(tmp_path: Path, mpi: str | None, num_ranks: int) -> None:
    settings = {"study.simulations": 2}
    run = tmp_path / "run"
    done = run_study(NUMPY_STUDY, run, mpi=mpi, num_ranks=num_ranks, settings=settings, within=INTO_A_FULL_DISK)
    assert done.output == ""
    assert_complete(done, num_simulations=2)


def test_only_what_a_disk_refuses_is_lost() -> None:
    with open("/dev/full", "wb") as full, LossyFile(full.fileno(), "wb", closefd=False) as screen:
        assert screen.write(b"words") == 5
    reader, writer = os.pipe()
    os.close(reader)
    with LossyFile(writer, "wb") as screen, pytest.raises(OSError, match="Broken pipe") as caught:
        screen.write(b"words")
    assert caught.value.errno == errno.EPIPE
