"""A store in plain lists and sorts: what the verbs must do, as slow and as obvious as possible.

The model never decides what a claim takes; it is told, and says whether that was allowed and whether anything
was left that had to be taken. Where ``coatcheck.store`` leaves a choice to the store, so does the model. It
does no I/O.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from attrs import define, field, frozen

from coatcheck.model import QUERYABLE, CancelFlag, Job, Limit, Side, Step, TaskStatus
from coatcheck.store import (
    QUARANTINE_CLAIMS,
    SUSPECT_CLAIMS,
    AddOutcome,
    Batch,
    Kind,
    Lease,
    NewTask,
    Outcome,
    Room,
    Row,
    Transition,
)
from coatcheck.testing.records import SIDES

#: The kinds that anybody may do, without handler, room or permit (a cancel only before the submit).
FREE_KINDS = frozenset({Kind.EXPIRE, Kind.RECOVER})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@define
class ModelTask:
    """A task as the model knows it."""

    new: NewTask
    #: Position in the order of creation.
    number: int
    created_at: datetime
    scheduled_at: datetime
    deadline_at: datetime
    queue_deadline_at: datetime | None
    due_at: datetime | None
    record: bytes
    format: int
    status: TaskStatus = TaskStatus.PENDING_SUBMIT
    version: int = 0
    generation: int = 1
    next_step: Step | None = Step.SUBMIT
    job: Job = Job.NONE
    ghost_until: datetime | None = None
    stall_at: datetime | None = None
    finished_at: datetime | None = None
    cancel: CancelFlag = CancelFlag.NONE
    claims: int = 0
    token: str | None = None
    lease_until: datetime | None = None
    lease: timedelta = timedelta()
    #: A hint or a cancel came since the claim.
    is_hurried: bool = False
    #: It was written since its row was compared: its version must have risen.
    is_written: bool = False
    #: Keys of the transitions that were written, the last one last.
    keys: list[str] = field(factory=list)

    def __str__(self) -> str:
        held = "" if self.token is None else f", held until {self.lease_until:%H:%M:%S}"
        due = "-" if self.due_at is None else f"{self.due_at:%H:%M:%S}"
        return (
            f"<{self.id} {self.status}, next {self.next_step} due {due}{held}, {self.cancel!r}, "
            f"claims {self.claims}, {self.new.handler_key} {self.new.provider_key} {self.new.account} "
            f"tenant {self.new.tenant!r} priority {self.new.priority}>"
        )

    @property
    def id(self) -> str:
        """The id of the task."""
        return self.new.id

    @property
    def submit_deadline_at(self) -> datetime:
        """The time from which the task is not submitted any more."""
        return min(self.deadline_at, self.queue_deadline_at or self.deadline_at)

    def is_held(self, now: datetime) -> bool:
        """Whether a worker's lease stands."""
        return self.token is not None and self.lease_until is not None and now < self.lease_until

    def holds_account(self, now: datetime) -> bool:
        """Whether the task's job counts for its account."""
        return self.job is Job.LIVE or (
            self.job is Job.GHOST and self.ghost_until is not None and now < self.ghost_until
        )


@frozen
class Permit:
    """One vendor call that a claim allowed."""

    at: datetime
    side: Side
    provider: str
    account: str


@frozen(kw_only=True)
class Asked:
    """What a worker said in its claim."""

    handlers: Collection[str]
    room: Room
    format: int
    lease: timedelta
    skip: Collection[str] = ()
    only: Sequence[str] | None = None


@frozen
class Offer:
    """What one task may be claimed for at one moment."""

    kinds: frozenset[Kind] = frozenset()
    #: Whether anybody may have it, whatever the limits.
    is_free: bool = False
    #: Whether somebody who can do it has to get it (if there is room).
    is_due: bool = False


_NOTHING = Offer()


def is_free(kind: Kind, status: TaskStatus) -> bool:
    """Whether a claim of this kind needs no handler, room or permit."""
    return kind in FREE_KINDS or (kind is Kind.CANCEL and status is TaskStatus.PENDING_SUBMIT)


class StoreModel:
    """What a store must know, and the checks of what it answers.

    Args:
        ageing: that of the namespace.
    """

    def __init__(self, *, ageing: timedelta | None = None) -> None:
        self.ageing = ageing
        self.tasks: dict[str, ModelTask] = {}
        #: By subject: the limit, and how many permits there had been when it was set.
        self.limits: dict[object, tuple[Limit, int]] = {}
        self.paused: set[tuple[str, str]] = set()
        self.gates: dict[tuple[str, str, Side], datetime] = {}
        self.permits: list[Permit] = []
        self._number = 0

    # Adding and deleting.

    def add(self, new: NewTask, now: datetime) -> tuple[AddOutcome, str]:
        """Store a new task; return what becomes of it and the id of the task that answers."""
        if new.id in self.tasks:
            return AddOutcome.CREATED, new.id
        for task in self.tasks.values():
            same = (task.new.tenant, task.new.dedupe_key) == (new.tenant, new.dedupe_key)
            if new.dedupe_key is not None and same:
                is_same = task.new.dedupe_digest == new.dedupe_digest
                return (AddOutcome.REPLAYED if is_same else AddOutcome.CONFLICT), task.id
        at = max(new.run_at or now, now) + new.delay
        self._number += 1
        self.tasks[new.id] = ModelTask(
            new=new,
            number=self._number,
            created_at=now,
            scheduled_at=at,
            deadline_at=at + new.deadline,
            queue_deadline_at=None if new.queue_deadline is None else at + new.queue_deadline,
            due_at=at,
            record=new.record,
            format=new.format,
        )
        return AddOutcome.CREATED, new.id

    def prune(
        self, gone: Collection[str], statuses: Collection[TaskStatus], age: timedelta, now: datetime
    ) -> None:
        """Check which rows a prune without a bound deleted, and forget them."""
        for task in list(self.tasks.values()):
            is_old = task.finished_at is not None and task.finished_at + age <= now
            may_go = is_old and task.status in statuses and not task.holds_account(now)
            if task.id in gone:
                assert may_go, f"{task} was pruned"
                del self.tasks[task.id]
            else:
                # A row whose job had its time may wait for a claim to notice.
                assert not may_go or task.job is Job.GHOST, f"{task} was not pruned"

    # Limits.

    def set_limit(self, limit: Limit) -> None:
        """Remember or lift a limit."""
        if limit.rate is None and limit.live is None:
            self.limits.pop(limit.subject, None)
        else:
            self.limits[limit.subject] = (limit, len(self.permits))

    def refusals(self, task: ModelTask, kind: Kind, now: datetime, *, for_sure: bool) -> list[str]:
        """Name what stands in the way of a vendor call.

        With ``for_sure`` only what every store must refuse; otherwise also what a store may refuse: a rate
        may count calls that were made before it was set.
        """
        new, side = task.new, SIDES[kind]
        found = []
        if self.gates.get((new.provider_key, new.account, side), now) > now:
            found.append("gate")
        if kind is Kind.SUBMIT or (kind is Kind.RESUBMIT and not for_sure):
            names = {("provider", new.provider_key), ("account", new.account), ("tenant", new.tenant)}
            found += ["pause"] if names & self.paused else []
        for limit, since in self.limits.values():
            if not _is_subject(limit, new):
                continue
            if limit.rate is not None and limit.side is side:
                used = self._used(limit, now, since if for_sure else 0)
                found += ["rate"] if used >= limit.rate.count else []
            if limit.live is not None and kind is Kind.SUBMIT:
                found += ["live"] if self.live(limit, now) >= limit.live else []
        return found

    def live(self, limit: Limit, now: datetime) -> int:
        """Count the live jobs of a limit's account or tenant."""
        if limit.account is not None:
            return sum(t.holds_account(now) for t in self.tasks.values() if t.new.account == limit.account)
        return sum(t.job is Job.LIVE for t in self.tasks.values() if t.new.tenant == limit.tenant)

    def _used(self, limit: Limit, now: datetime, since: int) -> int:
        assert limit.rate is not None
        return sum(
            permit.side is limit.side
            and limit.provider in (None, permit.provider)
            and limit.account in (None, permit.account)
            and now < permit.at + limit.rate.per
            for permit in self.permits[since:]
        )

    # Claiming.

    def offer(self, task: ModelTask, asked: Asked, now: datetime) -> Offer:
        """Say what a task may be claimed for, limits and room aside."""
        if task.status.is_end or task.format > asked.format or task.is_held(now):
            return _NOTHING
        is_due = task.token is not None or (task.due_at is not None and task.due_at <= now)
        if task.status is TaskStatus.PENDING_SUBMIT:
            if task.cancel is CancelFlag.REQUESTED:
                return Offer(frozenset({Kind.CANCEL}), is_free=True, is_due=True)
            if task.submit_deadline_at <= now:
                return Offer(frozenset({Kind.EXPIRE}), is_free=True, is_due=True)
            return Offer(frozenset({Kind.SUBMIT}), is_due=True) if is_due else _NOTHING
        is_abandoned = task.deadline_at + asked.lease <= now
        if task.status is TaskStatus.SUBMITTING:
            return self._submitting(task, now, is_due=is_due, is_abandoned=is_abandoned)
        if task.claims >= QUARANTINE_CLAIMS:
            return Offer(frozenset({Kind.EXPIRE}), is_free=True, is_due=True) if is_abandoned else _NOTHING
        is_canceled = task.cancel is CancelFlag.REQUESTED or task.next_step is Step.CANCEL
        step = Kind.CANCEL if is_canceled else Kind.QUERY
        if is_abandoned:
            return Offer(frozenset({step, Kind.EXPIRE}), is_free=True, is_due=True)
        return Offer(frozenset({step}), is_due=True) if is_due else _NOTHING

    def _submitting(self, task: ModelTask, now: datetime, *, is_due: bool, is_abandoned: bool) -> Offer:
        if task.token is not None:
            assert task.lease_until is not None
            if now < task.lease_until + task.lease / 2:
                return _NOTHING
            return Offer(frozenset({Kind.RECOVER, Kind.EXPIRE}), is_free=True, is_due=True)
        assert task.next_step in (Step.RESUBMIT, Step.LOOKUP)
        kinds = {Kind(task.next_step)} if is_due else set()
        if task.deadline_at <= now:
            kinds.add(Kind.EXPIRE)
        return Offer(frozenset(kinds), is_free=is_abandoned, is_due=is_due or is_abandoned)

    def can_run(self, task: ModelTask, asked: Asked) -> bool:
        """Whether the worker has the handler and the account for vendor calls of the task."""
        return task.new.handler_key in asked.handlers and task.new.account not in asked.skip

    def left_over(self, asked: Asked, now: datetime, *, used: Iterable[str] = ()) -> list[ModelTask]:
        """Return the tasks that a worker with free places would have to get, suspects among them.

        ``used`` are the providers of the places that are taken.
        """
        taken = list(used)
        found = []
        for task in self.tasks.values():
            offer = self.offer(task, asked, now)
            if not offer.is_due:
                continue
            if offer.is_free:
                found.append(task)
                continue
            (kind,) = [kind for kind in offer.kinds if kind not in FREE_KINDS]
            provider = task.new.provider_key
            has_room = taken.count(provider) < asked.room.of(provider) and asked.room.total > 0
            if has_room and self.can_run(task, asked) and not self.refusals(task, kind, now, for_sure=False):
                found.append(task)
        return found

    def claim(self, batch: Batch, asked: Asked) -> None:
        """Check a batch and take its leases over."""
        now = batch.now
        calls = [lease for lease in batch.leases if not self._is_free(lease)]
        had_suspects = [lease for lease in calls if self._is_suspect(lease.task_id)]
        for lease in batch.leases:
            self._take(lease, asked, now)
        self._check_resources(calls, now)
        used = [lease.stored.row.provider_key for lease in calls]
        assert len(calls) <= asked.room.total, f"{len(calls)} leases for {asked.room}"
        for provider in used:
            assert used.count(provider) <= asked.room.of(provider), f"{provider} has too many leases"
        if had_suspects and asked.only is None:
            assert asked.room.is_idle, "a suspect was given to a worker that holds something"
            assert len(batch.leases) == 1, "a suspect was not alone"
        if asked.only is None:
            left = self.left_over(asked, now, used=used)
            self._check_left(left, calls, batch, asked, is_alone=bool(had_suspects))
            if len(calls) < asked.room.total and not had_suspects:
                self._check_next_at(batch, asked, used)

    def _is_free(self, lease: Lease) -> bool:
        return is_free(lease.kind, self.tasks[lease.task_id].status)

    def _is_suspect(self, task_id: str) -> bool:
        return self.tasks[task_id].claims >= SUSPECT_CLAIMS

    def _take(self, lease: Lease, asked: Asked, now: datetime) -> None:
        task = self.tasks[lease.task_id]
        if asked.only is not None:
            assert task.id in asked.only, f"{task} was not asked for"
            assert task.status in QUERYABLE, f"{task} cannot be queried"
            assert not task.is_held(now), f"{task} is held"
            assert lease.kind in (Kind.QUERY, Kind.CANCEL)
        else:
            offer = self.offer(task, asked, now)
            assert lease.kind in offer.kinds, f"{task} was claimed for {lease.kind} instead of {offer.kinds}"
        if not self._is_free(lease):
            assert self.can_run(task, asked), f"{task} is not for this worker"
            refused = self.refusals(task, lease.kind, now, for_sure=True)
            assert not refused, f"{task} was claimed in spite of {refused}"
        assert lease.token != task.token, "a token was given twice"
        assert lease.expires_at == now + asked.lease
        assert lease.stored.record == task.record
        task.token, task.lease_until, task.lease = lease.token, lease.expires_at, asked.lease
        # What came before this step is what the step is for.
        task.is_hurried = False
        row = lease.stored.row
        if self._is_free(lease):
            assert row.claims in (task.claims, task.claims + 1)
            task.claims = row.claims
            return
        task.claims += 1
        self.permits.append(Permit(now, SIDES[lease.kind], task.new.provider_key, task.new.account))
        if lease.kind is Kind.SUBMIT:
            task.status, task.job = TaskStatus.SUBMITTING, Job.LIVE

    def _check_resources(self, calls: Sequence[Lease], now: datetime) -> None:
        """No limit is exceeded by the batch as a whole."""
        for limit, since in self.limits.values():
            mine = [lease for lease in calls if _is_subject(limit, self.tasks[lease.task_id].new)]
            if limit.rate is not None and any(SIDES[lease.kind] is limit.side for lease in mine):
                used = self._used(limit, now, since)
                assert used <= limit.rate.count, f"{used} permits of {limit}"
            if limit.live is not None and any(lease.kind is Kind.SUBMIT for lease in mine):
                assert self.live(limit, now) <= limit.live, f"{self.live(limit, now)} jobs for {limit}"

    def _check_left(
        self, left: Sequence[ModelTask], calls: Sequence[Lease], batch: Batch, asked: Asked, *, is_alone: bool
    ) -> None:
        """Nothing that had to be taken was left, and what was taken was the best."""
        now, total = batch.now, asked.room.total
        suspects = [task for task in left if self._is_suspect(task.id)]
        ordinary = [task for task in left if not self._is_suspect(task.id)]
        for task in left:
            assert not self.offer(task, asked, now).is_free, f"{task} is for anybody and was left"
        if is_alone:
            return
        assert not ordinary or len(calls) >= total, f"{ordinary[0]} was left although there was room"
        if asked.room.is_idle:
            assert not suspects or batch.leases or total == 0, f"the suspect {suspects[0]} was left to nobody"
        elif suspects:
            assert batch.has_suspects, f"nothing was said of the suspect {suspects[0]}"
        for side in Side:
            mine = [lease for lease in calls if SIDES[lease.kind] is side]
            waiting = [task for task in ordinary if _side(task) is side]
            assert not waiting or len(mine) >= total // 2, f"{side} did not get its half of the room"
            for lease in mine:
                self._check_order(lease, waiting)

    def _check_order(self, lease: Lease, waiting: Sequence[ModelTask]) -> None:
        """No task that was left comes before one that was taken."""
        taken = self.tasks[lease.task_id]
        row = lease.stored.row
        for task in waiting:
            if task.token is not None:
                continue
            if lease.kind is Kind.SUBMIT and task.status is TaskStatus.PENDING_SUBMIT:
                band, later = self._band(taken), self._band(task)
                assert band <= later, f"{task} should go before {taken}"
                same = (task.new.tenant, later) == (taken.new.tenant, band)
                assert not same or self._place(taken, task) <= self._place(task, taken), (
                    f"{task} goes before {taken}"
                )
            elif SIDES[lease.kind] is Side.QUERY and row.due_at is not None and task.due_at is not None:
                assert row.due_at <= task.due_at, f"{task} should go before {taken}"

    def _band(self, task: ModelTask) -> int:
        """Return the priority of a task as a number, the smallest first; with ageing it grows with time."""
        if self.ageing is None:
            return -task.new.priority
        return (self._rank(task) - _EPOCH) // self.ageing

    def _rank(self, task: ModelTask) -> datetime:
        return task.scheduled_at - task.new.priority * (self.ageing or timedelta())

    def _place(self, task: ModelTask, other: ModelTask) -> tuple[datetime, int]:
        """Return where a task stands beside another of its tenant and band.

        Of tasks with one rank those in one lane go in the order of creation; lanes come in any order.
        """
        new, beside = task.new, other.new
        same_lane = (new.handler_key, new.provider_key, new.account, task.format) == (
            beside.handler_key,
            beside.provider_key,
            beside.account,
            other.format,
        )
        return self._rank(task), task.number if same_lane else 0

    def _check_next_at(self, batch: Batch, asked: Asked, used: Sequence[str]) -> None:
        """Nothing can be taken between the claim and the time to come back."""
        for at in self.times(batch.now):
            if batch.next_at is not None and batch.next_at <= at:
                break
            left = [t for t in self.left_over(asked, at, used=used) if not self._is_suspect(t.id)]
            assert not left, f"{left[0]} can go at {at}, but the worker is to come at {batch.next_at}"

    def times(self, now: datetime) -> list[datetime]:
        """Return every later instant at which something may change by itself, in order."""
        found: set[datetime | None] = {*self.gates.values()}
        for task in self.tasks.values():
            found |= {task.due_at, task.ghost_until, task.deadline_at, task.queue_deadline_at}
            if task.lease_until is not None:
                found |= {task.lease_until, task.lease_until + task.lease / 2}
                found |= {task.deadline_at + task.lease}
        for limit, _ in self.limits.values():
            if limit.rate is not None:
                found |= {permit.at + limit.rate.per for permit in self.permits}
        return sorted(at for at in found if at is not None and now < at)

    # Writing.

    def commit(self, move: Transition, now: datetime) -> set[Outcome]:
        """Write a move if it may be written; return the answers that are right."""
        task = self.tasks.get(move.task_id)
        if task is None:
            return {*Outcome} - {Outcome.DONE}
        if task.keys and move.key == task.keys[-1]:
            return {Outcome.DONE}
        if move.key in task.keys:
            # A repeat after others have written: harmless, whatever it is called.
            return {Outcome.DONE, Outcome.LEASE_LOST, Outcome.CONFLICT}
        if move.is_leased:
            if task.token != move.key:
                return {Outcome.LEASE_LOST}
        elif task.token is not None or (task.version, task.status) != (
            move.expected_version,
            move.expected_status,
        ):
            return {Outcome.CONFLICT}
        self._write(task, move, now)
        return {Outcome.DONE}

    def _write(self, task: ModelTask, move: Transition, now: datetime) -> None:
        was_end = task.status.is_end
        task.keys.append(move.key)
        task.is_written = True
        task.status, task.next_step, task.generation = move.status, move.next_step, move.generation
        task.record, task.format = move.record, move.format
        task.token = task.lease_until = None
        task.claims = {"reset": 0, "keep": task.claims, "undo": max(0, task.claims - 1)}[move.claims]
        if move.restart:
            task.scheduled_at = now
            task.deadline_at = now + task.new.deadline
            if task.new.queue_deadline is not None:
                task.queue_deadline_at = now + task.new.queue_deadline
            task.stall_at = None
        if move.cancel is not None:
            task.cancel = move.cancel
        if move.job is Job.GHOST and (task.job is not Job.GHOST or move.restart):
            task.ghost_until = now + move.ghost_for
        task.job = move.job
        if not move.status.is_end:
            task.finished_at = None
        elif not was_end or move.restart:
            task.finished_at = now
        if move.progressed and task.new.stall_limit is not None and move.status in QUERYABLE:
            task.stall_at = now + task.new.stall_limit
        task.due_at = None if move.delay is None else self._due(task, now + move.delay, now)
        task.is_hurried = False

    def _due(self, task: ModelTask, at: datetime, now: datetime) -> datetime:
        if task.is_hurried and task.next_step is not Step.LOOKUP:
            at = now
        if task.status is TaskStatus.PENDING_SUBMIT:
            return min(at, task.submit_deadline_at)
        return min(at, task.deadline_at, task.stall_at or task.deadline_at)

    def renew(self, task_id: str, token: str, length: timedelta, now: datetime) -> bool:
        """Extend a lease; return whether the token is still the task's."""
        task = self.tasks.get(task_id)
        if task is None or task.token != token:
            return False
        task.lease_until, task.lease = now + length, length
        return True

    def request_cancel(self, task: ModelTask, now: datetime) -> bool:
        """Set the cancel flag; return whether the task had not ended."""
        if task.status.is_end:
            return False
        task.cancel = CancelFlag.REQUESTED
        self._hurry(task, now)
        return True

    def make_due(self, task: ModelTask, now: datetime, *, redrive: bool) -> bool:
        """Make a task due; return whether it had not ended."""
        if task.status.is_end:
            return False
        if redrive:
            task.claims = 0
        self._hurry(task, now)
        return True

    def _hurry(self, task: ModelTask, now: datetime) -> None:
        if task.token is not None:
            task.is_hurried = True
        elif task.due_at is not None and task.next_step is not Step.LOOKUP:
            # Too early a lookup misses the job of the lost submit.
            task.due_at = min(task.due_at, now)

    # Comparing.

    def check_row(self, row: Row) -> None:
        """Compare what a store shows of a task with what it must be."""
        task = self.tasks[row.id]
        if task.is_written:
            assert row.version > task.version, f"{row.id} was written and kept its version {row.version}"
            task.version, task.is_written = row.version, False
        expected = {
            "status": task.status,
            "version": task.version,
            "generation": task.generation,
            "next_step": task.next_step,
            "cancel": task.cancel,
            "claims": task.claims,
            "is_leased": task.token is not None,
            "created_at": task.created_at,
            "scheduled_at": task.scheduled_at,
            "deadline_at": task.deadline_at,
            "queue_deadline_at": task.queue_deadline_at,
            "stall_at": task.stall_at,
            "finished_at": task.finished_at,
        }
        if task.token is None:
            # What a held task is due for is its worker's business.
            expected["due_at"] = task.due_at
        found = {name: getattr(row, name) for name in expected}
        assert found == expected, f"{row.id} differs: {_differences(found, expected)}"


def _differences(found: dict[str, object], expected: dict[str, object]) -> str:
    return ", ".join(
        f"{name} is {found[name]!r} instead of {expected[name]!r}"
        for name in expected
        if found[name] != expected[name]
    )


def _is_subject(limit: Limit, new: NewTask) -> bool:
    return (
        limit.provider in (None, new.provider_key)
        and limit.account in (None, new.account)
        and limit.tenant in (None, new.tenant)
    )


def _side(task: ModelTask) -> Side:
    return (task.next_step or Step.QUERY).side
