"""``Worker.run``: the loop with its threads, over a real store."""

import asyncio
import gc
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.worker.house import PATIENCE, AsyncHandler, Gate, Handler, House, fails, running

from coatcheck.errors import RejectedError, StoreFullError, StoreUnavailableError
from coatcheck.model import (
    CancelResult,
    Limit,
    QueryParams,
    QueryResult,
    Rate,
    Side,
    SubmitResult,
    Task,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck.store import Room
from coatcheck.worker import Worker

Build = Callable[..., House]

ENDED = (
    TaskStatus.SUCCEEDED,
    TaskStatus.FAILED,
    TaskStatus.CANCELED,
    TaskStatus.TRACKING_TIMED_OUT,
    TaskStatus.SUBMIT_UNKNOWN,
)


def test_a_worker_brings_all_tasks_to_their_end(build: Build) -> None:
    """Each task is submitted once and queried as often as it takes, however many threads there are."""
    handler = Handler(queries=3)
    house = build(handler)
    ids = house.submit(200)
    with running(house.worker(threads=8)) as worker:
        house.wait(ids, TaskStatus.SUCCEEDED)
    assert sorted(handler.submits) == sorted(ids)
    assert len(handler.looks) == 600
    assert (worker.health().committed, worker.health().held) == (800, 0)


def test_an_idle_worker_notices_a_new_task(build: Build) -> None:
    """A task starts when it comes, not at the next tick (F88)."""
    handler = Handler()
    house = build(handler)
    with running(house.worker()):
        for _ in range(5):
            ids = house.submit()
            house.wait(ids, TaskStatus.SUCCEEDED)


def test_an_idle_worker_is_quiet(build: Build) -> None:
    """Waiting costs a handful of calls, not a stream of them (F88)."""
    house = build(is_faulty=True, is_live=True)
    with running(house.worker()):
        house.wait(house.submit(), TaskStatus.SUCCEEDED)
        house.store.calls.clear()
        time.sleep(1.2)  # the quiet itself is what is measured
        names = [name for name, *_ in house.store.calls]
    assert len(names) <= 3, names


def test_a_vendor_that_hangs_does_not_keep_the_others_from_their_threads(build: Build) -> None:
    """Every call of one provider hangs; the tasks of another one all end meanwhile (G10)."""
    hangs = Handler(key="test:hangs")
    gate = Gate(lambda *_: SubmitResult.succeeded("late"))
    hangs.on_submit = gate
    fine = Handler(key="test:fine", queries=3)
    house = build(hangs, fine)
    stuck = house.submit(40, handler_key="test:hangs")
    with running(house.worker(threads=4)):
        gate.wait(3)
        ids = house.submit(60, handler_key="test:fine")
        house.wait(ids, TaskStatus.SUCCEEDED)
        assert len(hangs.submits) == 3
        gate.open()
        house.wait(stuck, TaskStatus.SUCCEEDED)


# Limits of calls.


def test_a_query_over_its_limit_is_an_error_and_the_task_goes_on(build: Build) -> None:
    """A call that exceeds its hard limit is given up, counted, and tried again by policy."""
    handler = Handler(call_limit=timedelta(seconds=120))
    gate = Gate(lambda *_: QueryResult.running())
    handler.on_query = gate
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker(threads=4)) as worker:
        gate.wait()
        handler.on_query = lambda *_: QueryResult.succeeded("text")
        house.ticks.advance(119)
        assert house.task(task_id).consecutive_errors == 0
        house.ticks.advance(2)
        house.wait([task_id], TaskStatus.SUCCEEDED)
        assert worker.health().abandoned == 1
        gate.open()
    task = house.task(task_id)
    assert (task.query_count, worker.health().abandoned_calls) == (2, 1)


def test_a_submit_over_its_limit_is_unknown_and_its_late_reply_is_handed_in(build: Build) -> None:
    """Nothing is submitted a second time, and the vendor's id is not thrown away (G2, G3)."""
    handler = Handler()
    gate = Gate(lambda *_: SubmitResult.submitted(QueryParams("job-7")))
    handler.on_submit = gate
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker()):
        gate.wait()
        house.ticks.advance(121)
        house.wait([task_id], TaskStatus.SUBMIT_UNKNOWN)
        task = house.task(task_id)
        assert task.error is not None
        assert (task.error.code, task.generation) == ("call_timeout", 1)
        gate.open()
        house.wait([task_id], TaskStatus.SUCCEEDED)
    task = house.task(task_id)
    assert (task.result, task.generation) == ({"of": "job-7"}, 2)
    assert len(handler.submits) == 1


def test_a_cancel_that_hangs_is_tried_again_within_its_own_limit(build: Build) -> None:
    """The user's cancel is bounded by ten seconds a try, whatever the handler's limit (F90)."""

    class Canceling(Handler):
        on_cancel: Callable[[], Any]

        def cancel(self, params: QueryParams, context: Any) -> Any:
            return self.on_cancel()

    handler = Canceling(poll=PollPolicy(first=timedelta(hours=1), error_start=timedelta(), jitter=0))
    gate = Gate(CancelResult.done)
    handler.on_cancel = gate
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker()):
        house.wait([task_id], TaskStatus.SUBMITTED)
        house.store.request_cancel([task_id])
        gate.wait()
        handler.on_cancel = CancelResult.done
        house.ticks.advance(11)
        house.wait([task_id], TaskStatus.CANCELED)
        gate.open()
    assert house.task(task_id).cancel_tries == 1


# Stopping.


def test_a_stop_lets_steps_under_way_end(build: Build) -> None:
    """Within the grace a step ends with its one commit; nothing new is claimed (F44)."""
    handler = Handler()
    gate = Gate(lambda *_: QueryResult.running(50))
    handler.on_query = gate
    house = build(handler, is_faulty=True)
    ids = house.submit()
    with running(house.worker()) as worker:
        gate.wait()
        worker.stop()
        more = house.submit(3)
        gate.open()
    task = house.task(ids[0])
    assert (task.status, task.progress, task.query_count, task.is_leased) == (
        TaskStatus.RUNNING,
        50,
        1,
        False,
    )
    assert house.statuses(more) == {TaskStatus.PENDING_SUBMIT}


def test_what_does_not_end_within_the_grace_is_given_back_or_unknown(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """A query is released with all that is known, a submit that was sent becomes unknown (F44)."""
    handler = Handler()
    query = Gate(lambda *_: QueryResult.running())
    submit = Gate(lambda *_: SubmitResult.submitted(QueryParams("late")))
    handler.on_query = query
    house = build(handler)
    (asked,) = house.submit()
    worker = house.worker(grace=timedelta(), threads=4)
    with running(worker), caplog.at_level(logging.INFO, "coatcheck.worker"):
        query.wait()
        handler.on_submit = submit
        (sent,) = house.submit()
        submit.wait()
        worker.stop()
        house.wait([sent], TaskStatus.SUBMIT_UNKNOWN)
    assert house.task(sent).error is not None
    query.open()
    submit.open()
    task = house.task(asked)
    assert (task.status, task.is_leased, task.claims) == (TaskStatus.SUBMITTED, False, 0)
    assert (task.external_task_id, task.query_count, task.consecutive_errors) == (f"job-{asked}", 0, 0)
    cut = {record.__dict__["task_id"] for record in caplog.records if record.__dict__["action"] == "cut_off"}
    assert cut == {asked, sent}


def test_steps_that_have_not_begun_are_given_back_at_once(build: Build) -> None:
    """What waits for a thread is not run in the grace: others may have it, and nothing is counted."""
    handler = Handler()
    gate = Gate(lambda *_: SubmitResult.succeeded("text"))
    house = build(handler)
    first = house.submit(40)
    with running(house.worker(threads=1)) as worker:
        house.wait(first, TaskStatus.SUCCEEDED)  # the worker has learnt that these are quick
        handler.on_submit = gate
        ids = house.submit(30)
        gate.wait()
        worker.stop()
        house.advance(0.001)
        while len([task_id for task_id in ids if house.task(task_id).is_leased]) > 1:
            time.sleep(0.005)
        gate.open()
    assert len([task_id for task_id in ids if house.task(task_id).status is TaskStatus.SUCCEEDED]) == 1
    waiting = [task_id for task_id in ids if house.task(task_id).status is TaskStatus.PENDING_SUBMIT]
    assert len(waiting) == 29
    assert {house.task(task_id).claims for task_id in waiting} == {0}


def test_a_second_stop_ends_the_grace(build: Build) -> None:
    """Whoever is in a hurry says so twice."""
    handler = Handler()
    gate = Gate(lambda *_: QueryResult.running())
    handler.on_query = gate
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker(grace=timedelta(hours=1))) as worker:
        gate.wait()
        worker.stop()
        worker.stop()
        house.wait([task_id], TaskStatus.SUBMITTED)
    gate.open()
    assert not house.task(task_id).is_leased


# The store fails.


def test_a_store_that_comes_back_finds_every_step_written_once(build: Build) -> None:
    """Lost requests and lost answers of claims and commits change nothing in what happens (G2)."""
    for moment in ("before", "after"):
        handler = Handler(queries=2)
        house = build(handler, is_faulty=True)
        ids = house.submit(20)
        table = getattr(house.store, moment)
        table.update(claim=fails(2), commit=fails(2))
        with running(house.worker(monotonic=time.monotonic)):
            house.wait(ids, TaskStatus.SUCCEEDED)
        assert sorted(handler.submits) == sorted(ids)
        assert len(handler.looks) == 40
        assert {house.task(task_id).submit_attempts for task_id in ids} == {1}


def test_a_store_that_is_full_for_a_while_costs_no_step(build: Build) -> None:
    """A full disk is about the store, not about a row: everything waits and is written in the end."""
    handler = Handler()
    house = build(handler, is_faulty=True)
    left = [4]

    def is_full(*_: Any, **__: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise StoreFullError("the test filled the disk")

    house.store.before["commit"] = is_full
    ids = house.submit(10)
    with running(house.worker(monotonic=time.monotonic)):
        house.wait(ids, TaskStatus.SUCCEEDED)
    assert sorted(handler.submits) == sorted(ids)


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), MemoryError()])
def test_nothing_that_a_handler_raises_ends_its_thread(build: Build, problem: BaseException) -> None:
    """Whatever comes out of other people's code is an error of its step (G10)."""
    handler = Handler()

    def raise_it(context: Any) -> SubmitResult:
        if len(handler.submits) == 1:
            raise problem
        return SubmitResult.succeeded("text")

    handler.on_submit = raise_it
    house = build(handler)
    (bad,) = house.submit()
    with running(house.worker(threads=1)):
        house.wait([bad], TaskStatus.SUBMIT_UNKNOWN)
        house.wait(house.submit(3), TaskStatus.SUCCEEDED)


def test_a_claim_whose_answer_was_lost_is_given_back_by_a_worker_that_stops(build: Build) -> None:
    """What the store gave out and nobody heard of was not sent: it does not end as unknown (G2)."""
    handler = Handler()
    house = build(handler, is_faulty=True)
    ids = house.submit(5)
    worker = house.worker(monotonic=time.monotonic)
    seen: list[set[TaskStatus]] = []

    def lose(*_: Any, **__: Any) -> None:
        house.store.after.clear()
        seen.append(house.statuses(ids))
        worker.stop()
        raise StoreUnavailableError("the answer is lost, and the worker is told to stop")

    house.store.after["claim"] = lose
    with running(worker):
        while not worker.health().is_draining:
            time.sleep(0.001)
    assert (seen, handler.submits) == ([{TaskStatus.SUBMITTING}], [])
    assert house.statuses(ids) == {TaskStatus.PENDING_SUBMIT}
    assert {house.task(task_id).claims for task_id in ids} == {0}


def test_a_step_that_waits_too_long_for_a_thread_is_given_to_others(build: Build) -> None:
    """A lease is no queue: behind calls that hang a step waits for a part of its lease, no longer."""
    handler = Handler(poll=PollPolicy(first=timedelta(hours=1), jitter=0))
    gate = Gate(lambda *_: SubmitResult.succeeded("text"))
    handler.on_submit = gate
    house = build(handler)
    ids = house.submit(30)
    with running(house.worker(threads=1, monotonic=time.monotonic)) as worker:
        worker._cutter._patience = math.inf
        gate.wait()
        while sum(house.task(task_id).is_leased for task_id in ids) < 30:
            worker._held.lane("test:vendor").pace = 10_000  # as if it had been quick for long
            worker._hear_news()
            time.sleep(0.005)
        worker._cutter._patience = 0.0
        while sum(house.task(task_id).status is TaskStatus.PENDING_SUBMIT for task_id in ids) < 29:
            time.sleep(0.005)
        assert len(handler.submits) == 1
        worker._cutter._patience = math.inf
        gate.open()
        house.wait(ids, TaskStatus.SUCCEEDED)
    assert sorted(handler.submits) == sorted(ids)


def test_a_store_with_a_bug_does_not_end_the_worker(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a claim or a commit raises, the worker goes on, and says so a few times (G10, F96)."""
    house = build(is_faulty=True)
    left = [5]

    def breaks(*_: Any, **__: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise KeyError("a bug of the store")

    house.store.before["claim"] = breaks
    ids = house.submit(2)
    with (
        caplog.at_level(logging.WARNING, "coatcheck.worker"),
        running(house.worker(monotonic=time.monotonic)),
    ):
        house.wait(ids, TaskStatus.SUCCEEDED)
    assert 1 <= len(caplog.records) <= 10


def test_leases_are_kept_through_calls_that_take_longer_than_a_lease(build: Build) -> None:
    """A call may take as long as its own limit: renewal keeps the task from everybody else (F40)."""
    handler = Handler()
    gate = Gate(lambda *_: QueryResult.succeeded("text"))
    handler.on_query = gate
    house = build(handler, is_faulty=True, is_live=True)
    (task_id,) = house.submit()
    renewals = threading.Semaphore(0)
    house.store.after["renew"] = lambda *_: renewals.release()
    with running(house.worker(lease=timedelta(milliseconds=300))) as worker:
        gate.wait()
        for _ in range(8):
            assert renewals.acquire(timeout=PATIENCE)
            batch = house.store.real.claim(
                "other",
                str(time.monotonic()),
                format=1,
                handlers=["test:vendor"],
                room=Room(total=5),
                lease=timedelta(seconds=1),
            )
            assert not batch.leases
        gate.open()
        house.wait([task_id], TaskStatus.SUCCEEDED)
    assert (worker.health().lost_leases, len(handler.looks)) == (0, 1)


def test_a_reply_under_a_lost_lease_is_handed_in_as_a_receipt(build: Build) -> None:
    """A worker that lost its lease changes nothing, but its submit's reply is not lost (G3)."""
    handler = Handler()
    gate = Gate(lambda *_: SubmitResult.submitted(QueryParams("job-1")))
    handler.on_submit = gate
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker()) as worker:
        gate.wait()
        house.clock.advance(46)  # the store's clock alone: nobody renewed
        assert Worker.step(house.worker()) == 1  # another worker recovers the submit
        assert house.task(task_id).status is TaskStatus.SUBMIT_UNKNOWN
        gate.open()
        house.wait([task_id], TaskStatus.SUCCEEDED)
        assert worker.health().lost_leases == 1
    assert house.task(task_id).generation == 2
    assert len(handler.submits) == 1


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (SubmitResult.succeeded("text"), TaskStatus.SUCCEEDED),
        (RejectedError("no such model"), TaskStatus.FAILED),
    ],
)
def test_a_whole_late_reply_ends_the_task(build: Build, reply: Any, status: TaskStatus) -> None:
    """A result or a refusal that came late is worth as much as one in time."""
    handler = Handler()

    def answer(*_: Any) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply

    gate = Gate(answer)
    handler.on_submit = gate
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker()):
        gate.wait()
        house.ticks.advance(121)
        house.wait([task_id], TaskStatus.SUBMIT_UNKNOWN)
        gate.open()
        house.wait([task_id], status)
    assert house.task(task_id).result == (reply.result if isinstance(reply, SubmitResult) else None)


# Async handlers.


def test_async_calls_share_one_loop_and_take_no_threads(build: Build) -> None:
    """More calls wait at the same time than there are threads."""
    handler = AsyncHandler(poll=PollPolicy(first=timedelta(hours=1), jitter=0))
    here = 0
    most = 0
    loops = set()
    together = asyncio.Event()

    async def meet() -> SubmitResult:
        nonlocal here, most
        loops.add(asyncio.get_running_loop())
        here += 1
        most = max(most, here)
        if here == 50:
            together.set()
        await asyncio.wait_for(together.wait(), PATIENCE)
        return SubmitResult.submitted(QueryParams("job"))

    handler.on_submit = lambda _: meet()
    house = build(handler)
    ids = house.submit(50)
    with running(house.worker(threads=2)):
        house.wait(ids, TaskStatus.SUBMITTED)
    assert (most, len(loops)) == (50, 1)


def test_an_async_call_over_its_limit_is_cancelled(build: Build) -> None:
    """The task goes on at once, and the coroutine does not stay behind (F87)."""
    handler = AsyncHandler()
    reached, ended = threading.Event(), threading.Event()

    async def forever() -> QueryResult:
        reached.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return QueryResult.running()

    handler.on_query = lambda *_: forever()
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker()) as worker:
        assert reached.wait(PATIENCE)
        handler.on_query = lambda *_: QueryResult.succeeded("text")
        house.ticks.advance(121)
        house.wait([task_id], TaskStatus.SUCCEEDED)
        assert ended.wait(PATIENCE)
    assert worker.health().abandoned == 0


def test_a_stop_cancels_async_calls_that_do_not_end(build: Build) -> None:
    """No coroutine outlives its worker, and its query is given back."""
    handler = AsyncHandler()
    reached = threading.Event()

    async def forever() -> QueryResult:
        reached.set()
        await asyncio.sleep(3600)
        return QueryResult.running()

    handler.on_query = lambda *_: forever()
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker(grace=timedelta())):
        assert reached.wait(PATIENCE)
    assert (house.task(task_id).status, house.task(task_id).is_leased) == (TaskStatus.SUBMITTED, False)
    assert not [thread for thread in threading.enumerate() if thread.name == "coatcheck-loop"]


# The rest.


class Listener:
    """Stands in for plugins that observe changes."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, TaskStatus, TaskStatus]] = []

    def task_changed(self, before: Task, after: Task) -> None:
        """Note a change."""
        self.heard.append((after.id, before.status, after.status))


def test_observers_hear_of_every_written_change_of_status(build: Build) -> None:
    """A change is told after its commit was acknowledged; polls that change nothing are not."""
    handler = Handler(queries=3)
    house = build(handler)
    (task_id,) = house.submit()
    listener = Listener()
    with running(house.worker(plugins=listener)):
        house.wait([task_id], TaskStatus.SUCCEEDED)
    assert listener.heard == [
        (task_id, TaskStatus.SUBMITTING, TaskStatus.SUBMITTED),
        (task_id, TaskStatus.SUBMITTED, TaskStatus.RUNNING),
        (task_id, TaskStatus.RUNNING, TaskStatus.SUCCEEDED),
    ]


def test_rates_hold_while_the_worker_is_busy(build: Build) -> None:
    """A refused task is delayed, never failed, and comes when its permit does (G6)."""
    house = build(is_live=True)
    house.store.set_limit(
        [Limit(provider="test:vendor", side=Side.SUBMIT, rate=Rate(5, timedelta(milliseconds=200)))]
    )
    ids = house.submit(20)
    began = time.monotonic()
    with running(house.worker()):
        house.wait(ids, TaskStatus.SUCCEEDED)
    assert time.monotonic() - began >= 0.6
    assert {house.task(task_id).submit_attempts for task_id in ids} == {1}


def test_a_deadline_is_met_although_the_next_poll_is_far_away(build: Build) -> None:
    """The last query comes at the deadline, not at the poll that would follow it."""
    handler = Handler(poll=PollPolicy(first=timedelta(hours=1), jitter=0))
    handler.on_query = lambda *_: QueryResult.running()
    house = build(handler, is_live=True)
    began = time.monotonic()
    ids = house.submit(deadline=timedelta(milliseconds=300))
    with running(house.worker()):
        house.wait(ids, TaskStatus.TRACKING_TIMED_OUT)
    assert 0.3 <= time.monotonic() - began < 5
    assert len(handler.looks) == 1


def test_a_lost_submit_is_resubmitted_with_the_same_key(build: Build) -> None:
    """A vendor that honours our key gets it again, and the task is none the wiser (F27)."""
    handler = Handler(resubmit="idempotent")
    answers = iter([StoreUnavailableError("not the store's: any exception will do"), None])

    def answer(context: Any) -> SubmitResult:
        problem = next(answers)
        if problem is not None:
            raise problem
        return SubmitResult.submitted(QueryParams("job-1"))

    handler.on_submit = answer
    house = build(handler)
    (task_id,) = house.submit()
    with running(house.worker()):
        house.wait([task_id], TaskStatus.SUCCEEDED)
    assert handler.submits == [task_id, task_id]


def test_nothing_piles_up_over_many_tasks(build: Build) -> None:
    """Maps are bounded and nothing vanishes, whatever the collector does meanwhile (F87)."""
    sync, on_loop = Handler(key="test:sync"), AsyncHandler(key="test:async")
    house = build(sync, on_loop)
    with running(house.worker(threads=4)) as worker:
        for _ in range(10):
            ids = [
                *house.submit(60, handler_key="test:sync"),
                *house.submit(60, handler_key="test:async"),
            ]
            house.wait(ids, TaskStatus.SUCCEEDED)
            gc.collect()
        end = time.monotonic() + PATIENCE
        while len(worker._held) and time.monotonic() < end:
            time.sleep(0.001)
        assert (len(worker._held), len(worker._async._tasks), len(worker._inbox)) == (0, 0, 0)
        assert set(worker._held.lanes) == {"test:sync", "test:async"}
        assert all(not lane.items and not lane.held for lane in worker._held.lanes.values())


def test_the_pace_of_the_policy_is_kept(build: Build) -> None:
    """Queries come no earlier than the policy and the vendor want (F102)."""
    handler = Handler(
        queries=4,
        poll=PollPolicy(first=timedelta(milliseconds=60), start=timedelta(milliseconds=60), jitter=0),
    )
    times: list[float] = []
    look = handler.on_query

    def note(params: QueryParams, context: Any) -> Any:
        times.append(time.monotonic())
        return look(params, context)

    handler.on_query = note
    house = build(handler, is_live=True)
    with running(house.worker()):
        house.wait(house.submit(), TaskStatus.SUCCEEDED)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) == 3
    assert min(gaps) >= 0.055
