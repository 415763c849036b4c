"""Rank 0's part: carries out what the roster decides, and tells the other ranks. It acts through its doors alone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from stream_server.client_api import wire
from stream_server.client_api.messages import Data, End, Hello, Invalidate, Message, Open, Ping, Reason, Refusal
from stream_server.errors import MalformedMessage
from stream_server.failpoints import failpoint
from stream_server.launcher import link
from stream_server.server import events, notices
from stream_server.server.access import Access
from stream_server.server.actions import Action, Reply, StudyFailed, Tell, ToLauncher
from stream_server.server.roster import Roster


class Coordinator:
    """Rank 0's door keeper. Receiver thread.

    Its doors: `reply` answers a client on the control socket, `tell_launcher` and `tell_main` speak for
    themselves, `apply` gives a notice to this rank. `channels` lead to the other ranks. `refuse` says no, and counts
    it.

    A client is welcomed to an attempt only when every rank has heard of it, for it turns to all of them at once.
    """

    def __init__(
        self,
        roster: Roster,
        channels: Mapping[int, notices.Channel],
        *,
        access: Access | None,
        refuse: Callable[[Reason, str], Refusal],
        reply: Callable[[bytes, Message], None],
        tell_launcher: Callable[[link.ToLauncher], None],
        tell_main: Callable[[events.Event], None],
        apply: Callable[[notices.Notice], None],
    ) -> None:
        self.roster = roster
        self.channels = channels
        self.access = access
        self.refuse = refuse
        self.reply = reply
        self.tell_launcher = tell_launcher
        self.tell_main = tell_main
        self.apply = apply
        self._unheard: dict[tuple[int, int], dict[int, int]] = {}
        self._plan: link.Plan | None = None

    def begin(self, plan: link.Plan) -> None:
        """Tell the launcher what to run, and all ranks if nothing is left to come."""
        self._plan = plan
        self._tell_plan()
        self.perform(self.roster.begin())

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out what the roster decided."""
        for action in actions:
            match action:
                case Reply():
                    self.reply(action.peer, action.message)
                case Tell():
                    self.tell(action.notice)
                case ToLauncher():
                    self.tell_launcher(action.message)
                case StudyFailed():
                    self.tell_main(events.StudyFailed(text=action.text))

    def tell(self, notice: notices.Notice) -> None:
        """Give a notice to every rank."""
        failpoint("receiver.before_notice")
        numbers = {rank: channel.post(notice) for rank, channel in self.channels.items()}
        self.apply(notice)
        if isinstance(notice, notices.Attempt):
            self._unheard[notice.simulation, notice.attempt] = numbers
            self.heard()

    def heard(self) -> None:
        """Other ranks may have confirmed notices."""
        for attempt, numbers in list(self._unheard.items()):
            if all(self.channels[rank].num_delivered > number for rank, number in numbers.items()):
                del self._unheard[attempt]
                self.perform(self.roster.ready(*attempt))

    def hear(self, peer: bytes, header: bytes, user: str | None) -> None:
        """Deal with one message of a client; `user` is its key over TCP, None where that is of no concern."""
        try:
            message = wire.decode(header)
        except MalformedMessage as problem:
            self.reply(peer, self.refuse(Reason.MALFORMED, str(problem)))
            return
        if isinstance(message, Open | Data | End | Ping):
            text = f"{type(message).__name__} belongs on a data connection; the server was started again: say Hello"
            self.reply(peer, self.refuse(Reason.STALE_EPOCH, text))
        elif not isinstance(message, Hello | Invalidate):
            text = f"{type(message).__name__} is nothing that a client says on the control connection"
            self.reply(peer, self.refuse(Reason.MALFORMED, text))
        elif self.access is not None and user is not None and (text := self.access.problem(user, message)):
            self.reply(peer, self.refuse(Reason.WRONG_KEY, text))
        elif isinstance(message, Invalidate):
            self.perform(self.roster.invalidate(peer, message))
        else:
            self._welcome(peer, message)

    def launcher(self, message: link.ToServer) -> None:
        """Word of the launcher."""
        match message:
            case link.AskPlan():
                self._tell_plan()
                self.perform(self.roster.standing())
            case link.Attempt():
                if self.access is not None and message.goes_on:
                    # Of a simulation that is over all ranks hear nothing, but its clients may still ask here.
                    self.access.allow(message.simulation, message.attempt, message.public_key)
                self.perform(self.roster.launched(message))
            case link.GaveUp():
                self.perform(self.roster.gave_up(message))
            case link.Attached():
                self.perform(self.roster.attached(message.token, message.simulation, message.attempt))
            case link.NoneLeft():
                self.perform(self.roster.lobby.none_left(message))
            case link.TooMany():
                self.perform(self.roster.too_many(message.text))
            case link.Failed():
                self.perform(self.roster.failed(message.simulation, message.attempt))
                self.tell_main(events.FromLauncher(message=message))
            case _:
                self.tell_main(events.FromLauncher(message=message))

    def share(self, rank: int, share: notices.Share) -> None:
        """A rank says how far its share of a simulation has come."""
        self.perform(self.roster.share(rank, share))

    def _tell_plan(self) -> None:
        if self._plan is None:
            # A launcher that is quick asks before there is one; `begin` tells it.
            return
        self.tell_launcher(replace(self._plan, simulations=tuple(self.roster.plan)))
        if self.roster.stop_order is not None:
            # Whoever asks now was not there when it was said.
            self.tell_launcher(self.roster.stop_order)

    def _welcome(self, peer: bytes, message: Hello) -> None:
        actions = self.roster.lobby.hello(peer, message)
        self.perform(actions)
        if not any(isinstance(action, Reply) and action.peer == peer for action in actions):
            self.reply(peer, Refusal(reason=Reason.BUSY, text="the answer follows once the simulation may begin"))
