"""The receiver thread: the only sockets of a server rank."""

import logging
import os
import queue
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

import numpy as np
import zmq

from stream_server.client_api import wire
from stream_server.client_api.messages import (
    MAX_PART_BYTES,
    Ack,
    Hello,
    Invalidate,
    Message,
    Ping,
    Reason,
    Refusal,
)
from stream_server.errors import MalformedMessage
from stream_server.launcher import link
from stream_server.server import events, notices
from stream_server.server.access import Access
from stream_server.server.clients import Clients
from stream_server.server.coordinator import Coordinator, Decider
from stream_server.server.endpoints import Endpoints, ReceiverSettings
from stream_server.server.intake import Intake, Sink
from stream_server.server.tracker import Tracker
from stream_server.server.validation_store import ValidationStore

MESSAGES_PER_TURN = 64
TURN_MS = 200
REPORT_S = 0.2
LINGER_MS = 1000
MAX_CONTROL_BYTES = 1024 * 1024
MAX_PEER_BYTES = 64 * 1024 * 1024
NUM_PORT_TRIES = 100

Socket = zmq.Socket[bytes]
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StopStudy:
    """Main to receiver: nothing more is wanted from any simulation."""

    reason: str


Command = StopStudy | link.Plan


class Receiver:
    """Receives what simulations send, on a thread of its own, and keeps the ranks of the server informed.

    In the main thread: `bind`, then `meet` the other ranks, then `with receiver:`; `post` and `account` while it
    runs. `events` tells the main thread what has happened. One message is dealt with to its end under `turn`, so
    whoever holds that lock sees no half-done state. An exception in the thread closes the buffer with it and is
    kept in `error`.
    """

    def __init__(
        self,
        *,
        rank: int,
        num_ranks: int,
        buffer: Sink,
        tracker: Tracker,
        validation: ValidationStore,
        access: Access | None,
        settings: ReceiverSettings,
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.buffer = buffer
        self.tracker = tracker
        self.validation = validation
        self.access = access
        self.settings = settings
        self.turn = Lock()
        self.events: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.receive_s = 0.0
        self.cpu_s = 0.0
        self.intake = Intake(buffer=buffer, tracker=tracker, validation=validation, nonfinite=settings.nonfinite)
        self.clients = Clients(tracker=tracker, intake=self.intake, access=access, reply=self._reply_data)
        self._coordinator: Coordinator | None = None
        self._sockets: SocketSet | None = None
        self._channels = {other: notices.Channel() for other in range(1, num_ranks)} if rank == 0 else {}
        self._commands: deque[Command] = deque()
        self._is_awake = False
        self._has_left = False
        self._final = False
        self._closed = False
        self._next_report = 0.0
        self._thread = Thread(target=self._run, name=f"receiver-{rank}")

