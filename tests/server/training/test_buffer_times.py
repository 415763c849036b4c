"""The times of a buffer, in runs whose clock is wound by hand."""

from typing import Any

import numpy as np
import pytest

from stream_server.buffers.buffer import Buffer
from stream_server.buffers.fifo import Fifo
from stream_server.buffers.pins import Draw
from stream_server.buffers.slots import Slots
from stream_server.errors import Closed
from stream_server.server.progress.phases import Phases
from stream_server.server.training.buffer_times import BufferTimes
from stream_server.server.training.stream import BatchStream
from stream_server.server.user.stream_server import StreamServer
from tests.support.scripted_buffer import BATCH, ScriptedRun
from tests.support.timing import Clock


def test_a_buffer_that_overflows_and_runs_empty_in_turn_is_timed() -> None:
    """Every 12 s: 100 samples for 50 places, so that the last has room with the fifth batch, after 2 s.

    The next come 10 s later, of which 7 s pass after the last batch.
    """
    run = ScriptedRun(capacity=50, burst=100, compute_s=10.0, num_bursts=20)
    counts = run.train().counts
    assert counts["open_s"] == pytest.approx(19 * 12.0, rel=0.02)
    assert counts["full_s"] == pytest.approx(20 * 2.0)
    assert counts["waited_s"] == pytest.approx(19 * 7.0, rel=0.02)
    assert counts["num_turns"] == 19
    assert counts["num_first"] == pytest.approx(19 * 100, rel=0.06)


def test_neither_the_first_wait_counts_nor_what_is_drawn_when_nothing_comes_any_more() -> None:
    run = ScriptedRun(capacity=200, burst=100, compute_s=30.0, num_bursts=1)
    counts = run.train().counts
    assert counts["waited_s"] == 0
    assert counts["open_s"] == 0


def test_a_wait_in_several_pieces_is_one() -> None:
    clock = Clock()
    slots = Slots({"u": ()}, 30)
    slots.allocate({"u": np.float64})

    class Slow(Buffer):
        def draw(self, num: int, timeout_s: float) -> Draw | None:
            draw = super().draw(num, 0.0)
            clock.now += 0.0 if draw else timeout_s
            return draw

    buffer, times = Slow(Fifo(capacity=10), slots), BufferTimes(clock)
    buffer.enqueue(buffer.claim(25))
    buffer.admit()
    for _ in range(2):
        assert times.draw(buffer, 10, 1.0)
        buffer.admit()
        clock.now += 2.0
    for _ in range(3):
        assert times.draw(buffer, 10, 1.0) is None
    assert times.counts == {"open_s": 7.0, "waited_s": 3.0, "full_s": 2.0, "num_first": 10, "num_turns": 1}


def test_the_time_between_two_rounds_is_no_wait() -> None:
    clock = Clock()
    slots = Slots({"u": ()}, 30)
    slots.allocate({"u": np.float64})
    buffer, times = Buffer(Fifo(capacity=10), slots), BufferTimes(clock)
    for _ in range(2):
        buffer.enqueue(buffer.claim(10))
        buffer.admit()
        assert times.draw(buffer, 5, 1.0)
        clock.now += 1.0
        assert times.draw(buffer, 5, 1.0)
        buffer.close(reopens=True)
        with pytest.raises(Closed):
            times.draw(buffer, 5, 1.0)
        clock.now += 100.0
        buffer.reopen()
    assert times.counts["open_s"] == 2.0


def stream() -> BatchStream:
    buffer, parameters_of = Buffer(Fifo(capacity=8), Slots({"u": ()}, 8)), lambda _: np.zeros(1)
    return BatchStream(buffer, StreamServer(), parameters_of=parameters_of, batch_size=BATCH, phases=Phases())


def test_the_times_go_on_after_a_restart_also_on_other_ranks_and_of_an_older_checkpoint() -> None:
    saved = []
    for seconds in (3.0, 4.0):
        before = stream()
        before.times.counts["open_s"] = seconds
        saved.append(before.state_dict())
    after = stream()
    after.load_state_dict(saved[1])
    assert after.times.counts == {**BufferTimes().counts, "open_s": 4.0}
    dealt = [BatchStream.redealt(saved, rank, None)["times"]["open_s"] for rank in range(3)]
    assert dealt == [3.0, 4.0, 3.0]
    old: Any = {name: value for name, value in saved[0].items() if name != "times"}
    after = stream()
    after.load_state_dict(BatchStream.redealt([old], 0, None))
    after.load_state_dict(old)
    assert after.times.counts == BufferTimes().counts


def test_the_end_of_the_stream_is_told_as_by_the_buffer() -> None:
    run = ScriptedRun(capacity=50, burst=10, compute_s=1.0, num_bursts=1)
    run.train()
    with pytest.raises(Closed):
        run.times.draw(run.buffer, BATCH, 1.0)
