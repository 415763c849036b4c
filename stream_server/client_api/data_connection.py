"""One client rank's connection to one server rank."""

import time
from collections import deque
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from stream_server.client_api.retention import Bits, Retention, Steps
from stream_server.client_api.segment import RetentionSegment
from stream_server.client_api.transport import Dealer
from stream_server.errors import Refused
from stream_server.failpoints import failpoint
from stream_server.messages import wire
from stream_server.messages.client import (
    ALL_FIELDS,
    MAX_PART_BYTES,
    Ack,
    Block,
    Data,
    End,
    Message,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    Stop,
)
from stream_server.messages.tcp import unreached_advice

MESSAGE_BYTES = 512 * 1024
PENDING_BYTES = 16 * 1024 * 1024
PENDING_S = 0.005
# Less is sent as fast through the socket.
SEGMENT_FROM_BYTES = 64 * 1024


class FlowControl:
    """Flow control by credit: of the steps that may be unacknowledged, `room` are left; `sequence` comes next."""

    def __init__(self, credit: int) -> None:
        self.sequence = 0
        self.room = credit
        self._on_the_way: deque[tuple[int, int]] = deque()

    def sent(self, *, num_steps: int, num_messages: int) -> None:
        """Steps have been sent that are complete with the last of these messages."""
        self.sequence += num_messages
        self.room -= num_steps
        self._on_the_way.append((self.sequence, num_steps))

    def received(self, mark: int) -> None:
        """The server has received all messages with a smaller sequence than `mark`."""
        while self._on_the_way and self._on_the_way[0][0] <= mark:
            self.room += self._on_the_way.popleft()[1]


class PendingSteps:
    """Neighbouring steps with the same fields, copied side by side: one array per block, one row per step.

    The memory is allocated once and stays warm. `num` steps are in it, the first with index `index`, the
    others `stride` apart.
    """

    def __init__(self, blocks: Sequence[Block], *, capacity: int, stride: int) -> None:
        self.num = 0
        self.index = 0
        self.present = 0
        self._capacity = capacity
        self._stride = stride
        self._rows = [np.empty((capacity, *block.count), block.dtype) for block in blocks]
        self._used: list[np.ndarray] = []

    @property
    def is_full(self) -> bool:
        return self.num == self._capacity

    def fits(self, index: int, present: int) -> bool:
        return self.num == 0 or (present == self.present and index == self.index + self.num * self._stride)

    def add(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy a step that `fits`; `arrays` are those of the blocks in `present`, in order."""
        if self.num == 0:
            self.index, self.present = index, present
            self._used = [rows for i, rows in enumerate(self._rows) if present >> i & 1]
        for rows, array in zip(self._used, arrays, strict=True):
            rows[self.num] = array
        self.num += 1

    def take(self) -> tuple[range, int, list[np.ndarray]]:
        """Indices, present blocks and payload of all steps, to be copied before the next `add`; none is left."""
        indices = range(self.index, self.index + self.num * self._stride, self._stride)
        payload = [rows[: self.num] for rows in self._used]
        self.num = 0
        return indices, self.present, payload


class DataConnection:
    """Sends this client rank's steps to one server rank; small ones travel several to a message.

    `statics` are the arrays of `static_blocks` of the opening. They go before the first step, so that a server rank
    that gets no step is spared them. They go at once from a client rank that sends no step, and to a server rank that
    knows steps of the simulation, for it to compare them with those that its samples have.

    Nothing here waits: a caller that wants to send checks whether there is `room`, and reads the answers if not. What
    was sent is in the `retention`. With `one_by_one` no two steps share a message. Large ones go through the `segment`,
    as long as that has room.

    Attributes:
        credit: how many steps may be on their way.
        known: the steps that the server had before the connection was opened.
        num_steps: how many different steps belong to this server rank so far; the sender counts them.
        has_durable: whether a checkpoint has anything sent over it, and with that all that was `known`.
        silent_s: for how long nothing came when it was last waited for something.
        stale: what a server that was started again has answered, or "".
    """

    def __init__(
        self,
        dealer: Dealer,
        opening: Open,
        statics: Sequence[np.ndarray],
        retention: Retention,
        *,
        server_rank: int,
        stride: int,
        num_server_ranks: int,
        one_by_one: bool = False,
        segment: RetentionSegment | None = None,
    ) -> None:
        self.dealer = dealer
        self.is_open = False
        self.has_stopped = False
        self.stop_reason = ""
        self.has_ended = False
        self.credit = 0
        self.known = Bits()
        self.num_steps = 0
        self.has_durable = False
        self.silent_s = 0.0
        self.stale = ""
        self._is_unknown = False
        self._opening = opening if segment is None else replace(opening, segment=segment.offer)
        self._segment = segment
        self._unsent_statics = statics
        self._server_rank = server_rank
        self._stride = stride
        self._one_by_one = one_by_one
        self._message_bytes = min(MESSAGE_BYTES, PENDING_BYTES // num_server_ranks)
        self._incarnation = opening.incarnation
        self._flow = FlowControl(0)
        self._retained = retention.of_connection()
        self._under_way: Sequence[memoryview] = ()
        self._pending: PendingSteps | None = None
        self._pending_since = self._last_send = -PENDING_S

    def __str__(self) -> str:
        return f"server rank {self._server_rank} at {self.dealer.address}"

    @property
    def is_lost(self) -> bool:
        """Whether the transport has reconnected since `Open`: messages that were under way may be lost."""
        return self._is_unknown or self.dealer.is_lost

    @property
    def circumstance(self) -> str:
        """A possible reason for the silence, as the end of a message; "" if none is known."""
        if self.stale:
            return f"; a new server is there ({self.stale})"
        return f".{unreached_advice()}" if not self.is_open and self.dealer.is_tcp else ""

    @property
    def has_room(self) -> bool:
        """Whether credit is left for one more step."""
        return self._flow.room > (0 if self._pending is None else self._pending.num)

    def ask_to_open(self) -> None:
        """Announce this rank's blocks; may be repeated until the answer is there."""
        self.dealer.send(self._opening)

    def ping(self) -> None:
        """Ask for a new acknowledgement."""
        self.dealer.send(Ping())

    def send(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> bool:
        """Send one step, now (True) or together with the next ones; the arrays are copied. Needs `has_room`."""
        pending = self._pending
        if pending is None:
            self._send(range(index, index + 1), present, [np.ascontiguousarray(array) for array in arrays])
            self.take_answers()
            return True
        if not pending.fits(index, present):
            self.flush()
        now = time.monotonic()
        if not pending.num:
            self._pending_since = now
        pending.add(index, present, arrays)
        # A sender that pauses between its steps is slower than the network: its steps go at once.
        is_slow = now - self._pending_since > PENDING_S or now - self._last_send > PENDING_S
        self._last_send = now
        if is_slow or pending.is_full or not self.has_room:
            self.flush()
            return True
        return False

    def flush(self) -> None:
        """Send the steps that wait to be packed together, and read what the server has sent."""
        pending = self._pending
        if pending is not None and pending.num:
            self._send(*pending.take())
        self.take_answers()

    def keep(self, index: int, steps: Steps) -> None:
        """Retain a step that the server knows, until it is durable."""
        payload = [[_bytes_of(np.ascontiguousarray(array))] for array in steps.arrays(index, self._opening.blocks)]
        # Nothing sent later is durable without it.
        self._retained.add(1, Steps(range(index, index + 1), steps.present, payload))

    def leave(self) -> None:
        """Send nothing more; all that was sent, or waited for company, is in the retention."""
        pending = self._pending
        if pending is not None and pending.num:
            indices, present, payload = pending.take()
            steps = Steps(indices, present, [[_bytes_of(array)] for array in payload])
            self._retained.add(self._flow.sequence + 1, steps)

    def end(self, total: int) -> None:
        """Say that all steps have been sent: `total` to all server ranks together."""
        opening = self._opening
        self.dealer.send(
            End(
                simulation=opening.simulation,
                attempt=opening.attempt,
                incarnation=self._incarnation,
                share=self.num_steps,
                total=total,
            )
        )

    def take_answers(self) -> bool:
        """Read what the server has said; whether it was anything for us.

        Raises:
            Refused: it refused a message.
        """
        heard = False
        while (answer := self.dealer.receive()) is not None:
            heard |= self._take(answer)
        if heard:
            self.silent_s = 0.0
        return heard

    def _take(self, answer: Message) -> bool:
        match answer:
            case Ack():
                self._flow.received(answer.received)
                self._retained.received = answer.received
                self._retained.durable(answer.durable)
                self.has_durable |= answer.durable > 0
                self.has_ended |= answer.ended
                self.has_stopped |= answer.stop
            case Opened() if not self.is_open:
                self._opened(answer)
            case Stop():
                self.has_stopped, self.stop_reason = True, answer.text
            case Refusal() if answer.reason is Reason.STALE_INCARNATION:
                self.stale = answer.text
                return False
            case Refusal() if answer.reason is Reason.NOT_OPEN:
                self._is_unknown = True
                return False
            case Refusal() if answer.reason is not Reason.BUSY:
                raise Refused(f"{self} refused simulation {self._opening.simulation}: {answer.text}")
        return True

    def _opened(self, opened: Opened) -> None:
        self.is_open = True
        self._incarnation = opened.incarnation
        self.credit = opened.credit
        self._flow = FlowControl(opened.credit)
        self.known = Bits(bytes.fromhex(opened.known))
        if not opened.segment:
            self._segment = None
        blocks = self._opening.blocks
        steps_per_message = min(self._message_bytes // max(1, sum(map(wire.block_bytes, blocks))), opened.credit // 2)
        if steps_per_message > 1 and not self._one_by_one:
            self._pending = PendingSteps(blocks, capacity=steps_per_message, stride=self._stride)
        if not blocks or opened.known:
            self._send_statics()

    def _send_statics(self) -> None:
        statics, self._unsent_statics = self._unsent_statics, ()
        if statics:
            pieces = self._send_parts(0, (1 << len(statics)) - 1, statics, static=True)
            self._flow.sent(num_steps=0, num_messages=sum(map(len, pieces)))

    def _send(self, indices: range, present: int, payload: Sequence[np.ndarray]) -> None:
        """Send steps in one message, or one of more than MAX_PART_BYTES in parts, unless it fits into the segment."""
        self._send_statics()
        num_bytes, stored = sum(array.nbytes for array in payload), None
        if self._segment is not None and num_bytes >= SEGMENT_FROM_BYTES:
            stored = self._segment.store(payload)
        num_messages = 1
        if stored is not None:
            start, copies = stored
            # If an exception comes before they are retained, they must not be overwritten all the same.
            self._under_way = copies
            place = wire.OFFSET.pack(start)
            self._send_data(indices.start, present, [place], num_steps=len(indices), in_segment=True)
            pieces = [[copy] for copy in copies]
        elif len(indices) > 1 or num_bytes <= MAX_PART_BYTES:
            pieces = [[copy] for copy in self._send_data(indices.start, present, payload, num_steps=len(indices))]
        else:
            pieces = self._send_parts(indices.start, present, payload)
            num_messages = sum(map(len, pieces))
        failpoint("client.after_send")
        self._flow.sent(num_steps=len(indices), num_messages=num_messages)
        self._retained.add(self._flow.sequence, Steps(indices, present, pieces))

    def _send_parts(
        self, index: int, present: int, payload: Sequence[np.ndarray], *, static: bool = False
    ) -> list[list[memoryview]]:
        numbers = [i for i in range(present.bit_length()) if present >> i & 1]
        arrays = [array.reshape(-1).view(np.uint8) for array in payload]
        parts = [(i, at) for i, array in enumerate(arrays) for at in range(0, array.nbytes, MAX_PART_BYTES)]
        pieces: list[list[memoryview]] = [[] for _ in arrays]
        for count, (i, at) in enumerate(parts):
            part = arrays[i][at : at + MAX_PART_BYTES]
            last = count == len(parts) - 1
            pieces[i] += self._send_data(
                index, present, [part], field=numbers[i], offset=at, last=last, static=static, sequence=count
            )
        return pieces

    def _send_data(
        self,
        index: int,
        present: int,
        payload: Sequence[wire.Frame | np.ndarray],
        *,
        num_steps: int = 1,
        field: int = ALL_FIELDS,
        offset: int = 0,
        last: bool = True,
        static: bool = False,
        in_segment: bool = False,
        sequence: int = 0,
    ) -> list[memoryview]:
        data = Data(
            simulation=self._opening.simulation,
            attempt=self._opening.attempt,
            incarnation=self._incarnation,
            sequence=self._flow.sequence + sequence,
            index=index,
            num_steps=num_steps,
            present=present,
            field=field,
            offset=offset,
            last=last,
            static=static,
            in_segment=in_segment,
            checksum=wire.checksum(payload) if self.dealer.needs_checksum else None,
        )
        return self.dealer.send(data, payload)


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
