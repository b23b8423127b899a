"""Whole lives of tasks on Redis: coatcheck beside arq and Celery, same vendor, same server, same run.

Run ``nox -s bench -- peers``: arq wants an older redis-py than the store, so nox makes an environment for the
peers and names its Python in ``BENCH_PEERS_PYTHON``. A life is one submit and four queries, three "running"
and a success. The tasks are stored before; the time from the first submit to the last query counts, as the
vendor sees it. Each runs in processes of its own, in turns; medians count. Ours is set up as the command
``coatcheck worker`` does it.

Each peer is set up as its own documentation does it for polling. arq: ``submit`` enqueues ``poll``, which
raises ``Retry(defer=…)`` until the job has ended; on uvloop, 100 jobs at a time, its queue read every 50 ms.
Celery: ``submit`` calls ``poll.apply_async``, which calls ``self.retry(countdown=…)``; a prefork worker with
two processes. Neither has fenced leases, limits, or a record of a submit that was not answered.

A round trip is a read of the server from a client's connection, as the server counts it. Celery's include one
look at each result. CPU is that of the peer's processes and of the server, without storing the tasks.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from _peer import measured
from _redis import open_store, redis_server
from attrs import frozen
from lifecycle import AT_ONCE, POLLS, STEPS, fill

from coatcheck.accounts import Accounts
from coatcheck.model import TaskStatus
from coatcheck.registry import Registry
from coatcheck.testing.vendor import VendorHandler, VendorProcess
from coatcheck.transport.over_aiohttp import AiohttpTransport
from coatcheck.worker import Worker, WorkerSettings, own_process

#: What a peer's own parts are told through the environment.
REDIS, VENDOR = "BENCH_REDIS", "BENCH_VENDOR"
NAMES = ("coatcheck", "arq", "celery")


def run_coatcheck(given: argparse.Namespace) -> None:
    """Store tasks, and be a worker until they have ended."""
    handler = VendorHandler(os.environ[VENDOR], poll=AT_ONCE)
    registry = Registry()
    registry.add_handler(handler)
    store = open_store(os.environ[REDIS])
    fill(store, handler, given)  # type: ignore[arg-type]  # any store does
    transport = AiohttpTransport()
    worker = Worker(
        store, registry, accounts=Accounts(environ={}), transport=transport, settings=WorkerSettings()
    )

    def watch() -> None:
        while worker.health().committed < STEPS * given.tasks:
            time.sleep(0.005)
        worker.stop()

    watcher = threading.Thread(target=watch)
    with own_process(), measured():
        watcher.start()
        worker.run(stop_signals=False)
    watcher.join()
    assert store.stats().by_status[TaskStatus.SUCCEEDED] == given.tasks
    transport.close()
    store.close()


def command_of(name: str, tasks: int) -> list[str]:
    """Return what runs one of them.

    Raises:
        SystemExit: it has no environment to run in.
    """
    if name == "coatcheck":
        return [sys.executable, __file__, "--child", "--tasks", str(tasks)]
    python = os.environ.get("BENCH_PEERS_PYTHON")
    if python is None:
        raise SystemExit(
            f"{name} needs an environment of its own: run nox -s bench -- peers, or name the Python of one "
            "in BENCH_PEERS_PYTHON"
        )
    return [python, str(Path(__file__).with_name(f"_peer_{name}.py")), str(tasks)]


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
            command_of(name, tasks),
            env={**os.environ, REDIS: server.url, VENDOR: vendor.url, "BENCH_POLLS": str(POLLS)},
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
    parser.add_argument("--without", action="append", choices=NAMES, default=[], help="leave one out")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--latency", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_coatcheck(given)
        return
    names = [name for name in NAMES if name not in given.without]
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
