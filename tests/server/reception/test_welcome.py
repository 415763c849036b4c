"""The welcome of a client to its attempt: once every rank knows of it, since the client connects to all of them."""

from typing import Any

from stream_server.messages import launcher_link
from stream_server.messages.client import Away, Hello, Message, Routing, TimeSteps, Welcome
from stream_server.messages.curve import KeyPair
from stream_server.messages.notices import Channel
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.coordinator import Coordinator
from stream_server.server.simulations.roster import Roster

FACTS = Welcome(
    study="study-1",
    simulation=0,
    attempt=0,
    parameters={},
    incarnation=1,
    endpoints=(("ipc:///nowhere",),) * 3,
    time_steps=TimeSteps(num=6),
    fields=(),
    routing=Routing.STEPS,
    window_bytes=2**20,
    if_server_away=Away.WAIT,
    wait_s=600.0,
)


def ignore(*_: Any) -> None:
    """Nothing of this is of interest here."""


def hear(channel: Channel) -> None:
    """The rank at the other end takes in all that was said, and confirms it."""
    other = Channel()
    for numbered in channel.outgoing(0.0):
        other.receive(numbered)
    for answer in other.outgoing(0.0):
        channel.receive(answer)


def test_a_client_is_welcomed_only_when_the_last_rank_has_heard_of_its_attempt() -> None:
    replies: list[Message] = []
    channels = {1: Channel(), 2: Channel()}
    rank_0 = Coordinator(
        Roster(FACTS, [{"x": 1.0}], num_planned=1, num_held_out=0, num_ranks=3),
        channels,
        access=CurveAccess(KeyPair.make()),
        refuse=ignore,  # type: ignore[arg-type]
        reply=lambda _, message: replies.append(message),
        answer=ignore,
        tell_launcher=ignore,
        tell_main=ignore,
        apply=ignore,
    )
    rank_0.launcher(launcher_link.Attempt(simulation=0, attempt=0, public_key=None))
    rank_0.perform(
        rank_0.roster.handshake.hello(b"client", Hello(study="study-1", simulation=0, attempt=0, rank=0, num_ranks=1))
    )
    for channel in channels.values():
        assert replies == []
        hear(channel)
        rank_0.heard()
    assert [type(reply) for reply in replies] == [Welcome]
