"""Drives a policy and its model through the same history."""

from collections.abc import Callable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_server.buffers.policy import Policy
from tests.buffers.models import Model
from tests.support.buffer_saving import plain, stored
from tests.support.examples import examples

MACHINE_SETTINGS = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


class PolicyMachine(RuleBasedStateMachine):
    """Subclasses give `pairs`, a strategy of (constructor of the policy, constructor of the model)."""

    pairs: st.SearchStrategy[tuple[Callable[[], Policy], Callable[[], Model]]]

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        self.new_policy, new_model = data.draw(self.pairs)
        self.policy, self.model = self.new_policy(), new_model()
        self.next_slot = 0

    @precondition(lambda self: not self.model.closed)
    @rule(num=st.integers(0, 12))
    def put(self, num: int) -> None:
        num = min(num, self.policy.room)
        slots = list(range(self.next_slot, self.next_slot + num))
        self.next_slot += num
        self.model.put(slots, self.policy.put(slots).tolist())

    @rule(num=st.integers(1, 9))
    def draw(self, num: int) -> None:
        size = self.policy.ready(num)
        if not self.model.closed:
            assert size == (num if self.model.gate(num) else 0)
        elif self.model.num_left:
            assert 1 <= size <= min(num, self.model.num_left)
        else:
            assert size == 0
        if size:
            self.model.draw(self.policy.draw(size))

    @precondition(lambda self: self.model.draws)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from(sorted(self.model.draws)), max_size=4, unique=True))
        assert self.policy.remove(np.array(slots, np.intp)) == self.model.withdraw(slots)

    @rule()
    def save_and_restore(self) -> None:
        state = stored(self.policy.state_dict())
        self.policy = self.new_policy()
        self.policy.load_state_dict(state)
        assert plain(self.policy.state_dict()) == plain(state)

    @precondition(lambda self: self.next_slot > 20)
    @rule()
    def close(self) -> None:
        surplus = self.policy.close().tolist()
        assert self.model.unseen.isdisjoint(surplus)
        assert not (self.model.closed and surplus)
        self.model.forget(surplus)
        self.model.closed = True

    @precondition(lambda self: self.model.closed)
    @rule()
    def reopen(self) -> None:
        self.policy.reopen()
        self.model.closed = False

    @invariant()
    def the_policy_holds_what_the_model_holds(self) -> None:
        assert sorted(self.policy.slots().tolist()) == sorted(self.model.draws)
        assert self.policy.population == len(self.model.draws)
        assert self.policy.num_unseen == len(self.model.unseen)
        assert self.policy.num_left == self.model.num_left
        if not self.model.closed:
            assert self.policy.room == self.model.room

    def teardown(self) -> None:
        if hasattr(self, "policy"):
            self.model.forget(self.policy.close().tolist())
            self.model.closed = True
            while size := self.policy.ready(4):
                self.model.draw(self.policy.draw(size))
            assert self.model.num_left == 0
