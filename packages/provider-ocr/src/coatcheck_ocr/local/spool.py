"""The spool: one folder per job, shared by everybody who submits, looks, cancels or works on this machine.

A job's folder is named by its idempotency key and appears complete, in one rename, so a second submit
with the same key finds the first one's job. Whoever starts a job takes the lock of its folder and hands
the open lock down to the job's process; from then on the lock is held exactly as long as that process
lives. So *not ended and lock free* means *dead*, never *slow* or *still starting*. Only the holder of the
lock writes the state. Nothing here recognises text.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs
import platformdirs
from attrs import frozen

from coatcheck import codec
from coatcheck_ocr.model import OcrRequest, OcrResponse

#: Names the spool folder; the user's data folder is the default.
VARIABLE = "COATCHECK_OCR_SPOOL"
#: How often a job may be begun, when its process keeps dying.
MAX_ATTEMPTS = 3
#: Ended jobs are thrown away after this; their keys are forgotten with them.
KEPT = timedelta(days=30)
#: How long a cancel waits for the process to be gone.
CANCEL_WAIT = timedelta(seconds=2)

#: Small letters only: two keys must not meet in one folder where names ignore case.
_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_HASHED = re.compile(r"~[0-9a-f]{64}")

#: Starts the process of a job: its folder, and the descriptor of the lock that the process must keep open.
Starter = Callable[[Path, int], None]


class JobStatus(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


@frozen(kw_only=True)
class JobState:
    """All that is known of a job, replaced as a whole."""

    status: JobStatus = JobStatus.QUEUED
    #: How often the job was begun.
    attempt: int = 0
    #: The job's process, which leads a process group of its own.
    pid: int | None = None
    #: Pages finished, and pages in all once they are known.
    page: int = 0
    pages: int | None = None
    #: Why it failed.
    code: str = ""
    message: str = ""
    retryable: bool = False
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def is_end(self) -> bool:
        """Whether nothing more will happen."""
        return self.status not in (JobStatus.QUEUED, JobStatus.RUNNING)


class JobMissingError(LookupError):
    """The spool has no such job."""


class KeyConflictError(ValueError):
    """The key belongs to a job with another request."""


@frozen
class Folder:
    """The files of one job."""

    path: Path

    @property
    def name(self) -> str:
        """The job's id."""
        return self.path.name

    def read_key(self) -> str:
        """Return the idempotency key that the job was submitted with."""
        return str(self._read("key.json"))

    def read_request(self) -> OcrRequest:
        """Return the request."""
        request = codec.decode_value(self._read_bytes("request.json"))
        if not isinstance(request, OcrRequest):
            raise TypeError(f"expected an OcrRequest in {self.path}, found {type(request).__name__}")
        return request

    def read_state(self) -> JobState:
        """Return the state as it was written last.

        Raises:
            JobMissingError: there is no such job.
        """
        found: Mapping[str, Any] = self._read("state.json")
        # A newer version may have written more.
        known = {field.name for field in attrs.fields(JobState)}
        state = JobState(**{name: value for name, value in found.items() if name in known})
        return attrs.evolve(state, status=JobStatus(state.status))

    def write_state(self, state: JobState) -> None:
        """Replace the state. Only the holder of the lock may do this."""
        self._write("state.json", codec.dumps(attrs.asdict(state)))

    def read_result(self) -> OcrResponse:
        """Return the result of a job that succeeded."""
        result = codec.decode_value(self._read_bytes("result.json"))
        if not isinstance(result, OcrResponse):
            raise TypeError(f"expected an OcrResponse in {self.path}, found {type(result).__name__}")
        return result

    def write_result(self, result: OcrResponse) -> None:
        """Write the result; the state that announces it comes after."""
        self._write("result.json", codec.encode_value(result, field="result", cap=codec.CAPS["result"]))

    @property
    def is_cancel_wanted(self) -> bool:
        """Whether somebody asked for the job to stop."""
        return (self.path / "cancel").exists()

    def want_cancel(self) -> None:
        """Ask for the job to stop; it looks between pages."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "cancel").touch()

    @contextlib.contextmanager
    def lock(self) -> Iterator[int | None]:
        """Take the lock for the ``with`` block; give its descriptor, or None when somebody has it.

        A process that inherits the descriptor keeps the lock beyond the block.

        Raises:
            JobMissingError: there is no such job.
        """
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            raise JobMissingError(self.name) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, name: str) -> Any:
        return codec.loads(self._read_bytes(name))

    def _read_bytes(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            raise JobMissingError(self.name) from None

    def _write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole, so that no reader ever sees a part of it."""
        new = self.path / f"{name}.{os.getpid()}.new"
        write_through(new, data)
        new.replace(self.path / name)


class Spool:
    """All jobs of one spool folder. Safe to use from many threads and processes at once.

    Args:
        path: the spool folder; made when the first job is submitted, readable by this user only.
        start: starts the process of a job.
    """

    def __init__(self, path: Path, start: Starter) -> None:
        self.path = path.absolute()
        self._start = start

    @property
    def log(self) -> Path:
        """One JSON line per process that really began to work on a job."""
        return self.path / "jobs.log"

    def submit(self, key: str, request: OcrRequest) -> str:
        """Make sure that the job of this key exists and is worked on, and return its id.

        May be repeated: the same key gives the same job, in whatever state it is. A job whose process
        died before it came to an end is begun again, at most ``MAX_ATTEMPTS`` times in all; then it fails
        with ``job_died``.

        Raises:
            KeyConflictError: the key belongs to a job with another request.
            OSError: the spool cannot be written, or no process can be started.
        """
        folder = self.folder(folder_name(key))
        if not folder.path.exists():
            self._create(folder, key, request)
        if folder.read_key() != key or folder.read_request() != request:
            raise KeyConflictError(
                f"the idempotency key {key!r} belongs to a job for another request; use a new key"
            )
        with folder.lock() as lock:
            if lock is None:
                return folder.name
            state = folder.read_state()
            if state.is_end:
                return folder.name
            if state.attempt >= MAX_ATTEMPTS:
                folder.write_state(_dead(state))
                return folder.name
            folder.write_state(JobState(attempt=state.attempt + 1))
            self._start(folder.path, lock)
        return folder.name

    def look(self, job_id: str) -> JobState:
        """Return the state of a job.

        A job whose process died is written off here, as ``canceled`` if that was asked for, else as
        failed with ``job_died``; from then on that is its end, whoever looks.

        Raises:
            JobMissingError: there is no such job.
        """
        folder = self.folder(job_id)
        state = folder.read_state()
        if state.is_end:
            return state
        with folder.lock() as lock:
            # Read again: the job may have come to its end since, and only then let go of the lock.
            state = folder.read_state()
            if lock is None or state.is_end:
                return state
            if folder.is_cancel_wanted:
                state = attrs.evolve(state, status=JobStatus.CANCELED, pid=None, finished_at=now())
            else:
                state = _dead(state)
            folder.write_state(state)
            return state

    def cancel(self, job_id: str) -> JobState:
        """Stop a job and return its state: an end, unless the process takes longer than ``CANCEL_WAIT``.

        Raises:
            JobMissingError: there is no such job.
        """
        folder = self.folder(job_id)
        state = folder.read_state()
        if state.is_end:
            return state
        folder.want_cancel()
        patience = time.monotonic() + CANCEL_WAIT.total_seconds()
        signaled = False
        while not (state := self.look(job_id)).is_end and time.monotonic() < patience:
            if state.pid is not None and not signaled:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(state.pid, signal.SIGTERM)
                signaled = True
            time.sleep(0.02)
        return state

    def folder(self, job_id: str) -> Folder:
        """Return the files of a job, which may not exist.

        Raises:
            JobMissingError: no job can have this id.
        """
        if not (_SAFE.fullmatch(job_id) or _HASHED.fullmatch(job_id)):
            raise JobMissingError(job_id)
        return Folder(self.path / job_id)

    def prune(self, older_than: timedelta = KEPT) -> int:
        """Throw away jobs that ended longer ago, and the rest of submits that never came to their rename.

        Returns how many folders went. Jobs that have not ended stay, however old they are.
        """
        limit = time.time() - older_than.total_seconds()
        gone = 0
        for path in list(self.path.iterdir()) if self.path.exists() else []:
            with contextlib.suppress(OSError, JobMissingError):
                if path.is_dir() and path.stat().st_mtime < limit and (rest := self._retire(path)):
                    shutil.rmtree(rest)
                    gone += 1
        return gone

    def _retire(self, path: Path) -> Path | None:
        """Move an ended job out of reach, and return where it lies now; None when it must stay."""
        if path.name.startswith("."):
            return path
        # The lock of a job that has not ended must not be touched: a submit would think that it runs.
        if not Folder(path).read_state().is_end:
            return None
        with Folder(path).lock() as lock:
            return None if lock is None else path.rename(self.path / f".gone-{secrets.token_hex(8)}")

    def _create(self, folder: Folder, key: str, request: OcrRequest) -> None:
        """Make the folder beside its place and rename it; the first one there stays."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Folder(self.path / f".new-{secrets.token_hex(8)}")
        new.path.mkdir(mode=0o700)
        try:
            write_through(new.path / "key.json", codec.dumps(key))
            write_through(
                new.path / "request.json",
                codec.encode_value(request, field="params", cap=codec.CAPS["params"]),
            )
            write_through(new.path / "lock", b"")
            new.write_state(JobState())
            try:
                new.path.rename(folder.path)
            except OSError:
                if not folder.path.exists():
                    raise
            else:
                _sync_folder(self.path)
        finally:
            shutil.rmtree(new.path, ignore_errors=True)


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the spool folder: ``COATCHECK_OCR_SPOOL``, else one in the user's data folder."""
    if named := environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    return Path(platformdirs.user_data_dir("coatcheck")) / "ocr-spool"


def folder_name(key: str) -> str:
    """Return the key itself where it is a harmless file name, else its hash, which no such name can equal."""
    if _SAFE.fullmatch(key):
        return key
    return "~" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def now() -> str:
    """Return the time as the state files write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_through(path: Path, data: bytes) -> None:
    """Write a file down to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _dead(state: JobState) -> JobState:
    return attrs.evolve(
        state,
        status=JobStatus.FAILED,
        pid=None,
        code="job_died",
        message=f"the job's process died without a word (attempt {state.attempt}); "
        "its job.log in the spool folder may say more",
        retryable=True,
        finished_at=now(),
    )
