"""Which steps of which simulations have come to this server rank, and where the next one belongs.

Pure: notices and messages in, slots and refusals out; no sockets, no arrays, no clock. Receiver thread.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stream_server.client_api.messages import (
    ALL_FIELDS,
    MAX_PART_BYTES,
    MAX_UNKNOWN_STEPS,
    Ack,
    Data,
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
from stream_server.server import notices
from stream_server.server.layout import Layout
from stream_server.server.ledger import Ledger
from stream_server.server.openings import Openings
from stream_server.server.room import Room
from stream_server.server.streak import Streak
from stream_server.server.tracks import Connection, Run, Step, Track


class Tracker:
    """The bookkeeping of one server rank's intake.

    A simulation may have `credit` steps under way: in a slot, but not yet in the stream. `room` is how many steps
    of all simulations together have a place beside a full buffer, so that a step inside its window always finds a
    slot, and half-assembled steps never keep out those parts that would complete them. `claim(num)` gives free
    slots; those that are needed no more gather in `freed`. `has_settled_share`: the next `changes` have news that
    others wait for.
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
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.routing = routing
        self.time_steps = time_steps
        self.fields = {spec.name: spec for spec in fields}
        self.epoch = epoch
        self.credit = credit
        self.claim = claim
        self.ledger = Ledger()
        self.refused: Counter[str] = Counter()
        self.freed: list[int] = []
        self.room = Room(size=room, credit=credit)
        self.openings = Openings(
            study=study, epoch=epoch, fields=self.fields.values(), room=self.room, refuse=self.refuse
        )
        self._tracks: dict[int, Track] = {}
        self._committed: deque[Run] = deque()
        self._changed: dict[int, Track] = {}
        self.has_settled_share = False
        self._stride = stride(routing, num_ranks)
        self._limit = MAX_UNKNOWN_STEPS if time_steps.num is None else time_steps.num

    @property
    def num_under_way(self) -> int:
        """Slots that steps hold before they are in the stream; never above the room."""
        waiting = sum(len(run.slots) for run in self._committed)
        return waiting + sum(len(track.filling) for track in self._tracks.values())

    @property
    def has_committed(self) -> bool:
        """Steps wait for room in the buffer."""
        return bool(self._committed)

    def label(self, index: int) -> int:
        """The time step that an index stands for."""
        return self.time_steps.first + index * self.time_steps.every

    def track(self, simulation: int) -> Track | None:
        """What is known of a simulation; None before its first attempt."""
        return self._tracks.get(simulation)

    def begin(self, simulation: int, attempt: int) -> None:
        """This attempt is the current one from now on; what older ones left half-assembled goes."""
        old = self._tracks.get(simulation)
        if old is not None:
            if attempt <= old.attempt or old.terminal:
                return
            self._release(old)
        num = self.time_steps.num
        ours = share(self.routing, simulation, self.rank, self.num_ranks, self._limit)
        track = self._tracks[simulation] = Track(
            simulation=simulation,
            attempt=attempt,
            marks=self.ledger[simulation],
            layout=Layout(fields=self.fields, num_ranks=1),
            first=ours.start if ours else self._limit,
            owed=None if num is None and ours else len(ours),
            total=num,
        )
        self._conclude(track)
        self._changed[simulation] = track

    def over(self, simulation: int, attempt: int) -> None:
        """This attempt has ended; nothing more of it is taken."""
        track = self._tracks.get(simulation)
        if track is not None and track.attempt == attempt:
            track.over = True
            self._release(track)

    def finish(self, simulation: int, state: str) -> None:
        """The simulation has its terminal state; nothing more of it is taken."""
        track = self._tracks.get(simulation)
        if track is not None:
            track.terminal = state
            self._release(track)
            track.ends.clear()
            track.layout.blocks.clear()

    def withdraw(self, simulation: int) -> None:
        """The committed steps of a simulation do not wait any longer: they were taken out of the buffer."""
        for run in [run for run in self._committed if run.track.simulation == simulation]:
            self._committed.remove(run)
            self._leave(run, len(run.slots))

    def open(self, peer: bytes, message: Open) -> Connection | Refusal | None:
        """A client rank says what it will send; None: it has to wait, and `come_in` will look at it again."""
        track = self._tracks.get(message.simulation)
        connection = self.openings.answer(peer, message, track)
        if track is not None and not isinstance(connection, Refusal):
            self._changed[track.simulation] = track
            if message.rank == 0:
                track.num_known = len(track.marks.settled) if track.num_known is None else track.num_known
        return connection

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
        return Ack(received=connection.received, durable=0, ended=ended, stop=stop)

    def refuse(self, reason: Reason, text: str, sequence: int | None = None) -> Refusal:
        """Say no, and count it."""
        self.refused[reason.name.lower()] += 1
        return Refusal(reason=reason, text=text, sequence=sequence)

    def place(self, connection: Connection, data: Data) -> Run | list[Step | None] | Refusal:
        """Where the steps of a message belong: a run that it completes, or steps, with None for those known already.

        Once the payload is in the slots, `accept` or `reject` the run; of steps, `arrived` tells which are whole. If
        the payload is not what it should be, `drop` the run or `abandon` the steps.
        """
        refusal = self._misfit(connection, data)
        if refusal is not None:
            return refusal
        track, num = connection.track, data.num_steps
        indices = range(data.index, data.index + num * self._stride, self._stride)
        in_one_go = connection.alone and data.field == ALL_FIELDS and not track.filling
        if in_one_go and not track.marks.settled.has_any(indices):
            if track.num_waiting + num > self.credit:
                return self._outside(connection, data, track.num_waiting + num)
            message = connection.take(num)
            assert message is not None
            claims = [(connection, message)]
            return Run(track, track.generation, indices, self.claim(num), self._absent(connection, data), claims)
        return self._place_steps(connection, data, indices)

    def room_for_streak(self, connection: Connection, index: int) -> int:
        """How many steps from `index` on need not be looked at one by one: all are new, and inside the window."""
        track = connection.track
        is_current = not (track.over or track.terminal) and track is self._tracks[track.simulation]
        if not is_current or connection.ended or track.filling or index < track.marks.settled.stop:
            return 0
        return min(self.credit - track.num_waiting, -(-(self._limit - index) // self._stride))

    def place_streak(self, connection: Connection, index: int, slots: list[int], num_messages: int) -> Run:
        """The run of so many messages in a row, within the room for a streak and with all fields of each step."""
        connection.next_sequence += num_messages - 1
        message = connection.take(len(slots))
        assert message is not None
        indices = range(index, index + len(slots) * self._stride, self._stride)
        return Run(connection.track, connection.track.generation, indices, slots, (), [(connection, message)])

    def streak_after(
        self, connection: Connection, data: Data, header: bytes, arrays: Mapping[str, Any]
    ) -> Streak | None:
        """What may follow this message, where its like can be received as they are into whole rows."""
        places = connection.places
        is_plain = connection.alone and data.field == ALL_FIELDS and data.checksum is None
        if not is_plain or self._absent(connection, data) or not all(place.direct for place in places):
            return None
        return Streak.after(
            data, header, stride=self._stride, targets=[(place, arrays[place.field]) for place in places]
        )

    def arrived(self, connection: Connection, data: Data, steps: Iterable[Step | None]) -> list[Run] | Refusal:
        """The payload of these steps is in their slots; returns those that are whole now, to `accept` or `reject`."""
        if data.field != ALL_FIELDS:
            return self._part_arrived(connection, data, steps)
        return self._whole_arrived(connection, data, steps)

    def whole(self, connection: Connection) -> list[Run]:
        """The steps of this simulation that waited only to know that no other client rank sends a part of them."""
        track, layout = connection.track, connection.track.layout
        if not track.filling or not layout.closed:
            return []
        steps = list(track.filling.values())
        return [self._complete(step) for step in steps if step.senders == layout.senders and not _torn_field(step)]

    def abandon(self, connection: Connection, steps: Iterable[Step | None]) -> None:
        """What this client rank sent of these steps is no good: forget it."""
        for step in steps:
            if step is None:
                continue
            step.senders &= ~(1 << connection.rank)
            for claim in [claim for claim in step.claims if claim[0] is connection]:
                step.claims.remove(claim)
                connection.settle(claim[1], 1)
            if not step.senders and not step.claims:
                del step.track.filling[step.index]
                self.freed.append(step.slot)

    def drop(self, run: Run) -> list[Connection]:
        """A run is no good: forget it."""
        self.freed += run.slots
        return self._settle(run, len(run.slots))

    def accept(self, run: Run) -> None:
        """Steps are committed, and wait for room in the buffer until `in_stream`."""
        run.track.marks.accept(run.indices)
        run.track.num_waiting += len(run.slots)
        self._committed.append(run)
        self._arrive(run)

    def reject(self, run: Run, reason: str) -> list[Connection]:
        """Steps are not fit to be trained on: settled, but not in the stream. Returns as `in_stream` does."""
        run.track.marks.reject(run.indices, reason)
        self._arrive(run)
        return self.drop(run)

    def in_stream(self, num: int) -> list[Connection]:
        """The next `num` committed steps have found room; returns the connections whose marks may have moved."""
        moved: dict[bytes, Connection] = {}
        while num:
            run = self._committed[0]
            part = min(num, len(run.slots))
            num -= part
            if part == len(run.slots):
                self._committed.popleft()
            moved |= {connection.peer: connection for connection in self._leave(run, part)}
            del run.slots[:part]
        return list(moved.values())

    def set_apart(self, run: Run) -> list[Connection]:
        """Steps were accepted, but never go into the buffer: they wait no longer. Returns as `in_stream` does."""
        run.track.marks.accept(run.indices)
        self._arrive(run)
        return self.drop(run)

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
        self._conclude(track)
        self._changed[track.simulation] = track
        return None

    def changes(self) -> list[notices.Share]:
        """How far the simulations have come about which there is news since the last call."""
        shares = [
            notices.Share(
                simulation=track.simulation,
                attempt=track.attempt,
                received=track.received,
                blocked=track.blocked,
                accepted=track.marks.num_accepted,
                rejected=track.marks.num_rejected,
                complete=track.complete,
                total=track.total,
            )
            for track in self._changed.values()
            if not track.terminal
        ]
        self._changed.clear()
        self.has_settled_share = False
        return shares

    def _misfit(self, connection: Connection, data: Data) -> Refusal | None:
        if data.sequence != connection.next_sequence:
            text = f"Data message {data.sequence} came where {connection.next_sequence} was expected"
            return self.refuse(Reason.MALFORMED, text, data.sequence)
        track = connection.track
        reason, text = Reason.STALE_ATTEMPT, ""
        last = data.index + (data.num_steps - 1) * self._stride
        if data.epoch != self.epoch:
            reason, text = Reason.STALE_EPOCH, f"the server is in epoch {self.epoch}, the message in {data.epoch}"
        elif (data.simulation, data.attempt) != (track.simulation, track.attempt):
            text = f"the connection was opened for simulation {track.simulation}, attempt {track.attempt}"
        elif track.over or track.terminal:
            text = f"attempt {track.attempt} of simulation {track.simulation} is {track.terminal or 'over'} already"
        elif track is not self._tracks[track.simulation]:
            text = f"attempt {track.attempt} of simulation {track.simulation} was followed by another one"
        elif connection.ended:
            reason, text = Reason.WRONG_STEP, f"simulation {track.simulation} said that it had sent all"
        elif data.num_steps > self.credit:
            reason, text = (
                Reason.OUTSIDE_WINDOW,
                f"{data.num_steps} steps in one message, but the window is {self.credit}",
            )
        elif last >= self._limit:
            end = self.label(self._limit - 1)
            reason, text = Reason.WRONG_STEP, f"time step {self.label(last)} is behind the last, {end}"
        elif data.index < track.first or (data.index - track.first) % self._stride:
            reason, text = Reason.WRONG_STEP, f"time step {self.label(data.index)} belongs to another server rank"
        elif data.present & ~connection.everything:
            reason, text = Reason.WRONG_BLOCKS, f"only {len(connection.places)} blocks were opened"
        elif connection.required & ~data.present:
            missing = [p.field for i, p in enumerate(connection.places) if connection.required & ~data.present & 1 << i]
            reason, text = Reason.WRONG_FIELDS, f"time step {self.label(data.index)} lacks {', '.join(missing)}"
        elif data.field != ALL_FIELDS:
            reason, text = Reason.WRONG_STEP, self._gap(connection, data)
        if not text:
            return None
        connection.take()
        return self.refuse(reason, text, data.sequence)

    def _gap(self, connection: Connection, data: Data) -> str:
        """What is missing before this part of a block; "" if nothing is, or if the block begins anew."""
        step = connection.track.filling.get(data.index)
        num_bytes = 0 if step is None else step.parts.get((connection.rank, data.field), 0)
        known = data.index in connection.track.marks.settled
        if data.offset < connection.places[data.field].num_bytes and (known or data.offset in (0, num_bytes)):
            return ""
        return f"a part of time step {self.label(data.index)} begins at byte {data.offset}, but {num_bytes} have come"

    def _place_steps(self, connection: Connection, data: Data, indices: range) -> list[Step | None] | Refusal:
        track, sender = connection.track, 1 << connection.rank
        missing = [i for i in indices if i not in track.marks.settled and i not in track.filling]
        if track.num_under_way + len(missing) > self.credit:
            return self._outside(connection, data, track.num_under_way + len(missing))
        if missing:
            for index, slot in zip(missing, self.claim(len(missing)), strict=True):
                track.filling[index] = Step(track, track.generation, index, slot)
        here = (track.filling.get(i) for i in indices)
        steps = [None if step is None or step.senders & sender else step for step in here]
        self._count_again(connection, data, steps)
        self._expect(connection, data, steps)
        return steps

    def _outside(self, connection: Connection, data: Data, num: int) -> Refusal:
        connection.take()
        text = (
            f"simulation {connection.track.simulation} would have {num} steps under way, but its window is "
            f"{self.credit}; all its ranks must send the same steps in the same order"
        )
        return self.refuse(Reason.OUTSIDE_WINDOW, text, data.sequence)

    def _absent(self, connection: Connection, data: Data) -> tuple[str, ...]:
        places = connection.places
        if data.present == connection.everything and len(places) == len(self.fields):
            return ()
        present = {place.field for i, place in enumerate(places) if data.present >> i & 1}
        return tuple(name for name in self.fields if name not in present)

    def _count_again(self, connection: Connection, data: Data, steps: Sequence[Step | None]) -> None:
        num = steps.count(None)
        if not num:
            return
        connection.track.received += num
        # One sample may come in parts and from many ranks; it is one duplicate.
        if connection.rank == 0 and data.last:
            self.ledger.duplicates += num
        self._changed[connection.track.simulation] = connection.track

    def _expect(self, connection: Connection, data: Data, steps: Sequence[Step | None]) -> None:
        wanted = [step for step in steps if step is not None]
        if data.field != ALL_FIELDS and wanted and any(claim[0] is connection for claim in wanted[0].claims):
            # A further part of a step is settled with the first one.
            connection.take()
            return
        message = connection.take(len(wanted))
        if message is not None:
            for step in wanted:
                step.claims.append((connection, message))

    def _whole_arrived(self, connection: Connection, data: Data, steps: Iterable[Step | None]) -> list[Run] | Refusal:
        places, layout, sender = connection.places, connection.track.layout, 1 << connection.rank
        whole: list[Run] = []
        for step in steps:
            if step is None:
                continue
            step.senders |= sender
            for i, place in enumerate(places):
                if data.present >> i & 1:
                    step.present[place.field] = step.present.get(place.field, 0) | sender
            if step.senders == layout.senders and layout.closed:
                if torn := _torn_field(step):
                    # The message is refused as a whole: its steps come again with the next attempt.
                    self.abandon(connection, [step])
                    for run in whole:
                        self.drop(run)
                    text = f"only some client ranks sent field {torn} in time step {self.label(step.index)}"
                    return self.refuse(Reason.WRONG_FIELDS, text, data.sequence)
                whole.append(self._complete(step))
        return whole

    def _part_arrived(self, connection: Connection, data: Data, steps: Iterable[Step | None]) -> list[Run] | Refusal:
        for step in steps:
            if step is None:
                continue
            size = connection.places[data.field].num_bytes
            step.parts[connection.rank, data.field] = min(data.offset + MAX_PART_BYTES, size)
            if not data.last:
                return []
            for i, place in enumerate(connection.places):
                if data.present >> i & 1 and step.parts.get((connection.rank, i), 0) != place.num_bytes:
                    self.abandon(connection, [step])
                    text = f"the last part of time step {self.label(step.index)} came before all of field {place.field}"
                    return self.refuse(Reason.WRONG_STEP, text, data.sequence)
        return self._whole_arrived(connection, data, steps)

    def _end_problem(self, track: Track, connection: Connection, end: End) -> str | None:
        if (end.simulation, end.attempt, end.epoch) != (track.simulation, track.attempt, self.epoch):
            return f"the connection was opened for simulation {track.simulation}, attempt {track.attempt}"
        if end.total > self._limit:
            return f"the simulation says that it sent {end.total} time steps, but it has only {self._limit}"
        if track.owed is not None and end.share > track.owed:
            text = f"client rank {connection.rank} says that it sent {end.share} steps to server rank {self.rank}"
            return f"{text}, whose share is {track.owed}"
        for rank, other in track.ends.items():
            if (other.share, other.total) != (end.share, end.total):
                return f"client rank {connection.rank} sent {end.total} steps, but rank {rank} sent {other.total}"
        return None

    def _complete(self, step: Step) -> Run:
        del step.track.filling[step.index]
        absent = tuple(name for name in self.fields if name not in step.present)
        indices = range(step.index, step.index + 1)
        return Run(step.track, step.generation, indices, [step.slot], absent, step.claims)

    def _arrive(self, run: Run) -> None:
        run.track.received += len(run.indices)
        self._changed[run.track.simulation] = run.track
        self._conclude(run.track)

    def _conclude(self, track: Track) -> None:
        if track.owed is not None and not track.complete and len(track.marks.settled) >= track.owed:
            track.complete = True
            self.has_settled_share = True
            self._release(track)

    def _release(self, track: Track) -> None:
        self.room.release(track)
        for step in track.filling.values():
            self.freed.append(step.slot)
        track.filling.clear()

    def _leave(self, run: Run, num: int) -> list[Connection]:
        self.room.leave(run, num)
        self._changed[run.track.simulation] = run.track
        return self._settle(run, num)

    def _settle(self, run: Run, num: int) -> list[Connection]:
        for connection, message in run.claims:
            connection.settle(message, num)
        return [connection for connection, _ in run.claims]


def _torn_field(step: Step) -> str | None:
    """A field of which only some client ranks sent their part."""
    owners = step.track.layout.owners
    return next((name for name, ranks in step.present.items() if ranks != owners[name]), None)
