"""cpprb's ReplayBuffer."""

from benchmarks.peers.adapters.receiving import fill_and_draw, send

produce = send


def batches(place, work):
    from cpprb import ReplayBuffer

    buffer = ReplayBuffer(work.num_total, {"field": {"shape": work.num_values, "dtype": "float32"}})
    draw = lambda: buffer.sample(work.batch_size)["field"]  # noqa: E731
    yield from fill_and_draw(place, work, lambda rows: buffer.add(field=rows), draw)
