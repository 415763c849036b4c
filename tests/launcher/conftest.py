import pytest

from stream_server.launcher.jobs import LocalJobs


@pytest.fixture(scope="session", autouse=True)
def reaper_of_psij() -> None:
    """PSI/J keeps one thread for the life of the process, from the first executor on: it belongs to no test."""
    with LocalJobs():
        pass
