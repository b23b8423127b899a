"""Rules of ``request_cancel`` and ``make_due``: what lies beside a record and is never lost."""

import pytest

from coatcheck.model import CancelFlag, Limit, Rate, Side, Step, TaskStatus
from coatcheck.store import Kind, Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import LEASE, PROVIDER, claim, get, row_of, transition
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    SECOND,
    StoreRules,
    done,
    finish,
    ids,
    one,
    put,
    start,
    track,
)


class FlagRules(StoreRules):
    """A wanted cancel is kept until it is dealt with, and a nudge reaches the next step."""

    def test_a_cancel_flag_changes_nothing_else(self, store: Store, clock: FakeClock) -> None:
        """It lies beside the record: no version, no status, no lease."""
        task_id = put(store, delay=HOUR)
        before = get(store, task_id)
        assert list(store.request_cancel([task_id])) == [True]
        after = get(store, task_id)
        assert after.row.cancel is CancelFlag.REQUESTED
        assert (after.row.version, after.row.status, after.row.is_leased) == (
            before.row.version,
            before.row.status,
            before.row.is_leased,
        )
        assert (after.record, after.params) == (before.record, before.params)

    def test_a_cancel_makes_a_waiting_task_due(self, store: Store) -> None:
        """Before the submit it needs no handler; afterwards it is the next step of the job."""
        pending, tracked = put(store, delay=HOUR), track(store, delay=HOUR).row.id
        assert list(store.request_cancel([pending, tracked])) == [True, True]
        one(claim(store, handlers=()), pending, Kind.CANCEL)
        one(claim(store), tracked, Kind.CANCEL)

    def test_a_lookup_is_not_hurried_by_a_cancel(self, store: Store, clock: FakeClock) -> None:
        """Looking too early could miss the job that the lost submit made (G2)."""
        lease = start(store)
        done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.LOOKUP, delay=MINUTE))
        assert list(store.request_cancel([lease.task_id])) == [True]
        assert ids(claim(store)) == []
        clock.advance(MINUTE)
        found = one(claim(store), lease.task_id, Kind.LOOKUP)
        assert found.stored.row.cancel is CancelFlag.REQUESTED

    def test_a_resubmit_is_hurried_by_a_cancel(self, store: Store) -> None:
        """A wanted cancel must not wait for a backoff."""
        lease = start(store)
        done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.RESUBMIT, delay=HOUR))
        store.request_cancel([lease.task_id])
        found = one(claim(store), lease.task_id, Kind.RESUBMIT)
        assert found.stored.row.cancel is CancelFlag.REQUESTED

    def test_who_cannot_be_canceled_is_told(self, store: Store) -> None:
        """Ended, missing and other tenants' tasks answer no, and stay as they are."""
        ended = start(store)
        finish(store, ended)
        mine, theirs = put(store, tenant="a"), put(store, tenant="b")
        before = row_of(store, ended.task_id)
        assert list(store.request_cancel([ended.task_id, "missing"])) == [False, False]
        assert list(store.request_cancel([mine, theirs], tenant="a")) == [True, False]
        assert row_of(store, ended.task_id) == before
        assert row_of(store, theirs).cancel is CancelFlag.NONE

    def test_a_repeated_cancel_is_one_cancel(self, store: Store) -> None:
        """Asking twice changes nothing more."""
        task_id = put(store, delay=HOUR)
        store.request_cancel([task_id])
        before = row_of(store, task_id)
        assert list(store.request_cancel([task_id, task_id])) == [True, True]
        assert row_of(store, task_id) == before

    @pytest.mark.parametrize("status", [TaskStatus.SUBMITTED, TaskStatus.RUNNING, TaskStatus.PENDING_SUBMIT])
    def test_a_cancel_during_a_step_is_not_lost(
        self, store: Store, clock: FakeClock, status: TaskStatus
    ) -> None:
        """The step's commit keeps the flag and makes the task due at once, whatever delay it says."""
        lease = start(store)
        store.request_cancel([lease.task_id])
        assert ids(claim(store)) == []
        done(store, transition(lease, status, delay=HOUR))
        row = row_of(store, lease.task_id)
        assert (row.cancel, row.due_at) == (CancelFlag.REQUESTED, clock())
        one(claim(store), lease.task_id, Kind.CANCEL)

    def test_a_cancel_during_a_query_is_not_lost(self, store: Store) -> None:
        """A query under way ends first, then the cancel goes."""
        task_id = track(store).row.id
        query = one(claim(store), task_id, Kind.QUERY)
        store.request_cancel([task_id])
        done(store, transition(query, TaskStatus.RUNNING, delay=HOUR))
        one(claim(store), task_id, Kind.CANCEL)

    def test_a_cancel_survives_a_dead_worker(self, store: Store, clock: FakeClock) -> None:
        """Whoever takes the task over sees the flag."""
        task_id = track(store).row.id
        one(claim(store), task_id, Kind.QUERY)
        store.request_cancel([task_id])
        clock.advance(LEASE)
        one(claim(store), task_id, Kind.CANCEL)

    @pytest.mark.parametrize("nudge", ["cancel", "hint"])
    @pytest.mark.parametrize("is_submit", [True, False])
    def test_what_comes_after_the_lease_reaches_a_late_commit(
        self,
        store: Store,
        clock: FakeClock,
        nudge: str,
        is_submit: bool,  # noqa: FBT001  # a parameter of the test
    ) -> None:
        """A task carries its token until somebody writes: its late worker's commit makes it due at once."""
        lease = start(store)
        if not is_submit:
            done(store, transition(lease, TaskStatus.SUBMITTED))
            lease = one(claim(store), lease.task_id, Kind.QUERY)
        clock.advance(LEASE)
        (store.request_cancel if nudge == "cancel" else store.make_due)([lease.task_id])
        done(store, transition(lease, TaskStatus.RUNNING, delay=HOUR))
        assert row_of(store, lease.task_id).due_at == clock()
        one(claim(store), lease.task_id, Kind.CANCEL if nudge == "cancel" else Kind.QUERY)

    def test_every_commit_of_a_generation_keeps_the_flag(self, store: Store, clock: FakeClock) -> None:
        """Only a move that deals with the flag replaces it."""
        task_id = track(store, delay=HOUR).row.id
        store.request_cancel([task_id])
        for _ in range(3):
            lease = one(claim(store), task_id, Kind.CANCEL)
            done(store, transition(lease, TaskStatus.RUNNING, delay=SECOND))
            assert row_of(store, task_id).cancel is CancelFlag.REQUESTED
            assert ids(claim(store)) == []
            clock.advance(SECOND)
        lease = one(claim(store), task_id, Kind.CANCEL)
        done(store, transition(lease, TaskStatus.RUNNING, cancel=CancelFlag.HANDLED))
        for _ in range(2):
            lease = one(claim(store), task_id, Kind.QUERY)
            done(store, transition(lease, TaskStatus.RUNNING))
            assert row_of(store, task_id).cancel is CancelFlag.HANDLED

    def test_a_cancel_of_a_pending_task_needs_no_limit(self, store: Store) -> None:
        """A paused or throttled task can be canceled all the same (G6)."""
        store.set_limit([Limit(provider=PROVIDER, side=Side.SUBMIT, rate=Rate(1, HOUR))])
        start(store)
        task_id = put(store)
        store.pause("provider", PROVIDER, by="me", reason="test")
        assert ids(claim(store)) == []
        store.request_cancel([task_id])
        finish(store, one(claim(store, handlers=()), task_id, Kind.CANCEL), TaskStatus.CANCELED)

    def test_a_waiting_task_can_be_made_due(self, store: Store) -> None:
        """A vendor's callback is a hint to look now (F74)."""
        pending, tracked = put(store, delay=HOUR), track(store, delay=HOUR).row.id
        version = row_of(store, tracked).version
        assert list(store.make_due([tracked, pending])) == [True, True]
        assert row_of(store, tracked).version == version
        batch = claim(store)
        assert {lease.task_id: lease.kind for lease in batch.leases} == {
            pending: Kind.SUBMIT,
            tracked: Kind.QUERY,
        }

    def test_only_waiting_tasks_are_made_due(self, store: Store) -> None:
        """An ended or missing task stays what it is."""
        ended = start(store)
        finish(store, ended)
        assert list(store.make_due([ended.task_id, "missing"])) == [False, False]
        assert ids(claim(store)) == []

    def test_a_hint_during_a_step_is_remembered(self, store: Store, clock: FakeClock) -> None:
        """The callback that comes while a query is under way makes the next query early (F72)."""
        task_id = track(store).row.id
        lease = one(claim(store), task_id)
        store.make_due([task_id])
        assert ids(claim(store)) == []
        done(store, transition(lease, TaskStatus.RUNNING, delay=HOUR))
        assert row_of(store, task_id).due_at == clock()
        lease = one(claim(store), task_id, Kind.QUERY)
        done(store, transition(lease, TaskStatus.RUNNING, delay=HOUR))
        assert ids(claim(store)) == [], "expected one hint to make one query early"

    def test_a_hint_does_not_hold_up_an_end(self, store: Store) -> None:
        """A step that ends the task has nothing to be due for."""
        task_id = track(store).row.id
        lease = one(claim(store), task_id)
        store.make_due([task_id])
        store.request_cancel([task_id])
        finish(store, lease)
        row = row_of(store, task_id)
        assert (row.status, row.due_at) == (TaskStatus.SUCCEEDED, None)
        assert ids(claim(store)) == []

    def test_flags_count_for_pending_tasks_in_their_place(self, store: Store, clock: FakeClock) -> None:
        """A task made due early is still one task: it is claimed once."""
        task_id = put(store, delay=MINUTE)
        store.make_due([task_id, task_id])
        lease = one(claim(store, lease=HOUR), task_id)
        clock.advance(MINUTE)
        assert ids(claim(store, worker="b")) == []
        finish(store, lease)
        clock.advance(HOUR)
        assert ids(claim(store)) == []
