"""Rules of ``commit``: what is written, what is refused, and that a repeat is harmless."""

from datetime import timedelta
from typing import Any

import attrs
import pytest

from coatcheck.model import CancelFlag, Job, Limit, Step, TaskStatus
from coatcheck.store import Filter, Kind, Outcome, Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import ACCOUNT, LEASE, claim, get, new_key, row_of, transition
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

ENDS = [status for status in TaskStatus if status.is_end]


class CommitRules(StoreRules):
    """A move is written whole, once, by whoever may write it (G3, G4)."""

    def test_a_commit_writes_the_whole_move(self, store: Store, clock: FakeClock) -> None:
        """Status, step, generation, due time, format and record change together, and the lease is gone."""
        lease = start(store)
        before = row_of(store, lease.task_id)
        clock.advance(SECOND)
        done(store, transition(lease, TaskStatus.RUNNING, delay=MINUTE, record=b"new", format=1))
        stored = get(store, lease.task_id)
        row = stored.row
        assert (row.status, row.next_step, row.generation) == (TaskStatus.RUNNING, Step.QUERY, 1)
        assert (row.is_leased, row.claims, row.finished_at) == (False, 0, None)
        assert (row.due_at, row.updated_at) == (clock() + MINUTE, clock())
        assert (stored.record, stored.format) == (b"new", 1)
        assert row.version > before.version
        assert (row.created_at, row.scheduled_at, row.deadline_at) == (
            before.created_at,
            before.scheduled_at,
            before.deadline_at,
        )

    @pytest.mark.parametrize("status", ENDS)
    def test_an_ended_task_waits_for_nothing(
        self, store: Store, clock: FakeClock, status: TaskStatus
    ) -> None:
        """An end has its time and no due time, and is claimed no more, whatever comes (G4)."""
        lease = start(store, deadline=HOUR, stall_limit=HOUR)
        done(store, transition(lease, status))
        row = row_of(store, lease.task_id)
        assert (row.status, row.next_step, row.due_at, row.finished_at) == (status, None, None, clock())
        store.request_cancel([row.id])
        store.make_due([row.id])
        for _ in range(3):
            clock.advance(HOUR)
            assert ids(claim(store)) == []

    def test_a_version_rises_at_commits_only(self, store: Store, clock: FakeClock) -> None:
        """Readers that compare versions see each commit, and are not woken by claims and flags."""
        task_id = put(store)
        seen = [row_of(store, task_id).version]
        for _ in range(5):
            lease = one(claim(store), task_id)
            store.renew([(task_id, lease.token)], LEASE)
            store.request_cancel([task_id])
            store.make_due([task_id])
            assert row_of(store, task_id).version == seen[-1]
            done(store, transition(lease, TaskStatus.RUNNING))
            seen.append(row_of(store, task_id).version)
        assert seen == sorted(set(seen))

    def test_a_repeated_commit_is_done(self, store: Store, clock: FakeClock) -> None:
        """After a lost reply the worker commits again: the answer is done and nothing happens twice."""
        lease = start(store)
        move = transition(lease, TaskStatus.RUNNING, delay=MINUTE)
        done(store, move)
        before = get(store, lease.task_id)
        clock.advance(SECOND)
        done(store, move)
        assert get(store, lease.task_id) == before

    def test_a_repeated_end_is_done(self, store: Store, clock: FakeClock) -> None:
        """The end of a generation is one write, once (G4)."""
        lease = start(store)
        move = transition(lease, TaskStatus.SUCCEEDED, result=b"r", drop_params=True)
        done(store, move)
        before = get(store, lease.task_id)
        clock.advance(HOUR)
        done(store, move, move)
        assert get(store, lease.task_id) == before

    def test_a_repeated_unleased_commit_is_done(self, store: Store) -> None:
        """An operator's command may be repeated as well."""
        lease = start(store)
        finish(store, lease, TaskStatus.FAILED)
        move = transition(get(store, lease.task_id), TaskStatus.PENDING_SUBMIT, restart=True, delay=HOUR)
        done(store, move)
        before = get(store, lease.task_id)
        done(store, move)
        assert get(store, lease.task_id) == before
        assert before.row.generation == 2

    def test_a_repeat_inside_one_call_counts_once(self, store: Store) -> None:
        """The same move twice in a batch is one move."""
        store.set_limit([Limit(account=ACCOUNT, live=2)])
        lease = start(store)
        start(store)
        put_many(store, 3)
        done(store, *[transition(lease, TaskStatus.SUCCEEDED)] * 3)
        assert len(claim(store).leases) == 1

    def test_one_bad_row_does_not_spoil_the_others(self, store: Store, clock: FakeClock) -> None:
        """Each transition has its own answer, in order (G10)."""
        track_many(store, clock, 4)
        lost, first, second, third = claim(store, worker="a").leases
        store.renew([(lease.task_id, lease.token) for lease in (first, second, third)], HOUR)
        clock.advance(LEASE)
        one(claim(store, worker="b"), lost.task_id)
        stale = get(store, second.task_id)
        found = commit(
            store,
            transition(first, TaskStatus.SUCCEEDED),
            transition(lost, TaskStatus.SUCCEEDED),
            transition(second, TaskStatus.FAILED),
            attrs.evolve(transition(first, TaskStatus.SUCCEEDED), task_id="missing"),
            transition(stale, TaskStatus.FAILED),
            transition(third, TaskStatus.CANCELED),
        )
        assert found[:3] == [Outcome.DONE, Outcome.LEASE_LOST, Outcome.DONE]
        assert found[3] is not Outcome.DONE
        assert found[4:] == [Outcome.CONFLICT, Outcome.DONE]
        statuses = [row_of(store, lease.task_id).status for lease in (first, second, third)]
        assert statuses == [TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELED]

    # Without a lease.

    def test_an_unleased_commit_needs_the_expected_version(self, store: Store) -> None:
        """A decision made on an old record is refused and changes nothing."""
        lease = start(store)
        finish(store, lease, TaskStatus.FAILED)
        stale = get(store, lease.task_id)
        done(store, transition(stale, TaskStatus.FAILED, record=b"newer"))
        before = get(store, lease.task_id)
        move = transition(stale, TaskStatus.PENDING_SUBMIT, restart=True)
        assert commit(store, move) == [Outcome.CONFLICT]
        assert get(store, lease.task_id) == before

    def test_an_unleased_commit_needs_the_expected_status(self, store: Store) -> None:
        """The version alone does not prove what the caller saw: a claim changes the status and no version."""
        pending = get(store, put(store, delay=HOUR))
        move = transition(pending, TaskStatus.CANCELED, expected_status=TaskStatus.RUNNING)
        assert commit(store, move) == [Outcome.CONFLICT]
        done(store, transition(pending, TaskStatus.CANCELED))

    def test_an_unleased_commit_is_refused_while_a_worker_holds_the_task(
        self, store: Store, clock: FakeClock
    ) -> None:
        """A task that carries a token is its worker's, even after the lease's time (G3)."""
        lease = start(store)
        for _ in range(2):
            stored = get(store, lease.task_id)
            assert stored.row.is_leased is True
            assert commit(store, transition(stored, TaskStatus.SUBMITTED)) == [Outcome.CONFLICT]
            clock.advance(HOUR)
        done(store, transition(lease, TaskStatus.SUBMITTED))

    def test_two_unleased_commits_cannot_both_win(self, store: Store) -> None:
        """Of two operators with one record in hand the first writes and the second is told."""
        lease = start(store)
        finish(store, lease, TaskStatus.SUBMIT_UNKNOWN)
        stored = get(store, lease.task_id)
        first = transition(stored, TaskStatus.PENDING_SUBMIT, restart=True, key=new_key())
        second = transition(stored, TaskStatus.FAILED, restart=True, key=new_key())
        assert commit(store, first, second) == [Outcome.DONE, Outcome.CONFLICT]
        assert row_of(store, lease.task_id).status is TaskStatus.PENDING_SUBMIT

    # Due times.

    @pytest.mark.parametrize("limit", ["deadline", "stall_limit"])
    def test_a_query_is_due_at_its_deadline_at_the_latest(
        self, store: Store, clock: FakeClock, limit: str
    ) -> None:
        """However long a vendor asks for patience, the last query is in time."""
        limits: dict[str, Any] = {limit: MINUTE}
        lease = start(store, **limits)
        done(store, transition(lease, TaskStatus.SUBMITTED, delay=HOUR))
        assert row_of(store, lease.task_id).due_at == clock() + MINUTE
        clock.advance(MINUTE)
        assert ids(claim(store)) == [lease.task_id]

    def test_a_submit_is_due_at_its_queue_deadline_at_the_latest(
        self, store: Store, clock: FakeClock
    ) -> None:
        """A backoff does not keep a task past the time at which it is given up."""
        lease = start(store, queue_deadline=MINUTE)
        done(store, transition(lease, TaskStatus.PENDING_SUBMIT, delay=HOUR))
        row = row_of(store, lease.task_id)
        assert row.due_at == row.queue_deadline_at == clock() + MINUTE
        clock.advance(MINUTE)
        one(claim(store), row.id, Kind.EXPIRE)

    def test_the_queue_deadline_ends_with_the_submit(self, store: Store, clock: FakeClock) -> None:
        """Once the vendor has the job only the deadline and the stall limit bound the next query."""
        lease = start(store, queue_deadline=MINUTE)
        done(store, transition(lease, TaskStatus.SUBMITTED, delay=HOUR))
        assert row_of(store, lease.task_id).due_at == clock() + HOUR

    def test_the_stall_clock_starts_anew_at_progress(self, store: Store, clock: FakeClock) -> None:
        """Only a change of what the vendor says moves the stall limit (F92)."""
        lease = start(store, stall_limit=MINUTE)
        done(store, transition(lease, TaskStatus.SUBMITTED, progressed=True))
        assert row_of(store, lease.task_id).stall_at == clock() + MINUTE
        stalls_at = clock() + MINUTE
        for progressed in (False, True, False):
            clock.advance(20)
            lease = one(claim(store), lease.task_id, Kind.QUERY)
            done(store, transition(lease, TaskStatus.RUNNING, progressed=progressed, delay=HOUR))
            stalls_at = clock() + MINUTE if progressed else stalls_at
            row = row_of(store, lease.task_id)
            assert row.stall_at == row.due_at == stalls_at
            store.make_due([lease.task_id])

    def test_a_task_is_due_again_after_its_delay(self, store: Store, clock: FakeClock) -> None:
        """A delay counts from the commit, by the store's clock, to the microsecond."""
        delay = timedelta(seconds=7, microseconds=1)
        lease = start(store)
        clock.advance(SECOND)
        done(store, transition(lease, TaskStatus.PENDING_SUBMIT, delay=delay))
        clock.advance(delay - timedelta(microseconds=1))
        assert ids(claim(store)) == []
        clock.advance(timedelta(microseconds=1))
        assert ids(claim(store)) == [lease.task_id]

    # New generations.

    def test_a_new_generation_gets_fresh_deadlines(self, store: Store, clock: FakeClock) -> None:
        """A retry is scheduled now and has the same lengths as the first life."""
        lease = start(store, deadline=HOUR, queue_deadline=MINUTE, stall_limit=SECOND)
        finish(store, lease, TaskStatus.FAILED)
        created = row_of(store, lease.task_id).created_at
        clock.advance(2 * HOUR)
        stored = get(store, lease.task_id)
        done(store, transition(stored, TaskStatus.PENDING_SUBMIT, restart=True))
        row = row_of(store, lease.task_id)
        assert (row.generation, row.status, row.finished_at) == (2, TaskStatus.PENDING_SUBMIT, None)
        assert row.created_at == created
        assert row.scheduled_at == row.due_at == clock()
        assert row.deadline_at == clock() + HOUR
        assert row.queue_deadline_at == clock() + MINUTE
        again = one(claim(store), row.id, Kind.SUBMIT)
        done(store, transition(again, TaskStatus.SUBMITTED, delay=HOUR))
        assert row_of(store, row.id).stall_at == clock() + SECOND

    def test_a_new_generation_is_tracked_on_at_once(self, store: Store, clock: FakeClock) -> None:
        """A resume looks at the job again, with fresh deadlines and a fresh stall limit."""
        stored = track(store, deadline=HOUR, stall_limit=MINUTE)
        finish(store, one(claim(store)), TaskStatus.TRACKING_TIMED_OUT)
        clock.advance(5 * HOUR)
        stored = get(store, stored.row.id)
        done(store, transition(stored, TaskStatus.RUNNING, restart=True, progressed=True))
        row = row_of(store, stored.row.id)
        assert (row.deadline_at, row.stall_at) == (clock() + HOUR, clock() + MINUTE)
        one(claim(store), row.id, Kind.QUERY)

    def test_a_new_generation_is_scheduled_at_its_start(self, store: Store, clock: FakeClock) -> None:
        """A late reply may ask for patience before its first query; the deadlines count from now."""
        lease = start(store, deadline=HOUR)
        finish(store, lease, TaskStatus.SUBMIT_UNKNOWN)
        clock.advance(HOUR)
        stored = get(store, lease.task_id)
        done(store, transition(stored, TaskStatus.SUBMITTED, restart=True, delay=MINUTE))
        row = row_of(store, lease.task_id)
        assert (row.scheduled_at, row.due_at) == (clock(), clock() + MINUTE)
        assert row.deadline_at == clock() + HOUR

    def test_a_new_generation_that_nobody_asked_for_keeps_the_cancel(
        self, store: Store, clock: FakeClock
    ) -> None:
        """A receipt must not lose the user's cancel: only the move says what becomes of the flag."""
        lease = start(store)
        done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.LOOKUP, delay=HOUR))
        store.request_cancel([lease.task_id])
        stored = get(store, lease.task_id)
        done(store, transition(stored, TaskStatus.SUBMITTED, restart=True, cancel=None))
        assert row_of(store, lease.task_id).cancel is CancelFlag.REQUESTED
        one(claim(store), lease.task_id, Kind.CANCEL)

    def test_a_new_generation_has_no_cancel_flag(self, store: Store) -> None:
        """A cancel belongs to the life in which it was wanted (F104), so a retry takes it away."""
        lease = start(store)
        store.request_cancel([lease.task_id])
        finish(store, lease, TaskStatus.FAILED)
        stored = get(store, lease.task_id)
        done(store, transition(stored, TaskStatus.PENDING_SUBMIT, restart=True, cancel=CancelFlag.NONE))
        assert row_of(store, lease.task_id).cancel is CancelFlag.NONE
        one(claim(store), lease.task_id, Kind.SUBMIT)

    # Payloads and counters.

    def test_params_are_kept_until_they_are_dropped(self, store: Store) -> None:
        """A retry needs them; where the move says so they go (and are not read again)."""
        lease = start(store)
        params = lease.stored.params
        done(store, transition(lease, TaskStatus.SUBMITTED))
        assert get(store, lease.task_id).params == params
        lease = one(claim(store))
        done(store, transition(lease, TaskStatus.RUNNING, drop_params=True))
        assert get(store, lease.task_id).params is None
        finish(store, one(claim(store)))
        assert get(store, lease.task_id).params is None

    def test_a_result_is_kept_until_another_comes(self, store: Store) -> None:
        """A move without a result leaves the one that is there."""
        lease = start(store)
        finish(store, lease, result=b"one")
        for given, expected in ((None, b"one"), (b"two", b"two"), (b"", b"")):
            stored = get(store, lease.task_id)
            done(store, transition(stored, TaskStatus.SUCCEEDED, result=given))
            assert get(store, lease.task_id).result == expected

    def test_a_refreshed_end_stays_ended(self, store: Store) -> None:
        """Writing an ended task again makes nothing due."""
        lease = start(store)
        finish(store, lease)
        done(store, transition(get(store, lease.task_id), TaskStatus.SUCCEEDED, record=b"again"))
        assert ids(claim(store)) == []
        assert row_of(store, lease.task_id).finished_at is not None

    @pytest.mark.parametrize(("claims", "expected"), [("reset", 0), ("keep", 2), ("undo", 1)])
    def test_a_commit_says_what_becomes_of_the_claims(
        self, store: Store, clock: FakeClock, claims: str, expected: int
    ) -> None:
        """A finished step clears the deaths before it, a released one takes back its own claim only (F47)."""
        task_id = track(store).row.id
        one(claim(store))
        clock.advance(LEASE)
        lease = one(claim(store), task_id)
        assert lease.stored.row.claims == 2
        done(store, transition(lease, TaskStatus.SUBMITTED, claims=claims))
        assert row_of(store, task_id).claims == expected

    def test_a_committed_task_is_listed_as_what_it_became(self, store: Store) -> None:
        """Lists follow the commit at once."""
        lease = start(store)
        finish(store, lease, TaskStatus.FAILED)
        assert store.list(Filter(statuses=[TaskStatus.SUBMITTING])).items == ()
        (item,) = store.list(Filter(statuses=[TaskStatus.FAILED])).items
        assert item.row == row_of(store, lease.task_id)

    # Slots that a commit takes without asking.

    def test_a_job_that_exists_takes_its_slot_even_when_full(self, store: Store, clock: FakeClock) -> None:
        """A resume, receipt or resolve speaks of a job that is there; it counts from then on (F55)."""
        store.set_limit([Limit(account=ACCOUNT, live=1), Limit(tenant="", live=1)])
        lost = start(store)
        finish(store, lost, TaskStatus.SUBMIT_UNKNOWN, job=Job.GHOST, ghost_for=SECOND)
        clock.advance(SECOND)
        other = start(store)
        stored = get(store, lost.task_id)
        done(store, transition(stored, TaskStatus.SUBMITTED, restart=True, delay=HOUR))
        waiting = put(store)
        finish(store, other)
        assert ids(claim(store)) == []
        store.make_due([lost.task_id])
        finish(store, one(claim(store), lost.task_id, Kind.QUERY))
        assert ids(claim(store)) == [waiting]
