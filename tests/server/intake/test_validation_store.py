"""Held-out simulations on one rank."""

import numpy as np

from stream_server.server.intake.validation_store import ValidationStore


def add(store: ValidationStore, simulation: int, step: int, *, present: bool = True) -> None:
    store.add(simulation, step, {"u": np.full(3, 10.0 * simulation + step)}, {"u": present})


def test_only_complete_simulations_are_given_out_in_order() -> None:
    store = ValidationStore(2)
    for simulation, step in ((1, 1), (1, 0), (0, 0)):
        add(store, simulation, step)
    assert len(store.complete_rows()) == 0
    store.complete(1)
    held_out = store.complete_rows()
    assert held_out.time_steps.tolist() == [0, 1]
    store.complete(0)
    more = store.complete_rows()
    assert more.simulation_ids.tolist() == [0, 1, 1]
    assert more.take("u", np.arange(3))[:, 0].tolist() == [0, 10, 11]
    assert len(held_out) == 2


def test_a_row_is_a_copy_and_what_is_taken_of_it_another() -> None:
    store = ValidationStore(1)
    value = np.ones(3)
    store.add(0, 0, {"u": value}, {"u": True})
    value[:] = 7
    store.complete(0)
    held_out = store.complete_rows()
    held_out.take("u", np.zeros(1, np.int64))[:] = 5
    assert held_out.take("u", np.zeros((2, 1), np.int64)).tolist() == [[[1, 1, 1]]] * 2
    assert held_out is store.complete_rows()


def test_a_withdrawn_simulation_is_forgotten() -> None:
    store = ValidationStore(1)
    add(store, 0, 0)
    store.withdraw(0)
    store.complete(0)
    assert len(store.complete_rows()) == 0


def test_rows_that_were_saved_are_those_of_that_moment() -> None:
    store = ValidationStore(2)
    add(store, 0, 0)
    add(store, 1, 0)
    store.complete(0)
    rows = store.freeze()
    store.complete_rows()
    add(store, 0, 1)
    store.complete(1)
    store.withdraw(0)
    assert len(rows) == 2
    assert (rows.simulation_ids.tolist(), rows.complete) == ([0, 1], (0,))
    np.testing.assert_array_equal(rows.rows("u", 0, 2), [[0, 0, 0], [10, 10, 10]])
