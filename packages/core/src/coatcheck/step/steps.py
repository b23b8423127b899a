"""``Steps``: finds a lease's handler, makes the one call that the step is about, and builds the transition.

``plan`` and ``conclude`` are the two pure halves; between them stands one call of one handler method, the
only thing here that reaches a vendor. No exception of a handler gets out: each becomes an event.
"""

import asyncio
import inspect
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol, cast

import attrs
from attrs import frozen

from coatcheck import codec
from coatcheck.accounts import mask_error
from coatcheck.errors import (
    CallbackRefusedError,
    ConfigError,
    HandlerError,
    JobNotFoundError,
    RequestError,
    StoreError,
    UnknownNameError,
)
from coatcheck.handler import AnyHandler, Resolved
from coatcheck.http import Callback, CallbackNote, HttpHandler, callback_steps, run, run_async, steps
from coatcheck.http.callback import check_callback, refused
from coatcheck.lifecycle import (
    CancelRequested,
    Event,
    Failed,
    InProgress,
    Move,
    NotSent,
    Overdue,
    Receipt,
    Refreshed,
    Released,
    Succeeded,
    Unknown,
    advance,
)
from coatcheck.model import (
    Account,
    CancelFlag,
    CancelResult,
    Failure,
    LookupResult,
    QueryContext,
    QueryResult,
    Side,
    Step,
    SubmitContext,
    SubmitResult,
    Task,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck.step.reading import METHODS, PHASES, SUBMITS, Reading, Vault
from coatcheck.store import Kind, Lease, Stored, Transition

#: A vendor gets this long to answer a cancel, whatever the handler's own limit is.
CANCEL_LIMIT = timedelta(seconds=10)

_WITHOUT_CALL = frozenset({Kind.RECOVER, Kind.EXPIRE})
_SIDES: Mapping[Kind, Side] = {
    kind: Side.SUBMIT if kind in SUBMITS else Side.QUERY for kind in Kind if kind not in _WITHOUT_CALL
}
#: What methods usually return: these need not be looked at twice.
_ANSWERS = frozenset({SubmitResult, QueryResult, LookupResult, CancelResult})
#: The pace of moves that no handler has a say in.
_HOUSE_POLICY = PollPolicy()


class HandlerSource(Protocol):
    """Where handlers are found by key (a ``Registry``)."""

    def handler(self, key: str) -> Resolved:
        """Return the handler, or raise ``UnknownNameError``."""
        ...


class AccountSource(Protocol):
    """Where accounts are found by name (``Accounts``)."""

    def get(self, name: str, customary: Mapping[str, tuple[str, ...]] = ..., /) -> Account:
        """Return the account, or raise ``UnknownNameError`` of kind "account"."""
        ...


@frozen
class Plan:
    """A step that needs its vendor call: what to call, and what it takes to make sense of the answer."""

    lease: Lease
    task: Task
    handler: AnyHandler
    method: Callable[[Any, Any], Any]
    argument: Any
    context: SubmitContext | QueryContext
    #: The hard limit of the call.
    limit: timedelta
    vault: Vault = attrs.field(repr=False)


@frozen
class Finished:
    """A step that ended: the event that it came to, and the transition to be committed."""

    lease: Lease
    #: The task as it was claimed.
    task: Task
    event: Event
    #: The task as the transition leaves it.
    after: Task
    transition: Transition
    #: Nothing was sent because the account is not configured here: leave it alone for a while.
    is_unknown_account: bool = False


class Steps:
    """Runs steps: ``plan``, the call, ``conclude``. Holds no state of a task and may be used from any thread.

    Args:
        registry: where handlers are found.
        accounts: where accounts are found.
        transport: handed to handlers as ``context.transport``.
        rng: returns the random draws (0…1) for jitter.
        monotonic: measures how long a call took, in seconds.
    """

    def __init__(
        self,
        registry: HandlerSource,
        accounts: AccountSource,
        transport: Any = None,
        *,
        rng: Callable[[], float] = random.random,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._accounts = accounts
        self._transport = transport
        self._rng = rng
        self._monotonic = monotonic
        #: By class of handler and method: see ``_conversation``.
        self._conversations: dict[tuple[type, str], Step | None] = {}

    def run(self, lease: Lease, now: datetime) -> Transition:
        """Run a whole step in this thread and return its transition; see ``perform``."""
        return self.perform(lease, now).transition

    async def run_async(self, lease: Lease, now: datetime) -> Transition:
        """Run a whole step on this event loop and return its transition; see ``perform``."""
        return (await self.perform_async(lease, now)).transition

    def perform(self, lease: Lease, now: datetime) -> Finished:
        """Run a whole step in this thread. Nothing is written; a repeat calls the vendor again.

        Args:
            lease: what was claimed.
            now: the store's time.

        Raises:
            StoreError: the record cannot be read; nothing was sent.
        """
        plan = self.plan(lease, now)
        if isinstance(plan, Finished):
            return plan
        began = self._monotonic()
        answer = self.call(plan)
        return self.conclude(plan, answer, now + timedelta(seconds=self._monotonic() - began))

    async def perform_async(self, lease: Lease, now: datetime) -> Finished:
        """Run a whole step on this event loop; otherwise like ``perform``."""
        plan = self.plan(lease, now)
        if isinstance(plan, Finished):
            return plan
        began = self._monotonic()
        answer = await self.call_async(plan)
        return self.conclude(plan, answer, now + timedelta(seconds=self._monotonic() - began))

    def is_async(self, handler_key: str, kind: Kind) -> bool:
        """Whether the handler's method for this kind runs on an event loop.

        It does if it is ``async def``, or a conversation of an ``HttpHandler`` over an async transport.
        """
        try:
            handler = self._registry.handler(handler_key).handler
        except UnknownNameError:
            return False
        method = METHODS.get(kind)
        if method is None:
            return False
        return self._conversation(handler, method) is not None or inspect.iscoroutinefunction(
            getattr(handler, method, None)
        )

    def _conversation(self, handler: AnyHandler, method: str) -> Step | None:
        """Return the conversation that a method holds, if the transport can hold it on an event loop."""
        key = (type(handler), method)
        try:
            return self._conversations[key]
        except KeyError:
            step = None
            if isinstance(handler, HttpHandler) and hasattr(self._transport, "perform_async"):
                step = handler.conversation(method)
            return self._conversations.setdefault(key, step)

    def plan(self, lease: Lease, now: datetime) -> Plan | Finished:
        """Decide what a lease needs: a vendor call (``Plan``), or nothing more than a commit (``Finished``).

        Raises:
            StoreError: the record cannot be read.
        """
        kind = lease.kind
        task = codec.decode_task(lease.stored, with_result=False)
        event = self._without_call(kind, task, now)
        if event is not None:
            return _finish(lease, task, event, now)
        try:
            resolved = self._registry.handler(task.handler_key)
        except UnknownNameError:
            return _finish(lease, task, Released(), now)
        handler = resolved.handler
        if kind is Kind.CANCEL and not handler.has_cancel:
            return _cancel_without_method(lease, task, now)
        try:
            account = self._account(task, handler)
        except Exception:  # noqa: BLE001  # wherever credentials come from, they cannot be had here
            return _finish(lease, task, Released(), now, is_unknown_account=True)
        vault = Vault(account)
        argument, problem = _argument(lease, task, resolved)
        if problem is not None:
            event = Reading(kind, task, handler.poll, vault, self._rng()).unsendable(problem)
            return _finish(lease, task, event, now)
        limit = min(handler.call_limit, CANCEL_LIMIT) if kind is Kind.CANCEL else handler.call_limit
        guarded = Account(account.name, vault.lookup, vault.seen)
        context: SubmitContext | QueryContext
        if kind in (Kind.QUERY, Kind.CANCEL):
            context = self._query_context(task, guarded, now)
        else:
            context = self._submit_context(task, guarded, now)
        return Plan(lease, task, handler, getattr(handler, METHODS[kind]), argument, context, limit, vault)

    def call(self, plan: Plan) -> Any:
        """Call the vendor, in this thread, and return the handler's answer or the exception that it raised.

        An awaitable is run to its end on an event loop of its own.
        """
        try:
            answer = plan.method(plan.argument, plan.context)
            if type(answer) in _ANSWERS or not inspect.isawaitable(answer):
                return answer
            return run_here(answer)
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt) and _is_main_thread():
                raise  # somebody's Ctrl-C; anything else is the handler's (G10)
            return problem

    async def call_async(self, plan: Plan) -> Any:
        """Call the vendor on this event loop; return the handler's answer or the exception that it raised."""
        handler = plan.handler
        step = self._conversation(handler, METHODS[plan.lease.kind])
        try:
            if step is not None:
                conversation = steps(cast("HttpHandler[Any]", handler), step, plan.argument, plan.context)
                return await run_async(conversation, plan.context)
            answer = plan.method(plan.argument, plan.context)
            return await answer if inspect.isawaitable(answer) else answer
        except BaseException as problem:
            task = asyncio.current_task()
            if isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the worker gave the step up; anything else is the handler's (G10)
            if isinstance(problem, KeyboardInterrupt) and _is_main_thread():
                raise
            return problem

    def conclude(self, plan: Plan, answer: object, now: datetime, *, is_answer: bool = True) -> Finished:
        """Turn a handler's answer, or the exception it raised, into the step's transition.

        Args:
            plan: what ``plan`` returned.
            answer: what ``call`` returned.
            now: the store's time after the call.
            is_answer: false when the call was cut off, so that nothing is learnt about the vendor's gate.
        """
        lease, task = plan.lease, plan.task
        if answer is not None and answer is plan.vault.problem and not plan.vault.seen:
            # No secret was handed out, so nothing was sent with one.
            return _finish(lease, task, Released(), now, is_unknown_account=True)
        side = _SIDES[lease.kind] if is_answer else None
        reading = Reading(lease.kind, task, plan.handler.poll, plan.vault, self._rng())
        try:
            event, result = reading.event(answer)
            if isinstance(event, NotSent):
                side = None
            return _finish(lease, task, event, now, side=side, result=result)
        except RequestError as error:
            return _finish(lease, task, reading.unstorable(answer, error), now, side=side)

    def release(self, lease: Lease, now: datetime) -> Finished:
        """Give a claim back: nothing was sent.

        Raises:
            StoreError: the record cannot be read.
        """
        return _finish(lease, codec.decode_task(lease.stored, with_result=False), Released(), now)

    def receipt(self, finished: Finished, stored: Stored, now: datetime) -> Transition | None:
        """Return what the late reply of a submit makes of the task as it is now; ``None``: nothing.

        Args:
            finished: the step whose lease was lost, or whose call was given up.
            stored: the task as it was just read.
            now: the store's time.
        """
        event: Any = finished.event
        is_news = isinstance(event, InProgress | Succeeded | Failed)
        if finished.lease.kind not in SUBMITS or isinstance(event, Released | CancelRequested | Overdue):
            return None
        if finished.lease.kind is Kind.RESUBMIT and not is_news:
            return None  # what a resubmit was refused says nothing about the first submit
        task = codec.decode_task(stored, with_result=False)
        move = advance(task, Receipt(reply=event, generation=finished.task.generation), now)
        if move is None:
            return None
        return unleased(task, move, result=finished.transition.result if is_news else None)

    def refetch(self, stored: Stored, now: datetime) -> Transition:
        """Ask the vendor again for the result of a SUCCEEDED task; the unleased transition keeps the answer.

        Raises:
            UnknownNameError: the handler or the account is not configured here.
            HandlerError: the vendor did not give the result; nothing changes. "Not found" is an answer: the
                result is gone.
            RequestError: the result cannot be stored.
        """
        task = codec.decode_task(stored, with_result=False)
        handler = self._registry.handler(task.handler_key).handler
        vault = Vault(self._account(task, handler))
        if task.status is not TaskStatus.SUCCEEDED or task.query_params is None:
            raise HandlerError(
                f"expected a SUCCEEDED task with an external id, found {task.id} {task.status}; "
                "there is no result to refresh",
                "nothing_to_refresh",
                retryable=False,
            )
        context = self._query_context(task, Account(task.account, vault.lookup, vault.seen), now)
        event, result = Refreshed(gone=True), None
        try:
            answer: Any = handler.query(task.query_params, context)
            if inspect.isawaitable(answer):
                answer = run_here(answer)
        except JobNotFoundError:
            pass
        except Exception as error:
            mask_error(error, vault.seen)  # no record is made of it: it goes to the caller as it is
            raise
        else:
            reading = Reading(Kind.QUERY, task, handler.poll, vault, self._rng())
            seen, result = reading.event(answer)
            if not isinstance(seen, Succeeded):
                found = answer.status if isinstance(answer, QueryResult) else type(answer).__name__
                raise HandlerError(
                    f"expected the result of task {task.id} again, found {found}; what is stored is kept",
                    "not_refreshed",
                )
            event = Refreshed(expires_after=seen.expires_after)
        move = advance(task, event, now)
        assert move is not None  # noqa: S101  # the table has this pair; narrows the type
        return unleased(task, move, result=result)

    def read_callback(self, task: Task, callback: Callback, now: datetime) -> CallbackNote:
        """Let the task's handler say which job a callback is about. Nothing is written.

        Raises:
            CallbackRefusedError: it is not the vendor's, too old, or cannot be read.
            UnknownNameError: the handler or the account is not configured here.
            HandlerError: a call for public keys failed, so nobody knows.
        """
        handler: Any = self._registry.handler(task.handler_key).handler
        if not handler.has_callback:
            raise CallbackRefusedError(
                f"expected a handler that reads callbacks, found {handler.key}, which has no read_callback; "
                "its jobs are asked about as always",
                code="not_read",
            )
        vault = Vault(self._account(task, handler))
        context = self._query_context(task, Account(task.account, vault.lookup, vault.seen), now)
        try:
            if isinstance(handler, HttpHandler):
                return run(callback_steps(handler, callback, context), context)
            check_callback(callback)
            note = handler.read_callback(callback, context)
            if inspect.isawaitable(note):
                note = run_here(note)
        except (HandlerError, ConfigError) as error:
            mask_error(error, vault.seen)
            raise
        except Exception as error:
            mask_error(error, vault.seen)
            raise refused(error) from error
        if not isinstance(note, CallbackNote):
            raise HandlerError(
                f"{handler.key}: read_callback must return a CallbackNote, found {type(note).__name__}"
            )
        return note

    @staticmethod
    def transition(
        task: Task, move: Move, *, key: str, side: Side | None = None, result: bytes | None = None
    ) -> Transition:
        """Return the leased transition of ``move``; see ``transition_of``."""
        return transition_of(task, move, key=key, side=side, result=result)

    @staticmethod
    def unleased(task: Task, move: Move, *, result: bytes | None = None) -> Transition:
        """Return the unleased transition of ``move``; see the function of the same name."""
        return unleased(task, move, result=result)

    def _without_call(self, kind: Kind, task: Task, now: datetime) -> Event | None:
        """Return the event of a step that needs no vendor call, or ``None``."""
        if kind is Kind.EXPIRE:
            return Overdue()
        if kind is Kind.RECOVER:
            phase = PHASES[Kind.LOOKUP if task.next_step is Step.LOOKUP else Kind.SUBMIT]
            error = Failure("lease_expired", "the worker that held the submit is gone", phase, retryable=True)
            delay = _HOUSE_POLICY.after_error(1, self._rng())
            return Unknown(error=error, delay=delay, is_death=True)
        if kind is Kind.CANCEL and task.status is TaskStatus.PENDING_SUBMIT:
            return CancelRequested()
        if kind is Kind.RESUBMIT and task.cancel is not CancelFlag.NONE:
            return CancelRequested()
        if kind in (Kind.RESUBMIT, Kind.LOOKUP) and now >= task.deadline_at:
            return Overdue()
        return None

    def _account(self, task: Task, handler: AnyHandler) -> Account:
        if handler.account_env and task.account == handler.account:
            return self._accounts.get(task.account, handler.account_env)
        return self._accounts.get(task.account)

    def _query_context(self, task: Task, account: Account, now: datetime) -> QueryContext:
        return QueryContext(
            task_id=task.id,
            query_count=task.query_count,
            consecutive_errors=task.consecutive_errors,
            created_at=task.created_at,
            deadline_at=task.deadline_at,
            now=now,
            metadata=task.metadata,
            account=account,
            transport=self._transport,
        )

    def _submit_context(self, task: Task, account: Account, now: datetime) -> SubmitContext:
        return SubmitContext(
            task_id=task.id,
            idempotency_key=task.idempotency_key or task.id,
            now=now,
            metadata=task.metadata,
            account=account,
            transport=self._transport,
        )


def needs_call(lease: Lease) -> bool:
    """Whether the step may call a vendor; the others take no room and no permit, and are over at once."""
    if lease.kind is Kind.CANCEL:
        return lease.stored.row.status is not TaskStatus.PENDING_SUBMIT
    return lease.kind not in _WITHOUT_CALL


def transition_of(
    task: Task, move: Move, *, key: str, side: Side | None = None, result: bytes | None = None
) -> Transition:
    """Return the transition that writes ``move`` under the lease with the token ``key``.

    Args:
        task: the task as it was claimed.
        move: what ``advance`` decided.
        key: the lease's token.
        side: the side whose vendor answered; ``None`` when no vendor did.
        result: the encoded result, if there is a new one.

    Raises:
        NotPersistableError: the record holds something that cannot be stored.
    """
    after = move.task
    return Transition(
        task_id=task.id,
        key=key,
        status=after.status,
        generation=after.generation,
        next_step=after.next_step,
        delay=move.delay,
        job=move.job,
        ghost_for=after.traits.max_job_time,
        format=codec.FORMAT,
        record=codec.encode_record(after),
        result=result,
        drop_params=move.drop_params,
        side=side,
        gate=move.gate,
        restart=move.restart,
        progressed=move.progressed,
        cancel=move.cancel,
        claims=move.claims,
    )


def unleased(task: Task, move: Move, *, result: bytes | None = None) -> Transition:
    """Return the unleased transition of ``move``: refused unless the task is still as it was read.

    Raises:
        NotPersistableError: the record holds something that cannot be stored.
    """
    return attrs.evolve(
        transition_of(task, move, key=secrets.token_hex(16), result=result),
        is_leased=False,
        expected_version=task.version,
        expected_status=task.status,
    )


def run_here(awaitable: Awaitable[Any]) -> Any:
    """Run an awaitable to its end, also in a thread that has an event loop running already (a notebook)."""

    async def run() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    outcome: list[tuple[Any, BaseException | None]] = []

    def elsewhere() -> None:
        try:
            outcome.append((asyncio.run(run()), None))
        except BaseException as problem:  # noqa: BLE001  # raised again in the caller's thread
            outcome.append((None, problem))

    thread = threading.Thread(target=elsewhere, name="coatcheck-await", daemon=True)
    thread.start()
    thread.join()
    value, problem = outcome[0]
    if problem is not None:
        raise problem
    return value


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _finish(
    lease: Lease,
    task: Task,
    event: Event,
    now: datetime,
    *,
    side: Side | None = None,
    result: bytes | None = None,
    is_unknown_account: bool = False,
) -> Finished:
    move = advance(task, event, now)
    if move is None:
        event = Released()
        move = advance(task, event, now)
    if move is None:
        raise StoreError(
            f"task {task.id} was claimed for {lease.kind} while it is {task.status}; "
            "no step can be made of that"
        )
    transition = transition_of(task, move, key=lease.token, side=side, result=result)
    return Finished(lease, task, event, move.task, transition, is_unknown_account)


def _cancel_without_method(lease: Lease, task: Task, now: datetime) -> Finished:
    if task.cancel is CancelFlag.NONE:
        return _finish(lease, task, Overdue(), now)  # it was the deadline that wanted the cancel
    # The handler that took the job may have had a method; this one has not.
    able = task.evolve(traits=attrs.evolve(task.traits, has_cancel=False))
    return _finish(lease, able, CancelRequested(), now)


def _argument(lease: Lease, task: Task, resolved: Resolved) -> tuple[Any, str | None]:
    """Return what the handler's method is given, or what is wrong with it."""
    if lease.kind in (Kind.QUERY, Kind.CANCEL):
        if task.query_params is None:
            return None, "the record holds no query params, so the job cannot be asked about"
        return task.query_params, None
    if lease.kind is Kind.LOOKUP and not resolved.handler.has_lookup:
        return None, f"handler {resolved.key!r} has no lookup method any more"
    try:
        params = codec.decode_params(lease.stored)
    except StoreError as error:
        return None, f"the request cannot be read: {error}"
    if type(params) is not resolved.params_type:
        found = params.type if isinstance(params, codec.RawValue) else type(params).__name__
        wanted = resolved.params_type.__name__
        return None, f"handler {resolved.key!r} takes {wanted}, found {found!r}, which is not that type here"
    return params, None
