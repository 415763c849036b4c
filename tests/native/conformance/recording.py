"""The server of the client's tests, for a study of fixed numbers, that also keeps the frames themselves."""

import dataclasses
import zlib
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from stream_server.messages import wire
from stream_server.messages.client import (
    ATTACHING,
    Data,
    Hello,
    Open,
    Ping,
    Reason,
    Refusal,
    Stop,
    Welcome,
)
from stream_server.messages.connection import ConnectionFile
from tests.fakes.server import FakeServer


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """One message as it came. `place`: "control" or "server rank 0", of that start of the server."""

    incarnation: int
    place: str
    frames: tuple[bytes, ...]


class RecordingServer(FakeServer):
    """Study "heat", simulation 17, attempt 1, incarnation 3: the examples of the protocol page.

    Anybody may attach unless it is `launched`. It reads from no segment. Pings and repetitions are not in `recorded`:
    they depend on time.
    """

    launched = True

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.reads_segments = False
        self.recorded: list[Recorded] = []
        self.num_pings = 0
        self._peer = b""
        self._numbers: dict[bytes, int] = {}

    def welcome(self, hello: Hello) -> Welcome:
        number = self._numbers.setdefault(self._peer, 17 + len(self._numbers))
        simulation = number if hello.simulation is None else hello.simulation
        attempt = 1 if hello.attempt == ATTACHING else hello.attempt
        return msgspec.structs.replace(super().welcome(hello), simulation=simulation, attempt=attempt)

    def data(self) -> list[Data]:
        """The Data of this incarnation, by server rank."""
        return [it for messages in list(self.messages.values()) for it in list(messages) if isinstance(it, Data)]

    def _bind_all(self) -> None:
        super()._bind_all()
        who = {"simulation": 17, "attempt": 1} if self.launched else {}
        self.connection: ConnectionFile = msgspec.structs.replace(self.connection, study="heat", **who)  # type: ignore[arg-type]

    def _take_control(self, peer: bytes, header: bytes) -> None:
        self._record("control", header)
        self._peer = peer
        super()._take_control(peer, header)

    def _take(self, rank: int, peer: bytes, header: bytes, *payload: bytes) -> None:
        self._record(f"server rank {rank}", header, *payload)
        super()._take(rank, peer, header, *payload)

    def _record(self, place: str, *frames: bytes) -> None:
        message = wire.decode(frames[0])
        if isinstance(message, Open):
            # Each process has another one.
            frames = (bytes(*wire.encode(message.without_segment)),)
        recorded = Recorded(self.incarnation, place, frames)
        if isinstance(message, Ping):
            self.num_pings += 1
        elif not (recorded in self.recorded[-1:] or (isinstance(message, Open) and recorded in self._last_at(place))):
            self.recorded.append(recorded)

    def _last_at(self, place: str) -> list[Recorded]:
        return [it for it in self.recorded if (it.incarnation, it.place) == (self.incarnation, place)][-1:]


def one_by_one(recorded: list[Recorded]) -> list[Recorded]:
    """The same conversation as if no steps had travelled together."""
    alone: list[Recorded] = []
    for _, messages in by_place(recorded):
        sequence = 0
        stride = sum(place.startswith("server") for (incarnation, place), _ in by_place(recorded))
        for it in messages:
            message = wire.decode(it.frames[0])
            if not isinstance(message, Data):
                alone.append(it)
                continue
            for i in range(message.num_steps):
                payload = [_row(frame, i, message.num_steps) for frame in it.frames[1:]]
                single = msgspec.structs.replace(
                    message,
                    sequence=sequence,
                    index=message.index + i * stride,
                    num_steps=1,
                    checksum=None if message.checksum is None else zlib.crc32(b"".join(payload)),
                )
                sequence += 1
                alone.append(Recorded(it.incarnation, it.place, tuple(map(bytes, wire.encode(single, payload)))))
    return alone


def by_place(recorded: list[Recorded]) -> list[tuple[tuple[int, str], list[Recorded]]]:
    """The messages of each socket, in their order there."""
    places = sorted({(it.incarnation, it.place) for it in recorded})
    return [(key, [it for it in recorded if (it.incarnation, it.place) == key]) for key in places]


def _row(frame: bytes, i: int, num: int) -> bytes:
    size = len(frame) // num
    return frame[i * size : (i + 1) * size]


class Director:
    """Does to the server what the lines of a script say that begin with "!"."""

    def __init__(self, server: RecordingServer) -> None:
        self._server = server

    def obey(self, line: str) -> None:
        verb, *words = line.split()
        getattr(self, verb)(*words)

    def received(self, num: str) -> None:
        """Wait until so many Data of this incarnation have come."""
        self._server.wait_until(lambda: len(self._server.data()) >= int(num))

    def pinged(self) -> None:
        """Wait until the client asks for an Ack from now on."""
        before = self._server.num_pings
        self._server.wait_until(lambda: self._server.num_pings > before)

    def silent(self) -> None:
        self._do(lambda: setattr(self._server, "silent", True))

    def withhold(self) -> None:
        """Give no Ack that tells anything."""
        self._do(lambda: setattr(self._server, "withholds_acks", True))

    def stop(self, *reason: str) -> None:
        self._do(lambda: self._server.stop_study(" ".join(reason)))

    def die(self) -> None:
        self._do(self._server.die)

    def restart(self, incarnation: str, known: str, num_ranks: str = "") -> None:
        """Come back in a later incarnation, with the checkpoint's steps ("-" for none)."""
        steps: Collection[int] = [] if known == "-" else [int(it) for it in known.split(",")]
        ranks = int(num_ranks) if num_ranks else None

        def work() -> None:
            self._server.withholds_acks = False
            self._server.restart(incarnation=int(incarnation), known=steps, num_ranks=ranks)

        self._do(work)

    def refuse(self, question: str, reason: str, *text: str) -> None:
        """Answer the next hello, open or data with a Refusal."""
        self._answer(question, Refusal(reason=Reason[reason], text=" ".join(text)))

    def over(self, *text: str) -> None:
        """Answer the next hello with Stop."""
        self._answer("hello", Stop(text=" ".join(text)))

    def _answer(self, question: str, answer: Refusal | Stop) -> None:
        self._do(lambda: getattr(self._server, f"answers_to_{question}").append(answer))

    def _do(self, work: Callable[[], None]) -> None:
        self._server.do_now(work)
