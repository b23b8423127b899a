"""The pytest plugin in a project of somebody else's."""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = """
import gc, sys, urllib.request
from datetime import timedelta

import pytest

def test_1_nothing_is_imported_until_a_fixture_is_used():
    assert not {"coatcheck.testing.vendor", "coatcheck.transport", "requests"} & set(sys.modules)

def test_2_the_clock_stands_still(coatcheck_clock):
    before = coatcheck_clock()
    assert coatcheck_clock.advance(timedelta(hours=1)) - before == timedelta(hours=1)

def test_3_the_vendor_listens(coatcheck_vendor, coatcheck_transport):
    from coatcheck.http import Call
    from coatcheck.model import Account
    call = Call("GET", coatcheck_vendor.url + "/jobs", query={"key": "k"})
    assert coatcheck_transport.perform(call, Account("a", lambda part: "")).json() == {"jobs": []}
    assert coatcheck_vendor.count("lookup") == 1

def test_4_nothing_is_left_open():
    import threading
    gc.collect()
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""


def test_its_fixtures_work_and_leave_nothing_open(tmp_path: Path) -> None:
    """Outsiders get a clock, a vendor and a transport, and pay for none that they do not use."""
    (tmp_path / "test_project.py").write_text(PROJECT)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"),
            *("-p", "coatcheck.testing.pytest_plugin", "--rootdir", str(tmp_path), str(tmp_path)),
        ],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
