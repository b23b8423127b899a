"""A worker that is frozen in the middle of a submit (SIGSTOP), overtaken by another one, and thawed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fault.scripts.stores import open_store

from coatcheck.accounts import Accounts
from coatcheck.manager import Manager
from coatcheck.model import TaskStatus
from coatcheck.registry import Registry
from coatcheck.testing.vendor import JobRequest, PlainVendorHandler, VendorProcess

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "killed_worker.py"
LEASE = "0.6"
#: Longer than any freeze here: a call that ran out of time meanwhile would have no reply to hand in.
CALL_LIMIT = "120"
PATIENCE = 60.0


def start(store_url: str, vendor_url: str) -> subprocess.Popen[bytes]:
    """Start a worker and wait until it works."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), store_url, vendor_url, LEASE, CALL_LIMIT],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a worker, frozen or not."""
    process.send_signal(signal.SIGCONT)
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert process.stdout is not None
    process.stdout.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Look until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_frozen_worker_hands_in_its_reply_and_changes_nothing_else(tmp_path: Path, store_url: str) -> None:
    """The other worker's word stands until the reply comes: then the task goes on with its one job (G3)."""
    with ExitStack() as stack:
        vendor = stack.enter_context(VendorProcess(tmp_path / "vendor.log"))
        registry = Registry()
        registry.add_handler(PlainVendorHandler(vendor.url))
        store = open_store(store_url)
        stack.callback(store.close)
        manager = Manager(store, registry, accounts=Accounts(environ={}))
        frozen = start(store_url, vendor.url)
        stack.callback(stop, frozen)
        task_id = manager.submit(JobRequest.of("frozen", latency=0.5)).id
        wait_until(lambda: vendor.created["frozen"] == 1)  # the vendor has it, its answer is on the way
        frozen.send_signal(signal.SIGSTOP)
        assert manager.get(task_id).status is TaskStatus.SUBMITTING
        other = start(store_url, vendor.url)
        stack.callback(stop, other)
        wait_until(lambda: manager.get(task_id).status is TaskStatus.SUBMIT_UNKNOWN)
        frozen.send_signal(signal.SIGCONT)
        wait_until(lambda: manager.get(task_id).status is TaskStatus.SUCCEEDED)
        assert manager.get(task_id).generation == 2
        assert vendor.created["frozen"] == 1
