"""The kill test: a worker process that dies of SIGKILL at random moments, and what its tasks come to."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from coatcheck.accounts import Accounts
from coatcheck.manager import Manager
from coatcheck.model import TaskStatus
from coatcheck.registry import Registry
from coatcheck.store import Store
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.vendor import (
    JobRequest,
    LookupVendorHandler,
    PlainVendorHandler,
    VendorHandler,
    VendorProcess,
)

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "killed_worker.py"
KILLS = 5
LEASE = 2.0
#: What the machine may add to a takeover, in seconds: the next worker has to start, and to get a core.
SLACK = 3.0
PATIENCE = 120.0


class Workers:
    """The one worker process that lives at a time."""

    def __init__(self, folder: Path, url: str) -> None:
        self.log = folder / "worker.log"
        store_url = f"sqlite:///{folder / 'tasks.db'}"
        self._command = [sys.executable, str(SCRIPT), store_url, url, str(LEASE)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start one, and wait until it works."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", self.log.read_text()

    def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end and return the exit code."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        with process.stdout:
            process.send_signal(number)
            return process.wait(PATIENCE)

    def close(self) -> None:
        """Kill what is left."""
        if self._process is not None:
            self.end(signal.SIGKILL)


def wait_until(condition: Callable[[], bool], what: str) -> float:
    """Look until the condition holds; returns how long that took, in seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE, f"waited {PATIENCE:g} s for {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def held(store: Store, ids: list[str]) -> dict[str, int]:
    """Return the versions of the tasks that a worker holds."""
    rows = [stored.row for stored in store.get(ids) if stored is not None]
    return {row.id: row.version for row in rows if row.is_leased}


@pytest.fixture
def vendor(tmp_path: Path) -> Iterator[VendorProcess]:
    """A vendor whose log survives whoever calls it."""
    with VendorProcess(tmp_path / "vendor.log") as process:
        yield process


@pytest.mark.slow
def test_tasks_survive_workers_that_are_killed_at_random_moments(
    tmp_path: Path, vendor: VendorProcess
) -> None:
    """No task is lost, none has a second job, and others go on within two leases (G1, G2, G5, F27, F39)."""
    seed = int(os.environ.get("COATCHECK_TEST_SEED") or random.SystemRandom().randrange(2**32))
    rng = random.Random(seed)
    registry = Registry()
    for handler in (VendorHandler, PlainVendorHandler, LookupVendorHandler):
        registry.add_handler(handler(vendor.url))
    store = SqliteStore(str(tmp_path / "tasks.db"))
    manager = Manager(store, registry, accounts=Accounts(environ={}))
    workers = Workers(tmp_path, vendor.url)

    def submit(key: str, count: int) -> dict[str, str]:
        """Submit tasks that come one after the other, each slow enough to be met by a kill."""
        texts = [f"{key} {number}" for number in range(count)]
        return {
            manager.submit(
                JobRequest.of(text, polls=rng.randrange(1, 12), latency=rng.uniform(0.0, 0.4)),
                handler_key=key,
                delay=timedelta(seconds=rng.uniform(0, 20)),
            ).id: text
            for text in texts
        }

    keyed, plain, looked_up = submit("test:vendor", 30), submit("test:plain", 10), submit("test:lookup", 5)
    ids = [*keyed, *plain, *looked_up]
    takeovers, orphaned = [], 0
    try:
        workers.start()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.5, 3.0))  # the random moment
            assert workers.end(signal.SIGKILL) == -signal.SIGKILL
            orphans = held(store, ids)
            began = time.monotonic()
            workers.start()

            def have_moved(orphans: dict[str, int] = orphans) -> bool:
                rows = [stored.row for stored in store.get(list(orphans)) if stored is not None]
                return all(row.version > orphans[row.id] for row in rows)

            wait_until(have_moved, f"the takeover of {orphans}")
            if orphans:
                orphaned += len(orphans)
                takeovers.append(time.monotonic() - began)
        wait_until(lambda: all(manager.get(task_id).status.is_end for task_id in ids), "the ends")
        assert workers.end(signal.SIGTERM) == 0
    finally:
        workers.close()
        log = f"COATCHECK_TEST_SEED={seed}\n{workers.log.read_text()[-5000:]}"
    ends = {task_id: manager.get(task_id) for task_id in ids}
    store.close()

    assert orphaned, "no kill met a task that was held, so nothing was tested"
    for task_id in [*keyed, *looked_up]:
        assert ends[task_id].status is TaskStatus.SUCCEEDED, (ends[task_id], log)
    for task_id in plain:
        assert ends[task_id].status in (TaskStatus.SUCCEEDED, TaskStatus.SUBMIT_UNKNOWN), (ends[task_id], log)
    jobs = vendor.created
    assert {text: jobs[text] for text in [*keyed.values(), *looked_up.values()]} == dict.fromkeys(
        [*keyed.values(), *looked_up.values()], 1
    ), log
    assert all(jobs[text] <= 1 for text in plain.values()), log
    assert max(takeovers) <= 2 * LEASE + SLACK, (takeovers, log)
