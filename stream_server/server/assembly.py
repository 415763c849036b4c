"""Where the steps of Data messages belong, and when they are all there. Pure; receiver thread."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from stream_server.client_api.messages import ALL_FIELDS, MAX_PART_BYTES, Data, Reason, Refusal
from stream_server.server.data_rules import DataRules
from stream_server.server.ledger import Ledger
from stream_server.server.numbering import Numbering
from stream_server.server.settlement import Settlement
from stream_server.server.streak import Streak
from stream_server.server.tracks import Connection, Run, Step, Track

Refuse = Callable[[Reason, str, int | None], Refusal]


class Assembly:
    """Puts steps together out of what client ranks send.

    `tracks` are the current attempts. `fields` are all that a step may have. `claim(num)` gives free slots. A
    simulation may have `credit` steps under way: in a slot, but not yet in the stream.
    """

    def __init__(
        self,
        *,
        tracks: Mapping[int, Track],
        rules: DataRules,
        numbering: Numbering,
        fields: Collection[str],
        credit: int,
        ledger: Ledger,
        settlement: Settlement,
        claim: Callable[[int], list[int]],
        refuse: Refuse,
    ) -> None:
        self.tracks = tracks
        self.rules = rules
        self.numbering = numbering
        self.fields = fields
        self.credit = credit
        self.ledger = ledger
        self.settlement = settlement
        self.claim = claim
        self.refuse = refuse

    def place(self, connection: Connection, data: Data) -> Run | list[Step | None] | Refusal:
        """Where the steps of a message belong: a run that it completes, or steps, with None for those known already.

        Once the payload is in the slots, the run is to be settled; of steps, `arrived` tells which are whole. If
        the payload is not what it should be, drop the run or `abandon` the steps.
        """
        if data.sequence != connection.next_sequence:
            text = f"Data message {data.sequence} came where {connection.next_sequence} was expected"
            return self.refuse(Reason.MALFORMED, text, data.sequence)
        breach = self.rules.breach(connection, data)
        if breach is not None:
            connection.take()
            return self.refuse(*breach, data.sequence)
        track, num = connection.track, data.num_steps
        indices = range(data.index, data.index + num * self.numbering.stride, self.numbering.stride)
        in_one_go = connection.alone and data.field == ALL_FIELDS and not track.filling
        if in_one_go and not track.marks.settled.has_any(indices):
            if track.num_waiting + num > self.credit:
                return self._outside(connection, data, track.num_waiting + num)
            message = connection.take(num)
            assert message is not None
            claims = [(connection, message)]
            return Run(track, track.generation, indices, self.claim(num), self._absent(connection, data), claims)
        return self._place_steps(connection, data, indices)

    def arrived(self, connection: Connection, data: Data, steps: Iterable[Step | None]) -> list[Run] | Refusal:
        """The payload of these steps is in their slots; returns those that are whole now, to be settled."""
        if data.field != ALL_FIELDS:
            return self._part_arrived(connection, data, steps)
        return self._whole_arrived(connection, data, steps)

    def whole(self, connection: Connection) -> list[Run]:
        """The steps of this simulation that waited only to know that no other client rank sends a part of them."""
        track, layout = connection.track, connection.track.layout
        if not track.filling or not layout.closed:
            return []
        steps = list(track.filling.values())
        return [self._complete(step) for step in steps if step.senders == layout.senders and not step.torn_field()]

    def abandon(self, connection: Connection, steps: Iterable[Step | None]) -> None:
        """What this client rank sent of these steps is no good: forget it."""
        for step in steps:
            if step is None:
                continue
            step.forget(connection.rank)
            for claim in [claim for claim in step.claims if claim[0] is connection]:
                step.claims.remove(claim)
                connection.settle(claim[1], 1)
            if not step.senders and not step.claims:
                del step.track.filling[step.index]
                self.settlement.freed.append(step.slot)

    def leave(self, connection: Connection) -> None:
        """A connection is lost: what it has brought of steps that are not whole comes again over the next one."""
        self.abandon(connection, list(connection.track.filling.values()))

    def room_for_streak(self, connection: Connection, index: int) -> int:
        """How many steps from `index` on need not be looked at one by one: all are new, and inside the window."""
        track = connection.track
        is_current = not (track.over or track.terminal) and track is self.tracks[track.simulation]
        if not is_current or connection.ended or track.filling or index < track.marks.settled.stop:
            return 0
        return min(self.credit - track.num_waiting, -(-(self.numbering.limit - index) // self.numbering.stride))

    def place_streak(self, connection: Connection, index: int, slots: list[int], num_messages: int) -> Run:
        """The run of so many messages in a row, within the room for a streak and with all fields of each step."""
        connection.next_sequence += num_messages - 1
        message = connection.take(len(slots))
        assert message is not None
        indices = range(index, index + len(slots) * self.numbering.stride, self.numbering.stride)
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
            data, header, stride=self.numbering.stride, targets=[(place, arrays[place.field]) for place in places]
        )

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
        self.settlement.changed[connection.track.simulation] = connection.track

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
                if torn := step.torn_field():
                    # The message is refused as a whole: its steps come again with the next attempt.
                    self.abandon(connection, [step])
                    for run in whole:
                        self.settlement.drop(run)
                    text = f"only some client ranks sent field {torn} in time step {self.numbering.label(step.index)}"
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
                    label = self.numbering.label(step.index)
                    text = f"the last part of time step {label} came before all of field {place.field}"
                    return self.refuse(Reason.WRONG_STEP, text, data.sequence)
        return self._whole_arrived(connection, data, steps)

    def _complete(self, step: Step) -> Run:
        del step.track.filling[step.index]
        absent = tuple(name for name in self.fields if name not in step.present)
        indices = range(step.index, step.index + 1)
        return Run(step.track, step.generation, indices, [step.slot], absent, step.claims)
