"""From a lease to a transition: what each answer of a handler becomes, without a store or a vendor."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import frozen

from coatcheck import codec
from coatcheck.codec import persistent
from coatcheck.errors import (
    HandlerError,
    JobNotFoundError,
    MaybeSentError,
    NotReadyError,
    NotSentError,
    RejectedError,
    StoreError,
    ThrottledError,
    UnknownNameError,
    VendorError,
)
from coatcheck.handler import Resolved, TaskHandler, resolve
from coatcheck.lifecycle import (
    CancelAnswered,
    Canceled,
    CancelFailed,
    CancelRequested,
    Event,
    Failed,
    Found,
    InProgress,
    Missed,
    NotFound,
    NotReady,
    NotSent,
    Overdue,
    Rejected,
    Released,
    StepFailed,
    Succeeded,
    Throttled,
    Unknown,
)
from coatcheck.model import (
    EMPTY,
    Account,
    CancelFlag,
    CancelResult,
    Job,
    LookupResult,
    Phase,
    QueryContext,
    QueryParams,
    QueryResult,
    Side,
    Step,
    SubmitContext,
    SubmitResult,
    Task,
    TaskStatus,
    Verdict,
)
from coatcheck.policy import PollPolicy
from coatcheck.step import Finished, Plan, Steps, needs_call, unleased
from coatcheck.store import Kind, Lease, Row, Stored, Transition

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
SECRET = "sk-0123456789/abc"


@persistent("test.step.request")
@frozen
class Request:
    """What is asked of the scripted vendor."""

    url: str = "https://files.example/one.pdf"


@persistent("test.step.other")
@frozen
class Other:
    """A request that no handler here takes."""

    name: str = "x"


class Scripted(TaskHandler[Request]):
    """Answers with what the test put into ``answer``: a value, an exception, or a function."""

    key = "test:scripted"
    poll = PollPolicy(
        first=timedelta(seconds=3),
        start=timedelta(seconds=5),
        error_start=timedelta(seconds=2),
        error_cap=timedelta(seconds=30),
        max_errors=7,
        jitter=0,
    )
    not_found_limit = 2

    def __init__(self, answer: Any = None, **settings: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, Any, Any]] = []
        for name, value in settings.items():
            setattr(self, name, value)

    def _say(self, what: str, params: Any, context: Any) -> Any:
        self.calls.append((what, params, context))
        answer = self.answer(params, context) if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def submit(self, params: Request, context: SubmitContext) -> Any:
        """Answer as scripted."""
        return self._say("submit", params, context)

    def query(self, params: QueryParams, context: QueryContext) -> Any:
        """Answer as scripted."""
        return self._say("query", params, context)


class Able(Scripted):
    """One with both capabilities."""

    def cancel(self, params: QueryParams, context: QueryContext) -> Any:
        """Answer as scripted."""
        return self._say("cancel", params, context)

    def lookup(self, params: Request, context: SubmitContext) -> Any:
        """Answer as scripted."""
        return self._say("lookup", params, context)


class Handlers:
    """One handler and its type."""

    def __init__(self, handler: Scripted | None) -> None:
        self._resolved = None if handler is None else resolve(handler)

    def handler(self, key: str) -> Resolved:
        """Return it, or say that there is none."""
        if self._resolved is None or self._resolved.key != key:
            raise UnknownNameError.of("handler", key, ())
        return self._resolved


class Purse:
    """Accounts of which only "default" exists, with the secret that ``lookup`` returns."""

    def __init__(self, lookup: Callable[[str], str] = lambda _: SECRET) -> None:
        self._lookup = lookup

    def get(self, name: str, customary: Mapping[str, tuple[str, ...]] = EMPTY) -> Account:
        """Return it, or say that there is none."""
        if name != "default":
            raise UnknownNameError.of("account", name, ("default",))
        return Account(name, self._lookup)


def steps_of(handler: Scripted | None, *, purse: Purse | None = None, transport: Any = None) -> Steps:
    """Return steps without jitter and with a clock that stands still."""
    return Steps(Handlers(handler), purse or Purse(), transport, rng=lambda: 0.5, monotonic=lambda: 0.0)


_STATUS = {
    Kind.SUBMIT: (TaskStatus.SUBMITTING, Step.SUBMIT),
    Kind.RESUBMIT: (TaskStatus.SUBMITTING, Step.RESUBMIT),
    Kind.LOOKUP: (TaskStatus.SUBMITTING, Step.LOOKUP),
    Kind.QUERY: (TaskStatus.RUNNING, Step.QUERY),
    Kind.CANCEL: (TaskStatus.RUNNING, Step.QUERY),
    Kind.RECOVER: (TaskStatus.SUBMITTING, Step.SUBMIT),
    Kind.EXPIRE: (TaskStatus.PENDING_SUBMIT, Step.SUBMIT),
}


def lease_of(kind: Kind, handler: Scripted | None, *, params: Any = Request(), **changes: Any) -> Lease:
    """Return a lease of a task in the state that this kind is claimed in."""
    status, next_step = _STATUS[kind]
    values: dict[str, Any] = {
        "id": "task-1",
        "status": status,
        "next_step": next_step,
        "version": 4,
        "handler_key": "test:scripted",
        "provider_key": "test:scripted",
        "account": "default",
        "idempotency_key": "key-1",
        "created_at": NOW,
        "scheduled_at": NOW,
        "deadline_at": NOW + timedelta(hours=24),
        "updated_at": NOW,
        "due_at": NOW,
        "is_leased": True,
        "claims": 1,
    }
    if handler is not None:
        values["traits"] = handler.traits
    if status.is_queryable:
        values["query_params"] = QueryParams("job-1", region="north")
    task = Task(**{**values, **changes})
    row = Row(**{name: task.__dict__[name] for name in Row.__annotations__})
    stored = Stored(
        row=row,
        format=codec.FORMAT,
        record=codec.encode_record(task),
        params=None
        if params is None
        else codec.encode_value(params, field="params", cap=codec.CAPS["params"]),
    )
    return Lease(kind=kind, stored=stored, token="token-1", expires_at=NOW + timedelta(seconds=30))


def run(kind: Kind, answer: Any, *, handler: Scripted | None = None, **changes: Any) -> Finished:
    """Run one step whose vendor answers ``answer``."""
    handler = handler or Able()
    handler.answer = answer
    return steps_of(handler).perform(lease_of(kind, handler, **changes), NOW)


def task_of(transition: Transition) -> Task:
    """Return the record that a transition writes (its hot columns are not in there)."""
    row = lease_of(Kind.QUERY, None).stored.row
    return codec.decode_task(Stored(row=row, format=transition.format, record=transition.record))


# What is called with what.


def test_a_submit_is_given_the_request_and_a_context_with_the_idempotency_key() -> None:
    """A submit sees the stored request, its key, the store's time, its own account and the transport."""
    handler = Scripted(SubmitResult.submitted(QueryParams("job-9")))
    steps = steps_of(handler, transport="the transport")
    steps.perform(lease_of(Kind.SUBMIT, handler, metadata={"page": 3}), NOW)
    ((what, params, context),) = handler.calls
    assert (what, params) == ("submit", Request())
    assert isinstance(context, SubmitContext)
    assert (context.task_id, context.idempotency_key, context.now) == ("task-1", "key-1", NOW)
    assert (context.metadata, context.account.name, context.transport) == (
        {"page": 3},
        "default",
        "the transport",
    )
    assert context.account.secret() == SECRET


def test_a_query_is_given_the_query_params_and_the_counters_before_it() -> None:
    """A query sees what the last answer left for it and how many queries finished before."""
    handler = Scripted(QueryResult.running())
    lease = lease_of(Kind.QUERY, handler, query_count=4, consecutive_errors=2)
    steps_of(handler).perform(lease, NOW)
    ((what, params, context),) = handler.calls
    assert (what, params) == ("query", QueryParams("job-1", region="north"))
    assert isinstance(context, QueryContext)
    assert (context.query_count, context.consecutive_errors) == (4, 2)
    assert (context.created_at, context.deadline_at) == (NOW, NOW + timedelta(hours=24))


def test_a_resubmit_and_a_lookup_are_given_the_same_key_and_request() -> None:
    """Whatever is asked again about a submit carries the key of that submit."""
    for kind, what, answer in (
        (Kind.RESUBMIT, "submit", SubmitResult.submitted(QueryParams("job-9"))),
        (Kind.LOOKUP, "lookup", LookupResult.not_found()),
    ):
        handler = Able(answer)
        steps_of(handler).perform(lease_of(kind, handler), NOW)
        ((called, params, context),) = handler.calls
        assert (called, params, context.idempotency_key) == (what, Request(), "key-1")


# What a submit's answer becomes.


def test_an_accepted_submit_is_queried_after_the_first_delay() -> None:
    """An answer with an id makes the task queryable, its job live, its first query due after poll.first."""
    done = run(
        Kind.SUBMIT, SubmitResult.submitted(QueryParams("job-9", cursor=1), resources=[("file", "f-1")])
    )
    transition = done.transition
    assert (transition.status, transition.next_step, transition.job) == (
        TaskStatus.SUBMITTED,
        Step.QUERY,
        Job.LIVE,
    )
    assert (transition.delay, transition.side, transition.key) == (
        timedelta(seconds=3),
        Side.SUBMIT,
        "token-1",
    )
    record = task_of(transition)
    assert record.query_params == QueryParams("job-9", cursor=1)
    assert (record.resources, record.submit_attempts) == ((("file", "f-1"),), 1)


def test_a_job_that_was_done_at_once_keeps_its_id() -> None:
    """With query params its result can be fetched again; what is none is a handler error (F32, F80)."""
    done = run(Kind.SUBMIT, SubmitResult.succeeded("text", query_params=QueryParams("job-9", cursor=1)))
    assert done.transition.status is TaskStatus.SUCCEEDED
    assert task_of(done.transition).query_params == QueryParams("job-9", cursor=1)
    wrong: Any = {"id": "job-9"}
    refused = run(Kind.SUBMIT, SubmitResult.succeeded("text", query_params=wrong))
    assert refused.transition.status is not TaskStatus.SUCCEEDED
    error = task_of(refused.transition).error
    assert error is not None
    assert (error.code, "query_params must be QueryParams" in error.message) == ("handler_error", True)


def test_a_submit_that_ends_at_once_is_never_queried() -> None:
    """A final first answer ends the task with its result (F32)."""
    done = run(Kind.SUBMIT, SubmitResult.succeeded({"text": "hello"}, usage={"page": 2}))
    assert done.transition.status is TaskStatus.SUCCEEDED
    assert done.transition.next_step is None
    assert codec.decode_value(done.transition.result or b"") == {"text": "hello"}
    failed = run(Kind.SUBMIT, SubmitResult.failed("bad_file", "not a PDF"))
    assert (failed.transition.status, failed.transition.job) == (TaskStatus.FAILED, Job.NONE)
    error = task_of(failed.transition).error
    assert error is not None
    assert (error.code, error.message, error.phase) == ("bad_file", "not a PDF", Phase.SUBMIT)


@pytest.mark.parametrize(
    ("answer", "event", "code"),
    [
        (NotSentError("no route"), NotSent, "not_sent"),
        (RejectedError("no such model"), Rejected, "rejected"),
        (ThrottledError("slow down"), Throttled, "throttled"),
        (MaybeSentError("reset"), Unknown, "maybe_sent"),
        (VendorError("HTTP 502", http_status=502), Unknown, "vendor_error"),
        (NotReadyError("?"), Unknown, "not_ready"),
        (JobNotFoundError("?"), Unknown, "not_found"),
        (RuntimeError("boom"), Unknown, "handler_error"),
        (SystemExit(1), Unknown, "handler_error"),
        (GeneratorExit(), Unknown, "handler_error"),
        (asyncio.CancelledError(), Unknown, "handler_error"),
        (None, Unknown, "handler_error"),
        ("job-1", Unknown, "handler_error"),
        (QueryResult.running(), Unknown, "handler_error"),
        (SubmitResult(status=TaskStatus.CANCELED), Unknown, "handler_error"),
        (SubmitResult(status=TaskStatus.PENDING_SUBMIT), Unknown, "handler_error"),
        (SubmitResult(status=TaskStatus.SUBMITTED), Unknown, "no_external_task_id"),
        (lambda *_: SubmitResult.submitted(QueryParams(" ")), Unknown, "no_external_task_id"),
    ],
)
def test_only_certain_answers_make_a_submit_anything_but_unknown(
    answer: Any, event: type[Event], code: str
) -> None:
    """Not sent, rejected and throttled are certain; every other exception or answer is unknown (F25)."""
    done = run(Kind.SUBMIT, answer)
    assert type(done.event) is event
    assert getattr(done.event, "error").code == code  # noqa: B009  # each of these events has an error
    if event is Unknown:
        # The handler has a lookup, so the task waits for it.
        assert done.transition.next_step is Step.LOOKUP


def test_an_unknown_submit_without_lookup_or_resubmit_ends_unknown() -> None:
    """Without a way to find out, nothing is submitted a second time (G2)."""
    done = run(Kind.SUBMIT, RuntimeError("connection reset"), handler=Scripted())
    assert (done.transition.status, done.transition.job) == (TaskStatus.SUBMIT_UNKNOWN, Job.GHOST)
    assert done.transition.ghost_for == timedelta(hours=1)


def test_an_idempotent_submit_is_resubmitted_after_backoff() -> None:
    """A vendor that honours our key gets the same submit again."""
    done = run(Kind.SUBMIT, MaybeSentError("reset"), handler=Able(resubmit="idempotent"))
    assert (done.transition.next_step, done.transition.delay) == (Step.RESUBMIT, timedelta(seconds=2))


def test_a_submit_that_was_not_sent_backs_off_by_its_own_count() -> None:
    """The delays after "not sent" double from error_start; nothing is learnt about the gate."""
    done = run(Kind.SUBMIT, NotSentError("no route"), not_sent_count=2)
    assert (done.transition.status, done.transition.delay) == (
        TaskStatus.PENDING_SUBMIT,
        timedelta(seconds=8),
    )
    assert (done.transition.side, done.transition.gate) == (None, None)


def test_a_throttle_closes_the_gate_for_as_long_as_the_vendor_asked() -> None:
    """The vendor's delay is kept for the task and the gate; without one the gate grows from error_start."""
    asked = run(Kind.SUBMIT, ThrottledError("429", delay=timedelta(seconds=40))).transition
    assert asked.delay == timedelta(seconds=40)
    assert asked.gate is not None
    assert asked.gate.delay == timedelta(seconds=40)
    unasked = run(Kind.QUERY, ThrottledError("429")).transition
    assert unasked.delay == timedelta(seconds=2)
    assert unasked.gate is not None
    assert (unasked.gate.delay, unasked.gate.start, unasked.gate.factor, unasked.gate.cap) == (
        None,
        timedelta(seconds=2),
        2.0,
        timedelta(seconds=30),
    )
    absurd = run(Kind.QUERY, ThrottledError("429", delay=timedelta(days=900))).transition
    assert absurd.gate is not None
    assert (absurd.delay, absurd.gate.delay) == (timedelta(hours=1), timedelta(hours=1))


def test_jitter_only_ever_adds_to_an_asked_delay() -> None:
    """One draw spreads a herd, and never before the delay that the vendor asked for (F49)."""
    handler = Able(poll=PollPolicy(jitter=0.2), answer=ThrottledError("503", delay=timedelta(seconds=60)))
    done = steps_of(handler).perform(lease_of(Kind.QUERY, handler), NOW)
    assert done.transition.delay == timedelta(seconds=66)


def test_a_refused_key_closes_the_gate_of_submits_and_of_queries() -> None:
    """An error that names a gate delay closes the gate of the step's own side."""
    refused = RejectedError("401", "account_refused", gate_delay=timedelta(seconds=60))
    submit = run(Kind.SUBMIT, refused)
    assert (submit.transition.status, submit.transition.side) == (TaskStatus.FAILED, Side.SUBMIT)
    assert submit.transition.gate is not None
    query = run(Kind.QUERY, refused)
    assert isinstance(query.event, StepFailed)
    assert (query.transition.status, query.transition.side) == (TaskStatus.RUNNING, Side.QUERY)
    assert query.transition.gate is not None
    assert query.transition.gate.delay == timedelta(seconds=60)


# What a query's answer becomes.


def test_a_running_job_is_queried_again_at_the_pace_of_the_policy() -> None:
    """Progress and the vendor's own word are kept, and nothing is asked sooner than the vendor wants."""
    done = run(
        Kind.QUERY, QueryResult.running(40, provider_status="working", query_after=timedelta(seconds=9))
    )
    record = task_of(done.transition)
    assert (done.transition.status, done.transition.delay) == (TaskStatus.RUNNING, timedelta(seconds=9))
    assert (record.progress, record.provider_status, record.query_count) == (40.0, "working", 1)


def test_next_query_params_replace_all_provider_params() -> None:
    """A cursor that moved on is what the next query gets."""
    done = run(Kind.QUERY, QueryResult.running(next_query_params=QueryParams("job-1", cursor="b")))
    assert task_of(done.transition).query_params == QueryParams("job-1", cursor="b")


@pytest.mark.parametrize(
    ("answer", "event", "code"),
    [
        (RuntimeError("boom"), StepFailed, "handler_error"),
        (NotSentError("no route"), StepFailed, "not_sent"),
        (RejectedError("403"), StepFailed, "rejected"),
        (JobNotFoundError("404"), NotFound, "not_found"),
        (None, StepFailed, "handler_error"),
        (SubmitResult.failed("a", "b"), StepFailed, "handler_error"),
        (QueryResult(status=TaskStatus.SUBMITTING), StepFailed, "handler_error"),
        (QueryResult(status=TaskStatus.SUBMIT_UNKNOWN), StepFailed, "handler_error"),
        (
            QueryResult.running(next_query_params=QueryParams("job-2")),
            StepFailed,
            "external_task_id_changed",
        ),
        (QueryResult.running(next_query_params=QueryParams("job-1", file=object())), StepFailed, None),
        (QueryResult.running(next_query_params=QueryParams("job-1", text="x" * 17_000)), StepFailed, None),
    ],
)
def test_a_query_that_does_not_work_is_counted_and_tried_again(
    answer: Any, event: type[Event], code: str | None
) -> None:
    """Errors of a query never end a job by themselves (G9)."""
    done = run(Kind.QUERY, answer)
    assert type(done.event) is event
    assert done.transition.status is TaskStatus.RUNNING
    error = task_of(done.transition).error
    assert error is not None
    assert error.phase is Phase.QUERY
    assert error.code == code or code is None
    assert task_of(done.transition).query_params == QueryParams("job-1", region="north")


def test_the_error_cap_of_the_policy_rides_on_the_event() -> None:
    """max_errors consecutive errors fail the task; without one the deadline decides."""
    done = run(Kind.QUERY, RuntimeError("boom"), consecutive_errors=6)
    assert done.transition.status is TaskStatus.FAILED
    record = task_of(done.transition)
    assert record.error is not None
    assert (record.error.code, record.verdict) == ("query_retries_exhausted", Verdict.NOBODY)


def test_not_ready_waits_as_long_as_the_vendor_says_and_counts_no_error() -> None:
    """Not ready is neither an error nor an answer about the job."""
    done = run(Kind.QUERY, NotReadyError("later", delay=timedelta(seconds=70)), consecutive_errors=3)
    assert isinstance(done.event, NotReady)
    assert done.transition.delay == timedelta(seconds=70)
    assert task_of(done.transition).consecutive_errors == 0


def test_each_end_that_a_vendor_may_report_ends_the_task() -> None:
    """Success, failure and cancellation are the vendor's verdicts."""
    good = run(Kind.QUERY, QueryResult.succeeded("text", expires_after=timedelta(hours=1)))
    assert isinstance(good.event, Succeeded)
    assert codec.decode_value(good.transition.result or b"") == "text"
    assert task_of(good.transition).result_expires_at == NOW + timedelta(hours=1)
    bad = run(Kind.QUERY, QueryResult.failed("E42", "corrupt page", retryable=True))
    assert isinstance(bad.event, Failed)
    assert bad.event.error.retryable is True
    gone = run(Kind.QUERY, QueryResult.canceled())
    assert isinstance(gone.event, Canceled)
    assert {t.transition.job for t in (good, bad, gone)} == {Job.NONE}


def test_a_failure_without_words_still_has_a_code_and_a_message() -> None:
    """Every failure carries code, phase, message and retryable (F89)."""
    error = task_of(run(Kind.QUERY, QueryResult(status=TaskStatus.FAILED)).transition).error
    assert error is not None
    assert (error.code, error.phase, error.retryable) == ("failed", Phase.QUERY, False)
    assert error.message


@pytest.mark.parametrize(
    ("result", "code"),
    [(object(), "result_not_persistable"), ("x" * (8 * 1024 * 1024), "result_too_large")],
)
def test_a_result_that_cannot_be_stored_fails_the_task_by_the_vendors_verdict(result: Any, code: str) -> None:
    """The job is done and cannot be kept: that ends the task and frees its slot."""
    for kind, answer in (
        (Kind.SUBMIT, SubmitResult.succeeded(result)),
        (Kind.QUERY, QueryResult.succeeded(result)),
    ):
        done = run(kind, answer)
        record = task_of(done.transition)
        assert (done.transition.status, record.verdict) == (TaskStatus.FAILED, Verdict.VENDOR)
        assert done.transition.result is None
        assert record.error is not None
        assert (record.error.code, record.error.phase) == (code, Phase.RESULT)


@pytest.mark.parametrize("extra", [{"client": object()}, {"blob": "x" * 17_000}, {"key": SECRET}])
@pytest.mark.parametrize("kind", [Kind.SUBMIT, Kind.RESUBMIT, Kind.LOOKUP])
def test_query_params_that_cannot_be_stored_end_unknown_with_the_external_id(
    kind: Kind, extra: dict[str, Any]
) -> None:
    """The job exists and cannot be tracked: an operator finds its id in the error."""
    params = QueryParams("job-77", **extra)

    def answer(request: Any, context: SubmitContext) -> Any:
        context.account.secret()
        return LookupResult.found(params) if kind is Kind.LOOKUP else SubmitResult.submitted(params)

    done = run(kind, answer, handler=Able(resubmit="idempotent"))
    error = task_of(done.transition).error
    assert done.transition.status is TaskStatus.SUBMIT_UNKNOWN
    assert error is not None
    assert "job-77" in error.message
    assert SECRET not in error.message


# Texts.


def test_error_texts_are_cut_to_their_cap() -> None:
    """A 50 MB error of a handler does not get into a row (F94)."""
    done = run(Kind.QUERY, RuntimeError("é" * 3_000_000))
    error = task_of(done.transition).error
    assert error is not None
    assert 4_000 < len(error.message.encode()) <= codec.CAPS["error"]
    assert len(done.transition.record) < 2 * codec.CAPS["error"]


@pytest.mark.parametrize("kind", [Kind.SUBMIT, Kind.QUERY, Kind.CANCEL, Kind.LOOKUP])
@pytest.mark.parametrize(
    "problem",
    [
        lambda key: RuntimeError(f"GET https://vendor.example/?key={key} failed"),
        lambda key: VendorError(f"Authorization: Bearer {key}"),
        lambda key: RejectedError(f"bad key {key}", f"code-{key}"),
        lambda _: ThrottledError("https://vendor.example/?key=sk-0123456789%2Fabc"),
    ],
)
def test_no_secret_of_the_step_gets_into_an_error_text(
    kind: Kind, problem: Callable[[str], Exception]
) -> None:
    """Whatever a handler or a vendor quotes, the account's own secret is masked before it is written (G8)."""

    def answer(params: Any, context: Any) -> Any:
        raise problem(context.account.secret())

    written = run(kind, answer).transition.record.decode()
    assert SECRET not in written
    assert "sk-0123456789%2Fabc" not in written
    if kind in (Kind.SUBMIT, Kind.LOOKUP):
        assert "***" in written


def test_a_vendor_that_echoes_the_key_does_not_get_it_stored() -> None:
    """Vendor words, failures and results are cleaned of the step's secrets (G8)."""
    for make in (
        lambda key: QueryResult.running(provider_status=f"queued for {key}"),
        lambda key: QueryResult.failed(key, f"key {key} has no balance"),
        lambda key: QueryResult.succeeded({"link": f"https://x.example/?k={key}"}),
    ):
        done = run(Kind.QUERY, lambda _, context, make=make: make(context.account.secret()))
        assert SECRET.encode() not in done.transition.record + (done.transition.result or b"")


def test_an_exception_whose_text_cannot_be_read_is_an_error_like_any_other() -> None:
    """A broken __str__ costs nothing but the text (G10)."""

    class Broken(Exception):  # noqa: N818  # a vendor library's own name
        def __str__(self) -> str:
            raise ValueError("no text")

    error = task_of(run(Kind.QUERY, Broken()).transition).error
    assert error is not None
    assert "Broken" in error.message


def test_malformed_extras_do_not_cost_a_submit_its_job() -> None:
    """The external id is worth more than a malformed resource or duration."""
    answer = SubmitResult.running(
        QueryParams("job-9"),
        resources=[("file", "f-1"), ("file", 7), "nonsense", ("a\nb", "c")],  # type: ignore[list-item]  # a careless handler
        query_after="soon",  # type: ignore[arg-type]  # the same
    )
    done = run(Kind.SUBMIT, answer)
    assert isinstance(done.event, InProgress)
    assert done.event.resources == (("file", "f-1"),)
    assert done.transition.delay == timedelta(seconds=3)


# Cancel and lookup.


@pytest.mark.parametrize(
    ("answer", "event", "status"),
    [
        (CancelResult.done(), CancelAnswered, TaskStatus.CANCELED),
        (CancelResult.accepted(), CancelAnswered, TaskStatus.RUNNING),
        (CancelResult.refused("already finished"), CancelAnswered, TaskStatus.RUNNING),
        (RejectedError("409 already finished"), CancelAnswered, TaskStatus.RUNNING),
        (ThrottledError("429"), CancelFailed, TaskStatus.RUNNING),
        (RuntimeError("boom"), CancelFailed, TaskStatus.RUNNING),
        (True, CancelFailed, TaskStatus.RUNNING),
        (CancelResult("perhaps"), CancelFailed, TaskStatus.RUNNING),  # type: ignore[arg-type]  # a careless handler
    ],
)
def test_each_answer_to_a_cancel(answer: Any, event: type[Event], status: TaskStatus) -> None:
    """Done ends the task; refused and accepted query on; whatever did not get through is tried again."""
    done = run(Kind.CANCEL, answer, cancel=CancelFlag.REQUESTED)
    assert (type(done.event), done.transition.status) == (event, status)
    if event is CancelAnswered and status is TaskStatus.RUNNING:
        assert done.transition.cancel is CancelFlag.HANDLED


def test_a_cancel_is_given_ten_seconds_at_most() -> None:
    """A cancel that hangs returns within its own limit, not the handler's (F90)."""
    handler = Able(call_limit=timedelta(seconds=600))
    steps = steps_of(handler)
    cancel = steps.plan(lease_of(Kind.CANCEL, handler, cancel=CancelFlag.REQUESTED), NOW)
    query = steps.plan(lease_of(Kind.QUERY, handler), NOW)
    assert isinstance(cancel, Plan)
    assert isinstance(query, Plan)
    assert (cancel.limit, query.limit) == (timedelta(seconds=10), timedelta(seconds=600))


@pytest.mark.parametrize(
    ("answer", "event", "status"),
    [
        (LookupResult.found(QueryParams("job-5")), Found, TaskStatus.SUBMITTED),
        (LookupResult.not_found(), Missed, TaskStatus.SUBMITTING),
        (ThrottledError("429"), Throttled, TaskStatus.SUBMITTING),
        (RuntimeError("boom"), StepFailed, TaskStatus.SUBMITTING),
        (LookupResult("job-5"), StepFailed, TaskStatus.SUBMITTING),  # type: ignore[arg-type]  # a careless handler
        (None, StepFailed, TaskStatus.SUBMITTING),
    ],
)
def test_each_answer_to_a_lookup(answer: Any, event: type[Event], status: TaskStatus) -> None:
    """Only a found job makes the task queryable; errors leave it waiting for the next look."""
    done = run(Kind.LOOKUP, answer)
    assert (type(done.event), done.transition.status) == (event, status)


# Steps without a call.


@pytest.mark.parametrize(
    ("kind", "changes", "event", "status"),
    [
        (Kind.EXPIRE, {"deadline_at": NOW}, Overdue, TaskStatus.TRACKING_TIMED_OUT),
        (
            Kind.EXPIRE,
            {"status": TaskStatus.RUNNING, "query_params": QueryParams("j"), "deadline_at": NOW},
            Overdue,
            TaskStatus.TRACKING_TIMED_OUT,
        ),
        (Kind.RECOVER, {}, Unknown, TaskStatus.SUBMIT_UNKNOWN),
        (Kind.RECOVER, {"next_step": Step.RESUBMIT}, Unknown, TaskStatus.SUBMITTING),
        (
            Kind.CANCEL,
            {"status": TaskStatus.PENDING_SUBMIT, "cancel": CancelFlag.REQUESTED},
            CancelRequested,
            TaskStatus.CANCELED,
        ),
    ],
)
def test_what_needs_no_call_needs_no_handler_either(
    kind: Kind, changes: dict[str, Any], event: type[Event], status: TaskStatus
) -> None:
    """Any worker can recover, expire or cancel before the submit, whatever handlers it has."""
    lease = lease_of(kind, None, params=None, **changes)
    done = steps_of(None).perform(lease, NOW)
    assert (type(done.event), done.transition.status, done.transition.side) == (event, status, None)
    assert not needs_call(lease)


def test_a_recovered_submit_says_that_its_lease_expired() -> None:
    """The code of a submit whose worker died tells it apart from a lost reply."""
    done = steps_of(None).perform(lease_of(Kind.RECOVER, Able(resubmit="idempotent"), params=None), NOW)
    error = task_of(done.transition).error
    assert error is not None
    assert (error.code, done.transition.next_step) == ("lease_expired", Step.RESUBMIT)


def test_a_resubmit_with_a_cancel_flag_or_past_the_deadline_is_not_sent() -> None:
    """An unknown submit with a flag is never resubmitted, and nothing is submitted after the deadline."""
    for changes in (
        {"cancel": CancelFlag.REQUESTED},
        {"deadline_at": NOW},
    ):
        handler = Able(SubmitResult.submitted(QueryParams("x")), resubmit="idempotent")
        done = steps_of(handler).perform(lease_of(Kind.RESUBMIT, handler, **changes), NOW)
        assert (handler.calls, done.transition.status) == ([], TaskStatus.SUBMIT_UNKNOWN)


def test_a_cancel_without_a_method_ends_the_task_by_the_users_verdict() -> None:
    """Where the vendor cannot be asked the task ends at once, also when an older handler could have asked."""
    for traits_of in (Scripted(), Able()):
        lease = lease_of(Kind.CANCEL, traits_of, cancel=CancelFlag.REQUESTED)
        done = steps_of(Scripted()).perform(lease, NOW)
        assert done.transition.status is TaskStatus.CANCELED
        assert (task_of(done.transition).verdict, done.transition.job) == (Verdict.USER, Job.GHOST)


# What cannot be called here.


def test_customary_variables_are_for_the_handlers_own_account() -> None:
    """A task of another account must not be paid for with the key that happens to be in the environment."""
    handler = Scripted(SubmitResult.submitted(QueryParams("j")), account_env={"secret": ("VENDOR_KEY",)})
    asked = []

    class Noting(Purse):
        def get(self, name: str, customary: Mapping[str, tuple[str, ...]] = EMPTY) -> Account:
            asked.append((name, dict(customary)))
            return Account(name, lambda _: SECRET)

    steps = steps_of(handler, purse=Noting())
    for account in ("default", "other"):
        steps.run(lease_of(Kind.SUBMIT, handler, account=account), NOW)
    assert asked == [("default", {"secret": ("VENDOR_KEY",)}), ("other", {})]


def test_an_unknown_account_releases_the_step() -> None:
    """Nothing was sent, nothing is counted, and no other key is tried."""
    handler = Able(SubmitResult.submitted(QueryParams("x")))
    lease = lease_of(Kind.SUBMIT, handler, account="customer-7")
    done = steps_of(handler).perform(lease, NOW)
    assert isinstance(done.event, Released)
    assert (done.is_unknown_account, handler.calls) == (True, [])
    assert (done.transition.status, done.transition.claims) == (TaskStatus.PENDING_SUBMIT, "undo")
    assert task_of(done.transition).submit_attempts == 0


@pytest.mark.parametrize(
    "problem",
    [UnknownNameError.of("account", "default", ()), OSError("the secret store does not answer")],
)
def test_a_secret_that_is_missing_at_the_call_releases_the_step_too(problem: Exception) -> None:
    """A missing part shows inside the call; no secret was handed out, so nothing was sent."""

    def missing(part: str) -> str:
        raise problem

    handler = Able(lambda _, context: context.account.secret())
    for kind, status in ((Kind.SUBMIT, TaskStatus.PENDING_SUBMIT), (Kind.QUERY, TaskStatus.RUNNING)):
        done = steps_of(handler, purse=Purse(missing)).perform(lease_of(kind, handler), NOW)
        assert (done.is_unknown_account, done.transition.status) == (True, status)


def test_an_account_that_disappears_after_the_first_secret_leaves_the_submit_unknown() -> None:
    """Once a secret was handed out something may have been sent with it (G2)."""
    handed = iter([SECRET])

    def rotating(part: str) -> str:
        try:
            return next(handed)
        except StopIteration:
            raise UnknownNameError.of("account", "default", ()) from None

    handler = Scripted(lambda _, context: (context.account.secret(), context.account.secret()))
    done = steps_of(handler, purse=Purse(rotating)).perform(lease_of(Kind.SUBMIT, handler), NOW)
    assert (done.is_unknown_account, done.transition.status) == (False, TaskStatus.SUBMIT_UNKNOWN)


def test_a_handler_that_is_not_there_releases_the_step() -> None:
    """A worker that lost a plugin gives the task back to those that have it."""
    done = steps_of(None).perform(lease_of(Kind.QUERY, Able()), NOW)
    assert isinstance(done.event, Released)
    assert not done.is_unknown_account


@pytest.mark.parametrize("params", [None, Other()])
def test_a_request_that_cannot_be_read_here_is_not_sent(params: Any) -> None:
    """A dropped or foreign request is never handed to a handler; another worker may know it."""
    handler = Able(SubmitResult.submitted(QueryParams("x")))
    done = steps_of(handler).perform(lease_of(Kind.SUBMIT, handler, params=params), NOW)
    assert (handler.calls, done.transition.status) == ([], TaskStatus.PENDING_SUBMIT)
    error = task_of(done.transition).error
    assert error is not None
    assert error.code == "unreadable_request"


def test_a_record_that_cannot_be_read_is_the_callers_problem() -> None:
    """Nothing can be committed about it, so the worker leaves it to its lease."""
    lease = lease_of(Kind.QUERY, Able())
    broken = Lease(
        kind=lease.kind,
        stored=Stored(row=lease.stored.row, format=1, record=b"\x00"),
        token="t",
        expires_at=NOW,
    )
    with pytest.raises(StoreError):
        steps_of(Able()).perform(broken, NOW)


# Async handlers.


class Asynchronous(Scripted):
    """A handler with coroutine methods."""

    async def submit(self, params: Request, context: SubmitContext) -> Any:
        """Answer after one turn of the loop."""
        await asyncio.sleep(0)
        return self._say("submit", params, context)


def test_an_async_method_is_awaited_on_the_loop_and_elsewhere() -> None:
    """The same handler works on an event loop, in a thread, and in a thread with a loop (a notebook)."""
    handler = Asynchronous(SubmitResult.submitted(QueryParams("job-3")))
    steps, lease = steps_of(handler), lease_of(Kind.SUBMIT, handler)
    assert steps.is_async("test:scripted", Kind.SUBMIT)
    assert not steps.is_async("test:scripted", Kind.QUERY)
    assert not steps.is_async("test:other", Kind.SUBMIT)

    async def within() -> tuple[Transition, Transition]:
        return await steps.run_async(lease, NOW), steps.run(lease, NOW)

    for transition in (*asyncio.run(within()), steps.run(lease, NOW)):
        assert transition.status is TaskStatus.SUBMITTED


def test_a_cancelled_error_of_the_handlers_own_is_an_error_of_the_step() -> None:
    """A library that cancels itself does not look like a worker that gave the step up."""
    handler = Asynchronous(asyncio.CancelledError("inner"))
    steps, lease = steps_of(handler), lease_of(Kind.SUBMIT, handler)
    done = asyncio.run(steps.perform_async(lease, NOW))
    assert isinstance(done.event, Unknown)


def test_a_step_that_the_worker_cancels_raises_the_cancellation() -> None:
    """The loop's own cancellation goes through, so that the abandoned call ends."""

    async def forever(params: Any, context: Any) -> None:
        await asyncio.sleep(3600)

    handler = Asynchronous()
    handler.submit = forever
    steps, lease = steps_of(handler), lease_of(Kind.SUBMIT, handler)

    async def within() -> None:
        task = asyncio.ensure_future(steps.perform_async(lease, NOW))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(within())


# Deadlines and receipts.


def test_the_time_that_a_call_took_counts_towards_the_deadline() -> None:
    """An answer that came after the deadline was the last look, although the call began before it."""
    ticks = iter([0.0, 30.0])
    handler = Able(QueryResult.running())
    steps = Steps(Handlers(handler), Purse(), rng=lambda: 0.5, monotonic=lambda: next(ticks))
    lease = lease_of(Kind.QUERY, handler, deadline_at=NOW + timedelta(seconds=20))
    assert steps.run(lease, NOW).status is TaskStatus.TRACKING_TIMED_OUT


def read_again(kind: Kind = Kind.SUBMIT, **changes: Any) -> Stored:
    """Return the task as a later look finds it."""
    return lease_of(kind, Able(), **{"is_leased": False, **changes}).stored


UNKNOWN: dict[str, Any] = {"status": TaskStatus.SUBMIT_UNKNOWN, "next_step": None}


def test_a_late_submit_reply_is_handed_in_whole() -> None:
    """The receipt of a lost lease brings id or result back into the task, as a new generation (G3)."""
    steps = steps_of(Able())
    for answer, status in (
        (SubmitResult.submitted(QueryParams("job-9")), TaskStatus.SUBMITTED),
        (SubmitResult.succeeded("text"), TaskStatus.SUCCEEDED),
        (RejectedError("no"), TaskStatus.FAILED),
    ):
        done = run(Kind.SUBMIT, answer)
        transition = steps.receipt(done, read_again(**UNKNOWN), NOW)
        assert transition is not None
        assert (transition.is_leased, transition.status, transition.generation) == (False, status, 2)
        assert (transition.expected_version, transition.expected_status) == (4, TaskStatus.SUBMIT_UNKNOWN)
        assert transition.result == done.transition.result
        assert transition.key != "token-1"


def test_a_receipt_is_refused_where_it_could_do_harm() -> None:
    """Another generation, a held task, a query's answer and a refused resubmit change nothing."""
    steps = steps_of(Able())
    good = run(Kind.SUBMIT, SubmitResult.submitted(QueryParams("job-9")))
    assert steps.receipt(good, read_again(**UNKNOWN, generation=2), NOW) is None
    assert steps.receipt(good, read_again(Kind.RESUBMIT, is_leased=True), NOW) is None
    assert steps.receipt(good, read_again(Kind.QUERY), NOW) is None
    assert steps.receipt(run(Kind.QUERY, QueryResult.running()), read_again(**UNKNOWN), NOW) is None
    refused = run(Kind.RESUBMIT, RejectedError("duplicate key"), handler=Able(resubmit="idempotent"))
    assert steps.receipt(refused, read_again(**UNKNOWN), NOW) is None


def test_a_late_reply_that_says_nothing_is_only_noted() -> None:
    """An unknown outcome stays unknown, with a note that the reply came."""
    done = run(Kind.SUBMIT, RuntimeError("reset"))
    transition = steps_of(Able()).receipt(done, read_again(**UNKNOWN), NOW)
    assert transition is not None
    assert (transition.status, transition.generation) == (TaskStatus.SUBMIT_UNKNOWN, 1)
    assert len(task_of(transition).notes) == 1


# Results again.


def test_a_result_is_fetched_again_without_a_lease() -> None:
    """One query replaces the stored result and its expiry; the task's state and its verdict stay."""
    stored = lease_of(Kind.QUERY, Able(), status=TaskStatus.SUCCEEDED, next_step=None, is_leased=False).stored
    handler = Able(QueryResult.succeeded("new link", expires_after=timedelta(minutes=5)))
    transition = steps_of(handler).refetch(stored, NOW)
    assert (transition.status, transition.is_leased) == (TaskStatus.SUCCEEDED, False)
    assert codec.decode_value(transition.result or b"") == "new link"
    assert task_of(transition).result_expires_at == NOW + timedelta(minutes=5)
    handler.answer = JobNotFoundError("404")
    gone = steps_of(handler).refetch(stored, NOW)
    assert (gone.result, task_of(gone).result_gone) == (None, True)
    for answer in (QueryResult.running(), QueryResult.failed("a", "b")):
        handler.answer = answer
        with pytest.raises(HandlerError, match="again"):
            steps_of(handler).refetch(stored, NOW)


def test_only_a_succeeded_task_has_a_result_to_fetch() -> None:
    """Asking for the result of a running task is refused with what was found."""
    with pytest.raises(HandlerError, match="running"):
        steps_of(Able()).refetch(read_again(Kind.QUERY), NOW)


def test_an_unleased_transition_expects_the_task_as_it_was_read() -> None:
    """A move without a lease carries version and status, and a key of its own for repeats."""
    from coatcheck.lifecycle import advance

    task = codec.decode_task(read_again(Kind.EXPIRE, status=TaskStatus.PENDING_SUBMIT))
    move = advance(task, CancelRequested(), NOW)
    assert move is not None
    first, second = unleased(task, move), unleased(task, move)
    assert (first.expected_version, first.expected_status) == (4, TaskStatus.PENDING_SUBMIT)
    assert (first.is_leased, first.status) == (False, TaskStatus.CANCELED)
    assert first.key != second.key
