"""TorchRL's ReplayBuffer."""

from benchmarks.peers.adapters.receiving import fill_and_draw, send

produce = send


def batches(place, work):
    import torch
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyTensorStorage(work.num_total), batch_size=work.batch_size)
    yield from fill_and_draw(place, work, lambda rows: buffer.extend(torch.from_numpy(rows)), buffer.sample)
