"""What a handler's answer, or its exception, means for the life cycle: which event, which delay, which gate.

Pure: one answer and one random draw go in, one event comes out. Everything that a vendor wrote passes through
here on its way to the record: here it is cut, and cleaned of the secrets that the step was given.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from coatcheck import codec
from coatcheck.accounts import masked, masked_json
from coatcheck.errors import (
    HandlerError,
    JobNotFoundError,
    NotPersistableError,
    NotReadyError,
    NotSentError,
    PayloadTooLargeError,
    RejectedError,
    RequestError,
    ThrottledError,
)
from coatcheck.lifecycle import (
    CancelAnswered,
    Canceled,
    CancelFailed,
    Event,
    Failed,
    Found,
    GateClose,
    InProgress,
    Missed,
    NotFound,
    NotReady,
    NotSent,
    Rejected,
    StepFailed,
    Succeeded,
    Throttled,
    Unknown,
)
from coatcheck.model import (
    LONGEST,
    Account,
    CancelResult,
    Failure,
    LookupResult,
    Phase,
    QueryParams,
    QueryResult,
    SubmitResult,
    Task,
    TaskStatus,
)
from coatcheck.policy import LONGEST_ASKED, PollPolicy
from coatcheck.store import Kind

#: How many resources of one answer are kept, and how long each of their ids may be.
_RESOURCES = 1000
_RESOURCE_LENGTH = 1000

#: The kinds that may create a job.
SUBMITS = frozenset({Kind.SUBMIT, Kind.RESUBMIT})
#: The handler's method for each kind that has one.
METHODS: Mapping[Kind, str] = {
    Kind.SUBMIT: "submit",
    Kind.RESUBMIT: "submit",
    Kind.LOOKUP: "lookup",
    Kind.QUERY: "query",
    Kind.CANCEL: "cancel",
}
#: Where a failure of each kind happened.
PHASES: Mapping[Kind, Phase] = {
    Kind.SUBMIT: Phase.SUBMIT,
    Kind.RESUBMIT: Phase.SUBMIT,
    Kind.LOOKUP: Phase.LOOKUP,
    Kind.QUERY: Phase.QUERY,
    Kind.CANCEL: Phase.CANCEL,
    Kind.RECOVER: Phase.SUBMIT,
    Kind.EXPIRE: Phase.TRACKING,
}
_EXPECTED: Mapping[Kind, type] = {
    Kind.SUBMIT: SubmitResult,
    Kind.RESUBMIT: SubmitResult,
    Kind.LOOKUP: LookupResult,
    Kind.QUERY: QueryResult,
    Kind.CANCEL: CancelResult,
}


class Vault:
    """An account as one step sees it: it knows which secrets it handed out, so that none is written."""

    __slots__ = ("_account", "problem", "seen")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.seen: list[str] = []
        #: What the last look-up raised, if it failed.
        self.problem: Exception | None = None

    def lookup(self, part: str) -> str:
        """Return a part of the credentials and remember it."""
        try:
            secret = self._account.secret(part)
        except Exception as problem:
            self.problem = problem
            raise
        self.seen.append(secret)
        return secret

    def redact(self, text: str) -> str:
        """Return ``text`` without any secret of this step; see ``accounts.masked``."""
        return masked(text, self.seen)

    def redact_bytes(self, data: bytes) -> bytes:
        """Return JSON bytes without any secret of this step."""
        return masked_json(data, self.seen)


class Reading:
    """Makes the event of one step's answer.

    Args:
        kind: what the task was claimed for.
        task: the task as it was claimed.
        poll: the handler's pace.
        vault: the secrets that the step was given.
        draw: a random number from 0 to 1 for the jitter.
    """

    __slots__ = ("_draw", "_kind", "_phase", "_poll", "_task", "_vault")

    def __init__(self, kind: Kind, task: Task, poll: PollPolicy, vault: Vault, draw: float) -> None:
        self._kind = kind
        self._phase = PHASES[kind]
        self._task = task
        self._poll = poll
        self._vault = vault
        self._draw = draw

    def event(self, answer: object) -> tuple[Event, bytes | None]:
        """Return the event of what the handler returned or raised and, for a success, the encoded result.

        Raises:
            RequestError: query params cannot be stored; see ``unstorable``.
        """
        if isinstance(answer, BaseException):
            return self._raised(answer), None
        expected = _EXPECTED[self._kind]
        if not isinstance(answer, expected):
            found = type(answer).__name__
            problem = f"{METHODS[self._kind]} must return a {expected.__name__}, found {found}"
            return self._misbehaved(problem), None
        if isinstance(answer, CancelResult):
            return self._cancel_answered(answer), None
        if isinstance(answer, LookupResult):
            return self._looked_up(answer), None
        return self._answered(answer)

    def unstorable(self, answer: object, error: RequestError) -> Event:
        """Return the event of an answer whose query params cannot be stored: its id is kept in the error."""
        reason = "too_large" if isinstance(error, PayloadTooLargeError) else "not_persistable"
        code, text = f"query_params_{reason}", self._text(str(error))
        params = getattr(answer, "query_params", None)
        if self._kind in (*SUBMITS, Kind.LOOKUP) and isinstance(params, QueryParams):
            external_id = self._text(params.external_task_id, 1024)
            text = f"the vendor has the job {external_id!r}, but its query params cannot be stored: {text}"
            failure = Failure(code, codec.cut(text), self._phase, retryable=False)
            return Unknown(error=failure, delay=timedelta(), final=True)
        return self._failed(Failure(code, text, self._phase, retryable=True))

    def unsendable(self, problem: str) -> Event:
        """Return the event of a call that cannot be made here; another worker may manage."""
        error = Failure("unreadable_request", self._text(problem), self._phase, retryable=True)
        if self._kind in SUBMITS:
            return NotSent(
                error=error, delay=self._poll.after_error(self._task.not_sent_count + 1, self._draw)
            )
        return self._failed(error)

    # Answers.

    def _answered(self, answer: Any) -> tuple[Event, bytes | None]:
        status = answer.status
        word = self._word(answer.provider_status)
        if status in (TaskStatus.SUBMITTED, TaskStatus.RUNNING):
            return self._in_progress(answer, word), None
        if status is TaskStatus.SUCCEEDED:
            return self._succeeded(answer, word)
        if status is TaskStatus.FAILED:
            return Failed(error=self._failure(answer.error), usage=answer.usage, provider_status=word), None
        if status is TaskStatus.CANCELED and self._kind is Kind.QUERY:
            return Canceled(usage=answer.usage, provider_status=word), None
        return self._misbehaved(f"{METHODS[self._kind]} may not return the status {status!r}"), None

    def _in_progress(self, answer: Any, word: str | None) -> Event:
        asked = _duration(answer.query_after)
        if self._kind is Kind.QUERY:
            params = answer.next_query_params
            problem = self._other_job(params)
            if problem is not None:
                return self._misbehaved(problem, "external_task_id_changed")
            delay = self._poll.after_query(self._task.query_count + 1, asked, self._draw)
        else:
            params = answer.query_params
            if not isinstance(params, QueryParams):
                return self._misbehaved(
                    f"a submit that was taken must return QueryParams, found {type(params).__name__}; "
                    "read the vendor's id for the job from its reply",
                    "no_external_task_id",
                )
            delay = self._poll.after_submit(asked, self._draw)
        self._check_params(params)
        return InProgress(
            status=answer.status,
            delay=delay,
            query_params=params,
            progress=answer.progress,
            provider_status=word,
            resources=_pairs(answer.resources),
        )

    def _other_job(self, params: object) -> str | None:
        """Say what is wrong with the params that a query returned, if anything is."""
        if params is None:
            return None
        if not isinstance(params, QueryParams):
            return f"next_query_params must be QueryParams, found {type(params).__name__}"
        known = self._task.external_task_id
        if params.external_task_id != known:
            found = codec.cut(params.external_task_id, 200)
            return f"next_query_params must keep the external task id {known!r}, found {found!r}"
        return None

    def _succeeded(self, answer: Any, word: str | None) -> tuple[Event, bytes | None]:
        params = answer.query_params if self._kind in SUBMITS else None
        if not isinstance(params, QueryParams | None):
            return self._misbehaved(f"query_params must be QueryParams, found {type(params).__name__}"), None
        self._check_params(params)
        try:
            result = codec.encode_value(answer.result, field="result", cap=codec.CAPS["result"])
        except NotPersistableError as error:
            return self._unkept("result_not_persistable", error, answer, word), None
        except PayloadTooLargeError as error:
            return self._unkept("result_too_large", error, answer, word), None
        if self._vault.seen:
            result = self._vault.redact_bytes(result)  # a vendor that echoes our key (G8)
        event = Succeeded(
            query_params=params,
            usage=answer.usage,
            resources=_pairs(answer.resources),
            expires_after=_duration(answer.expires_after),
            provider_status=word,
        )
        return event, result

    def _unkept(self, code: str, error: Exception, answer: Any, word: str | None) -> Event:
        failure = Failure(code, self._text(str(error)), Phase.RESULT, retryable=False)
        return Failed(error=failure, usage=answer.usage, provider_status=word)

    def _cancel_answered(self, answer: CancelResult) -> Event:
        if answer.outcome not in ("done", "accepted", "refused"):
            return self._misbehaved(f"a cancel is done, accepted or refused, found {answer.outcome!r}")
        return CancelAnswered(
            outcome=answer.outcome,
            delay=self._poll.after_query(self._task.query_count + 1, None, self._draw),
            usage=answer.usage,
            message=self._text(str(answer.message), 1024),
        )

    def _looked_up(self, answer: LookupResult) -> Event:
        params = answer.query_params
        if params is None:
            return Missed()
        if not isinstance(params, QueryParams):
            return self._misbehaved(f"a lookup finds QueryParams, found {type(params).__name__}")
        self._check_params(params)
        return Found(query_params=params, delay=self._poll.after_submit(None, self._draw))

    def _check_params(self, params: QueryParams | None) -> None:
        """Refuse query params that cannot be stored, or that hold a secret (G8)."""
        if params is None:
            return
        data = {"external_task_id": params.external_task_id, "provider_params": dict(params.provider_params)}
        codec.check_plain(data, name="query_params", cap=codec.CAPS["query_params"])
        if self._vault.seen:
            plain = codec.dumps(data)
            if self._vault.redact_bytes(plain) != plain:
                raise NotPersistableError(
                    "query_params may hold no secret; look it up at each call through context.account",
                    "query_params",
                )

    # Exceptions.

    def _raised(self, problem: BaseException) -> Event:
        poll, draw, task = self._poll, self._draw, self._task
        error = self._failure_of(problem)
        if isinstance(problem, ThrottledError):
            asked = _duration(problem.delay)
            gate, delay = self._gate(asked), poll.after_throttle(asked, draw)
            if self._kind is Kind.CANCEL:
                return CancelFailed(error=error, delay=delay, gate=gate)
            return Throttled(error=error, delay=delay, gate=gate)
        gate_delay = _duration(getattr(problem, "gate_delay", None))
        closing = None if gate_delay is None else self._gate(gate_delay)
        if self._kind in SUBMITS:
            if isinstance(problem, NotSentError):
                return NotSent(error=error, delay=poll.after_error(task.not_sent_count + 1, draw))
            if isinstance(problem, RejectedError):
                return Rejected(error=error, gate=closing)
        elif self._kind is Kind.QUERY:
            if isinstance(problem, NotReadyError):
                return NotReady(delay=poll.after_query(task.query_count + 1, _duration(problem.delay), draw))
            if isinstance(problem, JobNotFoundError):
                return NotFound(error=error, delay=poll.after_error(task.not_found_count + 1, draw))
        elif self._kind is Kind.CANCEL and isinstance(problem, RejectedError) and closing is None:
            delay = poll.after_query(task.query_count + 1, None, draw)
            return CancelAnswered(outcome="refused", delay=delay, message=codec.cut(error.message, 1024))
        return self._failed(error, closing)

    def _failed(self, error: Failure, gate: GateClose | None = None) -> Event:
        """Return the event of a step that did not work and says nothing more about it, whatever its kind."""
        poll, draw, task = self._poll, self._draw, self._task
        if self._kind in SUBMITS:
            return Unknown(error=error, delay=poll.after_error(task.submit_attempts + 1, draw))
        if self._kind is Kind.CANCEL:
            return CancelFailed(error=error, delay=poll.after_error(task.cancel_tries + 1, draw), gate=gate)
        delay = poll.after_error(task.consecutive_errors + 1, draw)
        return StepFailed(error=error, delay=delay, cap=poll.max_errors, gate=gate)

    def _misbehaved(self, problem: str, code: str = "handler_error") -> Event:
        text = self._text(f"{self._task.handler_key}: {problem}")
        return self._failed(Failure(code, text, self._phase, retryable=True))

    # Words and numbers.

    def _gate(self, asked: timedelta | None) -> GateClose:
        poll = self._poll
        delay = None if asked is None else min(asked, LONGEST_ASKED)
        return GateClose(delay=delay, start=poll.error_start, factor=poll.error_factor, cap=poll.error_cap)

    def _failure_of(self, problem: BaseException) -> Failure:
        if isinstance(problem, HandlerError):
            code, retryable = self._text(str(problem.code), 200), problem.retryable is True
            return Failure(code, self._text(_told(problem)), self._phase, retryable)
        text = ": ".join(part for part in (type(problem).__name__, _told(problem)) if part)
        return Failure("handler_error", self._text(text), self._phase, retryable=True)

    def _failure(self, error: object) -> Failure:
        if not isinstance(error, Failure):
            return Failure("failed", "the vendor says that the job failed", self._phase, retryable=False)
        phase = error.phase if isinstance(error.phase, Phase) else self._phase
        code = self._text(str(error.code), 200) or "failed"
        return Failure(code, self._text(str(error.message)), phase, error.retryable is True)

    def _word(self, word: object) -> str | None:
        return None if word is None else self._text(str(word), 1024)

    def _text(self, text: str, cap: int = codec.CAPS["error"]) -> str:
        return codec.cut(self._vault.redact(text) if self._vault.seen else text, cap)


def _told(problem: BaseException) -> str:
    """Return the text of an exception; a broken ``__str__`` must not cost the task its error."""
    try:
        return str(problem)
    except Exception as error:  # noqa: BLE001  # anything may stand in a handler's __str__
        return f"its text cannot be read ({type(error).__name__})"


def _duration(value: object) -> timedelta | None:
    """Return a delay that a handler gave, within bounds; anything but a timedelta is none."""
    return min(max(value, timedelta()), LONGEST) if isinstance(value, timedelta) else None


def _pairs(resources: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """Keep the well-formed ``(kind, id)`` pairs; a malformed one must not cost the task its answer."""
    if not resources:
        return ()
    return tuple(
        (pair[0], pair[1])
        for pair in list(resources)[:_RESOURCES]
        if isinstance(pair, tuple | list) and len(pair) == 2 and all(map(_is_id, pair))
    )


def _is_id(part: object) -> bool:
    return isinstance(part, str) and part.isprintable() and len(part) <= _RESOURCE_LENGTH
