"""The moves of users and operators: cancel, retry, resume, resolve, refresh; and the namespace's limits."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import attrs
import pytest
from tests.core.manager_house import CancelingVendor, House, Job, Outcome, Vendor, build

from coatcheck import Registry, codec, hookimpl
from coatcheck.errors import (
    ConflictError,
    HandlerError,
    JobNotFoundError,
    RejectedError,
    StoreUnavailableError,
    TaskNotFoundError,
    UnknownNameError,
    ValidationError,
)
from coatcheck.model import (
    CancelFlag,
    Limit,
    QueryContext,
    QueryParams,
    QueryResult,
    Rate,
    Side,
    SubmitResult,
    Task,
    TaskChange,
    TaskStatus,
    Verdict,
)
from coatcheck.plugins import load_plugins
from coatcheck.store import Room


@pytest.fixture
def house() -> Iterator[House]:
    """Yield a manager with one handler that cannot cancel."""
    made = build()
    yield made
    made.store.close()


def unknown(house: House) -> Task:
    """Return a task whose submit has an unknown outcome."""
    house.vendor.submit_answer = ValueError("connection reset")
    task = house.submitted()
    assert task.status is TaskStatus.SUBMIT_UNKNOWN
    house.vendor.submit_answer = SubmitResult.running(QueryParams("job-2"))
    return task


def failed(house: House) -> Task:
    """Return a task that the vendor failed."""
    house.vendor.query_answer = QueryResult.failed("bad", "bad scan")
    task = house.submitted()
    house.work()
    house.vendor.query_answer = QueryResult.succeeded(Outcome("second"))
    return house.manager.get(task.id)


def timed_out(house: House) -> Task:
    """Return a task whose job was still running at its deadline."""
    house.vendor.query_answer = QueryResult.running(10)
    task = house.submitted(deadline=timedelta(minutes=1))
    house.clock.advance(61)
    house.work(2)
    found = house.manager.get(task.id)
    assert found.status is TaskStatus.TRACKING_TIMED_OUT
    return found


# Cancel.


def test_cancel_of_a_pending_task_ends_it_at_once(house: House) -> None:
    """Nothing was sent, so nothing has to be asked of the vendor."""
    task = house.manager.submit(Job())
    canceled = house.manager.cancel(task.id)
    assert (canceled.status, canceled.verdict) == (TaskStatus.CANCELED, Verdict.USER)
    house.work(2)
    assert house.vendor.submits == []


def test_cancel_of_a_running_task_asks_the_vendor_next() -> None:
    """The flag is set, and the worker's next step deals with it."""
    house = build(CancelingVendor())
    house.vendor.query_answer = QueryResult.running(10)
    task = house.submitted()
    flagged = house.manager.cancel(task.id)
    assert (flagged.status, flagged.cancel) == (TaskStatus.RUNNING, CancelFlag.REQUESTED)
    assert house.manager.cancel(task.id).cancel is CancelFlag.REQUESTED
    house.work()
    assert house.manager.get(task.id).verdict is Verdict.VENDOR
    assert house.manager.get(task.id).status is TaskStatus.CANCELED
    house.store.close()


def test_cancel_while_a_worker_submits_is_not_lost(house: House) -> None:
    """A task that is on its way is flagged, and ends after its submit."""
    task = house.manager.submit(Job())
    heard: list[Task] = []

    def submit(params: Job, context: Any) -> SubmitResult:
        heard.append(house.manager.cancel(task.id))
        return SubmitResult.running(QueryParams("job-1"))

    vars(house.vendor)["submit"] = submit
    house.work()
    assert (heard[0].status, heard[0].cancel) == (TaskStatus.SUBMITTING, CancelFlag.REQUESTED)
    house.work()
    ended = house.manager.get(task.id)
    assert (ended.status, ended.verdict) == (TaskStatus.CANCELED, Verdict.USER)


def test_cancel_that_meets_a_claim_leaves_the_task_to_its_worker(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was faster finds the flag; nothing is written twice."""
    task = house.manager.submit(Job())
    request_cancel = house.store.request_cancel

    def claimed_meanwhile(ids: Any, **options: Any) -> Any:
        answer = request_cancel(ids, **options)
        house.work()
        return answer

    monkeypatch.setattr(house.store, "request_cancel", claimed_meanwhile)
    assert house.manager.cancel(task.id).status is TaskStatus.CANCELED
    assert house.vendor.submits == []


def test_cancel_leaves_an_ended_task_as_it_is(house: House) -> None:
    """Ends absorb; a cancel that comes too late is no error."""
    task = house.manager.submit(Job())
    house.work(2)
    before = house.manager.get(task.id)
    assert house.manager.cancel(task.id) == before


def test_cancel_does_not_rewrite_what_readers_saw(house: House) -> None:
    """A pending task past its deadline has timed out for everybody, before and after its row follows."""
    task = house.manager.submit(Job(), deadline=timedelta(minutes=1))
    house.clock.advance(61)
    assert house.manager.cancel(task.id).status is TaskStatus.TRACKING_TIMED_OUT
    house.work()
    assert house.manager.get(task.id).status is TaskStatus.TRACKING_TIMED_OUT


def test_cancel_of_a_missing_task_is_an_error(house: House) -> None:
    """A wrong id is not silently nothing."""
    with pytest.raises(TaskNotFoundError):
        house.manager.cancel("nope")


# Retry.


def test_retry_starts_a_new_generation_with_a_key_of_its_own(house: House) -> None:
    """The vendor must not take the second submit for the first."""
    task = failed(house)
    again = house.manager.retry(task.id)
    assert (again.status, again.generation) == (TaskStatus.PENDING_SUBMIT, 2)
    assert again.idempotency_key == f"{task.id}-2"
    assert (again.error, again.verdict, again.external_task_id) == (None, None, None)
    house.work(2)
    assert house.manager.result(task.id, 0) == Outcome("second")
    assert [context.idempotency_key for context in house.vendor.submits] == [task.id, f"{task.id}-2"]


def test_retry_gets_a_fresh_deadline_of_the_same_length(house: House) -> None:
    """The old generation's deadline does not end the new one."""
    task = house.manager.submit(Job(), queue_deadline=timedelta(minutes=1))
    house.clock.advance(timedelta(hours=1))
    again = house.manager.retry(task.id)
    assert (again.status, again.generation) == (TaskStatus.PENDING_SUBMIT, 2)
    assert again.queue_deadline_at == house.clock() + timedelta(minutes=1)
    house.work(2)
    assert house.manager.get(task.id).status is TaskStatus.SUCCEEDED


@pytest.mark.parametrize("make", [lambda house: house.manager.submit(Job()), lambda house: house.submitted()])
def test_retry_of_a_task_that_goes_on_is_refused_with_the_states_that_allow_it(
    house: House, make: Any
) -> None:
    """The message says where the task is and what would be allowed."""
    task = make(house)
    with pytest.raises(ValidationError, match=r"cannot retry .* allowed from FAILED, TRACKING_TIMED_OUT"):
        house.manager.retry(task.id)
    assert house.manager.get(task.id) == task


def test_retry_is_refused_where_a_job_may_still_run(house: House) -> None:
    """A timed out task with a job is resumed, not submitted twice; an unknown one is resolved first."""
    with pytest.raises(ValidationError, match="resume looks at that one"):
        house.manager.retry(timed_out(house).id)
    with pytest.raises(ValidationError, match="SUBMIT_UNKNOWN"):
        house.manager.retry(unknown(house).id)


def test_retry_needs_the_request(house: House) -> None:
    """Where requests are kept only until the vendor has them, retry is impossible, and that is said."""
    picky = build(Vendor(keep_params="accepted"))
    task = failed(picky)
    with pytest.raises(ValidationError, match=r"keep_params='accepted'.*submit the request again"):
        picky.manager.retry(task.id)
    assert picky.manager.get(task.id).status is TaskStatus.FAILED
    picky.store.close()


def test_second_retry_finds_a_task_that_has_moved(house: House) -> None:
    """Two operators who press the button make one new job, not two."""
    task = failed(house)
    house.manager.retry(task.id)
    with pytest.raises(ValidationError, match="it is PENDING_SUBMIT"):
        house.manager.retry(task.id)
    house.work(2)
    assert len(house.vendor.submits) == 2


def test_move_that_lost_a_race_is_a_conflict(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is no longer true: nothing is written, and the operator decides again."""
    task = failed(house)
    stale = house.store.get([task.id], payloads=True)
    house.manager.retry(task.id)
    with monkeypatch.context() as patch:
        patch.setattr(house.store, "get", lambda *_, **__: stale)
        with pytest.raises(ConflictError, match="decide again") as caught:
            house.manager.retry(task.id)
    assert caught.value.task_id == task.id
    assert house.manager.get(task.id).generation == 2


def test_lost_reply_to_a_move_is_settled_by_repeating_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit's key tells the store that it has seen this one."""
    task = failed(house)
    commit, lost = house.store.commit, iter([True, False])

    def flaky(transitions: Any) -> Any:
        answer = commit(transitions)
        if next(lost):
            raise StoreUnavailableError("no reply")
        return answer

    monkeypatch.setattr(house.store, "commit", flaky)
    assert house.manager.retry(task.id).generation == 2


# Resume.


def test_resume_tracks_the_same_job_again(house: House) -> None:
    """The vendor's job that nobody saw the end of is looked at, and no second one is made."""
    task = timed_out(house)
    resumed = house.manager.resume(task.id)
    assert (resumed.status, resumed.generation, resumed.external_task_id) == (TaskStatus.RUNNING, 2, "job-1")
    assert resumed.deadline_at == house.clock() + timedelta(minutes=1)
    house.vendor.query_answer = QueryResult.succeeded("late")
    house.work()
    assert house.manager.result(task.id, 0) == "late"
    assert len(house.vendor.submits) == 1


def test_resume_is_refused_where_the_vendor_gave_its_verdict(house: House) -> None:
    """What the vendor ended stays ended."""
    with pytest.raises(ValidationError, match="otherwise retry starts a new job"):
        house.manager.resume(failed(house).id)
    with pytest.raises(ValidationError, match="cannot resume"):
        house.manager.resume(house.manager.submit(Job()).id)


# Resolve.


def test_resolve_to_submitted_takes_up_the_job_that_was_found(house: House) -> None:
    """An operator found the job at the vendor; queries begin, with all that they need."""
    task = unknown(house)
    found = QueryParams("job-7", region="eu")
    resolved = house.manager.resolve(task.id, to="submitted", query_params=found, reason="seen", by="ann")
    assert (resolved.status, resolved.generation, resolved.query_params) == (TaskStatus.SUBMITTED, 2, found)
    assert resolved.notes == ("resolved to submitted by ann: seen",)
    house.work()
    assert house.manager.get(task.id).status is TaskStatus.SUCCEEDED
    assert len(house.vendor.submits) == 1


def test_resolve_to_pending_submits_again_with_the_same_key(house: House) -> None:
    """There is no job: the task goes on as if it had never been sent."""
    task = unknown(house)
    house.manager.resolve(task.id, to="pending", reason="not there", by="ann")
    house.work(2)
    assert house.manager.get(task.id).status is TaskStatus.SUCCEEDED
    assert {context.idempotency_key for context in house.vendor.submits} == {task.id}


def test_resolve_to_failed_ends_it(house: House) -> None:
    """There is no job and there shall be none."""
    ended = house.manager.resolve(unknown(house).id, to="failed", reason="not there", by="ann")
    assert (ended.status, ended.verdict) == (TaskStatus.FAILED, Verdict.USER)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "submitted"}, "go with to='submitted'"),
        ({"to": "pending", "query_params": QueryParams("j")}, "go with to='submitted'"),
        ({"to": "done"}, "to must be"),
        ({"to": "failed", "reason": ""}, "reason must be"),
        ({"to": "failed", "by": "a\nb"}, "by must be"),
    ],
)
def test_resolve_refuses_arguments_that_do_not_go_together(
    house: House, arguments: dict[str, Any], message: str
) -> None:
    """Half an answer is no answer, and an anonymous one is not taken."""
    task = unknown(house)
    with pytest.raises(ValidationError, match=message):
        house.manager.resolve(task.id, **{"reason": "r", "by": "b", **arguments})
    assert house.manager.get(task.id).status is TaskStatus.SUBMIT_UNKNOWN


def test_resolve_is_for_unknown_submits_only(house: House) -> None:
    """No other task waits for an operator's word."""
    with pytest.raises(ValidationError, match="allowed from SUBMIT_UNKNOWN"):
        house.manager.resolve(house.submitted().id, to="failed", reason="r", by="b")


# Refresh.


def test_refresh_looks_now_and_commits_what_it_saw(house: House) -> None:
    """One query, one commit; whoever sees the end first records it."""
    house.vendor.poll = attrs.evolve(house.vendor.poll, first=timedelta(hours=1))
    task = house.submitted()
    assert house.manager.refresh(task.id).result == Outcome("done")
    assert len(house.vendor.queries) == 1
    assert house.manager.get(task.id).status is TaskStatus.SUCCEEDED


def test_refresh_of_a_task_that_a_worker_holds_leaves_it_alone(house: House) -> None:
    """The worker is looking already."""
    task = house.submitted()
    house.store.claim(
        "w",
        "n",
        format=codec.FORMAT,
        handlers=["acme:job"],
        room=Room(total=5),
        lease=timedelta(seconds=30),
    )
    assert house.manager.refresh(task.id).status is TaskStatus.RUNNING
    assert house.vendor.queries == []


def test_refresh_of_what_cannot_be_queried_changes_nothing(house: House) -> None:
    """A task that was not submitted, or ended badly, is returned as it is."""
    pending = house.manager.submit(Job(), delay=timedelta(hours=1))
    assert house.manager.refresh(pending.id) == pending
    ended = failed(house)
    assert house.manager.refresh(ended.id) == ended


def test_refresh_of_a_succeeded_task_fetches_its_result_again(house: House) -> None:
    """Links expire; the same job gives new ones, and nothing is submitted (F80)."""
    house.vendor.query_answer = QueryResult.succeeded("link-1", expires_after=timedelta(hours=1))
    task = house.submitted()
    house.work()
    house.clock.advance(timedelta(hours=2))
    house.vendor.query_answer = QueryResult.succeeded("link-2", expires_after=timedelta(hours=1))
    fresh = house.manager.refresh(task.id)
    assert (fresh.status, fresh.result) == (TaskStatus.SUCCEEDED, "link-2")
    assert fresh.result_expires_at == house.clock() + timedelta(hours=1)
    assert len(house.vendor.submits) == 1


def test_refresh_of_a_job_that_the_vendor_forgot_notes_that_the_result_is_gone(house: House) -> None:
    """The task stays succeeded and keeps what it has (F80)."""
    task = house.submitted()
    house.work()
    house.vendor.query_answer = JobNotFoundError("no such job")
    gone = house.manager.refresh(task.id)
    assert (gone.status, gone.result_gone, gone.result) == (TaskStatus.SUCCEEDED, True, Outcome("done"))


def test_refresh_that_gets_no_result_keeps_the_old_one(house: House) -> None:
    """A vendor that has another word now is an error, not a loss."""
    task = house.submitted()
    house.work()
    house.vendor.query_answer = QueryResult.running(5)
    with pytest.raises(HandlerError, match="what is stored is kept"):
        house.manager.refresh(task.id)
    assert house.manager.get(task.id).result == Outcome("done")


def test_refresh_result_is_for_results_alone(house: House) -> None:
    """A task that has none is left as it is, and the message says in which state it is."""
    with pytest.raises(ValidationError, match="it is pending_submit; allowed from succeeded"):
        house.manager.refresh_result(house.manager.submit(Job(), delay=timedelta(hours=1)).id)
    running = house.submitted()
    with pytest.raises(ValidationError, match="it is running"):
        house.manager.refresh_result(running.id)
    assert house.vendor.queries == []
    house.vendor.submit_answer = SubmitResult.succeeded(Outcome("at once"))
    at_once = house.submitted()
    with pytest.raises(ValidationError, match="it is succeeded without one; allowed from succeeded"):
        house.manager.refresh_result(at_once.id)
    assert house.manager.refresh(at_once.id) == at_once


def test_refresh_result_asks_about_a_job_that_was_done_at_once(house: House) -> None:
    """A vendor that answers a submit with the result has a job, too, whose links expire (F80)."""
    house.vendor.submit_answer = SubmitResult.succeeded(Outcome("old"), query_params=QueryParams("job-1"))
    task = house.submitted()
    assert (task.status, task.external_task_id, task.result) == (
        TaskStatus.SUCCEEDED,
        "job-1",
        Outcome("old"),
    )
    house.vendor.query_answer = QueryResult.succeeded(Outcome("new"))
    assert house.manager.refresh_result(task.id).result == Outcome("new")
    assert (len(house.vendor.submits), len(house.vendor.queries)) == (1, 1)


def test_refresh_result_of_another_tenant_is_not_found(house: House) -> None:
    """A foreign task is like a missing one, and its vendor is not asked."""
    task = house.submitted(tenant="acme")
    house.work()
    asked = len(house.vendor.queries)
    with pytest.raises(TaskNotFoundError):
        house.manager.refresh_result(task.id, tenant="other")
    assert len(house.vendor.queries) == asked


def test_refresh_result_changes_the_result_and_nothing_else() -> None:
    """No event, no money, the same status, end and generation; one query and no submit (F80)."""
    heard: list[TaskChange] = []

    class Listener:
        coatcheck_api = 1
        __name__ = "listener"

        @hookimpl
        def coatcheck_task_changed(self, change: TaskChange) -> None:
            heard.append(change)

    house = build(plugins=load_plugins(Registry(), extra=[Listener()]))
    house.vendor.query_answer = QueryResult.succeeded(
        "link-1", usage={"second": 5}, expires_after=timedelta(hours=1)
    )
    task = house.submitted()
    house.work()
    ended = house.manager.get(task.id)
    heard.clear()
    house.clock.advance(timedelta(hours=2))
    house.vendor.query_answer = QueryResult.succeeded(
        "link-2", usage={"second": 99}, expires_after=timedelta(hours=1)
    )
    fresh = house.manager.refresh_result(task.id)
    again = house.manager.refresh_result(task.id)
    assert (fresh.result, again.result, len(house.vendor.submits)) == ("link-2", "link-2", 1)
    kept = (
        "status",
        "verdict",
        "generation",
        "usage",
        "finished_at",
        "submitted_at",
        "query_params",
        "error",
    )
    assert [getattr(again, name) for name in kept] == [getattr(ended, name) for name in kept]
    assert heard == []
    house.store.close()


def test_refresh_result_of_two_at_once_keeps_one_of_the_fresh_ones() -> None:
    """Whoever comes second has a result that is as fresh, so nobody is told of a conflict."""
    texts = iter(("old", "mine", "theirs"))

    class Slow(Vendor):
        def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
            text = next(texts)
            if text == "mine":
                assert made.manager.refresh_result(context.task_id).result == "theirs"
            return QueryResult.succeeded(text)

    made = build(Slow())
    task = made.submitted()
    made.work()
    assert made.manager.refresh_result(task.id).result == "theirs"
    made.store.close()


def test_refresh_without_the_handler_here_says_so(house: House) -> None:
    """A process without the provider's package cannot look; the task is not touched."""
    task = house.submitted()
    stranger = build()
    stranger.registry._items["handler"] = {}
    manager = attrs.evolve(house, manager=type(house.manager)(house.store, stranger.registry)).manager
    with pytest.raises(UnknownNameError, match="acme:job"):
        manager.refresh(task.id)
    assert not house.manager.get(task.id).is_leased
    stranger.store.close()


def test_refresh_without_the_account_here_says_so_and_gives_the_task_back() -> None:
    """Another key is never tried, and the task stays as it was."""

    class Careful(Vendor):
        def query(self, params: QueryParams, context: Any) -> QueryResult:
            return QueryResult.succeeded(context.account.secret())

    house = build(Careful(account="acme"))
    task = house.submitted()
    with pytest.raises(UnknownNameError, match="unknown account 'acme'"):
        house.manager.refresh(task.id)
    after = house.manager.get(task.id)
    assert (after.status, after.is_leased, after.query_count) == (TaskStatus.RUNNING, False, 0)
    house.store.close()


# The rest.


def test_make_due_brings_the_next_step_forward(house: House) -> None:
    """A vendor's hint, or an operator's impatience, makes a task due now."""
    task = house.manager.submit(Job(), delay=timedelta(hours=1))
    assert house.manager.make_due(task.id).due_at == house.clock()
    house.work(2)
    assert house.manager.get(task.id).status is TaskStatus.SUCCEEDED


def test_quarantined_task_is_freed_by_redrive(house: House) -> None:
    """A task that killed three workers waits for a person."""
    house.vendor.query_answer = QueryResult.running(1)
    task = house.submitted()
    for number in range(3):
        house.store.claim(
            f"w{number}",
            f"n{number}",
            format=codec.FORMAT,
            handlers=["acme:job"],
            room=Room(total=5, is_idle=True),
            lease=timedelta(seconds=30),
        )
        house.clock.advance(timedelta(minutes=2))
    assert [found.id for found in house.manager.list(quarantined=True).items] == [task.id]
    assert house.manager.explain(task.id).reason == "quarantined"
    house.manager.make_due(task.id, redrive=True)
    assert house.manager.list(quarantined=True).items == ()
    house.vendor.query_answer = QueryResult.succeeded("ok")
    house.work()
    assert house.manager.result(task.id, 0) == "ok"


def test_limits_and_pauses_reach_the_store(house: House) -> None:
    """The manager is the operator's door too."""
    limit = Limit(provider="acme:job", side=Side.SUBMIT, rate=Rate(10))
    house.manager.set_limits(limit, Limit(account="*", live=5))
    assert limit in house.manager.stats().limits
    house.manager.set_limits(attrs.evolve(limit, rate=Rate(20)), only_missing=True)
    assert limit in house.manager.stats().limits
    house.manager.pause("tenant", "", by="ops", reason="too many")
    (pause,) = house.manager.stats().pauses
    assert (pause.kind, pause.name, pause.by, pause.reason) == ("tenant", "", "ops", "too many")
    assert house.manager.unpause("tenant", "")
    assert not house.manager.unpause("tenant", "")


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "handler", "name": "a", "by": "x", "reason": "y"},
        {"kind": "provider", "name": "", "by": "x", "reason": "y"},
        {"kind": "provider", "name": "a", "by": "", "reason": "y"},
        {"kind": "provider", "name": "a", "by": "x", "reason": " "},
    ],
)
def test_pause_refuses_what_nobody_could_undo_or_understand(house: House, arguments: Any) -> None:
    """A pause has a kind, a name, an author and a reason."""
    with pytest.raises((ValidationError, UnknownNameError)):
        house.manager.pause(**arguments)
    assert house.manager.stats().pauses == ()


def test_prune_deletes_old_ends_and_leaves_unknown_submits(house: House) -> None:
    """What waits for an operator is not cleaned away by age."""
    done = house.manager.submit(Job())
    house.work(2)
    waiting = unknown(house)
    house.clock.advance(timedelta(days=30))
    fresh = house.manager.submit(Job())
    house.manager.cancel(fresh.id)
    assert house.manager.prune(timedelta(days=7)) == 1
    left = {task.id for task in house.manager.list().items}
    assert left == {waiting.id, fresh.id}
    with pytest.raises(TaskNotFoundError):
        house.manager.get(done.id)


def test_prune_by_end_and_its_checks(house: House) -> None:
    """Each end may have an age of its own; what has not ended is never deleted."""
    house.manager.submit(Job())
    house.work(2)
    assert house.manager.prune({TaskStatus.FAILED: timedelta()}) == 0
    with pytest.raises(ValidationError, match="only ended tasks are pruned"):
        house.manager.prune({TaskStatus.RUNNING: timedelta()})
    with pytest.raises(ValidationError, match="older_than must be"):
        house.manager.prune(timedelta(-1))
    assert house.manager.prune({TaskStatus.SUCCEEDED: timedelta()}) == 1


def test_old_answers_do_not_reach_a_new_generation(house: House) -> None:
    """A late answer of the first life is not the second life's end (F104)."""
    task = failed(house)
    house.manager.retry(task.id)
    assert house.manager.get(task.id).status is TaskStatus.PENDING_SUBMIT
    house.vendor.submit_answer = RejectedError("no")
    house.work()
    ended = house.manager.get(task.id)
    assert (ended.status, ended.generation) == (TaskStatus.FAILED, 2)
    assert ended.error is not None
    assert ended.error.code == "rejected"
