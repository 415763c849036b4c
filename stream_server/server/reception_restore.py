"""How a reception takes back what an earlier epoch had received. Main thread, before the receivers start."""

from collections.abc import Mapping
from typing import Any

from stream_server.buffers import Buffer
from stream_server.server.ranks import Ranks
from stream_server.server.receiver import Receiver
from stream_server.server.restore import RankRestore, finished_simulations
from stream_server.server.validation_store import ValidationStore


def take_back(
    restored: RankRestore, receiver: Receiver, buffer: Buffer, validation: ValidationStore, ranks: Ranks
) -> None:
    """Fill ledger, buffer and validation store of this rank."""
    receiver.load_state_dict(restored.state["reception"])
    restored.into_buffer(buffer)
    receiver.intake.wait_again(restored.waiting)
    restored.into_store(validation, ranks.rank, ranks.size)


def agree_on_finished(restored: RankRestore, ranks: Ranks) -> dict[int, int | None]:
    """The simulations that the ledgers of all ranks have whole, with their number of steps; rank 0. Collective.

    The parts of a generation were captured one after the other: what rank 0 believed then may be more than the others
    had, or less.
    """
    gathered = ranks.gather([sorted(it.items()) for it in restored.complete(ranks.rank)])
    if gathered is None:
        return {}
    return finished_simulations([dict(pairs) for of_rank in gathered for pairs in of_rank])


def take_note(over: Mapping[str, Any], receiver: Receiver, buffer: Buffer, validation: ValidationStore) -> None:
    """Apply on this rank what rank 0 knows to be over, as `Roster.over` tells it."""
    for simulation in over["finished"]:
        if simulation in validation:
            validation.complete(simulation)
    for simulation in over["invalid"]:
        receiver.intake.withdraw(simulation)
    if not over["final"]:
        buffer.reopen()
