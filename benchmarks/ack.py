"""The cost of losing nothing: intake and client with all that a restart needs, against both without it.

With it a checkpoint is taken in each round, which is about a second long, the client is told what is in one, and keeps
up to 64 MiB of what is in none. Without it there is no checkpoint, and the client keeps nothing that was received. Both
are as in `benchmarks.intake`: a real client in another process, a FIFO that stays about half full, packing left to the
client. `cost` is samples per second of CPU time of the receiver thread, `client` steps per second of CPU time of the
client's own thread.

    python -m benchmarks.ack
"""

from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.intake import DRAW, RING_BYTES
from benchmarks.measure import Result, alternated, result, show
from benchmarks.reception import DEADLINE_S, reception
from benchmarks.saving import Saving
from benchmarks.sender import MAX_QUEUED_BYTES, sender
from stream_server.buffers import Fifo

SIZES = {"4kB": 4_000, "40kB": 40_000}
WINDOW_BYTES = 64 * 2**20
PIECE_BYTES = 128 * 2**20
# About a second of each.
NUM_PIECES = {"4kB": 8, "40kB": 24}
BETWEEN_LOOKS = 64
NUM_PAIRS = 9


def results() -> Iterator[Result]:
    """ack.{cost,client}.{4kB,40kB}."""
    for size, sample_bytes in SIZES.items():
        with ExitStack() as stack:
            safe = Intake(stack, sample_bytes, NUM_PIECES[size], is_safe=True)
            plain = Intake(stack, sample_bytes, NUM_PIECES[size], is_safe=False)
            yield alternated(f"ack.cost.{size}", "samples/s", safe.one_round, plain.one_round, NUM_PAIRS)
            clients = list(zip(safe.client_rates[1:], plain.client_rates[1:], strict=True))
            yield result(f"ack.client.{size}", "steps/s", clients)


class Intake:
    """A receiver with its client; a round brings `num_pieces` times as many samples, or more until all is saved."""

    def __init__(self, stack: ExitStack, sample_bytes: int, num_pieces: int, *, is_safe: bool) -> None:
        self.client_rates: list[float] = []
        self._num_pieces = num_pieces
        self._num = PIECE_BYTES // sample_bytes // DRAW * DRAW
        num_rows = RING_BYTES // sample_bytes
        credit = max(4, MAX_QUEUED_BYTES // sample_bytes)
        self._study = study = stack.enter_context(
            reception(
                Fifo(capacity=2 * num_rows),
                sample_bytes=sample_bytes,
                credit=credit,
                spare=max(credit, num_rows // 5),
                window_bytes=WINDOW_BYTES if is_safe else 0,
            )
        )
        self._saving = Saving(stack, study) if is_safe else None
        self._send = stack.enter_context(sender("client", study.write_connection(), sample_bytes))
        self._send(num_rows)
        # A client keeps what would not fill a message.
        study.wait_until(lambda: study.buffer.population >= num_rows - credit // 2)
        self._send.cpu_s()
        # Every page is in use before the first round, as in a buffer that has been full once.
        study.buffer.slots.arrays["field"].fill(1)

    def one_round(self) -> float:
        """Samples per second of the receiver's CPU time."""
        before_s = self._study.cpu_s
        if self._saving is not None:
            self._saving.want()
        num_pieces, client_s = 0, 0.0
        while num_pieces < self._num_pieces or (self._saving is not None and self._saving.is_busy):
            self._send(self._num)
            self._draw()
            client_s += self._send.cpu_s()
            num_pieces += 1
        self.client_rates.append(num_pieces * self._num / client_s)
        return num_pieces * self._num / (self._study.cpu_s - before_s)

    def _draw(self) -> None:
        buffer = self._study.buffer
        for number in range(self._num // DRAW):
            draw = buffer.draw(DRAW, DEADLINE_S)
            assert draw is not None, "nothing came for a minute"
            buffer.release(draw)
            if self._saving is not None and number % BETWEEN_LOOKS == 0:
                self._saving.look()


if __name__ == "__main__":
    show(results())
