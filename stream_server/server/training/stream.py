"""The batches of one rank: drawn, formed and released.

Why: docs/decisions/0028-batches-ahead.md
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.pins import Draw
from stream_server.errors import Closed
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.phases import Phases
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.simulations.design import ParameterTable
from stream_server.server.training.buffer_times import BufferTimes
from stream_server.server.training.forming import BatchForming, as_it_is
from stream_server.server.training.prefetch import Prefetch
from stream_server.server.user.stream_server import StreamServer

WAIT_S = 1.0


class BatchStream:
    """The batches of this rank, each of them a draw of `batch_size` by the buffer's policy. A context manager.

    Training thread only. Iterating gives a `Batch`, or None when there was none for a second, and ends when the buffer
    is closed and drained. `num_drawn` counts the samples that were drawn at least once, `num_dropped` those of them
    that were left out for good, for the closing account; `times` tells how the buffer kept up. The slots of a draw stay
    as they are until it is released: a checkpoint before that saves it as drawn, and a restored stream has such draws
    first.

    With `prefetch` that many further batches are drawn whenever one is taken, as far as there are samples, and formed
    on a thread of their own. They are drawn here, one after another, so that a checkpoint has them as they were
    drawn, whatever that thread does. A batch is formed with the statistics that there are when it is taken: where they
    have changed since it was begun, it is formed again. The `with` block is the life of that thread, which runs no user
    code while validations do. It also has `stage` begin to bring them to the device.
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
        stage: Callable[[Any], Any] = as_it_is,
    ) -> None:
        self.num_drawn = 0
        self.num_dropped = 0
        self.times = BufferTimes()
        self._buffer = buffer
        self._server = server
        self._parameters = ParameterTable(parameters_of)
        server.enter_stream(self._parameters.take)
        self._batch_size = batch_size
        self._phases = phases
        self._before_draw = before_draw
        self._earlier_s = 0.0
        self._num_ahead = prefetch
        self._forming = BatchForming(
            buffer,
            server,
            parameters=self._parameters,
            batch_size=batch_size,
            phases=Phases() if prefetch else phases,
            num_ahead=prefetch,
            stage=stage if prefetch else as_it_is,
        )
        self._prefetch: Prefetch[Any, Any] | None = Prefetch(self._forming.form) if prefetch else None
        self._version = server.normalization.version
        self._held: Sequence[Draw] = ()
        self._num_left_out = 0
        self._ahead: deque[Draw] = deque()

    def __enter__(self) -> Self:
        if self._prefetch is not None:
            self._prefetch.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._prefetch is not None:
            self._prefetch.__exit__()
        self._forming.close()

    def __iter__(self) -> Iterator[Batch | None]:
        while True:
            try:
                yield self.draw(WAIT_S)
            except Closed:
                return

    @property
    def prefetch_s(self) -> float:
        """The time that forming batches took on a thread of its own, in earlier incarnations too."""
        return self._earlier_s + (self._prefetch.seconds if self._prefetch is not None and self._num_ahead else 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_drawn": self.num_drawn,
            "num_dropped": self.num_dropped,
            "prefetch_s": self.prefetch_s,
            "times": dict(self.times.counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_drawn = state["num_drawn"]
        self.num_dropped = state["num_dropped"]
        self._earlier_s = state["prefetch_s"]
        self.times.counts |= state.get("times", {})

    @staticmethod
    def redealt(states: Sequence[Mapping[str, Any]], rank: int, dealing: object) -> dict[str, Any]:
        """All counts on rank 0; the ranks have yet to share what was drawn (`share_drawn`)."""
        num_drawn, num_dropped = (sum(state[name] for state in states) for name in ("num_drawn", "num_dropped"))
        prefetch_s = max(state["prefetch_s"] for state in states)
        return {
            "num_drawn": 0 if rank else num_drawn,
            "num_dropped": 0 if rank else num_dropped,
            "prefetch_s": prefetch_s,
            # All ranks take about as long.
            "times": states[rank % len(states)].get("times", {}),
        }

    def share_drawn(self, ranks: Ranks, num_own: int) -> None:
        """Share what other ranks had drawn: `num_own` samples of those that this rank has accepted. Collective.

        A rank accounts for what it has accepted, wherever that was drawn; rank 0 for what does not add up.
        """
        of_ranks = ranks.gather(num_own)
        self.num_drawn = num_own if of_ranks is None else self.num_drawn - sum(of_ranks[1:])

    def draw(self, timeout_s: float) -> Batch | None:
        """Take the next batch, waiting at most `timeout_s` for its samples. What was taken before is released.

        Raises:
            Closed: all that was received has been drawn.
            ProducerFailed: the receiver closed the buffer with an error, which is the cause.
            UserCodeError: a method of the user's raised.
        """
        if self._held:
            self.release()
        if self._prefetch is not None:
            return self._take(self._prefetch, timeout_s)
        draw = self._draw(timeout_s)
        if draw is None:
            return None
        self._held = (draw,)
        return self._formed(self._forming.form(draw))

    def form_again(self) -> Batch:
        """The batch that was drawn last and is not released, formed once more with the statistics there are now."""
        (draw,) = self._held
        if self._prefetch is None:
            return self._formed(self._forming.form(draw))
        self._ahead.appendleft(draw)
        self._form_all_again(self._prefetch)
        self._ahead.popleft()
        return self._formed(self._prefetch.take())

    def release(self) -> None:
        """The last batch was trained: its slots may go."""
        for draw in self._held:
            self._buffer.release(draw)
        if self._held:
            self.num_dropped += self._num_left_out
        self._held, self._num_left_out = (), 0

    def quiesce(self) -> None:
        """Wait until no user code runs on another thread; none does before the next batch is taken."""
        if self._prefetch is not None:
            with self._phases.measure("transform"):
                self._prefetch.quiesce()

    def _formed(self, batch: Batch) -> Batch:
        self._num_left_out = batch.num_first_dropped
        return batch

    def _draw(self, timeout_s: float) -> Draw | None:
        if (restored := self._buffer.take_restored()) is not None:
            return restored
        with self._phases.measure("wait_for_data"):
            self._before_draw()
            draw = self.times.draw(self._buffer, self._batch_size, timeout_s)
        if draw is not None:
            self.num_drawn += draw.num_first
            if draw.num_first and self._server.normalization.is_observing:
                self._observe(draw)
        return draw

    def _observe(self, draw: Draw) -> None:
        """Let the statistics see the time steps that were drawn for the first time, each once."""
        slots, normalization, rows = self._buffer.slots, self._server.normalization, self._buffer.observe(draw)
        with self._phases.measure("gather"):
            simulations, statics = slots.simulation_ids[rows], slots.statics
            fields = {
                name: statics.take_new(simulations.tolist(), name)
                if name in statics.shapes
                else slots.rows(name, rows[slots.present[name][rows]])
                for name in normalization.fields
            }
            normalization.observe(fields, self._parameters.take(simulations))
            statics.observe(simulations.tolist())

    def _take(self, prefetch: Prefetch[Draw, Batch], timeout_s: float) -> Batch | None:
        if self._version != self._server.normalization.version:
            self._form_all_again(prefetch)
        if not self._ahead and not self._draw_ahead(prefetch, timeout_s):
            return None
        self._held = (self._ahead.popleft(),)
        try:
            while len(self._ahead) < self._num_ahead and self._draw_ahead(prefetch, 0.0):
                pass
        except Closed:
            # It comes again when what was drawn is trained.
            pass
        with self._phases.measure("transform"):
            return self._formed(prefetch.take())

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
