"""What only reads: one task, a page of tasks, counts, and why a task waits."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from coatcheck.errors import ValidationError
from coatcheck.explaining import SeenWorker, explanation, refused
from coatcheck.micros import from_micros, span
from coatcheck.model import Limit, Pause, Rate, Side, TaskStatus
from coatcheck.store import (
    QUARANTINE_CLAIMS,
    WORKER_SEEN,
    Explanation,
    Filter,
    Gate,
    Page,
    Row,
    Stats,
    Stored,
)
from coatcheck.stores.sqlite.hot import SHOWN, stored_of
from coatcheck.stores.sqlite.lanes import EMPTY, QUERY, SUBMIT, permit_side
from coatcheck.stores.sqlite.resources import SEPARATOR, Resources
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
        pauses=_pauses(unit),
        gates=gates,
        handlers=frozenset().union(*(worker.handlers for worker in _workers(unit))),
        quarantined=unit.one("SELECT COUNT(*) FROM @tasks WHERE claims > 2 AND finished_at IS NULL"),
        ready_lanes=unit.one("SELECT COUNT(*) FROM @lanes WHERE is_ready = 1 AND key1 < ?", EMPTY),
        blocked_lanes=unit.one("SELECT COUNT(*) FROM @lanes WHERE is_ready = 0"),
        oldest_due_at=from_micros(min(heads)) if heads else None,
    )


def _pauses(unit: Unit) -> tuple[Pause, ...]:
    rows = unit.all("SELECT kind, name, by, reason, since FROM @pauses ORDER BY kind, name")
    return tuple(Pause(kind, name, by, reason, from_micros(since)) for kind, name, by, reason, since in rows)


def _workers(unit: Unit) -> list[SeenWorker]:
    rows = unit.all(
        "SELECT handlers, skip, format FROM @workers WHERE seen_at > ?", unit.now - span(WORKER_SEEN)
    )
    return [SeenWorker(_names(handlers), _names(skip), format_) for handlers, skip, format_ in rows]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(SEPARATOR)) if text else frozenset()


def explain(unit: Unit, ids: Sequence[str]) -> list[Explanation | None]:
    """Say why each task waits."""
    resources = Resources(unit)
    workers = _workers(unit)
    answers: list[Explanation | None] = []
    for id_ in ids:
        text = f"SELECT lease_until, {SHOWN} FROM @tasks WHERE id = ?"  # noqa: S608  # column names
        found = unit.run(text, id_).fetchone()
        if found is None:
            answers.append(None)
            continue
        lease_until, stored = found[0], stored_of(found[1:])
        answer = explanation(
            stored.row,
            now=from_micros(unit.now),
            lease_until=None if lease_until is None else from_micros(lease_until),
            format=stored.format,
            workers=workers,
            refusal=partial(_refusal, unit, stored.row, resources),
        )
        answers.append(answer)
    return answers


def _refusal(unit: Unit, row: Row, resources: Resources) -> Explanation | None:
    side = SUBMIT if row.status is TaskStatus.PENDING_SUBMIT else QUERY
    tenant = row.tenant if side == SUBMIT else None
    for resource in resources.of(permit_side(side), row.provider_key, row.account, tenant):
        if resource.room < 1:
            kind, *parts = resource.key.split(SEPARATOR)
            until = None if resource.next_at is None else from_micros(resource.next_at)
            pause = next((one for one in _pauses(unit) if [one.kind, one.name] == parts), None)
            return refused(kind, parts, until=until, pause=pause if kind == "pause" else None)
    return None
