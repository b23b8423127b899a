"""Reading and waiting: what a caller sees, for how long it waits, and that both change nothing."""

import logging
import multiprocessing
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.core.manager_house import House, Job, Outcome, Vendor, build

from coatcheck import codec
from coatcheck.errors import (
    NewerRecordError,
    SubmitUnknownError,
    TaskCanceledError,
    TaskFailedError,
    TaskNotFoundError,
    TrackingTimedOutError,
    UnknownNameError,
    ValidationError,
    WaitTimeoutError,
)
from coatcheck.manager import Manager
from coatcheck.model import QueryResult, Task, TaskStatus, WaitReason
from coatcheck.registry import Registry
from coatcheck.store import Explanation, NewTask
from coatcheck.stores.sqlite import SqliteStore


@pytest.fixture
def house() -> Iterator[House]:
    """Yield a manager with one handler."""
    made = build()
    yield made
    made.store.close()


# Tenants.


def test_foreign_task_is_not_found_exactly_like_a_missing_one(house: House) -> None:
    """Nobody learns from an error whether an id exists."""
    task = house.manager.submit(Job(), tenant="a")
    missing = "0" * len(task.id)
    calls: list[Any] = [
        house.manager.get,
        house.manager.explain,
        house.manager.cancel,
        house.manager.retry,
        house.manager.resume,
        house.manager.refresh,
        house.manager.make_due,
        lambda id_, tenant: house.manager.wait(id_, 0, tenant=tenant),
        lambda id_, tenant: house.manager.result(id_, 0, tenant=tenant),
        lambda id_, tenant: house.manager.resolve(id_, to="failed", reason="r", by="b", tenant=tenant),
    ]
    for call in calls:
        with pytest.raises(TaskNotFoundError) as foreign:
            call(task.id, tenant="b")
        with pytest.raises(TaskNotFoundError) as gone:
            call(missing, tenant="b")
        assert str(foreign.value).replace(task.id, missing) == str(gone.value)
    assert house.manager.get(task.id, tenant="a") == task
    assert house.manager.get(task.id) == task


def test_list_is_scoped_to_a_tenant(house: House) -> None:
    """A tenant's list holds its own tasks only; the blank tenant is one too."""
    for tenant in ("a", "b", "", "a"):
        house.manager.submit(Job(), tenant=tenant)
    assert len(house.manager.list(tenant="a").items) == 2
    assert len(house.manager.list(tenant="").items) == 1
    assert len(house.manager.list().items) == 4


def test_missing_task_names_the_store(house: House, tmp_path: Path) -> None:
    """Whoever looks in the wrong store learns which one it was (F109)."""
    with pytest.raises(TaskNotFoundError, match="memory store, which only its own process sees"):
        house.manager.get("nope")
    store = SqliteStore(str(tmp_path / "a.db"), namespace="shop")
    with pytest.raises(TaskNotFoundError, match=r"namespace 'shop' of this sqlite store;"):
        Manager(store, house.registry).get("nope")
    store.close()


def test_task_in_place_of_its_id_is_refused(house: House) -> None:
    """Passing the task itself is a likely slip."""
    task: Any = house.manager.submit(Job())
    with pytest.raises(ValidationError, match=r"pass task\.id"):
        house.manager.get(task)


# Lists.


def test_list_pages_through_all_tasks_newest_first(house: House) -> None:
    """Cursors neither skip nor repeat."""
    ids = [house.manager.submit(Job()).id for _ in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = house.manager.list(limit=3, cursor=cursor)
        seen += [task.id for task in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids[::-1]


def test_list_filters(house: House) -> None:
    """Every filter narrows."""
    a = house.manager.submit(Job(), account="x", provider_key="p", dedupe_key="d")
    b = house.submitted()
    manager = house.manager
    assert [task.id for task in manager.list(statuses=["running"], account="default").items] == [b.id]
    assert [task.id for task in manager.list(account="x").items] == [a.id]
    assert [task.id for task in manager.list(provider_key="p").items] == [a.id]
    assert [task.id for task in manager.list(dedupe_key="d", tenant="").items] == [a.id]
    assert manager.list(handler_key="nobody").items == ()
    assert manager.list(quarantined=True).items == ()


@pytest.mark.parametrize("limit", [0, -1, 1001, "5", None, True, 1e12])
def test_list_refuses_a_senseless_limit(house: House, limit: Any) -> None:
    """A page has 1 to 1000 tasks."""
    with pytest.raises(ValidationError, match="limit must be a whole number from 1 to 1000"):
        house.manager.list(limit=limit)


def test_list_refuses_an_unknown_status(house: House) -> None:
    """A misspelt status would otherwise be an empty list."""
    with pytest.raises(UnknownNameError, match="did you mean 'succeeded'"):
        house.manager.list(statuses=["suceeded"])


def test_record_of_a_newer_version_is_listed_and_refused_by_name(house: House) -> None:
    """One record that this version cannot read hides no other and is never changed."""
    task = house.manager.submit(Job())
    house.store.add(
        [
            NewTask(
                id="newer",
                format=codec.FORMAT + 1,
                record=b"???",
                params=b"{}",
                handler_key="acme:job",
                provider_key="acme:job",
                account="default",
            )
        ]
    )
    newer, known = house.manager.list().items
    assert (newer.id, newer.status, known.id) == ("newer", TaskStatus.PENDING_SUBMIT, task.id)
    assert "newer" in newer.notes[0]
    with pytest.raises(NewerRecordError, match="upgrade"):
        house.manager.get("newer")


# What a reader sees.


def test_overdue_pending_task_shows_as_timed_out_before_its_row_follows(house: House) -> None:
    """No worker is needed for the truth to be seen."""
    task = house.manager.submit(Job(), queue_deadline=timedelta(minutes=1))
    house.clock.advance(61)
    seen = house.manager.get(task.id)
    assert (seen.status, seen.verdict) == (TaskStatus.TRACKING_TIMED_OUT, "nobody")
    assert house.manager.list().items[0].status is TaskStatus.TRACKING_TIMED_OUT
    assert house.manager.wait(task.id, 0).status is TaskStatus.TRACKING_TIMED_OUT
    with pytest.raises(TrackingTimedOutError):
        house.manager.result(task.id, 0)


def test_reading_changes_nothing(house: House) -> None:
    """However often a task is looked at, it is the same task (G9)."""
    task = house.submitted()
    for _ in range(5):
        house.manager.get(task.id)
        house.manager.list()
        house.manager.explain(task.id)
        house.manager.stats()
    assert house.manager.get(task.id) == task


def test_explain_says_why_a_task_waits(house: House) -> None:
    """Waiting has a reason, as data."""
    later = house.manager.submit(Job(), delay=timedelta(hours=1))
    assert house.manager.explain(later.id).reason is WaitReason.NOT_DUE
    now = house.manager.submit(Job())
    assert house.manager.explain(now.id).reason is WaitReason.NO_HANDLER
    house.manager.pause("provider", "acme:job", by="ops", reason="maintenance")
    house.work()
    assert house.manager.explain(now.id).reason is WaitReason.PAUSED
    with pytest.raises(TaskNotFoundError):
        house.manager.explain("nope")


# Results and errors.


def test_result_of_a_task_that_succeeded(house: House) -> None:
    """The result comes back as the class that the handler made."""
    task = house.manager.submit(Job())
    house.work(2)
    assert house.manager.result(task.id) == Outcome("done")
    assert house.manager.get(task.id).result == Outcome("done")
    assert house.manager.get(task.id, with_result=False).result is None


def test_failed_task_raises_code_phase_and_both_ids(house: House) -> None:
    """Every error carries what support needs (F29)."""
    house.vendor.query_answer = QueryResult.failed("bad_scan", "cannot read page 2", retryable=True)
    task = house.manager.submit(Job())
    house.work(2)
    with pytest.raises(TaskFailedError, match="bad_scan: cannot read page 2") as caught:
        house.manager.result(task.id)
    error = caught.value
    assert (error.task_id, error.external_task_id) == (task.id, "job-1")
    assert (error.code, error.phase, error.retryable) == ("bad_scan", "query", True)


def test_canceled_and_unknown_tasks_raise_their_own_errors(house: House) -> None:
    """A caller tells the ends apart by class."""
    canceled = house.manager.submit(Job())
    house.manager.cancel(canceled.id)
    with pytest.raises(TaskCanceledError, match=canceled.id):
        house.manager.result(canceled.id)
    house.vendor.submit_answer = ValueError("connection reset")
    unknown = house.manager.submit(Job())
    house.work()
    with pytest.raises(SubmitUnknownError, match="resolve") as caught:
        house.manager.result(unknown.id)
    assert caught.value.task_id == unknown.id


def test_timed_out_task_says_what_to_do_next(house: House) -> None:
    """With a job at the vendor it is resumed; without one it is submitted again."""
    house.vendor.query_answer = QueryResult.running(10)
    task = house.submitted(deadline=timedelta(minutes=1))
    house.clock.advance(61)
    house.work(2)
    with pytest.raises(TrackingTimedOutError, match="resume tracks its job again") as caught:
        house.manager.result(task.id)
    assert (caught.value.code, caught.value.external_task_id) == ("deadline", "job-1")


# Waiting.


def test_wait_ends_in_time_and_the_task_goes_on(house: House) -> None:
    """Patience is the caller's own limit: 1 second is 1.0 to 1.3 seconds (F110)."""
    house.vendor.query_answer = QueryResult.running(10)
    task = house.submitted()
    for call in (house.manager.wait, house.manager.result):
        for timeout in (1, timedelta(seconds=1)):
            began = time.monotonic()
            with pytest.raises(WaitTimeoutError, match="goes on") as caught:
                call(task.id, timeout)
            assert 1 <= time.monotonic() - began < 1.3
            assert (caught.value.task_id, caught.value.external_task_id) == (task.id, "job-1")
            assert caught.value.status == "running"
            assert caught.value.waited >= timedelta(seconds=1)
    house.vendor.query_answer = QueryResult.succeeded("ok")
    house.work()
    assert house.manager.result(task.id, 0) == "ok"
    assert len(house.vendor.submits) == 1


def test_wait_with_zero_looks_once(house: House) -> None:
    """Zero is no patience, not endless patience (F52)."""
    task = house.manager.submit(Job())
    with pytest.raises(WaitTimeoutError):
        house.manager.wait(task.id, 0)


@pytest.mark.parametrize("timeout", [-1, "5", float("nan"), float("inf"), 1e12, True, timedelta(-1)])
def test_wait_refuses_senseless_patience(house: House, timeout: Any) -> None:
    """Bad values fail before anything is waited for."""
    task = house.manager.submit(Job())
    with pytest.raises(ValidationError, match="timeout must be"):
        house.manager.wait(task.id, timeout)


def test_wait_wakes_when_the_task_ends(house: House) -> None:
    """The end is seen at once, not at the next look."""
    task = house.submitted()
    timer = threading.Timer(0.2, house.work)
    timer.start()
    began = time.monotonic()
    assert house.manager.wait(task.id, 60).status is TaskStatus.SUCCEEDED
    assert time.monotonic() - began < 2
    timer.join()


def test_wait_without_patience_lasts_until_the_end(house: House) -> None:
    """``None`` waits as long as it takes, which the task's deadline bounds."""
    task = house.submitted()
    timer = threading.Timer(0.1, house.work)
    timer.start()
    assert house.manager.wait(task.id).result == Outcome("done")
    timer.join()


def test_wait_is_measured_by_a_monotonic_clock(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that jumps a day neither ends a wait nor prolongs it (F71)."""
    task = house.manager.submit(Job(), deadline=timedelta(days=30))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    timer = threading.Timer(0.2, lambda: house.clock.advance(timedelta(days=1)))
    timer.start()
    began = time.monotonic()
    with pytest.raises(WaitTimeoutError):
        house.manager.wait(task.id, 0.6)
    assert 0.6 <= time.monotonic() - began < 1.2
    timer.join()


def test_wait_tells_of_each_change(house: House) -> None:
    """A progress line is drawn from what ``on_change`` hears, the first state and the end included."""
    house.vendor.query_answer = QueryResult.running(40)
    task = house.manager.submit(Job())
    heard: list[tuple[str, float | None]] = []

    def heard_of(task: Task) -> None:
        heard.append((task.status, task.progress))
        if len(heard) == 3:
            house.vendor.query_answer = QueryResult.succeeded("ok")
        if len(heard) < 4:
            house.work()

    house.manager.wait(task.id, 10, on_change=heard_of)
    assert heard == [("pending_submit", None), ("running", None), ("running", 40.0), ("succeeded", 100.0)]


def test_wait_says_at_once_when_no_worker_has_the_handler(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits an hour for a worker that was never started."""
    task = house.manager.submit(Job())
    heard: list[Explanation] = []
    with pytest.raises(WaitTimeoutError, match="no worker with handler 'acme:job'"):
        house.manager.wait(task.id, 0.3, on_waiting=heard.append)
    assert [why.reason for why in heard] == [WaitReason.NO_HANDLER]
    with caplog.at_level(logging.WARNING), pytest.raises(WaitTimeoutError):
        house.manager.wait(task.id, 0.1)
    assert "no worker with handler 'acme:job'" in caplog.text


def test_wait_keeps_quiet_where_waiting_is_normal(house: House) -> None:
    """A task that is not due or next in line is no cause for alarm."""
    house.work()
    task = house.manager.submit(Job(), delay=timedelta(hours=1))
    heard: list[Explanation] = []
    with pytest.raises(WaitTimeoutError):
        house.manager.wait(task.id, 0.1, on_waiting=heard.append)
    assert heard == []


def test_wait_of_a_pending_task_ends_at_its_deadline_without_a_worker(tmp_path: Path) -> None:
    """A deadline that passes changes no row, and is seen all the same."""
    store = SqliteStore(":memory:")
    registry = Registry()
    registry.add_handler(Vendor())
    manager = Manager(store, registry)
    task = manager.submit(Job(), deadline=timedelta(seconds=0.3))
    began = time.monotonic()
    assert manager.wait(task.id, 30).status is TaskStatus.TRACKING_TIMED_OUT
    assert time.monotonic() - began < 2
    store.close()


def test_wait_for_a_missing_task_fails_at_once(house: House) -> None:
    """A wrong id is no reason to wait."""
    with pytest.raises(TaskNotFoundError):
        house.manager.wait("nope", 60)


# Processes and threads.


def _submit(path: str, ids: Any) -> None:
    store = SqliteStore(path)
    registry = Registry()
    registry.add_handler(Vendor())
    ids.put(Manager(store, registry).submit(Job()).id)
    store.close()


def _run(path: str) -> None:
    store = SqliteStore(path)
    build(store=store).work(2)
    store.close()


def test_id_alone_is_enough_in_another_process(tmp_path: Path) -> None:
    """One process submits and ends, another works, a third gets the result (F30)."""
    path = str(tmp_path / "a.db")
    context = multiprocessing.get_context("spawn")
    ids = context.Queue()
    for target, arguments in ((_submit, (path, ids)), (_run, (path,))):
        process = context.Process(target=target, args=arguments)
        process.start()
        process.join(30)
        assert process.exitcode == 0
    store = SqliteStore(path)
    assert Manager(store, Registry()).result(ids.get(timeout=5), 0) == Outcome("done")
    ids.close()
    ids.join_thread()
    store.close()


def test_result_of_an_unknown_type_is_given_out_raw(house: House) -> None:
    """A process without the provider's package reads the result as data."""
    task = house.manager.submit(Job())
    house.work(2)
    codec.unregister("test.manager.result")
    try:
        raw = house.manager.result(task.id)
    finally:
        codec.persistent("test.manager.result")(Outcome)
    assert isinstance(raw, codec.RawValue)
    assert raw.data == {"text": "done"}


def test_one_manager_serves_many_threads(house: House) -> None:
    """Every thread gets its own task's answers."""
    problems: list[BaseException] = []

    def use(number: int) -> None:
        try:
            for _ in range(5):
                task = house.manager.submit(Job(str(number)), metadata={"n": number})
                assert house.manager.get(task.id).metadata == {"n": number}
                assert house.manager.cancel(task.id).status is TaskStatus.CANCELED
        except BaseException as problem:  # noqa: BLE001  # judged in the main thread
            problems.append(problem)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert house.count() == 40
