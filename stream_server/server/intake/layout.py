"""The part of each field that every client rank of a simulation sends. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stream_server.messages.client import Block, FieldSpec
from stream_server.wording import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The destination of one block's payload: `slices` of a slot of `field`.

    `direct`: the block is the whole field as it is kept, so that bytes can be received into the slot. `row_bytes` is 0,
    but of a ragged field the bytes of one row: as many rows come as the payload has, and `count` and `num_bytes` are
    the most. `shared`: other client ranks may send rows of it too, so that the place of these is known when all are
    there.
    """

    field: str
    wire: np.dtype
    count: tuple[int, ...]
    num_bytes: int
    slices: tuple[slice, ...]
    direct: bool
    row_bytes: int = 0
    shared: bool = False

    def fits(self, num_bytes: int) -> bool:
        """Whether a step of this block may have so many bytes."""
        if self.row_bytes:
            return num_bytes <= self.num_bytes and num_bytes % self.row_bytes == 0
        return num_bytes == self.num_bytes


def place_of(block: Block, kept: np.dtype, *, ragged: bool = False, num_ranks: int = 1) -> Place:
    """The place of a block in the slots of its field, whose kept type is `kept`; of a client of `num_ranks` ranks."""
    wire = np.dtype(block.dtype)
    if wire.kind == "b":
        # Any byte may come, but NumPy's own bool knows only 0 and 1.
        wire = np.dtype(np.uint8)
    return Place(
        field=block.field,
        wire=wire,
        count=block.count,
        num_bytes=math.prod(block.count) * wire.itemsize,
        slices=tuple(slice(start, start + size) for start, size in zip(block.offset, block.count, strict=True)),
        direct=block.count == block.shape and wire == kept,
        row_bytes=math.prod(block.count[1:]) * wire.itemsize if ragged else 0,
        shared=ragged and num_ranks > 1,
    )


@dataclass(kw_only=True, slots=True)
class BlockLayout:
    """The blocks of the client ranks of one attempt, checked as they come.

    `senders` has a bit for each client rank that sends anything, `owners[field]` for each one with a part of it. Of a
    ragged field each of these sends rows of its own, which come one after the other in the order of the ranks. Those of
    one that is sent once are as many as the blocks say, and `num_rows[field]` in all if samples have it already.
    `taken[field]` has the client rank, the begin and the end of each block, [block, 3, dimension].
    """

    fields: Mapping[str, FieldSpec]
    num_ranks: int
    num_rows: Mapping[str, int] = field(default_factory=dict)
    blocks: dict[int, tuple[Block, ...]] = field(default_factory=dict)
    taken: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    senders: int = 0
    owners: dict[str, int] = field(default_factory=dict)
    num_free: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.num_free = {name: math.prod(spec.shape) for name, spec in self.fields.items()}

    @property
    def complete(self) -> bool:
        """Every client rank has said what it sends, and whether it fits to what the others send."""
        return len(self.blocks) == self.num_ranks

    def add(self, rank: int, blocks: Sequence[Block]) -> str | None:
        """Take the blocks of a client rank; returns the problem with them, if any, and then forgets them."""
        blocks = tuple(blocks)
        if rank in self.blocks:
            if self.blocks[rank] == blocks:
                return None
            return f"client rank {rank} opened with other blocks before: they are fixed for an attempt"
        problem = next((p for block in blocks for p in [self._problem(rank, block)] if p), None)
        if problem is None and len(self.blocks) == self.num_ranks - 1:
            problem = self._gap(blocks)
        if problem is None:
            self._take(rank, blocks)
        return problem

    def _take(self, rank: int, blocks: tuple[Block, ...]) -> None:
        self.blocks[rank] = blocks
        for block in blocks:
            self.senders |= 1 << rank
            begins, ends = _bounds(block)
            row = np.array([[(rank,) * len(begins), begins, ends]], np.int64)
            taken = self.taken.get(block.field)
            self.taken[block.field] = row if taken is None else np.concatenate((taken, row))
            self.owners[block.field] = self.owners.get(block.field, 0) | 1 << rank
            self.num_free[block.field] = max(0, self.num_free[block.field] - math.prod(block.count))

    def _problem(self, rank: int, block: Block) -> str | None:
        spec = self.fields[block.field]
        if block.shape != spec.shape:
            return f"field {spec.name} has shape {spec.shape} in the study, but the simulation sends {block.shape}"
        if spec.ragged and spec.is_static:
            return self._problem_of_rows(spec, block)
        if spec.ragged and block.count != spec.shape:
            return f"field {spec.name} differs in size: a client rank opens a block of its largest size"
        ends = [start + size for start, size in zip(block.offset, block.count, strict=True)]
        if any(end > size for end, size in zip(ends, spec.shape, strict=True)):
            return f"the block at {block.offset} of size {block.count} reaches out of field {spec.name}, {spec.shape}"
        if not spec.ragged and (other_rank := self._overlaps_with(block)) is not None:
            other = next(it for it in self.blocks[other_rank] if it.field == block.field)
            ours, theirs = (f"{it.count} at {it.offset}" for it in (block, other))
            return (
                f"the block of field {spec.name} of client rank {rank}, {ours}, overlaps with that of client "
                f"rank {other_rank}, {theirs}: each rank sends the part that no other sends"
            )
        return None

    def _overlaps_with(self, block: Block) -> int | None:
        """A client rank that has a part of this block, too."""
        if (taken := self.taken.get(block.field)) is None:
            return None
        begins, ends = _bounds(block)
        overlapping = ((taken[:, 1] < ends) & (begins < taken[:, 2])).all(axis=1)
        return int(taken[overlapping.argmax(), 0, 0]) if overlapping.any() else None

    def _problem_of_rows(self, spec: FieldSpec, block: Block) -> str | None:
        if any(block.offset) or block.count[1:] != spec.shape[1:]:
            return f"field {spec.name} differs in size: a client rank opens its rows as a block that begins at 0"
        num_values = math.prod(spec.shape) - self.num_free[spec.name] + math.prod(block.count)
        num_rows = num_values // math.prod(spec.shape[1:])
        if num_rows <= spec.shape[0]:
            return None
        text = f"the client ranks send {counted(num_rows, 'row')} of field {spec.name}"
        return f'{text}, and study.json allows {spec.shape[0]}: raise its "max" there'

    def _gap(self, blocks: tuple[Block, ...]) -> str | None:
        last = {block.field: math.prod(block.count) for block in blocks}
        for name, spec in self.fields.items():
            wanted = math.prod(spec.shape)
            left = max(0, self.num_free[name] - last.get(name, 0))
            if spec.ragged and spec.is_static:
                num_rows = (wanted - left) // math.prod(spec.shape[1:])
                if num_rows != self.num_rows.get(name, num_rows):
                    return (
                        f"the simulation sends {counted(num_rows, 'row')} of field {name}, but has sent "
                        f"{self.num_rows[name]} before, which samples in the study share: each attempt must make the "
                        "same"
                    )
                continue
            if left and (left < wanted or not spec.optional):
                if not blocks and not any(self.blocks.values()):
                    return "it ended without having sent a time step"
                return (
                    f"the client ranks, {self.num_ranks} in all, send {wanted - left} of the {wanted} values of field "
                    f"{name}: their blocks must cover it exactly"
                )
        return None


def _bounds(block: Block) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The begin and the end of a block in each dimension; a scalar counts as one dimension."""
    begins, counts = (*block.offset, 0), (*block.count, 1)
    return begins, tuple(begin + count for begin, count in zip(begins, counts, strict=True))
