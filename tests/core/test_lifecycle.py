"""The table of the life cycle: every pair of state and event, and each line's meaning one by one."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from coatcheck import lifecycle
from coatcheck.lifecycle import (
    CancelAnswered,
    Canceled,
    CancelFailed,
    CancelRequested,
    Claimed,
    Failed,
    Found,
    GateClose,
    InProgress,
    Missed,
    Move,
    NotFound,
    NotReady,
    NotSent,
    Overdue,
    Receipt,
    Refreshed,
    Rejected,
    Released,
    Resolved,
    Resumed,
    Retried,
    State,
    StepFailed,
    Succeeded,
    Throttled,
    Unknown,
    advance,
    view,
)
from coatcheck.model import (
    CancelFlag,
    Failure,
    HandlerTraits,
    Job,
    Observation,
    Phase,
    QueryParams,
    Side,
    Step,
    Task,
    TaskStatus,
    Verdict,
)

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SOON = timedelta(seconds=7)
JOB = QueryParams("job-1", region="north")
ERROR = Failure("vendor_error", "the vendor answered with an error page", Phase.QUERY, retryable=True)
GATE = GateClose(delay=SOON)

STATUS = {
    State.RESUBMIT: (TaskStatus.SUBMITTING, Step.RESUBMIT),
    State.LOOKUP: (TaskStatus.SUBMITTING, Step.LOOKUP),
    State.SUBMITTED: (TaskStatus.SUBMITTED, Step.QUERY),
    State.RUNNING: (TaskStatus.RUNNING, Step.QUERY),
}


def task_in(state: State, **changes: Any) -> Task:
    """Return a plain task in one row of the table, one minute old and far from its deadline."""
    status, step = STATUS.get(
        state, (TaskStatus[state.name] if state.name in TaskStatus.__members__ else None, None)
    )
    assert status is not None
    fields: dict[str, Any] = {
        "id": "task-1",
        "status": status,
        "next_step": Step.SUBMIT if state in (State.PENDING_SUBMIT, State.SUBMITTING) else step,
        "handler_key": "test:vendor",
        "provider_key": "test",
        "account": "default",
        "idempotency_key": "task-1",
        "created_at": T0 - timedelta(minutes=1),
        "scheduled_at": T0 - timedelta(minutes=1),
        "updated_at": T0 - timedelta(seconds=10),
        "deadline_at": T0 + timedelta(hours=1),
        "is_leased": state in (State.SUBMITTING, State.SUBMITTED, State.RUNNING),
    }
    if state in (State.RESUBMIT, State.LOOKUP):
        fields |= {"error": ERROR}
    if status.is_queryable:
        fields |= {"query_params": JOB, "submitted_at": T0 - timedelta(seconds=30)}
    if status.is_end:
        fields |= {"finished_at": T0 - timedelta(seconds=10), "next_step": None}
        fields |= {"verdict": Verdict.NOBODY if "UNKNOWN" in state or "OUT" in state else Verdict.VENDOR}
    return Task(**{**fields, **changes})


def moved(task: Task, event: Any, now: datetime = T0) -> Move:
    """Return the move of an event that must make one."""
    move = advance(task, event, now)
    assert move is not None, f"{type(event).__name__} changed nothing"
    return move


def in_progress(status: TaskStatus = TaskStatus.RUNNING, **changes: Any) -> InProgress:
    """Return an answer that the job goes on."""
    return InProgress(**{"status": status, "delay": SOON, **changes})


SAMPLES: dict[type, Any] = {
    Claimed: Claimed(),
    InProgress: in_progress(query_params=JOB),
    Succeeded: Succeeded(),
    Failed: Failed(error=ERROR),
    Canceled: Canceled(),
    NotSent: NotSent(error=ERROR, delay=SOON),
    Throttled: Throttled(error=ERROR, delay=SOON, gate=GATE),
    Rejected: Rejected(error=ERROR),
    Unknown: Unknown(error=ERROR, delay=SOON),
    Found: Found(query_params=JOB, delay=SOON),
    Missed: Missed(),
    StepFailed: StepFailed(error=ERROR, delay=SOON),
    NotReady: NotReady(delay=SOON),
    NotFound: NotFound(error=ERROR, delay=SOON),
    CancelRequested: CancelRequested(),
    CancelAnswered: CancelAnswered(outcome="done", delay=SOON),
    CancelFailed: CancelFailed(error=ERROR, delay=SOON),
    Overdue: Overdue(),
    Released: Released(),
    Receipt: Receipt(reply=in_progress(query_params=JOB), generation=1),
    Resolved: Resolved(to="pending"),
    Resumed: Resumed(),
    Retried: Retried(),
    Refreshed: Refreshed(),
}

_SUBMIT_ENDS = {InProgress: "RUNNING", Succeeded: "SUCCEEDED", Failed: "FAILED"}
_QUERIED = {
    InProgress: "RUNNING",
    Succeeded: "SUCCEEDED",
    Failed: "FAILED",
    Canceled: "CANCELED",
    CancelRequested: "CANCELED",
    CancelAnswered: "CANCELED",
    Overdue: "TRACKING_TIMED_OUT",
}

#: What each plain sample makes of each state; a pair that is not here changes nothing.
OUTCOMES: dict[State, dict[type, str]] = {
    State.PENDING_SUBMIT: {
        Claimed: "SUBMITTING",
        CancelRequested: "CANCELED",
        Overdue: "TRACKING_TIMED_OUT",
    },
    State.SUBMITTING: {
        **_SUBMIT_ENDS,
        NotSent: "PENDING_SUBMIT",
        Throttled: "PENDING_SUBMIT",
        Rejected: "FAILED",
        Unknown: "SUBMIT_UNKNOWN",
        Released: "PENDING_SUBMIT",
    },
    State.RESUBMIT: {
        **_SUBMIT_ENDS,
        NotSent: "SUBMITTING (resubmit)",
        Throttled: "SUBMITTING (resubmit)",
        Rejected: "SUBMIT_UNKNOWN",
        Unknown: "SUBMITTING (resubmit)",
        CancelRequested: "SUBMIT_UNKNOWN",
        Overdue: "SUBMIT_UNKNOWN",
        Released: "SUBMITTING (resubmit)",
        Receipt: "RUNNING",
    },
    State.LOOKUP: {
        Found: "SUBMITTED",
        Missed: "SUBMITTING (lookup)",
        StepFailed: "SUBMITTING (lookup)",
        Throttled: "SUBMITTING (lookup)",
        Unknown: "SUBMITTING (lookup)",
        Overdue: "SUBMIT_UNKNOWN",
        Released: "SUBMITTING (lookup)",
        Receipt: "RUNNING",
    },
    State.SUBMITTED: {
        **_QUERIED,
        Throttled: "SUBMITTED",
        NotReady: "SUBMITTED",
        StepFailed: "SUBMITTED",
        NotFound: "SUBMITTED",
        CancelFailed: "SUBMITTED",
        Released: "SUBMITTED",
    },
    State.RUNNING: {
        **_QUERIED,
        Throttled: "RUNNING",
        NotReady: "RUNNING",
        StepFailed: "RUNNING",
        NotFound: "RUNNING",
        CancelFailed: "RUNNING",
        Released: "RUNNING",
    },
    State.SUCCEEDED: {Refreshed: "SUCCEEDED"},
    State.FAILED: {Retried: "PENDING_SUBMIT", Resumed: "RUNNING"},
    State.CANCELED: {},
    State.TRACKING_TIMED_OUT: {Retried: "PENDING_SUBMIT", Resumed: "RUNNING"},
    State.SUBMIT_UNKNOWN: {Receipt: "RUNNING", Resolved: "PENDING_SUBMIT"},
}


def sample_pair(state: State, event: type) -> tuple[Task, datetime]:
    """Return a task and a time at which the pair's line applies."""
    now = T0 + timedelta(hours=1) if event is Overdue else T0
    if event is Resumed:
        return task_in(state, verdict=Verdict.NOBODY, query_params=JOB), now
    return task_in(state), now


def test_every_event_has_a_sample_and_a_line_in_the_table() -> None:
    """The union, the table and this file name the same events, so that the walk below misses none."""
    assert set(get_args(lifecycle.Event)) == set(SAMPLES) == set(lifecycle.EVENTS)
    assert set(OUTCOMES) == set(State)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.__name__)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_each_pair_of_state_and_event_has_the_stated_outcome(state: State, event: type) -> None:
    """What the table lists happens; every other pair changes nothing."""
    task, now = sample_pair(state, event)
    move = advance(task, SAMPLES[event], now)
    expected = OUTCOMES[state].get(event)
    assert (move and lifecycle.state_of(move.task)) == expected
    assert ((state, event) in lifecycle.TABLE) == (expected is not None)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.__name__)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_a_move_fits_together(state: State, event: type) -> None:
    """Ends have a verdict and wait for nothing, all else waits for a step; params and slots follow suit."""
    task, now = sample_pair(state, event)
    move = advance(task, SAMPLES[event], now)
    if move is None:
        return
    changed = move.task
    if changed.status.is_end:
        assert (changed.next_step, move.delay, changed.due_at) == (None, None, None)
        assert changed.verdict is not None
        assert changed.finished_at is not None
        assert (changed.error is None) == (changed.status in (TaskStatus.SUCCEEDED, TaskStatus.CANCELED))
        assert move.job is not Job.LIVE
        assert (
            move.drop_params
            or changed.status not in (TaskStatus.SUCCEEDED, TaskStatus.CANCELED)
            or task.status.is_end
        )
    else:
        assert changed.next_step is not None
        assert move.delay is not None
        assert changed.verdict is None
        assert changed.finished_at is None
        assert not move.drop_params
        assert (move.job is Job.NONE) == (changed.status is TaskStatus.PENDING_SUBMIT)
    if changed.status.is_queryable:
        assert changed.query_params is not None
    assert (changed.generation, move.restart) == (
        (2, True) if event in (Receipt, Resolved, Resumed, Retried) else (1, False)
    )


def test_advance_leaves_the_task_as_it_was() -> None:
    """``advance`` is pure: the task that it was given can be used again."""
    task = task_in(State.RUNNING, notes=("one",))
    before = dict(task.__dict__)
    moved(task, in_progress(progress=50, resources=(("file", "f-1"),)))
    assert task.__dict__ == before


# PENDING_SUBMIT.


def test_cancel_before_submit_ends_without_a_vendor_call() -> None:
    """PENDING_SUBMIT | cancel: CANCELED, verdict user; nothing exists at the vendor and the params go."""
    move = moved(task_in(State.PENDING_SUBMIT, cancel=CancelFlag.REQUESTED, error=ERROR), CancelRequested())
    assert (move.task.status, move.task.verdict, move.job) == (TaskStatus.CANCELED, Verdict.USER, Job.NONE)
    assert move.task.error is None
    assert move.drop_params


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"deadline_at": T0}, "deadline"),
        ({"queue_deadline_at": T0}, "queue_deadline"),
        ({"deadline_at": T0, "queue_deadline_at": T0}, "deadline"),
        ({"deadline_at": T0, "queue_deadline_at": T0 - SOON}, "queue_deadline"),
    ],
)
def test_pending_task_past_a_deadline_times_out(changes: dict[str, Any], code: str) -> None:
    """PENDING_SUBMIT | a deadline: TRACKING_TIMED_OUT with its code; no job; params kept for retry."""
    move = moved(task_in(State.PENDING_SUBMIT, **changes), Overdue())
    assert (move.task.status, move.task.verdict, move.job) == (
        TaskStatus.TRACKING_TIMED_OUT,
        Verdict.NOBODY,
        Job.NONE,
    )
    assert move.task.error is not None
    assert (move.task.error.code, move.task.error.phase) == (code, Phase.SUBMIT)
    assert not move.drop_params


@pytest.mark.parametrize(
    "task",
    [
        task_in(State.PENDING_SUBMIT, queue_deadline_at=T0 + SOON),
        task_in(State.RESUBMIT),
        task_in(State.LOOKUP),
        task_in(State.RUNNING, stall_at=T0 + SOON),
    ],
    ids=lambda task: str(lifecycle.state_of(task)),
)
def test_overdue_before_any_limit_changes_nothing(task: Task) -> None:
    """A deadline that has not passed ends nothing, whoever claims that it has."""
    assert advance(task, Overdue(), T0) is None


def test_pending_task_past_its_deadline_is_not_claimed() -> None:
    """Readers were told that it has timed out, so it is never submitted."""
    assert advance(task_in(State.PENDING_SUBMIT, deadline_at=T0), Claimed(), T0) is None
    assert advance(task_in(State.PENDING_SUBMIT, queue_deadline_at=T0), Claimed(), T0) is None


def test_cancel_past_the_deadline_stays_timed_out() -> None:
    """Readers were told that it has timed out, so a cancel that comes later does not say otherwise."""
    move = moved(
        task_in(State.PENDING_SUBMIT, deadline_at=T0, cancel=CancelFlag.REQUESTED), CancelRequested()
    )
    assert move.task.status is TaskStatus.TRACKING_TIMED_OUT


# SUBMITTING.


@pytest.mark.parametrize("state", [State.SUBMITTING, State.RESUBMIT], ids=lambda state: state.name)
@pytest.mark.parametrize("status", [TaskStatus.SUBMITTED, TaskStatus.RUNNING])
def test_accepted_submit_is_queried_next(state: State, status: TaskStatus) -> None:
    """SUBMITTING | submitted / running with an id: that status, first query due, the stall clock starts."""
    event = in_progress(
        status, query_params=JOB, progress=5, provider_status="QUEUED", resources=(("file", "f"),)
    )
    move = moved(task_in(state, error=ERROR), event)
    changed = move.task
    assert (changed.status, changed.next_step, move.delay, move.job) == (status, Step.QUERY, SOON, Job.LIVE)
    assert changed.query_params == JOB
    assert (changed.progress, changed.provider_status, changed.resources) == (5, "QUEUED", (("file", "f"),))
    assert changed.last_observation == Observation(status, 5, "QUEUED", T0)
    assert (changed.submitted_at, changed.error) == (T0, None)
    assert move.progressed
    assert not move.drop_params


def test_accepted_submit_drops_params_only_where_the_handler_says_so() -> None:
    """``keep_params="accepted"`` drops the params as soon as the vendor has the job."""
    task = task_in(State.SUBMITTING, traits=HandlerTraits(keep_params="accepted"))
    assert moved(task, in_progress(query_params=JOB)).drop_params


@pytest.mark.parametrize("state", [State.SUBMITTING, State.RESUBMIT], ids=lambda state: state.name)
def test_reply_without_a_task_id_is_unknown(state: State) -> None:
    """A 2xx without an id says nothing: a first submit is unknown, a resubmit is tried again (F25)."""
    move = moved(task_in(state), in_progress())
    expected = TaskStatus.SUBMIT_UNKNOWN if state is State.SUBMITTING else TaskStatus.SUBMITTING
    assert move.task.status is expected
    assert move.task.error is not None
    assert move.task.error.code == "no_external_task_id"


def test_submit_that_ends_at_once_needs_no_query() -> None:
    """SUBMITTING | succeeded / failed: that end, verdict vendor, no query counted (F32)."""
    usage = {"page": 2}
    done = moved(
        task_in(State.SUBMITTING), Succeeded(usage=usage, expires_after=SOON, provider_status="DONE")
    )
    assert (done.task.status, done.task.verdict, done.job) == (TaskStatus.SUCCEEDED, Verdict.VENDOR, Job.NONE)
    assert (done.task.progress, done.task.query_count, done.task.usage) == (100, 0, usage)
    assert (done.task.result_expires_at, done.task.provider_status) == (T0 + SOON, "DONE")
    assert done.drop_params
    failed = moved(task_in(State.SUBMITTING), Failed(error=ERROR, usage=usage))
    assert (failed.task.status, failed.task.verdict, failed.job) == (
        TaskStatus.FAILED,
        Verdict.VENDOR,
        Job.NONE,
    )
    assert (failed.task.error, failed.task.usage) == (ERROR, usage)
    assert not failed.drop_params


def test_not_sent_is_tried_again_until_its_budget_is_spent() -> None:
    """SUBMITTING | not sent: PENDING_SUBMIT after backoff; the tenth time FAILED, and no job exists."""
    task = task_in(State.SUBMITTING)
    for count in range(1, lifecycle.NOT_SENT_BUDGET):
        move = moved(task, NotSent(error=ERROR, delay=SOON))
        assert (move.task.status, move.delay, move.job) == (TaskStatus.PENDING_SUBMIT, SOON, Job.NONE)
        assert (move.task.not_sent_count, move.task.error) == (count, ERROR)
        task = moved(move.task, Claimed()).task
    end = moved(task, NotSent(error=ERROR, delay=SOON))
    assert (end.task.status, end.task.verdict, end.job) == (TaskStatus.FAILED, Verdict.NOBODY, Job.NONE)
    assert (end.task.not_sent_count, end.task.error) == (lifecycle.NOT_SENT_BUDGET, ERROR)


def test_throttled_submit_counts_nothing_and_closes_the_gate() -> None:
    """SUBMITTING | throttled: PENDING_SUBMIT after the delay, however often; only the gate closes."""
    task = task_in(State.SUBMITTING, submit_attempts=3, not_sent_count=2)
    move = moved(task, Throttled(error=ERROR, delay=SOON, gate=GATE))
    assert (move.task.status, move.delay, move.job, move.gate) == (
        TaskStatus.PENDING_SUBMIT,
        SOON,
        Job.NONE,
        GATE,
    )
    assert (move.task.submit_attempts, move.task.not_sent_count) == (3, 2)


def test_rejected_submit_fails_with_the_vendors_verdict() -> None:
    """SUBMITTING | rejected: FAILED, verdict vendor, no job; a refused account closes its gate."""
    move = moved(task_in(State.SUBMITTING), Rejected(error=ERROR, gate=GATE))
    assert (move.task.status, move.task.verdict, move.job) == (TaskStatus.FAILED, Verdict.VENDOR, Job.NONE)
    assert (move.task.error, move.gate) == (ERROR, GATE)


IDEMPOTENT = HandlerTraits(resubmit="idempotent")
LOOKUP = HandlerTraits(has_lookup=True, lookup_delay=timedelta(seconds=120))
BOTH = HandlerTraits(resubmit="idempotent", has_lookup=True, lookup_delay=timedelta(seconds=120))


@pytest.mark.parametrize(
    ("traits", "flag", "state", "delay"),
    [
        (HandlerTraits(), CancelFlag.NONE, State.SUBMIT_UNKNOWN, None),
        (IDEMPOTENT, CancelFlag.NONE, State.RESUBMIT, SOON),
        (IDEMPOTENT, CancelFlag.REQUESTED, State.SUBMIT_UNKNOWN, None),
        (LOOKUP, CancelFlag.NONE, State.LOOKUP, timedelta(seconds=120)),
        (LOOKUP, CancelFlag.REQUESTED, State.LOOKUP, timedelta(seconds=120)),
        (BOTH, CancelFlag.NONE, State.RESUBMIT, SOON),
        (BOTH, CancelFlag.REQUESTED, State.LOOKUP, timedelta(seconds=120)),
    ],
)
def test_unknown_submit_goes_where_the_handler_allows(
    traits: HandlerTraits, flag: CancelFlag, state: State, delay: timedelta | None
) -> None:
    """SUBMITTING | unknown: resubmit (never with a cancel flag), else lookup, else SUBMIT_UNKNOWN (F27)."""
    task = task_in(State.SUBMITTING, traits=traits, cancel=flag)
    move = moved(task, Unknown(error=ERROR, delay=SOON))
    assert (lifecycle.state_of(move.task), move.delay, move.task.error) == (state, delay, ERROR)
    assert move.task.idempotency_key == task.idempotency_key
    assert move.job is (Job.GHOST if state is State.SUBMIT_UNKNOWN else Job.LIVE)


@pytest.mark.parametrize(
    "state", [State.SUBMITTING, State.RESUBMIT, State.LOOKUP], ids=lambda state: state.name
)
def test_vendor_id_that_cannot_be_stored_ends_unknown(state: State) -> None:
    """Neither a resubmit nor a lookup can help there, so nothing more is sent."""
    move = moved(task_in(state, traits=BOTH), Unknown(error=ERROR, delay=SOON, final=True))
    assert (move.task.status, move.task.error, move.job) == (TaskStatus.SUBMIT_UNKNOWN, ERROR, Job.GHOST)


@pytest.mark.parametrize(
    "state", [State.SUBMITTING, State.RESUBMIT, State.LOOKUP], ids=lambda state: state.name
)
def test_recovering_from_a_death_ends_no_step(state: State) -> None:
    """Deaths are counted on, or a task that kills every worker would never be quarantined (F47)."""
    task = task_in(state, traits=BOTH)
    died = moved(task, Unknown(error=ERROR, delay=SOON, is_death=True))
    failed = moved(task, Unknown(error=ERROR, delay=SOON))
    assert (died.claims, failed.claims) == ("keep", "reset")


def test_every_submit_with_an_outcome_is_counted_once() -> None:
    """``submit_attempts`` counts submits that were made: not throttles, releases, lookups or receipts."""
    made: list[type] = [InProgress, Succeeded, Failed, NotSent, Rejected, Unknown]
    for event in made:
        assert moved(task_in(State.SUBMITTING), SAMPLES[event]).task.submit_attempts == 1, event
        assert moved(task_in(State.RESUBMIT, submit_attempts=1), SAMPLES[event]).task.submit_attempts == 2, (
            event
        )
    not_made: list[type] = [Throttled, Released]
    for event in not_made:
        assert moved(task_in(State.SUBMITTING), SAMPLES[event]).task.submit_attempts == 0, event
    looked_up: list[type] = [Found, Missed, StepFailed, Throttled]
    for event in looked_up:
        assert moved(task_in(State.LOOKUP, submit_attempts=1), SAMPLES[event]).task.submit_attempts == 1, (
            event
        )
    assert moved(task_in(State.RESUBMIT, submit_attempts=1), SAMPLES[Receipt]).task.submit_attempts == 0


# Resubmit and lookup.


def test_resubmit_that_is_refused_does_not_prove_that_no_job_exists() -> None:
    """SUBMITTING (resubmit) | rejected: SUBMIT_UNKNOWN, error kept; the first submit may have made a job."""
    move = moved(task_in(State.RESUBMIT), Rejected(error=ERROR, gate=GATE))
    assert (move.task.status, move.task.verdict, move.task.error) == (
        TaskStatus.SUBMIT_UNKNOWN,
        Verdict.NOBODY,
        ERROR,
    )
    assert (move.job, move.gate) == (Job.GHOST, GATE)


@pytest.mark.parametrize(
    "event",
    [
        NotSent(error=ERROR, delay=SOON),
        Throttled(error=ERROR, delay=SOON, gate=GATE),
        Unknown(error=ERROR, delay=SOON),
    ],
    ids=lambda event: type(event).__name__,
)
def test_resubmit_without_an_outcome_is_made_again(event: Any) -> None:
    """SUBMITTING (resubmit) | throttled, any other: stays, after the delay, without a budget."""
    task = task_in(State.RESUBMIT, not_sent_count=lifecycle.NOT_SENT_BUDGET)
    move = moved(task, event)
    assert (lifecycle.state_of(move.task), move.delay, move.job) == (State.RESUBMIT, SOON, Job.LIVE)
    assert move.gate is (GATE if isinstance(event, Throttled) else None)


@pytest.mark.parametrize("event", [CancelRequested(), Overdue()], ids=lambda event: type(event).__name__)
def test_resubmit_stops_at_a_cancel_or_the_deadline(event: Any) -> None:
    """SUBMITTING (resubmit) | cancel flag or deadline: SUBMIT_UNKNOWN, the first submit's error kept."""
    move = moved(task_in(State.RESUBMIT, error=ERROR, deadline_at=T0), event)
    assert (move.task.status, move.task.error, move.job) == (TaskStatus.SUBMIT_UNKNOWN, ERROR, Job.GHOST)


def test_lookup_that_finds_the_job_goes_on_with_it() -> None:
    """SUBMITTING (lookup) | found: SUBMITTED with the found params; a cancel flag stays for the next step."""
    move = moved(
        task_in(State.LOOKUP, error=ERROR, cancel=CancelFlag.REQUESTED), Found(query_params=JOB, delay=SOON)
    )
    assert (move.task.status, move.task.query_params, move.task.error) == (TaskStatus.SUBMITTED, JOB, None)
    assert (move.task.cancel, move.cancel, move.job) == (CancelFlag.REQUESTED, None, Job.LIVE)


def test_two_misses_apart_prove_that_no_job_exists() -> None:
    """SUBMITTING (lookup) | not found twice, ``lookup_delay`` apart: PENDING_SUBMIT, same key, due now."""
    first = moved(task_in(State.LOOKUP, traits=LOOKUP, error=ERROR), Missed())
    assert (lifecycle.state_of(first.task), first.delay, first.job) == (
        State.LOOKUP,
        LOOKUP.lookup_delay,
        Job.LIVE,
    )
    second = moved(first.task, Missed())
    assert (second.task.status, second.delay, second.job) == (
        TaskStatus.PENDING_SUBMIT,
        timedelta(),
        Job.NONE,
    )
    assert (second.task.idempotency_key, second.task.generation) == ("task-1", 1)


def test_two_misses_with_a_cancel_flag_end_canceled() -> None:
    """SUBMITTING (lookup) | not found twice with a cancel flag: CANCELED, verdict user; no job exists."""
    task = task_in(State.LOOKUP, lookup_misses=1, cancel=CancelFlag.REQUESTED, error=ERROR)
    move = moved(task, Missed())
    assert (move.task.status, move.task.verdict, move.job) == (TaskStatus.CANCELED, Verdict.USER, Job.NONE)
    assert move.task.error is None


def test_a_later_unknown_submit_is_looked_up_from_the_start() -> None:
    """The misses of an earlier lookup do not count for a submit that was sent after it."""
    task = task_in(State.SUBMITTING, traits=LOOKUP, lookup_misses=1)
    assert moved(task, Unknown(error=ERROR, delay=SOON)).task.lookup_misses == 0


@pytest.mark.parametrize(
    "event",
    [
        StepFailed(error=ERROR, delay=SOON, gate=GATE),
        Throttled(error=ERROR, delay=SOON, gate=GATE),
        Unknown(error=ERROR, delay=SOON),
    ],
    ids=lambda event: type(event).__name__,
)
def test_lookup_without_an_answer_is_made_again(event: Any) -> None:
    """SUBMITTING (lookup) | error, throttled, worker died: stays, after backoff or delay; no miss counted."""
    move = moved(task_in(State.LOOKUP, lookup_misses=1), event)
    assert (lifecycle.state_of(move.task), move.delay, move.task.lookup_misses) == (State.LOOKUP, SOON, 1)
    assert move.gate is (None if isinstance(event, Unknown) else GATE)


# Released.


def test_released_submit_waits_as_before() -> None:
    """SUBMITTING | released: PENDING_SUBMIT, due now, nothing counted, the slot is free."""
    task = task_in(State.SUBMITTING, submit_attempts=2, not_sent_count=1, error=ERROR, claims=1)
    move = moved(task, Released())
    assert (move.task.status, move.delay, move.job) == (TaskStatus.PENDING_SUBMIT, timedelta(), Job.NONE)
    assert (move.task.submit_attempts, move.task.not_sent_count, move.task.error) == (2, 1, ERROR)
    assert move.claims == "undo"


@pytest.mark.parametrize(
    "state", [State.RESUBMIT, State.LOOKUP, State.SUBMITTED, State.RUNNING], ids=lambda state: state.name
)
def test_released_step_changes_nothing_but_the_due_time(state: State) -> None:
    """Queryable, resubmit or lookup | released: the state before the claim, due now; its job lives on."""
    task = task_in(state, query_count=4, claims=1)
    move = moved(task, Released())
    assert move.task == task
    assert (move.delay, move.job, move.claims) == (timedelta(), Job.LIVE, "undo")


# Queryable.


def test_progress_never_falls_and_is_never_invented() -> None:
    """Observed 10, 30, 20, none, done shows 10, 30, 30, 30, 100 (F26)."""
    task = task_in(State.SUBMITTED)
    shown = []
    for progress in (10.0, 30.0, 20.0, None):
        task = moved(task, in_progress(progress=progress)).task
        shown.append(task.progress)
        assert task.last_observation == Observation(TaskStatus.RUNNING, progress, None, T0)
    shown.append(moved(task, Succeeded()).task.progress)
    assert shown == [10, 30, 30, 30, 100]
    assert moved(task_in(State.SUBMITTED), in_progress()).task.progress is None


def test_submitted_never_follows_running() -> None:
    """A vendor that says "queued" after "running" is shown as running; its own word is kept with its time."""
    move = moved(task_in(State.RUNNING), in_progress(TaskStatus.SUBMITTED, provider_status="QUEUED"))
    assert move.task.status is TaskStatus.RUNNING
    assert move.task.last_observation == Observation(TaskStatus.SUBMITTED, None, "QUEUED", T0)


def test_observation_ends_a_row_of_errors_and_moves_the_cursor() -> None:
    """Queryable | running: next query due, errors forgotten, params replaced when there are new ones."""
    task = task_in(State.RUNNING, query_count=7, consecutive_errors=3, not_found_count=2, error=ERROR)
    cursor = QueryParams("job-1", page=2)
    move = moved(task, in_progress(query_params=cursor))
    assert (move.delay, move.job, move.task.next_step) == (SOON, Job.LIVE, Step.QUERY)
    assert (move.task.query_count, move.task.consecutive_errors, move.task.not_found_count) == (8, 0, 0)
    assert (move.task.error, move.task.query_params) == (None, cursor)
    assert moved(task, in_progress()).task.query_params == JOB


@pytest.mark.parametrize(
    ("event", "moves"),
    [
        (in_progress(progress=40, provider_status="WORKING"), False),
        (in_progress(progress=30, provider_status="WORKING"), False),
        (in_progress(), False),
        (in_progress(progress=41, provider_status="WORKING"), True),
        (in_progress(progress=40, provider_status="UPSCALING"), True),
    ],
)
def test_stall_clock_starts_anew_only_when_something_changed(event: InProgress, moves: bool) -> None:  # noqa: FBT001  # a column of the table
    """A new progress or vendor's word is a change; a repeated or lower progress is none (F92)."""
    task = task_in(State.RUNNING, progress=40.0, provider_status="WORKING", stall_at=T0 + SOON)
    assert moved(task, event).progressed is moves


def test_change_of_status_starts_the_stall_clock_anew() -> None:
    """SUBMITTED to RUNNING is a change."""
    assert moved(task_in(State.SUBMITTED), in_progress()).progressed


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (Succeeded(usage={"page": 1}), TaskStatus.SUCCEEDED),
        (Failed(error=ERROR, usage={"page": 1}), TaskStatus.FAILED),
        (Canceled(usage={"page": 1}), TaskStatus.CANCELED),
    ],
)
@pytest.mark.parametrize("flag", CancelFlag)
def test_vendors_verdict_ends_the_task(event: Any, status: TaskStatus, flag: CancelFlag) -> None:
    """Queryable | an end: that end, verdict vendor, slot free; a concurrent cancel does not change it."""
    task = task_in(State.RUNNING, query_count=4, progress=60.0, error=ERROR, cancel=flag)
    move = moved(task, event)
    assert (move.task.status, move.task.verdict, move.job) == (status, Verdict.VENDOR, Job.NONE)
    assert (move.task.query_count, move.task.usage, move.task.finished_at) == (5, {"page": 1}, T0)
    assert move.task.error == (ERROR if status is TaskStatus.FAILED else None)
    assert move.task.progress == (100 if status is TaskStatus.SUCCEEDED else 60)
    assert move.task.last_observation is not None
    assert move.task.last_observation.status is status


def test_resources_of_all_answers_are_kept_once() -> None:
    """The ids that a vendor hands out add up; one that comes again is not repeated."""
    task = task_in(State.RUNNING, resources=(("file", "a"),))
    move = moved(task, Succeeded(resources=(("file", "a"), ("file", "b"))))
    assert move.task.resources == (("file", "a"), ("file", "b"))


def test_throttled_query_counts_no_error() -> None:
    """Queryable | throttled: same status, after the delay, gate closed; errors not counted, not forgiven."""
    move = moved(task_in(State.RUNNING, consecutive_errors=2), Throttled(error=ERROR, delay=SOON, gate=GATE))
    assert (move.task.status, move.delay, move.gate, move.job) == (TaskStatus.RUNNING, SOON, GATE, Job.LIVE)
    assert (move.task.consecutive_errors, move.task.query_count, move.task.error) == (2, 1, None)


def test_not_ready_is_an_answer() -> None:
    """Queryable | not ready: same status, after the delay; it is an answer, so a row of errors ends."""
    task = task_in(State.SUBMITTED, consecutive_errors=2, not_found_count=2, error=ERROR)
    move = moved(task, NotReady(delay=SOON))
    assert (move.task.status, move.delay) == (TaskStatus.SUBMITTED, SOON)
    assert (move.task.consecutive_errors, move.task.not_found_count, move.task.error) == (0, 0, None)


def test_query_errors_without_a_cap_never_end_the_task() -> None:
    """Queryable | error: same status, error counted, backoff; 5,000 of them change nothing else (F51)."""
    task = task_in(State.RUNNING, submit_attempts=1)
    for _ in range(4999):
        task = moved(task, StepFailed(error=ERROR, delay=SOON)).task
    move = moved(task, StepFailed(error=ERROR, delay=SOON))
    assert (move.delay, move.task) == (
        SOON,
        task_in(State.RUNNING, submit_attempts=1, error=ERROR, consecutive_errors=5000, query_count=5000),
    )


def test_query_errors_up_to_a_cap_fail_the_task() -> None:
    """Queryable | error, cap spent: FAILED ``query_retries_exhausted``, verdict nobody, account slot kept."""
    task = task_in(State.RUNNING)
    for _ in range(2):
        task = moved(task, StepFailed(error=ERROR, delay=SOON, cap=3)).task
    move = moved(task, StepFailed(error=ERROR, delay=SOON, cap=3, gate=GATE))
    assert (move.task.status, move.task.verdict, move.job) == (TaskStatus.FAILED, Verdict.NOBODY, Job.GHOST)
    assert move.task.error == Failure("query_retries_exhausted", ERROR.message, Phase.QUERY, retryable=True)
    assert move.gate == GATE


def test_job_that_is_not_found_is_lost_only_in_a_row() -> None:
    """404, 404, running, 404, 404, 404 with a limit of 3: the answer resets, the last one loses it (F17)."""
    task = task_in(State.RUNNING)
    missing = NotFound(error=ERROR, delay=SOON)
    for event in (missing, missing, in_progress(), missing, missing):
        move = moved(task, event)
        assert (move.task.status, move.delay) == (TaskStatus.RUNNING, SOON)
        task = move.task
    end = moved(task, missing)
    assert (end.task.status, end.task.verdict, end.job) == (TaskStatus.FAILED, Verdict.NOBODY, Job.GHOST)
    assert end.task.error == Failure("job_lost", ERROR.message, Phase.QUERY, retryable=False)


@pytest.mark.parametrize(
    "event",
    [
        StepFailed(error=ERROR, delay=SOON),
        Throttled(error=ERROR, delay=SOON, gate=GATE),
        NotReady(delay=SOON),
    ],
    ids=lambda event: type(event).__name__,
)
def test_anything_between_two_not_founds_breaks_the_row(event: Any) -> None:
    """Nothing else may come between: a flapping vendor loses no job before the deadline."""
    assert moved(task_in(State.RUNNING, not_found_count=2), event).task.not_found_count == 0


# Cancel.

CANCELLABLE = HandlerTraits(has_cancel=True)


@pytest.mark.parametrize("state", [State.SUBMITTED, State.RUNNING], ids=lambda state: state.name)
def test_cancel_without_a_remote_cancel_ends_here(state: State) -> None:
    """Queryable | cancel, the handler has none: CANCELED, verdict user; the job keeps its account slot."""
    move = moved(task_in(state, cancel=CancelFlag.REQUESTED, error=ERROR), CancelRequested())
    assert (move.task.status, move.task.verdict, move.job) == (TaskStatus.CANCELED, Verdict.USER, Job.GHOST)
    assert move.task.error is None


def test_cancel_with_a_remote_cancel_asks_the_vendor_first() -> None:
    """Queryable | cancel, the handler has one: the task does not end before the vendor was asked."""
    task = task_in(State.RUNNING, traits=CANCELLABLE, cancel=CancelFlag.REQUESTED)
    assert advance(task, CancelRequested(), T0) is None


def test_remote_cancel_that_is_done_ends_with_the_vendors_verdict() -> None:
    """Cancel | done: CANCELED, verdict vendor, usage kept, the slot is free."""
    task = task_in(State.RUNNING, traits=CANCELLABLE, cancel=CancelFlag.REQUESTED, error=ERROR)
    move = moved(task, CancelAnswered(outcome="done", delay=SOON, usage={"page": 1}))
    assert (move.task.status, move.task.verdict, move.job) == (TaskStatus.CANCELED, Verdict.VENDOR, Job.NONE)
    assert (move.task.usage, move.task.error) == ({"page": 1}, None)


@pytest.mark.parametrize("outcome", ["accepted", "refused"])
def test_remote_cancel_that_is_not_done_is_not_asked_again(outcome: Any) -> None:
    """Cancel | accepted, refused: query on, the flag is handled, the vendor's words are noted."""
    task = task_in(State.RUNNING, traits=CANCELLABLE, cancel=CancelFlag.REQUESTED)
    move = moved(task, CancelAnswered(outcome=outcome, delay=SOON, message="too late"))
    assert (move.task.status, move.task.next_step, move.delay) == (TaskStatus.RUNNING, Step.QUERY, SOON)
    assert (move.cancel, move.job, move.task.notes) == (
        CancelFlag.HANDLED,
        Job.LIVE,
        (f"cancel {outcome}: too late",),
    )


def test_remote_cancel_is_tried_three_times() -> None:
    """Cancel | error or throttled: again after backoff with the flag kept, 3 tries, then query on (F90)."""
    task = task_in(State.RUNNING, traits=CANCELLABLE, cancel=CancelFlag.REQUESTED)
    for tries in (1, 2):
        move = moved(task, CancelFailed(error=ERROR, delay=SOON, gate=GATE))
        assert (move.task.status, move.delay, move.cancel, move.gate) == (
            TaskStatus.RUNNING,
            SOON,
            None,
            GATE,
        )
        assert (move.task.cancel_tries, move.task.error) == (tries, ERROR)
        task = move.task
    last = moved(task, CancelFailed(error=ERROR, delay=SOON))
    assert (last.task.status, last.task.next_step, last.delay) == (TaskStatus.RUNNING, Step.QUERY, SOON)
    assert last.cancel is CancelFlag.HANDLED


def test_query_that_sees_a_flag_makes_the_cancel_due_now() -> None:
    """A cancel is never lost or put off by a query, not even by the last one."""
    for deadline_at in (T0 + timedelta(hours=1), T0):
        task = task_in(
            State.RUNNING, traits=CANCELLABLE, cancel=CancelFlag.REQUESTED, deadline_at=deadline_at
        )
        move = moved(task, in_progress())
        assert (move.task.status, move.delay, move.cancel) == (TaskStatus.RUNNING, timedelta(), None)


# Deadline and stall limit.

LAST_LOOKS = [
    in_progress(TaskStatus.SUBMITTED),
    Throttled(error=ERROR, delay=SOON, gate=GATE),
    NotReady(delay=SOON),
    StepFailed(error=ERROR, delay=SOON),
    NotFound(error=ERROR, delay=SOON),
]


@pytest.mark.parametrize("event", LAST_LOOKS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize(("limit", "code"), [("deadline_at", "deadline"), ("stall_at", "stalled")])
def test_last_query_that_saw_no_end_times_out(event: Any, limit: str, code: str) -> None:
    """Queryable | deadline or stall limit: one last query; not ended, or it failed: TRACKING_TIMED_OUT."""
    seen = Observation(TaskStatus.SUBMITTED, None, None, T0 - SOON)
    task = task_in(State.SUBMITTED, last_observation=seen, **{limit: T0})
    move = moved(task, event)
    assert (move.task.status, move.task.verdict, move.job) == (
        TaskStatus.TRACKING_TIMED_OUT,
        Verdict.NOBODY,
        Job.GHOST,
    )
    assert move.task.error is not None
    assert (move.task.error.code, move.task.error.phase) == (code, Phase.TRACKING)
    assert move.task.last_observation == (
        Observation(TaskStatus.SUBMITTED, None, None, T0) if event is LAST_LOOKS[0] else seen
    )
    assert move.task.query_count == 1
    assert move.gate is (GATE if isinstance(event, Throttled) else None)


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (Succeeded(), TaskStatus.SUCCEEDED),
        (Failed(error=ERROR), TaskStatus.FAILED),
        (Canceled(), TaskStatus.CANCELED),
    ],
)
def test_last_query_that_saw_the_end_counts(event: Any, status: TaskStatus) -> None:
    """The deadline's last query may still bring the vendor's verdict."""
    assert moved(task_in(State.RUNNING, deadline_at=T0), event).task.status is status


def test_last_query_of_the_stall_limit_that_saw_progress_goes_on() -> None:
    """Progress renews the stall limit, but not the deadline (F92)."""
    stalled = moved(task_in(State.RUNNING, stall_at=T0), in_progress(progress=3))
    assert (stalled.task.status, stalled.delay, stalled.progressed) == (TaskStatus.RUNNING, SOON, True)
    late = moved(task_in(State.RUNNING, stall_at=T0, deadline_at=T0), in_progress(progress=3))
    assert late.task.error is not None
    assert (late.task.status, late.task.error.code) == (TaskStatus.TRACKING_TIMED_OUT, "deadline")


def test_cancel_on_deadline_asks_the_vendor_once() -> None:
    """After the last query comes one cancel step; done: CANCELED, anything else: TRACKING_TIMED_OUT."""
    task = task_in(State.RUNNING, deadline_at=T0, cancel_on_deadline=True, traits=CANCELLABLE)
    asked = moved(task, in_progress())
    assert (asked.task.status, asked.task.next_step, asked.delay, asked.job) == (
        TaskStatus.RUNNING,
        Step.CANCEL,
        timedelta(),
        Job.LIVE,
    )
    done = moved(asked.task, CancelAnswered(outcome="done", delay=SOON))
    assert (done.task.status, done.task.verdict) == (TaskStatus.CANCELED, Verdict.VENDOR)
    for event in (
        CancelAnswered(outcome="accepted", delay=SOON),
        CancelAnswered(outcome="refused", delay=SOON),
        CancelFailed(error=ERROR, delay=SOON),
    ):
        end = moved(asked.task, event)
        assert end.task.error is not None
        assert (end.task.status, end.task.error.code) == (TaskStatus.TRACKING_TIMED_OUT, "deadline")


def test_query_between_deadline_and_its_cancel_step_does_not_skip_the_cancel() -> None:
    """A refresh in that moment leaves the cancel step due."""
    task = task_in(
        State.RUNNING, deadline_at=T0, cancel_on_deadline=True, traits=CANCELLABLE, next_step=Step.CANCEL
    )
    assert moved(task, in_progress()).task.next_step is Step.CANCEL


@pytest.mark.parametrize(
    "changes",
    [
        {"traits": HandlerTraits()},
        {"cancel": CancelFlag.HANDLED},
        {"cancel_on_deadline": False},
    ],
    ids=["no remote cancel", "asked before", "not wanted"],
)
def test_cancel_on_deadline_needs_a_reason_to_ask(changes: dict[str, Any]) -> None:
    """Where the vendor cannot be asked, was asked or need not be, the deadline ends the task at once."""
    fields: dict[str, Any] = {"deadline_at": T0, "cancel_on_deadline": True, "traits": CANCELLABLE}
    task = task_in(State.RUNNING, **{**fields, **changes})
    assert moved(task, in_progress()).task.status is TaskStatus.TRACKING_TIMED_OUT


def test_users_cancel_at_the_deadline_still_gets_a_last_query() -> None:
    """A cancel that the vendor did not carry out is followed by one query, whose answer decides."""
    task = task_in(State.RUNNING, deadline_at=T0, traits=CANCELLABLE, cancel=CancelFlag.REQUESTED)
    for event in (CancelAnswered(outcome="accepted", delay=SOON), CancelFailed(error=ERROR, delay=SOON)):
        move = moved(task, event)
        assert (move.task.next_step, move.cancel) == (Step.QUERY, CancelFlag.HANDLED)
        after = move.task.evolve(cancel=CancelFlag.HANDLED)
        assert moved(after, in_progress()).task.status is TaskStatus.TRACKING_TIMED_OUT
        assert moved(after, Canceled()).task.status is TaskStatus.CANCELED


# Receipts.


@pytest.mark.parametrize(
    "state", [State.SUBMIT_UNKNOWN, State.RESUBMIT, State.LOOKUP], ids=lambda state: state.name
)
@pytest.mark.parametrize(
    ("reply", "status", "verdict", "job"),
    [
        (in_progress(TaskStatus.SUBMITTED, query_params=JOB), TaskStatus.SUBMITTED, None, Job.LIVE),
        (in_progress(query_params=JOB), TaskStatus.RUNNING, None, Job.LIVE),
        (Succeeded(), TaskStatus.SUCCEEDED, Verdict.VENDOR, Job.NONE),
        (Failed(error=ERROR), TaskStatus.FAILED, Verdict.VENDOR, Job.NONE),
        (Rejected(error=ERROR), TaskStatus.FAILED, Verdict.VENDOR, Job.NONE),
    ],
)
def test_late_reply_of_the_same_generation_is_believed(
    state: State, reply: Any, status: TaskStatus, verdict: Verdict | None, job: Job
) -> None:
    """Receipt | submitted, running, succeeded, failed, rejected: that state, as a new generation."""
    move = moved(task_in(state, error=ERROR, lookup_misses=1), Receipt(reply=reply, generation=1))
    assert (move.task.status, move.task.verdict, move.job) == (status, verdict, job)
    assert (move.task.generation, move.restart, move.task.lookup_misses) == (2, True, 0)
    assert (move.task.finished_at is not None) == status.is_end
    assert move.task.error == (ERROR if status is TaskStatus.FAILED else None)


@pytest.mark.parametrize(
    "state", [State.SUBMIT_UNKNOWN, State.RESUBMIT, State.LOOKUP], ids=lambda state: state.name
)
@pytest.mark.parametrize(
    "reply",
    [
        in_progress(),
        NotSent(error=ERROR, delay=SOON),
        Throttled(error=ERROR, delay=SOON, gate=GATE),
        Unknown(error=ERROR, delay=SOON),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_late_reply_that_says_nothing_is_only_noted(state: State, reply: Any) -> None:
    """Receipt | anything else: noted; same generation, and the next step is due when it was due before."""
    due = None if state is State.SUBMIT_UNKNOWN else T0 + timedelta(seconds=90)
    task = task_in(state, due_at=due)
    move = moved(task, Receipt(reply=reply, generation=1))
    assert move.task == task.evolve(notes=move.task.notes)
    assert len(move.task.notes) == 1
    assert (move.delay, move.restart, move.gate) == (due and timedelta(seconds=90), False, None)
    assert move.job is (Job.GHOST if state is State.SUBMIT_UNKNOWN else Job.LIVE)
    overdue = moved(task.evolve(due_at=due and T0 - SOON), Receipt(reply=reply, generation=1))
    assert overdue.delay == (due and timedelta())


def test_late_reply_of_an_older_generation_changes_nothing() -> None:
    """A reply to the submit of an earlier life says nothing about this one (F104)."""
    task = task_in(State.SUBMIT_UNKNOWN, generation=2)
    assert advance(task, Receipt(reply=in_progress(query_params=JOB), generation=1), T0) is None


def test_late_reply_waits_for_a_lease_to_end() -> None:
    """A worker that holds the task is about to write it; a receipt comes after it."""
    task = task_in(State.LOOKUP, is_leased=True)
    assert advance(task, Receipt(reply=in_progress(query_params=JOB), generation=1), T0) is None


@pytest.mark.parametrize("state", [State.SUBMIT_UNKNOWN, State.LOOKUP], ids=lambda state: state.name)
def test_late_reply_does_not_lose_a_cancel(state: State) -> None:
    """Nobody asked for the new generation, so the user's open cancel goes with it and is due now."""
    task = task_in(state, cancel=CancelFlag.REQUESTED)
    move = moved(task, Receipt(reply=in_progress(query_params=JOB), generation=1))
    assert (move.task.cancel, move.cancel, move.delay) == (CancelFlag.REQUESTED, None, timedelta())


# What people do.


def test_operator_can_point_to_the_job() -> None:
    """SUBMIT_UNKNOWN | resolve to submitted: SUBMITTED with whole params, queried now; not without them."""
    task = task_in(State.SUBMIT_UNKNOWN, error=ERROR, cancel=CancelFlag.REQUESTED)
    move = moved(task, Resolved(to="submitted", query_params=JOB, note="seen in the vendor's console"))
    assert (move.task.status, move.task.query_params, move.delay, move.job) == (
        TaskStatus.SUBMITTED,
        JOB,
        timedelta(),
        Job.LIVE,
    )
    assert (move.task.notes, move.task.error, move.cancel) == (
        ("seen in the vendor's console",),
        None,
        CancelFlag.NONE,
    )
    assert advance(task, Resolved(to="submitted"), T0) is None


def test_operator_can_say_that_no_job_exists() -> None:
    """SUBMIT_UNKNOWN | resolve to failed: FAILED with a code, the slot is free."""
    task = task_in(State.SUBMIT_UNKNOWN, error=ERROR)
    plain = moved(task, Resolved(to="failed"))
    assert plain.task.error is not None
    assert (plain.task.status, plain.task.verdict, plain.task.error.code, plain.job) == (
        TaskStatus.FAILED,
        Verdict.USER,
        "resolved_failed",
        Job.NONE,
    )
    other = Failure("looked_up", "not in the vendor's list", Phase.SUBMIT)
    assert moved(task, Resolved(to="failed", error=other)).task.error == other


def test_operator_can_have_it_submitted_again_with_the_same_key() -> None:
    """SUBMIT_UNKNOWN | resolve to pending: PENDING_SUBMIT; the idempotency key stays."""
    move = moved(task_in(State.SUBMIT_UNKNOWN), Resolved(to="pending"))
    assert (move.task.status, move.task.idempotency_key, move.job) == (
        TaskStatus.PENDING_SUBMIT,
        "task-1",
        Job.NONE,
    )


@pytest.mark.parametrize("state", [State.TRACKING_TIMED_OUT, State.FAILED], ids=lambda state: state.name)
def test_resume_tracks_the_same_job_again(state: State) -> None:
    """Resume: RUNNING, same params and progress, counters from zero, queried now, stall clock anew."""
    task = task_in(
        state,
        verdict=Verdict.NOBODY,
        query_params=JOB,
        progress=40.0,
        error=ERROR,
        query_count=9,
        consecutive_errors=9,
        not_found_count=3,
        cancel_tries=3,
        cancel=CancelFlag.HANDLED,
        submitted_at=T0 - SOON,
    )
    move = moved(task, Resumed())
    changed = move.task
    assert (changed.status, changed.next_step, changed.query_params, changed.progress) == (
        TaskStatus.RUNNING,
        Step.QUERY,
        JOB,
        40,
    )
    assert (move.delay, move.job, move.progressed, move.cancel) == (
        timedelta(),
        Job.LIVE,
        True,
        CancelFlag.NONE,
    )
    assert (
        changed.query_count,
        changed.consecutive_errors,
        changed.not_found_count,
        changed.cancel_tries,
    ) == (0, 0, 0, 0)
    assert (changed.idempotency_key, changed.submitted_at) == ("task-1", T0 - SOON)


@pytest.mark.parametrize(
    "changes",
    [{"verdict": Verdict.VENDOR, "query_params": JOB}, {"verdict": Verdict.NOBODY, "query_params": None}],
    ids=["the vendor has spoken", "no job is known"],
)
@pytest.mark.parametrize("state", [State.TRACKING_TIMED_OUT, State.FAILED], ids=lambda state: state.name)
def test_resume_needs_a_job_whose_end_nobody_saw(state: State, changes: dict[str, Any]) -> None:
    """Resume is for verdict nobody with an external id; anything else would ask about nothing, or again."""
    assert advance(task_in(state, **changes), Resumed(), T0) is None


def test_retry_begins_from_nothing() -> None:
    """Retry: PENDING_SUBMIT, due now; what was known of the old job goes, what was handed out stays."""
    task = task_in(
        State.FAILED,
        query_params=JOB,
        progress=40.0,
        provider_status="BROKEN",
        last_observation=Observation(TaskStatus.FAILED, 40.0, "BROKEN", T0),
        usage={"page": 1},
        resources=(("file", "a"),),
        error=ERROR,
        submitted_at=T0 - SOON,
        submit_attempts=3,
        not_sent_count=2,
        query_count=9,
        consecutive_errors=1,
        not_found_count=1,
        lookup_misses=1,
        cancel_tries=1,
        notes=("cancel refused",),
    )
    move = moved(task, Retried())
    fresh = task_in(
        State.PENDING_SUBMIT,
        generation=2,
        idempotency_key="task-1-2",
        resources=(("file", "a"),),
        notes=("cancel refused",),
    )
    assert move.task == fresh
    assert (move.delay, move.job, move.restart, move.cancel) == (timedelta(), Job.NONE, True, CancelFlag.NONE)


@pytest.mark.parametrize(
    ("key", "generation", "expected"),
    [
        ("task-1", 1, "task-1-2"),
        ("task-1-2", 2, "task-1-3"),
        ("task-1-2", 3, "task-1-4"),
        ("order-2", 1, "order-2-2"),
        ("order-2", 2, "order-2-3"),
        ("order-2-2", 2, "order-2-2-3"),
        ("task-1-b", 1, "task-1-b-2"),
    ],
)
def test_retry_never_sends_a_key_that_was_sent_before(key: str, generation: int, expected: str) -> None:
    """Retry appends the generation; a default key does not grow, a caller's own key is never cut.

    Generations rise without a retry too: a key that ends like its generation need not come from one.
    """
    task = task_in(State.FAILED, idempotency_key=key, generation=generation)
    assert moved(task, Retried()).task.idempotency_key == expected


def test_retry_of_a_timed_out_task_needs_that_no_job_is_known() -> None:
    """TRACKING_TIMED_OUT with an external id can be resumed, not retried: its job may still run."""
    assert advance(task_in(State.TRACKING_TIMED_OUT, query_params=JOB), Retried(), T0) is None
    assert moved(task_in(State.TRACKING_TIMED_OUT), Retried()).task.status is TaskStatus.PENDING_SUBMIT


def test_retry_is_impossible_when_the_params_are_gone() -> None:
    """``keep_params="accepted"`` gave them up when the vendor took the job."""
    traits = HandlerTraits(keep_params="accepted")
    accepted = task_in(State.FAILED, traits=traits, submitted_at=T0 - SOON, query_params=JOB)
    assert advance(accepted, Retried(), T0) is None
    never_accepted = task_in(State.FAILED, traits=traits)
    assert moved(never_accepted, Retried()).task.status is TaskStatus.PENDING_SUBMIT


def test_refresh_of_a_result_changes_only_the_result() -> None:
    """SUCCEEDED | result refreshed: result and expiry replaced, or ``result_gone`` noted; nothing else."""
    task = task_in(State.SUCCEEDED, result_expires_at=T0 - SOON, finished_at=T0 - SOON)
    again = moved(task, Refreshed(expires_after=SOON))
    assert again.task == task.evolve(result_expires_at=T0 + SOON)
    gone = moved(task, Refreshed(gone=True))
    assert gone.task == task.evolve(result_gone=True)
    assert moved(gone.task, Refreshed()).task == task.evolve(result_expires_at=None)
    assert {(move.delay, move.job, move.restart) for move in (again, gone)} == {(None, Job.NONE, False)}


def test_record_keeps_at_most_ten_notes() -> None:
    """Notes are bounded: the oldest goes (F51)."""
    task = task_in(State.LOOKUP)
    for number in range(12):
        reply = NotSent(error=Failure(f"code_{number}", "", Phase.SUBMIT), delay=SOON)
        task = moved(task, Receipt(reply=reply, generation=1)).task
    assert len(task.notes) == lifecycle.NOTES
    assert "code_11" in task.notes[-1]
    assert "code_2" in task.notes[0]


# Reading.


@pytest.mark.parametrize("limit", ["deadline_at", "queue_deadline_at"])
@pytest.mark.parametrize("is_leased", [False, True])
def test_reader_sees_an_overdue_pending_task_as_timed_out(limit: str, is_leased: bool) -> None:  # noqa: FBT001  # a case
    """It has timed out at that instant, whoever reads it and whenever, also while a worker writes it."""
    past = T0 - SOON
    task = task_in(State.PENDING_SUBMIT, is_leased=is_leased, **{limit: past})
    seen = view(task, T0)
    assert (seen.status, seen.finished_at, seen.version) == (
        TaskStatus.TRACKING_TIMED_OUT,
        past,
        task.version,
    )
    assert view(task, T0 + SOON) == seen


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_reader_sees_everything_else_as_it_is(state: State) -> None:
    """Only a pending task's end is certain before somebody has looked."""
    task = task_in(state, deadline_at=T0 + SOON if state is State.PENDING_SUBMIT else T0 - SOON)
    assert view(task, T0) is task


def test_submit_deadline_is_the_earlier_of_the_two() -> None:
    """The queue deadline bounds the submit only where it comes first."""
    assert lifecycle.submit_deadline_at(task_in(State.PENDING_SUBMIT)) == T0 + timedelta(hours=1)
    early = task_in(State.PENDING_SUBMIT, queue_deadline_at=T0 + SOON)
    late = task_in(State.PENDING_SUBMIT, queue_deadline_at=T0 + timedelta(days=1))
    assert lifecycle.submit_deadline_at(early) == T0 + SOON
    assert lifecycle.submit_deadline_at(late) == T0 + timedelta(hours=1)


def test_two_lines_for_one_pair_are_refused() -> None:
    """The table is a function: a second line for the same state and event is a mistake in this package."""
    with pytest.raises(AssertionError, match="two rules for RUNNING and Succeeded"):
        lifecycle._index(
            [
                *lifecycle.RULES,
                lifecycle.RULES[-1].__class__((State.RUNNING,), Succeeded, "", lambda *_: None),
            ]
        )


@pytest.mark.parametrize(
    ("step", "side"),
    [
        (Step.SUBMIT, Side.SUBMIT),
        (Step.RESUBMIT, Side.SUBMIT),
        (Step.LOOKUP, Side.QUERY),
        (Step.QUERY, Side.QUERY),
        (Step.CANCEL, Side.QUERY),
        (None, Side.QUERY),
    ],
)
def test_each_step_uses_the_gate_of_its_side(step: Step | None, side: Side) -> None:
    """Lookups and cancels read or stop, so they use the query side."""
    assert lifecycle.side_of(step) is side
