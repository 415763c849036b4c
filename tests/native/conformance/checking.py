"""Whether a conversation carries the values that the script put, whatever the client made of them."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence

from stream_server.messages import wire
from stream_server.messages.client import ALL_FIELDS, Block, Data, Open, TimeSteps
from tests.native.conformance.case import Case
from tests.native.conformance.recording import Recorded, by_place
from tests.native.conformance.values import extents, values


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank of one simulation."""

    simulation: int
    rank: int
    index: int


Puts = dict[str, tuple[str, tuple[int, ...], int]]


def check(case: Case, played: Sequence[tuple[str, str | None]], recorded: Sequence[Recorded]) -> None:
    """Asserts it of every frame."""
    samples: dict[Step, list[Puts]] = defaultdict(list)
    for step, puts in _samples(case, played):
        samples[step].append(puts)
    statics = [puts for of_step in samples.values() for puts in of_step]
    for block, at, frame in _static_frames(recorded):
        expected = [_bytes(block, *puts[block.field])[at : at + len(frame)] for puts in statics if block.field in puts]
        assert frame in expected, f"block of {block.field} from byte {at} on is not what was put"
    for step, block, at, frame in _frames(recorded):
        expected = [_bytes(block, *puts[block.field])[at : at + len(frame)] for puts in samples[step]]
        assert frame in expected, f"{step}: block of {block.field} from byte {at} on is not what was put"


def _samples(case: Case, played: Sequence[tuple[str, str | None]]) -> Iterator[tuple[Step, Puts]]:
    labels = case.time_steps or TimeSteps(num=None)
    simulation, rank = 17, 0
    puts: Puts = {}
    for line, answer in played:
        verb, *words = line.lstrip("&~ ").split()
        if verb == "connect":
            rank = int(words[0])
            simulation = next((int(it.split("=")[1]) for it in words if it.startswith("simulation=")), 17)
        elif verb == "next":
            simulation += 1
        elif verb == "put":
            puts[words[0]] = words[1], extents(words[2]), int(words[3])
        elif verb == "send":
            if answer in ("ok", None):
                yield Step(simulation, rank, (int(words[0]) - labels.first) // labels.every), puts
            puts = {}


def _frames(recorded: Sequence[Recorded]) -> Iterator[tuple[Step, Block, int, bytes]]:
    """Each payload frame: the step and the block it belongs to, and at which byte of the block it begins."""
    for _, messages in by_place(list(recorded)):
        opened: Open | None = None
        for it in messages:
            message = wire.decode(it.frames[0])
            if isinstance(message, Open):
                opened = message
            if isinstance(message, Data) and not message.static:
                assert opened is not None
                assert message.num_steps == 1
                step = Step(message.simulation, opened.rank, message.index)
                for block, frame in zip(_present(message, opened.blocks), it.frames[1:], strict=True):
                    yield step, block, message.offset, frame


def _static_frames(recorded: Sequence[Recorded]) -> Iterator[tuple[Block, int, bytes]]:
    """The same of what was sent once per simulation."""
    for _, messages in by_place(list(recorded)):
        blocks: tuple[Block, ...] = ()
        for it in messages:
            message = wire.decode(it.frames[0])
            if isinstance(message, Open):
                blocks = message.static_blocks
            if isinstance(message, Data) and message.static:
                yield blocks[message.field], message.offset, it.frames[1]


def _present(data: Data, blocks: Sequence[Block]) -> list[Block]:
    if data.field != ALL_FIELDS:
        return [blocks[data.field]]
    return [block for i, block in enumerate(blocks) if data.present >> i & 1]


def _bytes(block: Block, dtype: str, count: tuple[int, ...], seed: int) -> bytes:
    assert count == block.count
    return values(dtype, count, seed).astype(block.dtype).tobytes()
