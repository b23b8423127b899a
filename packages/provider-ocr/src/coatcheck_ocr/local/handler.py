"""The handler ``ocr:local``: coatcheck's side of the jobs that run on this machine."""

import importlib.util
import os
from datetime import timedelta
from pathlib import Path

from coatcheck.errors import JobNotFoundError, NotSentError, RejectedError, ValidationError
from coatcheck.handler import TaskHandler
from coatcheck.model import (
    CancelResult,
    Limit,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
)
from coatcheck.policy import PollPolicy
from coatcheck_ocr.local.engine import MODEL
from coatcheck_ocr.local.job import file_path, open_spool
from coatcheck_ocr.local.recognition import LocalOptions
from coatcheck_ocr.local.spool import (
    KEPT,
    JobMissingError,
    JobState,
    JobStatus,
    KeyConflictError,
    default_path,
)
from coatcheck_ocr.model import OcrRequest

ACCOUNT = "ocr-local"


class LocalOcrHandler(TaskHandler[OcrRequest]):
    """Reads documents on this machine, in detached processes that outlive the worker.

    A job can be seen only on the machine that runs it. One job uses one core, so as many may be alive as
    there are cores, unless the limit of the account ``ocr-local`` says otherwise.

    Args:
        spool: the spool folder; ``COATCHECK_OCR_SPOOL`` or a folder in the user's data by default.
    """

    key = "ocr:local"
    account = ACCOUNT
    #: The spool knows its jobs by our idempotency key.
    resubmit = "idempotent"
    local_files = True
    #: A look costs a few file reads.
    poll = PollPolicy.exponential(timedelta(seconds=0.5))
    default_limits = (Limit(account=ACCOUNT, live=os.cpu_count() or 1),)

    def __init__(self, spool: Path | None = None) -> None:
        self._spool = spool

    def validate(self, params: OcrRequest) -> None:
        """Refuse what this machine cannot read.

        Raises:
            ValidationError: the engine is not installed, or the URL, the model or an option is not right.
            UnknownNameError: an option has no such name.
        """
        if importlib.util.find_spec("rapidocr") is None or importlib.util.find_spec("onnxruntime") is None:
            raise ValidationError(
                "ocr:local needs its engine, found none; run: pip install 'coatcheck-ocr[local]'",
                "handler_key",
            )
        try:
            path = file_path(params.url)
        except ValueError as error:
            raise ValidationError(
                f"ocr:local: {error}; download the document and write Path(…).absolute().as_uri()", "url"
            ) from error
        if not path.is_file() or not os.access(path, os.R_OK):
            raise ValidationError(f"ocr:local must be able to read {path} as a file, but cannot", "url")
        if params.model not in (None, MODEL):
            raise ValidationError(f"ocr:local has the model {MODEL!r}, found {params.model!r}", "model")
        LocalOptions.of(params.options)

    def submit(self, params: OcrRequest, context: SubmitContext) -> SubmitResult:
        """Make sure that the key's job exists and is worked on; may be repeated."""
        spool = open_spool(self._spool or default_path())
        try:
            job_id = spool.submit(context.idempotency_key, params)
        except KeyConflictError as error:
            raise RejectedError(str(error), "idempotency_conflict") from error
        except OSError as error:
            raise NotSentError(f"no job could be started in {spool.path}: {error}") from error
        return SubmitResult.submitted(QueryParams(job_id, spool=str(spool.path)))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Read what the job has written."""
        spool = open_spool(Path(params["spool"]))
        try:
            state = spool.look(params.external_task_id)
            if state.status is JobStatus.SUCCEEDED:
                response = spool.folder(params.external_task_id).read_result()
                return QueryResult.succeeded(
                    response, usage=response.usage, expires_after=KEPT, provider_status=state.status
                )
        except JobMissingError as error:
            raise JobNotFoundError(_not_here(params)) from error
        match state.status:
            case JobStatus.FAILED:
                return QueryResult.failed(
                    state.code, state.message, state.retryable, provider_status=state.status
                )
            case JobStatus.CANCELED:
                return QueryResult.canceled(provider_status=state.status)
            case JobStatus.QUEUED:
                return QueryResult.submitted(provider_status=state.status)
            case _:
                return _running(state)

    def cancel(self, params: QueryParams, context: QueryContext) -> CancelResult:
        """Stop the job's process, politely."""
        spool = open_spool(Path(params["spool"]))
        try:
            state = spool.cancel(params.external_task_id)
        except JobMissingError as error:
            raise JobNotFoundError(_not_here(params)) from error
        if state.status is JobStatus.CANCELED:
            return CancelResult.done()
        if state.is_end:
            return CancelResult.refused(f"the job has ended already: {state.status}")
        return CancelResult.accepted()


def _running(state: JobState) -> QueryResult:
    if not state.pages:
        return QueryResult.running(provider_status=state.status)
    return QueryResult.running(
        100 * state.page / state.pages, provider_status=f"page {state.page + 1} of {state.pages}"
    )


def _not_here(params: QueryParams) -> str:
    return (
        f"expected job {params.external_task_id!r} in the spool {params['spool']}, found none; "
        "a job can be seen only on the machine that runs it, and until it is thrown away "
        f"{KEPT.days} days after its end"
    )
