"""Frames between the launcher and rank 0: a message of the right types that is written alike, or `MalformedMessage`."""

from collections.abc import Callable
from typing import get_type_hints

from stream_server.errors import MalformedMessage
from stream_server.launcher import link
from stream_server.launcher.link import ToLauncher, ToServer
from tests.fuzz.target import Target

MESSAGES: tuple[ToLauncher | ToServer, ...] = (
    link.Here(epoch=1),
    link.Plan(
        study="s",
        epoch=1,
        output_dir="/tmp/o",
        connection={"study": "s", "security": None},
        simulations=(link.Planned(simulation=0, parameters={"x": 1.0}), link.Planned(simulation=1, parameters={})),
    ),
    link.Run(simulation=2, parameters={"x": 0.5}),
    link.Progress(simulation=0, attempt=0, received=5, blocked=False),
    link.Finished(simulation=0),
    link.Invalid(simulation=0, reason="r"),
    link.AttachRequest(token=0, simulation=None),
    link.StopAll(reason="r", grace_s=1.5),
    link.Committed(generation=1, batches=10),
    link.Leaving(),
    link.AskPlan(),
    link.Leave(reason="r"),
    link.Ready(),
    link.Attempt(simulation=0, attempt=1, public_key="k", attached=True),
    link.Failed(simulation=0, attempt=0, reason="r", log=""),
    link.GaveUp(simulation=0, attempts=3, reason="r", log="", redraw=True),
    link.Attached(token=0, simulation=0, attempt=1),
    link.NoneLeft(token=0, text="t", busy=True),
    link.TooMany(text="t"),
    link.Status(waiting=1, running=2, done=3, failed=4),
    link.Bye(),
)
PLAIN = (int, str, bool)


def run(data: bytes) -> None:
    """Both ends read it."""
    for decode in (link.to_launcher, link.to_server):
        _read(decode, data)


def _read(decode: Callable[[bytes], ToLauncher | ToServer], data: bytes) -> None:
    try:
        message = decode(data)
    except MalformedMessage:
        return
    for name, expected in get_type_hints(type(message)).items():
        if expected in PLAIN:
            assert type(getattr(message, name)) is expected, f"{name} is no {expected}"
    written = link.encode(message)
    assert link.encode(decode(written)) == written


TARGET = Target(run=run, seeds=tuple(map(link.encode, MESSAGES)), is_json=True)
