"""Whole lives of tasks through one worker on SQLite, beside a bare loop that does the same without us.

Run ``nox -s bench -- lifecycle`` (or this file). A life is one submit and four queries, three "running" and a
success; the tasks are stored before the clock starts. The bare loop makes the same calls over the same
client, used as its own documentation does, and writes the same rows under the same indexes in groups, with no
leases, recovery, limits, turns or checks: a bound, not a product. The worker runs in an interpreter set up as
its command does that, the bare loop in Python as it comes. Runs take turns, the median counts.

``scripted`` answers in this process; ``requests``, ``urllib3`` and ``aiohttp`` ask a vendor in a process of
its own over HTTP, the first two from threads, the last from an event loop. ``--latency 0.05`` lets the vendor
take its time. Compare figures of one run only; the machine's other work moves them all.
"""

import argparse
import asyncio
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

import aiohttp
import requests
import urllib3

from coatcheck import codec
from coatcheck.accounts import Accounts
from coatcheck.http import Call, Reply, path
from coatcheck.model import Account, Task, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck.registry import Registry
from coatcheck.store import NewTask
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.vendor import JobRequest, VendorHandler, VendorProcess
from coatcheck.transport import RequestsTransport, Transport, Urllib3Transport
from coatcheck.transport.over_aiohttp import AiohttpTransport
from coatcheck.worker import Worker, WorkerSettings, own_process

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


def fill(store: SqliteStore, handler: VendorHandler, given: argparse.Namespace) -> list[str]:
    """Store tasks that are due at once."""
    now, count = store.now(), given.tasks
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
        request = JobRequest.of(task_id, polls=POLLS, latency=given.latency)
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
    fill(store, handler, given)
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
    with own_process():
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


#: A call of the bare loop: the method, the path, the headers and the body.
Raw = tuple[str, str, dict[str, str], bytes | None]


class Bare:
    """The rows of the bare loop, and the loop over threads.

    Args:
        folder: where the file is.
        url: the vendor's.
        given: the options.
    """

    def __init__(self, folder: Path, url: str, given: argparse.Namespace) -> None:
        self._url = url
        self._given = given
        path_ = str(folder / f"bare-{time.time_ns()}.db")
        store = SqliteStore(path_)
        self._ids = fill(store, VendorHandler(url), given)
        store.close()
        self._db = sqlite3.connect(path_, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA synchronous = NORMAL")
        rows = self._db.execute("SELECT id, seq, record FROM default_tasks").fetchall()
        self._rows = {task_id: (seq, record) for task_id, seq, record in rows}
        self._lane = self._db.execute("SELECT id FROM default_lanes").fetchone()[0]
        self._work: SimpleQueue[tuple[str, str | None] | None] = SimpleQueue()
        self._done: deque[tuple[str, str, str]] = deque()

    def _describe(self, task_id: str, job: str | None) -> Raw:
        if job is not None:
            return "GET", self._url + path("jobs", job), {}, None
        script = {"polls": POLLS, "latency": self._given.latency}
        body = codec.dumps({"text": task_id, "script": script})
        headers = {"Idempotency-Key": task_id, "Content-Type": "application/json"}
        return "POST", f"{self._url}/jobs", headers, body

    def run_threads(self, new_client: Callable[[], Callable[[Raw], bytes]]) -> tuple[float, float]:
        """Return tasks a second and CPU seconds, with a client for each thread."""

        def work() -> None:
            call = new_client()
            while (item := self._work.get()) is not None:
                task_id, job = item
                answer = codec.loads(call(self._describe(task_id, job)))
                self._done.append((task_id, job or answer["id"], answer["status"]))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self._given.threads)]
        began, cpu = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        for task_id in self._ids:
            self._work.put((task_id, None))
        left, last = self._given.tasks, began
        while left:
            if len(self._done) < GROUP:
                time.sleep(max(0.0, last + LINGER - time.perf_counter()))
            ended, group = self._write_group()
            left -= ended
            for task_id, job, status in group:
                if status != "succeeded":
                    self._work.put((task_id, job))
            last = time.perf_counter()
        seconds, spent = time.perf_counter() - began, time.process_time() - cpu
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            thread.join()
        self._db.close()
        return self._given.tasks / seconds, spent

    def run_loop(self) -> tuple[float, float]:
        """Return tasks a second and CPU seconds, with aiohttp on one event loop."""
        return asyncio.run(self._run_loop())

    async def _run_loop(self) -> tuple[float, float]:
        waiting = deque[tuple[str, str | None]]((task_id, None) for task_id in self._ids)
        left, busy, news = self._given.tasks, 0, asyncio.Event()
        began, cpu = time.perf_counter(), time.process_time()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one(task_id: str, job: str | None) -> None:
                nonlocal busy
                method, url, headers, body = self._describe(task_id, job)
                async with session.request(method, url, headers=headers, data=body) as response:
                    answer = codec.loads(await response.read())
                self._done.append((task_id, job or answer["id"], answer["status"]))
                busy -= 1
                news.set()

            tasks: set[asyncio.Task[None]] = set()
            last = began
            while left:
                while waiting and busy < self._given.width:
                    busy += 1
                    task = asyncio.create_task(one(*waiting.popleft()))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await news.wait()
                news.clear()
                if len(self._done) < GROUP and time.perf_counter() < last + LINGER:
                    await asyncio.sleep(last + LINGER - time.perf_counter())
                ended, group = self._write_group()
                left -= ended
                waiting.extend((task_id, job) for task_id, job, status in group if status != "succeeded")
                last = time.perf_counter()
            seconds, spent = time.perf_counter() - began, time.process_time() - cpu
        self._db.close()
        return self._given.tasks / seconds, spent

    def _write_group(self) -> tuple[int, list[tuple[str, str, str]]]:
        group = [self._done.popleft() for _ in range(min(GROUP, len(self._done)))]
        return (self._write(group) if group else 0), group

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


def scripted_client() -> Callable[[Raw], bytes]:
    """Return a client that answers in this process."""

    def call(raw: Raw) -> bytes:
        method, url, headers, _ = raw
        return SCRIPTED.perform(Call(method, url, headers=headers), ACCOUNT).body

    return call


def requests_client() -> Callable[[Raw], bytes]:
    """Return a session of requests that does not read the environment at each call."""
    session = requests.Session()
    session.trust_env = False

    def call(raw: Raw) -> bytes:
        method, url, headers, body = raw
        return session.request(method, url, headers=headers, data=body, timeout=60).content

    return call


def urllib3_client() -> Callable[[Raw], bytes]:
    """Return a pool manager of urllib3."""
    manager = urllib3.PoolManager(retries=False, timeout=60)

    def call(raw: Raw) -> bytes:
        method, url, headers, body = raw
        return manager.request(method, url, headers=headers, body=body).data

    return call


SCRIPTED = Scripted()
ACCOUNT = Account("default", lambda _: "")
TRANSPORTS: dict[str, Callable[[], Transport]] = {
    "scripted": lambda: SCRIPTED,
    "requests": RequestsTransport,
    "urllib3": Urllib3Transport,
    "aiohttp": AiohttpTransport,
}
CLIENTS = {"scripted": scripted_client, "requests": requests_client, "urllib3": urllib3_client}


def compare(name: str, url: str, given: argparse.Namespace) -> None:
    """Run both in turns and print the medians."""

    def bare_run(folder: Path) -> tuple[float, float]:
        bare = Bare(folder, url, given)
        return bare.run_threads(CLIENTS[name]) if name in CLIENTS else bare.run_loop()

    def worker_run(folder: Path) -> tuple[float, float]:
        transport = TRANSPORTS[name]()
        try:
            return our_run(folder, url, transport, given)
        finally:
            transport.close()

    runs = {"bare loop": bare_run, "worker": worker_run}
    results: dict[str, list[tuple[float, float]]] = {title: [] for title in runs}
    for _ in range(given.runs):
        for title, run in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                results[title].append(run(Path(folder)))
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


def show_profile(name: str, url: str, given: argparse.Namespace) -> None:
    """Print where the main loop's time goes (what other threads do is not in it)."""
    profile = cProfile.Profile()
    transport = TRANSPORTS[name]()
    with tempfile.TemporaryDirectory() as folder:
        our_run(Path(folder), url, transport, given, profile)
    transport.close()
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--width", type=int, default=256, help="calls at the same time on the event loop")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds until the vendor answers")
    parser.add_argument("--transport", choices=(*TRANSPORTS, "all"), default="all")
    parser.add_argument(
        "--profile", action="store_true", help="one run of the worker, and where its time goes"
    )
    given = parser.parse_args()
    measure = show_profile if given.profile else compare
    with VendorProcess() as vendor:
        for name in TRANSPORTS if given.transport == "all" else (given.transport,):
            measure(name, vendor.url, given)


if __name__ == "__main__":
    main()
