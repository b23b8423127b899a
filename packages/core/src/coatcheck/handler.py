"""``TaskHandler[P]``: the adapter for one vendor operation, and how its params type is found.

A handler describes two calls and does one thing in each; loops, sleeps and retries belong to the worker.
Nothing here does I/O.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin

from attrs import frozen

from coatcheck.errors import ConfigError, ValidationError
from coatcheck.model import (
    HandlerTraits,
    Limit,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    check_duration,
    check_name,
    check_whole,
)
from coatcheck.policy import PollPolicy

P = TypeVar("P")


class TaskHandler(ABC, Generic[P]):
    """One vendor operation: submit once, query many times.

    Subclasses set ``key`` and define ``submit`` and ``query``, either of which may be ``async def``. Three
    more methods are capabilities, there when a subclass defines them: ``cancel(params: QueryParams, context:
    QueryContext) -> CancelResult``, ``lookup(params: P, context: SubmitContext) -> LookupResult``, and
    ``read_callback(callback: Callback, context: QueryContext) -> CallbackNote``, which verifies what the
    vendor sent by itself and says which job it is about; it raises ``CallbackRefusedError`` where it is not
    the vendor's.

    The others may raise ``NotSentError``, ``RejectedError``, ``ThrottledError``, ``NotReadyError`` or
    ``JobNotFoundError`` to say what happened; any other exception makes a submit's outcome unknown and counts
    as an error of a query.
    """

    #: Stable and unique, like ``"ocr:gitee"``; stored with every task.
    key: str
    #: The type of request, where the generic declaration does not say it.
    params_type: ClassVar[Any] = None
    #: The vendor dimension of limits; the key if ``None``.
    provider: str | None = None
    #: Name of the account used when the request names none.
    account: str = "default"
    #: Part of that account → environment variables in which the vendor's users customarily have it, like
    #: ``{"secret": ("VENDOR_API_KEY",)}``; read while the account is configured nowhere else.
    account_env: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    #: "idempotent" only where the vendor honours our idempotency key: a submit whose reply was lost is then
    #: sent again.
    resubmit: Literal["never", "idempotent"] = "never"
    poll: PollPolicy = PollPolicy()
    #: The hard limit of a whole step.
    call_limit: timedelta = timedelta(seconds=120)
    #: From a lost submit to the first lookup; ``call_limit`` if ``None``, and never less.
    lookup_delay: timedelta | None = None
    #: How long a job whose end nobody saw keeps its account slot.
    max_job_time: timedelta = timedelta(hours=1)
    #: "Not found" answers in a row after which the job counts as lost.
    not_found_limit: int = 3
    #: Whether ``file://`` URLs to readable files are accepted.
    local_files: bool = False
    #: When stored params are dropped: at SUCCEEDED or CANCELED, or as soon as the vendor has the job (then
    #: ``retry`` is impossible).
    keep_params: Literal["ended", "accepted"] = "ended"
    #: Written by a worker at its start where the store has no such limit yet.
    default_limits: tuple[Limit, ...] = ()

    def validate(self, params: P) -> None:  # optional: most handlers accept what their type accepts
        """Refuse a request before it is stored, by raising ``ValidationError``; called by the submitter."""

    @abstractmethod
    def submit(self, params: P, context: SubmitContext) -> SubmitResult | Awaitable[SubmitResult]:
        """Create the job; called at most once per generation unless ``resubmit`` is "idempotent"."""

    @abstractmethod
    def query(self, params: QueryParams, context: QueryContext) -> QueryResult | Awaitable[QueryResult]:
        """Look at the job once; called many times and harmless when repeated."""

    @property
    def provider_key(self) -> str:
        """The vendor dimension used by limits."""
        return self.provider or self.key

    @property
    def has_cancel(self) -> bool:
        """Whether the vendor can be asked to stop a job."""
        return callable(getattr(self, "cancel", None))

    @property
    def has_lookup(self) -> bool:
        """Whether the vendor can be asked for the job of an idempotency key."""
        return callable(getattr(self, "lookup", None))

    @property
    def has_callback(self) -> bool:
        """Whether the vendor's callbacks are understood."""
        return callable(getattr(self, "read_callback", None))

    @property
    def traits(self) -> HandlerTraits:
        """What is copied to each task."""
        return HandlerTraits(
            resubmit=self.resubmit,
            has_lookup=self.has_lookup,
            has_cancel=self.has_cancel,
            lookup_delay=max(self.lookup_delay or self.call_limit, self.call_limit),
            max_job_time=self.max_job_time,
            not_found_limit=self.not_found_limit,
            keep_params=self.keep_params,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'key', '?')!r}>"


#: Any handler, whatever its params.
AnyHandler = TaskHandler[Any]


def check_handler(handler: object) -> AnyHandler:
    """Return ``handler``, or refuse an object that is not a well-formed handler.

    Raises:
        ConfigError: with the attribute that is wrong and how to write it.
    """
    if isinstance(handler, type):
        raise ConfigError(
            f"expected a handler instance, found the class {handler.__name__}; have you forgotten the ()?"
        )
    if not isinstance(handler, TaskHandler):
        raise ConfigError(
            f"expected a TaskHandler instance, found {handler!r}; "
            "derive its class from TaskHandler[YourRequest]"
        )
    if not isinstance(getattr(handler, "key", None), str):
        raise ConfigError(f'{type(handler).__name__} has no key; write key = "vendor:operation" in the class')
    try:
        _check_attributes(handler)
    except ValidationError as error:
        # A handler is set up once; whoever registers it made the mistake, not whoever submits.
        raise ConfigError(error.message) from None
    return handler


def _check_attributes(handler: AnyHandler) -> None:
    key = handler.key
    check_name(key, f"{type(handler).__name__}: key")
    check_name(handler.account, f"{key}: account")
    customary = handler.account_env
    if not isinstance(customary, Mapping) or not all(
        isinstance(names, tuple) for names in customary.values()
    ):
        raise ConfigError(
            f"{key}: account_env must map parts to tuples of variables, found {customary!r}; "
            'write {"secret": ("VENDOR_API_KEY",)}'
        )
    if handler.provider is not None:
        check_name(handler.provider, f"{key}: provider")
    for name, allowed in (("resubmit", ("never", "idempotent")), ("keep_params", ("ended", "accepted"))):
        if getattr(handler, name) not in allowed:
            raise ConfigError(f"{key}: {name} must be one of {allowed}, found {getattr(handler, name)!r}")
    check_duration(handler.call_limit, f"{key}: call_limit")
    check_duration(handler.lookup_delay, f"{key}: lookup_delay", none=True)
    check_duration(handler.max_job_time, f"{key}: max_job_time", zero=True)
    check_whole(handler.not_found_limit, f"{key}: not_found_limit", 1, 1_000_000)
    if not isinstance(handler.poll, PollPolicy):
        raise ConfigError(f"{key}: poll must be a PollPolicy, found {handler.poll!r}")
    if not isinstance(handler.local_files, bool):
        raise ConfigError(f"{key}: local_files must be True or False, found {handler.local_files!r}")
    limits = handler.default_limits
    if not isinstance(limits, tuple) or not all(isinstance(limit, Limit) for limit in limits):
        raise ConfigError(f"{key}: default_limits must be a tuple of Limit, found {limits!r}")


def params_type_of(handler: type[AnyHandler] | AnyHandler) -> type:
    """Return the type of request that a handler (or handler class) accepts.

    An explicit ``params_type`` wins; otherwise it is read from the generic declaration, through generic
    bases, mixins and any depth of inheritance. There is no fallback to ``object``.

    Raises:
        ConfigError: a raw ``TaskHandler``, an unbound type variable or a container; the message shows the
            override.
    """
    cls = handler if isinstance(handler, type) else type(handler)
    explicit = getattr(handler, "params_type", None)
    found = _declared(cls) if explicit is None else [explicit]
    bound = list(dict.fromkeys(one for one in found if not isinstance(one, TypeVar)))
    if len(bound) > 1:
        problem = f"accepts {_shown(bound[0])} by one base and {_shown(bound[1])} by another"
    elif bound:
        one = bound[0]
        if one in (object, Any):
            problem = "accepts everything, and requests are routed by their exact type"
        elif isinstance(one, type) and get_origin(one) is None:
            return one
        else:
            problem = f"accepts {one!r}, which is not a plain class"
    elif found:
        problem = f"leaves the type variable {found[0]} unbound"
    else:
        problem = "does not say which request type it accepts"
    raise ConfigError(
        f"{cls.__name__} {problem}; derive it from TaskHandler[DocumentRequest] or write "
        "params_type = DocumentRequest in the class"
    )


def _shown(found: Any) -> str:
    return found.__name__ if isinstance(found, type) else repr(found)


def _declared(cls: type, arguments: Mapping[Any, Any] = MappingProxyType({})) -> list[Any]:
    """Return all that ``P`` stands for in the generic bases of ``cls``, in the order of its bases.

    Args:
        cls: a handler class.
        arguments: what its own type variables stand for.
    """
    found: list[Any] = []
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if not isinstance(origin, type) or not issubclass(origin, TaskHandler):
            continue
        given = [arguments.get(one, one) for one in get_args(base)]
        if origin is TaskHandler:
            found += given
        else:
            found += _declared(origin, dict(zip(getattr(origin, "__parameters__", ()), given, strict=False)))
    return found


@frozen
class Resolved:
    """A checked handler beside the type of request that it accepts."""

    handler: AnyHandler
    params_type: type

    @property
    def key(self) -> str:
        """The handler's key."""
        return self.handler.key


def resolve(handler: object) -> Resolved:
    """Check a handler and find its params type.

    Raises:
        ConfigError: the handler or its declaration is wrong.
    """
    checked = check_handler(handler)
    return Resolved(checked, params_type_of(checked))
