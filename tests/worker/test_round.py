"""``Worker.step``: one bounded round in the caller's thread, by clocks that stand still."""

import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.worker.house import Handler, House, fails

from coatcheck.errors import (
    ConfigError,
    NotSentError,
    StoreUnavailableError,
    TaskFailedError,
    ThrottledError,
)
from coatcheck.model import Limit, QueryParams, QueryResult, Rate, Side, SubmitResult, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck.store import Room

Build = Callable[..., House]


def test_one_round_after_the_other_brings_a_task_to_its_end(build: Build) -> None:
    """A round claims what is due, calls, and commits; what is due after it belongs to the next one."""
    handler = Handler(queries=2)
    house = build(handler)
    (task_id,) = house.submit()
    worker = house.worker()
    seen = [(worker.step(), house.task(task_id).status) for _ in range(4)]
    assert seen == [
        (1, TaskStatus.SUBMITTED),
        (1, TaskStatus.RUNNING),
        (1, TaskStatus.SUCCEEDED),
        (0, TaskStatus.SUCCEEDED),
    ]
    assert house.manager.result(task_id) == {"of": f"job-{task_id}"}
    assert (handler.submits, handler.looks) == ([task_id], [task_id, task_id])


def test_a_round_is_bounded(build: Build) -> None:
    """A cron job does as much as it was asked to and no more."""
    house = build()
    house.submit(5)
    worker = house.worker(threads=3)
    assert (worker.step(limit=2), worker.step()) == (2, 3)


def test_a_round_leaves_the_first_query_to_its_time(build: Build) -> None:
    """Nothing is claimed before it is due, however often a round is made (F35)."""
    handler = Handler(poll=PollPolicy(first=timedelta(seconds=60), jitter=0))
    house = build(handler)
    house.submit()
    worker = house.worker()
    assert [worker.step() for _ in range(5)] == [1, 0, 0, 0, 0]
    house.advance(60)
    assert worker.step() == 1
    assert len(handler.looks) == 1


def test_what_the_vendor_does_to_one_task_does_not_reach_the_others(build: Build) -> None:
    """One bad task never stops the others (G10)."""
    handler = Handler()
    house = build(handler)
    ids = house.submit(4)

    def answer(context: Any) -> SubmitResult:
        if context.task_id == ids[1]:
            raise SystemExit("a vendor library that exits")
        if context.task_id == ids[2]:
            raise NotSentError("no route")
        return SubmitResult.submitted(QueryParams("job-1"))

    handler.on_submit = answer
    assert house.worker().step() == 4
    assert [house.task(task_id).status for task_id in ids] == [
        TaskStatus.SUBMITTED,
        TaskStatus.SUBMIT_UNKNOWN,
        TaskStatus.PENDING_SUBMIT,
        TaskStatus.SUBMITTED,
    ]


def test_polls_are_not_attempts_and_have_no_hidden_cap(build: Build) -> None:
    """A job that runs for weeks stays alive, and its row does not grow with its polls (F51)."""
    handler = Handler(
        queries=10_000,
        poll=PollPolicy(first=timedelta(), start=timedelta(hours=1), cap=timedelta(hours=1), jitter=0),
    )
    house = build(handler)
    (task_id,) = house.submit(deadline=timedelta(days=40))
    worker = house.worker()
    worker.step()
    sizes = []
    for _ in range(300):
        worker.step()
        (stored,) = house.store.get([task_id])
        sizes.append(len(stored.record))
        house.advance(3600)
    assert len(handler.looks) == 300
    assert house.task(task_id).status is TaskStatus.RUNNING
    assert max(sizes) <= sizes[1] + 10


def test_unknown_words_go_on_until_the_deadline(build: Build) -> None:
    """A word that nobody knows is still running, kept raw, and bounded by the deadline (F13)."""
    handler = Handler()
    handler.on_query = lambda *_: QueryResult.running(provider_status="frobnicating")
    house = build(handler)
    (task_id,) = house.submit(deadline=timedelta(minutes=5))
    worker = house.worker()
    for _ in range(8):
        worker.step()
        house.advance(60)
    task = house.task(task_id)
    assert (task.status, task.provider_status) == (TaskStatus.TRACKING_TIMED_OUT, "frobnicating")
    assert task.error is not None
    assert task.error.code == "deadline"
    assert task.last_observation is not None
    assert task.finished_at is not None
    assert task.last_observation.at <= task.finished_at


def test_a_cancel_before_the_submit_never_reaches_the_vendor(build: Build) -> None:
    """A pending task that is not wanted any more ends without a call, whoever finds it."""
    handler = Handler()
    house = build(handler)
    (task_id,) = house.submit(delay=timedelta(hours=1))
    house.store.request_cancel([task_id])
    worker = house.worker()
    assert worker.step() == 1
    assert (house.task(task_id).status, handler.submits) == (TaskStatus.CANCELED, [])


def test_an_unknown_account_is_left_to_others_for_a_minute(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """The step is given back, nothing is counted, and the worker leaves the account out for 60 s."""
    handler = Handler()
    handler.on_submit = lambda context: SubmitResult.failed("never", context.account.secret())
    house = build(handler, is_faulty=True)
    (task_id,) = house.submit(account="customer-7")
    worker = house.worker()
    with caplog.at_level(logging.WARNING, "coatcheck.worker"):
        assert [worker.step(), worker.step(), worker.step()] == [1, 0, 0]
    assert [record.account for record in caplog.records] == ["customer-7"]  # type: ignore[attr-defined]  # structured
    task = house.task(task_id)
    assert (task.status, task.submit_attempts, task.claims) == (TaskStatus.PENDING_SUBMIT, 0, 0)
    house.advance(61)
    worker.step()
    assert [keywords["skip"] for _, keywords in house.store.named("claim")] == [
        (),
        ("customer-7",),
        ("customer-7",),
        (),
    ]


def test_configured_limits_and_handlers_own_are_written_where_the_store_has_none(build: Build) -> None:
    """A limit that somebody changed live survives the next start of a worker."""
    asked = Limit(provider="test:vendor", side=Side.SUBMIT, rate=Rate(1))
    handler = Handler(default_limits=(asked, Limit(account="default", live=3)))
    house = build(handler)
    house.store.set_limit([Limit(account="default", live=9)])
    house.worker(limits=[Limit(tenant="*", live=4)]).step()
    assert set(house.store.stats().limits) == {
        asked,
        Limit(account="default", live=9),
        Limit(tenant="*", live=4),
    }


def test_a_lost_answer_to_a_claim_is_asked_for_again(build: Build) -> None:
    """The same claim is repeated, so that a lost reply does not leave a batch to its leases (G2)."""
    handler = Handler()
    house = build(handler, is_faulty=True)
    ids = house.submit(3)
    house.store.after["claim"] = fails(7)
    worker = house.worker()
    with pytest.raises(StoreUnavailableError):
        worker.step()
    assert worker.step() == 3
    nonces = {arguments[1] for arguments, _ in house.store.named("claim")}
    assert len(nonces) == 1
    assert house.statuses(ids) == {TaskStatus.SUBMITTED}
    assert sorted(handler.submits) == sorted(ids)


def test_a_lost_answer_to_a_commit_is_recognised(build: Build) -> None:
    """A repeated commit is answered "done": one job, whether or not the first write went through."""
    for moment in ("before", "after"):
        handler = Handler()
        house = build(handler, is_faulty=True)
        ids = house.submit(2)
        getattr(house.store, moment)["commit"] = fails(1)
        # Half a lease is what a round waits for the store; the clock that it waits by does not stand still.
        assert house.worker(monotonic=time.monotonic).step() == 2
        assert house.statuses(ids) == {TaskStatus.SUBMITTED}
        assert sorted(handler.submits) == sorted(ids)


def test_a_round_whose_commit_never_gets_through_ends_with_the_stores_error(build: Build) -> None:
    """A cron job does not hang on a dead store; its steps go on when their leases have run out."""
    house = build(is_faulty=True)
    (task_id,) = house.submit()
    house.store.before["commit"] = fails(1_000)
    worker = house.worker(lease=timedelta(milliseconds=200), monotonic=time.monotonic)
    with pytest.raises(StoreUnavailableError, match="leases"):
        worker.step()
    house.store.before.clear()
    house.clock.advance(1)
    assert worker.step() == 1
    task = house.task(task_id)
    assert task.status is TaskStatus.SUBMIT_UNKNOWN
    assert task.error is not None
    assert task.error.code == "lease_expired"


def test_a_task_that_kills_its_workers_runs_alone_and_is_then_put_aside(build: Build) -> None:
    """After two deaths a task runs alone, after three it is not handed out any more (F47)."""
    house = build(is_faulty=True)
    (bad,) = house.submit()
    worker = house.worker()
    worker.step()

    def dies(expected: int) -> None:
        batch = house.store.claim(
            f"dead-{expected}",
            f"nonce-{expected}",
            format=1,
            handlers=["test:vendor"],
            room=Room(total=8, is_idle=True),
            lease=timedelta(seconds=30),
        )
        assert [lease.task_id for lease in batch.leases] == [bad]
        house.advance(31)

    dies(1)
    dies(2)
    others = house.submit(3)
    house.store.calls.clear()
    counts = [worker.step() for _ in range(2)]
    assert counts == [1, 3]  # the suspect alone, then the others together
    assert house.task(bad).status is TaskStatus.SUCCEEDED
    assert house.statuses(others) == {TaskStatus.SUBMITTED}


def test_a_throttle_costs_nothing_and_closes_the_gate_for_all(build: Build) -> None:
    """Tasks behind a closed gate are not tried; none of them fails (G6)."""
    handler = Handler()
    house = build(handler)
    ids = house.submit(3)

    def slow_down(context: Any) -> SubmitResult:
        raise ThrottledError("429", delay=timedelta(seconds=40))

    handler.on_submit = slow_down
    worker = house.worker()
    assert worker.step(limit=1) == 1
    assert worker.step() == 0
    handler.on_submit = lambda _: SubmitResult.succeeded("done")
    house.advance(41)
    while worker.step():
        pass
    assert house.statuses(ids) == {TaskStatus.SUCCEEDED}
    assert len(handler.submits) == 4


def test_a_row_that_cannot_be_written_is_put_aside_without_a_flood_of_log_lines(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """One row fails for ever: the others finish, and at most ten lines a minute tell of it (F96)."""
    house = build(is_faulty=True)
    (bad, *good) = house.submit(4)
    house.store.breaks = bad
    worker = house.worker()
    with caplog.at_level(logging.WARNING, "coatcheck.worker"):
        for _ in range(60):
            worker.step()
            house.advance(1)
    assert house.statuses(good) == {TaskStatus.SUCCEEDED}
    assert house.task(bad).status is TaskStatus.SUBMITTING
    about = [record for record in caplog.records if getattr(record, "task_id", None) == bad]
    assert 1 <= len(about) <= 10
    assert worker.health().held == 0


def test_a_worker_is_not_used_across_a_fork(build: Build) -> None:
    """A worker made before a fork refuses to work in the child, and says what to do."""
    house = build()
    worker = house.worker()
    worker._pid = os.getpid() - 1
    for use in (worker.step, worker.run):
        with pytest.raises(ConfigError, match="after the fork"):
            use()


def test_a_failure_is_told_with_its_code(build: Build) -> None:
    """What the handler said about a failure reaches the caller."""
    handler = Handler()
    handler.on_submit = lambda _: SubmitResult.failed("content_rejected", "not allowed")
    house = build(handler)
    (task_id,) = house.submit()
    house.worker().step()
    with pytest.raises(TaskFailedError) as caught:
        house.manager.result(task_id)
    assert (caught.value.code, caught.value.retryable) == ("content_rejected", False)
