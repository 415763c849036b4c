"""The fixtures that the tests of the native clients share."""

import pytest

from tests.native.building import installation
from tests.needs import need

__all__ = ["installation"]


@pytest.fixture(scope="session", autouse=True)
def compilers() -> None:
    need("compilers")
