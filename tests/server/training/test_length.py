"""How long a training will be."""

from pathlib import Path
from typing import Any

import pytest

from stream_server.server.training.length import Length
from tests.config.studies import StudyFolder


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "heat")


@pytest.mark.parametrize(
    ("changes", "num_ranks", "batches"),
    [
        ({"buffer.policy": "fifo", "buffer.watermark": 1}, 1, 1000),
        ({"buffer.policy": "fifo", "buffer.watermark": 1}, 3, 334),
        ({"buffer.policy": "firo", "buffer.pseudo_epochs": 3}, 2, 1500),
        ({"training.draws_per_sample": 1.5}, 2, 750),
        ({"training.draws_per_sample": 1.5, "training.max_batches": 100}, 2, 100),
        ({}, 2, None),
    ],
)
def test_the_batches_of_a_rank(folder: StudyFolder, changes: dict[str, Any], num_ranks: int, batches: int) -> None:
    length = Length.of(folder.load({"study.simulations": 100, "study.time_steps": 100, **changes}), num_ranks)
    assert (length.samples, length.batches) == (10_000, batches)


def test_accumulated_batches_make_one_update(folder: StudyFolder) -> None:
    length = Length.of(folder.load({"training.draws_per_sample": 1.0, "training.accumulate": 4}), 3)
    assert length.batches is not None
    assert length.updates == -(-length.batches // 4)
    assert length.samples_per_update == 3 * 10 * 4


def test_nothing_is_known_without_the_number_of_steps(folder: StudyFolder) -> None:
    length = Length.of(folder.load({"study.time_steps": None, "buffer.policy": "fifo", "buffer.watermark": 1}), 1)
    assert (length.samples, length.batches, length.updates) == (None, None, None)
