"""What the tests of the OCR package share: a spool, processes that hold a lock, and patience with them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coatcheck_ocr.local.engine import Engine
from coatcheck_ocr.local.spool import Spool


class Sleepers:
    """Starts processes that hold the lock of a job and do nothing, in place of real jobs."""

    def __init__(self) -> None:
        """Start none yet."""
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, folder: Path, lock: int) -> None:
        """Start one, as ``job.start`` would."""
        command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        self.processes.append(subprocess.Popen(command, pass_fds=(lock,), start_new_session=True))

    def kill(self) -> None:
        """Kill all of them and wait until they are gone."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    """Stand-ins for job processes; none survives the test."""
    started = Sleepers()
    yield started
    started.kill()


@pytest.fixture
def spool(tmp_path: Path, sleepers: Sleepers) -> Spool:
    """A spool whose jobs never end by themselves."""
    return Spool(tmp_path / "spool", sleepers)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The real engine, loaded once."""
    return Engine()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Return a function that looks at a condition until it holds, and fails after a minute."""

    def wait(condition: Callable[[], bool]) -> None:
        patience = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < patience, "waited a minute in vain"
            time.sleep(0.02)

    return wait
