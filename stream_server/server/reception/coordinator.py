"""Rank 0's part: carries out what the roster decides, and tells the other ranks, by the callables it is given.

Why: docs/decisions/0002-mpi-in-the-main-thread.md
Why: docs/decisions/0014-reports-of-progress.md
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from stream_server.errors import MalformedMessage
from stream_server.failpoints import failpoint
from stream_server.messages import launcher_link, notices, operator, wire
from stream_server.messages.client import Data, End, Hello, Invalidate, Message, Open, Ping, Reason, Refusal
from stream_server.server.intake import mailbox
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.operator_desk import OperatorDesk
from stream_server.server.simulations.handshake import Action, Reply
from stream_server.server.simulations.roster import Roster

# A launcher waits that long for a command of the scheduler.
MOST_UNANSWERED = 60


class Coordinator:
    """Carries out what the roster and the handshake decide. Rank 0, receiver thread.

    `reply` answers a client on the control socket and `answer` an operator, `tell_launcher` and `tell_main` send to the
    launcher and the main thread, `apply` gives a notice to this rank, `channels` lead to the other ranks, `refuse`
    makes a refusal, `want_parameters` says for how many simulations parameters are wanted. `desk` is where
    operators ask.

    A client is welcomed to an attempt only when every rank knows of it, since it connects to all of them at once.
    """

    def __init__(
        self,
        roster: Roster,
        channels: Mapping[int, notices.Channel],
        *,
        access: CurveAccess,
        refuse: Callable[[Reason, str], Refusal],
        reply: Callable[[bytes, Message], None],
        answer: Callable[[bytes, operator.Answer], None],
        tell_launcher: Callable[[launcher_link.ToLauncher], None],
        tell_main: Callable[[mailbox.Event], None],
        apply: Callable[[notices.Notice], None],
        want_parameters: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.roster = roster
        self.channels = channels
        self.access = access
        self.refuse = refuse
        self.reply = reply
        self.answer = answer
        self.tell_launcher = tell_launcher
        self.tell_main = tell_main
        self.apply = apply
        self.want_parameters = want_parameters
        self.desk = OperatorDesk(roster, tell_launcher=tell_launcher, tell_main=tell_main, perform=self.perform)
        self._unheard: dict[tuple[int, int], dict[int, int]] = {}
        self._plan: launcher_link.Plan | None = None
        self._num_unanswered = 0

    def say_here(self) -> None:
        """Tell the launcher that we are there, once a second; if it never answers, the main thread is told."""
        self.tell_launcher(launcher_link.Rank0Alive(incarnation=self.roster.facts.incarnation))
        # Counted, not timed: a process that was stopped has not listened meanwhile.
        self._num_unanswered += 1
        if self._num_unanswered == MOST_UNANSWERED:
            self.tell_main(mailbox.LauncherSilence(is_over=False))

    def begin(self, plan: launcher_link.Plan) -> None:
        """Tell the launcher what to run, and all ranks if nothing is left to come."""
        self._plan = plan
        self._tell_plan()
        self.perform(self.roster.begin())
        self.want_parameters(self.roster.table.num_wanted)

    def suggested(self, parameters: Mapping[int, Mapping[str, float]]) -> None:
        """Simulations have got their parameters."""
        self.perform(self.roster.suggested(parameters))
        self.want_parameters(self.roster.table.num_wanted)

    def enough(self, reason: str) -> None:
        """No further parameters are suggested."""
        self.perform(self.roster.enough(reason))
        self.tell_main(mailbox.FinishAsked(reason=reason))

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out what the roster decided."""
        for action in actions:
            if isinstance(action, Reply):
                self.reply(action.peer, action.message)
            elif isinstance(action, notices.Notice):
                self.tell(action)
            elif isinstance(action, mailbox.SimulationsFailed | mailbox.SimulationWarning):
                self.tell_main(action)
            else:
                self.tell_launcher(action)

    def tell(self, notice: notices.Notice) -> None:
        """Give a notice to every rank."""
        failpoint("receiver.before_notice")
        numbers = {rank: channel.post(notice) for rank, channel in self.channels.items()}
        self.apply(notice)
        if isinstance(notice, notices.AttemptNotice):
            self._unheard[notice.simulation, notice.attempt] = numbers
            self.heard()

    def heard(self) -> None:
        """Other ranks may have confirmed notices."""
        for attempt, numbers in list(self._unheard.items()):
            if all(self.channels[rank].num_delivered > number for rank, number in numbers.items()):
                del self._unheard[attempt]
                self.perform(self.roster.ready(*attempt))

    def hear(self, peer: bytes, header: bytes, user: str | None) -> None:
        """Deal with one message of a client or an operator.

        `user` is its key, None where that is of no concern: over TCP without CURVE, and in the private folder.
        """
        if self.access.is_operator(user):
            self.answer(peer, self.desk.hear(header))
            return
        try:
            message = wire.decode(header)
        except MalformedMessage as problem:
            self.reply(peer, self.refuse(Reason.MALFORMED, str(problem)))
            return
        if isinstance(message, Open | Data | End | Ping):
            text = f"{type(message).__name__} belongs on a data connection; the server was started again: say Hello"
            self.reply(peer, self.refuse(Reason.STALE_INCARNATION, text))
        elif not isinstance(message, Hello | Invalidate):
            text = f"{type(message).__name__} is nothing that a client says on the control connection"
            self.reply(peer, self.refuse(Reason.MALFORMED, text))
        elif user is not None and (text := self.access.problem(user, message)):
            self.reply(peer, self.refuse(Reason.WRONG_KEY, text))
        elif isinstance(message, Invalidate):
            self.perform(self.roster.invalidate(peer, message))
        else:
            self._welcome(peer, message)

    def launcher(self, message: launcher_link.ToServer) -> None:
        """Word of the launcher."""
        if self._num_unanswered >= MOST_UNANSWERED:
            self.tell_main(mailbox.LauncherSilence(is_over=True))
        self._num_unanswered = 0
        match message:
            case launcher_link.AskPlan():
                self._tell_plan()
                self.perform(self.roster.standing())
            case launcher_link.Attempt():
                if message.goes_on:
                    # Of a simulation that is over all ranks hear nothing, but its clients may still ask here.
                    self.access.allow(message.simulation, message.attempt, message.public_key)
                self.perform(self.roster.launched(message))
            case launcher_link.Queued():
                self.roster.queued(message)
            case launcher_link.GaveUp():
                self.perform(self.roster.gave_up(message))
            case launcher_link.Dropped():
                self.perform(self.roster.dropped(message))
                self.tell_main(mailbox.FinishAsked(reason=message.reason))
            case launcher_link.Attached():
                self.perform(self.roster.attached(message.token, message.simulation, message.attempt))
            case launcher_link.NoneLeft():
                self.perform(self.roster.handshake.none_left(message))
            case launcher_link.TooMany():
                self.perform(self.roster.too_many(message.text))
            case launcher_link.Failed():
                self.perform(self.roster.failed(message.simulation, message.attempt, message.explanation, message.log))
                self.tell_main(mailbox.FromLauncher(message=message))
            case launcher_link.FailedLater():
                if self.roster.fails_later(message):
                    self.tell_main(mailbox.FromLauncher(message=message))
            case _:
                self.tell_main(mailbox.FromLauncher(message=message))
        self.want_parameters(self.roster.table.num_wanted)

    def share(self, rank: int, share: notices.Share) -> None:
        """A rank says how far its share of a simulation has come."""
        self.perform(self.roster.share(rank, share))

    def _tell_plan(self) -> None:
        if self._plan is None:
            # A launcher that is quick asks before there is one; `begin` tells it.
            return
        if self.roster.finish_order is not None:
            # Before the plan, of which nothing is to be started then.
            self.tell_launcher(self.roster.finish_order)
        self.tell_launcher(replace(self._plan, simulations=tuple(self.roster.plan)))
        if self.roster.stop_order is not None:
            # A client that asks now was not there when it was announced.
            self.tell_launcher(self.roster.stop_order)
        if self.desk.was_asked_to_leave:
            self.desk.tell_stopping()

    def _welcome(self, peer: bytes, message: Hello) -> None:
        actions = self.roster.hello(peer, message)
        self.perform(actions)
        if not any(isinstance(action, Reply) and action.peer == peer for action in actions):
            self.reply(peer, Refusal(reason=Reason.BUSY, text="the answer follows once the simulation may begin"))
