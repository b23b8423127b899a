"""The process of one job: ``python -m coatcheck_ocr.local.job FOLDER LOCK``.

It is started detached, in a session of its own, so it outlives whoever started it. It works only while it
holds the lock of its folder: the descriptor ``LOCK`` that it inherits, or, started by hand without one,
the lock that it takes itself. Submitting and looking are not done here.
"""

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs

from coatcheck import PayloadTooLargeError, codec
from coatcheck_ocr.local.spool import Folder, JobState, JobStatus, Spool, now
from coatcheck_ocr.model import OcrRequest, OcrResponse

#: Jobs stand back behind the processes that people and workers wait for.
NICENESS = 5
#: What environment variables with credentials begin with; a job has no use for them.
CREDENTIALS = "COATCHECK_ACCOUNT_"


class CanceledError(Exception):
    """Somebody asked for the job to stop."""


def start(folder: Path, lock: int) -> None:
    """Start the process of a job and hand it the lock; returns at once.

    Raises:
        OSError: no process can be started.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(CREDENTIALS)}
    with (folder / "job.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  # our own module, by a list, without a shell
            [sys.executable, "-P", "-m", "coatcheck_ocr.local.job", str(folder), str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
            env=environment,
        )
    # Somebody must wait for the process, or it stays as a zombie for as long as this one lives.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()


def open_spool(path: Path) -> Spool:
    """Return the spool at ``path``, whose jobs are run by this module."""
    return Spool(path, start)


def file_path(url: str) -> Path:
    """Return the path that a ``file://`` URL names.

    Raises:
        ValueError: it is another kind of URL, or names another host.
    """
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError(f"expected a file:///… URL of this machine, found {url!r}")
    return Path(url2pathname(parts.path))


def main(arguments: list[str]) -> int:
    """Do the job in the folder, unless another process does it or it has ended; return the exit code."""
    folder = Folder(Path(arguments[0]))
    if len(arguments) > 1:
        # Kept open until the process ends; not for its children.
        os.set_inheritable(int(arguments[1]), False)  # noqa: FBT003  # the standard library's own signature
        _work(folder)
        return 0
    with folder.lock() as lock:
        if lock is None:
            sys.stderr.write(f"{folder.name}: another process works on this job\n")
            return 1
        _work(folder)
    return 0


def _work(folder: Folder) -> None:
    state = folder.read_state()
    if state.is_end:
        return
    state = attrs.evolve(state, status=JobStatus.RUNNING, pid=os.getpid(), started_at=now())
    folder.write_state(state)
    _log_start(folder, state)
    os.nice(NICENESS)

    def on_page(done: int, pages: int) -> None:
        nonlocal state
        if folder.is_cancel_wanted:
            raise CanceledError
        state = attrs.evolve(state, page=done, pages=pages)
        folder.write_state(state)

    try:
        response = _recognise(folder.read_request(), on_page)
        folder.write_result(response)
    except CanceledError:
        end = JobState(status=JobStatus.CANCELED)
    except Exception as error:  # noqa: BLE001  # the state must say how the job ended, whatever went wrong
        traceback.print_exc()
        code, retryable = _code(error)
        end = JobState(
            status=JobStatus.FAILED,
            code=code,
            message=str(error) or type(error).__name__,
            retryable=retryable,
        )
    else:
        end = JobState(status=JobStatus.SUCCEEDED, page=len(response.pages), pages=len(response.pages))
    folder.write_state(
        attrs.evolve(end, attempt=state.attempt, started_at=state.started_at, finished_at=now())
    )
    open_spool(folder.path.parent).prune()


def _recognise(request: OcrRequest, on_page: Callable[[int, int], None]) -> OcrResponse:
    # Imported late: a job whose engine is not installed still says so in its state.
    from coatcheck_ocr.local.engine import Engine
    from coatcheck_ocr.local.recognition import recognise

    return recognise(file_path(request.url), request, Engine(), on_page=on_page)


def _code(error: Exception) -> tuple[str, bool]:
    """Return the failure code of an error, and whether the same job may end better another time."""
    from coatcheck_ocr.local.document import DocumentError

    match error:
        case DocumentError(code=code):
            return code, False
        case PayloadTooLargeError():
            return "result_too_large", False
        case ImportError():
            return "engine_missing", False
        case MemoryError():
            return "out_of_memory", True
        case OSError():
            return "spool_error", True
        case _:
            return "engine_error", False


def _log_start(folder: Folder, state: JobState) -> None:
    """Add a line to the log of the spool: this process really begins to work."""
    line = codec.dumps(
        {
            "key": folder.read_key(),
            "job": folder.name,
            "attempt": state.attempt,
            "pid": os.getpid(),
            "at": now(),
        }
    )
    descriptor = os.open(folder.path.parent / "jobs.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line + b"\n")  # one write: lines of different processes never mix
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
