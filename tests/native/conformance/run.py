"""One case with one driver."""

from dataclasses import dataclass

from tests.native.conformance import vectors
from tests.native.conformance.case import SMALL, Case
from tests.native.conformance.checking import check
from tests.native.conformance.recording import Recorded, RecordingServer, one_by_one
from tests.native.conformance.script import Driver, play

# With so little credit no two steps travel together.
CREDIT = 3


@dataclass(frozen=True)
class Conversation:
    """The commands to the driver and its answers, and the messages that it put on the wire."""

    played: list[tuple[str, str | None]]
    recorded: list[Recorded]


def run(case: Case, driver: Driver) -> str:
    """Play a case; returns the text of its vector. All that was put must have arrived."""
    conversation = play_case(case, driver)
    check(case, conversation.played, conversation.recorded)
    return vectors.text(case, conversation.played, conversation.recorded)


def play_case(case: Case, driver: Driver) -> Conversation:
    """Play a case; returns the conversation."""
    with _server(case) as server:
        for name, content in case.files.items():
            (server.path.parent / name).write_text(content)
        played = play(case.script, driver, server)
    return Conversation(played, one_by_one(server.recorded) if case.gathers else server.recorded)


def _server(case: Case) -> RecordingServer:
    server = RecordingServer(
        case.fields or (SMALL,), num_ranks=case.num_ranks, time_steps=case.time_steps, transport=case.transport
    )
    server.launched = case.launched
    for name, value in {"credit": CREDIT, **case.server}.items():
        assert hasattr(server, name), f"the server has no {name}"
        setattr(server, name, value)
    return server
