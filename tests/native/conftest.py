"""The fixtures that the tests of the native clients share."""

from tests.native.building import installation

__all__ = ["installation"]
