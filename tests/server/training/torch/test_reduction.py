"""The memory of buckets of gradients."""

import torch

from stream_server.server.training.torch.reduction import BucketMemory


def test_memory_of_a_bucket_is_used_again_once_nothing_refers_to_it() -> None:
    memory = BucketMemory()
    first = memory.take(1000, torch.float32)
    where = first.data_ptr()
    del first
    assert memory.take(1000, torch.float32).data_ptr() == where


def test_buckets_that_are_used_at_once_have_memory_of_their_own() -> None:
    memory = BucketMemory()
    both = [memory.take(1000, torch.float32) for _ in range(2)]
    addresses = [each.data_ptr() for each in both]
    assert addresses[0] != addresses[1]
    del both
    again = [memory.take(1000, torch.float32) for _ in range(2)]
    assert [each.data_ptr() for each in again] == addresses


def test_what_a_view_refers_to_is_not_written_over() -> None:
    memory = BucketMemory()
    kept = memory.take(1000, torch.float32).fill_(3.0).detach()[10:20]
    memory.take(1000, torch.float32).fill_(4.0)
    assert kept.tolist() == [3.0] * 10


def test_memory_of_another_size_is_let_go() -> None:
    memory = BucketMemory()
    memory.take(1000, torch.float32)
    other = memory.take(500, torch.complex128)
    assert (other.shape, other.dtype) == ((500,), torch.complex128)
    assert len(memory._arrays) == 1
    assert memory.take(0, torch.bfloat16).numel() == 0
