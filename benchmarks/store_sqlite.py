"""Claim and commit on SQLite, beside a bare loop that writes the same rows under the same indexes.

Run ``nox -s bench -- store_sqlite`` (or this file). Two questions: what share of the bare loop's claim+commit
pairs the store reaches in batches of 100, and how much slower a claim is with 200,000 blocked tasks in front
of it.
"""

import argparse
import secrets
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from coatcheck.model import Job, Limit, Side, Step, TaskStatus
from coatcheck.store import Lease, NewTask, Room, Transition
from coatcheck.stores.sqlite import SqliteStore

BATCH = 100
LEASE = timedelta(seconds=30)
RECORD = b'{"idempotency_key":"0","metadata":{}}' * 10


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
    for _ in range(0, tasks, BATCH):
        store_round(store)


def store_round(store: SqliteStore) -> int:
    """Claim a batch and commit it."""
    batch = store.claim(
        "w", secrets.token_hex(8), format=1, handlers=["h"], room=Room(total=BATCH), lease=LEASE
    )
    store.commit([still_running(lease) for lease in batch.leases])
    return len(batch.leases)


class Bare:
    """The same rows and indexes, without leases, limits, turns or checks."""

    def __init__(self, path: str, tasks: int) -> None:
        store = SqliteStore(path)
        fill(store, tasks)
        store.close()
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA synchronous = NORMAL")
        (self._lane,) = self._db.execute("SELECT id FROM default_lanes").fetchone()

    def round(self) -> int:
        """Take the first batch of the lane and put it back."""
        db = self._db
        now = time.time_ns() // 1000
        token = secrets.token_hex(16)
        db.execute("BEGIN IMMEDIATE")
        rows = db.execute(
            "SELECT seq, version, record FROM default_tasks WHERE lane = ? ORDER BY ord1, ord2, seq LIMIT ?",
            (self._lane, BATCH),
        ).fetchall()
        db.executemany(
            "UPDATE default_tasks SET token = ?, lease_until = ?, lease_length = ?, look_at = ?, claims = ?, "
            "lane = NULL, suspect = 0 WHERE seq = ?",
            [(token, now + 30_000_000, 30_000_000, now + 30_000_000, 1, seq) for seq, _, _ in rows],
        )
        db.execute("COMMIT")
        now = time.time_ns() // 1000
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "UPDATE default_tasks SET version = ?, status = 'running', format = 1, cancel = 0, redue = 0, "
            "claims = 0, token = NULL, lease_until = NULL, last_key = ?, lane = ?, ord1 = ?, ord2 = 0, "
            "suspect = 0, look_at = ?, due_at = ?, stall_at = NULL, updated_at = ?, next_step = 'query', "
            "record = ? WHERE seq = ?",
            [
                (version + 1, token, self._lane, now, now + 10**10, now, now, record, seq)
                for seq, version, record in rows
            ],
        )
        db.execute("COMMIT")
        return len(rows)

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def rate(round_: Callable[[], int], seconds: float) -> float:
    """Return pairs a second."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += round_()
    return done / (time.perf_counter() - start)


def pairs(folder: Path, tasks: int, runs: int) -> None:
    """Compare pairs a second."""
    store = SqliteStore(str(folder / "pairs.db"))
    fill(store, tasks)
    bare = Bare(str(folder / "bare.db"), tasks)
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(rate(lambda: store_round(store), 2.0))
        theirs.append(rate(bare.round, 2.0))
    store.close()
    bare.close()
    ratio = statistics.median(o / t for o, t in zip(ours, theirs, strict=True))
    print(f"claim+commit pairs/s, batches of {BATCH}, {tasks} tasks:")
    print(
        f"  store {statistics.median(ours):9.0f}   bare {statistics.median(theirs):9.0f}   ratio {ratio:.2f}"
    )


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
        times = []
        for _ in range(runs):
            start_at = time.perf_counter()
            batch = store.claim(
                "w",
                secrets.token_hex(8),
                format=1,
                handlers=["h"],
                room=Room(total=BATCH),
                lease=timedelta(days=1),
            )
            times.append(time.perf_counter() - start_at)
            if len(batch.leases) != BATCH:
                raise SystemExit(f"expected {BATCH} leases, found {len(batch.leases)}")
        store.close()
        medians.append(statistics.median(times))
        first = times[0] * 1000
        print(f"  {in_front:7} blocked in front: {medians[-1] * 1000:6.2f} ms (first {first:.1f})")
    print(f"  ratio {medians[1] / medians[0]:.2f}")


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
