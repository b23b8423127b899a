"""A worker process and the signals that end it."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.worker.house import Handler, build

from coatcheck.model import TaskStatus

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, time
from datetime import timedelta
from coatcheck.accounts import Accounts
from coatcheck.model import QueryResult
from coatcheck.registry import Registry
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.worker import Worker, WorkerSettings
from tests.worker.house import Handler

def slow(*_):
    print("asked", flush=True)
    time.sleep(float(sys.argv[3]))
    return QueryResult.running(50)

handler = Handler(on_query=slow)
registry = Registry()
registry.add_handler(handler)
store = SqliteStore(sys.argv[1])
settings = WorkerSettings(grace=timedelta(seconds=float(sys.argv[2])))
Worker(store, registry, accounts=Accounts(environ={}), settings=settings).run()
store.close()
"""


@pytest.mark.parametrize(
    ("grace", "call", "signals", "queries"),
    [
        ("30", "0.3", [signal.SIGTERM], 1),
        ("30", "0.3", [signal.SIGINT], 1),
        ("0.1", "60", [signal.SIGTERM], 0),
        ("60", "60", [signal.SIGTERM, signal.SIGTERM], 0),
    ],
)
def test_a_signal_ends_the_worker_and_leaves_its_task_to_the_next(
    tmp_path: Path, grace: str, call: str, signals: list[signal.Signals], queries: int
) -> None:
    """Within the grace there is one commit; beyond it, or at a second signal, the query is given back."""
    path = str(tmp_path / "tasks.db")
    house = build(Handler(), path=path, is_live=True)
    (task_id,) = house.submit()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), path, grace, call],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    for number in signals:
        process.send_signal(number)
        time.sleep(0.05)  # two signals at once would be one
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, "cut off" in errors) == (0, queries == 0), errors
    task = house.task(task_id)
    assert not task.is_leased
    assert task.status in (TaskStatus.SUBMITTED, TaskStatus.RUNNING)
    assert (task.query_count >= queries, task.consecutive_errors, task.claims) == (True, 0, 0)
    assert task.external_task_id == f"job-{task_id}"
    house.store.close()
