"""What only reads: one task, a page of tasks, counts, and why a task waits."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from coatcheck.errors import ValidationError
from coatcheck.model import Limit, Pause, Rate, Side, TaskStatus, WaitReason
from coatcheck.store import (
    QUARANTINE_CLAIMS,
    WORKER_SEEN,
    Explanation,
    Filter,
    Gate,
    Page,
    Stats,
    Stored,
)
from coatcheck.stores.sqlite.clock import from_micros, span
from coatcheck.stores.sqlite.hot import COLUMNS, SHOWN, Hot, split, stored_of
from coatcheck.stores.sqlite.lanes import EMPTY, QUERY, SUBMIT, permit_side
from coatcheck.stores.sqlite.resources import SEPARATOR, Resource, Resources
from coatcheck.stores.sqlite.unit import LISTED, Unit, listed


def get(unit: Unit, ids: Sequence[str], *, tenant: str | None, payloads: bool) -> list[Stored | None]:
    """Return tasks by id, in the order asked for."""
    beside = "(SELECT data FROM {} WHERE seq = @tasks.seq)" if payloads else "NULL"
    params, results = beside.format("@params"), beside.format("@results")
    text = f"SELECT {params}, {results}, {SHOWN} FROM @tasks WHERE id IN {LISTED}"  # noqa: S608  # fixed texts
    found = (stored_of(row[2:], *row[:2]) for row in unit.all(text, listed(ids)))
    by_id = {stored.row.id: stored for stored in found if tenant is None or stored.row.tenant == tenant}
    return [by_id.get(id_) for id_ in ids]


def page(unit: Unit, where: Filter, *, limit: int, cursor: str | None) -> Page:
    """Return one page, newest first."""
    terms: list[str] = []
    values: list[Any] = []
    if cursor is not None:
        if not cursor.isdecimal():
            raise ValidationError(
                f"cursor must be what an earlier page returned, found {cursor!r}; start without one", "cursor"
            )
        terms.append("seq < ?")
        values.append(int(cursor))
    if where.statuses is not None:
        terms.append(f"status IN ({', '.join('?' * len(where.statuses))})")
        values += [TaskStatus(status).value for status in where.statuses]
    named = (
        ("tenant", where.tenant),
        ("handler", where.handler_key),
        ("provider", where.provider_key),
        ("account", where.account),
        ("dedupe_key", where.dedupe_key),
    )
    for column, value in named:
        if value is not None:
            terms.append(f"{column} = ?")
            values.append(value)
    if where.quarantined:
        terms.append(f"claims >= {QUARANTINE_CLAIMS} AND finished_at IS NULL")
    condition = f"WHERE {' AND '.join(terms)}" if terms else ""
    # Fixed terms; every value is bound.
    text = f"SELECT seq, {SHOWN} FROM @tasks {condition} ORDER BY seq DESC LIMIT ?"  # noqa: S608
    rows = unit.all(text, *values, limit + 1)
    items = tuple(stored_of(row[1:]) for row in rows[:limit])
    return Page(items=items, cursor=str(rows[limit - 1][0]) if len(rows) > limit else None)


def stats(unit: Unit) -> Stats:
    """Count."""
    now = unit.now
    counted = dict(unit.all("SELECT status, count FROM @counts"))
    limits = tuple(
        Limit(
            provider=provider,
            account=account,
            tenant=tenant,
            side=None if side == "live" else Side(side),
            rate=None if count is None else Rate(count, timedelta(microseconds=per)),
            live=live,
        )
        for side, provider, account, tenant, count, per, live in unit.all(
            "SELECT side, provider, account, tenant, count, per, live FROM @limits ORDER BY subject"
        )
    )
    pauses = tuple(
        Pause(kind, name, by, reason, from_micros(since))
        for kind, name, by, reason, since in unit.all(
            "SELECT kind, name, by, reason, since FROM @pauses ORDER BY kind, name"
        )
    )
    gates = tuple(
        Gate(
            provider=provider,
            account=account,
            side=Side(side),
            until=from_micros(until),
            streak=streak,
        )
        for provider, account, side, until, streak in unit.all(
            "SELECT provider, account, side, until, streak FROM @gates WHERE until > ? "
            "ORDER BY provider, account, side",
            now,
        )
    )
    oldest = unit.one("SELECT MIN(key1) FROM @lanes WHERE side > 0 AND key1 <= ?", now)
    scheduled = unit.one("SELECT MIN(key3) FROM @lanes WHERE side = 0") if not unit.ageing else None
    heads = [at for at in (oldest, scheduled) if at is not None]
    return Stats(
        now=from_micros(now),
        by_status={status: counted.get(status.value, 0) for status in TaskStatus},
        limits=limits,
        pauses=pauses,
        gates=gates,
        handlers=frozenset().union(*(worker[0] for worker in _workers(unit))),
        quarantined=unit.one("SELECT COUNT(*) FROM @tasks WHERE claims > 2 AND finished_at IS NULL"),
        ready_lanes=unit.one("SELECT COUNT(*) FROM @lanes WHERE is_ready = 1 AND key1 < ?", EMPTY),
        blocked_lanes=unit.one("SELECT COUNT(*) FROM @lanes WHERE is_ready = 0"),
        oldest_due_at=from_micros(min(heads)) if heads else None,
    )


def _workers(unit: Unit) -> list[tuple[frozenset[str], frozenset[str], int]]:
    """Return handlers, skipped accounts and record format of the workers that were seen lately."""
    rows = unit.all(
        "SELECT handlers, skip, format FROM @workers WHERE seen_at > ?", unit.now - span(WORKER_SEEN)
    )
    return [(_names(handlers), _names(skip), format_) for handlers, skip, format_ in rows]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(SEPARATOR)) if text else frozenset()


def explain(unit: Unit, ids: Sequence[str]) -> list[Explanation | None]:
    """Say why each task waits."""
    resources = Resources(unit)
    workers = _workers(unit)
    answers: list[Explanation | None] = []
    for id_ in ids:
        text = f"SELECT {COLUMNS} FROM @tasks WHERE id = ?"  # noqa: S608  # column names
        row = unit.run(text, id_).fetchone()
        answers.append(None if row is None else _why(unit, split(row)[0], resources, workers))
    return answers


def _why(
    unit: Unit,
    hot: Hot,
    resources: Resources,
    workers: list[tuple[frozenset[str], frozenset[str], int]],
) -> Explanation:
    now = unit.now
    if hot.finished_at is not None:
        return Explanation(reason=WaitReason.ENDED, message=f"the task ended {hot.status}")
    if hot.token is not None and hot.lease_until is not None and hot.lease_until > now:
        return Explanation(
            reason=WaitReason.LEASED, message="a worker holds it", until=from_micros(hot.lease_until)
        )
    if hot.claims >= QUARANTINE_CLAIMS:
        message = f"{hot.claims} workers died with it; make_due(redrive=True) frees it"
        return Explanation(reason=WaitReason.QUARANTINED, message=message)
    if hot.due_at is not None and hot.due_at > now:
        return Explanation(
            reason=WaitReason.NOT_DUE, message="its time has not come", until=from_micros(hot.due_at)
        )
    able = [worker for worker in workers if hot.handler in worker[0]]
    if not able:
        message = f"no worker with handler {hot.handler!r} was seen in the last minute; start one"
        return Explanation(reason=WaitReason.NO_HANDLER, message=message)
    if all(worker[2] < hot.format for worker in able):
        message = f"its record has format {hot.format}; every worker seen is older, upgrade one"
        return Explanation(reason=WaitReason.NEWER_RECORD, message=message)
    if all(hot.account in worker[1] for worker in able):
        message = f"no worker can look account {hot.account!r} up; configure it where a worker runs"
        return Explanation(reason=WaitReason.UNKNOWN_ACCOUNT, message=message)
    side = SUBMIT if hot.status == TaskStatus.PENDING_SUBMIT else QUERY
    tenant = hot.tenant if side == SUBMIT else None
    for resource in resources.of(permit_side(side), hot.provider, hot.account, tenant):
        if resource.room < 1:
            return _refusal(unit, resource)
    return Explanation(reason=WaitReason.READY, message="it goes with the next free place of a worker")


_MESSAGES: dict[str, Callable[[list[str]], tuple[WaitReason, str]]] = {
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


def _refusal(unit: Unit, resource: Resource) -> Explanation:
    kind, *parts = resource.key.split(SEPARATOR)
    reason, message = _MESSAGES[kind](parts)
    if kind == "pause":
        ((by, why),) = unit.all("SELECT by, reason FROM @pauses WHERE kind = ? AND name = ?", *parts)
        message = f"{message} by {by}: {why}"
    until = None if resource.next_at is None else from_micros(resource.next_at)
    return Explanation(reason=reason, message=message, until=until)
