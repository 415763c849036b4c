"""One client rank's steps on their way to the study, whether its server is there or not."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stream_server.client_api.control import ask
from stream_server.client_api.conversation import Conversation
from stream_server.client_api.fields import Fields
from stream_server.client_api.messages import Away, Block, Hello, Invalidate, Invalidated, Stop, Welcome
from stream_server.client_api.watch import ConnectionWatch
from stream_server.errors import Refused, StepsLost, Unreachable
from stream_server.failpoints import failpoint


class Delivery:
    """Checks the user's arrays, has them sent, and knows what to do while the server is away.

    The server is away when it says nothing for `timeout_s` while it is waited for; what then happens is the study's
    to say (`Welcome.if_server_away`).
    """

    def __init__(self, watch: ConnectionWatch, hello: Hello, welcome: Welcome, *, timeout_s: float) -> None:
        self._watch = watch
        self._hello = replace(hello, simulation=welcome.simulation)
        self._welcome = welcome
        self._who = f"simulation {welcome.simulation} rank {hello.rank}"
        waits = welcome.if_server_away is Away.WAIT
        self._silence_s = max(timeout_s, welcome.wait_s) if waits else timeout_s
        self._fields = Fields(welcome.fields, rank=hello.rank, num_ranks=hello.num_ranks)
        self._conversation: Conversation | None = None
        self._is_away = False
        self._is_lost = False

    @property
    def attempt(self) -> int:
        """The number that the server gave it last."""
        return (self._welcome if self._conversation is None else self._conversation.welcome).attempt

    @property
    def stop_reason(self) -> str:
        """Why the study has ended, as far as the server told; empty before."""
        return "" if self._conversation is None else self._conversation.stop_reason

    def declare_field(self, name: str, shape: Sequence[int], offset: Sequence[int] | None) -> None:
        """Say where this rank's block of a field begins; before the first step."""
        self._fields.declare(name, shape, offset)

    def send(self, index: int, sample: Mapping[str, Any]) -> bool:
        """Send a step; False once the study has ended."""
        failpoint("client.before_send")
        if self._conversation is None:
            self._conversation = self._converse(self._fields.settle(sample))
        present, arrays = self._fields.arrays(sample)
        conversation = self._conversation
        if not self._is_away or self._may_resume(conversation):
            try:
                conversation.send(index, present, arrays)
                self._is_away = False
            except (Unreachable, StepsLost) as error:
                self._go_on_without(conversation, error)
        if self._is_away and not self._is_lost:
            conversation.keep(index, present, arrays)
        return not conversation.has_stopped

    def finish(self) -> None:
        """Wait until every step is settled on the server."""
        if self._conversation is None:
            self._conversation = self._converse(())
        if not self._is_away or self._may_resume(self._conversation, look_now=True):
            try:
                self._conversation.finish()
                return
            except (Unreachable, StepsLost) as error:
                self._go_on_without(self._conversation, error)
        self._say_that_it_ends_without()

    def invalidate(self, reason: str) -> None:
        """Withdraw all that was sent, and leave."""
        self.close()
        question = Invalidate(
            study=self._welcome.study,
            simulation=self._welcome.simulation,
            attempt=self.attempt,
            reason=reason,
        )
        try:
            answer = ask(question, self._watch, who=self._who, timeout_s=self._silence_s)
        except Unreachable:
            if self._welcome.if_server_away is not Away.CONTINUE:
                raise
            self._say_that_it_ends_without()
            return
        if not isinstance(answer, Invalidated | Stop):
            raise Refused(f"{self._who} could not be invalidated: {getattr(answer, 'text', answer)}")

    def abandon(self) -> None:
        """Leave unfinished, but let what was sent go out for a moment."""
        if self._conversation is not None:
            self._conversation.abandon()

    def close(self) -> None:
        """Leave without a word. May be called at any time, and again."""
        if self._conversation is not None:
            self._conversation.close()

    def _converse(self, blocks: Sequence[Block]) -> Conversation:
        return Conversation(self._watch, self._hello, self._welcome, blocks, silence_s=self._silence_s)

    def _may_resume(self, conversation: Conversation, *, look_now: bool = False) -> bool:
        return not self._is_lost and conversation.may_resume(look_now=look_now)

    def _go_on_without(self, conversation: Conversation, error: Unreachable | StepsLost) -> None:
        """The server is away: end the simulation, or let it run on, as the study says."""
        if self._welcome.if_server_away is not Away.CONTINUE:
            raise error
        self._is_away = True
        self._is_lost = isinstance(error, StepsLost)
        conversation.interrupt()

    def _say_that_it_ends_without(self) -> None:
        print(
            f"{self._who}: the server of study {self._welcome.study} is away. The simulation ends without it; "
            "a new attempt will produce what is missing.",
            file=sys.stderr,
        )
