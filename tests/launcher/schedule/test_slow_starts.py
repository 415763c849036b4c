"""Clocks of a launcher that is slow itself; whole turns of it are in tests/faults/simulated/seeds.txt."""

from stream_server.launcher.schedule.retry_policy import ScheduleLimits
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.launcher.schedule.simulation import Cancel


def test_the_clock_of_an_attempt_starts_when_its_job_does() -> None:
    schedule = SimulationSchedule(ScheduleLimits(timeout_s=20.0))
    schedule.replan({0: -1}, 0.0)
    schedule.begun(0, 40.0)
    assert schedule.tick(59.0) == []
    assert schedule.tick(60.0) == [Cancel(simulation=0, attempt=0)]
