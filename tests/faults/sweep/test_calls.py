"""A sample of `python -m tests.campaigns calls`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaigns import Tally
from tests.faults.sweep.calls.campaign import FailingCalls
from tests.faults.sweep.calls.faults import Kind
from tests.faults.sweep.calls.programs import PROGRAMS
from tests.faults.sweep.calls.run import Stage
from tests.faults.sweep.calls.sweep import Bench
from tests.faults.sweep.campaign import scratch

pytestmark = pytest.mark.slow

NUM_CASES = 15


@pytest.fixture
def bench() -> Iterator[Bench]:
    with scratch() as folder, Stage() as stage:
        yield Bench(stage, folder)


def test_whatever_system_call_fails_a_restart_finds_what_was_reported(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = int(request.config.option.hypothesis_seed)
    tally = Tally.of(FailingCalls(folder=tmp_path, seed=seed, cases=NUM_CASES).run())
    assert tally.violations == []
    assert tally.cases["all"] == NUM_CASES


def test_every_program_changes_its_folder_by_many_calls(bench: Bench) -> None:
    num_calls = {name: len({(it.fault.call, it.fault.number) for it in bench.cases(name)}) for name in PROGRAMS}
    assert sum(num_calls.values()) > 250
    assert min(num_calls.values()) > 5


def test_a_program_that_writes_in_place_is_found_out(bench: Bench) -> None:
    kills = [case for case in bench.cases("careless") if case.fault.kind is Kind.KILL]
    outcomes = [bench.run(case) for case in kills]
    assert all(outcome.was_struck for outcome in outcomes)
    assert any(outcome.violations for outcome in outcomes)
