"""What an idle worker costs, and how soon it starts a new task.

Run ``nox -s bench -- idle`` (or this file). One worker process, on a SQLite file and then on Redis, has
nothing to do for a minute: counted are its store calls (a cheap look whether the file has changed is none)
and its CPU time. Then another process submits tasks one at a time at irregular moments: measured is the time
from before ``submit`` to the handler's call.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from _redis import open_store, redis_server
from attrs import frozen

from coatcheck import (
    Accounts,
    Manager,
    QueryParams,
    QueryResult,
    Registry,
    SubmitResult,
    TaskHandler,
    Worker,
    persistent,
)
from coatcheck.model import QueryContext, SubmitContext
from coatcheck.store import Store
from coatcheck.stores.sqlite import SqliteStore


@persistent("bench.idle")
@frozen
class Ping:
    """A request that carries the time at which it was made."""

    at: float


class PingHandler(TaskHandler[Ping]):
    """Ends at once and says how late the call came."""

    key = "bench:ping"

    def submit(self, params: Ping, context: SubmitContext) -> SubmitResult:
        """Print the delay."""
        sys.stdout.write(f"{time.time() - params.at}\n")
        sys.stdout.flush()
        return SubmitResult.failed("done", "nothing more to see")

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Never called."""
        raise NotImplementedError


class Counting:
    """A store that counts the calls of its verbs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if callable(value):
            # Waiting is what an idle worker does; it is no work for the store.
            self.calls[name] += name not in {"wait_for_work", "now"}
        return value


def registry() -> Registry:
    """Return a registry with the handler."""
    registry = Registry()
    registry.add_handler(PingHandler())
    return registry


def open_any(url: str) -> Store:
    """Open the SQLite file or the Redis that a URL names."""
    return open_store(url) if url.startswith("redis:") else SqliteStore(url)


def child(url: str) -> None:
    """Work until SIGTERM, then say what it took."""
    store = Counting(open_any(url))
    began, cpu = time.monotonic(), time.process_time()
    Worker(store, registry(), accounts=Accounts()).run()  # type: ignore[arg-type]  # a store by delegation
    seconds = time.monotonic() - began
    used = time.process_time() - cpu
    sys.stderr.write(
        f"  {sum(store.calls.values()) / seconds * 60:.1f} store calls a minute {dict(store.calls)}, "
        f"{used / seconds * 100:.2f} percent CPU over {seconds:.0f} s\n"
    )


def measure(url: str, seconds: float, tasks: int) -> None:
    """Measure on one store and print."""
    command = [sys.executable, __file__, "--child", url]
    print("an idle worker:", flush=True)
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(seconds)
    worker.terminate()
    worker.wait()
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert worker.stdout is not None
    store = open_any(url)
    manager = Manager(store, registry())
    late = []
    rng = random.Random(os.environ.get("SEED", "1"))
    for _ in range(tasks):
        time.sleep(rng.uniform(0.02, 0.15))
        manager.submit(Ping(time.time()), deadline=timedelta(minutes=1))
        late.append(float(worker.stdout.readline()) * 1000)
    worker.terminate()
    worker.communicate()
    manager.close()
    store.close()
    late = sorted(late[1:])
    print("from submit to the handler's call:")
    p95 = late[int(len(late) * 0.95)]
    print(f"  median {statistics.median(late):.1f} ms, p95 {p95:.1f} ms, worst {late[-1]:.1f} ms")


def main() -> None:
    """Run both and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--store", choices=("sqlite", "redis", "both"), default="both")
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    if arguments.store != "redis":
        with tempfile.TemporaryDirectory() as name:
            print("SQLite")
            measure(str(Path(name) / "tasks.db"), arguments.seconds, arguments.tasks)
    if arguments.store != "sqlite":
        with redis_server() as server:
            measure(server.url, arguments.seconds, arguments.tasks)


if __name__ == "__main__":
    main()
