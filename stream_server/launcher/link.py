"""What passes between the launcher and rank 0 of the server, and the launcher's end of it.

Each message is one frame of JSON, `{"message": "Progress", "simulation": 3, …}`. The launcher binds a ROUTER on an
`ipc://` address in a private folder; rank 0 connects a DEALER and speaks first, with `Plan`.
"""

import json
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, get_args

import zmq

from stream_server.errors import MalformedMessage


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One simulation that the study wants."""

    simulation: int
    parameters: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """To launcher, first: the run, the simulations without a terminal state, in the order of starting.

    `connection` is what the connection file of every attempt says; the launcher adds simulation, attempt,
    parameters and keys.
    """

    study: str
    epoch: int
    output_dir: str
    connection: dict[str, Any]
    simulations: tuple[Planned, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """To launcher: one more simulation, in place of one that was given up."""

    simulation: int
    parameters: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """To launcher: `received` steps have come in this attempt; `blocked` while the server holds the simulation back."""

    simulation: int
    attempt: int
    received: int
    blocked: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """To launcher: the ledger has all of this simulation."""

    simulation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Invalid:
    """To launcher: the simulation withdrew itself; it is not to be tried again."""

    simulation: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachRequest:
    """To launcher: a client that nobody started asks for this simulation, or for any (None)."""

    token: int
    simulation: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StopAll:
    """To launcher: the study has ended; start nothing more, cancel what still runs after `grace_s`, and leave."""

    reason: str
    grace_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """To server: the launcher has the plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """To server, before the job is submitted: `public_key` (None without CURVE) will speak for this attempt."""

    simulation: int
    attempt: int
    public_key: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """To server: an attempt failed; another or `GaveUp` follows. `log` is the path of its output, "" without one."""

    simulation: int
    attempt: int
    reason: str
    log: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GaveUp:
    """To server: no attempt is left; with `redraw` the launcher waits for a `Run` in its place."""

    simulation: int
    attempts: int
    reason: str
    log: str
    redraw: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """To server: the client of this `AttachRequest` gets this attempt of this simulation."""

    token: int
    simulation: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NoneLeft:
    """To server: nothing for the client of this `AttachRequest`; `busy` when it may ask again later."""

    token: int
    text: str
    busy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TooMany:
    """To server: the study must stop, for the simulations cannot be made to run; `text` ends with a log's end."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """To server: how many simulations wait, run, have finished, and were given up or withdrawn."""

    waiting: int
    running: int
    done: int
    failed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bye:
    """To server: every job has ended and so does the launcher."""


ToLauncher = Plan | Run | Progress | Finished | Invalid | AttachRequest | StopAll
ToServer = Ready | Attempt | Failed | GaveUp | Attached | NoneLeft | TooMany | Status | Bye

_TO_LAUNCHER: dict[str, type[ToLauncher]] = {cls.__name__: cls for cls in get_args(ToLauncher)}
_TO_SERVER: dict[str, type[ToServer]] = {cls.__name__: cls for cls in get_args(ToServer)}


def encode(message: ToLauncher | ToServer) -> bytes:
    """The frame of a message."""
    return json.dumps({"message": type(message).__name__, **asdict(message)}).encode()


def to_launcher(frame: bytes) -> ToLauncher:
    """The message that rank 0 sent.

    Raises:
        MalformedMessage: the frame is none of `ToLauncher`.
    """
    name, values = _object(frame)
    try:
        if "simulations" in values:
            values["simulations"] = tuple(Planned(**planned) for planned in values["simulations"])
        return _TO_LAUNCHER[name](**values)
    except (KeyError, TypeError) as error:
        raise MalformedMessage(f"rank 0 sent no message of the launcher's link: {frame[:200]!r}") from error


def to_server(frame: bytes) -> ToServer:
    """The message that the launcher sent.

    Raises:
        MalformedMessage: the frame is none of `ToServer`.
    """
    name, values = _object(frame)
    try:
        return _TO_SERVER[name](**values)
    except (KeyError, TypeError) as error:
        raise MalformedMessage(f"the launcher sent no message of its link: {frame[:200]!r}") from error


def _object(frame: bytes) -> tuple[str, dict[str, Any]]:
    try:
        values = json.loads(frame)
        return values.pop("message"), values
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedMessage(f"not a message of the launcher's link: {frame[:200]!r}") from error


def key_pair() -> tuple[str, str]:
    """A fresh CURVE key pair, public and secret, as z85 text."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


class Link:
    """The launcher's end: a ROUTER bound to `address`. Main thread only.

    `wait` also watches the readable file descriptors given as `others`, so that one poller serves all that the
    launcher waits for.
    """

    def __init__(self, address: str, others: tuple[int, ...] = ()) -> None:
        self.address = address
        self.others = others
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._poller = zmq.Poller()
        self._peer: bytes | None = None

    def __enter__(self) -> Self:
        self._socket.linger = 0
        # Both ends keep everything: what passes is small, and nothing of it may be lost.
        self._socket.sndhwm = self._socket.rcvhwm = 0
        self._socket.bind(self.address)
        for readable in (self._socket, *self.others):
            self._poller.register(readable, zmq.POLLIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close(linger=1000)
        self._context.term()

    def wait(self, timeout_s: float) -> set[int]:
        """Wait until something can be read; returns which of `others` can be."""
        ready = dict(self._poller.poll(max(0, round(timeout_s * 1000))))
        return {number for number in self.others if number in ready}

    def ignore(self, readable: int) -> None:
        """Watch one of `others` no more."""
        self._poller.unregister(readable)

    def receive(self) -> list[ToLauncher]:
        """All messages that have come, without waiting.

        Raises:
            MalformedMessage: rank 0 and the launcher are of different versions.
        """
        messages = []
        while self._socket.poll(0):
            self._peer, frame = self._socket.recv_multipart()
            messages.append(to_launcher(frame))
        return messages

    def send(self, message: ToServer) -> None:
        """Send to rank 0; nobody is there before its `Plan` has come, and the message is dropped."""
        if self._peer is not None:
            self._socket.send_multipart([self._peer, encode(message)])
