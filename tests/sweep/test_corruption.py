"""A sample of `python -m tests.sweep corruption`; more of it is in `make sweep`."""

import pytest

from stream_server.server.checkpoint.generations import Generations
from tests.sweep.campaign import Tally, run, scratch
from tests.sweep.corruption.campaign import CorruptionSweep
from tests.sweep.corruption.stores import checkpoints

NUM_CASES = 300


def swept(seed: int, num: int, only: str = "") -> Tally:
    tally = Tally()
    with scratch() as folder, CorruptionSweep().planned(folder, seed=seed, num=num, only=only) as cases:
        run(cases, tally)
    return tally


def test_whatever_becomes_of_a_file_a_restart_does_not_believe_it(request: pytest.FixtureRequest) -> None:
    tally = swept(int(request.config.option.hypothesis_seed), NUM_CASES)
    assert tally.violations == []
    assert tally.num_cases > 0.8 * NUM_CASES
    assert set(tally.outcomes) > {"refused in words", "set aside, the one before used"}


def test_the_generation_that_is_damaged_could_be_continued() -> None:
    with scratch() as folder:
        checkpoints.make(folder / "checkpoints", 0)
        assert checkpoints.loads(folder / "checkpoints")


def test_a_restart_that_does_not_look_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generations, "verify", lambda *_: {})
    assert swept(0, NUM_CASES, only="checkpoints/000002/rank-0/samples.rows").violations
