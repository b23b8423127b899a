"""Rules of leases: how long they hold, who may still write, and how a dead worker's tasks go on."""

import pytest

from coatcheck.model import TaskStatus
from coatcheck.store import Kind, Outcome, Room, Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import LEASE, claim, get, new_task, row_of, transition
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    SECOND,
    StoreRules,
    commit,
    done,
    finish,
    ids,
    one,
    put,
    put_many,
    start,
    track,
    track_many,
)


class LeaseRules(StoreRules):
    """At any time at most one worker may write a task (G3), and a dead one's tasks go on elsewhere (G5)."""

    def test_a_leased_task_is_given_to_nobody_else(self, store: Store, clock: FakeClock) -> None:
        """Until the lease runs out the task is its worker's."""
        track(store)
        lease = one(claim(store, worker="a"))
        clock.advance(LEASE - SECOND)
        for worker in ("a", "b"):
            assert ids(claim(store, worker=worker)) == []
        assert lease.expires_at == clock() + SECOND

    def test_an_expired_query_is_simply_claimable(self, store: Store, clock: FakeClock) -> None:
        """A query is harmless when repeated, so nothing has to be recovered first (G9, F42)."""
        task_id = track(store).row.id
        first = one(claim(store, worker="a"))
        clock.advance(LEASE)
        second = one(claim(store, worker="b"), task_id, Kind.QUERY)
        assert second.token != first.token
        assert row_of(store, task_id).claims == 2

    def test_takeover_depends_on_the_lease_only(self, store: Store, clock: FakeClock) -> None:
        """However long the deadline, a dead worker's task is held by another within two leases (G5, F39)."""
        task_id = track(store, deadline=24 * HOUR).row.id
        one(claim(store, worker="dies", lease=5 * SECOND))
        clock.advance(10 * SECOND)
        one(claim(store, lease=5 * SECOND), task_id, Kind.QUERY)

    def test_a_submit_whose_worker_died_is_recovered_half_a_lease_later(
        self, store: Store, clock: FakeClock
    ) -> None:
        """The late worker has time to hand in its reply before the task counts as unknown (G2)."""
        task_id = start(store).task_id
        clock.advance(LEASE * 1.5 - SECOND)
        assert ids(claim(store)) == []
        clock.advance(SECOND)
        lease = one(claim(store), task_id, Kind.RECOVER)
        assert lease.stored.row.status is TaskStatus.SUBMITTING
        assert ids(claim(store)) == []

    def test_a_recovery_that_dies_is_recovered(self, store: Store, clock: FakeClock) -> None:
        """No single recovery is needed for safety (F42)."""
        task_id = start(store).task_id
        for _ in range(2):
            clock.advance(2 * LEASE)
            one(claim(store, room=Room(total=10, is_idle=True)), task_id, Kind.RECOVER)

    def test_a_late_worker_may_write_while_nobody_else_holds_the_task(
        self, store: Store, clock: FakeClock
    ) -> None:
        """A commit is refused because the task was taken over, never because time passed."""
        late = start(store)
        clock.advance(HOUR)
        done(store, transition(late, TaskStatus.SUBMITTED))
        query = one(claim(store), late.task_id, Kind.QUERY)
        clock.advance(HOUR)
        finish(store, query)

    def test_a_worker_that_was_replaced_cannot_write(self, store: Store, clock: FakeClock) -> None:
        """A lost lease changes nothing, whatever the late worker found out (G3)."""
        task_id = track(store).row.id
        late = one(claim(store, worker="a"))
        clock.advance(LEASE)
        current = one(claim(store, worker="b"), task_id)
        before = get(store, task_id)
        assert commit(store, transition(late, TaskStatus.SUCCEEDED, result=b"late")) == [Outcome.LEASE_LOST]
        assert get(store, task_id) == before
        done(store, transition(current, TaskStatus.RUNNING))
        assert commit(store, transition(late, TaskStatus.SUCCEEDED, result=b"late")) == [Outcome.LEASE_LOST]
        assert row_of(store, task_id).status is TaskStatus.RUNNING
        assert get(store, task_id).result is None

    def test_a_recovered_submit_is_fenced_off(self, store: Store, clock: FakeClock) -> None:
        """The reply of a submit that was recovered can only be handed in as a receipt (G2, G3)."""
        late = start(store)
        clock.advance(2 * LEASE)
        recovery = one(claim(store), late.task_id, Kind.RECOVER)
        assert commit(store, transition(late, TaskStatus.SUBMITTED)) == [Outcome.LEASE_LOST]
        done(store, transition(recovery, TaskStatus.SUBMIT_UNKNOWN))
        assert commit(store, transition(late, TaskStatus.SUBMITTED)) == [Outcome.LEASE_LOST]
        assert row_of(store, late.task_id).status is TaskStatus.SUBMIT_UNKNOWN

    def test_a_foreign_token_writes_nothing(self, store: Store) -> None:
        """A token is for one task: neither another task's nor an invented one is taken."""
        tasks = put_many(store, 2)
        first, second = claim(store).leases
        for key in (second.token, "invented", ""):
            changed = transition(first, TaskStatus.SUBMITTED, key=key)
            assert commit(store, changed) == [Outcome.LEASE_LOST], key
        assert {row_of(store, task_id).status for task_id in tasks} == {TaskStatus.SUBMITTING}

    def test_a_task_that_was_never_leased_takes_no_leased_commit(self, store: Store) -> None:
        """A pending task has no token, and no empty text stands for one."""
        lease = start(store)
        done(store, transition(lease, TaskStatus.PENDING_SUBMIT))
        for key in ("", "None", "invented"):
            assert commit(store, transition(lease, TaskStatus.SUCCEEDED, key=key)) == [Outcome.LEASE_LOST]
        assert row_of(store, lease.task_id).status is TaskStatus.PENDING_SUBMIT

    def test_a_renewed_lease_lasts_from_now(self, store: Store, clock: FakeClock) -> None:
        """A renewal moves the end, by the store's clock (F38)."""
        track(store)
        lease = one(claim(store))
        clock.advance(LEASE - SECOND)
        assert list(store.renew([(lease.task_id, lease.token)], 2 * MINUTE)) == [True]
        clock.advance(2 * MINUTE - SECOND)
        assert ids(claim(store)) == []
        clock.advance(SECOND)
        assert ids(claim(store)) == [lease.task_id]

    def test_a_task_that_is_renewed_is_never_taken_over(self, store: Store, clock: FakeClock) -> None:
        """Age alone is no reason to rescue a task (F40)."""
        query = track(store).row.id
        submit = put(store)
        leases = claim(store, worker="a").leases
        assert {lease.task_id for lease in leases} == {query, submit}
        for _ in range(30):
            clock.advance(LEASE / 3)
            assert list(store.renew([(lease.task_id, lease.token) for lease in leases], LEASE)) == [
                True,
                True,
            ]
            assert ids(claim(store, worker="b")) == []
        assert row_of(store, query).claims == 1

    def test_a_renewal_is_no_change_of_the_task(self, store: Store, clock: FakeClock) -> None:
        """Version, status and due time belong to commits."""
        lease = start(store)
        before = row_of(store, lease.task_id)
        clock.advance(SECOND)
        store.renew([(lease.task_id, lease.token)], LEASE)
        after = row_of(store, lease.task_id)
        assert (after.version, after.status, after.claims) == (before.version, before.status, before.claims)

    def test_each_renewal_has_its_own_answer(self, store: Store, clock: FakeClock) -> None:
        """A worker learns which leases it lost, and keeps the others."""
        track_many(store, clock, 3)
        lost, ended, kept = claim(store, worker="a").leases
        clock.advance(LEASE / 2)
        finish(store, ended)
        assert list(store.renew([(kept.task_id, kept.token)], LEASE)) == [True]
        clock.advance(LEASE / 2)
        one(claim(store, worker="b"), lost.task_id)
        asked = [
            (lost.task_id, lost.token),
            (kept.task_id, kept.token),
            (ended.task_id, ended.token),
            ("missing", kept.token),
            (kept.task_id, lost.token),
        ]
        assert list(store.renew(asked, LEASE)) == [False, True, False, False, False]

    def test_an_expired_lease_that_nobody_took_can_be_renewed(self, store: Store, clock: FakeClock) -> None:
        """Renewing is refused where the token has changed, never because time passed."""
        track(store)
        lease = one(claim(store, worker="a"))
        clock.advance(HOUR)
        assert list(store.renew([(lease.task_id, lease.token)], LEASE)) == [True]
        assert ids(claim(store, worker="b")) == []

    @pytest.mark.parametrize("is_submit", [True, False])
    def test_a_dead_workers_tasks_all_go_on(self, store: Store, clock: FakeClock, is_submit: bool) -> None:  # noqa: FBT001  # a parameter of the test
        """Whatever a worker held when it died is claimed again, all of it, within two leases (G5)."""
        held = {*(put_many(store, 10) if is_submit else track_many(store, clock, 10))}
        assert {*ids(claim(store, worker="dies"))} == held
        clock.advance(2 * LEASE)
        batch = claim(store, worker="lives")
        assert {*ids(batch)} == held
        assert {lease.kind for lease in batch.leases} == {Kind.RECOVER if is_submit else Kind.QUERY}

    def test_adding_again_takes_no_lease_away(self, store: Store) -> None:
        """A repeated add of a leased task leaves its worker alone."""
        task = new_task()
        store.add([task])
        lease = one(claim(store))
        store.add([task])
        assert list(store.renew([(lease.task_id, lease.token)], LEASE)) == [True]
        finish(store, lease)
