"""Rules of ``add``, ``get`` and ``list``."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from coatcheck.errors import StoreConfigError, StoreUnavailableError
from coatcheck.model import CancelFlag, Limit, Step, TaskStatus
from coatcheck.store import AddOutcome, Filter, NewTask, Room, Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import claim, get, new_task, row_of, transition
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    SECOND,
    MakeStore,
    StoreRules,
    done,
    finish,
    ids,
    one,
    put,
    put_many,
    start,
    track,
)

_BYTES = bytes(range(256)) * 2
#: Names that stores tend to read as something else: hash tags, wildcards, quotes, separators.
_ODD = ("{a}b", "50%_*?", "it's; \"--", "a:b|c/d\\e", "文档 é", "*x*", " padded ")


class AddRules(StoreRules):
    """A submit that returned is never lost (G1), and never stored twice."""

    def test_the_store_says_what_it_is(self, store: Store) -> None:
        """Messages and managers rely on the kind, the namespace and the declared capabilities."""
        assert isinstance(store, Store)
        assert store.kind
        assert store.namespace == "default"
        assert isinstance(store.is_shared, bool)
        assert store.capabilities == self.capabilities

    def test_a_new_task_is_pending_and_due_at_once(self, store: Store, clock: FakeClock) -> None:
        """What was given is stored as it was given, and the store's own columns start plain."""
        task = new_task(tenant="acme", priority=7, deadline=HOUR, queue_deadline=MINUTE, stall_limit=SECOND)
        (added,) = store.add([task])
        assert added.outcome is AddOutcome.CREATED
        row = added.stored.row
        for name in ("id", "handler_key", "provider_key", "account", "tenant", "priority", "dedupe_key"):
            assert getattr(row, name) == getattr(task, name), name
        assert (row.deadline, row.queue_deadline, row.stall_limit) == (HOUR, MINUTE, SECOND)
        assert (row.status, row.next_step, row.generation) == (TaskStatus.PENDING_SUBMIT, Step.SUBMIT, 1)
        assert (row.cancel, row.is_leased, row.claims) == (CancelFlag.NONE, False, 0)
        assert row.created_at == row.scheduled_at == row.due_at == row.updated_at == clock()
        assert row.finished_at is None
        assert get(store, task.id).row == row

    def test_deadlines_count_from_the_scheduled_time(self, store: Store, clock: FakeClock) -> None:
        """A task that waits for its time loses nothing of its deadlines."""
        now = clock()
        lengths = {"deadline": HOUR, "queue_deadline": MINUTE}
        delayed = row_of(store, put(store, delay=3 * HOUR, **lengths))
        at = row_of(store, put(store, run_at=now + 2 * HOUR, **lengths))
        assert (delayed.created_at, delayed.scheduled_at) == (now, now + 3 * HOUR)
        assert (at.created_at, at.scheduled_at) == (now, now + 2 * HOUR)
        for row in (delayed, at):
            assert row.due_at == row.scheduled_at
            assert row.deadline_at == row.scheduled_at + HOUR
            assert row.queue_deadline_at == row.scheduled_at + MINUTE

    def test_a_run_at_in_the_past_means_now(self, store: Store, clock: FakeClock) -> None:
        """A task submitted late gets its whole deadline."""
        row = row_of(store, put(store, run_at=clock() - HOUR, deadline=MINUTE))
        assert (row.scheduled_at, row.due_at, row.deadline_at) == (clock(), clock(), clock() + MINUTE)
        assert ids(claim(store)) == [row.id]

    def test_payloads_are_kept_byte_for_byte(self, store: Store) -> None:
        """Record, params and result are opaque to a store, so any byte may be in them."""
        task_id = put(store, record=_BYTES, params=b"\x00" + _BYTES)
        lease = one(claim(store), task_id)
        assert lease.stored.record == _BYTES
        done(store, transition(lease, TaskStatus.FAILED, record=b"\xff\x00", result=_BYTES + b"\x00"))
        stored = get(store, task_id)
        assert (stored.record, stored.params, stored.result) == (
            b"\xff\x00",
            b"\x00" + _BYTES,
            _BYTES + b"\x00",
        )

    def test_empty_payloads_stay_empty(self, store: Store) -> None:
        """Empty bytes are not the same as nothing."""
        task_id = put(store, record=b"", params=b"")
        stored = get(store, task_id)
        assert (stored.record, stored.params, stored.result) == (b"", b"", None)

    @pytest.mark.parametrize("name", _ODD)
    def test_names_are_only_names(self, store: Store, name: str) -> None:
        """Ids, tenants, accounts, handlers and keys come from people: nothing in them is syntax (F62)."""
        task = new_task(
            f"id {name}",
            tenant=name,
            account=name,
            handler_key=name,
            provider_key=name,
            dedupe_key=name,
            dedupe_digest=b"1",
        )
        store.add([task])
        store.set_limit([Limit(account=name, live=1), Limit(tenant=name, live=1)])
        assert row_of(store, task.id).tenant == name
        assert one(claim(store, handlers={name}), task.id).stored.row.account == name
        other = put(store, tenant=name, account=name, handler_key=name, provider_key=name)
        assert ids(claim(store, handlers={name})) == []
        assert [item.row.id for item in store.list(Filter(tenant=name, account=name)).items] in (
            [task.id, other],
            [other, task.id],
        )

    def test_a_repeated_add_stores_once(self, store: Store, clock: FakeClock) -> None:
        """After a lost reply the caller adds the same ids again; the task goes on as if nothing had been."""
        task = new_task(dedupe_key="k", dedupe_digest=b"1")
        store.add([task])
        lease = one(claim(store), task.id)
        clock.advance(MINUTE)
        before = row_of(store, task.id)
        (again,) = store.add([task])
        assert again.outcome is AddOutcome.CREATED
        assert again.stored.row == before == row_of(store, task.id)
        finish(store, lease)
        assert len(store.list(Filter()).items) == 1

    def test_an_equal_request_under_one_key_is_a_replay(self, store: Store) -> None:
        """The same dedupe key and digest is the same task, whatever became of it (F34)."""
        first = new_task(dedupe_key="k", dedupe_digest=b"1")
        store.add([first])
        for status in (TaskStatus.PENDING_SUBMIT, TaskStatus.FAILED):
            again = new_task(dedupe_key="k", dedupe_digest=b"1")
            (added,) = store.add([again])
            assert added.outcome is AddOutcome.REPLAYED
            assert (added.stored.row.id, added.stored.row.status) == (first.id, status)
            assert list(store.get([again.id])) == [None]
            if status is TaskStatus.PENDING_SUBMIT:
                finish(store, one(claim(store), first.id), TaskStatus.FAILED)

    def test_another_request_under_one_key_is_a_conflict(self, store: Store) -> None:
        """A key that is taken by another request stores nothing and names the task that holds it (F34)."""
        first = new_task(dedupe_key="k", dedupe_digest=b"1")
        store.add([first])
        other = new_task(dedupe_key="k", dedupe_digest=b"2")
        (added,) = store.add([other])
        assert (added.outcome, added.stored.row.id) == (AddOutcome.CONFLICT, first.id)
        assert list(store.get([other.id])) == [None]

    def test_dedupe_keys_of_tenants_are_apart(self, store: Store) -> None:
        """A tenant cannot meet, or learn of, another tenant's key (F34)."""
        added = store.add(
            [new_task(tenant=tenant, dedupe_key="k", dedupe_digest=b"1") for tenant in ("", "a", "b")]
        )
        assert [answer.outcome for answer in added] == [AddOutcome.CREATED] * 3

    def test_the_first_of_one_call_wins_its_key(self, store: Store) -> None:
        """Inside one call the order decides, and each task has its own answer."""
        tasks = [
            new_task(dedupe_key="k", dedupe_digest=b"1"),
            new_task(),
            new_task(dedupe_key="k", dedupe_digest=b"2"),
            new_task(dedupe_key="k", dedupe_digest=b"1"),
            new_task(),
        ]
        added = store.add(tasks)
        assert [(answer.outcome, answer.stored.row.id) for answer in added] == [
            (AddOutcome.CREATED, tasks[0].id),
            (AddOutcome.CREATED, tasks[1].id),
            (AddOutcome.CONFLICT, tasks[0].id),
            (AddOutcome.REPLAYED, tasks[0].id),
            (AddOutcome.CREATED, tasks[4].id),
        ]

    def test_one_key_makes_one_task_under_threads(self, store: Store) -> None:
        """Equal submits that meet become one task (F34)."""
        tasks = [new_task(dedupe_key="k", dedupe_digest=b"1") for _ in range(16)]
        start_line = threading.Barrier(4)

        def submit(part: list[NewTask]) -> list[str]:
            start_line.wait(timeout=30)
            return [answer.stored.row.id for task in part for answer in store.add([task])]

        with ThreadPoolExecutor(4) as pool:
            found = [i for part in pool.map(submit, [tasks[n::4] for n in range(4)]) for i in part]
        assert len(found) == 16
        assert len(set(found)) == 1
        assert len(store.list(Filter()).items) == 1

    def test_what_the_store_cannot_keep_is_refused_whole(self, store: Store) -> None:
        """Postings need a ledger and events an outbox; without them nothing of the call is stored (G4)."""
        for name, capability in (("postings", "ledger"), ("events", "outbox")):
            if capability in self.capabilities:
                continue
            something: dict[str, Any] = {name: (object(),)}
            good, bad = new_task(), new_task(**something)
            with pytest.raises(StoreConfigError):
                store.add([good, bad])
            assert list(store.get([good.id, bad.id])) == [None, None]

    def test_empty_calls_do_nothing(self, store: Store) -> None:
        """Callers need not look at the length of what they have."""
        assert list(store.add([])) == []
        assert list(store.get([])) == []
        assert list(store.commit([])) == []
        assert list(store.renew([], MINUTE)) == []
        assert list(store.request_cancel([])) == []
        assert list(store.make_due([])) == []
        assert list(store.explain([])) == []
        store.set_limit([])


class ReadRules(StoreRules):
    """Reading changes nothing (G9) and shows nothing of other tenants and namespaces."""

    def test_get_answers_in_order(self, store: Store) -> None:
        """One answer per id, in the order asked, also for missing and repeated ones."""
        first, second = put(store), put(store)
        found = store.get([second, "missing", first, second])
        assert [stored and stored.row.id for stored in found] == [second, None, first, second]

    def test_another_tenants_task_looks_like_a_missing_one(self, store: Store) -> None:
        """Asked for one tenant, a store never tells a foreign task from none."""
        mine, theirs = put(store, tenant="a"), put(store, tenant="b")
        assert [stored is not None for stored in store.get([mine, theirs], tenant="a")] == [True, False]
        assert [stored is not None for stored in store.get([mine, theirs], tenant="")] == [False, False]

    def test_payloads_are_read_only_where_asked_for(self, store: Store) -> None:
        """Params and results may be large, so a plain get leaves them (F94)."""
        lease = start(store)
        done(store, transition(lease, TaskStatus.FAILED, result=b"result"))
        (plain,) = store.get([lease.task_id])
        assert plain is not None
        assert (plain.params, plain.result) == (None, None)
        assert (get(store, lease.task_id).params, get(store, lease.task_id).result) == (
            lease.stored.params,
            b"result",
        )

    def test_a_list_is_newest_first_and_complete(self, store: Store, clock: FakeClock) -> None:
        """The pages of a list show every task once, the newest first."""
        added = []
        for _ in range(7):
            added.append(put(store))
            clock.advance(SECOND)
        seen: list[str] = []
        cursor = None
        for _ in range(10):
            page = store.list(Filter(), limit=3, cursor=cursor)
            assert len(page.items) <= 3
            seen += [item.row.id for item in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert cursor is None, "expected the pages to end"
        assert seen == added[::-1]

    def test_tasks_of_one_instant_are_all_listed(self, store: Store) -> None:
        """Paging loses and repeats nothing where many tasks have one creation time."""
        added = put_many(store, 10)
        seen, cursor = [], None
        while True:
            page = store.list(Filter(), limit=4, cursor=cursor)
            seen += [item.row.id for item in page.items]
            cursor = page.cursor
            if cursor is None:
                break
            assert len(seen) <= 10, "expected the pages to end"
        assert sorted(seen) == sorted(added)

    def test_a_list_shows_no_payloads(self, store: Store) -> None:
        """A list of large tasks stays small (F94)."""
        lease = start(store)
        done(store, transition(lease, TaskStatus.FAILED, result=b"result"))
        (item,) = store.list(Filter()).items
        assert (item.params, item.result) == (None, None)
        assert item.record == lease.stored.record

    def test_a_list_shows_what_its_filter_matches(self, store: Store) -> None:
        """Each field of a filter narrows the list; together they narrow it further."""
        plain = put(store)
        odd = {
            "tenant": put(store, tenant="t"),
            "handler_key": put(store, handler_key="t"),
            "provider_key": put(store, provider_key="t"),
            "account": put(store, account="t"),
            "dedupe_key": put(store, dedupe_key="t", dedupe_digest=b"1"),
        }
        everything = put(
            store,
            tenant="t",
            handler_key="t",
            provider_key="t",
            account="t",
            dedupe_key="t",
            dedupe_digest=b"1",
        )

        def listed(where: Filter) -> set[str]:
            return {item.row.id for item in store.list(where).items}

        for name, task_id in odd.items():
            assert listed(Filter(**{name: "t"})) == {task_id, everything}, name  # type: ignore[arg-type]  # each is a text
        assert listed(Filter(tenant="")) == {plain, *odd.values()} - {odd["tenant"]}
        assert listed(Filter(tenant="t", account="t")) == {everything}
        assert listed(Filter(statuses=[TaskStatus.RUNNING])) == set()
        assert len(listed(Filter(statuses=[TaskStatus.RUNNING, TaskStatus.PENDING_SUBMIT]))) == 7

    def test_reading_changes_nothing(self, store: Store, clock: FakeClock) -> None:
        """However often somebody looks, rows, limits and turns stay as they are (G9)."""
        tracked = track(store).row.id
        waiting = put(store)
        clock.advance(MINUTE)
        before = [row_of(store, task_id) for task_id in (tracked, waiting)]
        for _ in range(3):
            store.list(Filter())
            store.stats()
            store.explain([tracked, waiting])
            store.get([tracked, waiting], payloads=True)
        assert [row_of(store, task_id) for task_id in (tracked, waiting)] == before
        assert sorted(ids(claim(store))) == sorted([tracked, waiting])

    def test_namespaces_are_apart(self, make_store: MakeStore, clock: FakeClock) -> None:
        """A namespace sees, claims, limits and counts only its own tasks."""
        with (
            closing(make_store(clock=clock, namespace="one")) as one_store,
            closing(make_store(clock=clock, namespace="two")) as two_store,
        ):
            task = new_task("same-id", dedupe_key="k", dedupe_digest=b"1")
            two_store.pause("account", task.account, by="me", reason="test")
            one_store.set_limit([Limit(account=task.account, live=1)])
            (first,) = one_store.add([task])
            (second,) = two_store.add([new_task("same-id", dedupe_key="k", dedupe_digest=b"2")])
            assert first.outcome is second.outcome is AddOutcome.CREATED
            assert (one_store.namespace, two_store.namespace) == ("one", "two")
            finish(one_store, one(claim(one_store), "same-id"))
            assert row_of(two_store, "same-id").status is TaskStatus.PENDING_SUBMIT
            assert ids(claim(two_store)) == []
            assert one_store.stats().pauses == ()
            assert two_store.stats().limits == ()
            two_store.unpause("account", task.account)
            assert ids(claim(two_store)) == ["same-id"]
            assert one_store.stats().by_status.get(TaskStatus.SUBMITTING, 0) == 0

    def test_another_handle_sees_the_same_tasks(
        self, store: Store, make_store: MakeStore, clock: FakeClock
    ) -> None:
        """What one process stored, another reads, claims and limits (F30, F59)."""
        if not store.is_shared:
            pytest.skip("this store is not shared (is_shared is False)")
        task_id = put(store)
        store.pause("account", "paused", by="me", reason="test")
        store.set_limit([Limit(account="limited", live=1)])
        with closing(make_store(clock=clock)) as other:
            assert row_of(other, task_id) == row_of(store, task_id)
            assert [pause.name for pause in other.stats().pauses] == ["paused"]
            assert other.stats().limits == store.stats().limits
            lease = one(claim(other), task_id)
            assert ids(claim(store)) == []
            finish(store, lease)
            assert row_of(other, task_id).status is TaskStatus.SUCCEEDED

    def test_the_time_is_the_stores(self, store: Store, clock: FakeClock) -> None:
        """One clock decides, so that no host's clock can steal or stretch a lease (F38)."""
        assert store.now() == clock() == store.stats().now
        assert store.now().utcoffset() == timedelta()
        clock.advance(HOUR)
        assert store.now() == clock() == claim(store).now

    def test_a_closed_store_is_unavailable(self, make_store: MakeStore, clock: FakeClock) -> None:
        """After close every verb says that the store does not answer; closing again does nothing."""
        store = make_store(clock=clock)
        stored = get(store, put(store))
        store.close()
        store.close()
        calls: dict[str, Callable[[], object]] = {
            "now": store.now,
            "add": lambda: store.add([new_task()]),
            "get": lambda: store.get(["x"]),
            "list": lambda: store.list(Filter()),
            "claim": lambda: claim(store, room=Room(total=1)),
            "commit": lambda: store.commit([transition(stored, TaskStatus.FAILED)]),
            "renew": lambda: store.renew([("x", "y")], MINUTE),
            "request_cancel": lambda: store.request_cancel(["x"]),
            "make_due": lambda: store.make_due(["x"]),
            "prune": lambda: store.prune({TaskStatus.FAILED: MINUTE}),
            "stats": store.stats,
            "explain": lambda: store.explain(["x"]),
            "set_limit": lambda: store.set_limit([Limit(account="a", live=1)]),
            "pause": lambda: store.pause("account", "a", by="me", reason="test"),
            "unpause": lambda: store.unpause("account", "a"),
            "wait_for_work": lambda: store.wait_for_work(0, timedelta(milliseconds=10)),
            "wait_for_change": lambda: store.wait_for_change("x", 0, timedelta(milliseconds=10)),
        }
        for name, call in calls.items():
            try:
                call()
            except StoreUnavailableError:
                continue
            pytest.fail(f"expected StoreUnavailableError from {name} of a closed store, found none")

    def test_calls_that_closing_cuts_off_are_told_so(self, make_store: MakeStore, clock: FakeClock) -> None:
        """Threads that are in a call while another one closes the store meet no error of its inside."""
        for _ in range(5):
            store = make_store(clock=clock)
            answered = threading.Semaphore(0)
            with ThreadPoolExecutor(8) as threads:
                calls = [threads.submit(_call_on, store, answered) for _ in range(8)]
                are_answered = [answered.acquire(timeout=30) for _ in range(100)]
                store.close()
            assert all(are_answered), "expected answers of the open store"
            assert [type(call.exception()) for call in calls] == [StoreUnavailableError] * 8


def _call_on(store: Store, answered: threading.Semaphore) -> None:
    for _ in range(100_000):
        store.get(["somebody"])
        answered.release()
