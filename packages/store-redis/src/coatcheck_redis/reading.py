"""What the scripts tell of limits, workers and lines, and the values and sentences that callers see."""

import struct
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from coatcheck.explaining import SeenWorker, explanation, refused
from coatcheck.micros import from_micros, span
from coatcheck.model import Limit, Pause, Rate, Side
from coatcheck.store import QUARANTINE_CLAIMS, Explanation, Filter, Gate, Row, Stats
from coatcheck_redis.rows import SEPARATOR, STATUSES, Unpacked

#: Separates format, handlers and skipped accounts in a worker's sign.
_PART = "\x1e"
_LIFTED = "-"
_PAUSED = struct.Struct("<qI")
_GATE = struct.Struct("<qq")
_SEEN = 8


def sign_of(format_: int, handlers: Collection[str], skipped: Collection[str]) -> str:
    """Return what a worker can do, as one text."""
    return _PART.join((str(format_), SEPARATOR.join(handlers), SEPARATOR.join(skipped)))


def _worker(value: bytes) -> SeenWorker:
    format_, handlers, skipped = value[_SEEN:].decode().split(_PART)
    return SeenWorker(_names(handlers), _names(skipped), int(format_))


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(SEPARATOR)) if text else frozenset()


# Rules: limits, pauses and gates, by their field.


def rule_of(limit: Limit) -> tuple[str, str]:
    """Return the field and the value of a limit."""
    if limit.side is not None:
        rate = limit.rate
        field = SEPARATOR.join((limit.side, limit.provider or "", limit.account or ""))
        return f"r{field}", _LIFTED if rate is None else f"{rate.count}:{span(rate.per)}"
    kind, name = ("tenant", limit.tenant) if limit.account is None else ("account", limit.account)
    return f"l{kind}{SEPARATOR}{name}", _LIFTED if limit.live is None else str(limit.live)


def _limit(parts: Sequence[str], value: str, *, is_rate: bool) -> Limit:
    if not is_rate:
        kind, name = parts
        live = None if value == _LIFTED else int(value)
        return Limit(account=name, live=live) if kind == "account" else Limit(tenant=name, live=live)
    side, provider, account = parts
    count, _, per = value.partition(":")
    rate = None if value == _LIFTED else Rate(int(count), timedelta(microseconds=int(per)))
    return Limit(provider=provider or None, account=account or None, side=Side(side), rate=rate)


def _pause(parts: Sequence[str], value: bytes) -> Pause:
    since, length = _PAUSED.unpack_from(value)
    text = value[_PAUSED.size :]
    by, reason = text[:length].decode(), text[length:].decode()
    kind: Any = parts[0]
    return Pause(kind, parts[1], by, reason, from_micros(since))


def stats(answer: Any) -> Stats:
    """Read the answer of ``stats.lua``."""
    now, counted, rules, workers, quarantined, ready, blocked, oldest = answer
    limits: list[tuple[str, Limit]] = []
    pauses: list[tuple[str, Pause]] = []
    gates: list[tuple[str, Gate]] = []
    for field, value in zip(rules[::2], rules[1::2], strict=True):
        name = field.decode()
        parts = name[1:].split(SEPARATOR)
        if name[0] == "p":
            pauses.append((name, _pause(parts, value)))
        elif name[0] == "g":
            until, streak = _GATE.unpack(value)
            if until > int(now):
                gate = Gate(
                    provider=parts[0],
                    account=parts[1],
                    side=Side(parts[2]),
                    until=from_micros(until),
                    streak=streak,
                )
                gates.append((name, gate))
        else:
            limits.append((name, _limit(parts, value.decode(), is_rate=name[0] == "r")))
    by_name: Callable[[tuple[str, Any]], str] = lambda item: item[0]  # noqa: E731  # three sorts by one key
    return Stats(
        now=from_micros(int(now)),
        by_status={status: int(count or 0) for status, count in zip(STATUSES, counted, strict=True)},
        limits=tuple(limit for _, limit in sorted(limits, key=by_name)),
        pauses=tuple(pause for _, pause in sorted(pauses, key=by_name)),
        gates=tuple(gate for _, gate in sorted(gates, key=by_name)),
        handlers=frozenset().union(*(_worker(worker).handlers for worker in workers)),
        quarantined=quarantined,
        ready_lanes=ready,
        blocked_lanes=blocked,
        oldest_due_at=None if int(oldest) < 0 else from_micros(int(oldest)),
    )


def matches(row: Row, where: Filter) -> bool:
    """Whether a filter shows a row."""
    named = (
        (where.tenant, row.tenant),
        (where.handler_key, row.handler_key),
        (where.provider_key, row.provider_key),
        (where.account, row.account),
        (where.dedupe_key, row.dedupe_key),
    )
    return (
        all(wanted is None or wanted == found for wanted, found in named)
        and (where.statuses is None or row.status in where.statuses)
        and (not where.quarantined or (row.claims >= QUARANTINE_CLAIMS and row.finished_at is None))
    )


# Explanations.


def explain(ids: Sequence[str], answer: Any) -> list[Explanation | None]:
    """Read the answer of ``explain.lua``."""
    now, found, rows = answer
    workers = [_worker(worker) for worker in found]
    return [
        None if row is None else _explained(int(now), Unpacked(id_, row[0]), workers, row[1:])
        for id_, row in zip(ids, rows, strict=True)
    ]


def _explained(
    now: int, unpacked: Unpacked, workers: list[SeenWorker], refuser: Sequence[bytes]
) -> Explanation:
    return explanation(
        unpacked.row,
        now=from_micros(now),
        lease_until=from_micros(unpacked.lease_until),
        format=unpacked.format,
        workers=workers,
        refusal=lambda: _refusal(*refuser) if refuser[0] else None,
    )


def _refusal(key: bytes, until: bytes, pause: bytes) -> Explanation:
    kind, *parts = key.decode().split(SEPARATOR)
    return refused(
        kind,
        parts,
        until=from_micros(int(until)) if until else None,
        pause=_pause(parts, pause) if pause else None,
    )
