"""Claim and commit on SQLite, beside a bare loop that writes the same rows under the same indexes.

Run ``nox -s bench -- store_sqlite`` (or this file). Two questions: what share of the bare loop's claim+commit
pairs the store reaches in batches of 100, and how much slower a claim is with 200,000 blocked tasks in front
of it. A second bare loop also reads what a lease shows and makes its values: the bound of whatever keeps the
protocol. On a machine that does other things too, compare the shares by CPU.
"""

import argparse
import secrets
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from attrs import frozen

from coatcheck.model import Job, Limit, Side, Step, TaskStatus
from coatcheck.store import Kind, Lease, NewTask, Room, Transition
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.stores.sqlite.database import WRITER
from coatcheck.stores.sqlite.hot import SHOWN, stored_of

BATCH = 100
LEASE = timedelta(seconds=30)
RECORD = b'{"idempotency_key":"0","metadata":{}}' * 10


@frozen
class Cost:
    """Seconds on the wall, and of this process's CPU time."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Cost":
        """Read both clocks."""
        return cls(time.perf_counter(), time.process_time())

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.wall - other.wall, self.cpu - other.cpu)


def new_task(account: str = "a", tenant: str = "", priority: int = 0) -> NewTask:
    """Return one task that is due at once."""
    return NewTask(
        id=uuid.uuid4().hex,
        format=1,
        record=RECORD,
        params=b"{}",
        handler_key="h",
        provider_key="h",
        account=account,
        tenant=tenant,
        priority=priority,
    )


def still_running(lease: Lease) -> Transition:
    """Return the transition of a query that saw no end."""
    return Transition(
        task_id=lease.task_id,
        key=lease.token,
        status=TaskStatus.RUNNING,
        generation=1,
        next_step=Step.QUERY,
        delay=timedelta(),
        job=Job.LIVE,
        format=1,
        record=RECORD,
        side=Side.QUERY,
    )


def fill(store: SqliteStore, tasks: int) -> None:
    """Add tasks and submit them all, so that what follows are queries."""
    for _ in range(0, tasks, 1000):
        store.add([new_task() for _ in range(1000)])
    while store.stats().by_status[TaskStatus.PENDING_SUBMIT]:
        store_round(store)


def store_round(store: SqliteStore) -> tuple[int, Cost]:
    """Claim a batch and commit it; what the caller does in between is not counted."""
    start = Cost.now()
    batch = store.claim(
        "w", secrets.token_hex(8), format=1, handlers=["h"], room=Room(total=BATCH), lease=LEASE
    )
    claimed = Cost.now()
    moves = [still_running(lease) for lease in batch.leases]
    decided = Cost.now()
    store.commit(moves)
    return len(batch.leases), Cost.now() - decided + claimed - start


class Bare:
    """The same rows, indexes and settings, without leases, limits, turns or checks.

    Args:
        path: where the file will be.
        tasks: how many rows it has.
        with_values: whether to read what the protocol hands out, and to make it.
    """

    def __init__(self, path: str, tasks: int, *, with_values: bool) -> None:
        store = SqliteStore(path)
        fill(store, tasks)
        store.close()
        self._db = sqlite3.connect(path, isolation_level=None)
        for pragma in WRITER:
            self._db.execute(f"PRAGMA {pragma}").close()
        (self._lane,) = self._db.execute("SELECT id FROM default_lanes").fetchone()
        self._with_values = with_values

    def round(self) -> tuple[int, Cost]:
        """Take the first batch of the lane and put it back."""
        start = Cost.now()
        db = self._db
        now = time.time_ns() // 1000
        token = secrets.token_hex(16)
        db.execute("BEGIN IMMEDIATE")
        shown = SHOWN if self._with_values else "record"
        rows = db.execute(
            f"SELECT seq, version, {shown} FROM default_tasks WHERE lane = ? "
            "ORDER BY ord1, ord2, seq LIMIT ?",
            (self._lane, BATCH),
        ).fetchall()
        db.executemany(
            "UPDATE default_tasks SET token = ?, lease_until = ?, lease_length = ?, lost_at = ?, claims = ?, "
            "lane = NULL, redue = 0 WHERE seq = ?",
            [(token, now + 30_000_000, 30_000_000, now + 30_000_000, 1, row[0]) for row in rows],
        )
        db.execute("COMMIT")
        if self._with_values:
            at = datetime.now(UTC)
            self.leases = [
                Lease(kind=Kind.QUERY, stored=stored_of(row[2:]), token=token, expires_at=at) for row in rows
            ]
        now = time.time_ns() // 1000
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "UPDATE default_tasks SET version = ?, status = 'running', generation = 1, format = 1, "
            "cancel = 0, redue = 0, claims = 0, token = NULL, lease_until = NULL, lost_at = NULL, "
            "last_key = ?, lane = ?, ord1 = ?, ord2 = 0, due_at = ?, stall_at = NULL, updated_at = ?, "
            "next_step = 'query', record = ? WHERE seq = ?",
            [(row[1] + 1, token, self._lane, now, now, now, RECORD, row[0]) for row in rows],
        )
        db.execute("COMMIT")
        return len(rows), Cost.now() - start

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def rates(round_: Callable[[], tuple[int, Cost]], seconds: float) -> tuple[float, float]:
    """Return pairs a second, and pairs a second of this process's CPU time."""
    done, cost, start = 0, Cost(0.0, 0.0), time.perf_counter()
    while time.perf_counter() - start < seconds:
        count, more = round_()
        done, cost = done + count, cost + more
    return done / cost.wall, done / cost.cpu


def pairs(folder: Path, tasks: int, runs: int) -> None:
    """Compare pairs a second; the loops take turns."""
    store = SqliteStore(str(folder / "pairs.db"))
    fill(store, tasks)
    bare = Bare(str(folder / "bare.db"), tasks, with_values=False)
    values = Bare(str(folder / "values.db"), tasks, with_values=True)
    rounds = {
        "store": lambda: store_round(store),
        "bare loop": bare.round,
        "bare, with values": values.round,
    }
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in rounds}
    for _ in range(runs):
        for name, round_ in rounds.items():
            results[name].append(rates(round_, 2.0))
    for opened in (store, bare, values):
        opened.close()
    print(f"claim+commit pairs, batches of {BATCH}, {tasks} tasks:")
    ours = results.pop("store")
    print(f"  {'store':17} {median_of(ours, 0):9,.0f}/s, {median_of(ours, 1):9,.0f}/s of CPU")
    for name, theirs in results.items():
        shares = [(our[0] / their[0], our[1] / their[1]) for our, their in zip(ours, theirs, strict=True)]
        print(
            f"  {name:17} {median_of(theirs, 0):9,.0f}/s, {median_of(theirs, 1):9,.0f}/s of CPU; "
            f"the store reaches {median_of(shares, 0):.0%}, by CPU {median_of(shares, 1):.0%}"
        )


def median_of(figures: list[tuple[float, float]], column: int) -> float:
    """Return the median of one column."""
    return statistics.median(figure[column] for figure in figures)


def blocked(folder: Path, waiting: int, runs: int) -> None:
    """Compare a claim without and with blocked tasks in front."""
    medians = []
    for in_front in (0, waiting):
        store = SqliteStore(str(folder / f"blocked{in_front}.db"))
        store.set_limit([Limit(account="full", live=1)])
        store.add([new_task("full", priority=10)])
        store.claim("w", "first", format=1, handlers=["h"], room=Room(total=1), lease=timedelta(days=1))
        for start in range(0, in_front, 1000):
            store.add([new_task("full", f"t{(start + n) % 1000}", priority=10) for n in range(1000)])
        store.add([new_task() for _ in range(BATCH * (runs + 1))])
        costs = []
        for _ in range(runs):
            before = Cost.now()
            batch = store.claim(
                "w",
                secrets.token_hex(8),
                format=1,
                handlers=["h"],
                room=Room(total=BATCH),
                lease=timedelta(days=1),
            )
            costs.append(Cost.now() - before)
            if len(batch.leases) != BATCH:
                raise SystemExit(f"expected {BATCH} leases, found {len(batch.leases)}")
        store.close()
        wall, cpu = statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs)
        medians.append((wall, cpu))
        print(
            f"  {in_front:7} blocked in front: {wall * 1000:6.2f} ms, {cpu * 1000:6.2f} ms of CPU "
            f"(first {costs[0].cpu * 1000:.1f})"
        )
    (wall, cpu), (blocked_wall, blocked_cpu) = medians
    print(f"  ratio {blocked_wall / wall:.2f}, by CPU {blocked_cpu / cpu:.2f}")


def main() -> None:
    """Run both and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--blocked", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        pairs(Path(name), arguments.tasks, arguments.runs)
        print(f"a claim of {BATCH}:")
        blocked(Path(name), arguments.blocked, 20)


if __name__ == "__main__":
    main()
