"""Many tasks that stay running, each polled every five seconds by one worker: how late do the polls come?

Run ``nox -s bench -- in_flight`` (or this file with ``--tasks`` and ``--transport``). The lag is measured at
the vendor, in a process of its own: how much more than the interval lies between two polls of a job. It
counts once all jobs have been submitted and polled once. A late poll delays the next one, so a worker that
cannot keep up polls less often than wanted.
"""

import argparse
import tempfile
import threading
import time
from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import orjson

from coatcheck.accounts import Accounts
from coatcheck.manager import Manager
from coatcheck.policy import PollPolicy
from coatcheck.registry import Registry
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.vendor import JobRequest, VendorHandler, VendorProcess
from coatcheck.transport import RequestsTransport, Urllib3Transport
from coatcheck.transport.over_aiohttp import AiohttpTransport
from coatcheck.worker import Worker, WorkerSettings, own_process

INTERVAL = 5.0
TRANSPORTS = {"requests": RequestsTransport, "urllib3": Urllib3Transport, "aiohttp": AiohttpTransport}


def lags(log: Path, since: float, until: float) -> tuple[list[float], int]:
    """Return how late each poll came in a stretch of time, sorted, and how many polls there were."""
    at: dict[str, list[float]] = defaultdict(list)
    with log.open("rb") as lines:
        for line in lines:
            if line.endswith(b"}\n") and b'"query"' in line:
                call = orjson.loads(line)
                at[call["job"]].append(call["at"])
    found, polls = [], 0
    for times in at.values():
        for before, after in pairwise(times):
            if since <= after < until:
                found.append(after - before - INTERVAL)
                polls += 1
    return sorted(found), polls


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds until the vendor answers")
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--transport", choices=TRANSPORTS, default="aiohttp")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        VendorProcess(Path(folder, "calls.jsonl")) as vendor,
        own_process(),  # as the command line's worker does
    ):
        step = timedelta(seconds=INTERVAL)
        handler = VendorHandler(vendor.url, poll=PollPolicy(first=step, start=step, cap=step, jitter=0))
        registry = Registry()
        registry.add_handler(handler)
        store = SqliteStore(str(Path(folder, "tasks.db")))
        manager = Manager(store, registry, accounts=Accounts(environ={}))
        requests = [
            JobRequest.of(f"text {number}", end="never", latency=given.latency) for number in range(100)
        ]
        for number in range(given.tasks):
            manager.submit(requests[number % 100])
        transport = TRANSPORTS[given.transport]()
        worker = Worker(
            store,
            registry,
            accounts=Accounts(environ={}),
            transport=transport,
            settings=WorkerSettings(threads=given.threads),
        )
        thread = threading.Thread(target=worker.run, kwargs={"stop_signals": False})
        began = time.time()
        thread.start()
        while worker.health().committed < given.tasks:
            time.sleep(0.1)
        # All of them were submitted and are polled for the first time now.
        time.sleep(3 * INTERVAL)
        print(f"{given.tasks:,} tasks submitted and settled in {time.time() - began:.0f} s")
        since, cpu = time.time(), time.process_time()
        time.sleep(given.seconds)
        until, spent = time.time(), time.process_time() - cpu
        worker.stop()
        thread.join()
        transport.close()
        manager.close()
        store.close()
        found, polls = lags(Path(folder, "calls.jsonl"), since, until)
        wanted = given.tasks / INTERVAL
        p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
        print(
            f"{given.transport}: {polls / given.seconds:,.0f} polls/s (wanted {wanted:,.0f}), "
            f"lag p50 {p50:.3f} s, p99 {p99:.3f} s, max {found[-1]:.3f} s, "
            f"{spent / given.seconds:.2f} cores, {spent / polls * 1e3:.2f} ms of CPU a poll"
        )


if __name__ == "__main__":
    main()
