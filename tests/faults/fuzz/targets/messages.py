"""Frames as the server and the clients receive them: a message that is written alike again, or `MalformedMessage`."""

from stream_server.errors import MalformedMessage
from stream_server.messages import wire
from stream_server.messages.client import Ack, Block, Data, Hello, Invalidate, Open, Refusal, Stop
from tests.faults.fuzz.target import Target
from tests.messages.test_protocol_page import EXAMPLES
from tests.support.payloads import payload_sizes

BLOCKS = (
    Block(field="u", dtype="<f8", shape=(6, 4), offset=(3, 0), count=(3, 4)),
    Block(field="large", dtype="|u1", shape=(2**23,), offset=(0,), count=(2**23,)),
)
MOST_RANKS = 2**16
# Their texts are for people, and longer ones are cut when they are written.
PROSE = (Invalidate, Refusal, Stop)


def run(data: bytes) -> None:
    """Decode, and write what was understood."""
    try:
        message = wire.decode(data)
    except MalformedMessage:
        return
    (written,) = wire.encode(message)
    assert wire.decode(written) == message or isinstance(message, PROSE)
    assert wire.encode(wire.decode(written)) == [written]
    assert written == data or not isinstance(message, Data | Ack), "packed bytes mean one thing only"
    if isinstance(message, Hello | Open):
        assert message.num_ranks <= MOST_RANKS, "the server keeps a bit for each"
    if isinstance(message, Data):
        _measure(message)


def _measure(data: Data) -> None:
    try:
        sizes = payload_sizes(data, BLOCKS)
    except MalformedMessage:
        return
    assert 0 < sum(sizes) <= 2**22


STATIC = Data(
    simulation=1,
    attempt=0,
    incarnation=3,
    sequence=0,
    index=0,
    num_steps=1,
    present=1,
    field=0,
    last=False,
    static=True,
)
SEEDS = (*EXAMPLES.values(), STATIC)
TARGET = Target(run=run, seeds=tuple(bytes(wire.encode(message)[0]) for message in SEEDS), is_json=True)
