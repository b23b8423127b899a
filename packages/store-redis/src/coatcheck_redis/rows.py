"""Rows as the scripts pack them, and the values of ``coatcheck.store`` that callers see.

The codes of statuses, steps and kinds are stored: they are only added to, never changed. ``lua/base.lua`` has
the same layout.
"""

import struct
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from coatcheck.micros import from_micros, span, to_micros
from coatcheck.model import CancelFlag, Side, Step, TaskStatus
from coatcheck.store import Kind, Lease, NewTask, Row, Stored, Transition

#: Separates names that are kept together; names hold no control characters.
SEPARATOR = "\x1f"
#: The layout of the keys of a namespace and of the rows in them.
LAYOUT = 1

STATUSES = (
    TaskStatus.PENDING_SUBMIT,
    TaskStatus.SUBMITTING,
    TaskStatus.SUBMITTED,
    TaskStatus.RUNNING,
    TaskStatus.SUCCEEDED,
    TaskStatus.FAILED,
    TaskStatus.CANCELED,
    TaskStatus.TRACKING_TIMED_OUT,
    TaskStatus.SUBMIT_UNKNOWN,
)
_STATUS_CODES = {status: code for code, status in enumerate(STATUSES, 1)}
_STEPS = (None, Step.SUBMIT, Step.RESUBMIT, Step.LOOKUP, Step.QUERY, Step.CANCEL)
_STEP_CODES = {step: code for code, step in enumerate(_STEPS)}
_KINDS: Any = (
    None,
    Kind.SUBMIT,
    Kind.RESUBMIT,
    Kind.LOOKUP,
    Kind.QUERY,
    Kind.CANCEL,
    Kind.RECOVER,
    Kind.EXPIRE,
)
_SIDE_CODES = {None: 0, Side.SUBMIT: 1, Side.QUERY: 2}
_CLAIMS = {"reset": 0, "keep": 1, "undo": 2}
_FLAGS = {flag.value: flag for flag in CancelFlag}

_ROW = struct.Struct("<B31q")
_NEW = struct.Struct("<8q")
_MOVE = struct.Struct("<25qd")
_LEASE = struct.Struct("<B4i")


def status_code(status: TaskStatus) -> int:
    """Return the number under which a status is stored."""
    return _STATUS_CODES[TaskStatus(status)]


def _at(micros: int) -> datetime | None:
    return None if micros < 0 else from_micros(micros)


@lru_cache(maxsize=256)
def _length(micros: int) -> Any:
    return None if micros < 0 else timedelta(microseconds=micros)


class Unpacked:
    """A packed row, read: what callers see, and what only messages and filters need."""

    __slots__ = ("format", "lease_until", "row", "seq", "token")

    def __init__(self, id_: str, blob: bytes) -> None:
        (
            _,
            self.seq,
            status,
            version,
            generation,
            self.format,
            priority,
            deadline,
            queue_deadline,
            stall_limit,
            created,
            scheduled,
            deadline_at,
            queue_at,
            stall_at,
            due,
            updated,
            finished,
            step,
            cancel,
            _,
            claims,
            self.lease_until,
            *_,
        ) = _ROW.unpack_from(blob)
        names, dedupe_key, self.token, _ = blob[_ROW.size :].decode().split("\0", 3)
        handler, provider, account, tenant = names.split(SEPARATOR)
        created_at = from_micros(created)
        self.row = Row(
            id=id_,
            status=STATUSES[status - 1],
            version=version,
            generation=generation,
            handler_key=handler,
            provider_key=provider,
            account=account,
            tenant=tenant,
            priority=priority,
            dedupe_key=dedupe_key[1:] if dedupe_key else None,
            deadline=_length(deadline),
            queue_deadline=_length(queue_deadline),
            stall_limit=_length(stall_limit),
            created_at=created_at,
            scheduled_at=created_at if scheduled == created else from_micros(scheduled),
            deadline_at=from_micros(deadline_at),
            queue_deadline_at=_at(queue_at),
            stall_at=_at(stall_at),
            due_at=_at(due),
            updated_at=from_micros(updated),
            finished_at=_at(finished),
            next_step=_STEPS[step],
            cancel=_FLAGS[cancel],
            is_leased=bool(self.token),
            claims=claims,
        )

    def stored(self, record: bytes, params: bytes | None = None, result: bytes | None = None) -> Stored:
        """Return the row with its bytes."""
        return Stored(row=self.row, format=self.format, record=record, params=params, result=result)


def names_of(task: NewTask) -> str:
    """Return handler, provider, account and tenant as one text."""
    return SEPARATOR.join((task.handler_key, task.provider_key, task.account, task.tenant))


def pack_new(task: NewTask) -> bytes:
    """Return the numbers of a new task, as ``add.lua`` reads them."""
    return _NEW.pack(
        task.format,
        task.priority,
        span(task.delay),
        -1 if task.run_at is None else to_micros(task.run_at),
        span(task.deadline),
        -1 if task.queue_deadline is None else span(task.queue_deadline),
        -1 if task.stall_limit is None else span(task.stall_limit),
        task.dedupe_key is not None,
    )


def pack_move(move: Transition) -> bytes:
    """Return a transition as one text, as ``commit.lua`` reads it."""
    gate = move.gate
    id_, key = move.task_id.encode(), move.key.encode()
    numbers = _MOVE.pack(
        len(id_),
        len(key),
        len(move.record),
        move.is_leased,
        bool(move.events or move.postings),
        -1 if move.expected_version is None else move.expected_version,
        -1 if move.expected_status is None else _STATUS_CODES[move.expected_status],
        _STATUS_CODES[move.status],
        move.generation,
        _STEP_CODES[move.next_step],
        -1 if move.delay is None else span(move.delay),
        move.job,
        span(move.ghost_for),
        move.format,
        move.result is not None,
        move.drop_params,
        _SIDE_CODES[move.side],
        gate is not None,
        -1 if gate is None or gate.delay is None else span(gate.delay),
        0 if gate is None else span(gate.start),
        0 if gate is None else span(gate.cap),
        move.restart,
        move.progressed,
        -1 if move.cancel is None else move.cancel,
        _CLAIMS[move.claims],
        1.0 if gate is None else gate.factor,
    )
    return b"".join((numbers, id_, key, move.record, move.result or b""))


def unpack_lease(text: bytes) -> Lease:
    """Read one lease of the answer of ``claim.lua``."""
    kind, id_size, row_size, record_size, params_size = _LEASE.unpack_from(text)
    row_at = _LEASE.size + id_size
    record_at = row_at + row_size
    params_at = record_at + record_size
    unpacked = Unpacked(text[_LEASE.size : row_at].decode(), text[row_at:record_at])
    params = None if params_size < 0 else text[params_at:]
    return Lease(
        kind=_KINDS[kind],
        stored=unpacked.stored(text[record_at:params_at], params),
        token=unpacked.token,
        expires_at=from_micros(unpacked.lease_until),
    )
