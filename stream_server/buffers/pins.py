"""Which slots a draw still reads, so that they are not filled anew beneath it."""

from collections.abc import Sequence

import numpy as np

from stream_server.buffers.policy import SlotArray


class Pins:
    """Keeps retired slots back until the draws that hold them are released. For one thread at a time.

    Draws are numbered by tickets. A slot counts as held while the oldest draw that is out is not younger than the last
    draw of the slot: exact when draws are released in their order, a little late otherwise, and one array operation
    per draw instead of one count per slot.
    """

    def __init__(self, num_slots: int) -> None:
        self._last_ticket = np.full(num_slots, -1, np.int64)
        self._next_ticket = 0
        self._out: list[int] = []
        self._retired: list[int] = []

    @property
    def num_retired(self) -> int:
        """Slots that left the population and wait for the release of a draw."""
        return len(self._retired)

    def pin(self, slots: SlotArray) -> int:
        """Hold the slots of a draw; gives its ticket."""
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        self._last_ticket[slots] = ticket
        self._out.append(ticket)
        return ticket

    def release(self, ticket: int) -> list[int]:
        """Let go of a draw; gives the retired slots that are free by this."""
        assert ticket in self._out, "a draw was released twice"
        self._out.remove(ticket)
        if not self._retired:
            return []
        retired, self._retired = self._retired, []
        return self.retire(retired)

    def retire(self, slots: Sequence[int] | SlotArray) -> list[int]:
        """Say that the slots left the population; gives those that are free at once and keeps the others back."""
        slots = np.asarray(slots, np.intp)
        if not self._out:
            return list(slots.tolist())
        held = self._last_ticket[slots] >= self._out[0]
        self._retired.extend(slots[held].tolist())
        return list(slots[~held].tolist())
