"""Whole lives of tasks through one worker on SQLite, beside a bare loop that does the same without us.

Run ``nox -s bench -- lifecycle`` (or this file). A life is one submit and four queries, three "running" and a
success; the tasks are stored before the clock starts. The bare loop makes the same calls over the same
transport with as many threads and writes the same rows under the same indexes in groups, with no leases,
recovery, limits, turns or checks: a bound, not a product. Runs take turns, the median counts.

``scripted`` answers in this process, ``requests`` asks a vendor in a process of its own over HTTP. Compare
figures of one run only; the machine's other work moves them all.
"""

import argparse
import cProfile
import pstats
import secrets
import sqlite3
import statistics
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from coatcheck import codec
from coatcheck.accounts import Accounts
from coatcheck.http import Call, Reply, path
from coatcheck.model import Account, Task, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck.registry import Registry
from coatcheck.store import NewTask
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.vendor import JobRequest, VendorHandler, VendorProcess
from coatcheck.transport import RequestsTransport, Transport
from coatcheck.worker import Worker, WorkerSettings

POLLS = 3
STEPS = POLLS + 2
AT_ONCE = PollPolicy(first=timedelta(), start=timedelta(), error_start=timedelta(), jitter=0)
#: The bare loop commits this often, in seconds, or as soon as this many rows wait.
LINGER = 0.004
GROUP = 500


class Scripted:
    """A transport that answers in this process, as quickly as it can."""

    def __init__(self) -> None:
        self._polls: Counter[str] = Counter()
        self._numbers = iter(range(1 << 60))

    def perform(self, call: Call, account: Account) -> Reply:
        """Answer as the local vendor does."""
        if call.method == "POST":
            return Reply(201, b'{"id":"job-%d","status":"queued"}' % next(self._numbers))
        self._polls[call.url] += 1
        if self._polls[call.url] <= POLLS:
            return Reply(200, b'{"id":"job","status":"running","progress":25}')
        del self._polls[call.url]
        return Reply(200, b'{"id":"job","status":"succeeded","output":{"text":"HELLO"},"usage":{"pages":1}}')

    def close(self) -> None:
        """Do nothing: there is nothing open."""


def fill(store: SqliteStore, handler: VendorHandler, count: int) -> list[str]:
    """Store tasks that are due at once."""
    now = store.now()
    # New ones for each run: the vendor remembers the jobs of their keys.
    run = secrets.token_hex(4)
    ids = [f"task-{run}-{number:08d}" for number in range(count)]
    tasks = []
    for task_id in ids:
        task = Task(
            id=task_id,
            status=TaskStatus.PENDING_SUBMIT,
            handler_key=handler.key,
            provider_key=handler.provider_key,
            account=handler.account,
            request_type="test.job",
            idempotency_key=task_id,
            traits=handler.traits,
            created_at=now,
            scheduled_at=now,
            deadline_at=now,
            updated_at=now,
        )
        request = JobRequest.of(task_id, polls=POLLS)
        tasks.append(
            NewTask(
                id=task_id,
                format=codec.FORMAT,
                record=codec.encode_record(task),
                params=codec.encode_value(request, field="params", cap=codec.CAPS["params"]),
                handler_key=handler.key,
                provider_key=handler.provider_key,
                account=handler.account,
            )
        )
    for start in range(0, count, 500):
        store.add(tasks[start : start + 500])
    return ids


def our_run(
    folder: Path, url: str, transport: Transport, given: argparse.Namespace, profile: Any = None
) -> tuple[float, float]:
    """Return tasks a second and the CPU seconds of this process, for one worker."""
    count = given.tasks
    handler = VendorHandler(url, poll=AT_ONCE)
    registry = Registry()
    registry.add_handler(handler)
    store = SqliteStore(str(folder / f"ours-{time.time_ns()}.db"))
    fill(store, handler, count)
    worker = Worker(
        store,
        registry,
        accounts=Accounts(environ={}),
        transport=transport,
        settings=WorkerSettings(threads=given.threads),
    )
    ended = [0.0]

    def watch() -> None:
        while worker.health().committed < STEPS * count:
            time.sleep(0.005)
        ended[0] = time.perf_counter()
        worker.stop()

    watcher = threading.Thread(target=watch)
    began, cpu = time.perf_counter(), time.process_time()
    watcher.start()
    if profile is not None:
        profile.enable()
    worker.run(stop_signals=False)
    if profile is not None:
        profile.disable()
    watcher.join()
    spent = time.process_time() - cpu
    assert store.stats().by_status[TaskStatus.SUCCEEDED] == count
    store.close()
    return count / (ended[0] - began), spent


class Bare:
    """Threads that call, and one loop that writes rows in groups."""

    def __init__(self, folder: Path, url: str, transport: Transport, count: int, threads: int) -> None:
        self._url = url
        self._transport = transport
        self._count = count
        path_ = str(folder / f"bare-{time.time_ns()}.db")
        handler = VendorHandler(url)
        store = SqliteStore(path_)
        self._ids = fill(store, handler, count)
        store.close()
        self._db = sqlite3.connect(path_, isolation_level=None)
        self._db.execute("PRAGMA synchronous = NORMAL")
        rows = self._db.execute("SELECT id, seq, record FROM default_tasks").fetchall()
        self._rows = {task_id: (seq, record) for task_id, seq, record in rows}
        self._lane = self._db.execute("SELECT id FROM default_lanes").fetchone()[0]
        self._account = Account("default", lambda _: "")
        self._work: SimpleQueue[tuple[str, str | None] | None] = SimpleQueue()
        self._done: deque[tuple[str, str, str]] = deque()
        self._threads = [threading.Thread(target=self._call, daemon=True) for _ in range(threads)]

    def _call(self) -> None:
        while True:
            item = self._work.get()
            if item is None:
                return
            task_id, job = item
            if job is None:
                call = Call(
                    "POST",
                    f"{self._url}/jobs",
                    headers={"Idempotency-Key": task_id},
                    json={"text": task_id, "script": {"polls": POLLS}},
                )
            else:
                call = Call("GET", self._url + path("jobs", job))
            answer = codec.loads(self._transport.perform(call, self._account).body)
            self._done.append((task_id, job or answer["id"], answer["status"]))

    def run(self) -> tuple[float, float]:
        """Return tasks a second and CPU seconds."""
        began, cpu = time.perf_counter(), time.process_time()
        for thread in self._threads:
            thread.start()
        for task_id in self._ids:
            self._work.put((task_id, None))
        left, last = self._count, began
        while left:
            if len(self._done) < GROUP:
                time.sleep(max(0.0, last + LINGER - time.perf_counter()))
            group = [self._done.popleft() for _ in range(min(GROUP, len(self._done)))]
            if group:
                left -= self._write(group)
                for task_id, job, status in group:
                    if status != "succeeded":
                        self._work.put((task_id, job))
            last = time.perf_counter()
        seconds = time.perf_counter() - began
        spent = time.process_time() - cpu
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._db.close()
        return self._count / seconds, spent

    def _write(self, group: list[tuple[str, str, str]]) -> int:
        now = time.time_ns() // 1000
        stay, ends, results = [], [], []
        for task_id, _, status in group:
            seq, record = self._rows[task_id]
            if status == "succeeded":
                ends.append((1, status, now, now, record, seq))
                results.append((seq, b'{"type":"test.result","version":1,"data":{"text":"HELLO"}}'))
            else:
                stay.append((1, "running", self._lane, now, now + 10**10, now, now, record, seq))
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "UPDATE default_tasks SET version = version + ?, status = ?, lane = ?, ord1 = ?, ord2 = 0, "
            "look_at = ?, due_at = ?, updated_at = ?, next_step = 'query', record = ? WHERE seq = ?",
            stay,
        )
        db.executemany(
            "UPDATE default_tasks SET version = version + ?, status = ?, lane = NULL, look_at = NULL, "
            "due_at = NULL, updated_at = ?, finished_at = ?, job = 0, next_step = NULL, record = ? "
            "WHERE seq = ?",
            ends,
        )
        db.executemany("INSERT INTO default_results VALUES (?, ?)", results)
        db.executemany("DELETE FROM default_params WHERE seq = ?", [(seq,) for *_, seq in ends])
        db.execute("COMMIT")
        return len(ends)


def compare(name: str, make: Callable[[], Transport], url: str, given: argparse.Namespace) -> None:
    """Run both in turns and print the medians."""

    def bare_run(folder: Path, transport: Transport) -> tuple[float, float]:
        return Bare(folder, url, transport, given.tasks, given.threads).run()

    def worker_run(folder: Path, transport: Transport) -> tuple[float, float]:
        return our_run(folder, url, transport, given)

    runs = {"bare loop": bare_run, "worker": worker_run}
    results: dict[str, list[tuple[float, float]]] = {title: [] for title in runs}
    for _ in range(given.runs):
        for title, run in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                transport = make()
                results[title].append(run(Path(folder), transport))
                transport.close()
    medians = {}
    for title, pairs in results.items():
        rates = sorted(rate for rate, _ in pairs)
        medians[title] = statistics.median(rates)
        cpu = statistics.median(cpu for _, cpu in pairs) / given.tasks
        print(
            f"{name:9} {title:10} {medians[title]:7,.0f} tasks/s ({rates[0]:,.0f}-{rates[-1]:,.0f}), "
            f"{cpu * 1e3:.2f} ms of CPU a task"
        )
    print(f"{name:9} the worker reaches {medians['worker'] / medians['bare loop']:.0%} of the bare loop")


def show_profile(url: str, make: Callable[[], Any], given: argparse.Namespace) -> None:
    """Print where the main loop's time goes (threads that call are not in it)."""
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as name:
        our_run(Path(name), url, make(), given, profile)
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--transport", choices=("scripted", "requests", "both"), default="both")
    parser.add_argument(
        "--profile", action="store_true", help="one run of the worker, and where its time goes"
    )
    given = parser.parse_args()
    if given.profile:
        show_profile("http://vendor.invalid", Scripted, given)
        return
    if given.transport in ("scripted", "both"):
        compare("scripted", Scripted, "http://vendor.invalid", given)
    if given.transport in ("requests", "both"):
        with VendorProcess() as vendor:
            compare("requests", RequestsTransport, vendor.url, given)


if __name__ == "__main__":
    main()
