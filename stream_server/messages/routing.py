"""Which server rank gets which time step of which simulation."""

from stream_server.messages.client import Routing


def server_rank(routing: Routing, simulation: int, index: int, num_ranks: int) -> int:
    """The server rank that gets step `index` of `simulation`."""
    return (simulation + index if routing is Routing.STEPS else simulation) % num_ranks


def stride(routing: Routing, num_ranks: int) -> int:
    """How far apart two neighbouring steps of a simulation are on one server rank."""
    return num_ranks if routing is Routing.STEPS else 1


def share(routing: Routing, simulation: int, rank: int, num_ranks: int, num_steps: int) -> range:
    """The steps, of `num_steps` in all, that go to server rank `rank`."""
    if routing is Routing.STEPS:
        return range((rank - simulation) % num_ranks, num_steps, num_ranks)
    return range(num_steps if simulation % num_ranks == rank else 0)
