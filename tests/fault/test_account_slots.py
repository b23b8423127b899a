"""An account's live jobs, counted where they live: at the vendor, whatever becomes of tasks and workers."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fault.scripts.slots_worker import ACCOUNT, registry

from coatcheck import Limit, Manager, Task, TaskStatus, Verdict
from coatcheck.accounts import Accounts
from coatcheck.sandbox import Script, Server
from coatcheck.stores.sqlite import SqliteStore
from coatcheck_video.model import VideoRequest
from coatcheck_video.sandbox.kling import KlingSandbox

SCRIPT = Path(__file__).parent / "scripts" / "slots_worker.py"
PATIENCE = 120.0
LIVE = 2
#: How long the vendor works on a job, in seconds, and on one that nobody waits for.
SHORT, LONG = 0.15, 1.0
#: How long a job whose end nobody saw keeps its slot. What it is longer than a job, the vendor may be late.
MAX_JOB_TIME = 3.0


class Watched(KlingSandbox):
    """A vendor that takes two jobs at a time, and remembers how many there ever were."""

    def __init__(self) -> None:
        super().__init__(script=Script(polls=0, seconds=SHORT, latency=0.05))
        self.live_limit = LIVE
        self.peak = 0

    def new_id(self) -> str:
        """Count, at the moment when another job begins."""
        self.peak = max(self.peak, self.live("sandbox-key") + 1)
        return super().new_id()


class House:
    """A store and the one worker process that lives at a time."""

    def __init__(self, folder: Path, url: str) -> None:
        self.store = SqliteStore(str(folder / "tasks.db"))
        self.manager = Manager(self.store, registry(url, MAX_JOB_TIME), accounts=Accounts(environ={}))
        self.log = folder / "worker.log"
        self._command = [sys.executable, str(SCRIPT), str(folder / "tasks.db"), url, str(MAX_JOB_TIME)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a worker, and wait until it works."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", self.log.read_text()

    def end(self, number: signal.Signals) -> int:
        """Send the worker a signal, wait for its end and return its exit code."""
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
        self.manager.close()
        self.store.close()

    def submit(self, name: str, **options: object) -> str:
        """Ask for a video and return its task's id."""
        return self.manager.submit(VideoRequest(prompt=name), **options).id

    def until(self, task_id: str, is_so: Callable[[Task], bool]) -> Task:
        """Wait until something is so of a task."""
        until = time.monotonic() + PATIENCE
        while not is_so(task := self.manager.get(task_id)):
            assert time.monotonic() < until, (task, self.log.read_text()[-3000:])
            time.sleep(0.01)
        return task


@pytest.fixture
def vendor() -> Watched:
    """Return the vendor."""
    return Watched()


@pytest.fixture
def house(vendor: Watched, tmp_path: Path) -> Iterator[House]:
    """Serve the vendor and yield a house for it."""
    with Server(vendor) as server:
        made = House(tmp_path, server.url)
        yield made
        made.close()


def has_job(task: Task) -> bool:
    """Whether the vendor's id for the job is known, or the task has ended without."""
    return task.external_task_id is not None or task.status.is_end


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_job_too_many_whatever_becomes_of_tasks_and_workers(vendor: Watched, house: House) -> None:
    """Killed workers, local cancels, expired deadlines: the vendor never has to say 429 (F53, F55)."""
    house.manager.set_limits(Limit(account=ACCOUNT, live=LIVE))
    # There is always one that waits for a slot, so each slot that comes back too early is taken at once.
    crowd = [house.submit(f"crowd-{number}") for number in range(16)]
    house.start()

    # Local cancels: this vendor has none, so its jobs run on.
    canceled = []
    for number in range(2):
        task_id = house.submit(f"canceled-{number}~seconds={LONG}", priority=100)
        house.until(task_id, has_job)
        house.manager.cancel(task_id)
        canceled.append(house.until(task_id, lambda task: task.status.is_end))

    # Workers that die at any moment: in the middle of submits, too, whose jobs then have no name here.
    # A third death in a row would put a task aside.
    for number in range(2):
        house.until(crowd[4 * number + 4], has_job)
        assert house.end(signal.SIGKILL) == -signal.SIGKILL
        house.start()

    # Deadlines: on a slow machine they may pass before the submit, or after the job; these are other cases.
    expired: list[Task] = []
    for number in range(20):
        name, deadline = f"expired-{number}~seconds={2 * LONG}", timedelta(seconds=1.2 * LONG)
        pair = [house.submit(name, priority=100, deadline=deadline) for _ in range(LIVE)]
        crowd += [house.submit(f"behind-{number}") for _ in range(LIVE)]
        for task_id in pair:
            ended = house.until(task_id, lambda task: task.status.is_end)
            if ended.status is TaskStatus.TRACKING_TIMED_OUT and ended.external_task_id is not None:
                expired.append(ended)
        if len(expired) >= LIVE:
            break

    ends = [house.until(task_id, lambda task: task.status.is_end) for task_id in crowd]
    last = house.until(house.submit("last"), lambda task: task.status.is_end)
    assert house.end(signal.SIGTERM) == 0
    log = house.log.read_text()[-3000:]

    assert [(task.status, task.verdict) for task in canceled] == [(TaskStatus.CANCELED, Verdict.USER)] * 2
    assert len(expired) >= LIVE, log
    assert [task.status for task in ends] == [TaskStatus.SUCCEEDED] * len(crowd), log
    assert last.status is TaskStatus.SUCCEEDED, "a slot never came back"
    assert (vendor.peak, vendor.counts["full"]) == (LIVE, 0), log


@pytest.mark.slow
def test_without_the_limit_the_vendor_says_so(vendor: Watched, house: House) -> None:
    """The other test proves nothing where the vendor would never refuse; refused tasks wait, and go well."""
    tasks = [house.submit(f"crowd-{number}") for number in range(8)]
    house.start()
    ends = [house.until(task_id, lambda task: task.status.is_end) for task_id in tasks]
    assert house.end(signal.SIGTERM) == 0
    assert {task.status for task in ends} == {TaskStatus.SUCCEEDED}
    assert vendor.peak == LIVE
    assert vendor.counts["full"] > 0
