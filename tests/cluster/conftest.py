"""One cluster for all tests of a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with two nodes. Tests that lose hosts or the controller, or start them, make one of their own."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def folder(cluster: Cluster) -> Path:
    """A folder of this test that all hosts see."""
    folder = cluster.shared / f"test {len(list(cluster.shared.iterdir()))}"
    folder.mkdir()
    return folder
