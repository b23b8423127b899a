"""What coatcheck talks about: tasks, options, results, contexts and limits, as frozen attrs classes.

Only data and its validation live here: nothing in this module does I/O, decides a move of the life cycle or
knows a vendor. Instants are aware UTC datetimes and end in ``_at``; durations are timedeltas.
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Literal, Self

import attrs
from attrs import field, frozen

from coatcheck.errors import HandlerError, UnknownNameError, ValidationError

#: The longest duration that any option takes; larger ones are refused: they are always a slip of the unit.
LONGEST = timedelta(days=3650)

EMPTY: Mapping[str, Any] = MappingProxyType({})


class TaskStatus(StrEnum):
    """Where a task is in its life; ``design`` words, stored by value."""

    PENDING_SUBMIT = "pending_submit"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TRACKING_TIMED_OUT = "tracking_timed_out"
    SUBMIT_UNKNOWN = "submit_unknown"

    @property
    def is_end(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in ENDS

    @property
    def is_queryable(self) -> bool:
        """Whether the vendor has a job that can be asked about."""
        return self in QUERYABLE


QUERYABLE = frozenset({TaskStatus.SUBMITTED, TaskStatus.RUNNING})
ENDS = frozenset(
    {
        TaskStatus.SUCCEEDED,
        TaskStatus.FAILED,
        TaskStatus.CANCELED,
        TaskStatus.TRACKING_TIMED_OUT,
        TaskStatus.SUBMIT_UNKNOWN,
    }
)


class Verdict(StrEnum):
    """Who ended a task."""

    VENDOR = "vendor"
    USER = "user"
    NOBODY = "nobody"


class Step(StrEnum):
    """The vendor call that a task waits for."""

    SUBMIT = "submit"
    RESUBMIT = "resubmit"
    LOOKUP = "lookup"
    QUERY = "query"
    CANCEL = "cancel"

    @property
    def side(self) -> "Side":
        """The side whose permits and gates this step uses."""
        return Side.SUBMIT if self in (Step.SUBMIT, Step.RESUBMIT) else Side.QUERY


class Side(StrEnum):
    """The two kinds of vendor calls that limits tell apart."""

    SUBMIT = "submit"
    QUERY = "query"


class Phase(StrEnum):
    """Where a failure happened."""

    SUBMIT = "submit"
    LOOKUP = "lookup"
    QUERY = "query"
    CANCEL = "cancel"
    RESULT = "result"
    TRACKING = "tracking"


class Job(IntEnum):
    """What the store counts for a task's job at the vendor."""

    #: No job exists: nothing was sent, or the vendor gave a verdict.
    NONE = 0
    #: A job exists or may exist: it holds an account slot and a tenant slot.
    LIVE = 1
    #: The task ended without a verdict: the job keeps its account slot for ``max_job_time``.
    GHOST = 2


class CancelFlag(IntEnum):
    """The flag that lies beside a record."""

    NONE = 0
    #: The user wants the task stopped; the next step deals with it.
    REQUESTED = 1
    #: The vendor was asked and will not be asked again.
    HANDLED = 2


class WaitReason(StrEnum):
    """Why a task is waiting."""

    NOT_DUE = "not_due"
    PAUSED = "paused"
    GATE = "gate"
    RATE = "rate"
    ACCOUNT_BUSY = "account_busy"
    TENANT_QUOTA = "tenant_quota"
    NO_HANDLER = "no_handler"
    UNKNOWN_ACCOUNT = "unknown_account"
    QUARANTINED = "quarantined"
    NEWER_RECORD = "newer_record"
    #: A worker holds it right now.
    LEASED = "leased"
    #: Nothing stands in its way: it goes with the next free place.
    READY = "ready"
    ENDED = "ended"


def check_aware(value: object, name: str) -> datetime:
    """Return ``value`` in UTC, or refuse a naive datetime and anything else.

    Raises:
        ValidationError: ``value`` is not an aware datetime, or not in the years 1900 to 8999.
    """
    if not isinstance(value, datetime):
        raise ValidationError(f"{name} must be an aware datetime, found {value!r}", name)
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValidationError(
            f"{name} must be an aware datetime, found the naive {value.isoformat()}; "
            "write datetime.now(UTC) or add tzinfo=",
            name,
        )
    if not 1900 <= value.year < 9000:
        # Deadlines and time zones are added to it, which must not leave the calendar.
        raise ValidationError(f"{name} must be in the years 1900 to 8999, found {value.isoformat()}", name)
    return value.astimezone(UTC)


def check_duration(value: object, name: str, *, zero: bool = False, none: bool = False) -> None:
    """Refuse whatever is not a timedelta in the allowed range.

    Args:
        value: what was given.
        name: the option's name, for the message.
        zero: whether a duration of zero is allowed.
        none: whether ``None`` (no limit) is allowed.

    Raises:
        ValidationError: with what was expected and what was found.
    """
    if value is None and none:
        return
    expected = ("a timedelta of 0 or more" if zero else "a positive timedelta") + (" or None" if none else "")
    if not isinstance(value, timedelta):
        raise ValidationError(f"{name} must be {expected}, found {value!r}; write timedelta(seconds=…)", name)
    if value < timedelta() or (value == timedelta() and not zero) or value > LONGEST:
        raise ValidationError(f"{name} must be {expected} up to {LONGEST.days} days, found {value!r}", name)


def check_whole(value: object, name: str, low: int, high: int) -> None:
    """Refuse whatever is not a whole number between ``low`` and ``high`` (both included).

    Raises:
        ValidationError: with what was expected and what was found.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValidationError(f"{name} must be a whole number from {low} to {high}, found {value!r}", name)


# Without control characters, which spoil logs, and lone surrogates, which no store can write.
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}")


def check_name(value: object, name: str, *, blank: bool = False) -> None:
    """Refuse whatever is not a text of 1 to 200 printable characters (or blank, where that is a name too).

    Raises:
        ValidationError: with what was expected and what was found.
    """
    if blank and value == "":
        return
    if not isinstance(value, str) or not value.strip() or not _NAME.fullmatch(value):
        raise ValidationError(
            f"{name} must be a text of 1 to 200 characters without control characters, found {value!r}", name
        )


@frozen
class Failure:
    """Why something went wrong, as data."""

    code: str
    message: str
    phase: Phase
    retryable: bool = False


@frozen(init=False)
class QueryParams:
    """All that a later query needs: the vendor's id for the job, and whatever else the handler wants back.

    ``QueryParams("job-1", region="cn-beijing")``; provider params are JSON values (text, numbers, booleans,
    None, lists, dicts) and may not hold secrets.

    Raises:
        HandlerError: when the external task id is not a text or is blank.
    """

    external_task_id: str
    provider_params: Mapping[str, Any]

    def __init__(self, external_task_id: str, /, **provider_params: Any) -> None:
        if not isinstance(external_task_id, str) or not external_task_id.strip():
            raise HandlerError(
                f"an external task id must be a non-blank text, found {external_task_id!r}; "
                "read the vendor's id for the job from its reply",
                "no_external_task_id",
            )
        self.__attrs_init__(external_task_id, MappingProxyType(provider_params))

    def __getitem__(self, name: str) -> Any:
        """Return one provider param; a missing one is a ``KeyError``."""
        return self.provider_params[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return one provider param, or ``default``."""
        return self.provider_params.get(name, default)


def _usage(value: Mapping[str, int] | None) -> Mapping[str, int] | None:
    if value is None:
        return None
    for unit, amount in value.items():
        check_name(unit, "a usage unit")
        check_whole(amount, f"usage {unit!r}", 0, 2**53)
    return MappingProxyType(dict(value))


def _progress(value: float | None) -> float | None:
    """Keep a progress of 0 to 100; anything else is unknown, never invented."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        return None
    return float(value)


def _resources(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(pairs)


@frozen(kw_only=True)
class _Answer:
    """What submit and query results have in common."""

    status: TaskStatus
    result: Any = None
    error: Failure | None = None
    progress: float | None = field(default=None, converter=_progress)
    #: The vendor's own word for the state, kept raw.
    provider_status: str | None = None
    #: Unit → whole number, for accounting.
    usage: Mapping[str, int] | None = field(default=None, converter=_usage)
    #: ``(kind, id)`` pairs that the vendor handed out.
    resources: tuple[tuple[str, str], ...] = field(default=(), converter=_resources)
    #: How long the vendor keeps the result.
    expires_after: timedelta | None = None
    #: The earliest next query that the vendor asked for.
    query_after: timedelta | None = None

    @classmethod
    def succeeded(
        cls,
        result: Any,
        *,
        usage: Mapping[str, int] | None = None,
        resources: Iterable[tuple[str, str]] = (),
        expires_after: timedelta | None = None,
        provider_status: str | None = None,
    ) -> Self:
        """The vendor is done and this is the result (a registered type)."""
        return cls(
            status=TaskStatus.SUCCEEDED,
            result=result,
            usage=usage,
            resources=resources,
            expires_after=expires_after,
            provider_status=provider_status,
        )


@frozen(kw_only=True)
class SubmitResult(_Answer):
    """What a submit came to."""

    #: Also of a job that was done at once: with them its result can be fetched again.
    query_params: QueryParams | None = None

    @classmethod
    def succeeded(
        cls,
        result: Any,
        *,
        query_params: QueryParams | None = None,
        usage: Mapping[str, int] | None = None,
        resources: Iterable[tuple[str, str]] = (),
        expires_after: timedelta | None = None,
        provider_status: str | None = None,
    ) -> Self:
        """The vendor did it at once; with query params ``refresh_result`` can ask about the job later."""
        return cls(
            status=TaskStatus.SUCCEEDED,
            result=result,
            query_params=query_params,
            usage=usage,
            resources=resources,
            expires_after=expires_after,
            provider_status=provider_status,
        )

    @classmethod
    def submitted(
        cls,
        query_params: QueryParams,
        *,
        provider_status: str | None = None,
        query_after: timedelta | None = None,
        resources: Iterable[tuple[str, str]] = (),
    ) -> "SubmitResult":
        """The vendor took the job."""
        return cls(
            status=TaskStatus.SUBMITTED,
            query_params=query_params,
            provider_status=provider_status,
            query_after=query_after,
            resources=resources,
        )

    @classmethod
    def running(
        cls,
        query_params: QueryParams,
        progress: float | None = None,
        *,
        provider_status: str | None = None,
        query_after: timedelta | None = None,
        resources: Iterable[tuple[str, str]] = (),
    ) -> "SubmitResult":
        """The vendor took the job and works on it already."""
        return cls(
            status=TaskStatus.RUNNING,
            query_params=query_params,
            progress=progress,
            provider_status=provider_status,
            query_after=query_after,
            resources=resources,
        )

    @classmethod
    def failed(
        cls,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        usage: Mapping[str, int] | None = None,
        provider_status: str | None = None,
    ) -> "SubmitResult":
        """The vendor took the job and it failed at once."""
        return cls(
            status=TaskStatus.FAILED,
            error=Failure(code, message, Phase.SUBMIT, retryable),
            usage=usage,
            provider_status=provider_status,
        )


@frozen(kw_only=True)
class QueryResult(_Answer):
    """What a query saw."""

    #: Replaces all provider params; the external task id must stay the same.
    next_query_params: QueryParams | None = None

    @classmethod
    def submitted(
        cls,
        *,
        provider_status: str | None = None,
        next_query_params: QueryParams | None = None,
        query_after: timedelta | None = None,
    ) -> "QueryResult":
        """The vendor has the job but has not begun."""
        return cls(
            status=TaskStatus.SUBMITTED,
            provider_status=provider_status,
            next_query_params=next_query_params,
            query_after=query_after,
        )

    @classmethod
    def running(
        cls,
        progress: float | None = None,
        *,
        provider_status: str | None = None,
        next_query_params: QueryParams | None = None,
        query_after: timedelta | None = None,
        resources: Iterable[tuple[str, str]] = (),
    ) -> "QueryResult":
        """The vendor works on the job; also the answer for every word that the handler does not know."""
        return cls(
            status=TaskStatus.RUNNING,
            progress=progress,
            provider_status=provider_status,
            next_query_params=next_query_params,
            query_after=query_after,
            resources=resources,
        )

    @classmethod
    def failed(
        cls,
        code: str,
        message: str,
        retryable: bool = False,  # noqa: FBT001, FBT002  # reads well in order: code, message, retryable
        *,
        usage: Mapping[str, int] | None = None,
        provider_status: str | None = None,
    ) -> "QueryResult":
        """The vendor says that the job failed."""
        return cls(
            status=TaskStatus.FAILED,
            error=Failure(code, message, Phase.QUERY, retryable),
            usage=usage,
            provider_status=provider_status,
        )

    @classmethod
    def canceled(
        cls, *, usage: Mapping[str, int] | None = None, provider_status: str | None = None
    ) -> "QueryResult":
        """The vendor says that the job was canceled."""
        return cls(status=TaskStatus.CANCELED, usage=usage, provider_status=provider_status)


@frozen
class CancelResult:
    """What the vendor said to a cancel: done, accepted (it will stop) or refused (it will not)."""

    outcome: Literal["done", "accepted", "refused"]
    usage: Mapping[str, int] | None = field(default=None, converter=_usage)
    message: str = ""

    @classmethod
    def done(cls, usage: Mapping[str, int] | None = None) -> "CancelResult":
        """The job is stopped."""
        return cls("done", usage)

    @classmethod
    def accepted(cls) -> "CancelResult":
        """The vendor will stop the job; queries go on until it says so."""
        return cls("accepted")

    @classmethod
    def refused(cls, message: str = "") -> "CancelResult":
        """The vendor will not stop the job."""
        return cls("refused", None, message)


@frozen
class LookupResult:
    """Whether the vendor has a job for our idempotency key."""

    query_params: QueryParams | None

    @classmethod
    def found(cls, query_params: QueryParams) -> "LookupResult":
        """The job exists."""
        return cls(query_params)

    @classmethod
    def not_found(cls) -> "LookupResult":
        """The vendor knows of no such job."""
        return cls(None)


@frozen
class Account:
    """A named set of vendor credentials, looked up at each call; the name is stored, the secret never is."""

    name: str
    _lookup: Callable[[str], str] = field(repr=False, eq=False)
    #: The secrets that were handed out so far, where whoever made the account keeps them.
    handed_out: list[str] | None = field(default=None, repr=False, eq=False)

    def secret(self, part: str = "secret") -> str:
        """Return the named part of the credentials as it is now.

        Raises:
            ConfigError: when the account has no such part.
        """
        return self._lookup(part)

    def hide(self, secret: str) -> None:
        """Keep a further secret, such as a token that was made of these, out of all that is written."""
        if self.handed_out is not None:
            self.handed_out.append(secret)


@frozen(kw_only=True)
class SubmitContext:
    """What a handler may know while it submits or looks up."""

    task_id: str
    idempotency_key: str
    #: The store's time.
    now: datetime
    metadata: Mapping[str, Any] = EMPTY
    account: Account
    #: Performs calls (a ``coatcheck.transport.Transport``); typed loosely: models stand below transports.
    transport: Any = field(default=None, repr=False)


@frozen(kw_only=True)
class QueryContext:
    """What a handler may know while it queries or cancels."""

    task_id: str
    #: Queries finished before this call, errors included.
    query_count: int = 0
    consecutive_errors: int = 0
    created_at: datetime
    deadline_at: datetime
    #: The store's time.
    now: datetime
    metadata: Mapping[str, Any] = EMPTY
    account: Account
    #: Performs calls (a ``coatcheck.transport.Transport``).
    transport: Any = field(default=None, repr=False)


@frozen
class HandlerTraits:
    """What the life cycle must know of a handler, copied to the task so that any worker can recover it."""

    resubmit: Literal["never", "idempotent"] = "never"
    has_lookup: bool = False
    has_cancel: bool = False
    lookup_delay: timedelta = timedelta(seconds=120)
    max_job_time: timedelta = timedelta(hours=1)
    not_found_limit: int = 3
    #: Until when the request's params are kept: till the task ends SUCCEEDED or CANCELED, or only until the
    #: vendor has a job.
    keep_params: Literal["ended", "accepted"] = "ended"


@frozen(kw_only=True)
class SubmitOptions:
    """How one task is to be run. Every field has a default; bad values are refused when this is made.

    Raises:
        ValidationError: a value is out of its range or of the wrong type.
    """

    #: Which handler; ``None`` lets the request's type (and the selector) decide.
    handler_key: str | None = None
    #: The vendor dimension for limits; ``None`` takes the handler's.
    provider_key: str | None = None
    #: Name of the credentials; ``None`` takes the handler's.
    account: str | None = None
    tenant: str = ""
    #: −1000 … 1000, higher first.
    priority: int = 0
    #: Wait this long before the submit; not together with ``run_at``.
    delay: timedelta = timedelta()
    #: Submit at this time; a time in the past means now.
    run_at: datetime | None = None
    #: From the scheduled time to the last query.
    deadline: timedelta = timedelta(hours=24)
    #: From the scheduled time to the submit; ``None`` leaves only the deadline.
    queue_deadline: timedelta | None = None
    #: How long a job may show no change; ``None`` for ever.
    stall_limit: timedelta | None = None
    metadata: Mapping[str, Any] = field(default=EMPTY)
    dedupe_key: str | None = None
    on_duplicate: Literal["return", "retry_failed"] = "return"
    #: Sent to vendors that honour one; ``None`` takes the task id.
    idempotency_key: str | None = None
    #: Ask the vendor to stop the job when the deadline passes.
    cancel_on_deadline: bool = False
    #: A hold on a ledger account; refused by stores without a ledger.
    charge: Any = None

    def __attrs_post_init__(self) -> None:
        for name in ("handler_key", "provider_key", "account", "dedupe_key", "idempotency_key"):
            if getattr(self, name) is not None:
                check_name(getattr(self, name), name)
        check_name(self.tenant, "tenant", blank=True)
        check_whole(self.priority, "priority", -1000, 1000)
        check_duration(self.delay, "delay", zero=True)
        if self.run_at is not None:
            object.__setattr__(self, "run_at", check_aware(self.run_at, "run_at"))
            if self.delay:
                raise ValidationError("give either delay or run_at, found both; drop one of them", "run_at")
        check_duration(self.deadline, "deadline")
        check_duration(self.queue_deadline, "queue_deadline", none=True)
        check_duration(self.stall_limit, "stall_limit", none=True)
        if not isinstance(self.metadata, Mapping):
            raise ValidationError(f"metadata must be a mapping, found {self.metadata!r}", "metadata")
        try:
            metadata = copy.deepcopy(dict(self.metadata))
        except Exception as error:
            raise ValidationError(
                "metadata must hold texts, numbers, booleans, None, lists and dicts, "
                f"found something that cannot be copied: {error}; pass its name or id",
                "metadata",
            ) from error
        object.__setattr__(self, "metadata", MappingProxyType(metadata))
        if self.on_duplicate not in ("return", "retry_failed"):
            raise ValidationError(
                f"on_duplicate must be 'return' or 'retry_failed', found {self.on_duplicate!r}",
                "on_duplicate",
            )
        if not isinstance(self.cancel_on_deadline, bool):
            raise ValidationError(
                f"cancel_on_deadline must be True or False, found {self.cancel_on_deadline!r}",
                "cancel_on_deadline",
            )

    @classmethod
    def of(cls, **options: Any) -> "SubmitOptions":
        """Build options from keywords; an unknown name is refused with the closest one.

        Raises:
            UnknownNameError: no option has that name.
            ValidationError: a value is not allowed.
        """
        known = [a.name for a in attrs.fields(cls)]
        for name in options:
            if name not in known:
                raise UnknownNameError.of("option", name, known)
        return cls(**options)


@frozen
class Rate:
    """At most ``count`` permits in any window of length ``per``, by the store's clock.

    Raises:
        ValidationError: ``count`` is not a whole number from 1 to 1,000,000 or ``per`` is not a positive
            timedelta.
    """

    count: int
    per: timedelta = timedelta(seconds=1)

    def __attrs_post_init__(self) -> None:
        check_whole(self.count, "a rate's count", 1, 1_000_000)
        check_duration(self.per, "a rate's per")


#: Stands for every name of a dimension that has no limit of its own.
ANY = "*"


@frozen(kw_only=True)
class Limit:
    """One limit of a namespace: a rate, or a number of live jobs.

    A rate is for a ``provider``, an ``account`` or both, and for one ``side``. Live jobs (``live``) are for
    an ``account`` or a ``tenant``. ``"*"`` is the default for names without a limit of their own.
    ``rate=None`` and ``live=None`` lift the limit.

    Raises:
        ValidationError: the combination has no meaning.
    """

    provider: str | None = None
    account: str | None = None
    tenant: str | None = None
    side: Side | None = None
    rate: Rate | None = None
    live: int | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("provider", "account"):
            if getattr(self, name) is not None:
                check_name(getattr(self, name), name)
        if self.tenant is not None:
            check_name(self.tenant, "tenant", blank=True)
        if self.live is not None:
            check_whole(self.live, "live", 1, 1_000_000)
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise ValidationError(
                f"rate must be a Rate or None, found {self.rate!r}; write Rate(5, timedelta(seconds=1))",
                "rate",
            )
        if self.side is not None:
            if self.side not in tuple(Side):
                raise ValidationError(f"side must be 'submit' or 'query', found {self.side!r}", "side")
            object.__setattr__(self, "side", Side(self.side))
            if (
                self.tenant is not None
                or self.live is not None
                or (self.provider is None and self.account is None)
            ):
                raise ValidationError(
                    "a rate is for a provider, an account or both; live jobs have no side: "
                    f"found {self!r}; drop side for live jobs, or tenant for a rate",
                    "limit",
                )
        elif (
            self.rate is not None
            or self.provider is not None
            or (self.account is None) == (self.tenant is None)
        ):
            raise ValidationError(
                "live jobs are limited for one account or one tenant, a rate needs side='submit' or "
                f"side='query': found {self!r}",
                "limit",
            )

    @property
    def subject(self) -> tuple[str, str | None, str | None, str | None]:
        """What is limited: two limits with equal subjects replace each other."""
        return (self.side or "live", self.provider, self.account, self.tenant)


@frozen
class Pause:
    """A provider, account or tenant whose submits are stopped."""

    kind: Literal["provider", "account", "tenant"]
    name: str
    by: str
    reason: str
    since: datetime


@frozen
class Observation:
    """What the vendor said last, and when; kept apart from the task's own status."""

    status: TaskStatus
    progress: float | None
    provider_status: str | None
    at: datetime


@frozen(kw_only=True, slots=False)
class Task:
    """Our durable record of one job at a vendor. Reading it changes nothing."""

    id: str
    status: TaskStatus
    #: Rises at each commit.
    version: int = 0
    #: Which life of the task this is; retry, resume, resolve and an accepted receipt start a new one.
    generation: int = 1
    verdict: Verdict | None = None
    handler_key: str
    provider_key: str
    account: str
    tenant: str = ""
    priority: int = 0
    request_type: str = ""
    idempotency_key: str = ""
    dedupe_key: str | None = None
    metadata: Mapping[str, Any] = EMPTY
    cancel_on_deadline: bool = False
    traits: HandlerTraits = HandlerTraits()
    # lengths
    deadline: timedelta = timedelta(hours=24)
    queue_deadline: timedelta | None = None
    stall_limit: timedelta | None = None
    # instants, by the store's clock
    created_at: datetime
    scheduled_at: datetime
    deadline_at: datetime
    queue_deadline_at: datetime | None = None
    stall_at: datetime | None = None
    due_at: datetime | None = None
    updated_at: datetime
    submitted_at: datetime | None = None
    finished_at: datetime | None = None
    # what it waits for
    next_step: Step | None = Step.SUBMIT
    cancel: CancelFlag = CancelFlag.NONE
    is_leased: bool = False
    #: Claims since the last commit: how many workers died holding it.
    claims: int = 0
    # what is known of the job
    query_params: QueryParams | None = None
    progress: float | None = None
    provider_status: str | None = None
    last_observation: Observation | None = None
    result: Any = None
    result_expires_at: datetime | None = None
    result_gone: bool = False
    error: Failure | None = None
    usage: Mapping[str, int] | None = None
    resources: tuple[tuple[str, str], ...] = ()
    # counters of this generation
    submit_attempts: int = 0
    not_sent_count: int = 0
    query_count: int = 0
    consecutive_errors: int = 0
    not_found_count: int = 0
    lookup_misses: int = 0
    cancel_tries: int = 0
    #: Late or refused facts that changed nothing, newest last, at most 10.
    notes: tuple[str, ...] = ()
    #: The dedupe key led to this task instead of a new one; true only in the answer of that submit.
    is_replay: bool = False
    #: Fields of a newer version, kept and written back.
    unknown_fields: Mapping[str, Any] = field(default=EMPTY, repr=False)

    @property
    def external_task_id(self) -> str | None:
        """The vendor's id for the job, if it gave one."""
        return self.query_params.external_task_id if self.query_params else None

    def evolve(self, **changes: Any) -> "Task":
        """Return a copy with some fields changed; cheaper than ``attrs.evolve``: this runs at each step."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__, **changes)
        return clone


@frozen(kw_only=True)
class TaskChange:
    """What observers hear of: a task was added, changed its status or began a new generation."""

    task_id: str
    #: ``None`` for a task that was just added.
    from_status: TaskStatus | None
    to_status: TaskStatus
    #: The store's time.
    at: datetime
    tenant: str
    handler_key: str
    generation: int

    @classmethod
    def of(cls, before: Task | None, after: Task) -> "TaskChange":
        """Describe the step from ``before`` (``None``: a new task) to ``after``."""
        return cls(
            task_id=after.id,
            from_status=None if before is None else before.status,
            to_status=after.status,
            at=after.updated_at,
            tenant=after.tenant,
            handler_key=after.handler_key,
            generation=after.generation,
        )
