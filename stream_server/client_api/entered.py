"""Which time steps one client rank has had for the study."""

from array import array
from collections.abc import Iterator

from stream_server.client_api.bits import Bits


class Entered:
    """A set of step indices that remembers in which order they came first."""

    def __init__(self) -> None:
        self._bits = Bits()
        self._order = array("q")

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __contains__(self, index: int) -> bool:
        return index in self._bits

    def add(self, index: int) -> bool:
        """Whether it is new."""
        is_new = self._bits.add(index)
        if is_new:
            self._order.append(index)
        return is_new
