"""The one tree of exceptions that people see.

Every class carries fields, survives pickling, and says what was expected, what was found and what to do.
Nothing here may import another coatcheck module, and no message may hold a secret or a URL with a token in
it. The classes have no slots: with them, pickling would lose the notes of an exception.
"""

import difflib
from collections.abc import Iterable
from datetime import timedelta

import attrs


def closest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name nearest to ``name``, or an empty text."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


@attrs.define(slots=False)
class CoatcheckError(Exception):
    """The root of every error that coatcheck raises on purpose."""

    message: str

    def __str__(self) -> str:
        return self.message


# Configuration.


@attrs.define(slots=False)
class ConfigError(CoatcheckError):
    """Something set up once (a file, an option, a plugin, a limit) is wrong; fix it and start again."""


@attrs.define(slots=False)
class UnknownNameError(ConfigError):
    """A name that nobody registered was asked for."""

    kind: str = ""
    name: str = ""
    known: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, name: object, known: Iterable[str], hint: str = "") -> "UnknownNameError":
        """Build the error for a ``kind`` ("handler", …) called ``name``; ``hint`` says where to get it."""
        names = tuple(sorted(known))
        listed = ", ".join(names) or "none"
        text = f"unknown {kind} {name!r}{closest(str(name), names)} (known: {listed})"
        return cls(f"{text}. {hint}" if hint else text, kind, str(name), names)


@attrs.define(slots=False)
class DuplicateNameError(ConfigError):
    """Two registrations claim the same name."""

    kind: str = ""
    name: str = ""

    @classmethod
    def of(cls, kind: str, name: str, first: object, second: object) -> "DuplicateNameError":
        """Build the error for the name that ``first`` holds and ``second`` asked for."""
        return cls(
            f"{kind} {name!r} is registered twice: by {first!r} and by {second!r}; "
            "rename or remove one of them",
            kind,
            name,
        )


@attrs.define(slots=False)
class PluginError(ConfigError):
    """A plugin could not be loaded or broke a rule of the plugin door."""

    plugin: str = ""
    distribution: str = ""


@attrs.define(slots=False)
class SelectorError(ConfigError):
    """A selector is set up wrongly or chose something that is not a candidate."""


@attrs.define(slots=False)
class StoreConfigError(ConfigError):
    """A store URL or a server's settings cannot be used."""

    url: str = ""


# Requests that are refused before anything is stored.


@attrs.define(slots=False)
class RequestError(CoatcheckError):
    """A request was refused; nothing was stored."""


@attrs.define(slots=False)
class NotPersistableError(RequestError):
    """A value holds something that another machine could not restore."""

    path: str = ""
    found: str = ""


@attrs.define(slots=False)
class PayloadTooLargeError(RequestError):
    """A payload is over the cap of its field."""

    field: str = ""
    size: int = 0
    limit: int = 0

    @classmethod
    def of(cls, field: str, size: int, limit: int) -> "PayloadTooLargeError":
        """Build the error for ``field`` of ``size`` bytes over its cap of ``limit`` bytes."""
        return cls(
            f"{field} may take at most {limit} bytes, found {size}; upload the data first and pass its URL",
            field,
            size,
            limit,
        )


@attrs.define(slots=False)
class ValidationError(RequestError):
    """A request or an option has a value that is not allowed."""

    field: str = ""


@attrs.define(slots=False)
class NoHandlerError(RequestError):
    """No registered handler accepts this type of request."""

    request_type: str = ""


@attrs.define(slots=False)
class AmbiguousHandlerError(RequestError):
    """Several handlers accept the request and no selector was configured."""

    request_type: str = ""
    keys: tuple[str, ...] = ()


@attrs.define(slots=False)
class DedupeConflictError(RequestError):
    """The dedupe key is taken by a task with another request."""

    dedupe_key: str = ""
    task_id: str = ""


@attrs.define(slots=False)
class InsufficientBalanceError(RequestError):
    """A ledger account cannot cover the hold."""

    account: str = ""
    needed: int = 0
    available: int = 0


# What became of a task.


@attrs.define(slots=False)
class TaskError(CoatcheckError):
    """A task is missing, or did not end the way that the caller asked for."""

    task_id: str = ""
    external_task_id: str | None = None


@attrs.define(slots=False)
class TaskNotFoundError(TaskError):
    """No such task, or a task of another tenant: the two look the same on purpose."""


@attrs.define(slots=False)
class TaskFailedError(TaskError):
    """The task ended FAILED."""

    code: str = ""
    phase: str = ""
    retryable: bool = False


@attrs.define(slots=False)
class TaskCanceledError(TaskError):
    """The task ended CANCELED."""


@attrs.define(slots=False)
class TrackingTimedOutError(TaskError):
    """The task ended TRACKING_TIMED_OUT: we stopped looking, the vendor's job may go on."""

    code: str = ""


@attrs.define(slots=False)
class SubmitUnknownError(TaskError):
    """The task ended SUBMIT_UNKNOWN: whether the vendor has a job is not known; see ``resolve``."""

    code: str = ""


@attrs.define(slots=False)
class WaitTimeoutError(TaskError):
    """The caller's patience ended before the task did; the task itself goes on."""

    waited: timedelta = timedelta()
    status: str = ""


# Stores.


@attrs.define(slots=False)
class StoreError(CoatcheckError):
    """The store could not do what was asked."""


@attrs.define(slots=False)
class StoreUnavailableError(StoreError):
    """The store does not answer; the call may have run or not."""


@attrs.define(slots=False)
class StoreFullError(StoreError):
    """The store has no room left; nothing was stored."""


@attrs.define(slots=False)
class LeaseLostError(StoreError):
    """The lease that the call relied on belongs to somebody else now."""

    task_id: str = ""


@attrs.define(slots=False)
class ConflictError(StoreError):
    """The task moved since it was read; read it again."""

    task_id: str = ""


@attrs.define(slots=False)
class NewerRecordError(StoreError):
    """The record was written by a newer version; upgrade this process to read it."""

    task_id: str = ""
    found: int = 0
    readable: int = 0


# What handlers raise.


@attrs.define(slots=False)
class HandlerError(CoatcheckError):
    """A handler broke its contract, or could not do its step."""

    code: str = "handler_error"
    retryable: bool = True


@attrs.define(slots=False)
class NotSentError(HandlerError):
    """The request certainly did not reach the vendor: a submit may be tried again."""

    code: str = "not_sent"


@attrs.define(slots=False)
class MaybeSentError(HandlerError):
    """The request may have reached the vendor: the outcome of a submit is unknown."""

    code: str = "maybe_sent"


@attrs.define(slots=False)
class RejectedError(HandlerError):
    """The vendor refused the request for certain: no job exists."""

    code: str = "rejected"
    retryable: bool = False
    gate_delay: timedelta | None = None


@attrs.define(slots=False)
class ThrottledError(HandlerError):
    """The vendor asks for patience; ``delay`` is how long, if it said so."""

    code: str = "throttled"
    retryable: bool = True
    delay: timedelta | None = None


@attrs.define(slots=False)
class NotReadyError(HandlerError):
    """The vendor has the job but no answer yet; look again after ``delay``."""

    code: str = "not_ready"
    retryable: bool = True
    delay: timedelta | None = None


@attrs.define(slots=False)
class JobNotFoundError(HandlerError):
    """The vendor does not know the job."""

    code: str = "not_found"


@attrs.define(slots=False)
class VendorError(HandlerError):
    """The vendor's reply cannot be used (an error page, a broken body, an unexpected status)."""

    code: str = "vendor_error"
    http_status: int | None = None
    gate_delay: timedelta | None = None


@attrs.define(slots=False)
class UnsafeUrlError(HandlerError):
    """An address that came from a vendor or a request leads where no call may go."""

    code: str = "unsafe_url"
    retryable: bool = False


@attrs.define(slots=False)
class CallbackRefusedError(HandlerError):
    """A callback is not known to be the vendor's, is too old, or cannot be read; nothing was changed."""

    code: str = "callback_refused"
    retryable: bool = False
