"""The stores that are damaged, by name."""

from tests.faults.sweep.corruption.stores import best, checkpoints, journal, model, record
from tests.faults.sweep.corruption.stores.store import Store

STORES: dict[str, Store] = {
    store.name: store for store in (checkpoints.STORE, record.STORE, journal.STORE, best.STORE, model.STORE)
}
