"""The lives of simulations as one server rank sees them: what it has heard of each, and what it answers.

Pure: notices and messages in, answers out; no sockets, no arrays, no clock. Receiver thread.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from stream_server.client_api.messages import (
    MAX_UNKNOWN_STEPS,
    Ack,
    End,
    FieldSpec,
    Open,
    Opened,
    Reason,
    Refusal,
    Routing,
    TimeSteps,
)
from stream_server.client_api.routing import share, stride
from stream_server.server.assembly import Assembly
from stream_server.server.data_rules import DataRules
from stream_server.server.layout import Layout
from stream_server.server.ledger import Ledger
from stream_server.server.numbering import Numbering
from stream_server.server.openings import Openings
from stream_server.server.room import Room
from stream_server.server.settlement import Settlement
from stream_server.server.tracks import Connection, Track

NO_LIMIT = 2**62


class Tracker:
    """The bookkeeping of one server rank's intake.

    A simulation may have `credit` steps under way: in a slot, but not yet in the stream. `room` is how many steps
    of all simulations together have a place beside a full buffer, so that a step inside its window always finds a
    slot, and half-assembled steps never keep out those parts that would complete them. `claim(num)` gives free
    slots.

    `openings` let client ranks in, `assembly` puts steps together out of what they send, `settlement` sees them into
    the stream. `refused` counts by reason how often something was refused. A checkpoint is asked for when a simulation
    has sent `max_fresh` steps since the last one.
    """

    def __init__(
        self,
        *,
        rank: int,
        num_ranks: int,
        routing: Routing,
        time_steps: TimeSteps,
        fields: Iterable[FieldSpec],
        study: str,
        epoch: int,
        credit: int,
        room: int,
        claim: Callable[[int], list[int]],
        max_fresh: int = NO_LIMIT,
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.routing = routing
        self.time_steps = time_steps
        self.fields = {spec.name: spec for spec in fields}
        self.epoch = epoch
        self.credit = credit
        self.ledger = Ledger()
        self.refused: Counter[str] = Counter()
        self.room = Room(size=room, credit=credit)
        self.openings = Openings(
            study=study, epoch=epoch, fields=self.fields.values(), room=self.room, refuse=self.refuse
        )
        self.settlement = Settlement(self.room, max_fresh=max_fresh)
        self.numbering = Numbering(
            time_steps=time_steps,
            stride=stride(routing, num_ranks),
            limit=MAX_UNKNOWN_STEPS if time_steps.num is None else time_steps.num,
        )
        self._tracks: dict[int, Track] = {}
        self.assembly = Assembly(
            tracks=self._tracks,
            rules=DataRules(tracks=self._tracks, numbering=self.numbering, epoch=epoch, credit=credit),
            numbering=self.numbering,
            fields=self.fields,
            credit=credit,
            ledger=self.ledger,
            settlement=self.settlement,
            claim=claim,
            refuse=self.refuse,
        )

    @property
    def num_under_way(self) -> int:
        """Slots that steps hold before they are in the stream; never above the room."""
        return self.settlement.num_waiting + sum(len(track.filling) for track in self._tracks.values())

    def track(self, simulation: int) -> Track | None:
        """What is known of a simulation; None before its first attempt."""
        return self._tracks.get(simulation)

    def begin(self, simulation: int, attempt: int, *, goes_on: bool = False) -> None:
        """This attempt is the current one from now on; what older ones left half-assembled goes.

        `goes_on`: it ran in an earlier epoch, and does not send again what is known of it.
        """
        old = self._tracks.get(simulation)
        if old is not None:
            if attempt <= old.attempt or old.terminal:
                return
            self.settlement.release(old)
        num = self.time_steps.num
        ours = share(self.routing, simulation, self.rank, self.num_ranks, self.numbering.limit)
        track = self._tracks[simulation] = Track(
            simulation=simulation,
            attempt=attempt,
            marks=self.ledger[simulation],
            layout=Layout(fields=self.fields, num_ranks=1),
            first=ours.start if ours else self.numbering.limit,
            owed=None if num is None and ours else len(ours),
            total=num,
            num_known=0 if goes_on else None,
        )
        self.settlement.conclude(track)
        self.settlement.changed[simulation] = track

    def over(self, simulation: int, attempt: int) -> None:
        """This attempt has ended; nothing more of it is taken."""
        track = self._tracks.get(simulation)
        if track is not None and track.attempt == attempt:
            track.over = True
            self.settlement.release(track)

    def finish(self, simulation: int, state: str) -> None:
        """The simulation has its terminal state; nothing more of it is taken."""
        track = self._tracks.get(simulation)
        if track is not None:
            track.terminal = state
            self.settlement.release(track)
            track.ends.clear()
            track.layout.blocks.clear()

    def open(self, peer: bytes, message: Open) -> Connection | Refusal | None:
        """A client rank says what it will send; None: it has to wait, and `come_in` will look at it again."""
        track = self._tracks.get(message.simulation)
        connection = self.openings.answer(peer, message, track)
        if track is not None and not isinstance(connection, Refusal):
            self.settlement.changed[track.simulation] = track
            if message.rank == 0:
                track.num_known = len(track.marks.settled) if track.num_known is None else track.num_known
        return connection

    def has_finished(self, message: Open) -> bool:
        """Whether who opens has said its end, and lost the connection before it heard that all is settled."""
        track = self._tracks.get(message.simulation)
        if track is None or not track.finished:
            return False
        return (message.study, message.attempt, message.epoch) == (self.openings.study, track.attempt, self.epoch)

    def come_in(self) -> list[tuple[bytes, Connection | Refusal]]:
        """The answers to those `Open`s that need not wait any longer."""
        waiting = list(self.openings.waiting.items())
        answers = ((peer, self.open(peer, message)) for peer, message in waiting)
        return [(peer, answer) for peer, answer in answers if answer is not None]

    def opened(self, connection: Connection) -> Opened:
        """The answer to an `Open` that was let in."""
        return Opened(epoch=self.epoch, credit=self.credit, known=connection.track.marks.settled.packed())

    def ack(self, connection: Connection, *, stop: bool = False) -> Ack:
        """How far this connection has come."""
        ended = connection.ended and connection.track.complete
        return Ack(received=connection.received, durable=connection.durable, ended=ended, stop=stop)

    def refuse(self, reason: Reason, text: str, sequence: int | None = None) -> Refusal:
        """Say no, and count it."""
        self.refused[reason.name.lower()] += 1
        return Refusal(reason=reason, text=text, sequence=sequence)

    def finished_sending(self, connection: Connection, end: End) -> Refusal | None:
        """A client rank has sent all."""
        track = connection.track
        problem = self._end_problem(track, connection, end)
        if problem is not None:
            return self.refuse(Reason.WRONG_STEP, problem)
        connection.ended = True
        if connection.rank == 0 and connection.rank not in track.ends:
            self.ledger.duplicates += track.num_known or 0
        track.ends[connection.rank] = end
        if len(track.ends) == track.layout.num_ranks:
            track.owed, track.total = end.share, end.total
        self.settlement.conclude(track)
        self.settlement.changed[track.simulation] = track
        return None

    def state_dict(self) -> dict[str, Any]:
        """What must survive this rank: the ledger, and in which types the fields are kept."""
        return {
            "ledger": self.ledger.state_dict(),
            "dtypes": {name: dtype.str for name, dtype in self.openings.dtypes.items()},
            "refused": dict(self.refused),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a ledger, before anything has begun."""
        assert not self._tracks
        self.ledger.load_state_dict(state["ledger"])
        self.openings.dtypes.update({name: np.dtype(text) for name, text in state["dtypes"].items()})
        self.refused.update(state["refused"])

    def saved(self) -> None:
        """A checkpoint was taken: what came so far is in it."""
        self.settlement.has_pressure = False
        for track in self._tracks.values():
            track.num_fresh = 0

    def _end_problem(self, track: Track, connection: Connection, end: End) -> str | None:
        if (end.simulation, end.attempt, end.epoch) != (track.simulation, track.attempt, self.epoch):
            return f"the connection was opened for simulation {track.simulation}, attempt {track.attempt}"
        if end.total > self.numbering.limit:
            return f"the simulation says that it sent {end.total} time steps, but it has only {self.numbering.limit}"
        if track.owed is not None and end.share > track.owed:
            text = f"client rank {connection.rank} says that it sent {end.share} steps to server rank {self.rank}"
            return f"{text}, whose share is {track.owed}"
        for rank, other in track.ends.items():
            if (other.share, other.total) != (end.share, end.total):
                return f"client rank {connection.rank} sent {end.total} steps, but rank {rank} sent {other.total}"
        return None
