"""What the tracker remembers of simulations, of their steps on the way into the stream, and of client connections."""

from collections import deque
from dataclasses import dataclass, field

from stream_server.client_api.messages import End, Open
from stream_server.server.layout import Layout, Place
from stream_server.server.ledger import Marks
from stream_server.server.streak import Streak


@dataclass(eq=False, kw_only=True, slots=True)
class Unsettled:
    """Consecutive Data messages of one connection, up to sequence `end`, and how many of their steps are unsettled."""

    end: int
    num_steps: int


Claim = tuple["Connection", Unsettled]


@dataclass(eq=False, slots=True)
class Run:
    """Steps of one simulation that are all there and go into the stream together, `absent` fields left out.

    `claims` are the messages that are settled with them.
    """

    track: "Track"
    generation: int
    indices: range
    slots: list[int]
    absent: tuple[str, ...]
    claims: list[Claim]

    def single(self, position: int) -> "Run":
        """One of the steps alone."""
        indices, slots = self.indices[position : position + 1], self.slots[position : position + 1]
        return Run(self.track, self.generation, indices, slots, self.absent, self.claims)


@dataclass(eq=False, slots=True)
class Step:
    """A step that comes in pieces and is not yet all there.

    `senders` has a bit for each client rank whose part is there, `present[field]` for each that sent a part of the
    field; `parts` holds the bytes that came of blocks in several parts, by client rank and block. `claims` are the
    messages that are settled with it.
    """

    track: "Track"
    generation: int
    index: int
    slot: int
    senders: int = 0
    present: dict[str, int] = field(default_factory=dict)
    parts: dict[tuple[int, int], int] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def forget(self, rank: int) -> None:
        """What this client rank has sent of it is no good."""
        self.senders &= ~(1 << rank)
        self.present = {name: left for name, ranks in self.present.items() if (left := ranks & ~(1 << rank))}
        self.parts = {part: num_bytes for part, num_bytes in self.parts.items() if part[0] != rank}

    def torn_field(self) -> str | None:
        """A field of which only some client ranks sent their part."""
        owners = self.track.layout.owners
        return next((name for name, ranks in self.present.items() if ranks != owners[name]), None)


@dataclass(eq=False, kw_only=True, slots=True)
class Track:
    """One attempt of a simulation as this rank sees it: the steps from `first` on are this rank's.

    `owed` is how many steps this rank is to settle, `total` how many all ranks are; None while that is not known.
    `num_known` is how many steps were settled before client rank 0 opened, and will come again or be left out;
    `num_fresh` how many came since the last checkpoint was taken.
    `generation` tells the steps of this reservation from those that an earlier one left behind. `in_streak` is the
    connection with a streak that is not settled yet.
    """

    simulation: int
    attempt: int
    marks: Marks
    layout: Layout
    first: int
    owed: int | None
    total: int | None
    terminal: str = ""
    over: bool = False
    reserved: bool = False
    complete: bool = False
    waits_for_room: bool = False
    generation: int = 0
    num_waiting: int = 0
    received: int = 0
    filling: dict[int, Step] = field(default_factory=dict)
    num_known: int | None = None
    num_fresh: int = 0
    ends: dict[int, End] = field(default_factory=dict)
    connections: dict[int, "Connection"] = field(default_factory=dict)
    in_streak: "Connection | None" = None

    @classmethod
    def of_the_past(cls, simulation: int, marks: Marks) -> "Track":
        """A simulation as an earlier epoch left it: nothing of it is under way."""
        layout = Layout(fields={}, num_ranks=1)
        return cls(simulation=simulation, attempt=-1, marks=marks, layout=layout, first=0, owed=None, total=None)

    @property
    def finished(self) -> bool:
        """All of the simulation is settled, on all ranks."""
        return self.terminal == "finished"

    @property
    def num_under_way(self) -> int:
        """Steps of this attempt that hold a slot and are not yet in the stream."""
        return len(self.filling) + self.num_waiting

    @property
    def blocked(self) -> bool:
        """The simulation may be waiting for us, so its own progress clock must not run."""
        return self.num_waiting > 0 or self.waits_for_room


@dataclass(eq=False, kw_only=True, slots=True)
class Connection:
    """One client rank's connection to this server rank.

    `next_sequence` is what its next Data message must carry; all messages below `received` are settled and in the
    stream, those below `durable` in a committed checkpoint as well, and the client was told of those below
    `acknowledged`. `required` has a bit for each block that no step
    may lack, `everything` one for each block. `alone`: the simulation has no other client rank.
    """

    peer: bytes
    opening: Open
    track: Track
    rank: int
    places: tuple[Place, ...]
    required: int
    everything: int
    alone: bool
    next_sequence: int = 0
    received: int = 0
    durable: int = 0
    acknowledged: int = 0
    ended: bool = False
    unsettled: deque[Unsettled] = field(default_factory=deque)
    streak: Streak | None = None

    def take(self, num_steps: int = 0) -> Unsettled | None:
        """The next Data message has come, with this many steps to settle."""
        self.next_sequence += 1
        if num_steps:
            message = Unsettled(end=self.next_sequence, num_steps=num_steps)
            self.unsettled.append(message)
            return message
        # Nothing to wait for: the mark passes this message together with the ones before it.
        if self.unsettled:
            self.unsettled[-1].end = self.next_sequence
        else:
            self.received = self.next_sequence
        return None

    def settle(self, message: Unsettled, num_steps: int) -> None:
        """Steps of a message are in the stream or refused; the mark moves over all that is settled."""
        message.num_steps -= num_steps
        while self.unsettled and not self.unsettled[0].num_steps:
            self.received = self.unsettled.popleft().end
