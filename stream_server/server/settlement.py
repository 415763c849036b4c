"""What becomes of steps that are all there, and how far that brings their simulations. Pure; receiver thread."""

from collections import deque
from collections.abc import Iterable

from stream_server.server import notices
from stream_server.server.ledger import Ledger
from stream_server.server.room import Room
from stream_server.server.tracks import Connection, Run, Track


class Settlement:
    """Settles steps: they go into the stream, are set apart, or are refused.

    Steps that were accepted wait in their order until the buffer has room for them. Slots that are needed no more
    gather in `freed`. `changed` are the simulations, by id, about which there is news for `changes`;
    `has_settled_share`: the next of these have news that others wait for. `has_pressure`: some client rank has sent
    more than `max_fresh` steps since the last checkpoint, and might soon forget what only it could send again.
    """

    def __init__(self, room: Room, *, max_fresh: int) -> None:
        self.room = room
        self.max_fresh = max_fresh
        self.has_pressure = False
        self.freed: list[int] = []
        self.changed: dict[int, Track] = {}
        self.has_settled_share = False
        self._committed: deque[Run] = deque()

    @property
    def has_committed(self) -> bool:
        """Steps wait for room in the buffer."""
        return bool(self._committed)

    @property
    def num_waiting(self) -> int:
        """Steps that wait for room in the buffer."""
        return sum(len(run.slots) for run in self._committed)

    def wait_again(self, ledger: Ledger, simulations: Iterable[int]) -> None:
        """Steps of these simulations were committed in an earlier epoch, in this order, and still wait."""
        for simulation in simulations:
            track = Track.of_the_past(simulation, ledger[simulation])
            self._committed.append(Run(track, -1, range(0), [-1], (), []))
            self.room.occupy(1)

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

    def set_apart(self, run: Run) -> list[Connection]:
        """Steps were accepted, but never go into the buffer: they wait no longer. Returns as `in_stream` does."""
        run.track.marks.accept(run.indices)
        self._arrive(run)
        return self.drop(run)

    def drop(self, run: Run) -> list[Connection]:
        """A run is no good: forget it."""
        self.freed += run.slots
        return self._settle(run, len(run.slots))

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

    def withdraw(self, simulation: int) -> None:
        """The committed steps of a simulation do not wait any longer: they were taken out of the buffer."""
        for run in [run for run in self._committed if run.track.simulation == simulation]:
            self._committed.remove(run)
            self._leave(run, len(run.slots))

    def conclude(self, track: Track) -> None:
        """See whether this rank's share of a simulation is settled now."""
        if track.owed is not None and not track.complete and len(track.marks.settled) >= track.owed:
            track.complete = track.marks.complete = True
            track.marks.total = track.total
            self.has_settled_share = True
            self.release(track)

    def release(self, track: Track) -> None:
        """A simulation needs no room any more; what of it is half-assembled goes."""
        self.room.release(track)
        for step in track.filling.values():
            self.freed.append(step.slot)
        track.filling.clear()

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
            for track in self.changed.values()
            if not track.terminal
        ]
        self.changed.clear()
        self.has_settled_share = False
        return shares

    def _arrive(self, run: Run) -> None:
        track = run.track
        track.received += len(run.indices)
        track.num_fresh += len(run.indices)
        self.has_pressure |= track.num_fresh > self.max_fresh * track.layout.num_ranks
        self.changed[track.simulation] = track
        self.conclude(track)

    def _leave(self, run: Run, num: int) -> list[Connection]:
        self.room.leave(run, num)
        if run.generation == run.track.generation:
            self.changed[run.track.simulation] = run.track
        return self._settle(run, num)

    def _settle(self, run: Run, num: int) -> list[Connection]:
        for connection, message in run.claims:
            connection.settle(message, num)
        return [connection for connection, _ in run.claims]
