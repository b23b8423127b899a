"""``SqliteStore``: the verbs of ``coatcheck.store.Store`` over one SQLite file or memory."""

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from coatcheck.errors import StoreConfigError, ValidationError
from coatcheck.micros import from_micros, span, to_micros
from coatcheck.model import (
    CancelFlag,
    Limit,
    Step,
    TaskStatus,
    check_aware,
    check_duration,
    check_name,
)
from coatcheck.store import (
    Added,
    Batch,
    Committed,
    Explanation,
    Filter,
    Kind,
    Lease,
    NewTask,
    Page,
    Room,
    Stats,
    Stored,
    Transition,
)
from coatcheck.stores.sqlite import reading
from coatcheck.stores.sqlite.adding import Adding
from coatcheck.stores.sqlite.claim import LOST_AT, Claim, load_params, new_token
from coatcheck.stores.sqlite.clock import Anchor, boot_id
from coatcheck.stores.sqlite.commit import Commit, commit_each, load
from coatcheck.stores.sqlite.database import MEMORY, Database
from coatcheck.stores.sqlite.hot import SHOWN, Hot, stored_of
from coatcheck.stores.sqlite.lanes import Lanes
from coatcheck.stores.sqlite.resources import SEPARATOR, key_of, load_limits
from coatcheck.stores.sqlite.unit import LISTED, Limits, Unit, listed

#: How often a waiting caller looks whether another process has written to the file, in seconds.
GLANCE = 0.02
#: How often a worker's sign of life is renewed, in microseconds.
_SIGN_OF_LIFE = 20_000_000
#: How often workers that are gone and lanes that stay empty are swept away, in microseconds.
_SWEPT = 60_000_000
#: How long the row of a worker that is gone is kept, in microseconds.
_WORKER_KEPT = 3_600_000_000

_NAMESPACE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PAUSABLE = ("provider", "account", "tenant")


class SqliteStore:
    """Tasks in one SQLite file, shared by the processes of one machine, or in memory for one process.

    Args:
        path: a file (made if missing, its folder too) or ``":memory:"``.
        namespace: separates everything of one application from another's in the same file.
        ageing: makes a task as urgent as one of the next higher priority for each such time that it waits;
            kept in the file, ``None`` leaves what is there (at first: none).
        clock: the time, for tests; ``None`` takes a clock that no change of the wall time moves.

    Raises:
        StoreConfigError: the file or the namespace cannot be used.
    """

    kind = "sqlite"
    capabilities: frozenset[str] = frozenset()

    def __init__(
        self,
        path: str,
        *,
        namespace: str = "default",
        ageing: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise StoreConfigError(
                "a namespace must be 1 to 40 small letters, digits or underscores and begin with a letter, "
                f"found {namespace!r}",
                str(path),
            )
        check_duration(ageing, "ageing", none=True)
        self.path = str(path)
        self.namespace = namespace
        self.is_shared = self.path != MEMORY
        if not self.is_shared:
            self.kind = "memory"
        self._limits = Limits()
        self._start_anew()
        self._clock = clock
        self._database = Database(self.path, f"{namespace}_", self._start_anew)
        self._database.create()
        self._anchor = self._find_anchor()
        self._ageing = self._find_ageing(ageing)

    def __repr__(self) -> str:
        return f"<SqliteStore {self.path!r} namespace {self.namespace!r}>"

    def _start_anew(self) -> None:
        """Make what no other process can share."""
        self._changed = threading.Condition()
        self._changes = 0
        self._signs_of_life: dict[str, tuple[str, int]] = {}
        self._swept_at = 0

    # Time.

    def _find_anchor(self) -> Anchor:
        """Take the file's anchor, or drop a new one after a reboot."""
        with self._database.write() as cursor:
            found = cursor.execute("SELECT value FROM coatcheck_meta WHERE name = 'anchor'").fetchone()
            before = Anchor(0, 0, "")
            if found is not None:
                wall, counted, boot = found[0].split(" ", 2)
                before = Anchor(int(wall), int(counted), boot)
            if before.boot == boot_id():
                return before
            anchor = Anchor.take(not_before=before.wall)
            cursor.execute(
                "INSERT OR REPLACE INTO coatcheck_meta VALUES ('anchor', ?)",
                (f"{anchor.wall} {anchor.counted} {anchor.boot}",),
            )
            return anchor

    def _find_ageing(self, ageing: timedelta | None) -> int:
        with self._database.write() as cursor:
            sql = self._database.sql
            if ageing is not None:
                cursor.execute(sql("INSERT OR REPLACE INTO @counters VALUES ('ageing', ?)"), (span(ageing),))
            found = cursor.execute(sql("SELECT value FROM @counters WHERE name = 'ageing'")).fetchone()
            return found[0] if found else 0

    def _micros(self) -> int:
        return self._anchor.now() if self._clock is None else to_micros(check_aware(self._clock(), "clock"))

    def now(self) -> datetime:
        """Return the store's time."""
        self._database.check_open()
        return from_micros(self._micros())

    # Transactions.

    @contextmanager
    def _writing(self) -> Iterator[Unit]:
        with self._database.write() as cursor:
            unit = Unit(self._database, cursor, self._micros(), self._limits, self._ageing)
            self._limits = unit.limits = load_limits(unit, self._limits)
            yield unit
            if unit.has_work:
                unit.announce()
        self._notify()

    @contextmanager
    def _reading(self) -> Iterator[Unit]:
        with self._database.read() as cursor:
            unit = Unit(self._database, cursor, self._micros(), self._limits, self._ageing)
            unit.limits = load_limits(unit, self._limits)
            yield unit

    def _notify(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    # Verbs.

    def add(self, tasks: Sequence[NewTask]) -> Sequence[Added]:
        """Store new tasks; see ``Store.add``."""
        for task in tasks:
            if task.postings or task.events:
                raise StoreConfigError(
                    "a SQLite store keeps no ledger and no outbox: "
                    "expected a task without postings and events, "
                    f"found some on {task.id}",
                    self.path,
                )
        with self._writing() as unit:
            return Adding(unit).run(tasks)

    def get(
        self, ids: Sequence[str], *, tenant: str | None = None, payloads: bool = False
    ) -> Sequence[Stored | None]:
        """Return tasks by id; see ``Store.get``."""
        with self._reading() as unit:
            return reading.get(unit, ids, tenant=tenant, payloads=payloads)

    def claim(
        self,
        worker_id: str,
        nonce: str,
        *,
        format: int,  # the word of the design
        handlers: Collection[str],
        room: Room,
        lease: timedelta,
        skip: Collection[str] = (),
        only: Sequence[str] | None = None,
    ) -> Batch:
        """Lease what is due; see ``Store.claim``."""
        with self._writing() as unit:
            repeated = self._repeat(unit, worker_id, nonce)
            claim = Claim(unit, format=format, handlers=handlers, room=room, lease=span(lease), skip=skip)
            if repeated is None:
                token = new_token()
                if only is None:
                    claim.run()
                else:
                    claim.run_only(only)
                leases = claim.finish(token)
                claimed = [token, *(f"{taken.seq}:{taken.kind}" for taken in claim.taken)]
                # Who looks at one task now is no worker that others may wait for.
                able = handlers if only is None else ()
                self._sign_of_life(
                    unit, worker_id, nonce, handlers=able, skip=skip, format_=format, claimed=claimed
                )
            else:
                leases = repeated
            next_at = claim.next_at()
            # Taking work makes none: whoever waits need not look again.
            unit.has_work = False
            return Batch(
                leases=leases,
                now=from_micros(unit.now),
                next_at=None if next_at is None else from_micros(next_at),
                mark=unit.counters["work"],
                has_suspects=claim.has_suspects,
            )

    def _repeat(self, unit: Unit, worker_id: str, nonce: str) -> tuple[Lease, ...] | None:
        """Return the leases of an earlier claim with this nonce that are still held, if there was one."""
        found = unit.one("SELECT claimed FROM @workers WHERE worker = ? AND nonce = ?", worker_id, nonce)
        if found is None:
            return None
        token, *items = found.split(SEPARATOR)
        kinds = {int(seq): Kind(kind) for seq, kind in (item.split(":") for item in items)}
        rows = unit.all(
            f"SELECT seq, token, lease_until, {SHOWN} FROM @tasks WHERE seq IN {LISTED}",  # noqa: S608  # fixed
            listed(kinds),
        )
        held = {seq: values for seq, *values in rows if values[0] == f"{token}{seq}"}
        params = load_params(unit, list(held))
        return tuple(
            Lease(
                kind=kind,
                stored=stored_of(tuple(held[seq][2:]), params.get(seq)),
                token=held[seq][0],
                expires_at=from_micros(held[seq][1]),
            )
            for seq, kind in kinds.items()
            if seq in held
        )

    def _sign_of_life(
        self,
        unit: Unit,
        worker_id: str,
        nonce: str,
        *,
        handlers: Collection[str],
        skip: Collection[str],
        format_: int,
        claimed: list[str],
    ) -> None:
        """Remember what this worker can do and what it was just given.

        An idle claim writes only now and then.
        """
        able = SEPARATOR.join(sorted(handlers))
        skipped = SEPARATOR.join(sorted(skip))
        sign = f"{format_}\n{able}\n{skipped}"
        seen_sign, seen_at = self._signs_of_life.get(worker_id, ("", 0))
        if len(claimed) == 1 and sign == seen_sign and 0 <= unit.now - seen_at < _SIGN_OF_LIFE:
            return
        unit.run(
            "INSERT OR REPLACE INTO @workers VALUES (?, ?, ?, ?, ?, ?, ?)",
            worker_id,
            able,
            skipped,
            format_,
            unit.now,
            nonce,
            SEPARATOR.join(claimed),
        )
        self._signs_of_life = {worker_id: (sign, unit.now)}
        if not 0 <= unit.now - self._swept_at < _SWEPT:
            self._swept_at = unit.now
            unit.run("DELETE FROM @workers WHERE seen_at < ?", unit.now - _WORKER_KEPT)
            Lanes(unit).sweep(handlers)

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Write moves; see ``Store.commit``."""
        try:
            with self._writing() as unit:
                return Commit(unit).run(transitions)
        except (sqlite3.DatabaseError, OverflowError, TypeError, ValueError):
            # One of them cannot be written: find out which, and write the others.
            with self._writing() as unit:
                return commit_each(unit, transitions)

    def renew(self, leases: Sequence[tuple[str, str]], lease: timedelta) -> Sequence[bool]:
        """Extend leases; see ``Store.renew``."""
        with self._database.write() as cursor:
            unit = Unit(self._database, cursor, self._micros(), self._limits, self._ageing)
            length = span(lease)
            until = unit.now + length
            answers = []
            for task_id, token in leases:
                done = unit.run(
                    f"UPDATE @tasks SET lease_until = ?, lease_length = ?, {LOST_AT} "  # noqa: S608  # fixed
                    "WHERE id = ? AND token = ? AND lane IS NULL AND suspect_at IS NULL",
                    until,
                    length,
                    until + length // 2,
                    until,
                    task_id,
                    token,
                )
                answers.append(done.rowcount == 1 or self._renew_late(unit, task_id, token, length))
            return answers

    def _renew_late(self, unit: Unit, task_id: str, token: str, lease: int) -> bool:
        """Renew a lease that ran out and whose task waits in a lane again but was not claimed.

        Take it out of there.
        """
        hot = load(unit, [task_id]).get(task_id)
        if hot is None or hot.token != token:
            return False
        lanes = Lanes(unit)
        lanes.leave(hot)
        until = unit.now + lease
        unit.run(
            f"UPDATE @tasks SET lane = NULL, suspect_at = NULL, lease_until = ?, lease_length = ?, {LOST_AT} "  # noqa: S608  # fixed
            "WHERE seq = ?",
            until,
            lease,
            until + lease // 2,
            until,
            hot.seq,
        )
        lanes.settle()
        return True

    def request_cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[bool]:
        """Set cancel flags; see ``Store.request_cancel``."""

        def flag(hot: Hot) -> bool:
            if tenant is not None and hot.tenant != tenant:
                return False
            if hot.cancel == CancelFlag.NONE:
                hot.cancel = int(CancelFlag.REQUESTED)
            return True

        return self._nudge(ids, flag)

    def make_due(self, ids: Sequence[str], *, redrive: bool = False) -> Sequence[bool]:
        """Make tasks due now; see ``Store.make_due``."""

        def free(hot: Hot) -> bool:
            if redrive:
                hot.claims = 0
            return True

        return self._nudge(ids, free)

    def _nudge(self, ids: Sequence[str], change: Callable[[Hot], bool]) -> list[bool]:
        """Change something beside live records and make them due now.

        A lookup keeps its time, a leased row its lease.
        """
        with self._writing() as unit:
            rows = load(unit, ids)
            lanes = Lanes(unit)
            moved = []
            answers = {}
            for id_, hot in rows.items():
                answers[id_] = hot.finished_at is None and change(hot)
                if not answers[id_]:
                    continue
                is_held = hot.token is not None
                if is_held:
                    # Its commit makes it due, also when it comes after the lease has run out.
                    hot.redue = 1
                is_lost = not is_held or (hot.lease_until or 0) <= unit.now
                if is_lost and not (is_held and hot.status == TaskStatus.SUBMITTING):
                    if hot.next_step != Step.LOOKUP:
                        hot.due_at = min(hot.due_at or unit.now, unit.now)
                    lanes.place(hot)
                    unit.has_work = True
                moved.append(hot)
            _write_place(unit, moved)
            unit.many(
                "UPDATE @tasks SET cancel = ?, redue = ?, claims = ? WHERE seq = ?",
                [(h.cancel, h.redue, h.claims, h.seq) for h in moved],
            )
            lanes.settle()
        return [answers.get(id_, False) for id_ in ids]

    def prune(self, older_than: Mapping[TaskStatus, timedelta], *, limit: int = 1000) -> int:
        """Delete ended tasks; see ``Store.prune``."""
        with self._writing() as unit:
            pruned = 0
            for status, age in older_than.items():
                if not TaskStatus(status).is_end:
                    raise ValidationError(
                        f"only ended tasks can be pruned, found {status!r}; name end states", "older_than"
                    )
                check_duration(age, f"older_than[{status}]", zero=True)
                gone = unit.all(
                    "SELECT seq FROM @tasks WHERE status = ? AND finished_at <= ? AND job = 0 "
                    "ORDER BY finished_at LIMIT ?",
                    TaskStatus(status).value,
                    unit.now - span(age),
                    limit - pruned,
                )
                for table in ("params", "results", "tasks"):
                    unit.many(f"DELETE FROM @{table} WHERE seq = ?", gone)  # noqa: S608  # one of three names
                unit.count({TaskStatus(status).value: -len(gone)})
                pruned += len(gone)
            unit.run(
                "DELETE FROM @tenants "
                "WHERE turn <= COALESCE((SELECT value FROM @counters WHERE name = 'turn'), 0) "
                "AND NOT EXISTS (SELECT 1 FROM @lanes INDEXED BY @lanes_tenant "
                "WHERE tenant = @tenants.tenant AND side = 0)"
            )
            return pruned

    def stats(self) -> Stats:
        """Count; see ``Store.stats``."""
        with self._reading() as unit:
            return reading.stats(unit)

    def explain(self, ids: Sequence[str]) -> Sequence[Explanation | None]:
        """Say why tasks wait; see ``Store.explain``."""
        with self._reading() as unit:
            return reading.explain(unit, ids)

    def set_limit(self, limits: Sequence[Limit], *, only_missing: bool = False) -> None:
        """Set limits; see ``Store.set_limit``."""
        with self._writing() as unit:
            verb = "IGNORE" if only_missing else "REPLACE"
            unit.many(
                # One of two fixed verbs.
                f"INSERT OR {verb} INTO @limits VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                [
                    (
                        repr(limit.subject),
                        str(limit.side or "live"),
                        limit.provider,
                        limit.account,
                        limit.tenant,
                        limit.rate.count if limit.rate else None,
                        span(limit.rate.per) if limit.rate else None,
                        limit.live,
                    )
                    for limit in limits
                ],
            )
            unit.run("UPDATE @counters SET value = value + 1 WHERE name = 'limits'")
            self._wake_all(unit)

    def _wake_all(self, unit: Unit) -> None:
        """Have every blocked lane looked at again."""
        unit.run(
            "INSERT OR REPLACE INTO @wakes SELECT DISTINCT blocked_by, 0 FROM @lanes "
            "WHERE is_ready = 0 AND blocked_by IS NOT NULL"
        )
        unit.has_work = True

    def pause(self, kind: str, name: str, *, by: str, reason: str) -> None:
        """Stop submits; see ``Store.pause``."""
        _check_pausable(kind, name)
        with self._writing() as unit:
            unit.run(
                "INSERT OR REPLACE INTO @pauses VALUES (?, ?, ?, ?, ?)", kind, name, by, reason, unit.now
            )

    def unpause(self, kind: str, name: str) -> bool:
        """Let submits go on; see ``Store.unpause``."""
        _check_pausable(kind, name)
        with self._writing() as unit:
            gone = unit.run("DELETE FROM @pauses WHERE kind = ? AND name = ?", kind, name).rowcount
            Lanes(unit).wake_now([key_of("pause", kind, name)])
            return gone == 1

    # Waiting.

    def wait_for_work(self, mark: int, timeout: timedelta) -> bool:
        """Block until something may be due; see ``Store.wait_for_work``."""

        def has_news(unit: Unit) -> bool:
            return bool(unit.one("SELECT value FROM @counters WHERE name = 'work'") != mark)

        return self._wait(has_news, timeout)

    def wait_for_change(self, task_id: str, version: int, timeout: timedelta) -> bool:
        """Block until a task's version changes; see ``Store.wait_for_change``."""

        def has_changed(unit: Unit) -> bool:
            return bool(unit.one("SELECT version FROM @tasks WHERE id = ?", task_id) != version)

        return self._wait(has_changed, timeout)

    def _wait(self, is_true: Callable[[Unit], bool], timeout: timedelta) -> bool:
        """Look when this process or another one has written, until it is true or the time is over."""
        end = time.monotonic() + timeout.total_seconds()
        seen: tuple[int, int] | None = None
        while True:
            now_seen = (self._changes, self._database.change_mark() if self.is_shared else 0)
            if now_seen != seen:
                seen = now_seen
                with self._database.read() as cursor:
                    unit = Unit(self._database, cursor, 0, self._limits, self._ageing)
                    if is_true(unit):
                        return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                if self._changes == seen[0]:
                    self._changed.wait(min(left, GLANCE) if self.is_shared else left)

    def close(self) -> None:
        """Close the file; see ``Store.close``."""
        self._database.close()
        self._notify()

    # Last, because its name hides the built-in one in the class body.

    def list(self, where: Filter, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return a page of tasks; see ``Store.list``."""
        with self._reading() as unit:
            return reading.page(unit, where, limit=limit, cursor=cursor)


def _write_place(unit: Unit, rows: Sequence[Hot]) -> None:
    unit.many(
        "UPDATE @tasks SET lane = ?, ord1 = ?, ord2 = ?, suspect_at = ?, due_at = ?, look_at = ?, "
        "lost_at = ? WHERE seq = ?",
        [(h.lane, h.ord1, h.ord2, h.suspect_at, h.due_at, h.look_at, h.lost_at, h.seq) for h in rows],
    )


def _check_pausable(kind: str, name: str) -> None:
    if kind not in _PAUSABLE:
        raise ValidationError(f"a pause is for one of {', '.join(_PAUSABLE)}, found {kind!r}", "kind")
    check_name(name, kind, blank=kind == "tenant")
