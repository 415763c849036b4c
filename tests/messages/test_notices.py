"""Notices between server ranks, and the channel that carries them."""

import random

import pytest

from stream_server.errors import MalformedMessage
from stream_server.messages import notices
from stream_server.messages.notices import Channel, NumberedNotice

EXAMPLES = [
    notices.RankAlive(rank=3),
    notices.AttemptNotice(simulation=1, attempt=2, parameters={"x": 0.5}, key="k"),
    notices.AttemptOver(simulation=1, attempt=2),
    notices.Terminal(simulation=1, state="given_up", reason="exit code 1"),
    notices.AllTerminal(states={0: "finished", 11: "invalid"}),
    notices.StopNotice(reason="time limit"),
    notices.Share(
        simulation=1, attempt=0, received=3, blocked=True, accepted=2, rejected=1, complete=False, total=None
    ),
]


@pytest.mark.parametrize("notice", EXAMPLES)
def test_a_notice_survives_its_frame(notice: notices.Notice) -> None:
    numbered = NumberedNotice(number=4, received=7, notice=notice)
    assert notices.decode(notices.encode(numbered)) == numbered


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b'{"number": 1, "received": 0, "notice": "Exit", "values": {}}'],
)
def test_any_other_frame_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        notices.decode(frame)


def test_nothing_is_sent_twice_before_its_time() -> None:
    channel = Channel(patience_s=1)
    channel.post(notices.StopNotice(reason="a"))
    assert len(channel.outgoing(0)) == 1
    assert channel.outgoing(0.9) == []
    assert len(channel.outgoing(1.0)) == 1


def test_a_notice_is_answered_at_once_and_then_sent_no_more() -> None:
    sender, receiver = Channel(), Channel()
    number = sender.post(notices.StopNotice(reason="a"))
    (numbered,) = sender.outgoing(0)
    assert receiver.receive(numbered) == notices.StopNotice(reason="a")
    (answer,) = receiver.outgoing(0)
    assert sender.receive(answer) is None
    assert sender.num_delivered == number + 1
    assert sender.outgoing(100) == []


@pytest.mark.parametrize("seed", range(20))
def test_every_notice_arrives_once_and_in_order_over_a_lossy_and_shuffling_line(seed: int) -> None:
    rng = random.Random(seed)
    ends = {"a": Channel(), "b": Channel()}
    line: dict[str, list[NumberedNotice]] = {"a": [], "b": []}
    heard: dict[str, list[str]] = {"a": [], "b": []}
    posted: dict[str, list[str]] = {"a": [], "b": []}
    for now in range(400):
        for name, other in (("a", "b"), ("b", "a")):
            if now < 40 and rng.random() < 0.5:
                posted[name].append(str(now))
                ends[name].post(notices.StopNotice(reason=str(now)))
            line[other] += [numbered for numbered in ends[name].outgoing(now) if rng.random() < 0.6]
            rng.shuffle(line[name])
            while line[name] and rng.random() < 0.7:
                notice = ends[name].receive(line[name].pop())
                if isinstance(notice, notices.StopNotice):
                    heard[name].append(notice.reason)
    assert (heard["a"], heard["b"]) == (posted["b"], posted["a"])
