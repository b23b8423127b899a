"""Rules of ``claim``: what is handed out, for what, to whom, and when to come back."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from coatcheck.lifecycle import GateClose
from coatcheck.model import CancelFlag, Job, Limit, Rate, Side, Step, TaskStatus
from coatcheck.store import Kind, Room, Store, Transition
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import ACCOUNT, HANDLER, LEASE, PROVIDER, claim, get, row_of, transition
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    SECOND,
    StoreRules,
    commit,
    done,
    finish,
    follow,
    ids,
    kinds,
    lose,
    one,
    put,
    put_many,
    start,
    track,
    track_many,
)

NOBODY: tuple[str, ...] = ()
NO_ROOM = Room(total=0)
#: The room of a worker that holds nothing.
IDLE = Room(total=10, is_idle=True)


def _resubmitting(store: Store) -> str:
    lease = start(store)
    done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.RESUBMIT))
    return lease.task_id


def _looking(store: Store) -> str:
    lease = start(store)
    done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.LOOKUP))
    return lease.task_id


def _queryable(store: Store) -> str:
    return track(store).row.id


def _canceling(store: Store) -> str:
    task_id = track(store, delay=HOUR).row.id
    store.request_cancel([task_id])
    return task_id


def _canceling_by_step(store: Store) -> str:
    lease = start(store)
    done(store, transition(lease, TaskStatus.SUBMITTED, next_step=Step.CANCEL))
    return lease.task_id


#: How to bring a task to wait for each kind of step that is a vendor call.
CALLS: dict[Kind, Callable[[Store], str]] = {
    Kind.SUBMIT: put,
    Kind.RESUBMIT: _resubmitting,
    Kind.LOOKUP: _looking,
    Kind.QUERY: _queryable,
    Kind.CANCEL: _canceling,
}


def _pending_canceled(store: Store, clock: FakeClock) -> str:
    task_id = put(store, delay=HOUR)
    store.request_cancel([task_id])
    return task_id


def _died_in_submit(store: Store, clock: FakeClock) -> str:
    task_id = start(store).task_id
    clock.advance(LEASE * 1.5 + SECOND)
    return task_id


def _pending_overdue(store: Store, clock: FakeClock) -> str:
    task_id = put(store, deadline=MINUTE)
    clock.advance(MINUTE)
    return task_id


def _queued_too_long(store: Store, clock: FakeClock) -> str:
    task_id = put(store, queue_deadline=MINUTE)
    clock.advance(MINUTE)
    return task_id


def _tracked_overdue(store: Store, clock: FakeClock) -> str:
    task_id = track(store, deadline=MINUTE, delay=HOUR).row.id
    clock.advance(MINUTE + LEASE + SECOND)
    return task_id


#: How to bring a task to wait for a step that anybody may do.
FREE: dict[str, tuple[Kind, Callable[[Store, FakeClock], str]]] = {
    "a cancel before the submit": (Kind.CANCEL, _pending_canceled),
    "a worker that died in the submit": (Kind.RECOVER, _died_in_submit),
    "a pending task past its deadline": (Kind.EXPIRE, _pending_overdue),
    "a pending task past its queue deadline": (Kind.EXPIRE, _queued_too_long),
    "a job that nobody looked at past its deadline": (Kind.EXPIRE, _tracked_overdue),
}


_Appointment = Callable[[Store, FakeClock], tuple[str, datetime]]


def _at_its_time(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    return put(store, delay=20 * SECOND), clock() + 20 * SECOND


def _at_its_query(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    return track(store, delay=20 * SECOND).row.id, clock() + 20 * SECOND


def _after_a_death_in_a_query(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    track(store)
    lease = one(claim(store, worker="dies"))
    return lease.task_id, lease.expires_at


def _after_a_death_in_a_submit(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    lease = start(store)
    return lease.task_id, lease.expires_at + LEASE / 2


def _after_a_renewal(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    track(store)
    lease = one(claim(store, worker="dies"))
    clock.advance(20 * SECOND)
    store.renew([(lease.task_id, lease.token)], LEASE)
    return lease.task_id, clock() + LEASE


def _at_the_end_of_a_rate(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    store.set_limit([Limit(provider=PROVIDER, side=Side.SUBMIT, rate=Rate(1, MINUTE))])
    began = clock()
    lease = start(store)
    clock.advance(20 * SECOND)
    finish(store, lease)
    return put(store), began + MINUTE


def _at_the_end_of_a_gate(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    lease = start(store)
    done(store, transition(lease, TaskStatus.FAILED, gate=GateClose(delay=40 * SECOND)))
    return put(store), clock() + 40 * SECOND


def _at_the_end_of_a_ghost(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    store.set_limit([Limit(account=ACCOUNT, live=1)])
    lease = start(store)
    finish(store, lease, TaskStatus.SUBMIT_UNKNOWN, job=Job.GHOST, ghost_for=40 * SECOND)
    return put(store), clock() + 40 * SECOND


def _at_a_deadline_behind_a_pause(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    store.pause("provider", PROVIDER, by="me", reason="test")
    return put(store, deadline=MINUTE), clock() + MINUTE


def _at_a_deadline_before_the_next_query(store: Store, clock: FakeClock) -> tuple[str, datetime]:
    task_id = track(store, deadline=MINUTE, delay=HOUR).row.id
    return task_id, clock() + MINUTE


#: What waits for a time: how to make it wait, and what it is claimed for then.
APPOINTMENTS: dict[str, tuple[_Appointment, Kind]] = {
    "a scheduled time": (_at_its_time, Kind.SUBMIT),
    "a query": (_at_its_query, Kind.QUERY),
    "the lease of a lost query": (_after_a_death_in_a_query, Kind.QUERY),
    "the lease of a lost submit": (_after_a_death_in_a_submit, Kind.RECOVER),
    "a renewed lease": (_after_a_renewal, Kind.QUERY),
    "a rate": (_at_the_end_of_a_rate, Kind.SUBMIT),
    "a gate": (_at_the_end_of_a_gate, Kind.SUBMIT),
    "a job that nobody saw end": (_at_the_end_of_a_ghost, Kind.SUBMIT),
    "the deadline of a paused task": (_at_a_deadline_behind_a_pause, Kind.EXPIRE),
    "a deadline before the query": (_at_a_deadline_before_the_next_query, Kind.QUERY),
}


class ClaimRules(StoreRules):
    """At most one worker holds a task (G3), and what is due is found by whoever can do it."""

    def test_a_claim_for_submit_makes_the_task_submitting(self, store: Store, clock: FakeClock) -> None:
        """The intent is stored before the vendor is called (F27); nothing else of the task moves."""
        task_id = put(store)
        before = row_of(store, task_id)
        lease = one(claim(store), task_id, Kind.SUBMIT)
        row = row_of(store, task_id)
        assert lease.stored.row == row
        assert (row.status, row.is_leased, row.claims) == (TaskStatus.SUBMITTING, True, 1)
        assert (row.version, row.generation) == (before.version, before.generation)
        assert lease.expires_at == clock() + LEASE
        assert lease.token

    @pytest.mark.parametrize("kind", [Kind.RESUBMIT, Kind.LOOKUP, Kind.QUERY, Kind.CANCEL])
    def test_other_claims_leave_the_status(self, store: Store, kind: Kind) -> None:
        """The submit apart, a claim decides no move of the life cycle."""
        task_id = CALLS[kind](store)
        before = row_of(store, task_id)
        one(claim(store), task_id, kind)
        after = row_of(store, task_id)
        assert (after.status, after.next_step, after.version) == (
            before.status,
            before.next_step,
            before.version,
        )
        assert (after.is_leased, after.claims) == (True, 1)

    @pytest.mark.parametrize("kind", CALLS)
    def test_a_vendor_call_needs_a_handler_and_room(self, store: Store, kind: Kind) -> None:
        """A worker is given only what it can run and hold."""
        task_id = CALLS[kind](store)
        assert ids(claim(store, handlers={"another"})) == []
        assert ids(claim(store, handlers=NOBODY)) == []
        assert ids(claim(store, room=NO_ROOM)) == []
        assert ids(claim(store, room=Room(total=5, per_provider={PROVIDER: 0}))) == []
        assert ids(claim(store, room=Room(total=5, default=0))) == []
        assert row_of(store, task_id).claims == 0
        one(claim(store, room=Room(total=1, per_provider={PROVIDER: 1}, default=0)), task_id, kind)

    @pytest.mark.parametrize("what", FREE)
    def test_a_step_without_a_vendor_call_is_for_anybody(
        self, store: Store, clock: FakeClock, what: str
    ) -> None:
        """Giving up and recovering need no handler, room or permit: no task waits for one worker (G5)."""
        kind, prepare = FREE[what]
        store.set_limit(
            [
                Limit(provider=PROVIDER, side=side, rate=Rate(1, 24 * HOUR))
                for side in (Side.SUBMIT, Side.QUERY)
            ]
        )
        task_id = prepare(store, clock)
        store.pause("provider", PROVIDER, by="me", reason="test")
        one(claim(store, handlers=NOBODY, room=NO_ROOM), task_id, kind)

    @pytest.mark.parametrize("next_step", [Step.RESUBMIT, Step.LOOKUP])
    def test_a_lost_submit_that_nobody_can_clear_up_expires(
        self, store: Store, clock: FakeClock, next_step: Step
    ) -> None:
        """Every wait is bounded: one lease after the deadline any worker may give the task up."""
        lease = start(store, deadline=HOUR)
        done(store, transition(lease, TaskStatus.SUBMITTING, next_step=next_step, delay=2 * HOUR))
        clock.advance(HOUR + LEASE + SECOND)
        one(claim(store, handlers=NOBODY, room=NO_ROOM), lease.task_id, Kind.EXPIRE)

    def test_at_its_deadline_a_job_is_looked_at_once_more(self, store: Store, clock: FakeClock) -> None:
        """A worker that has the handler gets the last query before anybody gives up."""
        late = track(store, deadline=HOUR, delay=3 * HOUR).row.id
        stalled = track(store, stall_limit=MINUTE, delay=3 * HOUR).row.id
        clock.advance(MINUTE)
        assert ids(claim(store, handlers=NOBODY)) == []
        one(claim(store), stalled, Kind.QUERY)
        clock.advance(HOUR - MINUTE)
        assert late not in ids(claim(store, handlers=NOBODY))
        assert kinds(claim(store))[late] is Kind.QUERY

    def test_a_wanted_cancel_comes_instead_of_the_query(self, store: Store) -> None:
        """A queryable task whose cancel flag is set, or whose next step is a cancel, is claimed for it."""
        for prepare in (_canceling, _canceling_by_step):
            task_id = prepare(store)
            lease = one(claim(store), task_id, Kind.CANCEL)
            done(store, transition(lease, TaskStatus.SUBMITTED, cancel=CancelFlag.HANDLED))
            finish(store, one(claim(store), task_id, Kind.QUERY))

    def test_nothing_is_claimed_before_it_is_due(self, store: Store, clock: FakeClock) -> None:
        """A task that waits for its time is leased by nobody, and then by one worker (F35)."""
        began = clock()
        waiting = put(store, delay=3 * HOUR)
        tracked = track(store, delay=2 * HOUR, deadline=4 * HOUR).row.id
        while clock() < began + 2 * HOUR - SECOND:
            clock.move_to(min(clock() + 7 * MINUTE, began + 2 * HOUR - SECOND))
            for worker in ("a", "b", "c", "d"):
                assert ids(claim(store, worker=worker)) == []
        clock.advance(SECOND)
        lease = one(claim(store, worker="a"), tracked, Kind.QUERY)
        assert ids(claim(store, worker="b")) == []
        finish(store, lease)
        clock.advance(HOUR - SECOND)
        assert ids(claim(store)) == []
        assert row_of(store, waiting).claims == 0
        clock.advance(SECOND)
        found = [i for worker in ("a", "b", "c", "d") for i in ids(claim(store, worker=worker))]
        assert found == [waiting]

    def test_a_repeated_claim_returns_the_same_leases(self, store: Store, clock: FakeClock) -> None:
        """A lost reply must not turn a batch into unknown submits: the same nonce is the same claim."""
        added = put_many(store, 5)
        first = claim(store, room=3, nonce="n1")
        put(store)
        clock.advance(SECOND)
        again = claim(store, room=3, nonce="n1")
        assert [(lease.task_id, lease.token, lease.kind) for lease in again.leases] == [
            (lease.task_id, lease.token, lease.kind) for lease in first.leases
        ]
        assert [lease.stored for lease in again.leases] == [lease.stored for lease in first.leases]
        assert ids(first) == added[:3]
        assert row_of(store, added[0]).claims == 1
        done(store, *(transition(lease, TaskStatus.SUBMITTED) for lease in again.leases))

    def test_the_nonce_of_another_worker_is_another_claim(self, store: Store) -> None:
        """Two workers never share leases, even where their random numbers meet."""
        put_many(store, 2)
        first = claim(store, room=1, worker="a", nonce="n1")
        second = claim(store, room=1, worker="b", nonce="n1")
        assert ids(first) != ids(second)
        assert len(second.leases) == 1

    def test_every_lease_has_its_own_token(self, store: Store) -> None:
        """A token fences one claim of one task."""
        put_many(store, 20)
        tokens = [lease.token for _ in range(2) for lease in claim(store, room=10).leases]
        assert len(set(tokens)) == 20

    @pytest.mark.parametrize("kind", CALLS)
    def test_rows_of_a_newer_format_stay_untouched(self, store: Store, kind: Kind) -> None:
        """A worker that cannot read a record leaves it to one that can (G7, F86)."""
        task_id = CALLS[kind](store)
        if kind is Kind.SUBMIT:
            task_id = put(store, format=2)
            done_before = one(claim(store), kind=Kind.SUBMIT)
            finish(store, done_before)
        else:
            held = one(claim(store), task_id, kind)
            status, step = held.stored.row.status, held.stored.row.next_step
            done(store, transition(held, status, next_step=step, format=2))
        before = row_of(store, task_id)
        assert ids(claim(store)) == []
        assert row_of(store, task_id) == before
        one(claim(store, format=2), task_id, kind)

    def test_an_overdue_row_of_a_newer_format_stays_untouched(self, store: Store, clock: FakeClock) -> None:
        """Even giving up rewrites the record, so it needs a worker that can read it (G7)."""
        task_id = put(store, format=2, deadline=MINUTE)
        clock.advance(HOUR)
        assert ids(claim(store)) == []
        one(claim(store, format=3), task_id, Kind.EXPIRE)

    def test_accounts_that_a_worker_leaves_out_are_skipped(self, store: Store) -> None:
        """A worker that cannot look an account up leaves its tasks to others, and goes on with the rest."""
        left = [track(store, account="b").row.id, put(store, account="a")]
        for account in ("c", "d"):
            put(store, account=account)
        assert not {*left} & {*ids(claim(store, skip=["a", "b"]))}
        assert sorted(ids(claim(store))) == sorted(left)

    def test_a_worker_gets_only_its_handlers_tasks(self, store: Store) -> None:
        """Tasks of several handlers wait side by side and do not hide each other."""
        mine = [put(store, handler_key="mine"), put(store, handler_key="too", provider_key="p2")]
        put(store, handler_key="theirs", priority=9)
        assert sorted(ids(claim(store, handlers={"mine", "too", "unused"}))) == sorted(mine)

    def test_one_task_is_given_to_one_worker(self, store: Store) -> None:
        """Workers that start together share the work without overlap (F45)."""
        added = put_many(store, 60)

        def work(worker: str) -> list[str]:
            found: list[str] = []
            while leased := ids(claim(store, worker=worker, room=4)):
                found += leased
            return found

        with ThreadPoolExecutor(4) as pool:
            found = [task_id for part in pool.map(work, "abcd") for task_id in part]
        assert sorted(found) == sorted(added)

    def test_leases_carry_what_their_step_reads(self, store: Store) -> None:
        """A submit, resubmit and lookup need the params; queries and cancels never load them."""
        for kind, prepare in CALLS.items():
            task_id = prepare(store)
            stored = one(claim(store), task_id, kind).stored
            kept = get(store, task_id)
            assert stored.record == kept.record
            assert stored.params == (None if kind in (Kind.QUERY, Kind.CANCEL) else kept.params), kind
            assert stored.result is None

    # Room.

    @pytest.mark.parametrize(
        ("waiting", "room", "expected"),
        [
            ((10, 10), 4, (2, 2)),
            ((10, 10), 0, (0, 0)),
            ((1, 10), 6, (1, 5)),
            ((10, 1), 6, (5, 1)),
            ((10, 0), 6, (6, 0)),
            ((0, 10), 6, (0, 6)),
            ((2, 2), 10, (2, 2)),
        ],
    )
    def test_each_side_has_half_of_the_room(
        self, store: Store, clock: FakeClock, waiting: tuple[int, int], room: int, expected: tuple[int, int]
    ) -> None:
        """Neither side can starve the other, and what one leaves the other takes (F21)."""
        track_many(store, clock, waiting[1])
        put_many(store, waiting[0])
        found = list(kinds(claim(store, room=room)).values())
        assert (found.count(Kind.SUBMIT), found.count(Kind.QUERY)) == expected

    @pytest.mark.parametrize("first", ["query", "submit"])
    def test_an_odd_place_goes_to_whom_waited_longer(
        self, store: Store, clock: FakeClock, first: str
    ) -> None:
        """With one place the two sides are served in the order of their waiting."""
        query = track(store, delay=MINUTE if first == "query" else 2 * MINUTE).row.id
        submit = put(store, delay=2 * MINUTE if first == "query" else MINUTE)
        clock.advance(3 * MINUTE)
        order = [*ids(claim(store, room=1)), *ids(claim(store, room=1))]
        assert order == ([query, submit] if first == "query" else [submit, query])

    def test_room_of_a_provider_bounds_only_that_provider(self, store: Store) -> None:
        """A vendor that hangs cannot take the places of another (G10)."""
        for provider in ("slow", "quick", "other"):
            put_many(store, 5, provider_key=provider)
        room = Room(total=9, per_provider={"slow": 1, "quick": 3}, default=2)
        leases = claim(store, room=room).leases
        found = [lease.stored.row.provider_key for lease in leases]
        assert {name: found.count(name) for name in ("slow", "quick", "other")} == {
            "slow": 1,
            "quick": 3,
            "other": 2,
        }

    def test_room_of_a_provider_counts_both_sides(self, store: Store, clock: FakeClock) -> None:
        """A place is held by any step of the provider."""
        track_many(store, clock, 3)
        put_many(store, 3)
        assert len(claim(store, room=Room(total=10, per_provider={PROVIDER: 3})).leases) == 3

    # Only.

    def test_only_these_are_claimed_due_or_not(self, store: Store) -> None:
        """A refresh takes the tasks that it was asked for, early, and nothing else."""
        early, other = track(store, delay=HOUR).row.id, track(store).row.id
        batch = claim(store, only=[early])
        one(batch, early, Kind.QUERY)
        assert ids(claim(store)) == [other]

    def test_only_takes_each_task_once(self, store: Store) -> None:
        """A task that is named twice is leased once, to one holder of one token (G3)."""
        early = track(store, delay=HOUR).row.id
        lease = one(claim(store, only=[early, early]), early)
        finish(store, lease)

    def test_only_finds_what_it_can_take(self, store: Store) -> None:
        """A task that is not free uses no place of those that are."""
        held, free = track(store, delay=HOUR).row.id, track(store, delay=HOUR).row.id
        one(claim(store, only=[held]), held)
        one(claim(store, only=[held, "missing", free], room=1), free)

    def test_only_takes_nothing_that_cannot_be_queried(self, store: Store) -> None:
        """Pending, ended, leased and missing tasks are left as they are."""
        tracked = track(store).row.id
        one(claim(store), tracked)
        pending = put(store)
        ended = start(store, account="another", claims={"skip": [ACCOUNT]})
        finish(store, ended)
        asked = [tracked, pending, ended.task_id, "missing"]
        assert ids(claim(store, only=asked)) == []
        assert row_of(store, pending).status is TaskStatus.PENDING_SUBMIT

    def test_only_obeys_permits_and_gates(self, store: Store, clock: FakeClock) -> None:
        """A user's refresh is no way round the limits of an account (G6)."""
        first, second = track(store, delay=HOUR).row.id, track(store, delay=HOUR).row.id
        store.set_limit([Limit(account=ACCOUNT, side=Side.QUERY, rate=Rate(1, MINUTE))])
        lease = one(claim(store, only=[first, second]))
        assert ids(claim(store, only=[first, second])) == []
        store.set_limit([Limit(account=ACCOUNT, side=Side.QUERY, rate=None)])
        done(store, transition(lease, TaskStatus.RUNNING, delay=HOUR, gate=GateClose(delay=MINUTE)))
        assert ids(claim(store, only=[first, second])) == []
        clock.advance(MINUTE)
        assert sorted(ids(claim(store, only=[first, second]))) == sorted([first, second])

    # Coming back.

    def test_an_empty_store_waits_for_no_time(self, store: Store) -> None:
        """An idle worker is not told to come back for nothing (F88)."""
        assert claim(store).next_at is None
        finish(store, start(store))
        assert claim(store).next_at is None

    @pytest.mark.parametrize("what", APPOINTMENTS)
    def test_a_claim_says_when_to_come_back(self, store: Store, clock: FakeClock, what: str) -> None:
        """A worker that hears nothing and obeys ``next_at`` takes up each task the moment it can (G5)."""
        prepare, kind = APPOINTMENTS[what]
        task_id, at = prepare(store, clock)
        lease, claimed_at = follow(store, clock)
        assert (lease.task_id, lease.kind, claimed_at) == (task_id, kind, at)

    def test_the_earliest_time_is_the_one_to_come_back(self, store: Store, clock: FakeClock) -> None:
        """Of many waiting tasks the next one counts, whatever was added last."""
        for minutes in (5, 2, 9):
            put(store, delay=minutes * MINUTE, tenant=str(minutes))
            track(store, delay=minutes * MINUTE + 30 * SECOND, tenant=str(minutes))
        began = clock()
        times = []
        for _ in range(6):
            lease, at = follow(store, clock)
            finish(store, lease)
            times.append((at - began) / MINUTE)
        assert times == [2, 2.5, 5, 5.5, 9, 9.5]

    def test_a_worker_without_the_handler_still_gives_up_in_time(
        self, store: Store, clock: FakeClock
    ) -> None:
        """A deadline is an appointment for every worker."""
        task_id = put(store, deadline=HOUR)
        lease, at = follow(store, clock, handlers=NOBODY)
        assert (lease.task_id, lease.kind) == (task_id, Kind.EXPIRE)
        assert at == row_of(store, task_id).deadline_at

    # Tasks that kill workers.

    def test_a_task_that_killed_two_workers_runs_alone(self, store: Store, clock: FakeClock) -> None:
        """A suspect goes to a worker that holds nothing else, and nothing is handed out beside it (F47)."""
        suspects = set()
        for _ in range(2):
            task_id = track(store).row.id
            lose(store, clock, 2)
            held = one(claim(store, room=IDLE), task_id)
            done(store, transition(held, TaskStatus.RUNNING, delay=HOUR, claims="undo"))
            assert row_of(store, task_id).claims == 2
            suspects.add(task_id)
        clock.advance(HOUR)
        busy = claim(store)
        assert (ids(busy), busy.has_suspects) == ([], True)
        first = one(claim(store, room=IDLE))
        assert ids(claim(store)) == []
        finish(store, first)
        second = one(claim(store, room=IDLE))
        assert {first.task_id, second.task_id} == suspects

    def test_a_suspect_does_not_stop_the_others(self, store: Store, clock: FakeClock) -> None:
        """Busy workers get the other tasks, an idle one gets either some of them or the suspect (G10)."""
        suspect = track(store).row.id
        lose(store, clock, 2)
        others = put_many(store, 6)
        batch = claim(store, room=2)
        assert len(batch.leases) == 2
        assert suspect not in ids(batch)
        waiting = {suspect, *others} - {*ids(batch)}
        for _ in range(10):
            leases = claim(store, room=Room(total=2, is_idle=True)).leases
            found = {lease.task_id for lease in leases}
            assert suspect not in found or found == {suspect}
            waiting -= found
            for lease in leases:
                finish(store, lease)
        assert waiting == set()

    @pytest.mark.parametrize("why", ["its handler is missing", "its account is missing", "it is paused"])
    def test_suspects_that_have_to_wait_hide_no_other(self, store: Store, clock: FakeClock, why: str) -> None:
        """A worker that died with hundreds of tasks holds up nobody who can take another suspect (G10)."""

        def die_twice(**changes: Any) -> None:
            for _ in range(2):
                batch = claim(store, room=1000, **changes)
                clock.advance(LEASE * 1.5)
                moves: list[Transition] = []
                while len(moves) < len(batch.leases):
                    moves += [
                        transition(lost, TaskStatus.PENDING_SUBMIT, job=Job.NONE, claims="keep")
                        for lost in claim(store, handlers=NOBODY).leases
                    ]
                done(store, *moves)

        put_many(store, 300, handler_key="other", account="away")
        die_twice(handlers={"other"})
        if why == "it is paused":
            store.pause("account", "away", by="me", reason="test")
        suspect = put(store)
        die_twice()
        worker: dict[str, Any] = {"handlers": {HANDLER, "other"}}
        if why == "its handler is missing":
            worker = {"handlers": {HANDLER}}
        elif why == "its account is missing":
            worker["skip"] = ["away"]
        assert claim(store, **worker).has_suspects is True
        one(claim(store, room=IDLE, **worker), suspect, Kind.SUBMIT)

    def test_without_suspects_nobody_has_to_be_idle(self, store: Store, clock: FakeClock) -> None:
        """One death is an accident: the task goes on as before."""
        task_id = track(store).row.id
        assert claim(store, room=0).has_suspects is False
        lose(store, clock, 1)
        batch = claim(store)
        assert (ids(batch), batch.has_suspects) == ([task_id], False)

    def test_a_task_that_killed_three_workers_is_quarantined(self, store: Store, clock: FakeClock) -> None:
        """It is handed out no more until an operator frees it; all others go on (F47, G10)."""
        task_id = track(store).row.id
        lose(store, clock, 3)
        other = track(store).row.id
        for _ in range(3):
            lease = one(claim(store, room=IDLE), other)
            done(store, transition(lease, TaskStatus.RUNNING))
            clock.advance(HOUR)
            store.make_due([task_id])
        finish(store, one(claim(store, room=IDLE), other))
        store.make_due([task_id], redrive=True)
        assert row_of(store, task_id).claims == 0
        one(claim(store), task_id, Kind.QUERY)

    @pytest.mark.parametrize("step", [Step.RESUBMIT, Step.LOOKUP])
    def test_deaths_before_the_vendor_has_a_job_count_too(
        self, store: Store, clock: FakeClock, step: Step
    ) -> None:
        """A recovery that keeps the count lets a submit that kills its workers be found out (F47)."""
        lease = start(store, deadline=HOUR)
        for deaths in (1, 2, 3):
            clock.advance(LEASE * 1.5)
            recovery = one(claim(store), lease.task_id, Kind.RECOVER)
            done(store, transition(recovery, TaskStatus.SUBMITTING, next_step=step, claims="keep"))
            assert row_of(store, lease.task_id).claims == deaths
            if deaths < 3:
                assert ids(claim(store)) == ([] if deaths == 2 else [lease.task_id])
            if deaths == 2:
                one(claim(store, room=IDLE), lease.task_id, Kind(step))
        assert ids(claim(store, room=IDLE)) == []
        clock.advance(HOUR)
        one(claim(store, handlers=NOBODY, room=NO_ROOM), lease.task_id, Kind.EXPIRE)

    def test_a_quarantined_task_still_expires(self, store: Store, clock: FakeClock) -> None:
        """Its deadline bounds it like any other, and needs nobody who runs it."""
        task_id = track(store, deadline=HOUR).row.id
        lose(store, clock, 3)
        clock.advance(HOUR + LEASE)
        one(claim(store, handlers=NOBODY, room=NO_ROOM), task_id, Kind.EXPIRE)

    def test_a_commit_ends_the_row_of_deaths(self, store: Store, clock: FakeClock) -> None:
        """Only deaths in a row make a suspect."""
        task_id = track(store).row.id
        for _ in range(3):
            lose(store, clock, 1)
            lease = one(claim(store), task_id)
            assert row_of(store, task_id).claims == 2
            assert commit(store, transition(lease, TaskStatus.RUNNING)) == ["done"]
            assert row_of(store, task_id).claims == 0
