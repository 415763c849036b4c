"""The batches of one rank: drawn, formed and released."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.pins import Draw
from stream_server.errors import Closed
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.simulations.design import ParameterTable
from stream_server.server.training.forming import BatchForming
from stream_server.server.training.prefetch import Prefetch
from stream_server.server.user.callbacks import Callback
from stream_server.server.user.stream_server import StreamServer

WAIT_S = 1.0


class BatchStream(Callback):
    """The batches of this rank, in the order in which the buffer's policy draws them.

    Iterating gives a `Batch`, or None when there was none for a second, and ends when the buffer is closed and
    drained. The slots of a batch stay as they are until it is released, or the next one taken: a checkpoint in between
    saves it as drawn, and a restored stream forms such batches first. `num_drawn` counts the samples that were drawn at
    least once, for the closing account. Training thread only.

    With `prefetch` that many further batches are drawn whenever one is taken, as far as there are samples, and formed
    on a thread of their own. They are drawn here, one after another, so that a checkpoint has them as they were
    drawn, whatever that thread does. A batch is formed with the statistics that there are when it is taken: where they
    have changed since it was begun, it is formed again. The `with` block is the life of that thread, which runs no user
    code while validations do.
    """

    def __init__(
        self,
        buffer: Buffer,
        server: StreamServer,
        *,
        parameters_of: Callable[[int], NDArray[np.float64]],
        batch_size: int,
        phases: Phases,
        before_draw: Callable[[], None] = lambda: None,
        prefetch: int = 0,
    ) -> None:
        self.num_drawn = 0
        self._buffer = buffer
        self._server = server
        self._parameters = ParameterTable(parameters_of)
        server.enter_stream(self._parameters.take)
        self._batch_size = batch_size
        self._phases = phases
        self._before_draw = before_draw
        self._num_ahead = prefetch
        self._forming = BatchForming(
            buffer,
            server,
            parameters_of=parameters_of,
            batch_size=batch_size,
            phases=Phases() if prefetch else phases,
            num_ahead=prefetch,
        )
        self._prefetch = Prefetch(self._forming.form) if prefetch else None
        self._version = server.normalization.version
        self._earlier_s = 0.0
        self._held: Draw | None = None
        self._ahead: deque[Draw] = deque()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._prefetch is not None:
            self._stack.enter_context(self._prefetch)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[Batch | None]:
        while True:
            try:
                yield self.draw(WAIT_S)
            except Closed:
                return

    @property
    def prefetch_s(self) -> float:
        """The time that forming batches took on a thread of its own, in earlier incarnations too."""
        return self._earlier_s + (0.0 if self._prefetch is None else self._prefetch.seconds)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the counts of a rank that was saved."""
        self.num_drawn = state["num_drawn"]
        # A checkpoint of an earlier release has none.
        self._earlier_s = state.get("prefetch_s", 0.0)

    def draw(self, timeout_s: float) -> Batch | None:
        """Take the next batch, waiting at most `timeout_s` for its samples.

        Raises:
            Closed: all that was received has been drawn.
            ProducerFailed: the receiver closed the buffer with an error, which is the cause.
            UserCodeError: the user's `process_simulation_data` or `process_batch` raised.
        """
        self.release()
        if self._prefetch is None:
            self._held = self._draw(timeout_s)
            return None if self._held is None else self._forming.form(self._held)
        return self._take(self._prefetch, timeout_s)

    def form_again(self) -> Batch:
        """The batch that was drawn last and is not released, formed once more with the statistics there are now."""
        assert self._held is not None
        if self._prefetch is None:
            return self._forming.form(self._held)
        self._ahead.appendleft(self._held)
        self._form_all_again(self._prefetch)
        self._ahead.popleft()
        return self._prefetch.take()

    def release(self) -> None:
        """The last batch was trained: its slots may go."""
        if self._held is not None:
            self._buffer.release(self._held)
            self._held = None

    def settle(self) -> None:
        """Wait until no user code runs on another thread; none does before the next batch is taken."""
        if self._prefetch is not None:
            with self._phases.measure("transform"):
                self._prefetch.settle()

    def on_validation_start(self, server: Any) -> None:
        self.settle()

    def on_train_end(self, server: Any) -> None:
        self.settle()

    def _take(self, prefetch: Prefetch[Draw, Batch], timeout_s: float) -> Batch | None:
        if self._version != self._server.normalization.version:
            self._form_all_again(prefetch)
        if not self._ahead and not self._draw_ahead(prefetch, timeout_s):
            return None
        self._held = self._ahead.popleft()
        try:
            while len(self._ahead) < self._num_ahead and self._draw_ahead(prefetch, 0.0):
                pass
        except Closed:
            # It comes again when what was drawn is trained.
            pass
        with self._phases.measure("transform"):
            return prefetch.take()

    def _draw_ahead(self, prefetch: Prefetch[Draw, Batch], timeout_s: float) -> bool:
        draw = self._draw(timeout_s)
        if draw is None:
            return False
        self._ahead.append(draw)
        prefetch.begin(draw)
        return True

    def _form_all_again(self, prefetch: Prefetch[Draw, Batch]) -> None:
        with self._phases.measure("transform"):
            prefetch.drop()
        self._version = self._server.normalization.version
        for draw in self._ahead:
            prefetch.begin(draw)

    def _draw(self, timeout_s: float) -> Draw | None:
        return self._buffer.take_restored() or self._draw_new(timeout_s)

    def _draw_new(self, timeout_s: float) -> Draw | None:
        with self._phases.measure("wait_for_data"):
            self._before_draw()
            draw = self._buffer.draw(self._batch_size, timeout_s)
        if draw is not None:
            self.num_drawn += draw.num_first
            if draw.num_first and self._server.normalization.is_observing:
                self._observe(draw)
        return draw

    def _observe(self, draw: Draw) -> None:
        """Let the statistics see the time steps that were drawn for the first time, each once."""
        slots, normalization, rows = self._buffer.slots, self._server.normalization, self._buffer.observe(draw)
        with self._phases.measure("gather"):
            fields = {name: slots.arrays[name][rows[slots.present[name][rows]]] for name in normalization.fields}
            normalization.observe(fields, self._parameters.take(slots.simulation_ids[rows]))
