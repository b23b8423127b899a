"""``TaskHandler[P]``: the adapter for one vendor operation, and how its params type is found.

A handler describes two calls and does one thing in each; loops, sleeps and retries belong to the worker.
Nothing here does I/O.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin

from attrs import frozen

from coatcheck.errors import ConfigError
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

    Subclasses set ``key`` and define ``submit`` and ``query``, either of which may be ``async def``. Two more
    methods are capabilities, there when a subclass defines them: ``cancel(params: QueryParams, context:
    QueryContext) -> CancelResult`` and ``lookup(params: P, context: SubmitContext) -> LookupResult``.

    Both may raise ``NotSentError``, ``RejectedError``, ``ThrottledError``, ``NotReadyError`` or
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
    check_name(handler.key, "key")
    check_name(handler.account, f"{handler.key}: account")
    if handler.provider is not None:
        check_name(handler.provider, f"{handler.key}: provider")
    for name in ("resubmit", "keep_params"):
        allowed = {"resubmit": ("never", "idempotent"), "keep_params": ("ended", "accepted")}[name]
        if getattr(handler, name) not in allowed:
            raise ConfigError(
                f"{handler.key}: {name} must be one of {allowed}, found {getattr(handler, name)!r}"
            )
    check_duration(handler.call_limit, f"{handler.key}: call_limit")
    check_duration(handler.lookup_delay, f"{handler.key}: lookup_delay", none=True)
    check_duration(handler.max_job_time, f"{handler.key}: max_job_time", zero=True)
    check_whole(handler.not_found_limit, f"{handler.key}: not_found_limit", 1, 1_000_000)
    if not isinstance(handler.poll, PollPolicy):
        raise ConfigError(f"{handler.key}: poll must be a PollPolicy, found {handler.poll!r}")
    return handler


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
    found = explicit if explicit is not None else _declared(cls)
    if isinstance(found, type) and get_origin(found) is None and found is not object:
        return found
    if found is None:
        problem = "does not say which request type it accepts"
    elif isinstance(found, TypeVar):
        problem = f"leaves the type variable {found} unbound"
    else:
        problem = f"accepts {found!r}, which is not a plain class"
    raise ConfigError(
        f"{cls.__name__} {problem}; derive it from TaskHandler[DocumentRequest] or write "
        "params_type = DocumentRequest in the class"
    )


@frozen
class _Bound:
    """A class and what its own type variables stand for."""

    cls: type
    arguments: dict[Any, Any]


def _declared(cls: type) -> Any:
    """Return what ``P`` stands for, found through the generic bases of ``cls``, or ``None``."""
    open_answer: Any = None
    queue = [_Bound(cls, {})]
    while queue:
        bound = queue.pop(0)
        for base in _bases(bound.cls):
            origin = get_origin(base) or base
            if not isinstance(origin, type) or not issubclass(origin, TaskHandler):
                continue
            given = tuple(bound.arguments.get(argument, argument) for argument in get_args(base))
            if origin is TaskHandler:
                if given and not isinstance(given[0], TypeVar):
                    return given[0]
                open_answer = open_answer or (given[0] if given else None)
                continue
            variables = getattr(origin, "__parameters__", ())
            queue.append(_Bound(origin, dict(zip(variables, given, strict=False))))
    return open_answer


def _bases(cls: type) -> tuple[Any, ...]:
    bases: tuple[Any, ...] = cls.__dict__.get("__orig_bases__", cls.__bases__)
    return bases


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
