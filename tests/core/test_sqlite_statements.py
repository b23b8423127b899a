"""The SQLite store sends the same statements again and again: parsed once, never piling up."""

from datetime import timedelta

from coatcheck.model import TaskStatus
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import claim, new_task, transition


def _round(store: SqliteStore) -> None:
    leases = claim(store, room=3).leases
    store.commit([transition(lease, TaskStatus.RUNNING, delay=timedelta()) for lease in leases])


def test_rounds_at_other_times_send_no_other_statements() -> None:
    """F87: what varies is bound to a statement, never written into it."""
    clock = FakeClock()
    store = SqliteStore(":memory:", clock=clock)
    store.add([new_task() for _ in range(9)])
    for _ in range(10):
        _round(store)
        clock.advance(1)
    texts = set(store._database._statements)  # the cache of texts is what must not grow
    for _ in range(10):
        _round(store)
        clock.advance(1)
    assert set(store._database._statements) == texts
    store.close()
