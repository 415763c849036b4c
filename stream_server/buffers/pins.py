"""The slots that draws still read, and that must not be refilled meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_server.buffers.policy import SlotArray


# A frozen one would take three times as long to make.
@dataclass(slots=True, eq=False)
class Draw:
    """The slots of one batch, unchanged until the draw is released; `num_first` were never drawn before."""

    slots: SlotArray
    num_first: int
    ticket: int


class Pins:
    """Keeps retired slots back until the draws that hold them are released. For one thread at a time.

    A draw only leaves its slots here, without touching a count per slot; the price of looking is paid when slots are
    retired while draws are out, once for each change of these draws.
    """

    def __init__(self) -> None:
        self._next_ticket = 0
        self._held: dict[int, Draw] = {}
        self._held_slots: set[int] | None = None
        self._retired: list[int] = []

    def draws(self) -> list[Draw]:
        """The draws that were not released, in their order."""
        return list(self._held.values())

    def pin(self, slots: SlotArray, num_first: int, removed: SlotArray) -> Draw:
        """Hold the slots of a draw, of which it retired the `removed` at once."""
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        draw = self._held[ticket] = Draw(slots, num_first, ticket)
        self._held_slots = None
        if len(removed):
            self._retired.extend(removed.tolist())
        return draw

    def release(self, draw: Draw) -> list[int]:
        """Let go of a draw; returns the retired slots that are free by this."""
        assert draw.ticket in self._held, "a draw was released twice"
        del self._held[draw.ticket]
        self._held_slots = None
        if not self._retired:
            return []
        retired, self._retired = self._retired, []
        return self.retire(retired)

    def retire(self, slots: Sequence[int] | SlotArray) -> list[int]:
        """Say that the slots left the population; returns those that are free at once and keeps the others back."""
        numbers: list[int] = slots.tolist() if isinstance(slots, np.ndarray) else list(slots)
        if not self._held:
            return numbers
        if self._held_slots is None:
            self._held_slots = {slot for draw in self._held.values() for slot in draw.slots.tolist()}
        held = self._held_slots
        self._retired += [slot for slot in numbers if slot in held]
        return [slot for slot in numbers if slot not in held]
