"""The state of each simulation of the roster, and how its phase may change. Rank 0."""

from dataclasses import dataclass, field

from stream_server.messages import notices
from stream_server.messages.client import ATTACHING
from stream_server.messages.simulation_phase import TERMINAL, SimulationPhase

PHASE_TRANSITIONS = {
    SimulationPhase.WAITING: TERMINAL | {SimulationPhase.RUNNING},
    # A new attempt may begin before the end of the previous one was reported.
    SimulationPhase.RUNNING: TERMINAL | {SimulationPhase.RUNNING, SimulationPhase.WAITING},
}


@dataclass(kw_only=True, slots=True)
class SimulationState:
    """One simulation of the roster; `shares[r]` is the latest report of server rank r on the current attempt.

    `parameters` are None until they were suggested; before that nobody can run it.

    `num_settled` counts the steps that were accepted or rejected, `total` those that there are, as far as an earlier
    attempt or incarnation has reported.

    `begun`: there was an attempt. `attached`: the current one is run by clients that nobody launched. `ready`: every
    rank knows of it. `goes_on`: it was begun before this server was, and has not been heard of since. `waits_for`: what
    the job of the current attempt waits for, as far as the launcher knows that, None if it runs;
    `had_to_wait`: it waited for something since this server knows of the attempt.
    """

    parameters: dict[str, float] | None
    phase: SimulationPhase = SimulationPhase.WAITING
    attempt: int = 0
    begun: bool = False
    attached: bool = False
    ready: bool = False
    goes_on: bool = False
    reason: str = ""
    waits_for: str | None = None
    had_to_wait: bool = False
    total: int | None = None
    num_settled: int = 0
    shares: dict[int, notices.Share] = field(default_factory=dict)

    @property
    def known_parameters(self) -> dict[str, float]:
        """The parameters of a simulation that was told to the launcher."""
        assert self.parameters is not None
        return self.parameters

    def restore(self, total: int | None, *, is_finished: bool) -> None:
        """Continue in another incarnation: what was not given up, withdrawn or stopped early is finished, or to come.

        `total` is the number of steps of a finished simulation, if the ledgers know it.
        """
        if self.phase not in (SimulationPhase.GIVEN_UP, SimulationPhase.INVALID, SimulationPhase.STOPPED_EARLY):
            self.phase, self.reason = SimulationPhase.FINISHED if is_finished else SimulationPhase.WAITING, ""
        self.total = self.total if total is None else total

    def enter(self, phase: SimulationPhase, reason: str = "") -> None:
        """Change the phase, as `PHASE_TRANSITIONS` allows; a terminal one is never left."""
        assert phase in PHASE_TRANSITIONS.get(self.phase, ()), f"from {self.phase} to {phase}"
        self.phase, self.reason = phase, reason

    @property
    def num_steps(self) -> int | None:
        """How many steps the simulation said it has, or the study gave it; None while neither has said."""
        totals = [share.total for share in self.shares.values() if share.total is not None]
        # A rank that has its whole share may not have heard yet that the simulation ended early.
        return min(totals, default=self.total)

    @property
    def num_repeated(self) -> int:
        """How many steps the current attempt has sent again, although nobody asked for them."""
        return sum(share.repeated for share in self.shares.values())

    @property
    def is_ready_to_start(self) -> bool:
        """Whether it has its parameters, and nobody has begun it."""
        return self.phase is SimulationPhase.WAITING and not self.begun and self.parameters is not None

    @property
    def is_queued(self) -> bool:
        """Its job waits, or its worker has yet to come to it."""
        return self.phase is SimulationPhase.RUNNING and self.waits_for is not None

    @property
    def wanted(self) -> int:
        """The attempt that the clients of the current one say they belong to."""
        return ATTACHING if self.attached else self.attempt
