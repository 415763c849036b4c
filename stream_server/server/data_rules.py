"""What a Data message must keep to. Pure; receiver thread."""

from collections.abc import Mapping

from stream_server.client_api.messages import ALL_FIELDS, Data, Reason
from stream_server.server.numbering import Numbering
from stream_server.server.stale import stale
from stream_server.server.tracks import Connection, Track

Breach = tuple[Reason, str]


class DataRules:
    """Compares `Data` messages with what their connection was opened for; `tracks` are the current attempts."""

    def __init__(self, *, tracks: Mapping[int, Track], numbering: Numbering, epoch: int, credit: int) -> None:
        self.tracks = tracks
        self.numbering = numbering
        self.epoch = epoch
        self.credit = credit

    def breach(self, connection: Connection, data: Data) -> Breach | None:
        """What is wrong with the next message of a connection."""
        track, numbering = connection.track, self.numbering
        last = data.index + (data.num_steps - 1) * numbering.stride
        current = self.tracks[track.simulation]
        if data.epoch != self.epoch:
            return Reason.STALE_EPOCH, f"the server is in epoch {self.epoch}, the message in {data.epoch}"
        if (data.simulation, data.attempt) != (track.simulation, track.attempt):
            text = f"the connection was opened for simulation {track.simulation}, attempt {track.attempt}"
            return Reason.STALE_ATTEMPT, text
        if track.over or track.terminal or track is not current:
            text = stale(track.simulation, track.attempt, current=current.attempt, state=track.terminal)
            return Reason.STALE_ATTEMPT, text
        if connection.ended:
            return Reason.WRONG_STEP, f"simulation {track.simulation} said that it had sent all"
        if data.num_steps > self.credit:
            text = f"{data.num_steps} steps in one message, but the window is {self.credit}"
            return Reason.OUTSIDE_WINDOW, text
        if last >= numbering.limit:
            end = numbering.label(numbering.limit - 1)
            return Reason.WRONG_STEP, f"time step {numbering.label(last)} is behind the last, {end}"
        if data.index < track.first or (data.index - track.first) % numbering.stride:
            return Reason.WRONG_STEP, f"time step {numbering.label(data.index)} belongs to another server rank"
        if data.present & ~connection.everything:
            return Reason.WRONG_BLOCKS, f"only {len(connection.places)} blocks were opened"
        if lacking := connection.required & ~data.present:
            missing = [place.field for i, place in enumerate(connection.places) if lacking >> i & 1]
            return Reason.WRONG_FIELDS, f"time step {numbering.label(data.index)} lacks {', '.join(missing)}"
        if data.field != ALL_FIELDS and (gap := self._gap(connection, data)):
            return Reason.WRONG_STEP, gap
        return None

    def _gap(self, connection: Connection, data: Data) -> str:
        """What is missing before this part of a block; "" if nothing is, or if the block begins anew."""
        step = connection.track.filling.get(data.index)
        num_bytes = 0 if step is None else step.parts.get((connection.rank, data.field), 0)
        known = data.index in connection.track.marks.settled
        if data.offset < connection.places[data.field].num_bytes and (known or data.offset in (0, num_bytes)):
            return ""
        label = self.numbering.label(data.index)
        return f"a part of time step {label} begins at byte {data.offset}, but {num_bytes} have come"
