"""``coatcheck.local()``: one block, one call, a result; and an end that leaves nothing open."""

import logging
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.core.manager_house import Job, Outcome, Vendor

import coatcheck
from coatcheck.errors import (
    CoatcheckError,
    ConfigError,
    NotPersistableError,
    StoreUnavailableError,
    TaskFailedError,
    ValidationError,
    WaitTimeoutError,
)
from coatcheck.model import Limit, QueryResult, TaskStatus
from coatcheck.worker import WorkerSettings


def test_run_submits_waits_and_returns_the_result() -> None:
    """One line is enough to use a vendor from a script."""
    with coatcheck.local(handlers=[Vendor()], plugins=False) as c:
        assert c.run(Job()) == Outcome("done")
        task = c.submit(Job(), tenant="a")
        assert c.wait(task.id, 10).status is TaskStatus.SUCCEEDED
        assert c.result(task.id) == Outcome("done")
        assert c.manager.get(task.id).tenant == "a"


def test_run_raises_what_became_of_the_task() -> None:
    """A failure is the same error as from the manager, and a refusal stores nothing."""
    vendor = Vendor()
    vendor.query_answer = QueryResult.failed("bad", "bad scan")
    with coatcheck.local(handlers=[vendor], plugins=False) as c:
        with pytest.raises(TaskFailedError, match="bad scan"):
            c.run(Job())
        with pytest.raises(NotPersistableError):
            c.run(Job(extra=b"x"))
        with pytest.raises(ValidationError, match="timeout must be"):
            c.run(Job(), timeout=-1)
        assert sum(c.manager.stats().by_status.values()) == 1


def test_patience_ends_and_the_task_goes_on() -> None:
    """``timeout`` is the caller's patience, not the task's deadline."""
    vendor = Vendor()
    vendor.query_answer = QueryResult.running(5)
    with coatcheck.local(handlers=[vendor], plugins=False) as c:
        began = time.monotonic()
        with pytest.raises(WaitTimeoutError) as caught:
            c.run(Job(), timeout=timedelta(seconds=1.5))
        assert 1.5 <= time.monotonic() - began < 3
        vendor.query_answer = QueryResult.succeeded("late")
        assert c.result(caught.value.task_id, 10) == "late"


def test_task_in_a_file_goes_on_in_the_next_block(tmp_path: Path) -> None:
    """A file keeps what the block did not finish (G1)."""
    path = tmp_path / "tasks.db"
    vendor = Vendor()
    vendor.query_answer = QueryResult.running(5)
    with coatcheck.local(path, handlers=[vendor], plugins=False) as c:
        task = c.submit(Job())
        with pytest.raises(WaitTimeoutError):
            c.wait(task.id, 0.5)
    again = Vendor()
    with coatcheck.local(str(path), handlers=[again], plugins=False) as c:
        assert c.result(task.id, 10) == Outcome("done")
    assert len(vendor.submits) + len(again.submits) == 1


def test_everything_is_closed_at_the_end() -> None:
    """After the block there is no thread, and the store says that it is closed."""
    before = set(threading.enumerate())
    with coatcheck.local(handlers=[Vendor()], plugins=False) as c:
        c.run(Job())
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()
    with pytest.raises(StoreUnavailableError):
        c.submit(Job())
    c.close()


def test_an_exception_in_the_block_ends_the_worker_too() -> None:
    """Leaving by an error is leaving."""
    with pytest.raises(KeyError), coatcheck.local(handlers=[Vendor()], plugins=False) as c:
        raise KeyError
    assert not c._thread.is_alive()


def test_outside_of_the_block_nothing_runs() -> None:
    """The message says how to begin, and no task is left behind by the slip."""
    c = coatcheck.local(handlers=[Vendor()], plugins=False)
    with pytest.raises(ConfigError, match=r"with coatcheck\.local"):
        c.run(Job())
    task = c.submit(Job())
    with pytest.raises(ConfigError, match="start"):
        c.wait(task.id)
    c.start()
    assert c.result(task.id, 10) == Outcome("done")
    with pytest.raises(ConfigError, match="started before"):
        c.start()
    c.close()


def test_worker_that_ended_is_told_to_whoever_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for ever for a worker that is gone."""
    c = coatcheck.local(handlers=[Vendor()], plugins=False)

    def run(**_: Any) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(c.worker, "run", run)
    with caplog.at_level(logging.ERROR), c:
        c._thread.join()
        with pytest.raises(CoatcheckError, match="the worker inside ended: no memory"):
            c.run(Job())
    assert "no memory" in caplog.text


def test_accounts_limits_and_settings_are_passed_on() -> None:
    """What a worker needs can be given in the call."""
    seen: list[str] = []
    vendor = Vendor(account="acme")
    submit = vendor.submit

    def spy(params: Job, context: Any) -> Any:
        seen.append(context.account.secret())
        return submit(params, context)

    vars(vendor)["submit"] = spy
    with coatcheck.local(
        handlers=[vendor],
        plugins=False,
        accounts={"acme": {"secret": lambda: "k-1"}},
        limits=[Limit(account="acme", live=1)],
        settings=WorkerSettings(threads=1, grace=timedelta(seconds=1)),
    ) as c:
        assert c.run(Job()) == Outcome("done")
        assert c.manager.stats().limits == (Limit(account="acme", live=1),)
    assert seen == ["k-1"]


def test_bad_arguments_are_refused_at_once() -> None:
    """A misspelt handler or a secret in the open fails before anything runs."""
    with pytest.raises(ConfigError, match="forgotten the"):
        coatcheck.local(handlers=[Vendor], plugins=False)
    with pytest.raises(ConfigError, match="env:VARIABLE"):
        coatcheck.local(handlers=[Vendor()], plugins=False, accounts={"a": {"secret": "sk-123"}})


def test_ctrl_c_ends_the_script_without_a_hang(tmp_path: Path) -> None:
    """SIGINT while waiting ends the worker, closes the file and leaves the task for the next run."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import os, signal, sys, threading
            sys.path.insert(0, os.getcwd())
            import coatcheck
            from coatcheck.model import QueryResult
            from tests.core.manager_house import Job, Vendor

            vendor = Vendor()
            vendor.query_answer = QueryResult.running(5)
            with coatcheck.local(sys.argv[1], handlers=[vendor], plugins=False) as c:
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                c.run(Job())
            """),
        "utf-8",
    )
    path = tmp_path / "tasks.db"
    ended = subprocess.run(
        [sys.executable, str(script), str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert "KeyboardInterrupt" in ended.stderr
    with coatcheck.local(path, handlers=[Vendor()], plugins=False) as c:
        (task,) = c.manager.list().items
        assert c.result(task.id, 10) == Outcome("done")
