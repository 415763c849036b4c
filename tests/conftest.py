"""Every test: a seed that is printed, a deadline (pyproject.toml), and a census of what it leaves behind."""

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import hypothesis.internal.conjecture.engine
import pytest

from tests.census import Census, leaks_since
from tests.needs import SBIN

hypothesis.settings.register_profile("project", deadline=None, print_blob=True, max_examples=30)
hypothesis.settings.register_profile("full", deadline=None, print_blob=True)
hypothesis.settings.load_profile("project")
# Hypothesis looks for a shorter example for 300 s by itself: by then the deadline of the test would end the process
# before it has told any example. No setting says so.
hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS = 30

# Whether a change passes is no matter of luck; `make test-all` and the campaigns look for what no one has seen yet.
SEED = "0"
TEMPORARY = pytest.StashKey[Path]()
TESTS = str(Path(__file__).parent)
# Not modules of studies. A package that was imported anew would lack the ones in it that are imported already.
_OTHERS = {"tests"}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED
    # The path stays short: sockets in the file system allow 107 bytes.
    private = Path(tempfile.mkdtemp(prefix="sst-", dir="/tmp"))
    config.stash[TEMPORARY] = private
    os.environ["TMPDIR"] = tempfile.tempdir = str(private)
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN))
    # NumPy's threads spin for 0.1 s whenever a process starts, and a study is many processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Of two jobs of Open MPI 4 that make this folder at the same moment one fails. It removes all but output files.
    session_folder = private / f"ompi.{socket.gethostname()}.{os.getuid()}"
    session_folder.mkdir(mode=0o700)
    (session_folder / "output-kept").touch()


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[TEMPORARY], ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.fixture(autouse=True)
def torch_has_one_thread() -> None:
    """Threads of torch wait for each other busily: where others run on the same cores, a small step takes seconds."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def modules_of_studies_are_forgotten() -> Iterator[None]:
    """The next test may run a study whose files have the same names."""
    yield
    for name in sys.modules.keys() - _OTHERS:
        file = getattr(sys.modules[name], "__file__", None)
        if "." not in name and file is not None and file.startswith((TESTS, tempfile.gettempdir())):
            del sys.modules[name]
        else:
            _OTHERS.add(name)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a thread, process, socket, open file, temporary folder or file of the project behind."""
    temporary = request.config.stash[TEMPORARY]
    before = Census.take(temporary)
    yield
    leaks = leaks_since(before, lambda: Census.take(temporary))
    if leaks:
        pytest.fail("left behind:\n  " + "\n  ".join(leaks), pytrace=False)
