"""Rules of ``prune``, ``stats`` and ``explain``."""

from collections.abc import Callable
from datetime import datetime

import pytest

from coatcheck.lifecycle import GateClose
from coatcheck.model import Job, Limit, Rate, Side, Step, TaskStatus, WaitReason
from coatcheck.store import WORKER_SEEN, AddOutcome, Filter, Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import (
    ACCOUNT,
    PROVIDER,
    claim,
    get,
    new_task,
    row_of,
    transition,
)
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    SECOND,
    StoreRules,
    done,
    finish,
    lose,
    one,
    put,
    put_many,
    start,
    track,
)

_Told = tuple[str, datetime | None]
_Situation = Callable[[Store, FakeClock], _Told]


def _seen(store: Store) -> None:
    """Let a worker with the handler be known."""
    claim(store, room=0)


def _not_due(store: Store, clock: FakeClock) -> _Told:
    _seen(store)
    return put(store, delay=HOUR), clock() + HOUR


def _paused(store: Store, clock: FakeClock) -> _Told:
    store.pause("tenant", "t", by="me", reason="test")
    task_id = put(store, tenant="t")
    claim(store)
    return task_id, None


def _gate(store: Store, clock: FakeClock) -> _Told:
    lease = start(store)
    finish(store, lease, TaskStatus.FAILED, gate=GateClose(delay=MINUTE))
    task_id = put(store)
    claim(store)
    return task_id, clock() + MINUTE


def _gate_of_queries(store: Store, clock: FakeClock) -> _Told:
    task_id = track(store).row.id
    done(
        store,
        transition(one(claim(store)), TaskStatus.RUNNING, gate=GateClose(delay=MINUTE)),
    )
    claim(store)
    return task_id, clock() + MINUTE


def _rate(store: Store, clock: FakeClock) -> _Told:
    store.set_limit([Limit(provider=PROVIDER, side=Side.SUBMIT, rate=Rate(1, MINUTE))])
    start(store)
    task_id = put(store)
    claim(store)
    return task_id, clock() + MINUTE


def _account_busy(store: Store, clock: FakeClock) -> _Told:
    store.set_limit([Limit(account=ACCOUNT, live=1)])
    start(store)
    task_id = put(store)
    claim(store)
    return task_id, None


def _tenant_quota(store: Store, clock: FakeClock) -> _Told:
    store.set_limit([Limit(tenant="t", live=1)])
    start(store, tenant="t")
    task_id = put(store, tenant="t")
    claim(store)
    return task_id, None


def _no_handler(store: Store, clock: FakeClock) -> _Told:
    _seen(store)
    return put(store, handler_key="nobody's"), None


def _handler_gone(store: Store, clock: FakeClock) -> _Told:
    _seen(store)
    clock.advance(WORKER_SEEN + SECOND)
    return put(store), None


def _only_looked_at(store: Store, clock: FakeClock) -> _Told:
    task_id = track(store, delay=HOUR).row.id
    clock.advance(WORKER_SEEN + SECOND)
    one(claim(store, worker="somebody who looks now", only=[task_id]))
    return put(store), None


def _quarantined(store: Store, clock: FakeClock) -> _Told:
    task_id = track(store).row.id
    lose(store, clock, 3)
    _seen(store)
    return task_id, None


def _leased(store: Store, clock: FakeClock) -> _Told:
    return start(store).task_id, None


def _ready(store: Store, clock: FakeClock) -> _Told:
    _seen(store)
    return put(store), None


def _ended(store: Store, clock: FakeClock) -> _Told:
    lease = start(store)
    finish(store, lease)
    return lease.task_id, None


SITUATIONS: dict[str, tuple[WaitReason, _Situation]] = {
    "not due": (WaitReason.NOT_DUE, _not_due),
    "paused": (WaitReason.PAUSED, _paused),
    "submit gate closed": (WaitReason.GATE, _gate),
    "query gate closed": (WaitReason.GATE, _gate_of_queries),
    "rate used up": (WaitReason.RATE, _rate),
    "account busy": (WaitReason.ACCOUNT_BUSY, _account_busy),
    "tenant quota": (WaitReason.TENANT_QUOTA, _tenant_quota),
    "no handler": (WaitReason.NO_HANDLER, _no_handler),
    "no worker with the handler any more": (WaitReason.NO_HANDLER, _handler_gone),
    "nobody but a refresh claimed": (WaitReason.NO_HANDLER, _only_looked_at),
    "quarantined": (WaitReason.QUARANTINED, _quarantined),
    "leased": (WaitReason.LEASED, _leased),
    "ready": (WaitReason.READY, _ready),
    "ended": (WaitReason.ENDED, _ended),
}


class UpkeepRules(StoreRules):
    """History is small, counts are right, and every waiting task can say why it waits."""

    # Prune.

    def test_prune_deletes_what_ended_long_enough_ago(self, store: Store, clock: FakeClock) -> None:
        """Each end state has its own age, by the store's clock; states that are not named stay."""
        ended = {
            status: _end_as(store, status)
            for status in (TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELED)
        }
        older = {TaskStatus.SUCCEEDED: MINUTE, TaskStatus.FAILED: HOUR}
        clock.advance(MINUTE - SECOND)
        assert store.prune(older) == 0
        clock.advance(SECOND)
        assert store.prune(older) == 1
        assert list(store.get([ended[TaskStatus.SUCCEEDED]])) == [None]
        clock.advance(HOUR)
        assert store.prune(older) == 1
        assert store.prune(older) == 0
        assert row_of(store, ended[TaskStatus.CANCELED]).status is TaskStatus.CANCELED

    def test_prune_goes_in_portions_to_the_end(self, store: Store, clock: FakeClock) -> None:
        """At most ``limit`` rows go in one call, and repeated calls reach all (F68)."""
        for task_id in put_many(store, 7):
            finish(store, one(claim(store, room=1), task_id))
        clock.advance(HOUR)
        assert [store.prune({TaskStatus.SUCCEEDED: MINUTE}, limit=3) for _ in range(4)] == [3, 3, 1, 0]
        assert store.stats().by_status.get(TaskStatus.SUCCEEDED, 0) == 0

    def test_prune_leaves_live_tasks(self, store: Store, clock: FakeClock) -> None:
        """However old, a task that has not ended stays."""
        waiting = [put(store, delay=HOUR), track(store, delay=HOUR).row.id, start(store).task_id]
        clock.advance(1000 * HOUR)
        assert store.prune({status: SECOND for status in TaskStatus if status.is_end}) == 0
        assert None not in store.get(waiting)

    def test_prune_leaves_rows_that_hold_a_slot(self, store: Store, clock: FakeClock) -> None:
        """An account slot is counted from its row, so the row lives as long as the job may (F55)."""
        lease = start(store)
        finish(store, lease, TaskStatus.TRACKING_TIMED_OUT, job=Job.GHOST, ghost_for=HOUR)
        older = {TaskStatus.TRACKING_TIMED_OUT: SECOND}
        clock.advance(HOUR - SECOND)
        assert store.prune(older) == 0
        clock.advance(SECOND)
        claim(store)
        assert store.prune(older) == 1

    def test_prune_goes_by_the_last_end(self, store: Store, clock: FakeClock) -> None:
        """A task that was retried is as old as the end of its last generation."""
        task_id = _end_as(store, TaskStatus.FAILED)
        clock.advance(HOUR)
        done(store, transition(get(store, task_id), TaskStatus.PENDING_SUBMIT, restart=True))
        finish(store, one(claim(store), task_id), TaskStatus.FAILED)
        assert store.prune({TaskStatus.FAILED: MINUTE}) == 0
        clock.advance(MINUTE)
        assert store.prune({TaskStatus.FAILED: MINUTE}) == 1

    def test_a_pruned_task_frees_its_dedupe_key(self, store: Store, clock: FakeClock) -> None:
        """A key is remembered as long as its task."""
        store.add([new_task(dedupe_key="k", dedupe_digest=b"1")])
        finish(store, one(claim(store)))
        clock.advance(HOUR)
        store.prune({TaskStatus.SUCCEEDED: MINUTE})
        (added,) = store.add([new_task(dedupe_key="k", dedupe_digest=b"2")])
        assert added.outcome is AddOutcome.CREATED

    # Stats.

    def test_stats_count_tasks_by_status(self, store: Store) -> None:
        """Every task is counted once, under the status that it has now."""
        track(store, delay=HOUR)
        _end_as(store, TaskStatus.FAILED)
        start(store)
        put_many(store, 3)
        counts = {status: count for status, count in store.stats().by_status.items() if count}
        assert counts == {
            TaskStatus.SUBMITTED: 1,
            TaskStatus.FAILED: 1,
            TaskStatus.SUBMITTING: 1,
            TaskStatus.PENDING_SUBMIT: 3,
        }

    def test_stats_show_the_workers_handlers_for_a_minute(self, store: Store, clock: FakeClock) -> None:
        """A handler is known as long as a worker that has it claimed lately."""
        claim(store, worker="a", handlers={"one", "two"})
        clock.advance(WORKER_SEEN / 2)
        claim(store, worker="b", handlers={"two", "three"})
        assert store.stats().handlers == {"one", "two", "three"}
        clock.advance(WORKER_SEEN / 2 + SECOND)
        assert store.stats().handlers == {"two", "three"}

    def test_stats_show_how_late_the_line_is(self, store: Store, clock: FakeClock) -> None:
        """The oldest due task tells how far behind the workers are; what is not due is not late."""
        assert store.stats().oldest_due_at is None
        put(store, delay=HOUR)
        assert store.stats().oldest_due_at is None
        due_at = clock()
        put(store)
        clock.advance(MINUTE)
        put(store)
        assert store.stats().oldest_due_at == due_at

    def test_stats_count_quarantined_tasks(self, store: Store, clock: FakeClock) -> None:
        """Operators see at a glance that something kills workers (F47)."""
        task_id = track(store).row.id
        lose(store, clock, 2)
        assert store.stats().quarantined == 0
        lose(store, clock, 1)
        assert store.stats().quarantined == 1
        put(store)
        (listed,) = store.list(Filter(quarantined=True)).items
        assert listed.row.id == task_id
        store.make_due([task_id], redrive=True)
        assert store.stats().quarantined == 0
        assert store.list(Filter(quarantined=True)).items == ()

    def test_stats_show_gates_until_they_open(self, store: Store, clock: FakeClock) -> None:
        """Only doors that are closed now are shown."""
        finish(store, start(store), TaskStatus.FAILED, gate=GateClose(delay=MINUTE))
        (gate,) = store.stats().gates
        assert (gate.provider, gate.account, gate.side) == (PROVIDER, ACCOUNT, Side.SUBMIT)
        assert gate.until == clock() + MINUTE
        clock.advance(MINUTE)
        assert store.stats().gates == ()

    # Explain.

    @pytest.mark.parametrize("what", SITUATIONS)
    def test_a_waiting_task_says_why(self, store: Store, clock: FakeClock, what: str) -> None:
        """The reason is data, and tells its end where that is known (F89)."""
        reason, prepare = SITUATIONS[what]
        task_id, until = prepare(store, clock)
        (told,) = store.explain([task_id])
        assert told is not None
        assert told.reason is reason
        assert told.message
        if until is not None:
            assert told.until == until

    def test_what_an_explanation_names_ends_with_it(self, store: Store, clock: FakeClock) -> None:
        """A task that is not stopped any more says so, without a claim in between."""
        store.pause("provider", PROVIDER, by="ops", reason="vendor maintenance")
        task_id = put(store)
        claim(store)
        (told,) = store.explain([task_id])
        assert told is not None
        assert told.reason is WaitReason.PAUSED
        assert "vendor maintenance" in told.message
        store.unpause("provider", PROVIDER)
        (told,) = store.explain([task_id])
        assert told is not None
        assert told.reason is WaitReason.READY

    def test_explain_answers_in_order(self, store: Store) -> None:
        """One answer per id, ``None`` for a missing one."""
        first, second = put(store), put(store, delay=HOUR)
        claim(store, room=0)
        reasons = [told and told.reason for told in store.explain([second, "missing", first])]
        assert reasons == [WaitReason.NOT_DUE, None, WaitReason.READY]

    def test_a_lost_submit_waits_for_its_lookup(self, store: Store, clock: FakeClock) -> None:
        """A task between two steps waits for its time like any other."""
        lease = start(store)
        done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.LOOKUP, delay=MINUTE))
        (told,) = store.explain([lease.task_id])
        assert told is not None
        assert (told.reason, told.until) == (WaitReason.NOT_DUE, clock() + MINUTE)


def _end_as(store: Store, status: TaskStatus) -> str:
    lease = start(store)
    finish(store, lease, status)
    return lease.task_id
