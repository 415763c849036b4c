"""A client rank's whole way of sending, from credit to retention, with a server that comes, goes and forgets."""

import re
import sys
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_server.client_api.session import Session
from stream_server.errors import StepsLost
from stream_server.messages.client import Hello, Routing
from tests.fakes.model_study import BLOCK, MAX_RANKS, SIMULATION, STEP_BYTES, Study, Watch, values_of
from tests.support.examples import examples

MAX_STEPS = 40
MAX_TROUBLES = 6
STEPS = st.integers(0, 12)
NUMBER = re.compile(r"lacks (\d+) time step")


class SessionMachine(RuleBasedStateMachine):
    """Steps are sent in any order. The model: what the server knows, and what the client must hold."""

    @initialize(
        routing=st.sampled_from(Routing),
        credit=st.integers(2, 8),
        window=st.integers(1, 60),
        may_pack=st.booleans(),
        num_client_ranks=st.integers(1, 2),
        known=st.sets(st.integers(0, MAX_STEPS - 1), max_size=3),
        order=st.just(list(range(MAX_STEPS))) | st.permutations(range(MAX_STEPS)),
        seed=st.integers(0, 2**16),
    )
    def begin(self, seed: int, order: list[int], num_client_ranks: int, **shape: object) -> None:
        self.study = Study(Random(seed), **shape)  # type: ignore[arg-type]
        self.order = order
        self.num_troubles = 0
        self.is_away = self.is_lost = False
        self.inhabited = self.study.inhabited()
        self.inhabited.__enter__()
        hello = Hello(study="s", simulation=SIMULATION, attempt=0, rank=0, num_ranks=num_client_ranks)
        self.client = Session(
            Watch(self.study),  # type: ignore[arg-type]
            hello,
            self.study.welcome(),
            silence_s=1e9,
        )
        self.client.blocks = (BLOCK,)

    @property
    def may_go_wrong(self) -> bool:
        return self.num_troubles < MAX_TROUBLES and not self.is_lost

    def trouble(self, after: int) -> None:
        self.num_troubles += 1
        self.send(after)

    def send(self, num: int) -> None:
        """The next steps; a client whose server is away keeps them until it is there again."""
        for index in self.order[len(self.study.entered) :][:num]:
            if self.is_lost:
                return
            self.study.now += self.study.step_s
            self.study.entered.append(index)
            if self.is_away and not self.client.may_resume():
                self.client.keep(index, 1, [values_of(index)])
                continue
            self.is_away = False
            self.converse(lambda index=index: self.client.send(index, 1, [values_of(index)]))
            # The server had these from an earlier attempt: they are not sent, nor held.
            self.study.safe |= (self.study.was_known - self.study.was_sent) & set(self.study.entered)

    def converse(self, say) -> None:  # type: ignore[no-untyped-def]
        if not self.study.is_there:
            self.study.start(self.study.committed, 1)
        try:
            say()
        except StepsLost as lost:
            self.is_lost = True
            missing = set(self.study.entered) - self.study.known
            num_lost = int(NUMBER.search(str(lost))[1])  # type: ignore[index]
            assert num_lost <= len(missing - self.study.must_be_held), "the client has let go what it had to hold"

    @rule(num=STEPS, turns=st.integers(0, 3))
    def steps_are_sent(self, num: int, turns: int) -> None:
        self.send(num)
        for _ in range(turns):
            self.study.take_turn()

    @rule(after=STEPS)
    def a_checkpoint_is_committed(self, after: int) -> None:
        self.send(after)
        self.study.commit()

    @precondition(lambda self: self.may_go_wrong)
    @rule(after=STEPS, num_ranks=st.integers(1, MAX_RANKS), data=st.data())
    def the_server_is_started_again(self, after: int, num_ranks: int, data: st.DataObject) -> None:
        """With what its newest checkpoint has, or an older one, if that was damaged."""
        self.trouble(after)
        known = sorted(self.study.committed)
        older = st.sets(st.sampled_from(known)) if known else st.just(set[int]())
        self.study.start(data.draw(st.just(set(known)) | older), num_ranks)

    @precondition(lambda self: self.may_go_wrong)
    @rule(after=STEPS, data=st.data(), by_server=st.booleans())
    def a_connection_is_lost(self, after: int, data: st.DataObject, by_server: bool) -> None:
        """A connection is lost, and with it all that is under way on it."""
        self.trouble(after)
        peers = [peer for peer in self.study.peers if not peer.is_lost]
        if peers:
            peer = peers[data.draw(st.integers(0, len(peers) - 1))]
            peer.under_way.clear()
            peer.answers.clear()
            peer.is_lost, peer.is_open = not by_server, False

    @precondition(lambda self: self.may_go_wrong and not self.is_away)
    @rule(after=STEPS, kept=STEPS)
    def the_client_goes_on_without_a_server(self, after: int, kept: int) -> None:
        self.trouble(after)
        if self.is_lost:
            return
        self.study.stop()
        self.is_away = True
        self.client.interrupt()
        self.send(kept)
        self.study.start(self.study.committed, 2)

    @invariant()
    def what_is_retained_is_bounded(self) -> None:
        if hasattr(self, "study"):
            under_way = MAX_RANKS * self.study.credit * STEP_BYTES
            released = self.study.credit * STEP_BYTES
            assert self.client._retention.num_bytes <= self.study.window_bytes + 2 * under_way + released
            assert self.client._num_released <= self.study.credit

    def teardown(self) -> None:
        """In the end the server has every step, if the client has not said that it cannot be."""
        if not hasattr(self, "study"):
            return
        try:
            if sys.exception() is not None:
                return
            if not self.is_lost:
                self.send(MAX_STEPS)
            if not self.is_lost:
                self.converse(self.client.finish)
            assert self.is_lost or self.study.known >= set(self.study.entered)
        finally:
            self.client.close()
            self.inhabited.__exit__(None, None, None)


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=examples(60), stateful_step_count=15, deadline=None)
