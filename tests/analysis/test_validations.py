"""The records of validations as they are read, whatever other ranks and starts have left."""

import shutil
from pathlib import Path

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.validations import read_validation, recorded_batches
from tests.server.training.validation.test_validation_record import OfEach, validated


def test_what_the_ranks_of_an_earlier_start_left_is_not_counted(tmp_path: Path) -> None:
    validated(tmp_path, OfEach, pictures=0, of_ranks=[[1.0], [2.0], [3.0]])
    found, _ = validated(tmp_path, OfEach, pictures=0, of_ranks=[[5.0, 4.0]])
    assert len(list((tmp_path / "validations").iterdir())) == 3
    assert found.is_whole
    assert found.by_time_step() == {0: 50.0, 1: 40.0}


def test_the_newest_validation_is_one_that_all_ranks_have_written(tmp_path: Path) -> None:
    found, _ = validated(tmp_path, OfEach, pictures=0, of_ranks=[[1.0], [2.0]])
    [of_rank_0] = (tmp_path / "validations").glob("*-rank-0.npz")
    shutil.copy(of_rank_0, of_rank_0.with_name("batch-900000-rank-0.npz"))
    run = RunFolder(tmp_path)
    assert recorded_batches(run) == [found.batch, 900000]
    newest, begun = read_validation(run), read_validation(run, 900000)
    assert newest is not None
    assert begun is not None
    assert (newest.batch, newest.errors.tolist()) == (found.batch, [10.0, 20.0])
    assert (begun.is_whole, begun.errors.tolist()) == (False, [10.0])
