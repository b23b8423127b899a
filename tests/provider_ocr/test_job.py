"""The real process of a job: it outlives its starter, and its death is noticed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.provider_ocr.conftest import Sleepers

from coatcheck import codec
from coatcheck_ocr.local import job as job_module
from coatcheck_ocr.local.job import file_path, main, open_spool
from coatcheck_ocr.local.spool import JobState, JobStatus, Spool
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.samples import Sample, load_samples

Wait = Callable[[Callable[[], bool]], None]

STARTER = """
import sys, time
from pathlib import Path
from coatcheck_ocr.local.job import open_spool
from coatcheck_ocr.model import OcrRequest, OcrResponse
spool, url, *keys = sys.argv[1:]
for key in keys:
    print(open_spool(Path(spool)).submit(key, OcrRequest(url=url)), flush=True)
time.sleep(600)
"""


@pytest.fixture
def report() -> Sample:
    """The sample with three pages."""
    return next(sample for sample in load_samples() if sample.pages == 3)


def begun(spool: Spool) -> list[str]:
    """Return the keys that processes really began to work on."""
    return (
        [codec.loads(line)["key"] for line in spool.log.read_text().splitlines()]
        if spool.log.exists()
        else []
    )


def log(spool: Spool, job: str) -> str:
    """Return what the job's process said, to explain a failure."""
    return (spool.path / job / "job.log").read_text()


def test_a_job_outlives_its_starter(tmp_path: Path, report: Sample, wait_until: Wait) -> None:
    """A worker killed right after its submit takes nothing down with it; a second submit adds no job."""
    spool = open_spool(tmp_path / "spool")
    command = [sys.executable, "-c", STARTER, str(spool.path), report.path.as_uri(), "key"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        job = starter.stdout.readline().strip()
        os.kill(starter.pid, signal.SIGKILL)
    seen: list[JobState] = []

    assert spool.submit("key", report.request) == job
    wait_until(lambda: seen.append(spool.look(job)) or seen[-1].is_end)  # type: ignore[func-returns-value]  # append

    assert seen[-1].status is JobStatus.SUCCEEDED, log(spool, job)
    assert report.missing_from(spool.folder(job).read_result().text) == []
    assert begun(spool) == ["key"]
    progress = [(state.page, state.pages) for state in seen if state.pages]
    assert progress == sorted(progress)
    assert progress[-1] == (3, 3)


@pytest.mark.slow
def test_starters_killed_at_any_moment_leave_one_job_per_key(tmp_path: Path, wait_until: Wait) -> None:
    """Whatever a killed starter had done so far, the next one picks it up and doubles nothing."""
    spool = open_spool(tmp_path / "spool")
    document = tmp_path / "notes.txt"
    document.write_text("not a picture, so that the jobs are quick")
    keys = [f"key-{number}" for number in range(12)]
    command = [sys.executable, "-c", STARTER, str(spool.path), document.as_uri(), *keys]
    for wanted in (1, 3, 6, 8, 11):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as starter:
            # The folder is there before its job is: the kill comes before, during or after the start.
            wait_until((spool.path / f"key-{wanted}").exists)
            starter.kill()

    for key in keys:
        spool.submit(key, OcrRequest(url=document.as_uri()))
    wait_until(lambda: all(spool.look(key).is_end for key in keys))

    assert {spool.look(key).code for key in keys} == {"unsupported_document"}
    assert sorted(begun(spool)) == sorted(keys)


def test_a_killed_job_is_noticed(tmp_path: Path, report: Sample, wait_until: Wait) -> None:
    """A process that is gone has let go of the lock, whatever its state file says."""
    spool = open_spool(tmp_path / "spool")
    job = spool.submit("key", report.request)
    wait_until(lambda: spool.look(job).pid is not None)
    pid = spool.look(job).pid
    assert pid is not None

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: spool.look(job).is_end)

    assert spool.look(job).code == "job_died"


def test_a_running_job_can_be_canceled(tmp_path: Path, report: Sample, wait_until: Wait) -> None:
    """A cancel ends the process and with it the job."""
    spool = open_spool(tmp_path / "spool")
    job = spool.submit("key", report.request)
    wait_until(lambda: spool.look(job).pid is not None)

    assert spool.cancel(job).status is JobStatus.CANCELED


def test_a_second_process_for_the_same_job_does_nothing(
    spool: Spool, sleepers: Sleepers, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the holder of the lock works."""
    job = spool.submit("key", OcrRequest(url="file:///nowhere"))

    assert main([str(spool.path / job)]) == 1
    assert "another process" in capsys.readouterr().err
    assert spool.look(job).status is JobStatus.QUEUED
    assert begun(spool) == []


def test_a_job_that_ended_is_not_begun_again(spool: Spool, sleepers: Sleepers) -> None:
    """A process that comes late leaves the end alone."""
    job = spool.submit("key", OcrRequest(url="file:///nowhere"))
    sleepers.kill()
    state = spool.look(job)

    assert main([str(spool.path / job)]) == 0
    assert spool.look(job) == state
    assert begun(spool) == []


def test_a_document_that_cannot_be_read_fails_the_job(tmp_path: Path, wait_until: Wait) -> None:
    """The end says what was wrong with the document, and that trying again will not help."""
    document = tmp_path / "notes.txt"
    document.write_text("no picture at all")
    spool = open_spool(tmp_path / "spool")

    job = spool.submit("key", OcrRequest(url=document.as_uri()))
    wait_until(lambda: spool.look(job).is_end)

    state = spool.look(job)
    assert (state.status, state.code, state.retryable) == (JobStatus.FAILED, "unsupported_document", False)
    assert "notes.txt" in state.message


def test_a_result_over_the_cap_fails_the_job(
    spool: Spool, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch, report: Sample
) -> None:
    """A result that no store would take is an end with a reason, not a process that dies."""
    monkeypatch.setattr(job_module, "_recognise", lambda *_: OcrResponse(markdown="x" * 9_000_000))
    monkeypatch.setattr(os, "nice", lambda _: 0)
    job = spool.submit("key", report.request)
    sleepers.kill()

    assert main([str(spool.path / job)]) == 0
    state = spool.look(job)
    assert (state.status, state.code, state.retryable) == (JobStatus.FAILED, "result_too_large", False)


def test_credentials_do_not_reach_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Sample, wait_until: Wait
) -> None:
    """A job has no use for the secrets of the worker that started it."""
    monkeypatch.setenv("COATCHECK_ACCOUNT_ACME", "hush")
    spool = open_spool(tmp_path / "spool")
    job = spool.submit("key", report.request)
    wait_until(lambda: spool.look(job).pid is not None)
    environment = Path(f"/proc/{spool.look(job).pid}/environ")
    if not environment.exists():
        pytest.skip("only Linux shows the environment of a process")

    assert b"hush" not in environment.read_bytes()
    spool.cancel(job)


def test_file_urls_name_files_of_this_machine() -> None:
    """Spaces and other letters are decoded; other schemes and other hosts are refused."""
    assert file_path("file:///tmp/a%20b.png") == Path("/tmp/a b.png")
    assert file_path("file://localhost/tmp/%E5%9B%BE.png") == Path("/tmp/图.png")
    for url in ("https://example.com/a.png", "file://server/a.png", "file:", "/tmp/a.png"):
        with pytest.raises(ValueError, match="file:///"):
            file_path(url)
