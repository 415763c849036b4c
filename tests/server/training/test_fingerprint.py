"""Fingerprints of arrays, and their comparison over the ranks."""

import random
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stream_server.errors import RanksDiverged, UserCodeError
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.fingerprint import (
    CHUNK,
    Fingerprints,
    fingerprint,
    of_numbers,
    of_replicated_state,
    require_equal,
)
from stream_server.server.training.torch import fingerprint as torch_prints
from tests.fakes.thread_ranks import ThreadRanks, on_ranks

DTYPES = ["?", "i1", "u1", "i2", "i8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 7, CHUNK + 5])
def test_a_tensor_has_the_fingerprint_of_the_same_array(dtype: str, size: int) -> None:
    array = np.random.default_rng(1).integers(0, 100, size).astype(dtype)
    assert torch_prints.fingerprint(torch.from_numpy(array)).item() == fingerprint(array)


@given(st.data())
def test_any_change_of_bits_changes_the_fingerprint(data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES[1:])))
    words = data.draw(st.binary(min_size=dtype.itemsize, max_size=64 * dtype.itemsize))
    words = words[: len(words) // dtype.itemsize * dtype.itemsize]
    changes = data.draw(st.dictionaries(st.integers(0, len(words) - 1), st.integers(1, 255), min_size=1))
    other = bytes(byte ^ changes.get(place, 0) for place, byte in enumerate(words))
    assert fingerprint(np.frombuffer(words, dtype)) != fingerprint(np.frombuffer(other, dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_two_flipped_signs_or_swapped_elements_are_noticed(dtype: str) -> None:
    array = np.arange(1, 9).astype(dtype)
    flipped, swapped = array.copy(), array.copy()
    flipped[[2, 5]] *= -1
    swapped[[2, 5]] = swapped[[5, 2]]
    assert len({fingerprint(it) for it in (array, flipped, swapped)}) == 3


def test_equal_nans_are_equal_and_the_place_in_memory_does_not_count() -> None:
    array = np.array([[1.0, np.nan], [-0.0, np.inf]])
    assert fingerprint(np.asfortranarray(array)) == fingerprint(array)
    assert fingerprint(array) != fingerprint(np.abs(array))
    transposed = torch.from_numpy(array.T.copy()).T
    assert torch_prints.fingerprint(transposed).item() == fingerprint(array)
    single = array[:1, 1:]
    assert torch_prints.fingerprint(torch.from_numpy(array)[:1, 1:]).item() == fingerprint(single)
    assert torch_prints.fingerprint(torch.from_numpy(array)[::2, ::2][0]).item() == fingerprint(array[0, :1])


def test_padding_of_long_doubles_does_not_count() -> None:
    first, second = (np.frombuffer(bytes([fill]) * 32, np.longdouble).copy() for fill in (0, 255))
    first[:] = second[:] = [1.5, 2.5]
    assert fingerprint(first) == fingerprint(second)


class Net(nn.Module):
    """Tied weights, buffers in the state and beside it, a complex parameter and a lazy one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.inner[0].weight
        self.spectrum = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.late = nn.LazyLinear(4, bias=False)
        self.register_buffer("cache", torch.zeros(3), persistent=False)


def test_the_names_are_those_of_the_state_of_the_model_also_within_wrappers() -> None:
    names = {"tied.weight", "inner.1.weight", "inner.1.bias", "spectrum"}
    buffers = {"inner.1.running_mean", "inner.1.running_var", "inner.1.num_batches_tracked"}
    net = Net()
    found = torch_prints.of_model(net)
    assert set(found) == names | buffers | {"late.weight"}
    assert [name for name, value in found.items() if value is None] == ["late.weight"]
    wrapper = nn.Module()
    wrapper.wrapped = net
    wrapper.state_dict = net.state_dict  # type: ignore[method-assign]
    assert torch_prints.of_model(wrapper) == torch_prints.of_model(net)
    assert torch_prints.of_model(nn.Identity()) == {}


def compared(by_rank: Sequence[Fingerprints]) -> list[str]:
    """The error message on each rank, "" if all is well."""

    def compare(ranks: ThreadRanks) -> str:
        try:
            require_equal(ranks, lambda: by_rank[ranks.rank])
        except RanksDiverged as error:
            return str(error)
        return ""

    return on_ranks(len(by_rank), compare)


def test_equal_ranks_pass() -> None:
    assert compared([{"a": 1, "b": -(2**63)}] * 3) == ["", "", ""]


def test_the_first_array_that_differs_and_the_ranks_are_named_on_all_ranks() -> None:
    good, odd = {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "c": 6}
    first, *others = compared([odd, good, good, {**good, "b": 9}])
    said = "b is not the same on ranks 0, 3 as on ranks 1, 2; in all, 2 of 3 arrays differ"
    assert said in first
    assert others == [first] * 3


def test_an_array_that_a_rank_lacks_differs() -> None:
    first, second = compared([{"a": 1}, {"a": 1, "b": 2}])
    assert "b is not the same on rank 1 as on rank 0" in first == second


def test_what_is_still_to_be_made_on_some_rank_differs_only_from_nothing() -> None:
    assert compared([{"a": 1, "b": None}, {"b": 2, "a": 1}, {"a": 1, "b": 2}]) == ["", "", ""]
    assert "b is not the same on rank 2 as on rank 1" in compared([{"b": None}, {"b": 2}, {"b": 3}])[0]


def test_one_rank_alone_is_not_asked() -> None:
    require_equal(SoloRanks(), lambda: pytest.fail("asked"))


def server_of(state: Any) -> Any:
    return SimpleNamespace(replicated_state=lambda: state)


def test_the_state_that_a_server_calls_replicated_is_compared_by_path() -> None:
    found = of_replicated_state(server_of({"layers": [{"w": np.ones(2)}, {"w": torch.ones(2)}], "count": 3}))
    assert set(found) == {"layers.0.w", "layers.1.w", "count"}


@pytest.mark.parametrize("value", ["text", np.array([None]), np.zeros(2, [("x", "f4"), ("y", "i2")])])
def test_what_is_no_array_of_numbers_is_refused(value: Any) -> None:
    with pytest.raises(UserCodeError, match="must give arrays of numbers, but odd is something else"):
        of_replicated_state(server_of({"odd": value, "fine": np.ones(2)}))


class Generator(nn.Module):
    """A network, which cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = lambda x: x.relu()


class Unasked:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not now")


def test_numbers_are_found_beside_what_cannot_be_asked_and_of_a_long_list_its_length_counts() -> None:
    state: dict[str, Any] = {
        "count": 3,
        "losses": [0.5] * 2000,
        "names": ["a"] * 2000,
        "history": deque([(np.ones(2), 1.0)] * 2000),
        "network": Generator(),
        "lazy": list(nn.LazyLinear(2).parameters()),
        "other": Unasked(),
        "own": random.Random(1),
        "numpy": np.random.default_rng(1),
        "torch": torch.Generator(),
    }
    found = of_numbers(state)
    assert found.keys() == {"count", "losses", "own", "numpy", "torch"}
    assert of_numbers({**state, "losses": [0.25] * 2000}) == found
    assert of_numbers({**state, "losses": [0.5] * 2001})["losses"] != found["losses"]
