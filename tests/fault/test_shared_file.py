"""Several processes on one SQLite file: nothing is refused, nothing is done twice, every limit holds."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fault.scripts.counted import Counted, registry

from coatcheck import Limit, Manager, Rate, TaskStatus
from coatcheck.model import Side
from coatcheck.stores.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return what starts a script of this folder; at the end every process is stopped."""
    processes: list[subprocess.Popen[str]] = []

    def begin(name: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def stop(process: subprocess.Popen[str]) -> str:
    """End a worker politely and return what it complained about."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return errors


def wait_until_all_ended(store: SqliteStore, total: int, seconds: float) -> None:
    """Look now and then until ``total`` tasks have succeeded."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        counts = store.stats().by_status
        if counts[TaskStatus.SUCCEEDED] == total:
            return
        time.sleep(0.1)
    pytest.fail(f"expected {total} successes within {seconds} s, found {store.stats().by_status}")


def calls_of(log: Path) -> list[list[str]]:
    """Return the words of each noted call."""
    return [line.split() for line in log.read_text().splitlines()]


@pytest.mark.timeout(300)
def test_two_workers_and_eight_submitters_share_one_file(tmp_path: Path, start: Start) -> None:
    """F45, F66, F70: 2,000 tasks, no "database is locked", one submit each, no due time queried twice."""
    path, log = tmp_path / "tasks.db", tmp_path / "calls.log"
    store = SqliteStore(str(path))
    workers = [start("counted_worker", path, log) for _ in range(2)]
    submitters = [start("counted_submitter", path, log, first, 250) for first in range(0, 2000, 250)]
    for submitter in submitters:
        _, errors = submitter.communicate(timeout=200)
        assert (submitter.returncode, errors) == (0, "")
    wait_until_all_ended(store, 2000, 200)
    complaints = [stop(worker) for worker in workers]
    store.close()
    calls = calls_of(log)
    submits = Counter(number for kind, _, number, _ in calls if kind == "submit")
    queries = Counter((task, count) for kind, task, count, _ in calls if kind == "query")
    assert submits == Counter(str(number) for number in range(2000))
    assert set(queries.values()) == {1}
    assert len(queries) == 4000
    assert not [text for text in complaints if "locked" in text]


@pytest.mark.timeout(240)
def test_all_limits_hold_together_with_two_workers(tmp_path: Path, start: Start) -> None:
    """G6: an account's and each tenant's live jobs and a rate hold across processes, and all tasks end."""
    path, log = tmp_path / "tasks.db", tmp_path / "calls.log"
    store = SqliteStore(str(path))
    store.set_limit(
        [
            Limit(account="counted", live=4),
            Limit(tenant="*", live=2),
            Limit(account="counted", side=Side.SUBMIT, rate=Rate(15, timedelta(seconds=1))),
        ]
    )
    manager = Manager(store, registry(log))
    for number in range(60):
        manager.submit(Counted(number, queries=3), tenant=f"t{number % 3}")
    began = time.time()
    workers = [start("counted_worker", path, log, 0.02) for _ in range(2)]
    wait_until_all_ended(store, 60, 120)
    for worker in workers:
        stop(worker)
    tenants = {task.id: task.tenant for task in manager.list(limit=100).items}
    manager.close()
    store.close()
    live: Counter[str] = Counter()
    submits: list[float] = []
    for kind, task, _, at in sorted(calls_of(log), key=lambda call: float(call[3])):
        if kind == "submit":
            live["all"] += 1
            live[tenants[task]] += 1
            submits.append(float(at))
            assert live["all"] <= 4
            assert live[tenants[task]] <= 2
        elif kind == "end":
            live["all"] -= 1
            live[tenants[task]] -= 1
    assert len(submits) == 60
    # Calls follow their permits by a moment, so what can be seen from outside is the total so far.
    for count, submitted_at in enumerate(submits, start=1):
        assert count <= 15 * (submitted_at - began + 1) + 15
