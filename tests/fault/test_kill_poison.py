"""A task that kills every worker that touches it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fault.scripts.poisoned_worker import Poison, registry
from tests.fault.scripts.stores import open_store

from coatcheck.accounts import Accounts
from coatcheck.manager import Manager
from coatcheck.model import TaskStatus, WaitReason
from coatcheck.store import QUARANTINE_CLAIMS

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "poisoned_worker.py"
PATIENCE = 60.0


@pytest.fixture
def manager(store_url: str) -> Iterator[Manager]:
    """A manager over the store that the workers share."""
    store = open_store(store_url)
    yield Manager(store, registry(), accounts=Accounts(environ={}))
    store.close()


def start(store_url: str) -> subprocess.Popen[bytes]:
    """Start a worker."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), store_url], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deadly_at", "status"), [("query", TaskStatus.SUBMITTED), ("submit", TaskStatus.SUBMITTING)]
)
def test_a_task_that_kills_its_workers_is_quarantined_and_all_others_end(
    store_url: str, manager: Manager, deadly_at: str, status: TaskStatus
) -> None:
    """Deaths are counted before anything runs: after three nobody gets the task any more (F47, G10)."""
    good = [manager.submit(Poison()).id for _ in range(10)]
    bad = manager.submit(Poison(deadly_at=deadly_at)).id
    good += [manager.submit(Poison()).id for _ in range(10)]
    deaths = 0
    end = time.monotonic() + PATIENCE
    worker = start(store_url)
    try:
        while manager.explain(bad).reason is not WaitReason.QUARANTINED:
            assert time.monotonic() < end, (manager.get(bad), deaths)
            if worker.poll() is not None:
                assert worker.returncode == 9
                deaths += 1
                worker = start(store_url)
            time.sleep(0.02)
        while any(manager.get(task_id).status is not TaskStatus.SUCCEEDED for task_id in good):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert worker.poll() is None
    finally:
        worker.terminate()
        # The last one may not have come as far as to listen to signals: nothing was left to do for it.
        assert worker.wait(PATIENCE) in (0, -signal.SIGTERM)
    assert deaths == QUARANTINE_CLAIMS
    assert manager.get(bad).status is status
