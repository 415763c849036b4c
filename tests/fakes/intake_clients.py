"""The client ranks of simulations in their simplest form: they send steps in an order, and remember every message."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stream_server.client_api.retention import Bits
from stream_server.messages.client import Block, Data, End, Open, Ping
from stream_server.messages.routing import Dealing
from tests.support.intake_ranks import STUDY, Key, ServerRank, StudyShape, u_of


@dataclass(kw_only=True)
class Line:
    """One client rank's connection to one server rank.

    `sent` has, for each message that completes steps, the number of messages up to it and those steps. `earlier` are
    the steps that the server had when the connection opened.
    """

    peer: bytes
    server: ServerRank
    is_open: bool = False
    known: Bits = field(default_factory=Bits)
    earlier: set[Key] = field(default_factory=set)
    num_messages: int = 0
    sent: list[tuple[int, tuple[Key, ...]]] = field(default_factory=list)
    is_refused: bool = False
    received: int = 0
    durable: int = 0
    ended: bool = False

    @property
    def num_under_way(self) -> int:
        return sum(len(steps) for end, steps in self.sent if end > self.received)

    def refuse(self, sequence: int | None) -> None:
        """The server will not have a message; whoever sends it gives up."""
        self.is_refused = True
        self.sent = [(end, () if end - 1 == sequence else steps) for end, steps in self.sent]

    def below(self, mark: int) -> set[Key]:
        """The steps of all messages below a mark."""
        return {step for end, steps in self.sent if end <= mark for step in steps}


class ClientRank:
    """One rank of an attempt; all ranks of it send the steps in the same `order`."""

    def __init__(
        self,
        shape: StudyShape,
        servers: Sequence[ServerRank],
        *,
        who: tuple[int, int, int],
        num_ranks: int,
        order: Sequence[int],
        incarnation: int,
    ) -> None:
        self.shape = shape
        self.simulation, self.attempt, self.rank = who
        self.num_ranks = num_ranks
        self.order = order
        self.incarnation = incarnation
        self.position = 0
        self.has_said_end = False
        self.lines = [
            Line(peer=f"{incarnation}.{'.'.join(map(str, who))}.{i}".encode(), server=server)
            for i, server in enumerate(servers)
        ]

    @property
    def is_open(self) -> bool:
        return all(line.is_open for line in self.lines)

    @property
    def is_refused(self) -> bool:
        return any(line.is_refused for line in self.lines)

    @property
    def has_sent_all(self) -> bool:
        return self.position == len(self.order)

    @property
    def blocks(self) -> tuple[Block, ...]:
        first, stop = 4 * self.rank // self.num_ranks, 4 * (self.rank + 1) // self.num_ranks
        mine = Block(field="u", dtype="<f8", shape=(4,), offset=(first,), count=(stop - first,))
        if len(self.shape.fields) == 1 or self.rank:
            return (mine,)
        return (mine, Block(field="v", dtype="<i4", shape=(), offset=(), count=()))

    def line(self, index: int) -> Line:
        """The one over which a step goes."""
        rank = Dealing(self.shape.routing, len(self.lines)).server_rank(self.simulation, index)
        return self.lines[rank]

    def open(self) -> None:
        """Say to all server ranks what comes; may be said again."""
        for line in self.lines:
            message = Open(
                study=STUDY,
                simulation=self.simulation,
                attempt=self.attempt,
                incarnation=self.incarnation,
                rank=self.rank,
                num_ranks=self.num_ranks,
                blocks=self.blocks,
            )
            line.server.hear(line.peer, message)

    def send(self, most: int, *, in_parts: bool = False) -> None:
        """Send the next steps, `most` at most: those that can share a message, and for which there is credit."""
        index = self.order[self.position]
        line = self.line(index)
        if index in line.known:
            self.position += 1
            return
        every = Dealing(self.shape.routing, len(self.lines)).stride
        indices = [index]
        room = self.shape.credit - line.num_under_way
        if room < 1:
            line.server.hear(line.peer, Ping())
            return
        for other in self.order[self.position + 1 : self.position + min(most, room)]:
            if other != indices[-1] + every or other in line.known or self._present(other) != self._present(index):
                break
            indices.append(other)
        self.position += len(indices)
        if in_parts and len(indices) == 1:
            self.send_parts(index)
        else:
            self.send_steps(indices)

    def send_again(self, index: int) -> None:
        """Send a step that was sent before, if there is credit."""
        if self.line(index).num_under_way < self.shape.credit:
            self.send_steps([index])

    def send_steps(self, indices: Sequence[int], **changes: int) -> None:
        """Send steps in one message."""
        line, present = self.line(indices[0]), self._present(indices[0])
        keys = [(self.simulation, index) for index in indices]
        rows = np.stack([self._mine(key) for key in keys])
        payload = [rows, np.array(indices, "<i4")][: present.bit_count()]
        self._say(line, keys, payload, **{"present": present, **changes})

    def send_parts(self, index: int) -> None:
        """Send one step in a message for each block."""
        line, present, key = self.line(index), self._present(index), (self.simulation, index)
        payload = [self._mine(key), np.array([index], "<i4")][: present.bit_count()]
        for number, part in enumerate(payload):
            last = number == len(payload) - 1
            self._say(line, [key] if last else [], [part], present=present, index=index, field=number, last=last)

    def end(self) -> None:
        """Say that all was sent."""
        for line in self.lines:
            share = sum(self.line(index) is line for index in self.order)
            line.server.hear(line.peer, self.the_end(share=share, total=len(self.order)))
        self.has_said_end = True

    def the_end(self, *, share: int, total: int) -> End:
        return End(
            simulation=self.simulation, attempt=self.attempt, incarnation=self.incarnation, share=share, total=total
        )

    def _say(self, line: Line, keys: Sequence[Key], payload: Sequence[np.ndarray], **values: object) -> None:
        content: dict[str, object] = {
            "simulation": self.simulation,
            "attempt": self.attempt,
            "incarnation": self.incarnation,
            "sequence": line.num_messages,
            "index": keys[0][1] if keys else 0,
            "num_steps": max(1, len(keys)),
        }
        data = Data(**{**content, **values})  # type: ignore[arg-type]
        line.num_messages += 1
        line.sent.append((line.num_messages, tuple(keys)))
        line.server.hear(line.peer, data, payload)

    def _present(self, index: int) -> int:
        return 0b11 if len(self.blocks) == 2 and index % 3 else 0b1

    def _mine(self, key: Key) -> np.ndarray:
        start, stop = 4 * self.rank // self.num_ranks, 4 * (self.rank + 1) // self.num_ranks
        return u_of(key)[start:stop].copy()
