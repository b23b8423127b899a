"""Two views of a task's row: the hot columns that decide what becomes of it, and what callers see of it."""

from datetime import timedelta
from functools import lru_cache
from typing import Any

import attrs

from coatcheck.micros import from_micros
from coatcheck.model import CancelFlag, Step, TaskStatus
from coatcheck.store import Kind, Row, Stored


@attrs.define(eq=False)
class Hot:
    """A row being worked on; instants and durations in microseconds."""

    seq: int
    id: str
    status: str
    version: int
    handler: str
    provider: str
    account: str
    tenant: str
    priority: int
    deadline: int
    queue_deadline: int | None
    stall_limit: int | None
    scheduled_at: int
    deadline_at: int
    queue_deadline_at: int | None
    stall_at: int | None
    finished_at: int | None
    cancel: int
    redue: int
    claims: int
    token: str | None
    lease_length: int
    last_key: str | None
    job: int
    ghost_until: int | None
    lane: int | None
    #: When a suspect is due; it waits in no lane.
    suspect_at: int | None
    #: When a row that nobody holds wants to be looked at, whatever its lane.
    look_at: int | None
    # The rest is not fetched for a commit, which gives them new values whatever they were.
    format: int = 0
    due_at: int | None = None
    next_step: str | None = None
    ord1: int | None = None
    ord2: int | None = None
    lease_until: int | None = None
    #: When a lease counts as lost; ``None``: nobody holds the row, or its loss was seen.
    lost_at: int | None = None

    @property
    def submit_deadline_at(self) -> int:
        """After this a pending task is not submitted any more."""
        if self.queue_deadline_at is None:
            return self.deadline_at
        return min(self.deadline_at, self.queue_deadline_at)


NAMES = tuple(attribute.name for attribute in attrs.fields(Hot))
COLUMNS = ", ".join(NAMES)
#: Without those that a commit gives new values.
LASTING = ", ".join(NAMES[: NAMES.index("format")])

#: What ``stored_of`` takes.
SHOWN = (
    "format, record, id, status, version, generation, handler, provider, account, tenant, priority, "
    "dedupe_key, deadline, queue_deadline, stall_limit, created_at, scheduled_at, deadline_at, "
    "queue_deadline_at, stall_at, due_at, updated_at, finished_at, next_step, cancel, token IS NOT NULL, "
    "claims"
)

_STATUSES = {status.value: status for status in TaskStatus}
_STEPS: dict[str | None, Step | None] = {None: None, **{step.value: step for step in Step}}
_FLAGS = {flag.value: flag for flag in CancelFlag}
# Reaching into an enum costs as much as the rest of what is done for a value.
_SUBMITTING, _SUBMIT = TaskStatus.SUBMITTING, Kind.SUBMIT


def split(values: tuple[Any, ...]) -> tuple[Hot, tuple[Any, ...]]:
    """Split a fetched row into the hot columns and what was selected after them."""
    return Hot(*values[: len(NAMES)]), values[len(NAMES) :]


# Tasks that were submitted or committed together have their instants in common.
@lru_cache(maxsize=1024)
def _at(micros: int | None) -> Any:
    return None if micros is None else from_micros(micros)


@lru_cache(maxsize=256)
def _length(micros: int | None) -> Any:
    return None if micros is None else timedelta(microseconds=micros)


def shown_of_new(hot: Hot, record: bytes, dedupe_key: str | None, now: int) -> tuple[Any, ...]:
    """Return the values of ``SHOWN`` of a row that is being created."""
    names = (hot.id, hot.status, hot.version, 1, hot.handler, hot.provider, hot.account, hot.tenant)
    lengths = (hot.deadline, hot.queue_deadline, hot.stall_limit)
    times = (now, hot.scheduled_at, hot.deadline_at, hot.queue_deadline_at, hot.stall_at, hot.due_at, now)
    rest = (hot.finished_at, hot.next_step, hot.cancel, False, hot.claims)
    return (hot.format, record, *names, hot.priority, dedupe_key, *lengths, *times, *rest)


def stored_of(
    values: tuple[Any, ...],
    params: bytes | None = None,
    result: bytes | None = None,
    *,
    leased_for: Kind | None = None,
    claims_more: int = 0,
) -> Stored:
    """Return a fetched row as callers see it.

    Args:
        values: those of ``SHOWN``.
        params: the params, where they were loaded.
        result: the result, where it was loaded.
        leased_for: what the row is leased for since it was fetched.
        claims_more: how many claims more count on it since then.
    """
    (
        format_,
        record,
        id_,
        status,
        version,
        generation,
        handler,
        provider,
        account,
        tenant,
        priority,
        dedupe_key,
        deadline,
        queue_deadline,
        stall_limit,
        created_at,
        scheduled_at,
        deadline_at,
        queue_deadline_at,
        stall_at,
        due_at,
        updated_at,
        finished_at,
        next_step,
        cancel,
        is_leased,
        claims,
    ) = values
    row = Row(
        id=id_,
        status=_SUBMITTING if leased_for is _SUBMIT else _STATUSES[status],
        version=version,
        generation=generation,
        handler_key=handler,
        provider_key=provider,
        account=account,
        tenant=tenant,
        priority=priority,
        dedupe_key=dedupe_key,
        deadline=_length(deadline),
        queue_deadline=_length(queue_deadline),
        stall_limit=_length(stall_limit),
        created_at=_at(created_at),
        scheduled_at=_at(scheduled_at),
        deadline_at=_at(deadline_at),
        queue_deadline_at=_at(queue_deadline_at),
        stall_at=_at(stall_at),
        due_at=_at(due_at),
        updated_at=_at(updated_at),
        finished_at=_at(finished_at),
        next_step=_STEPS[next_step],
        cancel=_FLAGS[cancel],
        is_leased=is_leased == 1 or leased_for is not None,
        claims=claims + claims_more,
    )
    return Stored(row=row, format=format_, record=record, params=params, result=result)
