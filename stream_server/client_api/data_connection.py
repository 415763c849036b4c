"""One client rank's connection to one server rank."""

import time
from collections.abc import Sequence

import numpy as np

from stream_server.client_api import wire
from stream_server.client_api.bits import Bits
from stream_server.client_api.messages import (
    ALL_FIELDS,
    MAX_PART_BYTES,
    Ack,
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
from stream_server.client_api.pending import PendingSteps
from stream_server.client_api.transport import Dealer
from stream_server.client_api.window import Window
from stream_server.errors import Refused

MESSAGE_BYTES = 512 * 1024
PENDING_BYTES = 16 * 1024 * 1024
PENDING_S = 0.005


class DataConnection:
    """Sends this client rank's steps to one server rank; small ones travel several to a message.

    Nothing here waits: whoever wants to send looks whether there is `room`, and reads the answers if not.
    """

    def __init__(self, dealer: Dealer, opening: Open, *, server_rank: int, stride: int, num_server_ranks: int) -> None:
        self.dealer = dealer
        self.is_open = False
        self.has_stopped = False
        self.has_ended = False
        self._opening = opening
        self._server_rank = server_rank
        self._stride = stride
        self._message_bytes = min(MESSAGE_BYTES, PENDING_BYTES // num_server_ranks)
        self._block_bytes = [wire.block_bytes(block) for block in opening.blocks]
        self._share = Bits()
        self._known = Bits()
        self._epoch = opening.epoch
        self._window = Window(0)
        self._pending: PendingSteps | None = None
        self._pending_since = self._last_send = -PENDING_S

    def __str__(self) -> str:
        return f"server rank {self._server_rank} at {self.dealer.address}"

    @property
    def has_room(self) -> bool:
        """Whether credit is left for one more step."""
        return self._window.room > (0 if self._pending is None else self._pending.num)

    @property
    def num_steps(self) -> int:
        """How many different steps belong to this server rank so far."""
        return len(self._share)

    def ask_to_open(self) -> None:
        """Announce this rank's blocks; may be repeated until the answer is there."""
        self.dealer.send(self._opening)

    def ping(self) -> None:
        """Ask for a new acknowledgement."""
        self.dealer.send(Ping())

    def enter(self, index: int) -> bool:
        """Note that this step belongs to this server rank; False if it has it already."""
        self._share.add(index)
        return index not in self._known

    def send(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        """Send one step, now or together with the next ones; the arrays are copied. Needs `has_room`."""
        if self._pending is None:
            self._send_alone(index, present, arrays)
            return
        if not self._pending.fits(index, present):
            self.flush()
        now = time.monotonic()
        if not self._pending.num:
            self._pending_since = now
        self._pending.add(index, present, arrays)
        # A sender that pauses between its steps is slower than the network: its steps go at once.
        is_slow = now - self._pending_since > PENDING_S or now - self._last_send > PENDING_S
        self._last_send = now
        if is_slow or self._pending.is_full or not self.has_room:
            self.flush()

    def flush(self) -> None:
        """Send what waits for company, and read what the server has said."""
        if self._pending is not None and self._pending.num:
            index, num_steps, present = self._pending.index, self._pending.num, self._pending.present
            self._send_data(index, present, self._pending.take(), num_steps=num_steps)
            self._window.sent(num_steps=num_steps, num_messages=1)
        self.take_answers()

    def end(self, total: int) -> None:
        """Say that all steps have been sent: `total` to all server ranks together."""
        opening = self._opening
        self.dealer.send(
            End(
                simulation=opening.simulation,
                attempt=opening.attempt,
                epoch=self._epoch,
                share=self.num_steps,
                total=total,
            )
        )

    def take_answers(self) -> bool:
        """Read what the server has said; whether it was anything.

        Raises:
            Refused: it refused a message.
        """
        heard = False
        while (answer := self.dealer.receive()) is not None:
            heard = True
            self._take(answer)
        return heard

    def _take(self, answer: Message) -> None:
        match answer:
            case Ack():
                self._window.received(answer.received)
                self.has_ended |= answer.ended
                self.has_stopped |= answer.stop
            case Opened() if not self.is_open:
                self._opened(answer)
            case Stop():
                self.has_stopped = True
            case Refusal() if answer.reason is not Reason.BUSY:
                raise Refused(f"{self} refused simulation {self._opening.simulation}: {answer.text}")

    def _opened(self, opened: Opened) -> None:
        self.is_open = True
        self._epoch = opened.epoch
        self._window = Window(opened.credit)
        self._known = Bits(opened.known)
        steps_per_message = min(self._message_bytes // max(1, sum(self._block_bytes)), opened.credit // 2)
        if steps_per_message > 1:
            self._pending = PendingSteps(self._opening.blocks, capacity=steps_per_message, stride=self._stride)

    def _send_alone(self, index: int, present: int, arrays: Sequence[np.ndarray]) -> None:
        numbers = [i for i in range(len(self._block_bytes)) if present >> i & 1]
        arrays = [np.ascontiguousarray(array) for array in arrays]
        if sum(array.nbytes for array in arrays) <= MAX_PART_BYTES:
            self._send_data(index, present, arrays)
            num_messages = 1
        else:
            num_messages = self._send_parts(index, present, dict(zip(numbers, arrays, strict=True)))
        self._window.sent(num_steps=1, num_messages=num_messages)
        self.take_answers()

    def _send_parts(self, index: int, present: int, arrays: dict[int, np.ndarray]) -> int:
        """Send a step of more than MAX_PART_BYTES in parts; how many they are."""
        sizes = {number: array.nbytes for number, array in arrays.items()}
        parts = [(number, at) for number, size in sizes.items() for at in range(0, size, MAX_PART_BYTES)]
        for count, (number, at) in enumerate(parts):
            part = arrays[number].reshape(-1).view(np.uint8)[at : at + MAX_PART_BYTES]
            last = count == len(parts) - 1
            self._send_data(index, present, [part], field=number, offset=at, last=last, sequence=count)
        return len(parts)

    def _send_data(
        self,
        index: int,
        present: int,
        payload: Sequence[np.ndarray],
        *,
        num_steps: int = 1,
        field: int = ALL_FIELDS,
        offset: int = 0,
        last: bool = True,
        sequence: int = 0,
    ) -> None:
        data = Data(
            simulation=self._opening.simulation,
            attempt=self._opening.attempt,
            epoch=self._epoch,
            sequence=self._window.sequence + sequence,
            index=index,
            num_steps=num_steps,
            present=present,
            field=field,
            offset=offset,
            last=last,
            checksum=wire.checksum(payload) if self.dealer.needs_checksum else None,
        )
        self.dealer.send(data, payload)
