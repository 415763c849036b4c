"""Which slots a draw still reads, so that they are not filled anew beneath it."""

from collections.abc import Sequence

import numpy as np

from stream_server.buffers.policy import SlotArray


class Pins:
    """Keeps retired slots back until the draws that hold them are released. For one thread at a time.

    A draw only leaves its slots here, without touching a count per slot; the price of looking is paid when a slot is
    retired while draws are out, which is rare.
    """

    def __init__(self) -> None:
        self._next_ticket = 0
        self._held: dict[int, SlotArray] = {}
        self._retired: list[int] = []

    @property
    def num_retired(self) -> int:
        """Slots that left the population and wait for the release of a draw."""
        return len(self._retired)

    def pin(self, slots: SlotArray, removed: SlotArray) -> int:
        """Hold the slots of a draw, of which it retired the `removed` at once; gives its ticket."""
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        self._held[ticket] = slots
        if len(removed):
            self._retired.extend(removed.tolist())
        return ticket

    def release(self, ticket: int) -> list[int]:
        """Let go of a draw; gives the retired slots that are free by this."""
        assert ticket in self._held, "a draw was released twice"
        del self._held[ticket]
        if not self._retired:
            return []
        retired, self._retired = self._retired, []
        return self.retire(retired)

    def retire(self, slots: Sequence[int] | SlotArray) -> list[int]:
        """Say that the slots left the population; gives those that are free at once and keeps the others back."""
        slots = np.asarray(slots, np.intp)
        if not self._held:
            return list(slots.tolist())
        held = np.isin(slots, np.concatenate(list(self._held.values())))
        self._retired.extend(slots[held].tolist())
        return list(slots[~held].tolist())
