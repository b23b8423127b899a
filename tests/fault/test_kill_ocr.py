"""Workers that are killed while they read real documents: no task is lost, and no document is read twice."""

import os
import random
import signal
import subprocess
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coatcheck import Limit, TaskStatus, codec
from coatcheck.config import Config
from coatcheck.manager import Manager
from coatcheck_ocr.local.handler import ACCOUNT
from coatcheck_ocr.local.spool import VARIABLE
from coatcheck_ocr.samples import load_samples

PROGRAM = Path(sysconfig.get_path("scripts"), "coatcheck")
#: Of one page each, and quickly read.
SAMPLES = [sample for sample in load_samples() if sample.path.name in {"chinese.png", "table.png"}]
TASKS = 12
KILLS = 5
#: Jobs at the same time, whatever the machine could do: the work has to last for all kills.
LIVE = 2
#: A worker dies this long, in seconds, after the spool has so many jobs as were drawn for it.
DELAY = 0.5
LEASE = "2s"


@contextmanager
def working(store: str, spool: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of the command line; it is killed at the end unless it has ended by then."""
    environment = {**os.environ, VARIABLE: str(spool)}
    with log.open("ab") as lines:
        worker = subprocess.Popen(
            [PROGRAM, "worker", "--store", store, "--lease", LEASE], env=environment, stderr=lines
        )
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def wait_for_jobs(spool: Path, count: int, worker: subprocess.Popen[bytes]) -> None:
    """Return as soon as ``count`` jobs were made, whether they began or not."""
    end = time.monotonic() + 60
    while len([path for path in spool.glob("[!.]*") if path.is_dir()]) < count:
        assert time.monotonic() < end, f"waited a minute for job {count}"
        assert worker.poll() is None, "the worker ended by itself"
        time.sleep(0.002)


@pytest.mark.slow
def test_every_document_is_read_once_whatever_dies(tmp_path: Path) -> None:
    """G1, G2 and G5: five killed workers later all tasks have succeeded, and each had one job."""
    seed = int(os.environ.get("COATCHECK_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"COATCHECK_TEST_SEED={seed}")  # noqa: T201  # shown when the test fails, to repeat its moments
    chance = random.Random(seed)
    store, spool, log = f"sqlite:///{tmp_path}/tasks.db", tmp_path / "spool", tmp_path / "worker.log"
    with Manager.from_config(Config.load(environ={}, store=store)) as manager:
        manager.set_limits(Limit(account=ACCOUNT, live=LIVE))
        samples = {
            manager.submit(sample.request, handler_key="ocr:local").id: sample
            for sample in (SAMPLES * TASKS)[:TASKS]
        }
        for count in sorted(chance.sample(range(1, TASKS), KILLS)):
            with working(store, spool, log) as worker:
                wait_for_jobs(spool, count, worker)
                time.sleep(chance.uniform(0, DELAY))
            assert worker.returncode == -signal.SIGKILL, log.read_text()
            unended = [task for task in manager.list().items if not task.status.is_end]
            assert unended, "all was done before this kill, which then tested nothing"
        with working(store, spool, log) as worker:
            tasks = [manager.wait(task_id, 200) for task_id in samples]
            worker.terminate()
            assert worker.wait(30) == 0, log.read_text()

    assert {task.id: task.status for task in tasks} == dict.fromkeys(samples, TaskStatus.SUCCEEDED)
    for task in tasks:
        assert samples[task.id].missing_from(task.result.markdown) == []
    begun = [codec.loads(line) for line in (spool / "jobs.log").read_bytes().splitlines()]
    assert Counter(line["key"] for line in begun) == dict.fromkeys(samples, 1)
