"""A folder that every user of the machine can reach, and another user."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import lacking, need
from tests.security.stranger import Stranger


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on the way to which no other folder is closed, as in a project's space of a cluster."""
    folder = Path(tempfile.mkdtemp(prefix="sst-shared-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    if lacking("a second user"):
        shutil.rmtree(folder)
    else:
        Stranger().remove(folder)


@pytest.fixture
def stranger() -> Stranger:
    """Another user."""
    need("a second user")
    return Stranger()
