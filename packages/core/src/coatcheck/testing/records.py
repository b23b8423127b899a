"""Little builders of what goes into a store: new tasks, claims and transitions with everything filled in.

A builder fills in the values that a test does not care about; nothing here checks a rule or knows one store.
"""

import itertools
import secrets
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from coatcheck.lifecycle import Move
from coatcheck.model import Job, Side, Step, TaskStatus
from coatcheck.store import Batch, Kind, Lease, NewTask, Room, Row, Store, Stored, Transition

#: What a task has that a test says nothing about.
HANDLER = "contract:ocr"
PROVIDER = "contract"
ACCOUNT = "main"
FORMAT = 1
LEASE = timedelta(seconds=30)

_numbers = itertools.count(1)

_NEXT_STEP = {
    TaskStatus.PENDING_SUBMIT: Step.SUBMIT,
    TaskStatus.SUBMITTING: Step.LOOKUP,
    TaskStatus.SUBMITTED: Step.QUERY,
    TaskStatus.RUNNING: Step.QUERY,
}
_JOB = {
    TaskStatus.SUBMITTING: Job.LIVE,
    TaskStatus.SUBMITTED: Job.LIVE,
    TaskStatus.RUNNING: Job.LIVE,
    TaskStatus.TRACKING_TIMED_OUT: Job.GHOST,
    TaskStatus.SUBMIT_UNKNOWN: Job.GHOST,
}
#: The side of each kind that makes a vendor call.
SIDES = {
    Kind.SUBMIT: Side.SUBMIT,
    Kind.RESUBMIT: Side.SUBMIT,
    Kind.LOOKUP: Side.QUERY,
    Kind.QUERY: Side.QUERY,
    Kind.CANCEL: Side.QUERY,
}


def new_key() -> str:
    """Return a random text, as for a nonce or a transition's key."""
    return secrets.token_hex(8)


def new_task(id: str | None = None, **changes: Any) -> NewTask:
    """Return a task to be added; whatever is not given has a plain value, the id a new one."""
    task_id = id or f"task-{next(_numbers)}-{secrets.token_hex(4)}"
    values: dict[str, Any] = {
        "format": FORMAT,
        "record": f"record of {task_id}".encode(),
        "params": f"params of {task_id}".encode(),
        "handler_key": HANDLER,
        "provider_key": PROVIDER,
        "account": ACCOUNT,
    }
    return NewTask(id=task_id, **{**values, **changes})


def claim(
    store: Store,
    *,
    room: Room | int = 100,
    worker: str = "worker-1",
    nonce: str | None = None,
    handlers: Collection[str] = (HANDLER,),
    lease: timedelta = LEASE,
    skip: Collection[str] = (),
    only: Sequence[str] | None = None,
    format: int = FORMAT,
) -> Batch:
    """Claim with a new nonce and plenty of room, unless something else is given."""
    return store.claim(
        worker,
        nonce or new_key(),
        format=format,
        handlers=handlers,
        room=room if isinstance(room, Room) else Room(total=room),
        lease=lease,
        skip=skip,
        only=only,
    )


def transition(
    held: Lease | Stored,
    status: TaskStatus,
    *,
    delay: timedelta | float | None = None,
    key: str | None = None,
    **changes: Any,
) -> Transition:
    """Return the move of a leased (``Lease``) or free (``Stored``) task to ``status``.

    Next step, job and side follow from the status and the kind of the lease; a task that has not ended is due
    after ``delay`` (a timedelta or seconds, at once if ``None``).
    """
    stored = held.stored if isinstance(held, Lease) else held
    row = stored.row
    values: dict[str, Any] = {
        "task_id": row.id,
        "status": status,
        "generation": row.generation + (1 if changes.get("restart") else 0),
        "next_step": _NEXT_STEP.get(status),
        "job": _JOB.get(status, Job.NONE),
        "delay": None if status.is_end else _length(delay),
        "progressed": status.is_queryable and row.status is not status,
        "format": stored.format,
        "record": stored.record,
    }
    return Transition(**{**values, **_authority(held, key), **changes})


def transition_of(
    held: Lease | Stored, move: Move, *, record: bytes, key: str | None = None, **changes: Any
) -> Transition:
    """Return the transition that writes a move of the life cycle."""
    task = move.task
    values: dict[str, Any] = {
        "task_id": task.id,
        "status": task.status,
        "generation": task.generation,
        "next_step": task.next_step,
        "delay": move.delay,
        "job": move.job,
        "ghost_for": task.traits.max_job_time,
        "format": (held.stored if isinstance(held, Lease) else held).format,
        "record": record,
        "drop_params": move.drop_params,
        "gate": move.gate,
        "restart": move.restart,
        "progressed": move.progressed,
        "cancel": move.cancel,
        "claims": move.claims,
    }
    return Transition(**{**values, **_authority(held, key), **changes})


def _authority(held: Lease | Stored, key: str | None) -> dict[str, Any]:
    """What lets the transition write: the lease's token, or the version and status that were read."""
    if isinstance(held, Lease):
        is_call = held.stored.row.status is not TaskStatus.PENDING_SUBMIT
        return {
            "key": held.token if key is None else key,
            "is_leased": True,
            "side": SIDES.get(held.kind) if is_call else None,
        }
    return {
        "key": new_key() if key is None else key,
        "is_leased": False,
        "expected_version": held.row.version,
        "expected_status": held.row.status,
    }


def _length(delay: timedelta | float | None) -> timedelta:
    if isinstance(delay, timedelta):
        return delay
    return timedelta(seconds=delay or 0)


def get(store: Store, task_id: str) -> Stored:
    """Return a task that must be there."""
    (stored,) = store.get([task_id], payloads=True)
    assert stored is not None, f"expected the task {task_id}, found nothing"
    return stored


def row_of(store: Store, task_id: str) -> Row:
    """Return the hot columns of a task that must be there."""
    return get(store, task_id).row
