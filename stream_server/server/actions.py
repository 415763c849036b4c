"""What the roster and the lobby decide, for the coordinator to carry out."""

from dataclasses import dataclass

from stream_server.client_api.messages import Message, Reason, Refusal
from stream_server.launcher import link
from stream_server.server import notices


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """Answer the client that sits behind `peer` on the control socket."""

    peer: bytes
    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Tell:
    """Tell every rank of the server, this one too."""

    notice: notices.Notice


@dataclass(frozen=True, kw_only=True, slots=True)
class ToLauncher:
    """Tell the launcher."""

    message: link.ToLauncher


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFailed:
    """The simulations cannot be made to run: the study ends with this text."""

    text: str


Action = Reply | Tell | ToLauncher | StudyFailed


def refuse(peer: bytes, reason: Reason, text: str) -> Reply:
    """Tell a client that it may not."""
    return Reply(peer=peer, message=Refusal(reason=reason, text=text))
