"""Who may send: the `Open`s of client ranks, checked against the study and held back while there is no room. Pure."""

from collections.abc import Callable, Iterable

import numpy as np

from stream_server.client_api.messages import Block, FieldSpec, Open, Reason, Refusal
from stream_server.server.layout import place_of
from stream_server.server.room import Room
from stream_server.server.stale import stale
from stream_server.server.tracks import Connection, Track

DTYPE_OF_THE_NEVER_SENT = "<f8"

Refuse = Callable[[Reason, str], Refusal]


class Openings:
    """Lets client ranks in.

    `dtypes` are the types in which fields are kept: the study's, or else those in which the first simulation sends
    them. `waiting` are the `Open`s that will be looked at again, by peer.
    """

    def __init__(self, *, study: str, epoch: int, fields: Iterable[FieldSpec], room: Room, refuse: Refuse) -> None:
        self.study = study
        self.epoch = epoch
        self.fields = {spec.name: spec for spec in fields}
        self.room = room
        self.refuse = refuse
        self.dtypes = {spec.name: np.dtype(spec.dtype) for spec in self.fields.values() if spec.dtype}
        self.waiting: dict[bytes, Open] = {}

    @property
    def dtypes_known(self) -> bool:
        return len(self.dtypes) == len(self.fields)

    def answer(self, peer: bytes, message: Open, track: Track | None) -> Connection | Refusal | None:
        """Let a client rank in, or refuse it; None: it has to wait."""
        self.waiting.pop(peer, None)
        refusal = self._stale(message, track)
        if refusal is not None:
            return refusal
        assert track is not None
        refusal = self._misfit(message, track)
        if refusal is not None:
            return refusal
        self._learn_dtypes(message, track)
        # Without all dtypes there are no slots; the other ranks of this simulation will tell the missing ones.
        # A share that is settled already, maybe in an earlier epoch, needs no room.
        has_room = self.dtypes_known and (track.complete or self.room.reserve(track))
        track.waits_for_room = self.dtypes_known and not has_room
        # Its credit begins anew with the connection: what it has sent over a lost one must not take up any of it.
        has_credit = message.rank not in track.connections or not track.num_waiting
        if not (has_room and has_credit):
            self.waiting[peer] = message
            return None
        return self._connection(peer, message, track)

    def _stale(self, message: Open, track: Track | None) -> Refusal | None:
        if message.study != self.study:
            text = f"this is study {self.study}, but the message is for study {message.study}"
            return self.refuse(Reason.WRONG_STUDY, text)
        if message.epoch != self.epoch:
            text = f"the server is in epoch {self.epoch}, the message in {message.epoch}: say Hello again"
            return self.refuse(Reason.STALE_EPOCH, text)
        if track is None:
            return self.refuse(Reason.UNKNOWN_SIMULATION, f"simulation {message.simulation} is not running")
        if track.terminal or track.over or message.attempt != track.attempt:
            text = stale(message.simulation, message.attempt, current=track.attempt, state=track.terminal)
            return self.refuse(Reason.STALE_ATTEMPT, text)
        return None

    def _misfit(self, message: Open, track: Track) -> Refusal | None:
        layout = track.layout
        if layout.blocks and layout.num_ranks != message.num_ranks:
            text = f"client rank {message.rank} says {message.num_ranks} ranks, others said {layout.num_ranks}"
            return self.refuse(Reason.WRONG_BLOCKS, text)
        problem = next(filter(None, map(self._field_problem, message.blocks)), None)
        if problem is not None:
            return self.refuse(Reason.WRONG_FIELDS, problem)
        layout.num_ranks = message.num_ranks
        problem = layout.add(message.rank, message.blocks)
        return None if problem is None else self.refuse(Reason.WRONG_BLOCKS, problem)

    def _field_problem(self, block: Block) -> str | None:
        if block.field not in self.fields:
            return f"the study has no field {block.field}, only {', '.join(self.fields)}"
        kept = self.dtypes.get(block.field)
        if kept is not None and not np.can_cast(np.dtype(block.dtype), kept, "same_kind"):
            return f"field {block.field} is kept as {kept}, which {np.dtype(block.dtype)} cannot become"
        return None

    def _learn_dtypes(self, message: Open, track: Track) -> None:
        for block in message.blocks:
            self.dtypes.setdefault(block.field, np.dtype(block.dtype))
        if track.layout.complete:
            for name in self.fields:
                self.dtypes.setdefault(name, np.dtype(DTYPE_OF_THE_NEVER_SENT))

    def _connection(self, peer: bytes, message: Open, track: Track) -> Connection:
        places = tuple(place_of(block, self.dtypes[block.field]) for block in message.blocks)
        everything = (1 << len(places)) - 1
        optional = sum(1 << i for i, place in enumerate(places) if self.fields[place.field].optional)
        connection = Connection(
            peer=peer,
            opening=message,
            track=track,
            rank=message.rank,
            places=places,
            required=everything & ~optional,
            everything=everything,
            alone=message.num_ranks == 1,
        )
        track.connections[message.rank] = connection
        return connection
