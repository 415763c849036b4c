"""Places beside a full buffer for steps that are under way. Pure."""

from stream_server.server.tracks import Step, Track


class Room:
    """Deals out `size` places: `credit` to each simulation that is let in, one to each step it leaves behind.

    A simulation keeps its reservation until its share is settled or its attempt has ended. Committed steps that
    still wait for room in the buffer then become orphans, which hold one place each until they are in the stream.
    """

    def __init__(self, *, size: int, credit: int) -> None:
        assert credit <= size
        self.size = size
        self.credit = credit
        self._num_reservations = 0
        self._num_orphans = 0

    def reserve(self, track: Track) -> bool:
        """Let a simulation in; False: too little is left just now."""
        if not track.reserved:
            if (self._num_reservations + 1) * self.credit + self._num_orphans > self.size:
                return False
            self._num_reservations += 1
            track.reserved = True
        return True

    def release(self, track: Track) -> None:
        """Take a simulation's reservation back; its committed steps are orphans from now on."""
        self._num_reservations -= track.reserved
        self._num_orphans += track.num_waiting
        track.reserved = False
        track.num_waiting = 0
        track.generation += 1

    def leave(self, step: Step) -> None:
        """A committed step waits no longer."""
        if step.generation == step.track.generation:
            step.track.num_waiting -= 1
        else:
            self._num_orphans -= 1
