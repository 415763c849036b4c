"""A server with no training in it: R ranks behind ROUTER sockets, in one thread, that keeps what it gets."""

import queue
import socket
import tempfile
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType

import numpy as np
import zmq
from msgspec import UNSET

from stream_server.messages import wire
from stream_server.messages.client import (
    ALL_FIELDS,
    MAX_PART_BYTES,
    Ack,
    Away,
    Block,
    Data,
    End,
    FieldSpec,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Open,
    Opened,
    Ping,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
    Welcome,
)
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair, secure_server_socket
from stream_server.messages.routing import Dealing
from stream_server.server.reception.access import CurveAccess
from tests.support.payloads import check_payload


class FakeServer:
    """Set the attributes before a client comes, or by `do` from then on; read them after the client is done.

    `steps[simulation, index][field]` is the assembled array; `messages[rank]` all that a server rank got, and
    `num_sent[index]` how often it got a step, both since its last start. `statics[simulation, rank]` are the
    fields that a server rank was sent once. `names[i]` is that of the
    client of `hellos[i]`. `path` is the connection file.
    """

    def __init__(
        self,
        fields: tuple[FieldSpec, ...] = (FieldSpec(name="u", shape=(4,)),),
        *,
        num_ranks: int = 2,
        time_steps: TimeSteps | None = None,
        transport: str = "ipc",
    ) -> None:
        self.fields = fields
        self.num_ranks = num_ranks
        self.time_steps = time_steps or TimeSteps(num=None)
        self.routing = Routing.STEPS
        self.parameters = {"viscosity": 0.5}
        self.credit = 64
        self.window_bytes = 2**26
        self.if_server_away = Away.STOP
        self.wait_s = 600.0
        self.known: dict[int, bytes] = {}
        self.incarnation = 3
        self.attempt: int | None = None
        self.silent = False
        self.withholds_acks = False
        self.drops_acks = False
        self.makes_durable = False
        self.reads_segments = True
        self.answers_to_hello: list[Message | None] = []
        self.answers_to_open: list[Message | None] = []
        self.answers_to_invalidate: list[Message] = []
        self.answers_to_data: list[Message | None] = []
        self.hellos: list[Hello] = []
        self._welcomed: tuple[int, bytes, Hello] | None = None
        self.names: list[bytes] = []
        self.invalidated: list[Invalidate] = []
        self.messages: dict[int, list[Message]] = {rank: [] for rank in range(num_ranks)}
        self.steps: dict[tuple[int, int], dict[str, np.ndarray]] = defaultdict(dict)
        self.num_sent: Counter[int] = Counter()
        self.failure: BaseException | None = None
        self._transport = transport
        self.statics: dict[tuple[int, int], dict[str, np.ndarray]] = defaultdict(dict)
        self._openings: dict[tuple[int, bytes], Open] = {}
        self._received: dict[tuple[int, bytes], int] = defaultdict(int)
        self._durable: dict[tuple[int, bytes], int] = defaultdict(int)
        self._ended: set[tuple[int, bytes]] = set()
        self._changed = threading.Condition()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def __enter__(self) -> "FakeServer":
        self._keys = KeyPair.make() if self._transport == "curve" else None
        self._folder = tempfile.TemporaryDirectory(prefix="fake-")
        self._context = zmq.Context()
        self.path = Path(self._folder.name) / "connection.json"
        self._poller = zmq.Poller()
        self.access = CurveAccess(self._keys or KeyPair.make())
        self._bell, self._ear = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._ear.bind("inproc://bell")
        self._bell.connect("inproc://bell")
        # What it is told to do comes before what its clients say.
        self._poller.register(self._ear, zmq.POLLIN)
        self._door = self._context.socket(zmq.REP)
        self._door.bind("inproc://zeromq.zap.01")
        self._poller.register(self._door, zmq.POLLIN)
        self._bind_all()
        self.connection.write(self.path)
        self._thread = threading.Thread(target=self._run, name="fake-server")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._work.put(None)
        self._bell.send(b"")
        self._thread.join()
        self._context.destroy(linger=0)
        self._folder.cleanup()
        if self.failure is not None and kind is None:
            raise self.failure

    def do(self, work: Callable[[], None]) -> None:
        """Have the server's thread do this."""
        self._work.put(work)
        self._bell.send(b"")

    def do_now(self, work: Callable[[], None]) -> None:
        """Have the server's thread do this, and wait until it is done."""
        done = threading.Event()
        self.do(lambda: (work(), done.set()))  # type: ignore[func-returns-value]
        assert done.wait(100)

    def die(self) -> None:
        """Close all sockets without a word, and forget the clients (for `do`)."""
        for it in (self._control, *self._data):
            self._poller.unregister(it)
            it.close(linger=0)
        self._forget_clients()

    def restart(self, *, incarnation: int, known: Collection[int] = (), num_ranks: int | None = None) -> None:
        """Come back elsewhere after `die`, from a checkpoint that has these steps of every simulation (for `do`)."""
        self.num_ranks = num_ranks or self.num_ranks
        self.incarnation = incarnation
        self._bind_all()
        self.go_back_to(known)
        self.connection.write(self.path)

    def move(self, *, incarnation: int, known: Collection[int] = (), num_ranks: int | None = None) -> None:
        """Die and restart at once, from another thread."""
        self.do_now(lambda: (self.die(), self.restart(incarnation=incarnation, known=known, num_ranks=num_ranks)))  # type: ignore

    def restart_in_place(self, *, incarnation: int, known: Collection[int] = ()) -> None:
        """Another server at the same addresses, which the connection file does not yet tell (for `do`)."""
        self.incarnation = incarnation
        self._forget_clients()
        self.go_back_to(known)

    @property
    def dealing(self) -> Dealing:
        """The shares of the ranks in the steps."""
        return Dealing(self.routing, self.num_ranks)

    def go_back_to(self, known: Collection[int]) -> None:
        """Have these steps, if they came, and no others."""
        self.steps = defaultdict(dict, {key: it for key, it in self.steps.items() if key[1] in known})
        for rank in range(self.num_ranks):
            bits = np.zeros(1 + max((index for _, index in self.steps), default=0), bool)
            for simulation, index in self.steps:
                bits[index] |= rank == self.dealing.server_rank(simulation, index)
            self.known[rank] = np.packbits(bits, bitorder="little").tobytes()

    def commit(self) -> None:
        """All that was received is in a checkpoint now (for `do`)."""
        for key, received in self._received.items():
            self._durable[key] = received
            self._acknowledge(*key)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that the server received makes this true."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout=120)

    def acknowledge_all(self) -> None:
        """Send the acknowledgements that were withheld (for `do`)."""
        self.withholds_acks = False
        for rank, peer in self._openings:
            self._acknowledge(rank, peer)

    def stop_study(self, reason: str = "training converged") -> None:
        """Tell everybody that the study has ended, and why (for `do`)."""
        for rank, peer in self._openings:
            self._reply(self._data[rank], peer, Stop(text=reason))
            self._reply(self._data[rank], peer, Ack(received=self._received[rank, peer], durable=0, stop=True))

    def _bind_all(self) -> None:
        self._control, control = self._bind(f"control-{self.incarnation}")
        bound = [self._bind(f"data-{self.incarnation}-{rank}") for rank in range(self.num_ranks)]
        self._data = [it for it, _ in bound]
        self.endpoints = tuple((address,) for _, address in bound)
        for it in (self._control, *self._data):
            self._poller.register(it, zmq.POLLIN)
        self.connection = ConnectionFile(
            study="heat/1",
            incarnation=self.incarnation,
            host=socket.gethostname(),
            control=(control,),
            security=self._security(),
        )

    def _forget_clients(self) -> None:
        self.messages = defaultdict(list)
        self.num_sent = Counter()
        self._openings.clear()
        self._received.clear()
        self._durable.clear()
        self._ended.clear()

    def _security(self) -> Security | None:
        if self._keys is None:
            return None
        client = KeyPair.make()
        self.access.attaching = client.public
        return Security(
            server_public_key=self._keys.public,
            client_public_key=client.public,
            client_secret_key=client.secret,
        )

    def _bind(self, name: str) -> tuple["zmq.Socket[bytes]", str]:
        router = self._context.socket(zmq.ROUTER)
        if self._keys is not None:
            secure_server_socket(router, self._keys)
        if self._transport == "ipc":
            router.bind(f"ipc://{Path(self._folder.name) / name}")
        else:
            router.bind("tcp://127.0.0.1:*")
        return router, router.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()

    def _run(self) -> None:
        try:
            while True:
                for ready, _ in self._poller.poll():
                    if ready is self._ear:
                        self._ear.recv()
                        work = self._work.get()
                        if work is None:
                            return
                        work()
                        # The sockets may be others now.
                        break
                    if ready is self._door:
                        self._door.send_multipart(self.access.answer(self._door.recv_multipart()))
                        continue
                    if ready is self._control:
                        self._take_control(*self._control.recv_multipart())
                    else:
                        rank = self._data.index(ready)
                        self._take(rank, *ready.recv_multipart())
                    with self._changed:
                        self._changed.notify_all()
        except BaseException as error:
            self.failure = error

    def _take_control(self, peer: bytes, header: bytes) -> None:
        message = wire.decode(header)
        if isinstance(message, Invalidate):
            self.invalidated.append(message)
            answers = self.answers_to_invalidate
            self._reply(self._control, peer, answers.pop(0) if answers else Invalidated(simulation=message.simulation))
            return
        assert isinstance(message, Hello)
        if (self.incarnation, peer, message) == self._welcomed:
            # A busy machine kept the answer from the client for so long that it has asked again.
            self._reply(self._control, peer, self.welcome(message))
            return
        self.hellos.append(message)
        self.names.append(peer)
        answer = self.answers_to_hello.pop(0) if self.answers_to_hello else self.welcome(message)
        if answer is not None and not self.silent:
            self._reply(self._control, peer, answer)
            if isinstance(answer, Welcome):
                self._welcomed = self.incarnation, peer, message

    def welcome(self, hello: Hello) -> Welcome:
        """The ordinary answer."""
        return Welcome(
            study=hello.study,
            simulation=7 if hello.simulation is None else hello.simulation,
            attempt=hello.attempt % 2**31 if self.attempt is None else self.attempt,
            incarnation=self.incarnation,
            endpoints=self.endpoints,
            parameters=self.parameters,
            time_steps=self.time_steps,
            fields=self.fields,
            routing=self.routing,
            window_bytes=self.window_bytes,
            if_server_away=self.if_server_away,
            wait_s=self.wait_s,
        )

    def _take(self, rank: int, peer: bytes, header: bytes, *payload: bytes) -> None:
        message = wire.decode(header)
        self.messages[rank].append(message)
        if self.silent:
            return
        key = rank, peer
        match message:
            case Open() if message.incarnation != self.incarnation:
                self._reply(self._data[rank], peer, Refusal(reason=Reason.STALE_INCARNATION, text="say Hello again"))
            case Data() | End() | Ping() if key not in self._openings:
                self._reply(self._data[rank], peer, Refusal(reason=Reason.NOT_OPEN, text="nothing was opened"))
            case Open():
                answer = self.answers_to_open.pop(0) if self.answers_to_open else None
                if answer is None:
                    self._openings[key] = message
                    answer = Opened(
                        incarnation=self.incarnation,
                        credit=self.credit,
                        known=self.known.get(rank, b"").hex(),
                        segment=True if message.segment and self.reads_segments else UNSET,
                    )
                self._reply(self._data[rank], peer, answer)
            case Data():
                assert message.sequence == self._received[key]
                self._received[key] += 1
                opening = self._openings[key]
                if message.in_segment:
                    payload = _in_segment(message, opening, *payload)
                self._keep(rank, message, opening.static_blocks if message.static else opening.blocks, payload)
                answer = self.answers_to_data.pop(0) if self.answers_to_data else None
                if answer is not None:
                    self._reply(self._data[rank], peer, answer)
                elif not self.drops_acks and message.last:
                    self._acknowledge(rank, peer)
            case End():
                self._ended.add(key)
                if not self.drops_acks:
                    self._acknowledge(rank, peer)
            case Ping():
                self._acknowledge(rank, peer)
            case _:
                raise AssertionError(f"{message} is nothing for a data socket")

    def _keep(self, rank: int, data: Data, blocks: tuple[Block, ...], payload: tuple[bytes, ...]) -> None:
        ragged = {field.name for field in self.fields if field.ragged and not field.is_static}
        check_payload(data, blocks, payload, ragged)
        if data.checksum is not None:
            assert data.checksum == zlib.crc32(b"".join(payload))
        if data.field != ALL_FIELDS and blocks[data.field].field in ragged:
            block, fields = blocks[data.field], self.steps[data.simulation, data.index]
            before = fields[block.field].tobytes()[: data.offset] if data.offset else b""
            fields[block.field] = np.frombuffer(before + payload[0], np.uint8)
            if data.last or len(payload[0]) < MAX_PART_BYTES:
                fields[block.field] = fields[block.field].view(block.dtype).reshape(-1, *block.count[1:])
            return
        if data.field != ALL_FIELDS:
            fields = self.statics[data.simulation, rank] if data.static else self.steps[data.simulation, data.index]
            flat = _whole(fields, blocks[data.field]).reshape(-1).view(np.uint8)
            flat[data.offset : data.offset + len(payload[0])] = np.frombuffer(payload[0], np.uint8)
            return
        present = [block for i, block in enumerate(blocks) if data.present >> i & 1]
        stride = self.dealing.stride
        for block, frame in zip(present, payload, strict=True):
            if block.field in ragged:
                rows = np.frombuffer(frame, block.dtype).reshape(-1, *block.count[1:])
                self.num_sent[data.index] += block is present[0]
                self.steps[data.simulation, data.index][block.field] = rows
                continue
            rows = np.frombuffer(frame, block.dtype).reshape(data.num_steps, *block.count)
            place = tuple(slice(start, start + num) for start, num in zip(block.offset, block.count, strict=True))
            for i, row in enumerate(rows):
                index = data.index + i * stride
                assert rank == self.dealing.server_rank(data.simulation, index)
                self.num_sent[index] += block is present[0]
                _whole(self.steps[data.simulation, index], block)[place] = row

    def _acknowledge(self, rank: int, peer: bytes) -> None:
        mark = 0 if self.withholds_acks else self._received[rank, peer]
        ended = (rank, peer) in self._ended and not self.withholds_acks
        if self.makes_durable:
            self._durable[rank, peer] = mark
        self._reply(self._data[rank], peer, Ack(received=mark, durable=self._durable[rank, peer], ended=ended))

    def _reply(self, router: "zmq.Socket[bytes]", peer: bytes, message: Message) -> None:
        router.send_multipart([peer, *wire.encode(message)])


def _whole(fields: dict[str, np.ndarray], block: Block) -> np.ndarray:
    return fields.setdefault(block.field, np.zeros(block.shape, block.dtype))


def _in_segment(data: Data, opening: Open, place: bytes) -> tuple[bytes, ...]:
    """The payload that a message would have had, from the memory of the client."""
    assert opening.segment
    present = [block for i, block in enumerate(opening.blocks) if data.present >> i & 1]
    with open(f"/proc/{opening.segment.pid}/fd/{opening.segment.descriptor}", "rb") as segment:
        assert segment.read(16).hex() == opening.segment.token
        segment.seek(int.from_bytes(place, "little"))
        return tuple(segment.read(data.num_steps * wire.block_bytes(block)) for block in present)
