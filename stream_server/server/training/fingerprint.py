"""Fingerprints of the weights: one number per array, compared between the ranks at every checkpoint and at the end.

The fingerprint of an array is taken of its bits, as integers, so equal NaNs are equal, and no rounding is involved: the
sum of 32-bit words times pseudo-random odd multipliers, modulo 2⁶⁴, a multiply-add hash in the manner of Carter and
Wegman (1979). Two arrays that differ in whatever way have the same one with a probability of about 2⁻³². A sum of
integers does not depend on its order, so that a device may add as it likes.

Why: docs/decisions/0037-fingerprints.md
"""

import hashlib
import json
import math
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import RanksDiverged, UserCodeError
from stream_server.server.ranks.communicator import Ranks
from stream_server.storage.plain_state import as_array
from stream_server.storage.tensor_file import flattened
from stream_server.user_code import call_user

# By name; None for an array that is still to be made, such as those of a lazy module.
Fingerprints = Mapping[str, int | None]

# Small enough for the cache of a core, large enough for a GPU.
CHUNK = 1 << 18
# A list of attributes may hold itself.
MOST_NESTED = 8
# A longer list is not gone through at each checkpoint.
MOST_NUMBERS = 1000
# By package, so that none need be imported. A user's network may be called Generator.
GENERATORS = {"numpy": ("Generator", "RandomState"), "torch": ("Generator",), "random": ("Random",)}
FACTOR = 0x9E3779B97F4A7C15 - 2**64

_INTEGERS = {1: np.int8, 2: np.int16, 4: np.int32}


@cache
def multipliers() -> NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64(0)).integers(-(2**63), 2**63, CHUNK, np.int64) | 1


def fingerprint(array: NDArray[np.generic]) -> int:
    """The fingerprint of an array of numbers."""
    if array.dtype.kind in "fc" and array.dtype.itemsize > (8 if array.dtype.kind == "f" else 16):
        # Part of each long double is padding, which may be anything.
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.complex128)
    bits = np.ascontiguousarray(array).reshape(-1)
    bits = bits.view(_INTEGERS[min(bits.itemsize, 4)])
    total = np.array([array.size], np.int64)
    for start in range(0, bits.size, CHUNK):
        chunk = bits[start : start + CHUNK].astype(np.int64)
        total *= FACTOR
        total += np.dot(chunk, multipliers()[: chunk.size])
    return int(total[0])


def of_replicated_state(server: Any) -> Fingerprints:
    """The fingerprints of the arrays of a server's `replicated_state`, by path.

    Raises:
        UserCodeError: it raised, or has something in it that is no array of numbers.
    """
    name = f"{type(server).__name__}.replicated_state"
    arrays, others = flattened(call_user(name, server.replicated_state))
    others += [path for path, array in arrays.items() if array.dtype.hasobject or array.dtype.names]
    if others:
        raise UserCodeError(f"{name} must give arrays of numbers, but {', '.join(others)} is something else")
    return {path: fingerprint(array) for path, array in arrays.items()}


def of_user_state(server: Any) -> Fingerprints:
    """The fingerprints of the floating-point arrays in a server's own `state_dict`, by path.

    Whole numbers may be counts of a rank, or the state of its random numbers, and others times.

    Raises:
        UserCodeError: it raised.
    """
    with server.union_mean.alone():
        return of_arrays(call_user(f"{type(server).__name__}.state_dict", server.state_dict))


def of_arrays(state: Any, kinds: str = "fc") -> Fingerprints:
    """The fingerprints of the arrays in memory, of any library, in dicts, lists and tuples, by path.

    Those of other `kinds` of types than floating-point ones, and of a type that NumPy does not have, are left out.
    """
    fingerprints = {}
    for path, value in _leaves(state, "", MOST_NESTED):
        with suppress(TypeError, ValueError, RuntimeError):
            if hasattr(value, "__dlpack__") and not isinstance(value, np.memmap):
                array = as_array(value)
                if array.dtype.kind in kinds:
                    fingerprints[path] = fingerprint(array)
    return fingerprints


def of_numbers(state: Any) -> Fingerprints:
    """The fingerprints of numbers, small arrays of whole numbers and random generators in memory, by path.

    They are alone or in dicts, lists, tuples and deques. The numbers of a list, which may grow, have one in common; of
    a long one it is that of its length. True and False are none.
    """
    generators: dict[str, int] = {}
    arrays: dict[str, Any] = {}
    by_owner: dict[str, list[Any]] = {}
    for path, value in _leaves(state, "", MOST_NESTED, MOST_NUMBERS):
        # What is the user's may raise anything when it is asked what it is.
        with suppress(Exception):
            if _is_number(value):
                owner, _, place = path.rpartition(".")
                by_owner.setdefault(owner if owner and place.isdigit() else path, []).append(value)
            elif isinstance(value, list | deque):
                if not value or _is_number(value[0]):
                    by_owner[path] = [len(value)] if value else []
            elif hasattr(value, "__dlpack__") and math.prod(value.shape) <= CHUNK:
                arrays[path] = value
            elif _is_generator(value):
                generators[path] = fingerprint(_state_of(value))
    numbers = {}
    for path, values in by_owner.items():
        with suppress(OverflowError):
            numbers[path] = fingerprint(np.array(values, np.complex128))
    return {**numbers, **of_arrays(arrays, kinds="iu"), **generators}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex | np.number) and not isinstance(value, bool)


def _is_generator(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ in GENERATORS.get(kind.__module__.partition(".")[0], ())


def _state_of(generator: Any) -> NDArray[np.generic]:
    # A pickle of torch's has more than its state, and is another one each time.
    if type(generator).__module__.startswith("torch"):
        return as_array(generator.get_state())
    return np.frombuffer(pickle.dumps(generator), np.uint8)


def _leaves(value: Any, path: str, depth: int, most: float = math.inf) -> Iterator[tuple[str, Any]]:
    """The items of containers of at most `most` items, by path; larger ones are given themselves."""
    if depth and isinstance(value, dict | list | tuple | deque) and 0 < len(value) <= most:
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield from _leaves(item, f"{path}.{key}" if path else str(key), depth - 1, most)
    else:
        yield path, value


def require_equal(ranks: Ranks, fingerprints: Callable[[], Fingerprints]) -> None:
    """Return if all ranks have the same `fingerprints`, which are asked for if there are several ranks. Collective.

    Raises:
        RanksDiverged: they differ, the same error on all ranks; it names the first array that does, and the ranks.
    """
    problem = difference(_if_unequal(ranks, fingerprints))
    if problem:
        raise RanksDiverged(problem)


def differing(ranks: Ranks, fingerprints: Callable[[], Fingerprints], *, missing: str | None = "missing") -> list[str]:
    """Names whose `fingerprints` differ between ranks, the same on all ranks. Collective.

    With `missing` None it is no difference that a rank lacks one.
    """
    return list(_values_that_differ(_if_unequal(ranks, fingerprints), missing))


def _if_unequal(ranks: Ranks, fingerprints: Callable[[], Fingerprints]) -> Sequence[Fingerprints]:
    """The fingerprints of each rank; none if they are equal, by one digest."""
    if ranks.size == 1:
        return []
    mine = dict(fingerprints())
    digest = hashlib.blake2b(json.dumps(mine, sort_keys=True).encode(), digest_size=16).hexdigest()
    if len(set(ranks.broadcast(ranks.gather(digest)))) == 1:
        return []
    by_rank: Sequence[Fingerprints] = ranks.broadcast(ranks.gather(mine))
    return by_rank


def _values_that_differ(by_rank: Sequence[Fingerprints], missing: str | None = "missing") -> dict[str, list[Any]]:
    """The value on each rank, by name, where ranks that have made the array differ."""
    names = dict.fromkeys(name for of_rank in by_rank for name in of_rank)
    values = {name: [of_rank.get(name, missing) for of_rank in by_rank] for name in names}
    return {name: prints for name, prints in values.items() if len({*prints} - {None}) > 1}


def difference(by_rank: Sequence[Fingerprints]) -> str:
    """A message that names the first difference and its ranks; "" if all are equal, but for arrays still to be made."""
    different = _values_that_differ(by_rank)
    if not different:
        return ""
    first = next(iter(different))
    groups: dict[Any, list[int]] = {}
    for rank, value in enumerate(different[first]):
        if value is not None:
            groups.setdefault(value, []).append(rank)
    # Most ranks are right, as far as one can tell.
    majority, *others = sorted(groups.values(), key=len, reverse=True)
    odd = sorted(rank for group in others for rank in group)
    return (
        f"the ranks have diverged: {first} is not the same on {_ranks(odd)} as on {_ranks(majority)}; in all, "
        f"{len(different)} of {len(set().union(*by_rank))} arrays differ. Nothing of it is saved: the last checkpoint "
        "is from before. Whatever changes the model must do so on all ranks alike; look for code that runs on some "
        "of them only"
    )


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
