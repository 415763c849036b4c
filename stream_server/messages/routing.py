"""The routing of the time steps of simulations to server ranks.

Why: docs/decisions/0027-windows-on-several-ranks.md
"""

from dataclasses import dataclass

from stream_server.messages.client import Routing


@dataclass(frozen=True, slots=True)
class Dealing:
    """The shares of `num_ranks` server ranks in the steps of simulations."""

    routing: Routing
    num_ranks: int

    @property
    def stride(self) -> int:
        """Distance between two neighbouring steps of a simulation on one server rank."""
        return self.num_ranks if self.routing is Routing.STEPS else 1

    def server_rank(self, simulation: int, index: int) -> int:
        return (simulation + (index if self.routing is Routing.STEPS else 0)) % self.num_ranks

    def share(self, simulation: int, rank: int, num_steps: int) -> range:
        """The steps, of `num_steps` in all, that go to a rank."""
        if self.routing is Routing.STEPS:
            return range((rank - simulation) % self.num_ranks, num_steps, self.num_ranks)
        return range(num_steps if self.server_rank(simulation, 0) == rank else 0)
