"""``RedisStore``: the verbs of ``coatcheck.store.Store``, each one script that runs inside Redis.

Arguments go out and answers come back here; what a verb does is written in ``lua/``. Nothing here decides a
move of the life cycle or keeps anything between two calls.
"""

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from struct import error as StructError  # noqa: N812  # a class, written like one
from typing import Any

from coatcheck.errors import StoreConfigError, ValidationError
from coatcheck.micros import from_micros, span, to_micros
from coatcheck.model import TaskStatus, check_aware, check_duration, check_name
from coatcheck.store import (
    WORKER_SEEN,
    Added,
    AddOutcome,
    Batch,
    Committed,
    Explanation,
    Filter,
    NewTask,
    Outcome,
    Page,
    Room,
    Stats,
    Stored,
    Transition,
)
from coatcheck_redis import reading
from coatcheck_redis.address import parse
from coatcheck_redis.connection import Connection
from coatcheck_redis.listener import Listener
from coatcheck_redis.rows import (
    LAYOUT,
    SEPARATOR,
    STATUSES,
    Unpacked,
    names_of,
    pack_move,
    pack_new,
    status_code,
    unpack_lease,
)

_NAMESPACE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PAUSABLE = ("provider", "account", "tenant")
#: Ranks are kept as numbers that are exact up to 2^52; with this a priority of 1000 still is.
LONGEST_AGEING = timedelta(days=30)
#: How many rows one script looks at for a list that shows few of them.
_STRETCH = 1000
#: A server takes no more than a gigabyte at a time; groups of large results go in several calls.
_MOST_BYTES = 32 * 1024 * 1024
#: Characters that keep names apart in Redis.
_CONTROL = re.compile(r"[\x00\x1e\x1f]")

_DONE = Committed(outcome=Outcome.DONE)
_LOST = Committed(outcome=Outcome.LEASE_LOST, message="the lease belongs to somebody else now")
_GONE = Committed(outcome=Outcome.LEASE_LOST, message="there is no such task any more")
_HELD = Committed(outcome=Outcome.CONFLICT, message="a worker holds the task; try again")
_NO_MONEY = Committed(
    outcome=Outcome.FAILED,
    message="this store keeps no ledger and no outbox; leave postings and events out or use one that does",
)
_FIXED = {0: _DONE, 1: _LOST, 2: _GONE, 3: _HELD, 5: _NO_MONEY}
_CONFLICT = 4


class RedisStore:
    """Tasks in Redis, shared by any number of processes and machines.

    Opening it checks the server: its version, that it throws nothing away when it is full, and that scripts
    run. A full server takes no new tasks; those it has are finished.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or ``redis+cluster://``; its
            options are in the package's README. What is secret in it is never shown.
        namespace: separates everything of one application from another's in the same Redis.
        ageing: makes a task as urgent as one of the next higher priority for each such time that it waits, at
            most 30 days; kept in Redis, ``None`` leaves what is there (at first: none).
        clock: the time, for tests; ``None`` takes the server's.

    Raises:
        StoreConfigError: the URL, the namespace or the server cannot be used.
        StoreUnavailableError: the server does not answer.
    """

    kind = "redis"
    is_shared = True
    capabilities: frozenset[str] = frozenset()

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        ageing: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        address = parse(url)
        self.url = address.label
        if not _NAMESPACE.fullmatch(namespace):
            raise StoreConfigError(
                "a namespace must be 1 to 40 small letters, digits or underscores and begin with a letter, "
                f"found {namespace!r}",
                self.url,
            )
        check_duration(ageing, "ageing", none=True)
        if ageing is not None and ageing > LONGEST_AGEING:
            raise StoreConfigError(
                f"ageing must be at most {LONGEST_AGEING.days} days in Redis, found {ageing}", self.url
            )
        self.namespace = namespace
        self._clock = clock
        # The braces are the hash tag: all keys of a namespace live on one node of a cluster.
        self._connection = Connection(address, f"coatcheck:{{{namespace}}}:", self._start_anew)
        self._listener = Listener(self._connection)
        try:
            self._connection.check_server()
            state, found = self._run("start", LAYOUT, "" if ageing is None else span(ageing))
            if state != b"ok":
                raise StoreConfigError(
                    f"expected the layout {LAYOUT} in namespace {namespace!r} of {self.url}, found "
                    f"{found.decode()}; use the version of coatcheck-redis that wrote it, "
                    "or another namespace",
                    self.url,
                )
        except BaseException:
            self._connection.close()
            raise

    def __repr__(self) -> str:
        return f"<RedisStore {self.url} namespace {self.namespace!r}>"

    def _start_anew(self) -> None:
        """Leave behind what a forked child cannot share."""
        self._listener.start_anew()

    def _run(self, name: str, *arguments: Any, again: bool = True) -> Any:
        now = "" if self._clock is None else to_micros(check_aware(self._clock(), "clock"))
        return self._connection.run(name, (now, *arguments), again=again)

    def now(self) -> datetime:
        """Return the store's time."""
        return from_micros(int(self._run("now")))

    # Verbs.

    def add(self, tasks: Sequence[NewTask]) -> Sequence[Added]:
        """Store new tasks; see ``Store.add``."""
        self._connection.check_open()
        arguments: list[Any] = []
        for task in tasks:
            if task.postings or task.events:
                raise StoreConfigError(
                    "a Redis store keeps no ledger and no outbox: "
                    "expected a task without postings and events, "
                    f"found some on {task.id}",
                    self.url,
                )
            names = names_of(task)
            key = "" if task.dedupe_key is None else f"={task.dedupe_key}"
            if _CONTROL.search(f"{task.id}{key}") or names.count(SEPARATOR) != 3 or "\0" in names:
                raise ValidationError(
                    f"names must be without control characters, found some on task {task.id!r}", "id"
                )
            digest = task.dedupe_digest or b""
            arguments += (task.id, pack_new(task), names, key, digest, task.record, task.params)
        if not tasks:
            return []
        added = []
        for task, (outcome, id_, blob, record) in zip(tasks, self._run("add", *arguments), strict=True):
            stored = Unpacked(id_.decode(), blob).stored(task.record if record is None else record)
            added.append(Added(outcome=AddOutcome(outcome.decode()), stored=stored))
        return added

    def get(
        self, ids: Sequence[str], *, tenant: str | None = None, payloads: bool = False
    ) -> Sequence[Stored | None]:
        """Return tasks by id; see ``Store.get``."""
        blobs, records, *payload = self._run("get", int(payloads), *ids)
        params, results = payload or ([None] * len(ids), [None] * len(ids))
        found: list[Stored | None] = []
        for id_, blob, record, param, result in zip(ids, blobs, records, params, results, strict=True):
            unpacked = None if blob is None else Unpacked(id_, blob)
            if unpacked is None or (tenant is not None and unpacked.row.tenant != tenant):
                found.append(None)
            else:
                found.append(unpacked.stored(record, param, result))
        return found

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
        names, skipped = sorted({*handlers}), sorted({*skip})
        # Who looks at one task now is no worker that others may wait for.
        able = names if only is None else []
        rooms = [part for provider in room.per_provider.items() for part in provider]
        lists: tuple[Sequence[Any], ...] = (names, skipped, rooms)
        arguments: list[Any] = [
            worker_id,
            nonce,
            f"{secrets.token_hex(16)}-",
            reading.sign_of(format, able, skipped),
            format,
            span(lease),
            room.total,
            room.default,
            int(room.is_idle),
        ]
        for items in lists:
            arguments += (len(items), *items)
        arguments += (-1,) if only is None else (len(only), *only)
        now, next_at, mark, has_suspects, items = self._run("claim", *arguments)
        come_back = int(next_at)
        return Batch(
            leases=tuple(unpack_lease(item) for item in items),
            now=from_micros(int(now)),
            next_at=None if come_back < 0 else from_micros(come_back),
            mark=mark,
            has_suspects=bool(has_suspects),
        )

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Write moves; see ``Store.commit``."""
        answers: list[Committed] = []
        waiting: list[Transition] = []
        arguments: list[Any] = []
        size = 0
        # Where each answer of the script belongs.
        places: list[int] = []

        def write() -> None:
            found = self._run("commit", *arguments)
            for place, move, answer in zip(places, waiting, found, strict=True):
                answers[place] = _answer(move, answer)
            waiting.clear()
            arguments.clear()
            places.clear()

        self._connection.check_open()
        for place, move in enumerate(transitions):
            try:
                packed = pack_move(move)
            except (StructError, AttributeError, OverflowError, TypeError, ValueError, KeyError) as error:
                # This one cannot be written; the others can.
                message = f"{type(error).__name__}: {error}"
                answers.append(Committed(outcome=Outcome.FAILED, message=message))
                continue
            if size + len(packed) > _MOST_BYTES and waiting:
                write()
                size = 0
            size += len(packed)
            answers.append(_LOST)
            places.append(place)
            waiting.append(move)
            arguments.append(packed)
        if waiting:
            write()
        return answers

    def renew(self, leases: Sequence[tuple[str, str]], lease: timedelta) -> Sequence[bool]:
        """Extend leases; see ``Store.renew``."""
        words = [word for pair in leases for word in pair]
        return [answer == 1 for answer in self._run("renew", span(lease), *words)]

    def request_cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[bool]:
        """Set cancel flags; see ``Store.request_cancel``."""
        return self._nudge("cancel", ids, tenant)

    def make_due(self, ids: Sequence[str], *, redrive: bool = False) -> Sequence[bool]:
        """Make tasks due now; see ``Store.make_due``."""
        return self._nudge("redrive" if redrive else "due", ids, None)

    def _nudge(self, what: str, ids: Sequence[str], tenant: str | None) -> list[bool]:
        whose = "" if tenant is None else f"={tenant}"
        return [answer == 1 for answer in self._run("nudge", what, whose, *ids)]

    def prune(self, older_than: Mapping[TaskStatus, timedelta], *, limit: int = 1000) -> int:
        """Delete ended tasks; see ``Store.prune``."""
        words: list[int] = []
        for status, age in older_than.items():
            if not TaskStatus(status).is_end:
                raise ValidationError(
                    f"only ended tasks can be pruned, found {status!r}; name end states", "older_than"
                )
            check_duration(age, f"older_than[{status}]", zero=True)
            words += (status_code(status), span(age))
        return int(self._run("prune", limit, *words, again=False))

    def stats(self) -> Stats:
        """Count; see ``Store.stats``."""
        return reading.stats(self._run("stats", span(WORKER_SEEN)))

    def explain(self, ids: Sequence[str]) -> Sequence[Explanation | None]:
        """Say why tasks wait; see ``Store.explain``."""
        return reading.explain(ids, self._run("explain", span(WORKER_SEEN), *ids))

    def set_limit(self, limits: Sequence[Any], *, only_missing: bool = False) -> None:
        """Set limits; see ``Store.set_limit``."""
        words = [word for limit in limits for word in reading.rule_of(limit)]
        self._run("limit", int(only_missing), *words)

    def pause(self, kind: str, name: str, *, by: str, reason: str) -> None:
        """Stop submits; see ``Store.pause``."""
        _check_pausable(kind, name)
        self._run("pause", 1, kind, name, by, reason)

    def unpause(self, kind: str, name: str) -> bool:
        """Let submits go on; see ``Store.unpause``."""
        _check_pausable(kind, name)
        return bool(self._run("pause", 0, kind, name, "", "", again=False))

    # Waiting.

    def wait_for_work(self, mark: int, timeout: timedelta) -> bool:
        """Block until something may be due; see ``Store.wait_for_work``."""
        return self._listener.wait_for_work(mark, timeout.total_seconds())

    def wait_for_change(self, task_id: str, version: int, timeout: timedelta) -> bool:
        """Block until a task's version changes; see ``Store.wait_for_change``."""
        return self._listener.wait_for_change(task_id, version, timeout.total_seconds())

    def close(self) -> None:
        """Give the connections back; see ``Store.close``."""
        if not self._connection.is_closed:
            self._listener.stop()
            self._connection.close()

    # Last, because its name hides the built-in one in the class body.

    def list(self, where: Filter, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return a page of tasks; see ``Store.list``."""
        if cursor is not None and not cursor.isdecimal():
            raise ValidationError(
                f"cursor must be what an earlier page returned, found {cursor!r}; start without one", "cursor"
            )
        if where.dedupe_key is not None and where.tenant is not None:
            return self._holder(where, cursor)
        family = "d" if where.quarantined else "o" if where.tenant else "a"
        names = (where.handler_key, where.provider_key, where.account, where.dedupe_key)
        wanted = ["" if name is None else f"={name}" for name in names]
        statuses = () if where.statuses is None else [status_code(status) for status in where.statuses]
        if where.statuses is not None and not statuses:
            return Page(items=(), cursor=None)
        tenant = "" if where.tenant is None else where.tenant if family == "o" else f"={where.tenant}"
        is_plain = not statuses and not any(wanted) and (family == "o" or not tenant)
        found: list[Unpacked] = []
        items: list[Stored] = []
        below = cursor or ""
        while True:
            count = limit + 1 - len(found)
            stretch = count if is_plain else _STRETCH
            is_end, last, part = self._run("list", family, tenant, below, count, stretch, *wanted, *statuses)
            for id_, blob, record in part:
                found.append(Unpacked(id_.decode(), blob))
                items.append(found[-1].stored(record))
            if len(found) > limit or is_end:
                break
            below = last
        more = str(found[limit - 1].seq) if len(found) > limit else None
        return Page(items=tuple(items[:limit]), cursor=more)

    def _holder(self, where: Filter, cursor: str | None) -> Page:
        """Return the only task that can match: the one that holds a dedupe key."""
        found = self._run("find", where.tenant, f"={where.dedupe_key}")
        if not found:
            return Page(items=(), cursor=None)
        unpacked = Unpacked(found[0].decode(), found[1])
        is_shown = reading.matches(unpacked.row, where) and (cursor is None or unpacked.seq < int(cursor))
        return Page(items=(unpacked.stored(found[2]),) if is_shown else (), cursor=None)


def _answer(move: Transition, found: Any) -> Committed:
    """Return what became of one move, from the script's answer."""
    code, version, status = (found, 0, 0) if isinstance(found, int) else found
    if code != _CONFLICT:
        return _FIXED[code]
    wanted = f"version {move.expected_version} {move.expected_status}"
    message = f"expected {wanted}, found version {version} {STATUSES[status - 1]}; read it again"
    return Committed(outcome=Outcome.CONFLICT, message=message)


def _check_pausable(kind: str, name: str) -> None:
    if kind not in _PAUSABLE:
        raise ValidationError(f"a pause is for one of {', '.join(_PAUSABLE)}, found {kind!r}", "kind")
    check_name(name, kind, blank=kind == "tenant")
