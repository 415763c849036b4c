"""Frames between the receivers of the ranks: a letter of the right types, or `MalformedMessage`."""

from typing import get_type_hints

from stream_server.errors import MalformedMessage
from stream_server.messages import notices
from stream_server.messages.notices import Channel, Letter, decode, encode
from tests.fuzz.target import Target

NOTICES: tuple[notices.Notice | None, ...] = (
    None,
    notices.Present(rank=1),
    notices.AttemptNotice(simulation=0, attempt=1, parameters={"x": 0.5}, key="k", goes_on=True),
    notices.Over(simulation=0, attempt=1),
    notices.Terminal(simulation=0, state="finished"),
    notices.Final(states={0: "finished", 1: "failed"}),
    notices.StopNotice(reason="r"),
    notices.Share(
        simulation=0, attempt=1, received=5, blocked=False, accepted=4, rejected=1, complete=True, total=None
    ),
)
PLAIN = (int, str, bool)


def run(data: bytes) -> None:
    """Read it, and put it into a conversation."""
    try:
        letter = decode(data)
    except MalformedMessage:
        return
    assert type(letter.number) is type(letter.received) is int
    for name, expected in get_type_hints(type(letter.notice)).items():
        if expected in PLAIN:
            assert type(getattr(letter.notice, name)) is expected, f"{name} is no {expected}"
    written = encode(letter)
    assert encode(decode(written)) == written
    channel = Channel()
    channel.post(notices.Present(rank=1))
    assert channel.receive(letter) in (None, letter.notice)
    assert channel.num_received <= 1


TARGET = Target(
    run=run,
    seeds=tuple(encode(Letter(number=0, received=1, notice=notice)) for notice in NOTICES),
    is_json=True,
)
