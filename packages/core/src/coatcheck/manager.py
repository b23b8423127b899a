"""The application's door: submit, read, wait, cancel, and the moves that operators make.

A manager decides which handler takes a request, refuses what could not run elsewhere, and hands everything
else to the store. It never calls a vendor, except to refresh or to verify a callback, and it holds no state
of its own: it may be used from any thread and after fork, as far as its store may.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol, Self

import attrs
from attrs import frozen

from coatcheck import codec
from coatcheck.accounts import Accounts
from coatcheck.config import Config
from coatcheck.descriptor import add_declared
from coatcheck.errors import (
    CoatcheckError,
    ConflictError,
    DedupeConflictError,
    HandlerError,
    NewerRecordError,
    StoreError,
    StoreUnavailableError,
    SubmitUnknownError,
    TaskCanceledError,
    TaskError,
    TaskFailedError,
    TaskNotFoundError,
    TrackingTimedOutError,
    UnknownNameError,
    ValidationError,
    WaitTimeoutError,
)
from coatcheck.handler import AnyHandler
from coatcheck.http import Callback
from coatcheck.lifecycle import (
    RULES,
    CancelRequested,
    Move,
    Overdue,
    Resolved,
    Resumed,
    Retried,
    advance,
    state_of,
    submit_deadline_at,
    view,
)
from coatcheck.model import (
    EMPTY,
    ENDS,
    LONGEST,
    Limit,
    QueryParams,
    SubmitOptions,
    Task,
    TaskStatus,
    Verdict,
    WaitReason,
    check_duration,
    check_name,
)
from coatcheck.plugins import Plugins, load_plugins
from coatcheck.registry import Registry
from coatcheck.selector import Selector, SelectorContext, choose
from coatcheck.step import Steps, unleased
from coatcheck.store import (
    AddOutcome,
    Explanation,
    Filter,
    NewTask,
    Outcome,
    Room,
    Stats,
    Store,
    Stored,
)
from coatcheck.transport import RequestsTransport, Transport

_log = logging.getLogger(__name__)

#: How often a waiting call looks at the task although it heard of no change.
LOOK = timedelta(seconds=5)
#: How long ``refresh`` may hold a task before a worker may take it.
REFRESH_LEASE = timedelta(seconds=30)
#: What ``prune`` deletes when it is given one age for all: ends that nobody has to look at any more.
PRUNABLE = ENDS - {TaskStatus.SUBMIT_UNKNOWN}


@frozen(kw_only=True)
class TaskPage:
    """One page of a list, newest first, without results."""

    items: tuple[Task, ...]
    #: Pass it on for the next page; ``None`` at the end.
    cursor: str | None


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Give back what is held; repeatable."""
        ...


class Manager:
    """Submits tasks and tells what became of them.

    Args:
        store: keeps the tasks; stays the caller's to close.
        registry: the handlers that requests can go to.
        accounts: credentials for refreshes and callbacks; by default those of the environment.
        selector: chooses where several handlers accept a request; without one, ``handler_key`` must.
        transport: performs the calls of refreshes and callbacks; by default one of its own.
        plugins: hooks that hear of changes and may delay or refuse a submit.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        accounts: Accounts | None = None,
        selector: Selector | None = None,
        transport: Transport | None = None,
        plugins: Plugins | None = None,
    ) -> None:
        self.store = store
        self.registry = registry
        self.accounts = accounts if accounts is not None else Accounts()
        self.plugins = plugins
        self.transport = transport if transport is not None else RequestsTransport()
        self._selector = selector
        self._steps = Steps(registry, self.accounts, self.transport)
        self._owned: list[Closable] = [] if transport is not None else [self.transport]

    def __repr__(self) -> str:
        return f"<Manager of {self.store.kind} store, namespace {self.store.namespace!r}>"

    @classmethod
    def from_config(
        cls, config: Config | None = None, *, registry: Registry | None = None, plugins: Plugins | None = None
    ) -> "Manager":
        """Build a manager from settings: load the plugins, open the store, and own what was opened.

        Handlers that the settings describe are registered after those of the plugins, whose types they may
        name.

        ``with Manager.from_config() as manager:`` closes it all; so does ``close``.

        Args:
            config: the settings; by default ``Config.load()``.
            registry: with handlers of the application; by default an empty one.
            plugins: if they were loaded into ``registry`` already.

        Raises:
            ConfigError: a setting or, in strict mode, a plugin is wrong.
            StoreUnavailableError: the store does not answer.
        """
        config = Config.load() if config is None else config
        registry = Registry() if registry is None else registry
        if plugins is None:
            plugins = load_plugins(registry, disabled=config.plugins.disabled, strict=config.plugins.strict)
        add_declared(registry, config.handlers, by=str(config.path or "settings"))
        accounts = Accounts(config.accounts)
        choice = config.selector
        selector = None if choice is None else registry.selector(choice.name, **choice.options)
        transport: Transport = registry.transport(config.transport or "requests")
        options = {} if config.ageing is None else {"ageing": config.ageing}
        store = registry.open_store(config.store, namespace=config.namespace, **options)
        if not store.is_shared:
            _log.warning(
                "a %s store is seen by its own process only: other workers, managers and commands find "
                "nothing in it; use sqlite:///file.db to share tasks",
                store.kind,
            )
        made = cls(
            store, registry, accounts=accounts, selector=selector, transport=transport, plugins=plugins
        )
        made._owned += [transport, store]
        return made

    def close(self) -> None:
        """Close what the manager opened itself; what it was given stays open. Repeatable."""
        for owned in self._owned:
            owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Submitting.

    def submit(self, request: object, options: SubmitOptions | None = None, /, **changes: Any) -> Task:
        """Store a task for ``request`` and return it; a worker takes it from there.

        ``submit(request, tenant="acme", deadline=timedelta(hours=1))``: options are given as keywords, as
        ``SubmitOptions``, or both (keywords win). When it returns, the task is stored and cannot be lost. A
        repeat makes a second task, unless ``dedupe_key`` is
        given: then the first one is returned, with ``is_replay`` set.

        Raises:
            RequestError: the request or an option is refused (``NotPersistableError``, ``ValidationError``,
                ``NoHandlerError``, ``AmbiguousHandlerError``, ``DedupeConflictError``, …); nothing was
                stored.
            UnknownNameError: an option or a handler has no such name; nothing was stored.
            StoreUnavailableError: the store does not answer; the task may be stored or not.
        """
        wanted = _options(options, changes)
        first = self._first_of(wanted)
        handler = self._handler_for(request, wanted, first)
        params = self._checked(request, handler, wanted)
        delay, run_at = self._admitted(request, wanted, first)
        task = self._draft(request, handler, wanted)
        new = NewTask(
            id=task.id,
            format=codec.FORMAT,
            record=codec.encode_record(task),
            params=params,
            handler_key=task.handler_key,
            provider_key=task.provider_key,
            account=task.account,
            tenant=task.tenant,
            priority=task.priority,
            delay=delay,
            run_at=run_at,
            deadline=task.deadline,
            queue_deadline=task.queue_deadline,
            stall_limit=task.stall_limit,
            dedupe_key=task.dedupe_key,
            dedupe_digest=codec.request_digest(request) if task.dedupe_key is not None else None,
        )
        try:
            (added,) = self.store.add([new])
        except StoreUnavailableError:
            # The reply may have been lost, not the task. Adding the same id again is harmless, and settles
            # it.
            (added,) = self.store.add([new])
        found = codec.decode_task(added.stored, with_result=False)
        if added.outcome is AddOutcome.CREATED:
            self._changed(None, found)
            return found
        if added.outcome is AddOutcome.REPLAYED:
            return self._replayed(found, wanted)
        raise DedupeConflictError(
            f"dedupe key {task.dedupe_key!r} of tenant {task.tenant!r} belongs to task {found.id}, "
            "which was made of another request; use another key, or submit the same request",
            str(task.dedupe_key),
            found.id,
        )

    def _first_of(self, options: SubmitOptions) -> Stored | None:
        """Return the task that holds the dedupe key, if there is one: a replay asks nobody again.

        Whether it is one is the store's to say, in ``add``: another submit may be faster.
        """
        if options.dedupe_key is None:
            return None
        found = self.store.list(Filter(tenant=options.tenant, dedupe_key=options.dedupe_key), limit=1)
        return found.items[0] if found.items else None

    def _handler_for(self, request: object, options: SubmitOptions, first: Stored | None) -> AnyHandler:
        kind = type(request)
        if options.handler_key is not None:
            resolved = self.registry.handler(options.handler_key)
            if kind is not resolved.params_type:
                accepting = [found.key for found in self.registry.handlers_for(kind)]
                raise ValidationError(
                    f"handler {options.handler_key!r} accepts {resolved.params_type.__qualname__}, "
                    f"found a {kind.__qualname__}"
                    + (f" (accepted by: {', '.join(accepting)})" if accepting else "")
                    + "; drop handler_key or pass the type that it accepts",
                    "handler_key",
                )
            return resolved.handler
        found = self.registry.handlers_for(kind)
        if not found:
            # A file or a dict in place of a request is the likelier slip, and its own message is the better
            # help.
            codec.check_request(request, local_files=True)
        context = SelectorContext(
            request=request, options=options, candidates=[resolved.handler for resolved in found]
        )
        for resolved in found:
            # A replay keeps the handler that was chosen first, and uses no turn of the selector.
            if first is not None and resolved.key == first.row.handler_key:
                return resolved.handler
        chosen = choose(self._selector, context)
        return next(resolved.handler for resolved in found if resolved.handler is chosen)

    def _checked(self, request: object, handler: AnyHandler, options: SubmitOptions) -> bytes:
        """Refuse what must not be stored, and return the bytes of the rest."""
        if options.charge is not None and "ledger" not in self.store.capabilities:
            raise ValidationError(
                f"charge needs a store with a ledger; this {self.store.kind} store has none: drop charge",
                "charge",
            )
        codec.check_plain(options.metadata, name="metadata", cap=codec.CAPS["metadata"])
        codec.check_request(request, local_files=handler.local_files)
        try:
            handler.validate(request)
        except CoatcheckError:
            raise
        except Exception as error:
            raise HandlerError(
                f"{handler.key}.validate failed with {type(error).__name__}: {error}; nothing was stored"
            ) from error
        return codec.encode_value(request, field="params", cap=codec.CAPS["params"])

    def _admitted(
        self, request: object, options: SubmitOptions, first: Stored | None
    ) -> tuple[timedelta, datetime | None]:
        """Let plugins have their say, and return the delay or the time of the submit."""
        delay = options.delay
        if self.plugins is not None and first is None:
            delay = self.plugins.admit(request, options)
        if options.run_at is None:
            return delay, None
        earliest = self.store.now() + delay if delay else options.run_at
        return timedelta(), max(options.run_at, earliest)

    def _draft(self, request: object, handler: AnyHandler, options: SubmitOptions) -> Task:
        """Return the task as far as its record goes; the store's clock fills in the instants."""
        task_id = _new_id()
        blank = datetime.min.replace(tzinfo=UTC)
        return Task(
            id=task_id,
            status=TaskStatus.PENDING_SUBMIT,
            handler_key=handler.key,
            provider_key=options.provider_key or handler.provider_key,
            account=options.account or handler.account,
            tenant=options.tenant,
            priority=options.priority,
            request_type=codec.type_name(type(request)),
            idempotency_key=options.idempotency_key or task_id,
            dedupe_key=options.dedupe_key,
            metadata=options.metadata,
            cancel_on_deadline=options.cancel_on_deadline,
            traits=handler.traits,
            deadline=options.deadline,
            queue_deadline=options.queue_deadline,
            stall_limit=options.stall_limit,
            created_at=blank,
            scheduled_at=blank,
            deadline_at=blank,
            updated_at=blank,
        )

    def _replayed(self, task: Task, options: SubmitOptions) -> Task:
        surely_over = task.verdict is Verdict.VENDOR or task.query_params is None
        if options.on_duplicate == "retry_failed" and task.status is TaskStatus.FAILED and surely_over:
            try:
                return self.retry(task.id, tenant=task.tenant).evolve(is_replay=True)
            except ConflictError:  # somebody else was faster: theirs is the retry
                return self.get(task.id, tenant=task.tenant).evolve(is_replay=True)
        return view(task, self.store.now()).evolve(is_replay=True)

    # Reading.

    def get(self, task_id: str, *, tenant: str | None = None, with_result: bool = True) -> Task:
        """Return a task as it is now. Changes nothing; may be repeated.

        Args:
            task_id: which.
            tenant: only if it belongs to this tenant; another tenant's task is not found, exactly like a
                missing one.
            with_result: whether to load the result too, which may be large.

        Raises:
            TaskNotFoundError: there is no such task, or it is another tenant's.
            NewerRecordError: a newer version wrote it.
        """
        stored = self._stored(task_id, tenant, payloads=with_result)
        return view(codec.decode_task(stored, with_result=with_result), self.store.now())

    def list(
        self,
        *,
        statuses: Collection[TaskStatus | str] | None = None,
        tenant: str | None = None,
        handler_key: str | None = None,
        provider_key: str | None = None,
        account: str | None = None,
        dedupe_key: str | None = None,
        quarantined: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> TaskPage:
        """Return a page of tasks, newest first, without results. Changes nothing; may be repeated.

        A task that a newer version wrote is listed with what its row says.

        Raises:
            ValidationError: ``limit`` or a status is not allowed.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 1000:
            raise ValidationError(f"limit must be a whole number from 1 to 1000, found {limit!r}", "limit")
        where = Filter(
            statuses=None if statuses is None else [_status(status) for status in statuses],
            tenant=tenant,
            handler_key=handler_key,
            provider_key=provider_key,
            account=account,
            dedupe_key=dedupe_key,
            quarantined=quarantined,
        )
        page = self.store.list(where, limit=limit, cursor=cursor)
        now = self.store.now()
        return TaskPage(items=tuple(view(_listed(stored), now) for stored in page.items), cursor=page.cursor)

    def explain(self, task_id: str, *, tenant: str | None = None) -> Explanation:
        """Say why a task waits. Changes nothing; may be repeated.

        Raises:
            TaskNotFoundError: there is no such task, or it is another tenant's.
        """
        if tenant is not None:
            self._stored(task_id, tenant)
        (found,) = self.store.explain([task_id])
        if found is None:
            raise self._not_found(task_id)
        return found

    def wait(
        self,
        task_id: str,
        timeout: timedelta | float | None = None,
        *,
        tenant: str | None = None,
        on_change: Callable[[Task], None] | None = None,
        on_waiting: Callable[[Explanation], None] | None = None,
    ) -> Task:
        """Block until the task has ended, and return it; it goes on without the caller.

        Args:
            task_id: which.
            timeout: patience in seconds or as a timedelta, by a monotonic clock; 0 looks once, ``None`` waits
                as long as it takes, which the task's own deadline bounds.
            tenant: only if it belongs to this tenant.
            on_change: called with the task at the start and after each change.
            on_waiting: called with the reason when the task cannot go on by itself, for instance because no
                worker has its handler, and again when the reason changes. By default the reason is logged as
                a warning.

        Raises:
            WaitTimeoutError: the patience ended before the task; it carries both ids.
            TaskNotFoundError: there is no such task, or it is another tenant's.
        """
        patience = read_patience(timeout)
        started = time.monotonic()
        seen: tuple[object, ...] | None = None
        told: WaitReason | None = None
        while True:
            task = self.get(task_id, tenant=tenant, with_result=False)
            state = (task.version, task.status, task.generation)
            if on_change is not None and state != seen:
                on_change(task)
            seen = state
            if task.status.is_end:
                return self.get(task_id, tenant=tenant)
            waited = timedelta(seconds=time.monotonic() - started)
            if patience is not None and waited >= patience:
                raise self._impatient(task, waited)
            told = self._tell(task, told, on_waiting)
            left = LOOK if patience is None else min(LOOK, patience - waited)
            if task.status is TaskStatus.PENDING_SUBMIT:
                # A pending task shows as timed out from its deadline on, which is no change of its row.
                left = min(left, max(timedelta(milliseconds=10), submit_deadline_at(task) - self.store.now()))
            self.store.wait_for_change(task_id, task.version, left)

    def result(
        self, task_id: str, timeout: timedelta | float | None = None, *, tenant: str | None = None
    ) -> Any:
        """Wait for the task's end and return its result. Changes nothing; may be repeated.

        Args:
            task_id: which.
            timeout: as in ``wait``.
            tenant: only if it belongs to this tenant.

        Returns:
            The result, or a ``codec.RawValue`` where its type is not registered in this process.

        Raises:
            TaskFailedError: it ended FAILED.
            TaskCanceledError: it ended CANCELED.
            TrackingTimedOutError: it ended TRACKING_TIMED_OUT; the vendor's job may go on.
            SubmitUnknownError: it ended SUBMIT_UNKNOWN.
            WaitTimeoutError: the patience ended before the task.
            TaskNotFoundError: there is no such task, or it is another tenant's.
        """
        task = self.wait(task_id, timeout, tenant=tenant)
        if task.status is TaskStatus.SUCCEEDED:
            return task.result
        raise error_of(task)

    # Moves.

    def cancel(self, task_id: str, *, tenant: str | None = None) -> Task:
        """Ask for a task to be stopped, and return it as it is now.

        A task that was not submitted ends at once. For one that the vendor has, a worker asks the vendor
        next; a success that the vendor reports first wins. A task that has ended stays as it is. May be
        repeated.

        Raises:
            TaskNotFoundError: there is no such task, or it is another tenant's.
        """
        before = self.get(task_id, tenant=tenant, with_result=False)
        (flagged,) = (False,) if before.status.is_end else self.store.request_cancel([task_id], tenant=tenant)
        if flagged and before.status is TaskStatus.PENDING_SUBMIT and not before.is_leased:
            move = advance(before, CancelRequested(), self.store.now())
            if move is not None:
                try:
                    return self._commit(before, move)
                except ConflictError:
                    pass  # A worker has it now, and its commit finds the flag.
        return self.get(task_id, tenant=tenant)

    def retry(self, task_id: str, *, tenant: str | None = None) -> Task:
        """Start a new job for the same request, as a new generation of the task, and return it.

        Allowed for FAILED, and for TRACKING_TIMED_OUT without a job at the vendor. Not repeatable: the second
        call finds a task that is no longer in one of these states.

        Raises:
            ValidationError: the task is in another state, or its request was dropped.
            ConflictError: it moved meanwhile.
            TaskNotFoundError: there is no such task, or it is another tenant's.
        """
        stored = self._stored(task_id, tenant, payloads=True)
        hint = "; where a job exists at the vendor, resume looks at that one"
        return self._operate(stored, Retried(), "retry", needs_params=True, hint=hint)

    def resume(self, task_id: str, *, tenant: str | None = None) -> Task:
        """Track the task's job at the vendor again, as a new generation with a fresh deadline.

        Allowed for TRACKING_TIMED_OUT or FAILED where the vendor gave no verdict and there is an external
        task id. Not repeatable.

        Raises:
            ValidationError: the task is in another state.
            ConflictError: it moved meanwhile.
            TaskNotFoundError: there is no such task, or it is another tenant's.
        """
        hint = " with an external task id and no verdict of the vendor; otherwise retry starts a new job"
        return self._operate(
            self._stored(task_id, tenant), Resumed(), "resume", needs_params=False, hint=hint
        )

    def resolve(
        self,
        task_id: str,
        *,
        to: Literal["submitted", "failed", "pending"],
        query_params: QueryParams | None = None,
        reason: str,
        by: str,
        tenant: str | None = None,
    ) -> Task:
        """Say what became of a submit whose outcome is unknown, after looking at the vendor.

        Args:
            task_id: which; it must be SUBMIT_UNKNOWN.
            to: "submitted": the vendor has the job that ``query_params`` name; "failed": there is no job and
                there shall be none; "pending": there is no job, submit again with the same idempotency key.
            query_params: all that a query needs; with "submitted" only.
            reason: how that was found out; kept in the task's notes.
            by: who says so; kept as well.
            tenant: only if it belongs to this tenant.

        Raises:
            ValidationError: the task is in another state, or the arguments do not go together.
            ConflictError: it moved meanwhile.
            TaskNotFoundError: there is no such task, or it is another tenant's.
        """
        if to not in ("submitted", "failed", "pending"):
            raise ValidationError(f"to must be 'submitted', 'failed' or 'pending', found {to!r}", "to")
        if (to == "submitted") != (query_params is not None):
            raise ValidationError(
                "query_params (the vendor's id for the job and all else that a query needs) go with "
                f"to='submitted', and only with it; found to={to!r} and query_params={query_params!r}",
                "query_params",
            )
        check_name(reason, "reason")
        check_name(by, "by")
        if query_params is not None:
            codec.check_plain(
                query_params.provider_params, name="query_params", cap=codec.CAPS["query_params"]
            )
        stored = self._stored(task_id, tenant, payloads=to == "pending")
        event = Resolved(to=to, query_params=query_params, note=f"resolved to {to} by {by}: {reason}")
        return self._operate(stored, event, "resolve", needs_params=to == "pending")

    def refresh(self, task_id: str, *, tenant: str | None = None) -> Task:
        """Look at the vendor now: one query, one commit; return the task as it is afterwards.

        A queryable task is looked at unless a worker does that right now, or a limit or a gate forbids it.
        For a SUCCEEDED one with an external task id this is ``refresh_result``. Any other task is returned as
        it is. May be repeated.

        Raises:
            TaskNotFoundError: there is no such task, or it is another tenant's.
            UnknownNameError: its handler or its account is not known in this process.
            HandlerError: the result could not be fetched again.
        """
        task = self.get(task_id, tenant=tenant)
        if task.status is TaskStatus.SUCCEEDED and task.query_params is not None:
            return self.refresh_result(task_id, tenant=tenant)
        if not task.status.is_queryable:
            return task
        self.registry.handler(task.handler_key)
        batch = self.store.claim(
            f"refresh-{os.getpid()}",
            uuid.uuid4().hex,
            format=codec.FORMAT,
            handlers=[task.handler_key],
            room=Room(total=1),
            lease=REFRESH_LEASE,
            only=[task_id],
        )
        for lease in batch.leases:
            finished = self._steps.perform(lease, batch.now)
            self.store.commit([finished.transition])
            if finished.is_unknown_account:
                raise UnknownNameError.of(
                    "account", task.account, self.accounts.names, "Nothing was asked; configure it here too."
                )
            after = self.get(task_id)
            self._changed(task, after)
            return after
        return self.get(task_id, tenant=tenant)

    def refresh_result(self, task_id: str, *, tenant: str | None = None) -> Task:
        """Ask the vendor again for the result of a SUCCEEDED task, and return the task with what it gave.

        For results that expire, such as links: one query with the same external task id, nothing is
        submitted. The fresh result and its ``result_expires_at`` take the place of the old ones; where the
        vendor does not know the job any more, ``result_gone`` is set and the old result is kept. The status,
        events and money stay as they are. The call is made at once, by this process: no limit holds it back.
        May be repeated.

        Raises:
            ValidationError: the task is in another state, or ended without an external task id.
            TaskNotFoundError: there is no such task, or it is another tenant's.
            UnknownNameError: its handler or its account is not known in this process.
            HandlerError: the vendor gave no result this time; what is stored is kept, try again later.
            RequestError: what the vendor gave cannot be stored; what is stored is kept.
        """
        stored = self._stored(task_id, tenant)
        task = view(codec.decode_task(stored, with_result=False), self.store.now())
        if task.status is not TaskStatus.SUCCEEDED or task.query_params is None:
            found = "succeeded without one" if task.status is TaskStatus.SUCCEEDED else task.status
            raise ValidationError(
                f"cannot refresh the result of task {task.id}: it is {found}; allowed from succeeded with an "
                "external id, by which the vendor is asked again",
                "task_id",
            )
        transition = self._steps.refetch(stored, self.store.now())
        try:
            (answer,) = self.store.commit([transition])
        except StoreUnavailableError:
            (answer,) = self.store.commit([transition])  # a repeat of the same key answers DONE
        # A conflict means that somebody else has just refreshed it: theirs is as fresh.
        if answer.outcome not in (Outcome.DONE, Outcome.CONFLICT):
            raise StoreError(f"task {task.id} could not be written: {answer.message or answer.outcome}")
        return self.get(task_id, tenant=tenant)

    def receive_callback(
        self,
        task_id: str,
        *,
        body: bytes,
        headers: Mapping[str, str],
        query: Mapping[str, str] = EMPTY,
        received_at: datetime | None = None,
        tenant: str | None = None,
    ) -> Task:
        """Take what a vendor sent by itself as a hint to look at a task's job now; return the task.

        The handler verifies the vendor's signature, where it has one, and says which job the callback is
        about. If that is the task's job, its next query is due now (``make_due``), and a worker asks the
        vendor, whose answer is the only evidence. A callback that comes while the submit is still under way
        makes the first query due as soon as that is stored. One for a task that has ended changes nothing.
        May be repeated. For the application's own web server: it blocks as long as the store does and, while
        a vendor's public keys are fetched, as that vendor does.

        Args:
            task_id: which, from the callback's own address.
            body: the raw bytes as they arrived, neither decoded nor parsed.
            headers: all headers of the request.
            query: the parameters of the URL, for handlers that read them.
            received_at: when it arrived, if it was kept in a queue since; by default now, by the store's
                clock.
            tenant: only if it belongs to this tenant.

        Raises:
            CallbackRefusedError: the signature is missing, wrong or too old, or the callback cannot be read;
                nothing was changed.
            TaskNotFoundError: there is no such task, it is another tenant's, or its job is not the one that
                the callback is about.
            UnknownNameError: the handler, the account or a secret for the signature is not configured here.
            HandlerError: a vendor's public keys could not be fetched, so nobody knows.
            ValidationError: the body is not bytes, or the time is naive.
        """
        now = self.store.now()
        callback = Callback(body, headers, query=query, received_at=received_at or now)
        task = self.get(task_id, tenant=tenant, with_result=False)
        note = self._steps.read_callback(task, callback, now)
        if task.external_task_id not in (None, note.external_task_id):
            raise self._not_found(task_id)
        if task.status.is_queryable or (task.status is TaskStatus.SUBMITTING and task.is_leased):
            self.store.make_due([task_id])
        elif task.status is TaskStatus.SUBMIT_UNKNOWN:
            _log.warning(
                "a callback for task %s, whose submit is unknown, names job %r; look at the vendor, then "
                "resolve the task",
                task_id,
                note.external_task_id[:200],
            )
        return self.get(task_id, tenant=tenant, with_result=False)

    def make_due(self, task_id: str, *, redrive: bool = False, tenant: str | None = None) -> Task:
        """Let a waiting task's next step happen now. May be repeated.

        Args:
            task_id: which.
            redrive: whether to free it from quarantine too.
            tenant: only if it belongs to this tenant.

        Raises:
            TaskNotFoundError: there is no such task, or it is another tenant's.
        """
        self._stored(task_id, tenant)
        self.store.make_due([task_id], redrive=redrive)
        return self.get(task_id, tenant=tenant)

    # The namespace.

    def set_limits(self, *limits: Limit, only_missing: bool = False) -> None:
        """Set limits, live for all workers. May be repeated.

        Args:
            limits: a limit with neither ``rate`` nor ``live`` lifts the one that is set.
            only_missing: whether to leave what is already limited as it is.
        """
        self.store.set_limit(limits, only_missing=only_missing)

    def pause(
        self, kind: Literal["provider", "account", "tenant"], name: str, *, by: str, reason: str
    ) -> None:
        """Stop submits of a provider, an account or a tenant; queries go on. May be repeated.

        Raises:
            ValidationError: the kind or a text is not allowed.
        """
        _check_pausable(kind, name)
        check_name(by, "by")
        check_name(reason, "reason")
        self.store.pause(kind, name, by=by, reason=reason)

    def unpause(self, kind: Literal["provider", "account", "tenant"], name: str) -> bool:
        """Let submits go on; ``False`` when it was not paused. May be repeated.

        Raises:
            ValidationError: the kind is not allowed.
        """
        _check_pausable(kind, name)
        return self.store.unpause(kind, name)

    def stats(self) -> Stats:
        """Count. Changes nothing; may be repeated."""
        return self.store.stats()

    def prune(self, older_than: timedelta | Mapping[TaskStatus, timedelta]) -> int:
        """Delete tasks that ended that long ago, and return how many; repeats are harmless.

        Args:
            older_than: one age for all ends but SUBMIT_UNKNOWN, which wait for an operator, or an age for
                each end.

        Raises:
            ValidationError: an age is no duration, or a status is no end.
        """
        ages = older_than if isinstance(older_than, Mapping) else dict.fromkeys(sorted(PRUNABLE), older_than)
        for status, age in ages.items():
            if _status(status) not in ENDS:
                raise ValidationError(f"only ended tasks are pruned, found {status!r}", "older_than")
            check_duration(age, "older_than", zero=True)
        ages = {_status(status): age for status, age in ages.items()}
        deleted = 0
        while count := self.store.prune(ages):
            deleted += count
        return deleted

    # How these are done.

    def _stored(self, task_id: str, tenant: str | None, *, payloads: bool = False) -> Stored:
        if not isinstance(task_id, str):
            raise ValidationError(f"a task id is a text, found {task_id!r}; pass task.id", "task_id")
        (stored,) = self.store.get([task_id], tenant=tenant, payloads=payloads)
        if stored is None:
            raise self._not_found(task_id)
        return stored

    def _not_found(self, task_id: str) -> TaskNotFoundError:
        where = f"namespace {self.store.namespace!r} of this {self.store.kind} store"
        private = "" if self.store.is_shared else ", which only its own process sees"
        return TaskNotFoundError(
            f"no task {task_id!r} in {where}{private}; check the id, the store and the namespace", task_id
        )

    def _operate(
        self,
        stored: Stored,
        event: Retried | Resumed | Resolved,
        what: str,
        *,
        needs_params: bool,
        hint: str = "",
    ) -> Task:
        """Make an operator's move, or say in which states it is allowed."""
        task = self._expired(codec.decode_task(stored, with_result=False))
        states = [state for rule in RULES if rule.event is type(event) for state in rule.states]
        if needs_params and stored.params is None and state_of(task) in states:
            raise ValidationError(
                f"cannot {what} task {task.id}: its request was dropped when the vendor took it "
                f"(keep_params={task.traits.keep_params!r}); submit the request again",
                "task_id",
            )
        move = None if task.is_leased else advance(task, event, self.store.now())
        if move is None:
            held = " and a worker holds it" if task.is_leased else ""
            raise ValidationError(
                f"cannot {what} task {task.id}: it is {state_of(task)}{held}; allowed from "
                f"{', '.join(states)}{hint}",
                "task_id",
            )
        return self._commit(task, move)

    def _expired(self, task: Task) -> Task:
        """Write down that a pending task is past its deadline, as readers see it already."""
        now = self.store.now()
        move = None if view(task, now) is task else advance(task, Overdue(), now)
        return task if move is None else self._commit(task, move)

    def _commit(self, before: Task, move: Move) -> Task:
        transition = unleased(before, move)
        try:
            (answer,) = self.store.commit([transition])
        except StoreUnavailableError:
            (answer,) = self.store.commit([transition])  # a repeat of the same key answers DONE
        if answer.outcome is Outcome.DONE:
            after = self.get(before.id)
            self._changed(before, after)
            return after
        if answer.outcome in (Outcome.CONFLICT, Outcome.LEASE_LOST):
            raise ConflictError(
                f"task {before.id} moved since version {before.version} was read; look and decide again",
                before.id,
            )
        raise StoreError(f"task {before.id} could not be written: {answer.message or answer.outcome}")

    def _changed(self, before: Task | None, after: Task) -> None:
        if self.plugins is not None:
            self.plugins.task_changed(before, after)

    def _tell(
        self, task: Task, told: WaitReason | None, on_waiting: Callable[[Explanation], None] | None
    ) -> WaitReason | None:
        (found,) = self.store.explain([task.id])
        if found is None or found.reason not in _STUCK:
            return None
        if found.reason is not told:
            if on_waiting is not None:
                on_waiting(found)
            else:
                _log.warning("task %s waits: %s", task.id, found.message)
        return found.reason

    def _impatient(self, task: Task, waited: timedelta) -> WaitTimeoutError:
        (found,) = self.store.explain([task.id])
        why = f" ({found.message})" if found is not None and found.reason in _STUCK else ""
        job = f", job {task.external_task_id} at the vendor" if task.external_task_id else ""
        return WaitTimeoutError(
            f"task {task.id} was {task.status}{job} after {waited.total_seconds():.1f} s{why}; "
            "it goes on: wait again with its id",
            task.id,
            task.external_task_id,
            waited,
            task.status,
        )


#: Reasons that do not end by themselves soon: somebody should know.
_STUCK = frozenset(
    {
        WaitReason.NO_HANDLER,
        WaitReason.UNKNOWN_ACCOUNT,
        WaitReason.QUARANTINED,
        WaitReason.NEWER_RECORD,
        WaitReason.PAUSED,
    }
)


def error_of(task: Task) -> TaskError:
    """Return what ``Manager.result`` raises for a task that ended otherwise than SUCCEEDED."""
    ids = (task.id, task.external_task_id)
    job = f" (job {task.external_task_id} at the vendor)" if task.external_task_id else ""
    failure = task.error
    code = failure.code if failure else ""
    why = f": {code}: {failure.message}" if failure else ""
    if task.status is TaskStatus.FAILED:
        phase, retryable = (failure.phase, failure.retryable) if failure else ("", False)
        return TaskFailedError(f"task {task.id} failed{job}{why}", *ids, code, phase, retryable)
    if task.status is TaskStatus.CANCELED:
        return TaskCanceledError(f"task {task.id} was canceled{job}", *ids)
    if task.status is TaskStatus.TRACKING_TIMED_OUT:
        then = "resume tracks its job again" if task.external_task_id else "retry submits it again"
        return TrackingTimedOutError(f"task {task.id} timed out{job}{why}; {then}", *ids, code)
    return SubmitUnknownError(
        f"whether a job exists for task {task.id} is not known{why}; look at the vendor, then resolve it",
        *ids,
        code,
    )


def _options(options: SubmitOptions | None, changes: dict[str, Any]) -> SubmitOptions:
    if options is not None and not isinstance(options, SubmitOptions):
        raise ValidationError(
            f"options must be SubmitOptions, found {type(options).__name__}; pass single options as keywords",
            "options",
        )
    known = [a.name for a in attrs.fields(SubmitOptions)]
    for name in changes:
        if name not in known:
            raise UnknownNameError.of("option", name, known)
    if isinstance(changes.get("metadata"), Mapping):
        # Before it is copied: copying a file or a client fails with an error of its own.
        codec.check_plain(changes["metadata"], name="metadata", cap=codec.CAPS["metadata"])
    return SubmitOptions(**changes) if options is None else attrs.evolve(options, **changes)


def _new_id() -> str:
    """Return a UUID (version 7): ids made later sort later, which keeps the store's indexes compact."""
    moment = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10), "big")
    number = moment << 80 | tail & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62
    return str(uuid.UUID(int=number))


def _status(status: TaskStatus | str) -> TaskStatus:
    try:
        return TaskStatus(status)
    except ValueError:
        known = [known.value for known in TaskStatus]
        raise UnknownNameError.of("status", status, known) from None


def _listed(stored: Stored) -> Task:
    try:
        return codec.decode_task(stored, with_result=False)
    except (NewerRecordError, StoreError) as error:
        # One record that cannot be read here must not hide the others.
        return Task(**stored.row.__dict__, notes=(str(error),))


def read_patience(timeout: timedelta | float | None) -> timedelta | None:
    """Return how long a caller wants to wait, given in seconds or as a timedelta; ``None`` for no limit.

    Raises:
        ValidationError: anything else, or a negative or senselessly long time.
    """
    longest = LONGEST.total_seconds()
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 <= timeout <= longest:
        return timedelta(seconds=timeout)
    if timeout is None or (isinstance(timeout, timedelta) and timedelta() <= timeout <= LONGEST):
        return timeout
    raise ValidationError(
        f"timeout must be 0 to {longest:.0f} seconds, a timedelta up to that, or None, found {timeout!r}",
        "timeout",
    )


def _check_pausable(kind: str, name: str) -> None:
    kinds = ("provider", "account", "tenant")
    if kind not in kinds:
        raise UnknownNameError.of("kind", kind, kinds)
    check_name(name, kind, blank=kind == "tenant")
