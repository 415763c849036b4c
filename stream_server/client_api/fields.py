"""The fields of a study as one client rank sends them: checks the user's arrays, and knows this rank's blocks."""

import operator
import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stream_server.client_api.device_arrays import DeviceArrays, readable
from stream_server.messages.client import DTYPES, Block, FieldSpec
from stream_server.wording import counted

UNDECLARED_DTYPE = "<f8"


def wire_dtype(dtype: Any) -> np.dtype:
    """The little-endian dtype that stands for `dtype` in messages.

    Raises:
        ValueError: it is not numeric, or not one of the types every client and server knows.
    """
    little: np.dtype = np.dtype(dtype).newbyteorder("<")
    if little.str not in DTYPES:
        allowed = "bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 and complex128"
        raise ValueError(f"dtype {np.dtype(dtype)} cannot be sent, only {allowed} can")
    return little


def integer(value: Any, what: str, instead: str = "") -> int:
    """`value`, which tells `what`, as an integer.

    Raises:
        TypeError: it is none, such as 2.0. Python takes True for 1: as time step a flag would become sample 1.
    """
    if not isinstance(value, bool | np.bool_):
        try:
            return operator.index(value)
        except TypeError:
            pass
    advice = f": {instead}" if instead else ""
    raise TypeError(f"{what} must be an integer, but is {reprlib.repr(value)} ({type(value).__name__}){advice}")


class Fields:
    """Turns the arguments of `send` into arrays in the order and of the types that were opened.

    The first sample settles the blocks: which part of which field this rank sends, and in which type. Of the fields
    that are sent once per simulation, each has its own when it is given, and all must be there by then.
    """

    def __init__(self, specs: Sequence[FieldSpec], *, rank: int, num_ranks: int) -> None:
        self.blocks: tuple[Block, ...] | None = None
        self._specs = {spec.name: spec for spec in specs}
        self._step_specs = [spec for spec in specs if not spec.is_static]
        self._static_specs = [spec for spec in specs if spec.is_static]
        self._statics: dict[str, tuple[Block, np.ndarray] | None] = {}
        self._rank = rank
        self._num_ranks = num_ranks
        self._declared: dict[str, tuple[int, ...] | None] = {}
        self._expected: list[tuple[int, FieldSpec, np.dtype, tuple[int, ...]]] = []
        self._warned: set[str] = set()
        self._devices = DeviceArrays()

    def declare(self, name: str, shape: Sequence[int], offset: Sequence[int] | None) -> None:
        """Say where this rank's block of a field begins.

        Raises:
            TypeError: a number of `shape` or `offset` is no integer.
            ValueError: the study has no such field, or one of another shape; or steps were sent already.
        """
        spec = self._spec(name)
        shape = tuple(integer(extent, f"the shape of field {name!r}") for extent in shape)
        if self.blocks is not None:
            raise ValueError(f"field {name!r} must be declared before the first send")
        if name in self._statics:
            raise ValueError(f"field {name!r} must be declared before it is given: pass it to send_static after that")
        if shape != spec.shape:
            raise ValueError(f"field {name!r} has the shape {spec.shape} in study.json, but is declared with {shape}")
        if offset is not None and spec.ragged:
            raise ValueError(
                f"field {name!r} differs in size: its rows come in the order of the ranks, without an offset"
            )
        if offset is not None and len(offset) != len(spec.shape):
            raise ValueError(
                f"the offset of field {name!r} needs {counted(len(spec.shape), 'number')}, but has {len(offset)}"
            )
        self._declared[name] = (
            None if offset is None else tuple(integer(start, f"the offset of field {name!r}") for start in offset)
        )

    def fix_blocks(self, sample: Mapping[str, Any]) -> tuple[Block, ...]:
        """Fix this rank's blocks by the first sample.

        Raises:
            TypeError: a value is not numeric, or cannot become what the study keeps.
            ValueError: a field is unknown or missing, or a block does not fit into its field.
        """
        for name in sample:
            self._step_spec(name)
        blocks = [self._block(spec, sample.get(spec.name)) for spec in self._step_specs]
        if not any(blocks) and self._num_ranks == 1:
            raise ValueError("a sample needs at least one field")
        self.blocks = tuple(block for block in blocks if block is not None)
        self._expected = [
            (1 << i, self._specs[block.field], np.dtype(block.dtype), block.count)
            for i, block in enumerate(self.blocks)
        ]
        return self.blocks

    def add_statics(self, values: Mapping[str, Any]) -> None:
        """Take fields that are sent once per simulation, as copies.

        Raises:
            TypeError: a value is not numeric, or cannot become what the study keeps.
            ValueError: a field is unknown, belongs to each time step or was given before, a block does not fit into its
                field, or steps were sent already.
        """
        for name, value in values.items():
            spec = self._spec(name)
            if not spec.is_static:
                raise ValueError(f"field {name!r} belongs to each time step: pass it to send")
            if name in self._statics:
                raise ValueError(f"field {name!r} was given before: it is sent once per simulation")
            if self.blocks is not None:
                raise ValueError(f"field {name!r} is sent once per simulation, and must be given before the first send")
            if value is None:
                raise ValueError(f"field {name!r} must be an array, but is None")
            block = self._block(spec, value)
            if block is None:
                self._statics[name] = None
                continue
            array = self._converted(spec, value, np.dtype(block.dtype), block.count)
            self._statics[name] = block, np.array(array, order="C")

    def fix_static_blocks(self) -> tuple[tuple[Block, ...], list[np.ndarray]]:
        """This rank's blocks of the fields that are sent once per simulation, and their arrays.

        Raises:
            ValueError: one was not given.
        """
        for spec in self._static_specs:
            # A rank of a parallel code may have no part of a field.
            if spec.name not in self._statics and (self._num_ranks == 1 or spec.name in self._declared):
                raise ValueError(
                    f"field {spec.name!r} is missing: it is sent once per simulation, and must be given before the "
                    "first send"
                )
        given = [each for each in (self._statics.get(spec.name) for spec in self._static_specs) if each is not None]
        return tuple(block for block, _ in given), [array for _, array in given]

    def arrays(self, sample: Mapping[str, Any]) -> tuple[int, list[np.ndarray]]:
        """The blocks that are present (as bits), and their arrays, in any memory layout.

        There are none on a rank of a parallel code that has no part of any field.

        Raises:
            TypeError, ValueError: as for `settle`.
        """
        present = 0
        arrays = []
        for bit, spec, dtype, count in self._expected:
            value = sample.get(spec.name)
            if value is None:
                if spec.optional:
                    continue
                raise ValueError(
                    f"field {spec.name!r} is missing; only a field that study.json calls optional may be left out"
                )
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != count:
                value = self._converted(spec, value, dtype, count)
            present |= bit
            arrays.append(value)
        if not arrays and self._expected:
            raise ValueError("a sample needs at least one field")
        if len(arrays) < len(sample):
            self._refuse_surplus(sample)
        return present, arrays

    def close(self) -> None:
        """Free what was allocated for arrays on a GPU: none of those that `arrays` gave may be used any more."""
        self._devices.close()

    def _spec(self, name: str) -> FieldSpec:
        if name not in self._specs:
            raise ValueError(no_such("field", name, self._specs))
        return self._specs[name]

    def _step_spec(self, name: str) -> FieldSpec:
        spec = self._spec(name)
        if spec.is_static:
            raise ValueError(
                f"field {name!r} is sent once per simulation: pass it to connect or send_static, and not to send"
            )
        return spec

    def _block(self, spec: FieldSpec, value: Any) -> Block | None:
        if value is None:
            return self._unseen_block(spec)
        array = self._array(spec.name, value)
        if self._is_empty(array) and not _has_rows(spec, array.shape):
            return None
        if spec.ragged:
            _check_rows(spec, array.shape)
            if spec.is_static and not len(array):
                return None
            # Each rank may send any number of the rows of a time step, but all its rows of a field sent once.
            return _block_of_rows(
                spec, self._sent_dtype(spec, array.dtype), array.shape if spec.is_static else spec.shape
            )
        offset = self._offset(spec, array.shape)
        dtype = self._sent_dtype(spec, array.dtype)
        return Block(field=spec.name, dtype=dtype.str, shape=spec.shape, offset=offset, count=array.shape)

    def _array(self, name: str, value: Any) -> np.ndarray:
        return _numeric(name, self._devices.on_host(name, value))

    def _is_empty(self, array: np.ndarray) -> bool:
        """Parallel codes may have ranks to which nothing of a field falls."""
        return self._num_ranks > 1 and array.size == 0

    def _unseen_block(self, spec: FieldSpec) -> Block | None:
        """The block of a field that the first sample leaves out, if it may come later or must come."""
        declared = spec.name in self._declared
        if self._num_ranks > 1 and not declared:
            return None
        if not spec.optional:
            raise ValueError(f"field {spec.name!r} is missing in the first sample")
        if self._declared.get(spec.name) is not None:
            raise ValueError(
                f"field {spec.name!r} is declared with an offset: its first array must come with the first send"
            )
        dtype = np.dtype(spec.dtype or UNDECLARED_DTYPE)
        if spec.ragged:
            return _block_of_rows(spec, dtype, spec.shape)
        offset, count = self._even_share(spec)
        if 0 in count:
            return None
        return Block(field=spec.name, dtype=dtype.str, shape=spec.shape, offset=offset, count=count)

    def _offset(self, spec: FieldSpec, count: tuple[int, ...]) -> tuple[int, ...]:
        if len(count) != len(spec.shape) or 0 in count or (self._num_ranks == 1 and count != spec.shape):
            raise ValueError(f"field {spec.name!r} must have the shape {spec.shape}, but has {count}")
        offset = self._declared.get(spec.name)
        if offset is not None:
            if any(start < 0 or start + num > size for start, num, size in zip(offset, count, spec.shape, strict=True)):
                raise ValueError(
                    f"the block {count} at {offset} of field {spec.name!r} reaches out of its shape {spec.shape}"
                )
            return offset
        if count == spec.shape:
            return (0,) * len(count)
        even_offset, even_count = self._even_share(spec)
        if count != even_count:
            raise ValueError(
                f"rank {self._rank} of {self._num_ranks} sends {count} of field {spec.name!r} {spec.shape}; without an "
                f"offset it would be {even_count}: pass offset= to declare_field"
            )
        return even_offset

    def _even_share(self, spec: FieldSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offset and count when the ranks cut the first axis as evenly as possible, in rank order."""
        if not spec.shape:
            return (), ()
        size, *others = spec.shape
        each, surplus = divmod(size, self._num_ranks)
        start = self._rank * each + min(self._rank, surplus)
        return (start, *(0 for _ in others)), (each + (self._rank < surplus), *others)

    def _sent_dtype(self, spec: FieldSpec, dtype: np.dtype) -> np.dtype:
        """The study's type if that is the smaller one, else the user's."""
        if not spec.dtype:
            return wire_dtype(dtype)
        kept = wire_dtype(spec.dtype)
        if not np.can_cast(dtype, kept, "same_kind"):
            raise TypeError(
                f"field {spec.name!r} is kept as {kept}, which {dtype} cannot become without loss of its kind"
            )
        return kept if kept.itemsize <= dtype.itemsize else wire_dtype(dtype)

    def _converted(self, spec: FieldSpec, value: Any, dtype: np.dtype, count: tuple[int, ...]) -> np.ndarray:
        name, array = spec.name, self._array(spec.name, value)
        if spec.ragged:
            _check_rows(spec, array.shape)
        elif array.shape != count:
            raise ValueError(f"field {name!r} must have the shape {count}, but has {array.shape}")
        rule = "same_kind" if spec.dtype else "safe"
        if not np.can_cast(array.dtype, dtype, rule):  # type: ignore[arg-type]
            raise TypeError(
                f"field {name!r} is sent as {dtype}, which {array.dtype} cannot become without loss: "
                "send one dtype throughout, or give the field a dtype in study.json"
            )
        underflows: list[str] = []
        try:
            # NumPy looks at the flags of the processor, which costs no pass over the data.
            with np.errstate(over="raise", under="call", call=lambda kind, _: underflows.append(kind)):
                converted = array.astype(dtype, copy=False)
        except FloatingPointError:
            _refuse_misfit(name, array, dtype)
            raise
        if underflows and not converted.any():
            self._tell_of_underflow(name, array, dtype)
        if dtype.kind in "iu" and not np.can_cast(array.dtype, dtype) and array.size:
            limits = np.iinfo(dtype)
            if array.min() < limits.min or array.max() > limits.max:
                _refuse_misfit(name, array, dtype)
        return converted

    def _tell_of_underflow(self, name: str, array: np.ndarray, dtype: np.dtype) -> None:
        """Say on stderr, once for each field, that nothing is left of it. It may grow later, and is no error."""
        if name in self._warned:
            return
        self._warned.add(name)
        print(
            f"stream-server: WARNING: field {name!r} is sent as {dtype}, in which all its values become 0 (the largest "
            f"is {np.abs(array).max():.6g}): give the field a wider dtype in study.json, or send it in another unit",
            file=sys.stderr,
        )

    def _refuse_surplus(self, sample: Mapping[str, Any]) -> None:
        opened = {spec.name for _, spec, *_ in self._expected}
        for name, value in sample.items():
            self._step_spec(name)
            if value is not None and name not in opened and not self._is_empty(self._array(name, value)):
                raise ValueError(f"rank {self._rank} left field {name!r} out of its first sample without declaring it")


def _has_rows(spec: FieldSpec, shape: tuple[int, ...]) -> bool:
    """Whether this is an array of rows of a ragged field, of none perhaps, which others may follow."""
    return spec.ragged and len(shape) == len(spec.shape) and shape[1:] == spec.shape[1:]


def _block_of_rows(spec: FieldSpec, dtype: np.dtype, count: tuple[int, ...]) -> Block:
    """A block of rows of a ragged field, behind the rows of the ranks before this one."""
    return Block(field=spec.name, dtype=dtype.str, shape=spec.shape, offset=(0,) * len(count), count=count)


def _check_rows(spec: FieldSpec, shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape than (n, …), where n is the largest extent at most."""
    most, *others = spec.shape
    if shape[1:] != tuple(others) or not shape:
        rows = ", ".join(["n", *map(str, others)]) + ("" if others else ",")
        raise ValueError(f"field {spec.name!r} must have a shape ({rows}), but has {shape}")
    if shape[0] > most:
        raise ValueError(
            f'field {spec.name!r} has {shape[0]} rows, but study.json allows {most}: raise its "max" there'
        )


def _refuse_misfit(name: str, array: np.ndarray, dtype: np.dtype) -> None:
    """Name the first element, in C order, that becomes infinite or another integer."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        wrong = (array < limits.min) | (array > limits.max)
    else:
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        parts = ((np.real(converted), np.real(array)), (np.imag(converted), np.imag(array)))
        wrong = np.logical_or(*(np.isinf(after) & ~np.isinf(before) for after, before in parts))
    index = tuple(map(int, np.argwhere(wrong)[0]))
    raise ValueError(
        f"field {name!r} is sent as {dtype}, into which {number_text(array[index])} at {index} does not fit: "
        "give the field a wider dtype in study.json, or send one dtype throughout"
    )


def number_text(number: Any) -> str:
    """The text of a number in an error, which is the same in all languages."""
    if np.iscomplexobj(number):
        return f"{number.real:.6g}{number.imag:+.6g}j"
    return f"{number:d}" if isinstance(number, np.integer) else f"{number:.6g}"


def _numeric(name: str, value: Any) -> np.ndarray:
    parts = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        raise ValueError(
            f"field {name!r} has masked values, which stand for no number: send array.filled(…) with the number that "
            "your model is to see there, and the mask as a field of its own if it needs that"
        )
    with readable(name):
        array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        hint = ": send bfloat16 as float32" if array.dtype.kind == "V" else ""
        raise TypeError(
            f"field {name!r} must be numeric, but is of {type(value).__name__} with dtype {array.dtype}{hint}"
        )
    try:
        wire_dtype(array.dtype)
    except ValueError as error:
        raise TypeError(f"field {name!r}: {error}") from error
    return array


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that a study has no field or parameter of this name, and which one may be meant."""
    import difflib

    near = difflib.get_close_matches(name, known := list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"the study has no {kind} {name!r}, only {', '.join(map(repr, known))}{hint}"
