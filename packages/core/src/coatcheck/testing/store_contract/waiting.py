"""Rules of ``wait_for_work`` and ``wait_for_change``: an idle worker is quiet, and news come at once.

These are the only rules that look at the real time: they wait for at most a few seconds where a store should
speak, and for a few hundredths of a second where it should be silent.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from coatcheck.model import Limit, TaskStatus
from coatcheck.store import Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import ACCOUNT, HANDLER, claim, get, row_of, transition
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    SECOND,
    StoreRules,
    done,
    finish,
    one,
    put,
    start,
    track,
)

#: Long enough for a loaded machine; a store that keeps its promise never waits so long.
PATIENCE = timedelta(seconds=5)
SHORT = timedelta(milliseconds=40)


def _add(store: Store) -> Callable[[], Any]:
    return lambda: put(store)


def _add_for_later(store: Store) -> Callable[[], Any]:
    return lambda: put(store, delay=5 * SECOND)


def _commit_due_work(store: Store) -> Callable[[], Any]:
    lease = start(store)
    return lambda: done(store, transition(lease, TaskStatus.SUBMITTED))


def _free_a_slot(store: Store) -> Callable[[], Any]:
    store.set_limit([Limit(account=ACCOUNT, live=1)])
    lease = start(store)
    put(store)
    return lambda: finish(store, lease)


def _raise_a_limit(store: Store) -> Callable[[], Any]:
    _free_a_slot(store)
    return lambda: store.set_limit([Limit(account=ACCOUNT, live=2)])


def _unpause(store: Store) -> Callable[[], Any]:
    store.pause("account", ACCOUNT, by="me", reason="test")
    put(store)
    return lambda: store.unpause("account", ACCOUNT)


def _make_due(store: Store) -> Callable[[], Any]:
    task_id = track(store, delay=HOUR).row.id
    return lambda: store.make_due([task_id])


def _cancel(store: Store) -> Callable[[], Any]:
    task_id = track(store, delay=HOUR).row.id
    return lambda: store.request_cancel([task_id])


def _retry(store: Store) -> Callable[[], Any]:
    lease = start(store)
    finish(store, lease, TaskStatus.FAILED)
    stored = get(store, lease.task_id)
    return lambda: done(store, transition(stored, TaskStatus.PENDING_SUBMIT, restart=True))


#: What may make something due; each prepares the store and returns what happens after the worker's claim.
NEWS = {
    "a new task": _add,
    "a new task for later": _add_for_later,
    "a commit": _commit_due_work,
    "a freed slot": _free_a_slot,
    "a raised limit": _raise_a_limit,
    "the end of a pause": _unpause,
    "a hint": _make_due,
    "a cancel": _cancel,
    "a retry": _retry,
}


class WaitingRules(StoreRules):
    """A new task starts at once, and waiting for it costs next to nothing (F88)."""

    @pytest.mark.parametrize("what", NEWS)
    def test_what_came_after_the_claim_is_noticed(self, store: Store, what: str) -> None:
        """Nothing slips through between a claim and the wait that follows it, a new next time included."""
        happen = NEWS[what](store)
        batch = claim(store)
        happen()
        assert store.wait_for_work(batch.mark, PATIENCE) is True

    @pytest.mark.parametrize("what", NEWS)
    def test_a_waiting_worker_is_woken_at_once(self, store: Store, what: str) -> None:
        """News reach a worker of this process while it waits."""
        happen = NEWS[what](store)
        batch = claim(store)
        woken: list[bool] = []
        waiter = threading.Thread(target=lambda: woken.append(store.wait_for_work(batch.mark, PATIENCE)))
        waiter.start()
        began = time.monotonic()
        happen()
        waiter.join(timeout=30)
        assert woken == [True]
        assert time.monotonic() - began < PATIENCE.total_seconds() / 2

    def test_a_quiet_store_lets_the_worker_sleep(self, store: Store) -> None:
        """Without news the wait lasts its timeout and says so, whatever is stored."""
        put(store, handler_key="another")
        track(store, delay=HOUR, handler_key=HANDLER)
        batch = claim(store)
        began = time.monotonic()
        assert store.wait_for_work(batch.mark, SHORT) is False
        assert time.monotonic() - began >= SHORT.total_seconds() * 0.9

    def test_a_claim_that_found_nothing_is_no_news(self, store: Store) -> None:
        """Idle workers do not keep each other awake (F88)."""
        batch = claim(store, worker="a")
        for _ in range(3):
            claim(store, worker="b")
            store.stats()
        assert store.wait_for_work(batch.mark, SHORT) is False

    def test_a_timeout_is_real_time(self, store: Store, clock: FakeClock) -> None:
        """Durations of waits are measured, not read from the store's clock (F71)."""
        batch = claim(store)
        began = time.monotonic()
        clock.advance(HOUR)
        assert store.wait_for_work(batch.mark, SHORT) is False
        assert time.monotonic() - began < PATIENCE.total_seconds()

    def test_a_change_is_noticed(self, store: Store) -> None:
        """Whoever waits for a task is told of its next commit."""
        lease = start(store)
        version = row_of(store, lease.task_id).version
        changed: list[bool] = []
        waiter = threading.Thread(
            target=lambda: changed.append(store.wait_for_change(lease.task_id, version, PATIENCE))
        )
        waiter.start()
        began = time.monotonic()
        done(store, transition(lease, TaskStatus.SUBMITTED))
        waiter.join(timeout=30)
        assert changed == [True]
        assert time.monotonic() - began < PATIENCE.total_seconds() / 2

    def test_a_change_that_was_before_the_wait_is_noticed(self, store: Store) -> None:
        """A version that is not the current one has changed already; so has a missing task."""
        lease = start(store)
        version = row_of(store, lease.task_id).version
        done(store, transition(lease, TaskStatus.SUBMITTED))
        assert store.wait_for_change(lease.task_id, version, PATIENCE) is True
        assert store.wait_for_change("missing", 1, PATIENCE) is True

    def test_a_task_that_does_not_change_is_waited_for(self, store: Store) -> None:
        """Other tasks' commits, claims and flags are no change of this one."""
        task_id = track(store, delay=HOUR).row.id
        version = row_of(store, task_id).version
        store.request_cancel([task_id])
        one(claim(store), task_id)
        finish(store, start(store))
        assert store.wait_for_change(task_id, version, SHORT) is False

    def test_a_pruned_task_is_waited_for_no_longer(self, store: Store, clock: FakeClock) -> None:
        """A waiter is not left alone with a task that is gone."""
        lease = start(store)
        finish(store, lease)
        version = row_of(store, lease.task_id).version
        assert store.wait_for_change(lease.task_id, version, SHORT) is False
        clock.advance(HOUR)
        store.prune({TaskStatus.SUCCEEDED: MINUTE})
        assert store.wait_for_change(lease.task_id, version, PATIENCE) is True
