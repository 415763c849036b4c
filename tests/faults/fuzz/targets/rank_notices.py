"""Frames between the receivers of the ranks: a numbered notice of the right types, or `MalformedMessage`."""

from typing import get_type_hints

from stream_server.errors import MalformedMessage
from stream_server.messages import notices
from stream_server.messages.notices import Channel, NumberedNotice, decode, encode
from tests.faults.fuzz.target import Target

NOTICES: tuple[notices.Notice | None, ...] = (
    None,
    notices.RankAlive(rank=1),
    notices.AttemptNotice(simulation=0, attempt=1, parameters={"x": 0.5}, key="k", goes_on=True),
    notices.AttemptOver(simulation=0, attempt=1),
    notices.Terminal(simulation=0, state="finished"),
    notices.AllTerminal(states={0: "finished", 1: "failed"}),
    notices.StopNotice(reason="r"),
    notices.Share(
        simulation=0, attempt=1, received=5, blocked=False, accepted=4, rejected=1, complete=True, total=None
    ),
)
PLAIN = (int, str, bool)


def run(data: bytes) -> None:
    """Read it, and put it into a conversation."""
    try:
        numbered = decode(data)
    except MalformedMessage:
        return
    assert type(numbered.number) is type(numbered.received) is int
    for name, expected in get_type_hints(type(numbered.notice)).items():
        if expected in PLAIN:
            assert type(getattr(numbered.notice, name)) is expected, f"{name} is no {expected}"
    written = encode(numbered)
    assert encode(decode(written)) == written
    channel = Channel()
    channel.post(notices.RankAlive(rank=1))
    assert channel.receive(numbered) in (None, numbered.notice)
    assert channel.num_received <= 1


TARGET = Target(
    run=run,
    seeds=tuple(encode(NumberedNotice(number=0, received=1, notice=notice)) for notice in NOTICES),
    is_json=True,
)
