"""Opens Matplotlib's fonts once: it keeps them open, which no test has to answer for."""

from pathlib import Path

import pytest

from stream_server.analysis.plot import FORMATS, plot
from stream_server.analysis.reading import RunFolder
from tests.analysis.logged_run import log_run


@pytest.fixture(autouse=True, scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("fonts")
    plot(RunFolder(log_run(folder)), folder / "plots", FORMATS)
