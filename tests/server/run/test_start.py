"""The options of a start."""

import pytest

from stream_server.server.run.start import StartOptions


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("training.batch_size", "--set"),
        ("user.lr", "--set"),
        ("training.batch", "study.json"),
        ("training.batch_size_of", "study.json"),
        ("buffer.capacity", "study.json"),
    ],
)
def test_a_value_that_the_command_line_gives_is_not_from_study_json(path: str, source: str) -> None:
    start = StartOptions(overrides=["training.batch_size=3", 'user={"lr": 1}'])
    assert start.source_of(path) == source
    assert StartOptions().source_of(path) == "study.json"
