"""The receiver thread of one server rank.

Why: docs/decisions/0004-receiver-naps.md
"""

import logging
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock, Thread
from types import TracebackType
from typing import Self

import numpy as np

from stream_server.buffers import Buffer
from stream_server.errors import MalformedMessage
from stream_server.messages import launcher_link, notices, operator, wire
from stream_server.messages.client import MAX_PART_BYTES, Message
from stream_server.server.checkpoint.restore import Part
from stream_server.server.intake import mailbox
from stream_server.server.intake.account import RankAccount
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.parameters import SimulationParameters
from stream_server.server.intake.source import ReceptionSnapshot
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.coordinator import Coordinator
from stream_server.server.reception.dispatcher import Dispatcher
from stream_server.server.reception.sockets import Endpoints, ReceiverSettings, Sockets
from stream_server.server.simulations.roster import Roster

MESSAGES_PER_TURN = 64
REPORT_S = 0.2
HERE_S = 1.0
# The pause after a turn, in which messages gather: a turn takes the interpreter lock from the training and has a fixed
# cost, however many messages it handles. Even a simulation whose credit is used up waits no longer than this, which is
# far less than its time step takes.
PAUSE_S = 0.0005
LARGEST_ITEM_BYTES = 16

log = logging.getLogger(__name__)


class Receiver:
    """Receives what simulations send, on a thread of its own, and keeps the ranks of the server informed.

    In the main thread: `bind`, `meet` with the other ranks' endpoints, then `with receiver:`; `post` and `account`
    while it runs, and `events` for what has happened. A message is handled to its end under `turn`: a thread that holds
    that lock sees no half-done state. An exception in the thread closes the buffer with it and stays in `error`.
    `receive_s` is the time spent in turns.
    """

    def __init__(
        self,
        *,
        buffer: Buffer,
        intake: Intake,
        access: CurveAccess,
        settings: ReceiverSettings,
    ) -> None:
        self.buffer = buffer
        self.intake = intake
        self.rank = rank = intake.state.rank
        self.access = access
        self.events: queue.SimpleQueue[mailbox.Event] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.turn = Lock()
        self.receive_s = 0.0
        self.sockets = Sockets(rank=rank, max_unread=_most_messages(intake), access=access, settings=settings)
        self.dispatcher = Dispatcher(intake=intake, access=access, reply=self._reply, tell_main=self.events.put)
        self._coordinator: Coordinator | None = None
        self._channels = {
            other: notices.Channel() for other in (range(1, intake.state.dealing.num_ranks) if rank == 0 else [0])
        }
        self._commands: deque[mailbox.Command] = deque()
        self._is_leaving = False
        self._has_ended = False
        self._is_behind = False
        self._reported_at = self._here_at = float("-inf")
        self._thread = Thread(target=self._run, name=f"receiver-{rank}")

    def bind(self) -> Endpoints:
        """Open the sockets; returns where this rank can be reached. Main thread."""
        return self.sockets.open()

    def meet(
        self,
        endpoints: Sequence[Endpoints],
        roster: Roster | None = None,
        want_parameters: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Get to know all ranks. Main thread, before the thread starts.

        `roster` is rank 0's, as is `want_parameters`, which is told for how many simulations parameters are wanted.
        """
        assert (roster is not None) == (self.rank == 0)
        self.sockets.meet(endpoints[0])
        if roster is None:
            self._channels[0].post(notices.RankAlive(rank=self.rank))
            return
        self._coordinator = Coordinator(
            roster,
            self._channels,
            access=self.access,
            refuse=self.intake.state.refuse,
            reply=lambda peer, message: self.sockets.send_control(peer, *wire.encode(message)),
            answer=lambda peer, answer: self.sockets.send_control(peer, operator.encode(answer)),
            tell_launcher=lambda message: self.sockets.send_link(launcher_link.encode(message)),
            tell_main=self.events.put,
            apply=self.dispatcher.apply,
            want_parameters=want_parameters,
        )

    def __enter__(self) -> Self:
        self.buffer.on_room = self.sockets.wake
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_leaving = True
        self.sockets.wake()
        self._thread.join()
        self.buffer.on_room = None
        self.dispatcher.close()
        self.sockets.close()

    def close(self) -> None:
        """Close the sockets of a receiver that was bound but never started."""
        self.sockets.close()

    def post(self, command: mailbox.Command) -> None:
        """Give the receiver something to do. Any thread."""
        self._commands.append(command)
        self.sockets.wake()

    def show(self, training: operator.TrainingStatus) -> None:
        """Keep how the training is doing, for an operator who asks. Rank 0's main thread; never waits."""
        assert self._coordinator is not None
        self._coordinator.desk.training = training

    @property
    def parameters(self) -> SimulationParameters:
        """The parameters of the simulations that have begun, in the order of study.json."""
        return self.dispatcher.parameters

    def account(self) -> RankAccount:
        """An account of all received so far. Main thread."""
        with self.turn:
            return self.intake.account()

    @property
    def num_received(self) -> int:
        """Number of steps that this rank has settled, ever. Main thread; the receiver waits meanwhile."""
        with self.turn:
            return self.intake.num_received

    def stop_receiving(self) -> None:
        """Take nothing more in. Main thread."""
        with self.turn:
            self.dispatcher.is_receiving = False

    def snapshot(self) -> ReceptionSnapshot:
        """Freeze what has been received so far. Main thread; the receiver waits meanwhile."""
        recorder = self.intake.settlement.recorder
        with self.turn:
            self.intake.checkpoint_taken()
            sync = None if recorder is None else partial(recorder.sync, recorder.position())
            return ReceptionSnapshot(
                buffer=self.buffer.freeze(),
                validation=self.intake.settlement.validation.freeze(),
                state={name: part.state_dict() for name, part in self.parts.items()},
                roster=None if self._coordinator is None else self._coordinator.roster.state_dict(),
                received_marks=self.dispatcher.acknowledgements.received_marks(),
                sync_record=sync or (lambda: None),
            )

    @property
    def parts(self) -> dict[str, Part]:
        """The parts of a snapshot, which are restored in this order, before the thread starts."""
        return {"intake": self.intake, "parameters": self.dispatcher.parameters, "receiver": self}

    def state_dict(self) -> dict[str, float]:
        return {"receive_s": self.receive_s}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.receive_s = state["receive_s"]

    @staticmethod
    def redealt(states: Sequence[Mapping[str, float]], rank: int, dealing: object) -> dict[str, float]:
        return {"receive_s": max(state["receive_s"] for state in states)}

    def _run(self) -> None:
        try:
            # A value too large for the type that is kept becomes infinite, which the intake notices.
            with np.errstate(all="ignore"):
                # Before anything that a client may already have asked for: the launcher drops what strangers say.
                self._say_here()
                while not self._is_leaving:
                    self.sockets.wait(REPORT_S)
                    started = time.perf_counter()
                    with self.turn:
                        self._take_turn()
                    self.receive_s += time.perf_counter() - started
                    if not self._is_behind:
                        time.sleep(PAUSE_S)
                with self.turn:
                    self._take_turn()
        except BaseException as error:
            log.exception("The receiver of rank %d failed", self.rank)
            self.error = error
            self.buffer.close(error)

    def _take_turn(self) -> None:
        sockets, dispatcher = self.sockets, self.dispatcher
        num_heard = 0
        for peer, header, user, process in sockets.data(dispatcher.connections, MESSAGES_PER_TURN):
            dispatcher.hear(peer, header, sockets.payload, user, process)
            num_heard += 1
        self._is_behind = num_heard == MESSAGES_PER_TURN
        dispatcher.end_turn()
        if sockets.has_control_messages:
            self._hear_others()
        if not self._is_behind:
            sockets.guard.turn += 1
        if self._commands:
            self._obey()
        self._report()
        self._end_reception()
        if self._channels:
            self._send_notices()

    def _hear_others(self) -> None:
        # In this order: the launcher names an attempt and its key before the attempt's client is there to use them.
        if self._coordinator is not None:
            for frame in self.sockets.link():
                self._coordinator.launcher(launcher_link.to_server(frame))
        self._hear_ranks()
        self.sockets.answer_newcomers()
        if self._coordinator is not None:
            for peer, header, user in self.sockets.control():
                self._coordinator.hear(peer, header, user)

    def _reply(self, peer: bytes, message: Message) -> None:
        self.sockets.send_data(peer, *wire.encode(message))

    def _hear_ranks(self) -> None:
        for rank, frame in self.sockets.notices():
            try:
                numbered = notices.decode(frame)
                channel = self._channels[rank]
            except (MalformedMessage, KeyError):
                self.intake.state.refused["notice"] += 1
                continue
            notice = channel.receive(numbered)
            if isinstance(notice, notices.RankAlive):
                channel.renew()
            elif isinstance(notice, notices.Share):
                assert self._coordinator is not None
                self._coordinator.share(rank, notice)
            elif isinstance(notice, notices.EndEarly):
                self._end_early(notice)
            elif notice is not None:
                self.dispatcher.apply(notice)
        if self._coordinator is not None:
            self._coordinator.heard()

    def _obey(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            match command:
                case mailbox.BeginStudy():
                    assert self._coordinator is not None
                    self._coordinator.begin(command.plan)
                case mailbox.ParametersSuggested():
                    assert self._coordinator is not None
                    self._coordinator.suggested(command.parameters)
                case notices.EndEarly():
                    self._end_early(command)
                case mailbox.CheckpointCommitted():
                    self.dispatcher.acknowledgements.acknowledge_durable(command.received_marks)
                    if self._coordinator is not None:
                        said = launcher_link.Committed(checkpoint=command.checkpoint, batches=command.batches)
                        self.sockets.send_link(launcher_link.encode(said))
                case launcher_link.Leaving():
                    self.sockets.send_link(launcher_link.encode(command))
                case mailbox.EnoughSuggested():
                    assert self._coordinator is not None
                    self._coordinator.enough(command.reason)
                case launcher_link.StopSimulations() if self._coordinator is None:
                    self.dispatcher.apply(notices.StopNotice(reason=command.reason))
                case launcher_link.StopSimulations():
                    self._coordinator.perform(self._coordinator.roster.stop(command))

    def _end_early(self, notice: notices.EndEarly) -> None:
        if self._coordinator is not None:
            self._coordinator.perform(self._coordinator.roster.end_early(notice))
        else:
            self._channels[0].post(notice)

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._here_at >= HERE_S:
            self._say_here()
        is_due = now - self._reported_at >= REPORT_S
        if is_due:
            self._reported_at = now
            self.dispatcher.acknowledgements.acknowledge_owed()
        # Ends of shares are awaited, so they are told at once. Other progress is told every REPORT_S.
        for share in self.intake.changes(only_complete=not is_due):
            if self._coordinator is not None:
                self._coordinator.share(0, share)
            else:
                self._channels[0].post(share)

    def _say_here(self) -> None:
        self._here_at = time.monotonic()
        if self._coordinator is not None:
            self._coordinator.say_here()

    def _end_reception(self) -> None:
        dispatcher = self.dispatcher
        is_over = dispatcher.is_round_over or (dispatcher.is_final and not self._has_ended)
        if not is_over or self.intake.settlement.has_waiting:
            return
        dispatcher.end_turn()
        dispatcher.is_round_over = False
        self.buffer.close(reopens=not dispatcher.is_final)
        if dispatcher.is_final:
            self._has_ended = True
            self.events.put(mailbox.ReceptionEnded())

    def _send_notices(self) -> None:
        now = time.monotonic()
        for rank, channel in self._channels.items():
            for numbered in channel.outgoing(now):
                self.sockets.send_notice(rank, notices.encode(numbered))


def _most_messages(intake: Intake) -> int:
    """How many messages one client rank may have under way: its credit, each step in as many parts as it has."""
    state = intake.state
    parts, static_parts = (
        sum(-(-math.prod(spec.shape) * LARGEST_ITEM_BYTES // MAX_PART_BYTES) for spec in fields.values())
        for fields in (state.fields, state.static_fields)
    )
    return state.credit * parts + static_parts + MESSAGES_PER_TURN
