"""Files, threads and processes of a launcher do not grow with the length of a study."""

from pathlib import Path

import pytest

from tests.faults.resources import growth


@pytest.mark.parametrize("num", [25, pytest.param(400, marks=pytest.mark.full)])
def test_jobs_that_have_ended_leave_nothing_in_their_launcher(tmp_path: Path, num: int) -> None:
    first, last = growth.jobs(tmp_path, num)
    assert first == last


@pytest.mark.parametrize("num", [3, pytest.param(20, marks=pytest.mark.full)])
def test_servers_that_were_killed_leave_nothing_in_their_launcher(tmp_path: Path, num: int) -> None:
    first, last = growth.restarts(tmp_path, num)
    assert first == last
