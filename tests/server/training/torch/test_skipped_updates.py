"""Skipped updates: the number that ends a study, and the messages about them."""

import numpy as np
import pytest

from stream_server.errors import UserCodeError
from stream_server.server.training.torch.skipped_updates import MOST_PAIRS, SkippedUpdates

NOT_FINITE = "is not finite"


def keys_of(simulation: int, num_steps: int) -> np.ndarray:
    return np.array([[simulation] * num_steps, range(num_steps)], np.int64)


def test_only_updates_in_a_row_count() -> None:
    skipped = SkippedUpdates(most_in_row=1)
    for fault in (NOT_FINITE, "", NOT_FINITE, ""):
        skipped.judge(0, fault)
    skipped.judge(0, NOT_FINITE)
    with pytest.raises(UserCodeError, match="like those of the 1 updates before"):
        skipped.judge(0, NOT_FINITE)


def test_an_excused_update_neither_counts_nor_ends_the_row() -> None:
    skipped = SkippedUpdates(most_in_row=1)
    skipped.judge(0, NOT_FINITE)
    skipped.judge(1, NOT_FINITE, is_excused=True)
    assert skipped.num_in_row == 1


def test_even_a_study_that_stops_at_the_first_excuses_it() -> None:
    skipped = SkippedUpdates(most_in_row=0)
    skipped.judge(0, NOT_FINITE, is_excused=True)
    with pytest.raises(UserCodeError, match=r"the gradient of batch 1 is not finite, and training\.nonfinite is stop"):
        skipped.judge(1, NOT_FINITE)


def test_the_samples_are_those_of_the_last_update() -> None:
    skipped = SkippedUpdates(most_in_row=0)
    skipped.note_batch(keys_of(1, 2))
    skipped.judge(0)
    skipped.note_batch(keys_of(3, 2))
    with pytest.raises(UserCodeError, match=r"This rank's 2 samples of it, .*: \(3, 0\), \(3, 1\)$"):
        skipped.judge(1, NOT_FINITE)


def test_of_many_samples_the_first_are_named() -> None:
    skipped = SkippedUpdates(most_in_row=0)
    skipped.note_batch(keys_of(5, 100))
    with pytest.raises(UserCodeError, match=rf"100 samples of it, .*\(5, {MOST_PAIRS - 1}\), …$"):
        skipped.judge(0, NOT_FINITE)


def test_a_rank_without_a_batch_says_so() -> None:
    with pytest.raises(UserCodeError, match="This rank had no batch"):
        SkippedUpdates(most_in_row=0).judge(0, NOT_FINITE)
