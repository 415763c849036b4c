"""Places beside a full buffer for steps that are under way. Pure."""

from stream_server.server.tracks import Run, Track


class Room:
    """Deals out `size` places: `credit` to each simulation that is let in, one to each step it leaves behind.

    A simulation keeps its reservation until its share is settled or its attempt has ended. Committed steps that
    still wait for room in the buffer then become orphans, which hold one place each until they are in the stream.
    `size` must cover the most simulations at once: two that wait for each other's place on different ranks would
    wait for ever, where a simulation that waits for orphans waits for the training alone.
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

    def occupy(self, num: int) -> None:
        """So many committed steps of an earlier epoch wait, and belong to no reservation."""
        self._num_orphans += num

    def leave(self, run: Run, num: int) -> None:
        """Some committed steps wait no longer."""
        if run.generation == run.track.generation:
            run.track.num_waiting -= num
        else:
            self._num_orphans -= num
