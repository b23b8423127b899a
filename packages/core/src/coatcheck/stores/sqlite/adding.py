"""Storing new tasks: what is there already, the columns of what is not, and the lanes that it waits in."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from coatcheck.micros import span, to_micros
from coatcheck.model import Job, Step, TaskStatus, check_aware
from coatcheck.store import Added, AddOutcome, NewTask, Stored
from coatcheck.stores.sqlite import reading
from coatcheck.stores.sqlite.hot import COLUMNS, NAMES, SHOWN, Hot, shown_of_new, stored_of
from coatcheck.stores.sqlite.lanes import Lanes
from coatcheck.stores.sqlite.unit import Unit

#: Idle workers look at least this often (30 s) by themselves, with a margin; in microseconds.
_LONGEST_SLEEP = 40_000_000
#: Until the first claim says better; in microseconds.
_LEASE_LENGTH = 30_000_000

_PENDING = TaskStatus.PENDING_SUBMIT.value
_SUBMIT = Step.SUBMIT.value
_values_of = attrgetter(*NAMES)
_INSERT = (
    "INSERT INTO @tasks "  # noqa: S608  # column names
    "(generation, dedupe_key, dedupe_digest, created_at, updated_at, record, "
    f"{COLUMNS}) VALUES (1, ?, ?, ?, ?, ?, {', '.join('?' * len(NAMES))})"
)


class Adding:
    """One group of new tasks."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._lanes = Lanes(unit)
        self._next: int = (unit.one("SELECT MAX(seq) FROM @tasks") or 0) + 1
        self._by_id: dict[str, Stored] = {}
        self._by_key: dict[tuple[str, str], tuple[bytes | None, Stored]] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._params: list[tuple[int, bytes]] = []

    def run(self, tasks: Sequence[NewTask]) -> list[Added]:
        """Store those that are not there yet; one answer per task."""
        unit = self._unit
        found = reading.get(unit, [task.id for task in tasks], tenant=None, payloads=False)
        self._by_id = {stored.row.id: stored for stored in found if stored is not None}
        answers = [self._one(task) for task in tasks]
        unit.many(_INSERT, self._rows)
        unit.many("INSERT INTO @params VALUES (?, ?)", self._params)
        unit.count({_PENDING: len(self._rows)})
        self._lanes.settle()
        return answers

    def _one(self, task: NewTask) -> Added:
        stored = self._by_id.get(task.id)
        if stored is None and task.dedupe_key is not None:
            digest, holder = self._holder(task.tenant, task.dedupe_key)
            if holder is not None:
                outcome = AddOutcome.REPLAYED if digest == task.dedupe_digest else AddOutcome.CONFLICT
                return Added(outcome=outcome, stored=holder)
        if stored is None:
            stored = self._by_id[task.id] = self._create(task)
            if task.dedupe_key is not None:
                self._by_key[task.tenant, task.dedupe_key] = task.dedupe_digest, stored
        return Added(outcome=AddOutcome.CREATED, stored=stored)

    def _holder(self, tenant: str, key: str) -> tuple[bytes | None, Stored | None]:
        """Return the digest of the task that holds a dedupe key, and the task."""
        if (tenant, key) in self._by_key:
            return self._by_key[tenant, key]
        # Column names.
        text = f"SELECT dedupe_digest, {SHOWN} FROM @tasks WHERE tenant = ? AND dedupe_key = ?"  # noqa: S608
        row = self._unit.run(text, tenant, key).fetchone()
        return (None, None) if row is None else (row[0], stored_of(row[1:]))

    def _create(self, task: NewTask) -> Stored:
        now = self._unit.now
        scheduled = now + span(task.delay)
        if task.run_at is not None:
            scheduled = max(now, to_micros(check_aware(task.run_at, "run_at")))
        deadline = span(task.deadline)
        queue = None if task.queue_deadline is None else span(task.queue_deadline)
        hot = Hot(
            seq=self._next,
            id=task.id,
            status=_PENDING,
            version=0,
            format=task.format,
            handler=task.handler_key,
            provider=task.provider_key,
            account=task.account,
            tenant=task.tenant,
            priority=task.priority,
            deadline=deadline,
            queue_deadline=queue,
            stall_limit=None if task.stall_limit is None else span(task.stall_limit),
            scheduled_at=scheduled,
            deadline_at=scheduled + deadline,
            queue_deadline_at=None if queue is None else scheduled + queue,
            stall_at=None,
            due_at=scheduled,
            finished_at=None,
            next_step=_SUBMIT,
            cancel=0,
            redue=0,
            claims=0,
            token=None,
            lease_until=None,
            lease_length=_LEASE_LENGTH,
            last_key=None,
            job=int(Job.NONE),
            ghost_until=None,
            lane=None,
            ord1=None,
            ord2=None,
            suspect_at=None,
            look_at=None,
            lost_at=None,
        )
        self._next += 1
        self._lanes.place(hot)
        if hot.look_at is not None and hot.look_at <= now + _LONGEST_SLEEP:
            # Soon enough to matter to a worker that sleeps until its next look.
            self._unit.has_work = True
        self._rows.append((task.dedupe_key, task.dedupe_digest, now, now, task.record, *_values_of(hot)))
        self._params.append((hot.seq, task.params))
        return stored_of(shown_of_new(hot, task.record, task.dedupe_key, now))
