"""The hot columns of one row, as SQLite returns them, and the ``Row`` that callers see."""

from datetime import timedelta
from functools import lru_cache
from typing import Any

import attrs

from coatcheck.model import CancelFlag, Step, TaskStatus
from coatcheck.store import Row, Stored
from coatcheck.stores.sqlite.clock import from_micros


@attrs.define(eq=False)
class Hot:
    """A row being worked on; instants and durations in microseconds."""

    seq: int
    id: str
    status: str
    version: int
    generation: int
    format: int
    handler: str
    provider: str
    account: str
    tenant: str
    priority: int
    dedupe_key: str | None
    deadline: int
    queue_deadline: int | None
    stall_limit: int | None
    created_at: int
    scheduled_at: int
    deadline_at: int
    queue_deadline_at: int | None
    stall_at: int | None
    due_at: int | None
    updated_at: int
    finished_at: int | None
    next_step: str | None
    cancel: int
    redue: int
    claims: int
    token: str | None
    lease_until: int | None
    lease_length: int
    last_key: str | None
    job: int
    ghost_until: int | None
    lane: int | None
    ord1: int | None
    ord2: int | None
    suspect: int
    look_at: int | None

    @property
    def submit_deadline_at(self) -> int:
        """After this a pending task is not submitted any more."""
        if self.queue_deadline_at is None:
            return self.deadline_at
        return min(self.deadline_at, self.queue_deadline_at)


COLUMNS = ", ".join(attribute.name for attribute in attrs.fields(Hot))
_WIDTH = len(attrs.fields(Hot))

_STATUSES = {status.value: status for status in TaskStatus}
_STEPS: dict[str | None, Step | None] = {None: None, **{step.value: step for step in Step}}
_FLAGS = {flag.value: flag for flag in CancelFlag}


def split(values: tuple[Any, ...]) -> tuple[Hot, tuple[Any, ...]]:
    """Split a fetched row into the hot columns and what was selected after them."""
    return Hot(*values[:_WIDTH]), values[_WIDTH:]


def _at(micros: int | None) -> Any:
    return None if micros is None else from_micros(micros)


@lru_cache(maxsize=256)
def _length(micros: int | None) -> Any:
    return None if micros is None else timedelta(microseconds=micros)


def row_of(hot: Hot) -> Row:
    """Return what callers see of the hot columns."""
    return Row(
        id=hot.id,
        status=_STATUSES[hot.status],
        version=hot.version,
        generation=hot.generation,
        handler_key=hot.handler,
        provider_key=hot.provider,
        account=hot.account,
        tenant=hot.tenant,
        priority=hot.priority,
        dedupe_key=hot.dedupe_key,
        deadline=_length(hot.deadline),
        queue_deadline=_length(hot.queue_deadline),
        stall_limit=_length(hot.stall_limit),
        created_at=(created_at := from_micros(hot.created_at)),
        scheduled_at=created_at if hot.scheduled_at == hot.created_at else from_micros(hot.scheduled_at),
        deadline_at=from_micros(hot.deadline_at),
        queue_deadline_at=_at(hot.queue_deadline_at),
        stall_at=_at(hot.stall_at),
        due_at=_at(hot.due_at),
        updated_at=from_micros(hot.updated_at),
        finished_at=_at(hot.finished_at),
        next_step=_STEPS[hot.next_step],
        cancel=_FLAGS[hot.cancel],
        is_leased=hot.token is not None,
        claims=hot.claims,
    )


def stored_of(hot: Hot, record: bytes, params: bytes | None = None, result: bytes | None = None) -> Stored:
    """Return a row with its bytes."""
    return Stored(row=row_of(hot), format=hot.format, record=record, params=params, result=result)
