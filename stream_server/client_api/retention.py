"""Retention of the steps that one client rank sent until they are durable. Pure: no sockets, no clock.

Why: docs/decisions/0103-steps-in-shared-memory.md
"""

import itertools
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from stream_server.messages.client import Block

# Measured: the objects around the bytes of a message.
ENTRY_BYTES = 1500


class Bits:
    """A growing set of small integers: one bit per number, little-endian bit order."""

    def __init__(self, content: bytes = b"") -> None:
        self._content = bytearray(content)

    def __contains__(self, number: int) -> bool:
        byte = number >> 3
        return byte < len(self._content) and bool(self._content[byte] >> (number & 7) & 1)

    def add(self, number: int) -> bool:
        """Set a bit; False if it was set before."""
        byte, bit = number >> 3, 1 << (number & 7)
        content = self._content
        if byte >= len(content):
            content.extend(bytes(byte + 1 - len(content)))
        elif content[byte] & bit:
            return False
        content[byte] |= bit
        return True


class OrderedSteps:
    """A set of step indices that remembers in which order they came first."""

    def __init__(self) -> None:
        self._bits = Bits()
        self._order = array("q")

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, index: int) -> bool:
        """Add an index; returns whether it is new."""
        is_new = self._bits.add(index)
        if is_new:
            self._order.append(index)
        return is_new


class Steps(NamedTuple):
    """Neighbouring steps with the same blocks, as they were sent.

    For each block in `present`, `payload` has its bytes of all steps, in one piece or in several.
    """

    indices: range
    present: int
    payload: Sequence[Sequence[memoryview]]

    @property
    def bytes_per_step(self) -> int:
        """The memory that one step takes up."""
        return (ENTRY_BYTES + sum(len(piece) for pieces in self.payload for piece in pieces)) // len(self.indices)

    def arrays(self, index: int, blocks: Sequence[Block]) -> list[np.ndarray]:
        """One step's array of each block in `present`; `blocks` are all that there are."""
        present = (block for i, block in enumerate(blocks) if self.present >> i & 1)
        row = self.indices.index(index)
        num = len(self.indices)
        return [_rows(pieces, block, num)[row] for pieces, block in zip(self.payload, present, strict=True)]


class Sent(NamedTuple):
    """Steps that were sent: the server has them when its mark reaches `end`. What has a lower `age` was sent before."""

    age: int
    end: int
    num_bytes: int
    steps: Steps


class RetainedSteps:
    """The steps that were sent over one connection and are not durable yet, oldest first.

    `received` is the mark up to which the server has it.
    """

    def __init__(self, retention: "Retention") -> None:
        self.received = 0
        self.sent: deque[Sent] = deque()
        self._retention = retention

    @property
    def may_go(self) -> bool:
        """Whether the server has the oldest of it."""
        return bool(self.sent) and self.sent[0].end <= self.received

    def add(self, end: int, steps: Steps) -> None:
        """Retain steps that have been sent, and are complete with the messages below `end`."""
        self.sent.append(self._retention.sent(end, steps))
        self._retention.make_room()

    def drop(self) -> None:
        """The oldest is kept no longer."""
        self._retention.num_bytes -= self.sent.popleft().num_bytes

    def durable(self, mark: int) -> None:
        """All messages with a smaller sequence than `mark` are in a checkpoint: they are kept no longer."""
        while self.sent and self.sent[0].end <= mark:
            for index in self.sent[0].steps.indices:
                self._retention.durable.add(index)
            self.drop()


class Retention:
    """Keeps steps until they are durable, if they fit into `max_bytes`; else the oldest ones go first.

    Steps that the server has not received are never dropped (credit bounds them), unless `unsent_may_go`: then no
    server may ever come back. `unsent` are the steps that no connection has, in the order in which they are to be sent,
    `durable` those that were kept until a checkpoint had them.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.num_bytes = 0
        self.unsent: OrderedDict[int, Steps] = OrderedDict()
        self.unsent_may_go = False
        self.durable = Bits()
        self._max_bytes = max_bytes
        self._of_connections: list[RetainedSteps] = []
        self._ages = itertools.count()

    def of_connection(self) -> RetainedSteps:
        """The retained steps of a new connection."""
        retained = RetainedSteps(self)
        self._of_connections.append(retained)
        return retained

    def sent(self, end: int, steps: Steps) -> Sent:
        """The entry of steps that were just sent, to be retained."""
        num_bytes = len(steps.indices) * steps.bytes_per_step
        self.num_bytes += num_bytes
        return Sent(next(self._ages), end, num_bytes, steps)

    def set_aside(self, order: Iterable[int]) -> None:
        """The connections are gone: all that they have is unsent again. `order` has at least those indices."""
        kept = dict(self.unsent)
        for retained in self._of_connections:
            for sent in retained.sent:
                for index in sent.steps.indices:
                    # Of what was sent twice the first counts.
                    kept.setdefault(index, sent.steps)
        self._of_connections.clear()
        self.unsent = OrderedDict((index, kept[index]) for index in order if index in kept)
        self.num_bytes = sum(steps.bytes_per_step for steps in self.unsent.values())

    def keep(self, index: int, steps: Steps) -> None:
        """Retain another unsent step, the last in the order."""
        self.unsent[index] = steps
        self.num_bytes += steps.bytes_per_step
        self.make_room()

    def forget(self, index: int) -> None:
        """An unsent step is kept no longer, if it was."""
        steps = self.unsent.pop(index, None)
        if steps is not None:
            self.num_bytes -= steps.bytes_per_step

    def forget_all(self) -> None:
        """No unsent step is of any use any more."""
        for index in list(self.unsent):
            self.forget(index)

    def close(self) -> None:
        """Nothing will be sent again: give back the memory."""
        self.num_bytes = 0
        self._of_connections.clear()
        self.unsent.clear()

    def make_room(self) -> None:
        """Let the oldest ones go until all fits, or none may go."""
        while self.num_bytes > self._max_bytes:
            received = [retained for retained in self._of_connections if retained.may_go]
            if received:
                min(received, key=lambda entry: entry.sent[0].age).drop()
            elif self.unsent_may_go and self.unsent:
                self.forget(next(iter(self.unsent)))
            else:
                return


def _rows(pieces: Sequence[memoryview], block: Block, num: int) -> np.ndarray:
    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    # Of a ragged field a step has as many rows as there are bytes.
    shape = (num, -1, *block.count[1:]) if block.count else (num,)
    return np.frombuffer(content, block.dtype).reshape(shape)
