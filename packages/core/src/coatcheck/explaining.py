"""Why a task waits, in the words that all stores share; a store brings the facts. Pure.

Stores of others may use it, so that ``explain`` says the same everywhere.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from attrs import frozen

from coatcheck.model import Pause, WaitReason
from coatcheck.store import QUARANTINE_CLAIMS, Explanation, Row


@frozen
class SeenWorker:
    """What a worker that was seen lately can do."""

    handlers: frozenset[str]
    #: Accounts that it cannot look up.
    skipped: frozenset[str]
    #: The newest record format that it reads.
    format: int


def explanation(
    row: Row,
    *,
    now: datetime,
    lease_until: datetime | None,
    format: int,
    workers: Collection[SeenWorker],
    refusal: Callable[[], Explanation | None],
) -> Explanation:
    """Return why a task waits: the first reason that holds, in the order in which a claim meets them.

    Args:
        row: the task's row.
        now: the store's time.
        lease_until: when its lease runs out, if there is one.
        format: its record format.
        workers: those that were seen lately.
        refusal: returns what the first limit, pause or gate without room says; asked only if nothing
            else holds the task.
    """
    if row.finished_at is not None:
        return Explanation(reason=WaitReason.ENDED, message=f"the task ended {row.status}")
    if row.is_leased and lease_until is not None and lease_until > now:
        return Explanation(reason=WaitReason.LEASED, message="a worker holds it", until=lease_until)
    if row.claims >= QUARANTINE_CLAIMS:
        message = f"{row.claims} workers died with it; make_due(redrive=True) frees it"
        return Explanation(reason=WaitReason.QUARANTINED, message=message)
    if row.due_at is not None and row.due_at > now:
        return Explanation(reason=WaitReason.NOT_DUE, message="its time has not come", until=row.due_at)
    able = [worker for worker in workers if row.handler_key in worker.handlers]
    if not able:
        message = f"no worker with handler {row.handler_key!r} was seen in the last minute; start one"
        return Explanation(reason=WaitReason.NO_HANDLER, message=message)
    if all(worker.format < format for worker in able):
        message = f"its record has format {format}; every worker seen is older, upgrade one"
        return Explanation(reason=WaitReason.NEWER_RECORD, message=message)
    if all(row.account in worker.skipped for worker in able):
        message = f"no worker can look account {row.account!r} up; configure it where a worker runs"
        return Explanation(reason=WaitReason.UNKNOWN_ACCOUNT, message=message)
    ready = Explanation(reason=WaitReason.READY, message="it goes with the next free place of a worker")
    return refusal() or ready


def refused(kind: str, parts: Sequence[str], *, until: datetime | None, pause: Pause | None) -> Explanation:
    """Return what a limit, a pause or a gate without room says.

    Args:
        kind: ``"pause"`` (of kind, name), ``"gate"`` (provider, account, side), ``"rate"`` (side, provider,
            account; blank where it is not named), or ``"live"`` (``"account"`` or ``"tenant"``, name).
        parts: what it is on, as said there.
        until: when it will have room, where that is known.
        pause: the pause itself, which says who and why.
    """
    reason, message = _REFUSALS[kind](parts)
    if pause is not None:
        message = f"{message} by {pause.by}: {pause.reason}"
    return Explanation(reason=reason, message=message, until=until)


_REFUSALS: dict[str, Callable[[Sequence[str]], tuple[WaitReason, str]]] = {
    "pause": lambda p: (WaitReason.PAUSED, f"{p[0]} {p[1]!r} is paused"),
    "gate": lambda p: (
        WaitReason.GATE,
        f"the vendor asked for patience: {p[2]} gate of {p[0]!r}, account {p[1]!r}",
    ),
    "rate": lambda p: (
        WaitReason.RATE,
        f"the {p[0]} rate of {' and '.join(repr(n) for n in p[1:] if n)} is used up",
    ),
    "live": lambda p: (
        (WaitReason.ACCOUNT_BUSY, f"account {p[1]!r} has as many live jobs as it may")
        if p[0] == "account"
        else (WaitReason.TENANT_QUOTA, f"tenant {p[1]!r} has as many live jobs as it may")
    ),
}
