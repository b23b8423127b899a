"""What a store is: the verbs, and the values that go in and out of them.

A store keeps tasks, hands out leases and enforces limits. It never decides a move of the life cycle, except
that a claim for submit makes a task SUBMITTING; it writes what ``lifecycle.advance`` decided. The hot columns
(``Row``) are the store's own; record, params and result are opaque bytes to it. Every verb is atomic, takes
many tasks at once and may be called from any thread.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen

from coatcheck.lifecycle import GateClose
from coatcheck.model import CancelFlag, Job, Limit, Pause, Side, Step, TaskStatus, WaitReason

#: Deaths in a row after which a task runs alone, and after which it is quarantined.
SUSPECT_CLAIMS = 2
QUARANTINE_CLAIMS = 3
#: How long a worker's handler keys are believed after its last claim.
WORKER_SEEN = timedelta(seconds=60)


class Kind(StrEnum):
    """What a claimed task is claimed for."""

    SUBMIT = "submit"
    RESUBMIT = "resubmit"
    LOOKUP = "lookup"
    QUERY = "query"
    CANCEL = "cancel"
    #: SUBMITTING whose lease ran out half a lease ago: its worker died in it.
    RECOVER = "recover"
    #: Past its deadline with nobody to take a last look.
    EXPIRE = "expire"


@frozen(kw_only=True, slots=False)
class Row:
    """The hot columns; each has the meaning of the field of ``Task`` with the same name."""

    id: str
    status: TaskStatus
    version: int
    generation: int
    handler_key: str
    provider_key: str
    account: str
    tenant: str
    priority: int
    dedupe_key: str | None
    deadline: timedelta
    queue_deadline: timedelta | None
    stall_limit: timedelta | None
    created_at: datetime
    scheduled_at: datetime
    deadline_at: datetime
    queue_deadline_at: datetime | None
    stall_at: datetime | None
    due_at: datetime | None
    updated_at: datetime
    finished_at: datetime | None
    next_step: Step | None
    cancel: CancelFlag
    is_leased: bool
    claims: int


@frozen(kw_only=True)
class Stored:
    """One task as a store gives it out."""

    row: Row
    format: int
    record: bytes = field(repr=False)
    #: Loaded only where the caller needs them.
    params: bytes | None = field(default=None, repr=False)
    result: bytes | None = field(default=None, repr=False)


@frozen(kw_only=True)
class NewTask:
    """A task to be added; instants are computed by the store's clock.

    ``delay`` and ``run_at`` exclude each other.
    """

    id: str
    format: int
    record: bytes = field(repr=False)
    params: bytes = field(repr=False)
    handler_key: str
    provider_key: str
    account: str
    tenant: str = ""
    priority: int = 0
    delay: timedelta = timedelta()
    run_at: datetime | None = None
    deadline: timedelta = timedelta(hours=24)
    queue_deadline: timedelta | None = None
    stall_limit: timedelta | None = None
    dedupe_key: str | None = None
    #: Digest of request type and params; equal digests under one dedupe key are the same request.
    dedupe_digest: bytes | None = None
    #: Movements of money that go with the task; refused by stores without a ledger.
    postings: tuple[Any, ...] = ()
    events: tuple[Any, ...] = ()


class AddOutcome(StrEnum):
    """What became of one new task."""

    #: Stored (also when this very id was stored before: a repeated call is harmless).
    CREATED = "created"
    #: The dedupe key is taken by a task with the same digest: nothing stored, that task is the answer.
    REPLAYED = "replayed"
    #: The dedupe key is taken by a task with another digest: nothing stored.
    CONFLICT = "conflict"


@frozen(kw_only=True)
class Added:
    """The answer for one new task; ``stored`` is the task that holds the id or the dedupe key now."""

    outcome: AddOutcome
    stored: Stored


@frozen(kw_only=True)
class Room:
    """How many more steps a worker can hold, counted from claim until the commit is acknowledged."""

    total: int
    #: Free places of providers that have their own bound.
    per_provider: Mapping[str, int] = field(factory=dict)
    #: Free places of every other provider.
    default: int = 1_000_000
    #: The worker holds nothing at all, so it may be given one suspect (a task that killed two workers),
    #: alone.
    is_idle: bool = False

    def of(self, provider: str) -> int:
        """Return the free places of one provider."""
        return self.per_provider.get(provider, self.default)


@frozen(kw_only=True)
class Lease:
    """A worker's time-bounded claim of one task."""

    kind: Kind
    stored: Stored
    #: Random; fences off everybody who held the task before.
    token: str
    expires_at: datetime

    @property
    def task_id(self) -> str:
        """The id of the leased task."""
        return self.stored.row.id


@frozen(kw_only=True)
class Batch:
    """The answer to a claim."""

    leases: tuple[Lease, ...]
    #: The store's time of the claim.
    now: datetime
    #: When to claim again even if nothing is heard; ``None``: nothing is waiting for a time.
    next_at: datetime | None
    #: Pass it to ``wait_for_work``: what came after this claim is noticed.
    mark: int
    #: Suspects wait for a worker that holds nothing: stop claiming until idle.
    has_suspects: bool = False


@frozen(kw_only=True)
class Transition:
    """A decided move, ready to be written.

    Leased ones carry the lease's token as ``key``; unleased ones (``is_leased`` false) carry a random key and
    the version and status that they expect. The key makes a repeat recognisable.
    """

    task_id: str
    key: str
    is_leased: bool = True
    expected_version: int | None = None
    expected_status: TaskStatus | None = None
    status: TaskStatus
    generation: int
    next_step: Step | None
    #: From the commit to the next step, bounded by the deadlines; ``None``: none.
    delay: timedelta | None
    job: Job
    #: How long a GHOST keeps its account slot.
    ghost_for: timedelta = timedelta(hours=1)
    format: int
    record: bytes = field(repr=False)
    #: ``None`` keeps what is there.
    result: bytes | None = field(default=None, repr=False)
    drop_params: bool = False
    #: The side whose gate the step's answer is about; a step that closes no gate ends that gate's row of
    #: closings.
    side: Side | None = None
    gate: GateClose | None = None
    restart: bool = False
    progressed: bool = False
    cancel: CancelFlag | None = None
    #: "reset" to 0, "keep", or "undo" the last one.
    claims: str = "reset"
    events: tuple[Any, ...] = ()
    postings: tuple[Any, ...] = ()


class Outcome(StrEnum):
    """What became of one transition."""

    DONE = "done"
    #: Another worker holds the task, or it went on without this one.
    LEASE_LOST = "lease_lost"
    #: Not in the expected version and status, or held by a worker.
    CONFLICT = "conflict"
    #: A posting would go below its floor.
    REFUSED = "refused"
    #: This row cannot be written; the others were.
    FAILED = "failed"


@frozen(kw_only=True)
class Committed:
    """The answer for one transition."""

    outcome: Outcome
    message: str = ""


@frozen(kw_only=True)
class Filter:
    """Which tasks a list shows; ``None`` matches all."""

    statuses: Collection[TaskStatus] | None = None
    tenant: str | None = None
    handler_key: str | None = None
    provider_key: str | None = None
    account: str | None = None
    #: The task that holds this dedupe key; give the tenant too, because keys belong to tenants.
    dedupe_key: str | None = None
    #: Only quarantined tasks.
    quarantined: bool = False


@frozen(kw_only=True)
class Page:
    """One page of a list, newest first, without payloads."""

    items: tuple[Stored, ...]
    #: Pass it on for the next page; ``None`` at the end.
    cursor: str | None


@frozen(kw_only=True)
class Gate:
    """A closed door in front of (provider, account, side)."""

    provider: str
    account: str
    side: Side
    until: datetime
    #: Closings in a row.
    streak: int


@frozen(kw_only=True)
class Stats:
    """The state of a namespace at a glance."""

    now: datetime
    by_status: Mapping[TaskStatus, int]
    limits: tuple[Limit, ...]
    pauses: tuple[Pause, ...]
    #: Gates that are closed now.
    gates: tuple[Gate, ...]
    #: Handler keys of workers that claimed within the last minute.
    handlers: frozenset[str]
    quarantined: int
    ready_lanes: int
    blocked_lanes: int
    #: How late the head of the line is; ``None`` when nothing is due.
    oldest_due_at: datetime | None


@frozen(kw_only=True)
class Explanation:
    """Why one task waits."""

    reason: WaitReason
    message: str
    #: When the reason ends by itself, if that is known.
    until: datetime | None = None


@runtime_checkable
class Store(Protocol):
    """The verbs.

    A call that raises ``StoreUnavailableError`` may have run or not; each docstring says what a repeat does.
    """

    #: What kind of store this is, for messages: "sqlite", "redis", ….
    kind: str
    namespace: str
    #: Whether other processes see the same tasks.
    is_shared: bool
    #: Optional protocols that it serves: "ledger", "outbox", "inbox", "ownership".
    capabilities: frozenset[str]

    def now(self) -> datetime:
        """Return the store's time. Repeatable."""
        ...

    def add(self, tasks: Sequence[NewTask]) -> Sequence[Added]:
        """Store new tasks, PENDING_SUBMIT and due at their scheduled time; one answer per task, in order.

        Dedupe is checked here: the scope is (namespace, tenant, key); of two tasks with one key in the same
        call the first wins. Repeatable: the same ids are stored once.

        Raises:
            StoreFullError: no room; nothing was stored.
            StoreConfigError: postings or events were given to a store without that capability; nothing was
                stored.
        """
        ...

    def get(
        self, ids: Sequence[str], *, tenant: str | None = None, payloads: bool = False
    ) -> Sequence[Stored | None]:
        """Return the tasks with these ids.

        ``None`` stands for a missing one or, with ``tenant``, for another tenant's. Repeatable.
        """
        ...

    def list(self, where: Filter, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return a page of tasks, newest first, without payloads. Repeatable."""
        ...

    def claim(
        self,
        worker_id: str,
        nonce: str,
        *,
        format: int,
        handlers: Collection[str],
        room: Room,
        lease: timedelta,
        skip: Collection[str] = (),
        only: Sequence[str] | None = None,
    ) -> Batch:
        """Lease what is due to ``worker_id`` and say when to come back.

        ``submit`` takes a slot, a submit permit and an open submit gate and makes the task SUBMITTING with
        job LIVE; ``resubmit`` takes a submit permit and gate but no slot; ``query``, ``lookup`` and
        ``cancel`` take a query permit and gate. ``expire``, ``recover`` and ``cancel`` of a PENDING_SUBMIT
        task need no handler, room or permit. A queryable task whose cancel flag is REQUESTED is handed out as
        ``cancel`` instead of ``query``. Half of the room goes to the query side, half to submissions; what
        one leaves the other takes.

        Args:
            worker_id: who claims.
            nonce: random per claim; a repeat with the same nonce returns the same leases.
            format: the newest record format that the caller reads; newer rows stay untouched.
            handlers: the keys that the caller can run; remembered for a minute (not with ``only``).
            room: free places.
            lease: how long the claim lasts without renewal.
            skip: accounts to leave out.
            only: claim only these tasks, due or not, if they are queryable, free and allowed by permits and
                gates.
        """
        ...

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Write moves, one atomic write per task; one answer per transition, in order. A repeat answers DONE.

        A leased one is refused when the row's token has changed, never because time passed; an unleased one
        while the row carries a token or is not in the expected version and status.
        """
        ...

    def renew(self, leases: Sequence[tuple[str, str]], lease: timedelta) -> Sequence[bool]:
        """Extend leases, given as (task id, token), from now.

        ``False`` where the token has changed. Repeatable.
        """
        ...

    def request_cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[bool]:
        """Set the cancel flag of tasks that have not ended and make them due now (a lookup excepted).

        No version changes. ``False`` for ended and missing ones. A leased task is made due by its step's
        commit. Repeatable.
        """
        ...

    def make_due(self, ids: Sequence[str], *, redrive: bool = False) -> Sequence[bool]:
        """Make waiting tasks due now; on a leased one its commit does so.

        ``redrive`` also frees quarantined ones. Repeatable.
        """
        ...

    def prune(self, older_than: Mapping[TaskStatus, timedelta], *, limit: int = 1000) -> int:
        """Delete at most ``limit`` ended tasks that ended that long ago; rows that hold a slot stay.

        Repeatable, until it returns 0.
        """
        ...

    def stats(self) -> Stats:
        """Count. Repeatable."""
        ...

    def explain(self, ids: Sequence[str]) -> Sequence[Explanation | None]:
        """Say why tasks wait; ``None`` for missing ones. Repeatable."""
        ...

    def set_limit(self, limits: Sequence[Limit], *, only_missing: bool = False) -> None:
        """Set limits, live.

        ``only_missing`` leaves those that the store already has for the same subject. Repeatable.
        """
        ...

    def pause(self, kind: str, name: str, *, by: str, reason: str) -> None:
        """Stop submits of a provider, account or tenant; queries go on.

        Repeatable: the newest reason stays.
        """
        ...

    def unpause(self, kind: str, name: str) -> bool:
        """Let submits go on; ``False`` when it was not paused. Repeatable."""
        ...

    def wait_for_work(self, mark: int, timeout: timedelta) -> bool:
        """Block until something may be due that the claim with this ``mark`` did not see, or ``timeout``."""
        ...

    def wait_for_change(self, task_id: str, version: int, timeout: timedelta) -> bool:
        """Block until the task's version is no longer ``version`` (or it is gone), or until ``timeout``."""
        ...

    def close(self) -> None:
        """Give back connections; every other verb raises ``StoreUnavailableError`` afterwards. Repeatable."""
        ...
