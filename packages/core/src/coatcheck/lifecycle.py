"""The life of a task: one table, and ``advance(task, event, now)`` that reads it.

Everything here is pure: no I/O, no clock, no randomness, no policy and no handler. An event says what
happened and carries the delays that a move needs; a ``Move`` says what the record becomes and what the store
has to do about it. An event that the table does not list for a state changes nothing: ``advance`` returns
``None``.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from attrs import evolve, frozen

from coatcheck.model import (
    CancelFlag,
    Failure,
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

#: How often a submit that certainly did not leave is tried before the task fails.
NOT_SENT_BUDGET = 10
#: How often a remote cancel is tried before the task is queried on.
CANCEL_TRIES = 3
#: How many lookups must miss, ``lookup_delay`` apart, before the job counts as never created.
LOOKUP_MISSES = 2
#: How many notes a record keeps.
NOTES = 10

NOW = timedelta()


class State(StrEnum):
    """A row of the table: the status, and for SUBMITTING the step that it waits for."""

    PENDING_SUBMIT = "PENDING_SUBMIT"
    SUBMITTING = "SUBMITTING"
    RESUBMIT = "SUBMITTING (resubmit)"
    LOOKUP = "SUBMITTING (lookup)"
    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    TRACKING_TIMED_OUT = "TRACKING_TIMED_OUT"
    SUBMIT_UNKNOWN = "SUBMIT_UNKNOWN"


# Events.


@frozen(kw_only=True)
class Claimed:
    """A worker holds the task for its submit."""


@frozen(kw_only=True)
class InProgress:
    """The vendor has the job and it has not ended."""

    status: TaskStatus
    delay: timedelta
    #: The vendor's id and params; ``None`` keeps those that the task has.
    query_params: QueryParams | None = None
    progress: float | None = None
    provider_status: str | None = None
    resources: tuple[tuple[str, str], ...] = ()


@frozen(kw_only=True)
class Succeeded:
    """The vendor is done; the result itself lies beside the record.

    Query params come with a job that was done at once, so that its result can be fetched again.
    """

    query_params: QueryParams | None = None
    usage: Mapping[str, int] | None = None
    resources: tuple[tuple[str, str], ...] = ()
    expires_after: timedelta | None = None
    provider_status: str | None = None


@frozen(kw_only=True)
class Failed:
    """The vendor says that the job failed, or the result cannot be kept."""

    error: Failure
    usage: Mapping[str, int] | None = None
    provider_status: str | None = None


@frozen(kw_only=True)
class Canceled:
    """The vendor says that the job was canceled."""

    usage: Mapping[str, int] | None = None
    provider_status: str | None = None


@frozen(kw_only=True)
class GateClose:
    """Shut the gate of the step's (provider, account, side).

    Without a ``delay`` the store closes it for ``start`` times ``factor`` for each closing in a row, at most
    ``cap``.
    """

    delay: timedelta | None = None
    start: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(seconds=60)


@frozen(kw_only=True)
class NotSent:
    """The submit certainly did not reach the vendor."""

    error: Failure
    delay: timedelta


@frozen(kw_only=True)
class Throttled:
    """The vendor asks for patience."""

    error: Failure
    delay: timedelta
    gate: GateClose


@frozen(kw_only=True)
class Rejected:
    """The vendor refused the submit for certain."""

    error: Failure
    gate: GateClose | None = None


@frozen(kw_only=True)
class Unknown:
    """Whether the submit created a job is not known; also when a worker died in it."""

    error: Failure
    delay: timedelta
    #: Nothing more can be done about it (the vendor's id cannot be stored).
    final: bool = False
    #: The worker that held it is gone: its death counts until a step of the task has ended (F47).
    is_death: bool = False


@frozen(kw_only=True)
class Found:
    """A lookup found the job."""

    query_params: QueryParams
    delay: timedelta


@frozen(kw_only=True)
class Missed:
    """A lookup found no job."""


@frozen(kw_only=True)
class StepFailed:
    """A query or a lookup did not work."""

    error: Failure
    delay: timedelta
    #: Consecutive errors that end the task; ``None`` for no cap.
    cap: int | None = None
    gate: GateClose | None = None


@frozen(kw_only=True)
class NotReady:
    """The vendor has the job but no answer yet."""

    delay: timedelta


@frozen(kw_only=True)
class NotFound:
    """The vendor does not know the job."""

    error: Failure
    delay: timedelta


@frozen(kw_only=True)
class CancelRequested:
    """A cancel flag is acted on where no vendor call is needed or possible."""


@frozen(kw_only=True)
class CancelAnswered:
    """The vendor answered a cancel."""

    outcome: Literal["done", "accepted", "refused"]
    delay: timedelta
    usage: Mapping[str, int] | None = None
    message: str = ""


@frozen(kw_only=True)
class CancelFailed:
    """A cancel did not get through."""

    error: Failure
    delay: timedelta
    gate: GateClose | None = None


@frozen(kw_only=True)
class Overdue:
    """A deadline passed and nobody could take a last look; before any limit has passed it changes nothing."""


@frozen(kw_only=True)
class Released:
    """A claim is given back: nothing was sent.

    Not for a ``recover`` claim of a first submit: what its dead worker sent is not known.
    """


@frozen(kw_only=True)
class Receipt:
    """The late reply of a submit whose lease was lost."""

    reply: InProgress | Succeeded | Failed | Rejected | NotSent | Throttled | Unknown
    #: The generation that the submit was made in; a reply to an older one changes nothing.
    generation: int


@frozen(kw_only=True)
class Resolved:
    """An operator looked at the vendor and says what became of an unknown submit."""

    to: Literal["submitted", "failed", "pending"]
    query_params: QueryParams | None = None
    error: Failure | None = None
    note: str = ""


@frozen(kw_only=True)
class Resumed:
    """An operator wants a job tracked again."""


@frozen(kw_only=True)
class Retried:
    """Somebody wants a new job for the same request."""


@frozen(kw_only=True)
class Refreshed:
    """The vendor was asked for the result again."""

    gone: bool = False
    expires_after: timedelta | None = None


Event = (
    Claimed
    | InProgress
    | Succeeded
    | Failed
    | Canceled
    | NotSent
    | Throttled
    | Rejected
    | Unknown
    | Found
    | Missed
    | StepFailed
    | NotReady
    | NotFound
    | CancelRequested
    | CancelAnswered
    | CancelFailed
    | Overdue
    | Released
    | Receipt
    | Resolved
    | Resumed
    | Retried
    | Refreshed
)


@frozen(kw_only=True)
class Move:
    """What an event makes of a task, for the store to write in one piece."""

    task: Task
    #: From now to the next step; ``None`` when there is none. The store bounds it by the deadlines.
    delay: timedelta | None
    #: What exists at the vendor afterwards.
    job: Job
    gate: GateClose | None = None
    #: A new generation: scheduled now, fresh deadlines of the same lengths.
    restart: bool = False
    #: The vendor's job moved: the stall clock starts anew.
    progressed: bool = False
    drop_params: bool = False
    #: Replaces the cancel flag; ``None`` keeps it.
    cancel: CancelFlag | None = None
    #: What becomes of the claims since the last commit.
    claims: Literal["reset", "keep", "undo"] = "reset"


_STATES = {status: State[status.name] for status in TaskStatus}


def state_of(task: Task) -> State:
    """Return the table row of ``task``."""
    if task.status is TaskStatus.SUBMITTING:
        if task.next_step is Step.RESUBMIT:
            return State.RESUBMIT
        if task.next_step is Step.LOOKUP:
            return State.LOOKUP
    return _STATES[task.status]


def advance(task: Task, event: Event, now: datetime) -> Move | None:
    """Return the move that ``event`` makes at ``now``, or ``None`` when it changes nothing.

    Args:
        task: the record as it was read; never changed.
        event: what happened.
        now: the store's time.
    """
    rule = TABLE.get((state_of(task), type(event)))
    return None if rule is None else rule.apply(task, event, now)


def view(task: Task, now: datetime) -> Task:
    """Return ``task`` as readers see it: an overdue pending one has timed out, before its row says so."""
    # At the deadline itself, not at the reader's time: all readers see the same.
    limit = submit_deadline_at(task)
    if task.status is not TaskStatus.PENDING_SUBMIT or now < limit:
        return task
    return _timed_out(task, _overdue_code(task, limit) or "deadline", limit).task


def submit_deadline_at(task: Task) -> datetime:
    """Return the instant after which the task is not submitted any more."""
    return min(task.deadline_at, task.queue_deadline_at or task.deadline_at)


# Moves.


def _end(task: Task, status: TaskStatus, verdict: Verdict, now: datetime, job: Job, **changes: Any) -> Move:
    gate = changes.pop("gate", None)
    is_clean = status in (TaskStatus.SUCCEEDED, TaskStatus.CANCELED)
    if is_clean:
        changes["error"] = None
    if status is TaskStatus.SUCCEEDED:
        changes["progress"] = 100.0
    ended = task.evolve(
        status=status, verdict=verdict, next_step=None, due_at=None, finished_at=now, **changes
    )
    return Move(
        task=ended,
        delay=None,
        job=job,
        gate=gate,
        drop_params=is_clean,
    )


def _pending(task: Task, delay: timedelta, **changes: Any) -> Move:
    gate = changes.pop("gate", None)
    return Move(
        task=task.evolve(status=TaskStatus.PENDING_SUBMIT, next_step=Step.SUBMIT, **changes),
        delay=delay,
        job=Job.NONE,
        gate=gate,
    )


def _waiting(task: Task, step: Step, delay: timedelta, **changes: Any) -> Move:
    gate = changes.pop("gate", None)
    return Move(task=task.evolve(next_step=step, **changes), delay=delay, job=Job.LIVE, gate=gate)


def _claimed(task: Task, event: Claimed, now: datetime) -> Move | None:
    # The store makes this move without opening the record, so that it changes nothing but the status.
    if _overdue_code(task, now):
        return None
    return Move(task=task.evolve(status=TaskStatus.SUBMITTING), delay=NOW, job=Job.LIVE, claims="keep")


def _merge(task: Task, event: Any) -> dict[str, Any]:
    """What every answer about a job leaves on the record."""
    changes: dict[str, Any] = {}
    if event.provider_status is not None:
        changes["provider_status"] = event.provider_status
    if getattr(event, "usage", None) is not None:
        changes["usage"] = event.usage
    resources = getattr(event, "resources", ())
    if resources:
        changes["resources"] = (*task.resources, *(pair for pair in resources if pair not in task.resources))
    return changes


def _attempted(task: Task) -> dict[str, int]:
    """Count a submit that was made; what a lookup, a receipt or an operator brings is none."""
    made = state_of(task) in (State.SUBMITTING, State.RESUBMIT)
    return {"submit_attempts": task.submit_attempts + 1} if made else {}


def _accepted(task: Task, event: InProgress, now: datetime) -> Move:
    if event.query_params is None:
        error = Failure("no_external_task_id", "the vendor's reply held no task id", Phase.SUBMIT)
        unknown = Unknown(error=error, delay=event.delay)
        return (_unknown if state_of(task) is State.SUBMITTING else _unknown_again)(task, unknown, now)
    changed = task.evolve(
        status=event.status,
        next_step=Step.QUERY,
        query_params=event.query_params,
        progress=event.progress,
        submitted_at=now,
        last_observation=Observation(event.status, event.progress, event.provider_status, now),
        error=None,
        **_attempted(task),
        **_merge(task, event),
    )
    return Move(
        task=changed,
        delay=event.delay if task.cancel is CancelFlag.NONE else NOW,
        job=Job.LIVE,
        progressed=True,
        drop_params=task.traits.keep_params == "accepted",
    )


def _succeeded(task: Task, event: Succeeded, now: datetime) -> Move:
    seen = Observation(TaskStatus.SUCCEEDED, 100.0, event.provider_status, now)
    expires_at = now + event.expires_after if event.expires_after is not None else None
    return _end(
        task,
        TaskStatus.SUCCEEDED,
        Verdict.VENDOR,
        now,
        Job.NONE,
        query_params=event.query_params or task.query_params,
        result_expires_at=expires_at,
        last_observation=seen,
        **_counted(task),
        **_merge(task, event),
    )


def _failed(task: Task, event: Failed, now: datetime) -> Move:
    seen = Observation(TaskStatus.FAILED, task.progress, event.provider_status, now)
    return _end(
        task,
        TaskStatus.FAILED,
        Verdict.VENDOR,
        now,
        Job.NONE,
        error=event.error,
        last_observation=seen,
        **_counted(task),
        **_merge(task, event),
    )


def _canceled(task: Task, event: Canceled, now: datetime) -> Move:
    seen = Observation(TaskStatus.CANCELED, task.progress, event.provider_status, now)
    return _end(
        task,
        TaskStatus.CANCELED,
        Verdict.VENDOR,
        now,
        Job.NONE,
        last_observation=seen,
        **_counted(task),
        **_merge(task, event),
    )


def _counted(task: Task) -> dict[str, int]:
    """Count the query, or the submit, that brought an end."""
    return {"query_count": task.query_count + 1} if task.status.is_queryable else _attempted(task)


def _not_sent(task: Task, event: NotSent, now: datetime) -> Move:
    changes: dict[str, Any] = {
        "not_sent_count": task.not_sent_count + 1,
        "error": event.error,
        **_attempted(task),
    }
    if changes["not_sent_count"] >= NOT_SENT_BUDGET:
        return _end(task, TaskStatus.FAILED, Verdict.NOBODY, now, Job.NONE, **changes)
    return _pending(task, event.delay, **changes)


def _submit_throttled(task: Task, event: Throttled, now: datetime) -> Move:
    return _pending(task, event.delay, gate=event.gate, error=event.error)


def _rejected(task: Task, event: Rejected, now: datetime) -> Move:
    return _end(
        task,
        TaskStatus.FAILED,
        Verdict.VENDOR,
        now,
        Job.NONE,
        error=event.error,
        gate=event.gate,
        **_attempted(task),
    )


def _unknown(task: Task, event: Unknown, now: datetime) -> Move:
    changes: dict[str, Any] = {"error": event.error, **_attempted(task)}
    if not event.final:
        if task.traits.resubmit == "idempotent" and task.cancel is CancelFlag.NONE:
            return _mourned(_waiting(task, Step.RESUBMIT, event.delay, **changes), event)
        if task.traits.has_lookup:
            delay = task.traits.lookup_delay
            return _mourned(_waiting(task, Step.LOOKUP, delay, lookup_misses=0, **changes), event)
    return _submit_unknown(task, now, **changes)


def _mourned(move: Move, event: Unknown) -> Move:
    """Keep the count of deaths where a death is what happened: recovering from it ends no step."""
    return evolve(move, claims="keep") if event.is_death else move


def _submit_unknown(task: Task, now: datetime, **changes: Any) -> Move:
    """End without knowing; what was learned last is kept as the error."""
    return _end(task, TaskStatus.SUBMIT_UNKNOWN, Verdict.NOBODY, now, Job.GHOST, **changes)


def _unknown_again(task: Task, event: Unknown, now: datetime) -> Move:
    """A resubmit or a lookup came to nothing, or its worker died in it."""
    changes: dict[str, Any] = {"error": event.error, **_attempted(task)}
    if event.final:
        return _submit_unknown(task, now, **changes)
    step = Step.RESUBMIT if state_of(task) is State.RESUBMIT else Step.LOOKUP
    return _mourned(_waiting(task, step, event.delay, **changes), event)


def _resubmit_not_sent(task: Task, event: NotSent, now: datetime) -> Move:
    return _waiting(task, Step.RESUBMIT, event.delay, error=event.error, **_attempted(task))


def _resubmit_throttled(task: Task, event: Throttled, now: datetime) -> Move:
    return _waiting(task, Step.RESUBMIT, event.delay, error=event.error, gate=event.gate)


def _resubmit_rejected(task: Task, event: Rejected, now: datetime) -> Move:
    return _submit_unknown(task, now, error=event.error, gate=event.gate, **_attempted(task))


def _resubmit_canceled(task: Task, event: CancelRequested, now: datetime) -> Move:
    return _submit_unknown(task, now)


def _unknown_for_good(task: Task, event: Overdue, now: datetime) -> Move | None:
    return _submit_unknown(task, now) if _overdue_code(task, now) else None


def _found(task: Task, event: Found, now: datetime) -> Move:
    seen = InProgress(status=TaskStatus.SUBMITTED, delay=event.delay, query_params=event.query_params)
    return _accepted(task, seen, now)


def _missed(task: Task, event: Missed, now: datetime) -> Move:
    misses = task.lookup_misses + 1
    if misses < LOOKUP_MISSES:
        return _waiting(task, Step.LOOKUP, task.traits.lookup_delay, lookup_misses=misses)
    if task.cancel is not CancelFlag.NONE:
        return _end(task, TaskStatus.CANCELED, Verdict.USER, now, Job.NONE, lookup_misses=misses)
    return _pending(task, NOW, lookup_misses=0)


def _lookup_failed(task: Task, event: StepFailed, now: datetime) -> Move:
    return _waiting(task, Step.LOOKUP, event.delay, error=event.error, gate=event.gate)


def _lookup_throttled(task: Task, event: Throttled, now: datetime) -> Move:
    return _waiting(task, Step.LOOKUP, event.delay, error=event.error, gate=event.gate)


def _overdue_code(task: Task, now: datetime) -> str | None:
    """Name the limit that has passed, if any."""
    if task.status is TaskStatus.PENDING_SUBMIT:
        first = submit_deadline_at(task)
        if now < first:
            return None
        return "deadline" if first == task.deadline_at else "queue_deadline"
    if now >= task.deadline_at:
        return "deadline"
    if task.stall_at is not None and now >= task.stall_at:
        return "stalled"
    return None


_OVERDUE_TEXT = {
    "deadline": "the deadline passed before the job ended",
    "queue_deadline": "the task waited past its queue deadline and was not submitted",
    "stalled": "the job showed no change for the stall limit",
}


def _timed_out(task: Task, code: str, now: datetime, gate: GateClose | None = None) -> Move:
    job = Job.NONE if task.status is TaskStatus.PENDING_SUBMIT else Job.GHOST
    phase = Phase.SUBMIT if task.status is TaskStatus.PENDING_SUBMIT else Phase.TRACKING
    error = Failure(code, _OVERDUE_TEXT[code], phase, retryable=True)
    return _end(task, TaskStatus.TRACKING_TIMED_OUT, Verdict.NOBODY, now, job, error=error, gate=gate)


def _query_on(
    task: Task,
    delay: timedelta,
    now: datetime,
    *,
    gate: GateClose | None = None,
    progressed: bool = False,
    may_cancel: bool = True,
    **changes: Any,
) -> Move:
    """Wait for the next query, unless this one was the last that the deadline or the stall limit allowed."""
    code = _overdue_code(task, now)
    if code == "stalled" and progressed:
        code = None
    step = Step.QUERY
    if task.cancel is CancelFlag.REQUESTED:
        # The user's cancel goes first, also at the deadline.
        delay = NOW
    elif code is not None:
        asked = task.cancel is CancelFlag.HANDLED or not may_cancel
        if asked or not task.cancel_on_deadline or not task.traits.has_cancel:
            return _timed_out(task.evolve(**changes), code, now, gate)
        step, delay = Step.CANCEL, NOW
    changed = task.evolve(next_step=step, **changes)
    return Move(task=changed, delay=delay, job=Job.LIVE, gate=gate, progressed=progressed)


def _observed(task: Task, event: InProgress, now: datetime) -> Move:
    status = TaskStatus.RUNNING if task.status is TaskStatus.RUNNING else event.status
    progress = task.progress
    if event.progress is not None:
        progress = max(event.progress, progress or 0.0)
    word = task.provider_status if event.provider_status is None else event.provider_status
    moved = (status, progress, word) != (task.status, task.progress, task.provider_status)
    return _query_on(
        task,
        event.delay,
        now,
        progressed=moved,
        status=status,
        progress=progress,
        query_params=event.query_params or task.query_params,
        last_observation=Observation(event.status, event.progress, event.provider_status, now),
        query_count=task.query_count + 1,
        consecutive_errors=0,
        not_found_count=0,
        error=None,
        **_merge(task, event),
    )


def _query_throttled(task: Task, event: Throttled, now: datetime) -> Move:
    return _query_on(
        task, event.delay, now, gate=event.gate, query_count=task.query_count + 1, not_found_count=0
    )


def _not_ready(task: Task, event: NotReady, now: datetime) -> Move:
    return _query_on(
        task,
        event.delay,
        now,
        query_count=task.query_count + 1,
        consecutive_errors=0,
        not_found_count=0,
        error=None,
    )


def _query_failed(task: Task, event: StepFailed, now: datetime) -> Move:
    errors = task.consecutive_errors + 1
    counts: dict[str, Any] = {
        "query_count": task.query_count + 1,
        "consecutive_errors": errors,
        "not_found_count": 0,
    }
    if event.cap is not None and errors >= event.cap:
        error = Failure("query_retries_exhausted", event.error.message, Phase.QUERY, retryable=True)
        return _end(
            task,
            TaskStatus.FAILED,
            Verdict.NOBODY,
            now,
            Job.GHOST,
            error=error,
            gate=event.gate,
            **counts,
        )
    return _query_on(task, event.delay, now, gate=event.gate, error=event.error, **counts)


def _not_found(task: Task, event: NotFound, now: datetime) -> Move:
    missing = task.not_found_count + 1
    counts: dict[str, Any] = {"query_count": task.query_count + 1, "not_found_count": missing}
    if missing >= task.traits.not_found_limit:
        error = Failure("job_lost", event.error.message, Phase.QUERY, retryable=False)
        return _end(task, TaskStatus.FAILED, Verdict.NOBODY, now, Job.GHOST, error=error, **counts)
    return _query_on(task, event.delay, now, error=event.error, **counts)


def _cancel_pending(task: Task, event: CancelRequested, now: datetime) -> Move:
    code = _overdue_code(task, now)
    if code:
        # Readers have been told so; see ``view``.
        return _timed_out(task, code, now)
    return _end(task, TaskStatus.CANCELED, Verdict.USER, now, Job.NONE)


def _cancel_locally(task: Task, event: CancelRequested, now: datetime) -> Move | None:
    if task.traits.has_cancel:
        return None
    return _end(task, TaskStatus.CANCELED, Verdict.USER, now, Job.GHOST)


def _cancel_answered(task: Task, event: CancelAnswered, now: datetime) -> Move:
    if event.outcome == "done":
        usage = {} if event.usage is None else {"usage": event.usage}
        return _end(task, TaskStatus.CANCELED, Verdict.VENDOR, now, Job.NONE, **usage)
    note = f"cancel {event.outcome}" + (f": {event.message}" if event.message else "")
    return _query_after_cancel(task, event.delay, now, notes=_noted(task, note))


def _cancel_failed(task: Task, event: CancelFailed, now: datetime) -> Move:
    tries = task.cancel_tries + 1
    wanted = task.cancel is CancelFlag.REQUESTED and _overdue_code(task, now) is None
    if tries < CANCEL_TRIES and wanted:
        return _waiting(task, Step.QUERY, event.delay, cancel_tries=tries, error=event.error, gate=event.gate)
    return _query_after_cancel(task, event.delay, now, gate=event.gate, cancel_tries=tries, error=event.error)


def _query_after_cancel(task: Task, delay: timedelta, now: datetime, **changes: Any) -> Move:
    """A cancel that did not end the job: look on, or give up where the deadline asked for it."""
    if task.cancel is CancelFlag.REQUESTED:
        # The user's cancel has been dealt with; even past the deadline one last query is owed.
        move = _waiting(task, Step.QUERY, delay, **changes)
        return evolve(move, cancel=CancelFlag.HANDLED)
    return _query_on(task, delay, now, may_cancel=False, **changes)


def _overdue(task: Task, event: Overdue, now: datetime) -> Move | None:
    code = _overdue_code(task, now)
    return _timed_out(task, code, now) if code else None


def _released(task: Task, event: Released, now: datetime) -> Move:
    if state_of(task) is State.SUBMITTING:
        return evolve(_pending(task, NOW), claims="undo")
    return Move(task=task, delay=NOW, job=Job.LIVE, claims="undo")


def _noted(task: Task, text: str) -> tuple[str, ...]:
    return (*task.notes, text)[-NOTES:]


#: What a new generation starts with. Notes and the ids that the vendor handed out stay: they are history.
_FRESH: Mapping[str, Any] = {
    "verdict": None,
    "error": None,
    "finished_at": None,
    "submit_attempts": 0,
    "not_sent_count": 0,
    "query_count": 0,
    "consecutive_errors": 0,
    "not_found_count": 0,
    "lookup_misses": 0,
    "cancel_tries": 0,
    "cancel": CancelFlag.NONE,
}


def _reborn(task: Task, move: Move) -> Move:
    """Make ``move`` the start of a new generation."""
    changed = move.task.evolve(generation=task.generation + 1)
    return evolve(move, task=changed, restart=True, cancel=CancelFlag.NONE)


def _receipt(task: Task, event: Receipt, now: datetime) -> Move | None:
    if task.is_leased or event.generation != task.generation:
        return None
    reply = event.reply
    # Nobody asked for this new generation, so an open cancel goes with it.
    changes = {**_FRESH, "cancel": task.cancel, "status": TaskStatus.SUBMIT_UNKNOWN}
    fresh = task.evolve(**changes)
    if isinstance(reply, InProgress) and reply.query_params is not None:
        move = _accepted(fresh, reply, now)
    elif isinstance(reply, Succeeded):
        move = _succeeded(fresh, reply, now)
    elif isinstance(reply, Failed):
        move = _failed(fresh, reply, now)
    elif isinstance(reply, Rejected):
        move = _rejected(fresh, reply, now)
    else:
        return _note_reply(task, reply, now)
    return evolve(_reborn(task, move), cancel=None)


def _note_reply(task: Task, reply: InProgress | NotSent | Throttled | Unknown, now: datetime) -> Move:
    """Keep a late reply that says nothing about a job; what the task waits for stays due as it was."""
    said = "no_external_task_id" if isinstance(reply, InProgress) else reply.error.code
    noted = task.evolve(notes=_noted(task, f"late reply to the submit: {said}"))
    if task.status.is_end:
        return Move(task=noted, delay=None, job=Job.GHOST, claims="keep")
    delay = max((task.due_at or now) - now, NOW)
    return Move(task=noted, delay=delay, job=Job.LIVE, claims="keep")


def _resolved(task: Task, event: Resolved, now: datetime) -> Move | None:
    fresh = task.evolve(**_FRESH, notes=_noted(task, event.note) if event.note else task.notes)
    if event.to == "pending":
        return _reborn(task, _pending(fresh, NOW))
    if event.to == "failed":
        error = event.error or Failure("resolved_failed", "an operator says that no job exists", Phase.SUBMIT)
        return _reborn(task, _end(fresh, TaskStatus.FAILED, Verdict.USER, now, Job.NONE, error=error))
    if event.query_params is None:
        return None
    seen = InProgress(status=TaskStatus.SUBMITTED, delay=NOW, query_params=event.query_params)
    return _reborn(task, _accepted(fresh, seen, now))


def _resumed(task: Task, event: Resumed, now: datetime) -> Move | None:
    if task.verdict is not Verdict.NOBODY or task.query_params is None:
        return None
    changed = task.evolve(**{**_FRESH, "status": TaskStatus.RUNNING, "next_step": Step.QUERY})
    return _reborn(task, Move(task=changed, delay=NOW, job=Job.LIVE, progressed=True))


def _retried(task: Task, event: Retried, now: datetime) -> Move | None:
    if task.status is TaskStatus.TRACKING_TIMED_OUT and task.query_params is not None:
        return None
    if task.traits.keep_params == "accepted" and task.submitted_at is not None:
        return None  # the params are gone
    changed = task.evolve(
        **_FRESH,
        query_params=None,
        progress=None,
        provider_status=None,
        last_observation=None,
        submitted_at=None,
        usage=None,
        idempotency_key=_next_key(task),
    )
    return _reborn(task, _pending(changed, NOW))


def _next_key(task: Task) -> str:
    """Return an idempotency key that no submit of this task was made with.

    Only a key that we made is shortened again: a caller's own key may end in a number too.
    """
    ours = re.fullmatch(rf"{re.escape(task.id)}(-\d+)?", task.idempotency_key)
    return f"{task.id if ours else task.idempotency_key}-{task.generation + 1}"


def _refreshed(task: Task, event: Refreshed, now: datetime) -> Move:
    if event.gone:
        return Move(task=task.evolve(result_gone=True), delay=None, job=Job.NONE)
    expires_at = now + event.expires_after if event.expires_after is not None else None
    return Move(task=task.evolve(result_gone=False, result_expires_at=expires_at), delay=None, job=Job.NONE)


# The table.


@frozen
class Rule:
    """One line of the table: in these states this event leads there."""

    states: tuple[State, ...]
    event: type
    to: str
    apply: Callable[[Task, Any, datetime], Move | None]


_S = State
_QUERYABLE = (_S.SUBMITTED, _S.RUNNING)
_ANY_SUBMITTING = (_S.SUBMITTING, _S.RESUBMIT)

#: The life cycle. ``docs/explanation/lifecycle.md`` prints it; a test walks every pair of state and event.
RULES: tuple[Rule, ...] = (
    Rule((_S.PENDING_SUBMIT,), Claimed, "SUBMITTING", _claimed),
    Rule((_S.PENDING_SUBMIT,), CancelRequested, "CANCELED, verdict user, no vendor call", _cancel_pending),
    Rule((_S.PENDING_SUBMIT,), Overdue, "TRACKING_TIMED_OUT, no vendor call", _overdue),
    Rule(
        _ANY_SUBMITTING,
        InProgress,
        "SUBMITTED or RUNNING, first query due; without an id: unknown",
        _accepted,
    ),
    Rule(_ANY_SUBMITTING, Succeeded, "SUCCEEDED, verdict vendor", _succeeded),
    Rule(_ANY_SUBMITTING, Failed, "FAILED, verdict vendor", _failed),
    Rule((_S.SUBMITTING,), NotSent, "PENDING_SUBMIT after backoff; budget spent: FAILED", _not_sent),
    Rule(
        (_S.SUBMITTING,),
        Throttled,
        "PENDING_SUBMIT after the delay, gate closed, nothing counted",
        _submit_throttled,
    ),
    Rule((_S.SUBMITTING,), Rejected, "FAILED, verdict vendor", _rejected),
    Rule(
        (_S.SUBMITTING,),
        Unknown,
        "idempotent and no cancel flag: resubmit after backoff; else lookup after lookup_delay; "
        "else SUBMIT_UNKNOWN",
        _unknown,
    ),
    Rule((_S.RESUBMIT,), NotSent, "stays, after backoff", _resubmit_not_sent),
    Rule((_S.RESUBMIT,), Throttled, "stays, after the delay, gate closed", _resubmit_throttled),
    Rule((_S.RESUBMIT,), Rejected, "SUBMIT_UNKNOWN, error kept", _resubmit_rejected),
    Rule((_S.RESUBMIT, _S.LOOKUP), Unknown, "stays, after backoff", _unknown_again),
    Rule((_S.RESUBMIT,), CancelRequested, "SUBMIT_UNKNOWN", _resubmit_canceled),
    Rule((_S.RESUBMIT, _S.LOOKUP), Overdue, "SUBMIT_UNKNOWN", _unknown_for_good),
    Rule((_S.LOOKUP,), Found, "SUBMITTED", _found),
    Rule(
        (_S.LOOKUP,),
        Missed,
        "stays, after lookup_delay; the second time PENDING_SUBMIT with the same key, "
        "with a cancel flag CANCELED",
        _missed,
    ),
    Rule((_S.LOOKUP,), StepFailed, "stays, after backoff", _lookup_failed),
    Rule((_S.LOOKUP,), Throttled, "stays, after the delay, gate closed", _lookup_throttled),
    Rule(
        (*_ANY_SUBMITTING, _S.LOOKUP, *_QUERYABLE),
        Released,
        "the state before the claim, due now, nothing counted",
        _released,
    ),
    Rule(
        _QUERYABLE,
        InProgress,
        "same status or RUNNING, next query due; past a limit: TRACKING_TIMED_OUT",
        _observed,
    ),
    Rule(_QUERYABLE, Succeeded, "SUCCEEDED, verdict vendor", _succeeded),
    Rule(_QUERYABLE, Failed, "FAILED, verdict vendor", _failed),
    Rule(_QUERYABLE, Canceled, "CANCELED, verdict vendor", _canceled),
    Rule(
        _QUERYABLE,
        Throttled,
        "same status, after the delay, gate closed, no error counted; past a limit: TRACKING_TIMED_OUT",
        _query_throttled,
    ),
    Rule(_QUERYABLE, NotReady, "same status, after the delay; past a limit: TRACKING_TIMED_OUT", _not_ready),
    Rule(
        _QUERYABLE,
        StepFailed,
        "same status, error counted, after backoff; cap spent: FAILED; past a limit: TRACKING_TIMED_OUT",
        _query_failed,
    ),
    Rule(
        _QUERYABLE,
        NotFound,
        "same status; in a row not_found_limit times: FAILED job_lost; past a limit: TRACKING_TIMED_OUT",
        _not_found,
    ),
    Rule(
        _QUERYABLE,
        CancelRequested,
        "CANCELED, verdict user, where the handler cannot cancel",
        _cancel_locally,
    ),
    Rule(
        _QUERYABLE,
        CancelAnswered,
        "done: CANCELED, verdict vendor; accepted or refused: query on, not asked again",
        _cancel_answered,
    ),
    Rule(_QUERYABLE, CancelFailed, "again after backoff, three tries, then query on", _cancel_failed),
    Rule(_QUERYABLE, Overdue, "TRACKING_TIMED_OUT", _overdue),
    Rule(
        (_S.SUBMIT_UNKNOWN, _S.RESUBMIT, _S.LOOKUP),
        Receipt,
        "what the late reply says, as a new generation; anything else is noted",
        _receipt,
    ),
    Rule(
        (_S.SUBMIT_UNKNOWN,), Resolved, "SUBMITTED, FAILED or PENDING_SUBMIT, as a new generation", _resolved
    ),
    Rule(
        (_S.TRACKING_TIMED_OUT, _S.FAILED),
        Resumed,
        "RUNNING, as a new generation; needs verdict nobody and an external id",
        _resumed,
    ),
    Rule(
        (_S.FAILED, _S.TRACKING_TIMED_OUT),
        Retried,
        "PENDING_SUBMIT, as a new generation; a timed out task must have no external id",
        _retried,
    ),
    Rule((_S.SUCCEEDED,), Refreshed, "SUCCEEDED, result replaced or result_gone noted", _refreshed),
)

EVENTS: tuple[type, ...] = tuple(dict.fromkeys(rule.event for rule in RULES))


def _index(rules: Iterable[Rule]) -> dict[tuple[State, type], Rule]:
    table: dict[tuple[State, type], Rule] = {}
    for rule in rules:
        for state in rule.states:
            if (state, rule.event) in table:
                raise AssertionError(f"two rules for {state} and {rule.event.__name__}")
            table[state, rule.event] = rule
    return table


TABLE: Mapping[tuple[State, type], Rule] = _index(RULES)


def side_of(step: Step | None) -> Side:
    """Return the side whose gate a step's answer is about."""
    return (step or Step.QUERY).side
