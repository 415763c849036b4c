"""Collect the tests that need network namespaces only where these are allowed."""

from pathlib import Path

import pytest

from tests.network.node import allowed

NEEDS_A_NODE = "test_partitions.py"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.name != NEEDS_A_NODE or not (why_not := allowed()):
        return None
    config.issue_config_time_warning(pytest.PytestCollectionWarning(f"{NEEDS_A_NODE} is left out: {why_not}"), 2)
    return True
