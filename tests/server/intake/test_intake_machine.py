"""The receiving sides of all ranks, from the frames of clients to ledger and stream, through checkpoints and restarts.

The model: a set of steps that are settled, of which a checkpoint is a copy, and which parts of a step have arrived.
"""

import sys
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_server.client_api.retention import Bits
from stream_server.messages import notices
from stream_server.messages.client import Ack, Opened, Ping, Reason, Refusal, Routing, Stop
from stream_server.messages.routing import Dealing
from tests.fakes.intake_clients import ClientRank, Line
from tests.support.examples import examples
from tests.support.intake_ranks import Key, Saved, ServerRank, StudyShape, U, V, is_fit

MAX_STEPS = 9
AT_ONCE = 3
MAX_TROUBLES = 6
AFTER = st.integers(0, 3)
ATTEMPT_IS_OVER = (Reason.STALE_ATTEMPT, Reason.UNKNOWN_SIMULATION)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The states that all ranks saved, each at a moment of its own, with the steps that the model held settled then."""

    parts: dict[int, Saved]
    settled: dict[int, set[Key]]

    def is_whole(self, num_ranks: int) -> bool:
        return len(self.parts) == num_ranks


class IntakeMachine(RuleBasedStateMachine):
    """Simulations of one or two client ranks send to one, two or three server ranks; not all clients behave.

    Before what is out of the ordinary, all goes on as it should for some rounds (`after`).
    """

    @initialize(
        num_ranks=st.integers(1, 3),
        num_simulations=st.integers(1, AT_ONCE),
        num_clients=st.integers(1, 2),
        knows_steps=st.booleans(),
        routing=st.sampled_from(Routing),
        credit=st.integers(2, 5),
        capacity=st.integers(1, 6),
        with_optional=st.booleans(),
        num_drawn=st.integers(0, 2),
        data=st.data(),
    )
    def begin(
        self,
        num_ranks: int,
        num_simulations: int,
        num_clients: int,
        knows_steps: bool,
        routing: Routing,
        credit: int,
        capacity: int,
        with_optional: bool,
        num_drawn: int,
        data: st.DataObject,
    ) -> None:
        self.shape = StudyShape(
            routing=routing,
            num_steps=MAX_STEPS if knows_steps else None,
            credit=credit,
            room=credit * AT_ONCE,
            capacity=capacity,
            fields=(U, V) if with_optional else (U,),
        )
        self.num_clients = num_clients
        self.num_drawn = num_drawn
        lengths = st.just(MAX_STEPS) if knows_steps else st.integers(0, MAX_STEPS)
        orders = {i: range(data.draw(lengths)) for i in range(num_simulations)}
        self.orders = {i: data.draw(st.just(list(it)) | st.permutations(it)) for i, it in orders.items()}
        self.attempts = dict.fromkeys(self.orders, 0)
        self.finished: set[int] = set()
        self.incarnation = self.num_troubles = 0
        self.committed: Checkpoint | None = None
        self.start(num_ranks)

    def start(self, num_ranks: int) -> None:
        """A server of so many ranks begins, or goes on with what is committed."""
        self.incarnation += 1
        committed = self.committed
        parts = [] if committed is None else [part for _, part in sorted(committed.parts.items())]
        self.settled = set() if committed is None else set().union(*committed.settled.values())
        # The stream is judged by all that came into it on the timeline that goes on.
        self.came = {key for key in self.settled if is_fit(key)}
        self.ranks = [
            ServerRank(self.shape, self.came, rank=rank, num_ranks=num_ranks, incarnation=self.incarnation, saved=parts)
            for rank in range(num_ranks)
        ]
        self.arrived: dict[tuple[Key, int], set[int]] = {}
        self.durable: set[Key] = set(self.settled)
        self.taken: Checkpoint | None = None
        self.clients: list[ClientRank] = []
        self.past_clients: list[ClientRank] = []
        self.complete: dict[int, set[int]] = {i: set() for i in self.orders}
        ledgers = [rank.intake.state.ledger.entries for rank in self.ranks]
        self.finished = {i for i in self.orders if all(i in ledger and ledger[i].complete for ledger in ledgers)}
        for simulation in self.orders.keys() - self.finished:
            self.attempt(simulation, goes_on=self.incarnation > 1)
        self.every_step_is_where_it_belongs()

    def tell(self, notice: notices.Notice) -> None:
        """Rank 0 speaks to all ranks, which hear it when they have dealt with what clients have said."""
        for rank in self.ranks:
            self.end_turn(rank)
            rank.dispatcher.apply(notice)

    def attempt(self, simulation: int, *, goes_on: bool = False) -> None:
        """The current attempt of a simulation begins, or goes on with a new server."""
        number = self.attempts[simulation]
        self.retire(simulation)
        self.tell(notices.AttemptNotice(simulation=simulation, attempt=number, parameters={}, goes_on=goes_on))
        self.clients += [
            ClientRank(
                self.shape,
                self.ranks,
                who=(simulation, number, rank),
                num_ranks=self.num_clients,
                order=self.orders[simulation],
                incarnation=self.incarnation,
            )
            for rank in range(self.num_clients)
        ]

    @property
    def may_go_wrong(self) -> bool:
        """Trouble is rare, since little comes together where there is nothing else."""
        return self.num_troubles < MAX_TROUBLES

    def retire(self, simulation: int) -> None:
        """Its attempt has ended, though its clients may still speak."""
        self.past_clients += [client for client in self.clients if client.simulation == simulation]
        self.clients = [client for client in self.clients if client.simulation != simulation]

    def pick(self, data: st.DataObject, clients: list[ClientRank]) -> ClientRank:
        return clients[data.draw(st.integers(0, len(clients) - 1))]

    @property
    def alive(self) -> list[ClientRank]:
        return [it for it in self.clients if not it.is_refused]

    @property
    def sending(self) -> list[ClientRank]:
        return [it for it in self.alive if it.is_open and not it.has_sent_all]

    @property
    def ending(self) -> list[ClientRank]:
        return [it for it in self.alive if it.is_open and it.has_sent_all]

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), most=st.integers(1, 4), in_parts=st.booleans(), times=st.integers(1, 9))
    def a_client_goes_on(self, data: st.DataObject, most: int, in_parts: bool, times: int) -> None:
        client = self.pick(data, self.alive)
        for _ in range(times):
            if not client.is_refused:
                self.go_on(client, most, in_parts=in_parts)

    def go_on(self, client: ClientRank, most: int, *, in_parts: bool = False) -> None:
        """Let a well-behaved client do its next action."""
        if not client.is_open:
            client.open()
        elif not client.has_sent_all:
            self.send(client, most, in_parts=in_parts)
        elif not client.has_said_end:
            client.end()
        else:
            for line in client.lines:
                line.server.hear(line.peer, Ping())
        self.read(client)

    def send(self, client: ClientRank, most: int, *, in_parts: bool = False) -> None:
        before = {id(line): len(line.sent) for line in client.lines}
        client.send(most, in_parts=in_parts)
        sent = [key for line in client.lines for _, keys in line.sent[before[id(line)] :] for key in keys]
        self.note_arrival(client, sent)

    def note_arrival(self, client: ClientRank, keys: list[Key]) -> None:
        if client.simulation in self.finished or client.attempt != self.attempts[client.simulation]:
            return
        for key in keys:
            arrived = self.arrived.setdefault((key, client.attempt), set())
            arrived.add(client.rank)
            if len(arrived) == self.num_clients:
                self.settled.add(key)

    @precondition(lambda self: self.sending)
    @rule(data=st.data(), after=AFTER)
    def a_client_sends_a_step_again(self, data: st.DataObject, after: int) -> None:
        self.all_go_on(after)
        if not self.sending:
            return
        client = self.pick(data, self.sending)
        if client.num_ranks == 1 and client.position:
            index = client.order[data.draw(st.integers(0, client.position - 1))]
            client.send_again(index)
            self.note_arrival(client, [(client.simulation, index)])
            self.read(client)

    @precondition(lambda self: self.sending and self.may_go_wrong)
    @rule(
        data=st.data(), breach=st.sampled_from(["incarnation", "attempt", "simulation", "field", "step"]), after=AFTER
    )
    def a_client_breaks_a_rule(self, data: st.DataObject, breach: str, after: int) -> None:
        """It is told so, and nothing of it counts."""
        self.all_go_on(after)
        if not self.sending:
            return
        self.num_troubles += 1
        client = self.pick(data, self.sending)
        index = client.order[client.position]
        line = client.line(index)
        num_refused = sum(line.server.intake.state.refused.values())
        match breach:
            case "incarnation":
                client.send_steps([index], incarnation=self.incarnation - 1)
            case "attempt":
                client.send_steps([index], attempt=client.attempt + 1)
            case "simulation":
                client.send_steps([index], simulation=client.simulation + 1)
            case "field":
                client.send_steps([index], present=0b111)
            case "step":
                client.send_steps([index], index=10**7)
        assert sum(line.server.intake.state.refused.values()) == num_refused + 1
        self.read(client, may_be_refused=True)

    @precondition(lambda self: self.sending)
    @rule(data=st.data(), after=AFTER)
    def a_client_ignores_its_window(self, data: st.DataObject, after: int) -> None:
        """Steps beyond the window are refused."""
        self.all_go_on(after)
        if not self.sending:
            return
        client = self.pick(data, self.sending)
        while not (client.is_refused or client.has_sent_all):
            index = client.order[client.position]
            client.position += 1
            if index not in client.line(index).known:
                client.send_steps([index])
                self.read(client, may_be_refused=True)
                self.note_arrival(client, [] if client.is_refused else [(client.simulation, index)])

    @precondition(lambda self: self.past_clients)
    @rule(data=st.data(), after=AFTER)
    def a_client_of_an_older_attempt_sends(self, data: st.DataObject, after: int) -> None:
        self.all_go_on(after)
        client = self.pick(data, self.past_clients)
        if client.is_open and not client.has_sent_all and not client.is_refused:
            client.send(1)
        else:
            client.open()
        self.read(client, may_be_refused=True)

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def a_client_claims_too_many_steps(self, data: st.DataObject) -> None:
        client = self.pick(data, self.ending)
        line = client.lines[0]
        if self.shape.num_steps is not None or client.has_said_end:
            line.server.hear(line.peer, client.the_end(share=MAX_STEPS + 1, total=MAX_STEPS + 1))
            assert isinstance(line.server.answers[line.peer].pop(), Refusal)

    @rule(data=st.data())
    def turns_end(self, data: st.DataObject) -> None:
        for rank in data.draw(st.just(self.ranks) | st.lists(st.sampled_from(self.ranks), max_size=2)):
            self.end_turn(rank)

    def end_turn(self, rank: ServerRank) -> None:
        rank.dispatcher.end_turn()
        for client in [*self.clients, *self.past_clients]:
            self.read(client, may_be_refused=client in self.past_clients)

    @rule(data=st.data(), num=st.integers(1, 3))
    def the_training_draws(self, data: st.DataObject, num: int) -> None:
        for rank in data.draw(st.just(self.ranks) | st.lists(st.sampled_from(self.ranks), max_size=1)):
            for _ in range(min(num, len(rank.stream.inside))):
                rank.stream.draw()

    def the_ranks_say_how_far_they_are(self) -> None:
        """Do as rank 0's roster does: a simulation is finished when all ranks have their share."""
        for number, rank in enumerate(self.ranks):
            for share in rank.intake.changes():
                if share.attempt != self.attempts[share.simulation] or share.simulation in self.finished:
                    continue
                if share.complete:
                    assert self.share_of(share.simulation, number) <= self.settled
                    self.complete[share.simulation].add(number)
        for simulation in self.orders.keys() - self.finished:
            if len(self.complete[simulation]) == len(self.ranks):
                self.finished.add(simulation)
                self.tell(notices.Terminal(simulation=simulation, state="finished"))

    def share_of(self, simulation: int, rank: int) -> set[Key]:
        dealing = Dealing(self.shape.routing, len(self.ranks))
        belongs = [dealing.server_rank(simulation, i) == rank for i in range(MAX_STEPS)]
        return {(simulation, index) for index in self.orders[simulation] if belongs[index]}

    @precondition(lambda self: len(self.finished) < len(self.orders) and self.may_go_wrong)
    @rule(data=st.data(), after=AFTER)
    def an_attempt_fails(self, data: st.DataObject, after: int) -> None:
        self.all_go_on(after)
        if len(self.finished) == len(self.orders):
            return
        self.num_troubles += 1
        simulation = data.draw(st.sampled_from(sorted(self.orders.keys() - self.finished)))
        if data.draw(st.booleans()):
            self.retire(simulation)
            self.tell(notices.AttemptOver(simulation=simulation, attempt=self.attempts[simulation]))
        self.next_attempt(simulation)

    def next_attempt(self, simulation: int) -> None:
        self.attempts[simulation] += 1
        self.complete[simulation].clear()
        self.attempt(simulation)

    @rule(num=st.integers(1, 3), is_committed=st.booleans(), after=AFTER)
    def ranks_are_saved(self, num: int, is_committed: bool, after: int) -> None:
        """One rank after the other is captured, between two turns; meanwhile the others go on."""
        self.all_go_on(after)
        taken = self.taken or Checkpoint(parts={}, settled={})
        for number in [it for it in range(len(self.ranks)) if it not in taken.parts][:num]:
            self.end_turn(self.ranks[number])
            mine = {key for i in self.orders for key in self.settled & self.share_of(i, number)}
            taken.parts[number], taken.settled[number] = self.ranks[number].save(), mine
        self.taken = taken
        if is_committed and taken.is_whole(len(self.ranks)):
            self.the_checkpoint_is_committed()

    @precondition(lambda self: self.taken is not None and self.taken.is_whole(len(self.ranks)))
    @rule()
    def the_checkpoint_is_committed(self) -> None:
        assert self.taken is not None
        self.committed, self.taken = self.taken, None
        self.durable = set().union(*self.committed.settled.values())
        for number, rank in enumerate(self.ranks):
            rank.dispatcher.acknowledgements.acknowledge_durable(self.committed.parts[number].received_marks)
        for client in [*self.clients, *self.past_clients]:
            self.read(client, may_be_refused=client in self.past_clients)

    @precondition(lambda self: self.taken is not None and self.may_go_wrong)
    @rule()
    def the_checkpoint_is_given_up(self) -> None:
        self.taken = None

    @precondition(lambda self: self.may_go_wrong)
    @rule(num_ranks=st.integers(1, 3), after=AFTER)
    def the_server_is_started_again(self, num_ranks: int, after: int) -> None:
        self.all_go_on(after)
        self.num_troubles += 1
        self.start(num_ranks)

    def read(self, client: ClientRank, *, may_be_refused: bool = False) -> None:
        """A client reads what it was told, and none of it is a lie."""
        for line in client.lines:
            answers = line.server.answers[line.peer]
            while answers:
                match answers.popleft():
                    case Opened(known=known, credit=credit):
                        assert credit == self.shape.credit
                        line.is_open, line.known, line.earlier = True, Bits(bytes.fromhex(known)), set(self.settled)
                    case Ack() as ack:
                        self.check(client, line, ack)
                    case Refusal(reason=Reason.BUSY):
                        pass
                    case Refusal() as refusal:
                        is_over = client.simulation in self.finished and refusal.reason in ATTEMPT_IS_OVER
                        assert may_be_refused or is_over, refusal
                        line.refuse(refusal.sequence)
                    case Stop():
                        assert client.simulation in self.finished, "nobody stopped the study"
                        line.is_refused = True

    def check(self, client: ClientRank, line: Line, ack: Ack) -> None:
        assert line.received <= ack.received <= line.num_messages
        assert line.durable <= ack.durable <= ack.received
        if client in self.clients:
            settled = line.below(ack.received)
            assert settled <= self.settled
            waiting = line.server.stream.keys(line.server.stream.backlog)
            assert (settled - line.earlier).isdisjoint(waiting), "has no room yet"
        assert line.below(ack.durable) <= self.durable, "not in a committed checkpoint"
        if ack.ended:
            assert self.share_of(client.simulation, self.ranks.index(line.server)) <= self.settled
        line.received, line.durable, line.ended = ack.received, ack.durable, line.ended or ack.ended

    @invariant()
    def nobody_has_more_under_way_than_the_credit(self) -> None:
        for rank in getattr(self, "ranks", []):
            assert rank.intake.num_under_way <= max(self.shape.room, rank.stream.num_waited)
            for simulation in self.orders:
                attempt = rank.intake.attempt(simulation)
                assert attempt is None or attempt.num_under_way <= self.shape.credit

    def every_step_is_where_it_belongs(self) -> None:
        """Between two turns the ledgers have what the model has, each rank its share."""
        for number, rank in enumerate(self.ranks):
            rank.dispatcher.end_turn()
            expected = {key for i in self.orders for key in self.settled & self.share_of(i, number)}
            assert rank.settled == expected
        assert self.came == {key for key in self.settled if is_fit(key)}

    def teardown(self) -> None:
        """From wherever it got to, clients that behave bring their simulations to the end."""
        if not hasattr(self, "shape") or sys.exception() is not None:
            return
        self.every_step_is_where_it_belongs()
        for simulation in self.orders.keys() - self.finished:
            self.next_attempt(simulation)
        self.num_drawn = self.shape.capacity
        rounds = iter(range(4 * MAX_STEPS * AT_ONCE))
        while not self.is_over and next(rounds, None) is not None:
            self.all_go_on(1)
        everything = {(simulation, index) for simulation, order in self.orders.items() for index in order}
        assert self.settled == everything
        self.every_step_is_where_it_belongs()
        assert self.is_over, "a simulation does not come to its end"
        assert all(rank.intake.num_under_way == 0 for rank in self.ranks)

    @property
    def is_over(self) -> bool:
        """All simulations are finished, all clients know it, and nothing waits."""
        told = all(line.ended for client in self.alive for line in client.lines)
        return told and self.finished == self.orders.keys() and not any(rank.stream.backlog for rank in self.ranks)

    def all_go_on(self, rounds: int) -> None:
        """Let all clients go on while nothing goes wrong."""
        for _ in range(rounds):
            for client in self.alive:
                self.go_on(client, 2)
            for rank in self.ranks:
                self.end_turn(rank)
                for _ in range(min(self.num_drawn, len(rank.stream.inside))):
                    rank.stream.draw()
        self.the_ranks_say_how_far_they_are()


TestIntake = IntakeMachine.TestCase
TestIntake.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


def test_what_waits_gets_the_room_of_a_simulation_that_is_withdrawn() -> None:
    shape = StudyShape(routing=Routing.STEPS, num_steps=MAX_STEPS, credit=3, room=6, capacity=2, fields=(U,))
    rank = ServerRank(shape, set(), rank=0, num_ranks=1, incarnation=1)
    for simulation in range(2):
        rank.dispatcher.apply(notices.AttemptNotice(simulation=simulation, attempt=0, parameters={}))
        client = ClientRank(shape, [rank], who=(simulation, 0, 0), num_ranks=1, order=range(MAX_STEPS), incarnation=1)
        client.open()
        client.lines[0].is_open = True
        client.send(2)
        rank.dispatcher.end_turn()
    assert rank.stream.keys(rank.stream.inside) == [(0, 0), (0, 1)]
    rank.dispatcher.apply(notices.Terminal(simulation=0, state="invalid"))
    assert rank.stream.keys(rank.stream.inside) == [(1, 0), (1, 1)]
