"""The spool: one job per key, and what becomes of jobs whose process dies."""

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.provider_ocr.conftest import Sleepers

from coatcheck import codec
from coatcheck_ocr.local.spool import (
    MAX_ATTEMPTS,
    Folder,
    JobMissingError,
    JobState,
    JobStatus,
    KeyConflictError,
    Spool,
    default_path,
    folder_name,
)
from coatcheck_ocr.model import OcrRequest, OcrResponse

REQUEST = OcrRequest(url="file:///tmp/a.png", options={"dpi": 200})


def end(folder: Folder, **changes: Any) -> None:
    """Write the end of a job, as its process would."""
    folder.write_state(attrs.evolve(folder.read_state(), **changes))


def test_one_key_gives_one_job(spool: Spool, sleepers: Sleepers) -> None:
    """A second submit with the same key finds the first one's job and starts nothing."""
    first = spool.submit("key-1", REQUEST)
    again = spool.submit("key-1", REQUEST)
    other = spool.submit("key-2", REQUEST)

    assert first == again != other
    assert len(sleepers.processes) == 2


def test_threads_that_submit_one_key_start_one_process(spool: Spool, sleepers: Sleepers) -> None:
    """Submits of one key at the same moment agree on one job."""
    with ThreadPoolExecutor(16) as pool:
        jobs = list(pool.map(lambda _: spool.submit("key", REQUEST), range(64)))

    assert set(jobs) == {"key"}
    assert len(sleepers.processes) == 1


def _submit_and_count(path: Path, barrier: Barrier) -> None:
    def start(folder: Path, lock: int) -> None:
        with (path / "starts").open("a") as starts:
            starts.write("start\n")
        os.dup(lock)  # this process holds the lock until it ends

    barrier.wait()
    Spool(path, start).submit("key", REQUEST)
    barrier.wait()


def test_processes_that_submit_one_key_start_one_job(tmp_path: Path) -> None:
    """The lock and the rename hold across processes, not only across threads."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(6)
    path = tmp_path / "spool"
    processes = [context.Process(target=_submit_and_count, args=(path, barrier)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 6
    assert (path / "starts").read_text().splitlines() == ["start"]
    assert sorted(entry.name for entry in path.iterdir()) == ["key", "starts"]


def test_a_key_with_another_request_is_refused(spool: Spool) -> None:
    """A key stands for one request; the first job is not given out as the answer to another one."""
    spool.submit("key", REQUEST)

    with pytest.raises(KeyConflictError, match="use a new key"):
        spool.submit("key", attrs.evolve(REQUEST, pages="1"))


def test_a_job_that_has_not_begun_to_write_is_not_dead(spool: Spool) -> None:
    """The lock passes from the starter to the process without a gap: slow is not dead."""
    job = spool.submit("key", REQUEST)

    assert spool.look(job) == JobState(status=JobStatus.QUEUED, attempt=1)


def test_a_dead_job_is_told_by_its_lock(spool: Spool, sleepers: Sleepers) -> None:
    """Once the process is gone the next look writes the job off, and that stays its end."""
    job = spool.submit("key", REQUEST)
    sleepers.kill()

    state = spool.look(job)
    spool.submit("key", REQUEST)

    assert (state.status, state.code, state.retryable) == (JobStatus.FAILED, "job_died", True)
    assert spool.look(job) == state
    assert len(sleepers.processes) == 1


def test_a_resubmit_begins_a_dead_job_again_but_not_for_ever(spool: Spool, sleepers: Sleepers) -> None:
    """A document that kills every process must not do so without end."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert spool.look(spool.submit("key", REQUEST)).attempt == attempt
        sleepers.kill()

    job = spool.submit("key", REQUEST)

    assert len(sleepers.processes) == MAX_ATTEMPTS
    assert spool.look(job).code == "job_died"


def test_a_submit_whose_process_cannot_start_may_be_repeated(tmp_path: Path, sleepers: Sleepers) -> None:
    """A failed start leaves a folder behind that the next submit picks up."""
    path = tmp_path / "spool"

    def fail(folder: Path, lock: int) -> None:
        raise OSError("no memory for another process")

    with pytest.raises(OSError, match="no memory"):
        Spool(path, fail).submit("key", REQUEST)

    job = Spool(path, sleepers).submit("key", REQUEST)
    assert Spool(path, sleepers).look(job).status is JobStatus.QUEUED
    assert len(sleepers.processes) == 1


def test_an_end_that_was_written_before_the_process_went_counts(spool: Spool, sleepers: Sleepers) -> None:
    """A job that succeeded is not dead because its lock is free."""
    job = spool.submit("key", REQUEST)
    response = OcrResponse(markdown="# text", usage={"page": 1})
    spool.folder(job).write_result(response)
    end(spool.folder(job), status=JobStatus.SUCCEEDED)
    sleepers.kill()

    assert spool.look(job).status is JobStatus.SUCCEEDED
    assert spool.folder(job).read_result() == response


def test_cancel_stops_the_process(spool: Spool, sleepers: Sleepers) -> None:
    """A canceled job's process group gets a polite signal, and the job ends as canceled."""
    job = spool.submit("key", REQUEST)
    end(spool.folder(job), status=JobStatus.RUNNING, pid=sleepers.processes[0].pid)

    state = spool.cancel(job)

    assert state.status is JobStatus.CANCELED
    assert sleepers.processes[0].wait() == -15
    assert spool.cancel(job) == state


def test_cancel_does_not_touch_a_job_that_ended(spool: Spool, sleepers: Sleepers) -> None:
    """An end absorbs a cancel; no signal goes to a process that may be somebody else's by now."""
    job = spool.submit("key", REQUEST)
    end(spool.folder(job), status=JobStatus.SUCCEEDED, pid=sleepers.processes[0].pid)

    assert spool.cancel(job).status is JobStatus.SUCCEEDED
    assert sleepers.processes[0].poll() is None


def test_ids_that_lead_out_of_the_spool_are_unknown(spool: Spool) -> None:
    """An id is a name inside the spool, never a path."""
    for job in ("..", "../x", "/etc", "", ".new-1", "a/b", "A"):
        with pytest.raises(JobMissingError):
            spool.look(job)


def test_unknown_jobs_are_missing(spool: Spool) -> None:
    """A look does not make anything."""
    with pytest.raises(JobMissingError):
        spool.look("never-submitted")
    assert not spool.path.exists()


@given(st.text(), st.text())
def test_keys_become_safe_and_different_names(one: str, other: str) -> None:
    """Any text is a key: its folder lies in the spool, and two keys never share one, whatever the case."""
    names = [folder_name(key) for key in (one, other)]

    assert all("/" not in name and not name.startswith(".") and len(name) <= 100 for name in names)
    assert (names[0].lower() == names[1].lower()) == (one == other)


def test_an_unsafe_key_is_a_usable_job(spool: Spool) -> None:
    """A key that is no file name works like any other."""
    job = spool.submit("Ümläut/../🙂", REQUEST)

    assert spool.look(job).status is JobStatus.QUEUED
    assert spool.folder(job).read_key() == "Ümläut/../🙂"


def test_a_newer_state_is_read_leniently(spool: Spool) -> None:
    """Fields that this version does not know do not stop it from reading a state."""
    job = spool.submit("key", REQUEST)
    file = spool.path / job / "state.json"
    file.write_bytes(codec.dumps({**codec.loads(file.read_bytes()), "mood": "good"}))

    assert spool.look(job).attempt == 1


def test_prune_throws_away_old_ends_only(spool: Spool, sleepers: Sleepers) -> None:
    """Jobs that run stay however old they are; young ends stay; what a crashed submit left goes."""
    for key in ("old-end", "young-end", "old-running"):
        spool.submit(key, REQUEST)
    for key in ("old-end", "young-end"):
        end(spool.folder(key), status=JobStatus.FAILED)
    sleepers.processes[0].kill()
    sleepers.processes[0].wait()
    (spool.path / ".new-crashed").mkdir()
    long_ago = time.time() - timedelta(days=31).total_seconds()
    for name in ("old-end", "old-running", ".new-crashed"):
        os.utime(spool.path / name, (long_ago, long_ago))

    assert spool.prune() == 2
    assert sorted(path.name for path in spool.path.iterdir()) == ["old-running", "young-end"]
    assert spool.prune() == 0


def test_the_spool_is_private(spool: Spool) -> None:
    """What people's documents say is nobody else's business."""
    job = spool.submit("key", REQUEST)

    assert spool.path.stat().st_mode & 0o077 == 0
    assert (spool.path / job).stat().st_mode & 0o077 == 0


def test_the_environment_names_the_spool() -> None:
    """COATCHECK_OCR_SPOOL wins over the user's data folder; the path is absolute either way."""
    assert default_path({"COATCHECK_OCR_SPOOL": "/var/spool/ocr"}) == Path("/var/spool/ocr")
    assert default_path({"COATCHECK_OCR_SPOOL": "here"}).is_absolute()
    assert default_path({}).parts[-2:] == ("coatcheck", "ocr-spool")
