"""Held-out simulations on one rank."""

import numpy as np

from stream_server.server.validation_store import ValidationStore


def add(store: ValidationStore, simulation: int, step: int, *, present: bool = True) -> None:
    store.add(simulation, step, {"u": np.full(3, 10.0 * simulation + step)}, {"u": present})


def test_only_complete_simulations_are_given_out_in_order() -> None:
    store = ValidationStore(2)
    for simulation, step in ((1, 1), (1, 0), (0, 0)):
        add(store, simulation, step)
    assert store.stacked() is None
    store.complete(1)
    held_out = store.stacked()
    assert held_out is not None
    assert held_out.time_steps.tolist() == [0, 1]
    store.complete(0)
    more = store.stacked()
    assert more is not None
    assert more.simulation_ids.tolist() == [0, 1, 1]
    assert more.fields["u"][:, 0].tolist() == [0, 10, 11]
    assert len(held_out) == 2


def test_a_row_is_a_copy_and_memory_holds_it_once() -> None:
    store = ValidationStore(1)
    value = np.ones(3)
    store.add(0, 0, {"u": value}, {"u": True})
    value[:] = 7
    store.complete(0)
    held_out = store.stacked()
    assert held_out is not None
    assert held_out.fields["u"].tolist() == [[1, 1, 1]]
    assert store.num_bytes == 24
    assert held_out is store.stacked()


def test_a_withdrawn_simulation_is_forgotten() -> None:
    store = ValidationStore(1)
    add(store, 0, 0)
    store.withdraw(0)
    store.complete(0)
    assert store.stacked() is None
