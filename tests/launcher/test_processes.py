import os

from stream_server.launcher.processes import Leader, Process, members


def process(pid: int, session: int = 1, started: int = 100, mark: str = "") -> Process:
    return Process(pid=pid, session=session, started=started, mark=mark)


def test_the_processes_of_a_job_are_its_session_and_those_with_its_mark() -> None:
    found = [process(10, session=10), process(11, session=10), process(12, session=12, mark="a"), process(13, mark="b")]
    assert members(found, Leader(pid=10, started=100), "a") == {10, 11, 12}


def test_a_session_that_got_the_number_of_an_older_one_is_not_taken_for_it() -> None:
    found = [process(11, session=10, started=99)]
    assert members(found, Leader(pid=10, started=100), "a") == set()


def test_a_leader_is_known_by_its_start_time_too() -> None:
    own = Leader.of(os.getpid())
    assert own is not None
    assert own.alive
    assert not Leader(pid=own.pid, started=own.started + 1).alive
