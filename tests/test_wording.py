"""The wording of numbers in messages."""

import pytest

from stream_server.wording import counted


@pytest.mark.parametrize(
    ("num", "noun", "text"),
    [
        (0, "rank", "0 ranks"),
        (1, "time step", "1 time step"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (16384, "sample", "16,384 samples"),
    ],
)
def test_a_number_and_its_noun_agree(num: int, noun: str, text: str) -> None:
    assert counted(num, noun) == text
