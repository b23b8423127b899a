"""Whole lives of tasks on Redis: coatcheck beside arq and Celery, same vendor, same server, same run.

Run ``nox -s bench -- peers`` (or this file, with the packages of the group ``bench``). A life is one submit
and four queries, three "running" and a success. The tasks are stored before; the time from the first submit
to the last query counts, as the vendor sees it. Each runs in processes of its own, in turns; medians count.

Each peer is set up as its own documentation does it for polling. arq: ``submit`` enqueues ``poll``, which
raises ``Retry(defer=…)`` until the job has ended; on uvloop, 100 jobs at a time, its queue read every 50 ms.
Celery: ``submit`` calls ``poll.apply_async``, which calls ``self.retry(countdown=…)``; a prefork worker with
two processes. Neither has fenced leases, limits, or a record of a submit that was not answered.

A round trip is a read of the server from a client's connection, as the server counts it. Celery's include one
look at each result. CPU is that of the peer's processes and of the server, without storing the tasks.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _redis import open_store, redis_server
from attrs import frozen
from lifecycle import AT_ONCE, POLLS, STEPS, fill

from coatcheck.accounts import Accounts
from coatcheck.model import TaskStatus
from coatcheck.registry import Registry
from coatcheck.testing.vendor import VendorHandler, VendorProcess
from coatcheck.transport.over_aiohttp import AiohttpTransport
from coatcheck.worker import Worker, WorkerSettings

#: What a peer's own parts are told through the environment.
REDIS, VENDOR = "BENCH_REDIS", "BENCH_VENDOR"


def run_coatcheck(given: argparse.Namespace) -> None:
    """Store tasks, say so, and be a worker until they have ended."""
    handler = VendorHandler(os.environ[VENDOR], poll=AT_ONCE)
    registry = Registry()
    registry.add_handler(handler)
    store = open_store(os.environ[REDIS])
    fill(store, handler, given)  # type: ignore[arg-type]  # any store does
    transport = AiohttpTransport()
    worker = Worker(
        store, registry, accounts=Accounts(environ={}), transport=transport, settings=WorkerSettings()
    )
    say_ready()

    def watch() -> None:
        while worker.health().committed < STEPS * given.tasks:
            time.sleep(0.005)
        worker.stop()

    watcher = threading.Thread(target=watch)
    watcher.start()
    worker.run(stop_signals=False)
    watcher.join()
    assert store.stats().by_status[TaskStatus.SUCCEEDED] == given.tasks
    transport.close()
    store.close()


def run_arq(given: argparse.Namespace) -> None:
    """Store tasks, say so, and be a worker until they have ended."""
    import uvloop

    uvloop.run(_arq(given.tasks))


async def _arq(tasks: int) -> None:
    import aiohttp
    from arq import Retry, create_pool, func
    from arq.connections import RedisSettings
    from arq.worker import Worker as ArqWorker

    url = os.environ[VENDOR]

    async def submit(context: dict[str, Any], text: str) -> None:
        async with context["session"].post(
            f"{url}/jobs",
            json={"text": text, "script": {"polls": POLLS}},
            headers={"Idempotency-Key": context["job_id"]},
        ) as response:
            job = await response.json()
        await context["redis"].enqueue_job("poll", job["id"], _job_id=f"poll-{text}")

    async def poll(context: dict[str, Any], job: str) -> str:
        async with context["session"].get(f"{url}/jobs/{job}") as response:
            answer = await response.json()
        if answer["status"] != "succeeded":
            raise Retry(defer=0)
        return str(answer["output"]["text"])

    settings = RedisSettings.from_dsn(os.environ[REDIS])
    pool = await create_pool(settings)
    for number in range(tasks):
        await pool.enqueue_job("submit", f"task {number}", _job_id=f"submit-task {number}")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        worker = ArqWorker(
            functions=[func(submit, name="submit"), func(poll, name="poll", max_tries=1000)],
            redis_pool=pool,
            ctx={"session": session},
            max_jobs=100,
            poll_delay=0.05,
            keep_result=3600,
            handle_signals=False,
        )
        say_ready()
        running = asyncio.create_task(worker.async_run())
        while worker.jobs_complete < 2 * tasks:  # noqa: ASYNC110  # arq counts, and tells nobody
            await asyncio.sleep(0.01)
        assert worker.jobs_failed == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await worker.close()


def run_celery(given: argparse.Namespace) -> None:
    """Store tasks, say so, and run a worker until they have ended."""
    import _celery_app

    for number in range(given.tasks):
        _celery_app.submit.apply_async((f"task {number}",), task_id=f"submit-task {number}")
    backend = _celery_app.app.backend
    say_ready()
    command = ["-m", "celery", "-A", "_celery_app", "worker", "--pool=prefork", "--concurrency=2"]
    worker = subprocess.Popen(
        [sys.executable, *command, "--loglevel=ERROR", "--without-gossip", "--without-mingle"],
        cwd=Path(__file__).parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for number in range(given.tasks):
        # Its own objects for results wait on locks of their own, and did not always come back here.
        while b'"SUCCESS"' not in (backend.get(backend.get_key_for_task(f"poll-task {number}")) or b""):
            time.sleep(0.2)
    worker.terminate()
    worker.wait()


#: The CPU seconds spent when the tasks were stored.
began: list[float] = []
RUNS: dict[str, Callable[[argparse.Namespace], None]] = {
    "coatcheck": run_coatcheck,
    "arq": run_arq,
    "celery": run_celery,
}


def say_ready() -> None:
    """Tell the parent that all tasks are stored, and wait until it has looked at the server."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    began.append(spent())


def spent() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def be_child(given: argparse.Namespace) -> None:
    """Run one and say what CPU time it took since its tasks were stored."""
    RUNS[given.child](given)
    sys.stdout.write(f"{spent() - began[0]}\n")


@frozen
class Measured:
    """What one run came to, a task."""

    rate: float
    round_trips: float
    cpu: float
    server_cpu: float


def measure(name: str, tasks: int, server: Any) -> Measured:
    """Run one of them in a process of its own."""

    def server_now() -> tuple[int, float]:
        found = client.info("everything")
        return found["total_reads_processed"], found["used_cpu_user"] + found["used_cpu_sys"]

    with (
        tempfile.TemporaryDirectory() as folder,
        server.client() as client,
        VendorProcess(Path(folder, "calls.jsonl")) as vendor,
    ):
        client.flushall()
        process = subprocess.Popen(
            [sys.executable, __file__, "--child", name, "--tasks", str(tasks)],
            env={**os.environ, REDIS: server.url, VENDOR: vendor.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            is_ready = process.stdout.readline() == "ready\n"
            reads, cpu = server_now()
            process.stdin.write("\n")
            process.stdin.flush()
            own = process.stdout.readline()
        if process.wait() != 0 or not is_ready:
            raise SystemExit(f"{name} failed with exit code {process.returncode}")
        reads_now, cpu_now = server_now()
        calls = vendor.calls
    counts = [sum(call.call == kind for call in calls) for kind in ("submit", "query")]
    if counts != [tasks, (POLLS + 1) * tasks]:
        raise SystemExit(f"{name}: expected {tasks} submits and {POLLS + 1} queries each, found {counts}")
    return Measured(
        tasks / (calls[-1].at - calls[0].at),
        (reads_now - reads) / tasks,
        float(own) / tasks,
        (cpu_now - cpu) / tasks,
    )


def main() -> None:
    """Measure all and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--appendonly", action="store_true", help="let the server write everything to a file")
    parser.add_argument("--without", action="append", choices=RUNS, default=[], help="leave one out")
    parser.add_argument("--child", choices=RUNS)
    parser.add_argument("--latency", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        be_child(given)
        return
    names = [name for name in RUNS if name not in given.without]
    found: dict[str, list[Measured]] = {name: [] for name in names}
    options = ("--appendonly", "yes") if given.appendonly else ()
    with redis_server(*options) as server:
        for _ in range(given.runs):
            for name in names:
                # Celery is slow enough to be measured with fewer.
                found[name].append(measure(name, given.tasks // (5 if name == "celery" else 1), server))
                print(f"  {name}: {found[name][-1].rate:,.0f} tasks/s", flush=True)
    for name, results in found.items():
        rates = sorted(result.rate for result in results)

        def median(what: str, of: list[Measured] = results) -> float:
            return statistics.median(getattr(result, what) for result in of)

        print(
            f"  {name:10} {median('rate'):7,.0f} tasks/s ({rates[0]:,.0f}-{rates[-1]:,.0f}), a task: "
            f"{median('round_trips'):.1f} round trips, {median('cpu') * 1e3:.2f} ms of CPU, "
            f"{median('server_cpu') * 1e3:.2f} ms of the server's"
        )
    ours = found.pop(names[0])
    for name, results in found.items():
        ratio = statistics.median(our.rate / its.rate for our, its in zip(ours, results, strict=True))
        print(f"  {names[0]} does {ratio:.1f} times the tasks of {name}")


if __name__ == "__main__":
    main()
