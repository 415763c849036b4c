"""How long a training will be."""

from pathlib import Path
from typing import Any

import pytest

from stream_server.server.progress.length import TrainingLength
from tests.support.settings import length_of
from tests.support.studies import StudyFolder


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "heat")


@pytest.mark.parametrize(
    ("changes", "num_ranks", "batches"),
    [
        ({"buffer.policy": "fifo"}, 1, 1000),
        ({"buffer.policy": "fifo"}, 3, 334),
        ({"buffer.policy": "firo", "buffer.pseudo_epochs": 3}, 2, 1500),
        ({"training.draws_per_sample": 1.5}, 2, 750),
        ({"training.draws_per_sample": 1.5, "training.max_batches": 100}, 2, 100),
        ({}, 2, None),
    ],
)
def test_the_batches_of_a_rank(folder: StudyFolder, changes: dict[str, Any], num_ranks: int, batches: int) -> None:
    length = length_of(folder.load({"study.simulations": 100, "study.time_steps": 100, **changes}), num_ranks)
    assert (length.samples, length.batches) == (10_000, batches)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_samples_and_draws_are_the_same_on_any_number_of_ranks(folder: StudyFolder, num_ranks: int) -> None:
    changes = {"study.simulations": 100, "study.time_steps": 100, "training.draws_per_sample": 1.5}
    length = length_of(folder.load(changes), num_ranks)
    assert (length.samples, length.draws) == (10_000, 15_000)


def test_a_replay_is_as_long_as_the_rank_that_has_most_of_its_samples(folder: StudyFolder) -> None:
    config = folder.load({"study.time_steps": None, "training.draws_per_sample": 2.0, "training.batch_size": 10})
    length = length_of(config, 3, [700, 150, 50])
    assert (length.samples, length.draws, length.batches, length.updates) == (900, 1800, 140, 140)


def test_the_length_of_a_study_without_a_part_of_its_samples_and_with_more(folder: StudyFolder) -> None:
    length = TrainingLength(samples=100, draws=300, batches=9)
    assert length.less(10) == TrainingLength(samples=90, draws=270, batches=9)
    assert length.less(-10) == TrainingLength(samples=110, draws=330, batches=9)
    assert TrainingLength(samples=100).less(10) == TrainingLength(samples=90)
    assert TrainingLength().less(10) == TrainingLength()


@pytest.mark.parametrize(("accumulate", "max_batches", "updates"), [(1, None, 13), (2, None, 7), (1, 5, 5), (2, 5, 3)])
def test_the_updates_that_the_samples_fill_once(accumulate: int, max_batches: int | None, updates: int) -> None:
    per_update = 8 * accumulate
    length = TrainingLength(samples=100, max_batches=max_batches, accumulate=accumulate, samples_per_update=per_update)
    assert length.updates_of_new_samples == updates


def test_accumulated_batches_make_one_update(folder: StudyFolder) -> None:
    length = length_of(folder.load({"training.draws_per_sample": 1.0, "training.accumulate": 4}), 3)
    assert length.batches is not None
    assert length.updates == -(-length.batches // 4)
    assert length.samples_per_update == 3 * 10 * 4


def test_nothing_is_known_without_the_number_of_steps(folder: StudyFolder) -> None:
    length = length_of(folder.load({"study.time_steps": None, "buffer.policy": "fifo"}), 1)
    assert (length.samples, length.batches, length.updates) == (None, None, None)
