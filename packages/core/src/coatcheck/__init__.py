"""Durable, throttled, recoverable tasks for vendor APIs that answer with a ticket.

The public names of users and handler authors. What describes work is here at once; what does work (a manager,
a worker, anything with HTTP) is imported when it is first asked for: plugins and web processes start quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coatcheck.codec import RawValue, persistent, upcast
from coatcheck.errors import (
    AmbiguousHandlerError,
    CallbackRefusedError,
    CoatcheckError,
    ConfigError,
    ConflictError,
    DedupeConflictError,
    DuplicateNameError,
    HandlerError,
    InsufficientBalanceError,
    JobNotFoundError,
    LeaseLostError,
    MaybeSentError,
    NewerRecordError,
    NoHandlerError,
    NotPersistableError,
    NotReadyError,
    NotSentError,
    PayloadTooLargeError,
    PluginError,
    RejectedError,
    RequestError,
    SelectorError,
    StoreConfigError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    SubmitUnknownError,
    TaskCanceledError,
    TaskError,
    TaskFailedError,
    TaskNotFoundError,
    ThrottledError,
    TrackingTimedOutError,
    UnknownNameError,
    UnsafeUrlError,
    ValidationError,
    VendorError,
    WaitTimeoutError,
)
from coatcheck.handler import TaskHandler
from coatcheck.hookspecs import hookimpl
from coatcheck.model import (
    Account,
    CancelResult,
    Failure,
    Limit,
    LookupResult,
    QueryContext,
    QueryParams,
    QueryResult,
    Rate,
    SubmitContext,
    SubmitOptions,
    SubmitResult,
    Task,
    TaskChange,
    TaskStatus,
    Verdict,
)
from coatcheck.policy import PollPolicy
from coatcheck.registry import Registry

if TYPE_CHECKING:
    from coatcheck.accounts import Accounts
    from coatcheck.config import Config
    from coatcheck.descriptor import Descriptor, JsonRequest, JsonResult
    from coatcheck.embedded import local
    from coatcheck.http import Call, Callback, CallbackNote, Follow, HttpHandler, Reply
    from coatcheck.manager import Manager
    from coatcheck.plugins import load_plugins
    from coatcheck.worker import Worker

    __version__: str

_LATER = {
    "Accounts": "coatcheck.accounts",
    "Call": "coatcheck.http",
    "Callback": "coatcheck.http",
    "CallbackNote": "coatcheck.http",
    "Config": "coatcheck.config",
    "Descriptor": "coatcheck.descriptor",
    "Follow": "coatcheck.http",
    "HttpHandler": "coatcheck.http",
    "JsonRequest": "coatcheck.descriptor",
    "JsonResult": "coatcheck.descriptor",
    "Manager": "coatcheck.manager",
    "Reply": "coatcheck.http",
    "Worker": "coatcheck.worker",
    "load_plugins": "coatcheck.plugins",
    "local": "coatcheck.embedded",
}

__all__ = [
    "Account",
    "Accounts",
    "AmbiguousHandlerError",
    "Call",
    "Callback",
    "CallbackNote",
    "CallbackRefusedError",
    "CancelResult",
    "CoatcheckError",
    "Config",
    "ConfigError",
    "ConflictError",
    "DedupeConflictError",
    "Descriptor",
    "DuplicateNameError",
    "Failure",
    "Follow",
    "HandlerError",
    "HttpHandler",
    "InsufficientBalanceError",
    "JobNotFoundError",
    "JsonRequest",
    "JsonResult",
    "LeaseLostError",
    "Limit",
    "LookupResult",
    "Manager",
    "MaybeSentError",
    "NewerRecordError",
    "NoHandlerError",
    "NotPersistableError",
    "NotReadyError",
    "NotSentError",
    "PayloadTooLargeError",
    "PluginError",
    "PollPolicy",
    "QueryContext",
    "QueryParams",
    "QueryResult",
    "Rate",
    "RawValue",
    "Registry",
    "RejectedError",
    "Reply",
    "RequestError",
    "SelectorError",
    "StoreConfigError",
    "StoreError",
    "StoreFullError",
    "StoreUnavailableError",
    "SubmitContext",
    "SubmitOptions",
    "SubmitResult",
    "SubmitUnknownError",
    "Task",
    "TaskCanceledError",
    "TaskChange",
    "TaskError",
    "TaskFailedError",
    "TaskHandler",
    "TaskNotFoundError",
    "TaskStatus",
    "ThrottledError",
    "TrackingTimedOutError",
    "UnknownNameError",
    "UnsafeUrlError",
    "ValidationError",
    "VendorError",
    "Verdict",
    "WaitTimeoutError",
    "Worker",
    "__version__",
    "hookimpl",
    "load_plugins",
    "local",
    "persistent",
    "upcast",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        value = import_module("importlib.metadata").version("coatcheck")
    elif name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
    else:
        raise AttributeError(f"module 'coatcheck' has no attribute {name!r}", name=name, obj=None)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
