"""Rank 0 of a server of one rank, without threads and sockets: the real roster, and for a ledger a count of steps."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stream_server.messages import launcher_link, notices
from stream_server.messages.client import Away, Routing, TimeSteps, Welcome
from stream_server.messages.curve import KeyPair
from stream_server.server.intake import mailbox
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.coordinator import Coordinator
from stream_server.server.simulations.roster import Roster
from tests.support.connections import NOWHERE

NUM_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint: what the roster knew, and how many steps of each simulation were settled."""

    roster: dict[str, Any]
    settled: Mapping[int, int]


@dataclass(kw_only=True)
class OneRank:
    """One start of the server; it goes on with the `checkpoint` that was committed last, if there is one.

    `to_launcher` is what it has said and nobody has heard, `from_launcher` what it has not heard.
    """

    incarnation: int
    num_simulations: int
    num_spare: int
    checkpoint: Checkpoint | None
    to_launcher: deque[launcher_link.ToLauncher] = field(default_factory=deque)
    from_launcher: deque[launcher_link.ToServer] = field(default_factory=deque)
    settled: dict[int, int] = field(default_factory=dict)
    received: dict[tuple[int, int], int] = field(default_factory=dict)
    failed: str = ""

    def __post_init__(self) -> None:
        facts = Welcome(
            study="s",
            simulation=0,
            attempt=0,
            parameters={},
            incarnation=self.incarnation,
            endpoints=(("ipc://nowhere",),),
            time_steps=TimeSteps(num=NUM_STEPS),
            fields=(),
            routing=Routing.STEPS,
            window_bytes=1,
            if_server_away=Away.WAIT,
            wait_s=1.0,
        )
        self.roster = Roster(
            facts,
            [{"x": float(i)} for i in range(self.num_simulations + self.num_spare)],
            num_planned=self.num_simulations,
            num_held_out=0,
            num_ranks=1,
        )
        if self.checkpoint is not None:
            self.settled = dict(self.checkpoint.settled)
            finished = {it: NUM_STEPS for it, num in self.settled.items() if num == NUM_STEPS}
            self.roster.load_state_dict(self.checkpoint.roster, finished)
        self.coordinator = Coordinator(
            self.roster,
            {},
            access=CurveAccess(KeyPair.make()),
            refuse=_refuse,
            reply=lambda peer, message: None,
            answer=lambda peer, answer: None,
            tell_launcher=self.to_launcher.append,
            tell_main=self._hear_failure,
            apply=lambda notice: None,
        )
        self.say_here()
        plan = launcher_link.Plan(
            study="s", incarnation=self.incarnation, output_dir="/study", connection=NOWHERE, simulations=()
        )
        self.coordinator.begin(plan)

    @property
    def is_over(self) -> bool:
        """Nothing more is to come, in the one way or the other."""
        return self.roster.table.all_over or bool(self.failed)

    def say_here(self) -> None:
        """As once a second."""
        self.to_launcher.append(launcher_link.Rank0Alive(incarnation=self.incarnation))

    def listen(self) -> None:
        """Hear what the launcher has said; a study that is over then tells it to leave."""
        while self.from_launcher:
            self.coordinator.launcher(self.from_launcher.popleft())
        if self.is_over:
            self.coordinator.perform(
                self.roster.stop(launcher_link.StopSimulations(reason="the study is over", grace_s=5.0))
            )

    def admits(self, simulation: int, attempt: int) -> bool:
        """Whether the clients of an attempt may send."""
        entry = self.roster.entries[simulation]
        return entry.phase.value == "running" and entry.attempt == attempt

    def take_step(self, simulation: int, attempt: int, index: int) -> None:
        """A client sends a step, perhaps again."""
        assert index <= self.settled.get(simulation, 0), "the client has forgotten a step that it was asked for"
        self.settled[simulation] = max(self.settled.get(simulation, 0), index + 1)
        self.received[simulation, attempt] = self.received.get((simulation, attempt), 0) + 1
        self.tell(simulation, attempt)

    def tell(self, simulation: int, attempt: int) -> None:
        """How far a simulation is, to the roster."""
        num = self.settled.get(simulation, 0)
        share = notices.Share(
            simulation=simulation,
            attempt=attempt,
            received=self.received.get((simulation, attempt), 0),
            blocked=False,
            accepted=num,
            rejected=0,
            complete=num == NUM_STEPS,
            total=NUM_STEPS,
        )
        self.coordinator.share(0, share)

    def save(self) -> Checkpoint:
        """The part of a checkpoint that it saves."""
        return Checkpoint(roster=self.roster.state_dict(), settled=dict(self.settled))

    def _hear_failure(self, event: mailbox.Event) -> None:
        if isinstance(event, mailbox.SimulationsFailed):
            self.failed = event.text


def _refuse(*_: object) -> Any:
    raise AssertionError("nobody said anything that is to be refused")
