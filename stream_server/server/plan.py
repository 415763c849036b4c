"""What a study will take of each server rank: slots, credit, memory and connections."""

from dataclasses import dataclass

from stream_server.config import StudyConfig

MIN_CREDIT = 2
HELD_BATCHES = 2
SPARE_SHARE = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes per server rank.

    `credit` is how many steps one simulation may have unacknowledged at this rank. All of them have a
    place beside a full buffer, so `num_slots` is capacity + credit × simulations at once + held batches + `spare`.
    The spare slots are for what leaves the buffer while a checkpoint is written and is not on disk yet.
    """

    capacity: int
    watermark: int
    credit: int
    max_clients: int
    spare: int
    num_slots: int
    sample_bytes: int
    connections: int

    @property
    def buffer_bytes(self) -> int:
        return self.num_slots * self.sample_bytes


def make_plan(config: StudyConfig) -> Plan:
    """Derive the sizes from the study.

    The client's window is an upper limit of what is under way; the windows of all simulations together
    take at most an eighth of the capacity, but never less than two steps each, below which a simulation
    of several ranks could not assemble one step while it sends the next. With fewer spare slots than all windows have
    together, samples that waited for the buffer and were withdrawn while a checkpoint is written could keep others
    from finding a place.
    """
    size = sum(spec.num_bytes for spec in config.study.fields.values())
    max_clients = config.max_simulations_at_once
    capacity = config.buffer.capacity
    credit = max(MIN_CREDIT, min(config.client.window // size, capacity // (8 * max_clients)))
    under_way, held = credit * max_clients, HELD_BATCHES * config.training.batch_size
    spare = max(-(-capacity // SPARE_SHARE), held, under_way)
    return Plan(
        capacity=capacity,
        watermark=config.buffer.watermark,
        credit=credit,
        max_clients=max_clients,
        spare=spare,
        num_slots=capacity + under_way + held + 1 + spare,
        sample_bytes=size,
        connections=max_clients * config.simulation.ranks + 2,
    )
