"""How the steps of simulations are numbered. Pure."""

from dataclasses import dataclass

from stream_server.client_api.messages import TimeSteps


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbering:
    """The indices of time steps, which count from 0 whatever the steps are called.

    Those of one simulation that belong to the same server rank are `stride` apart; all are below `limit`.
    """

    time_steps: TimeSteps
    stride: int
    limit: int

    def label(self, index: int) -> int:
        """The time step that an index stands for."""
        return self.time_steps.first + index * self.time_steps.every
