"""A folder that every user of the machine can reach, and another user."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.stranger import Stranger


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on the way to which no other folder is closed, as in a project's space of a cluster."""
    folder = Path(tempfile.mkdtemp(prefix="sst-shared-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def stranger() -> Stranger:
    """Another user; without the means to be one the test fails, and says what is missing."""
    if os.geteuid() != 0:
        pytest.fail(
            "a second user is needed: run the tests as root, or as root of a user namespace, "
            "`unshare --user --map-root-user --map-auto python -m pytest tests/security`",
            pytrace=False,
        )
    return Stranger()
