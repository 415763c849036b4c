"""Messages of hostile clients to one server rank, made out of bytes: mostly what the protocol allows, at any time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stream_server.messages.client import ALL_FIELDS, Block, Data, End, FieldSpec, Open

STUDY, INCARNATION = "s", 3
FIELDS = (FieldSpec(name="u", shape=(4,), dtype="<f8"), FieldSpec(name="v", shape=(), optional=True))
MESH = FieldSpec(name="mesh", shape=(3,), dtype="<f8", per="simulation")
ROWS = FieldSpec(name="mesh", shape=(3,), dtype="<f8", per="simulation", ragged=True)
NUM_FAULTS = 32
MISSING, TOO_MANY, TOO_SHORT, TOO_LONG, NOT_A_NUMBER, OTHER_VALUES = range(1, 7)
RANKS = (1, 2, 3, 2**16)


class Script:
    """Bytes that are taken one by one; when they are used up, zeros come, and the script `is_over`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_over(self) -> bool:
        return self._position >= len(self._data)

    def one_of(self, num: int) -> int:
        """A number below `num`, at most 256."""
        taken = self.take(1)
        return taken[0] % num if taken else 0

    def take(self, num: int) -> bytes:
        """The next bytes, as far as there are so many."""
        taken = self._data[self._position : self._position + num]
        self._position += num
        return taken


def value(simulation: int, index: int, rank: int) -> float:
    """The number that a client rank sends in all values of a step."""
    return float(simulation * 10_000 + index * 10 + rank % 4 + 1)


@dataclass(kw_only=True, slots=True)
class Peer:
    """A client rank that keeps to the protocol as far as its script lets it; `announced` has its steps.

    `said` is what it opened with last, `opening` what the server has taken. Neighbouring steps of one server rank are
    `stride` apart.
    """

    name: bytes
    stride: int
    said: Open
    opening: Open
    mesh: FieldSpec | None = None
    sent_mesh: bool = False
    sequence: int = 0
    index: int = 0
    announced: set[tuple[int, int]] = field(default_factory=set)

    def open(self, script: Script) -> Open:
        """An `Open` that may be any rank's, with all of a field, a part, or nothing; mostly over a new connection."""
        if script.one_of(4):
            self.name += b"'"
            self.sequence = 0
        num_ranks = RANKS[script.one_of(len(RANKS))]
        rank = num_ranks - 1 - script.one_of(min(num_ranks, 3))
        blocks = [u_block(script.one_of(8), rank, num_ranks)]
        if script.one_of(2):
            dtype = ("<f8", "<f4", "<i8", "|b1", "<c16")[script.one_of(5)]
            blocks.append(Block(field="v", dtype=dtype, shape=(), offset=(), count=()))
        simulation, attempt = script.one_of(4), script.one_of(2)
        blocks, mesh = blocks if script.one_of(8) else blocks[1:], mesh_blocks(self.mesh, rank)
        self.said = opening(simulation, rank, num_ranks, blocks, attempt=attempt, static_blocks=mesh)
        self.sent_mesh = False
        return self.said

    def opened(self) -> None:
        """The server lets it in."""
        self.opening = self.said

    def data(self, script: Script) -> tuple[Data, list[bytes]]:
        """The next `Data`, with its payload; something may be wrong with either. Mostly the mesh comes first."""
        if self.opening.static_blocks and not self.sent_mesh and script.one_of(8):
            return self._mesh(script)
        oddity = script.one_of(16)
        everything = (1 << len(self.opening.blocks)) - 1
        number = oddity & 1 if oddity in (1, 2, 3) else ALL_FIELDS
        is_whole = number == ALL_FIELDS
        data = Data(
            simulation=self.opening.simulation,
            attempt=self.opening.attempt,
            incarnation=INCARNATION,
            sequence=script.one_of(8) if oddity == 4 else self.sequence,
            index=script.one_of(12) if oddity in (3, 5, 6) else self.index,
            num_steps=1 + script.one_of(4) if is_whole else 1,
            present=max(1, (1 + script.one_of(4) if oddity == 7 else everything) | (0 if is_whole else 1 << number)),
            field=number,
            last=is_whole or oddity == 2,
            checksum=0 if oddity == 8 else None,
        )
        self.sequence = data.sequence + 1
        self.index = data.index + data.num_steps * self.stride
        return data, self._payload(script.one_of(NUM_FAULTS), data)

    def end(self, script: Script) -> End:
        """An `End` that may say too little or too much."""
        share, total = script.one_of(12), script.one_of(12)
        simulation, attempt = self.opening.simulation, self.opening.attempt
        return End(simulation=simulation, attempt=attempt, incarnation=INCARNATION, share=share, total=total)

    def _mesh(self, script: Script) -> tuple[Data, list[bytes]]:
        """The field that is sent once per simulation, which a few attempts change."""
        self.sent_mesh = True
        fault = script.one_of(NUM_FAULTS // 2)
        data = Data(
            simulation=self.opening.simulation,
            attempt=self.opening.attempt,
            incarnation=INCARNATION,
            sequence=self.sequence,
            index=0,
            num_steps=1,
            present=1,
            field=0,
            static=True,
        )
        self.sequence += 1
        content = np.nan if fault == NOT_A_NUMBER else mesh_value(self.opening.simulation, int(fault == OTHER_VALUES))
        [block] = self.opening.static_blocks
        frames = [np.full(block.count, content).tobytes()[: -1 if fault == TOO_SHORT else None]]
        return data, frames * {MISSING: 0, TOO_MANY: 2}.get(fault, 1)

    def _payload(self, fault: int, data: Data) -> list[bytes]:
        is_fit = fault != NOT_A_NUMBER
        numbers = range(len(self.opening.blocks)) if data.field == ALL_FIELDS else (data.field,)
        sent = [i for i in numbers if data.present >> i & 1 and i < len(self.opening.blocks)]
        frames = [self._frame(data, self.opening.blocks[i], is_fit=is_fit) for i in sent]
        if fault == MISSING:
            return frames[1:]
        if fault == TOO_MANY:
            return [*frames, b"\0"]
        if fault == TOO_SHORT:
            return [frame[:-1] for frame in frames]
        if fault == TOO_LONG:
            return [frame + b"\0" for frame in frames]
        return frames

    def _frame(self, data: Data, block: Block, *, is_fit: bool) -> bytes:
        dtype = np.dtype(block.dtype)
        steps = []
        for index in range(data.index, data.index + data.num_steps * self.stride, self.stride):
            self.announced.add((data.simulation, index))
            content = value(data.simulation, index, self.opening.rank) if is_fit else np.nan
            steps.append(np.full(block.count, content).astype(dtype).tobytes())
        return b"".join(steps)


def mesh_value(simulation: int, variant: int) -> float:
    """The number in all values of a mesh."""
    return float(1 + 2 * simulation + variant)


def opening(
    simulation: int,
    rank: int,
    num_ranks: int,
    blocks: Sequence[Block],
    *,
    attempt: int = 0,
    static_blocks: Sequence[Block] = (),
) -> Open:
    """An `Open` of this study."""
    return Open(
        study=STUDY,
        simulation=simulation,
        attempt=attempt,
        incarnation=INCARNATION,
        rank=rank,
        num_ranks=num_ranks,
        blocks=tuple(blocks),
        static_blocks=tuple(static_blocks),
    )


def mesh_blocks(mesh: FieldSpec | None, rank: int) -> tuple[Block, ...]:
    """The first client rank has all of the mesh; or a row, if it differs in size, the second two and the third none."""
    count = (1, 2, 0)[rank % 3] if mesh is ROWS else 0 if mesh is None or rank else 3
    return (Block(field="mesh", dtype="<f8", shape=(3,), offset=(0,), count=(count,)),) if count else ()


def u_block(choice: int, rank: int, num_ranks: int) -> Block:
    """Mostly what two ranks share evenly, or one has alone; else a half, or what is no type to begin with."""
    halves = {5: (0, 2), 6: (2, 4)} if num_ranks != 2 else {}
    first, stop = halves.get(choice, (0, 4) if num_ranks == 1 else (2 * (rank % 2), 2 * (rank % 2) + 2))
    dtype = "<f4" if choice == 7 else "<f8"
    return Block(field="u", dtype=dtype, shape=(4,), offset=(first,), count=(stop - first,))


def allowed(simulation: int, index: int) -> npt.NDArray[np.float64]:
    """The values that may be in a row of a step, whoever sent it."""
    return np.array([value(simulation, index, rank) for rank in range(4)])
