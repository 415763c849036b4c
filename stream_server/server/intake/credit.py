"""Credit: how many steps a simulation may have under way, and the slots beside a full buffer that it is given from.

Why: docs/decisions/0003-credit.md
Why: docs/decisions/0013-credit-of-many-clients.md
"""

from stream_server.server.intake.attempts import AttemptState, CreditPhase, StepRun

MIN_CREDIT = 2
MAX_SHARE_OF_CAPACITY = 8
# Half of it goes into one message. What a message costs is then little beside its bytes (`benchmarks/clients.py`).
ENOUGH_BYTES = 512 * 1024


def credit_per_simulation(*, retained_bytes: int, sample_bytes: int, capacity: int, max_simulations: int) -> int:
    """Number of steps that one simulation may have unacknowledged at one server rank.

    What a client may retain is an upper limit of what is under way. The credit of all `max_simulations` that may run at
    once takes at most an eighth of the buffer's `capacity` (in samples), or, for many simulations of small samples,
    ENOUGH_BYTES each and the capacity once more. It is never less than two steps, below which a simulation of several
    ranks could not assemble one step while it sends the next.
    """
    share = capacity // max_simulations
    wanted = max(share // MAX_SHARE_OF_CAPACITY, min(share, ENOUGH_BYTES // sample_bytes))
    return max(MIN_CREDIT, min(retained_bytes // sample_bytes, wanted))


class CreditPool:
    """Deals out `size` slots: `credit` to each simulation that is admitted, one to each step it leaves behind.

    A simulation keeps its reservation until its share is complete or its attempt has ended. Accepted steps that
    still wait for room in the buffer then become orphans, which hold one slot each until they are in the stream.
    `size` must cover the most simulations at once: two that wait for each other's reservation on different ranks would
    wait for ever, where a simulation that waits for orphans waits for the training alone.
    """

    def __init__(self, *, size: int, credit: int) -> None:
        assert credit <= size
        self.size = size
        self.credit = credit
        self._num_reservations = 0
        self._num_orphans = 0

    def reserve(self, attempt: AttemptState) -> bool:
        """Give an attempt its reservation, or let it wait for one; whether it has it now."""
        if attempt.credit is CreditPhase.RESERVED:
            return True
        if (self._num_reservations + 1) * self.credit + self._num_orphans > self.size:
            attempt.credit = CreditPhase.WAITING
            return False
        self._num_reservations += 1
        attempt.credit = CreditPhase.RESERVED
        return True

    def release(self, attempt: AttemptState) -> None:
        """Take the reservation of an attempt back; its waiting steps are orphans from now on."""
        self._num_reservations -= attempt.credit is CreditPhase.RESERVED
        self._num_orphans += attempt.num_waiting
        attempt.credit = CreditPhase.NONE
        attempt.num_waiting = 0
        attempt.reservation += 1

    def occupy(self, num: int) -> None:
        """Give slots to waiting steps of an earlier incarnation, which belong to no reservation."""
        self._num_orphans += num

    def leave(self, run: StepRun, num: int) -> None:
        """Take back the slots of `num` steps that wait no longer."""
        if run.reservation == run.attempt.reservation:
            run.attempt.num_waiting -= num
        else:
            self._num_orphans -= num
