"""The handler ``ocr:local``: what it refuses, and how the states of a job become answers."""

import importlib.util
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.provider_ocr.conftest import Sleepers

from coatcheck.errors import (
    JobNotFoundError,
    NotSentError,
    RejectedError,
    UnknownNameError,
    ValidationError,
)
from coatcheck.handler import resolve
from coatcheck.model import (
    Account,
    CancelResult,
    Limit,
    Phase,
    QueryContext,
    QueryParams,
    SubmitContext,
    TaskStatus,
)
from coatcheck_ocr.local.handler import LocalOcrHandler
from coatcheck_ocr.local.spool import JobStatus, Spool
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.samples import Sample, load_samples

NOW = datetime(2024, 5, 1, tzinfo=UTC)
ACCOUNT = Account("ocr-local", lambda part: part)
QUERY = QueryContext(
    task_id="t", created_at=NOW, deadline_at=NOW + timedelta(hours=1), now=NOW, account=ACCOUNT
)


def context(key: str = "key") -> SubmitContext:
    """What a worker hands to a submit."""
    return SubmitContext(task_id="t", idempotency_key=key, now=NOW, account=ACCOUNT)


@pytest.fixture
def sample() -> Sample:
    """Any document."""
    return load_samples()[0]


@pytest.fixture
def handler(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> LocalOcrHandler:
    """A handler whose jobs are started as sleepers."""
    monkeypatch.setattr("coatcheck_ocr.local.handler.open_spool", lambda _path: spool)
    return LocalOcrHandler(spool.path)


@pytest.fixture
def params(handler: LocalOcrHandler, sample: Sample) -> QueryParams:
    """The query params of a submitted job."""
    submitted = handler.submit(sample.request, context())
    assert submitted.query_params is not None
    return submitted.query_params


def write(spool: Spool, params: QueryParams, **changes: Any) -> None:
    """Change the state of a job, as its process would."""
    folder = spool.folder(params.external_task_id)
    folder.write_state(attrs.evolve(folder.read_state(), **changes))


def test_it_is_a_handler_of_ocr_requests() -> None:
    """The declaration says what the design asks for."""
    resolved = resolve(LocalOcrHandler())

    assert (resolved.key, resolved.params_type) == ("ocr:local", OcrRequest)
    assert resolved.handler.traits.resubmit == "idempotent"
    assert resolved.handler.has_cancel
    assert resolved.handler.local_files
    assert resolved.handler.default_limits == (Limit(account="ocr-local", live=os.cpu_count()),)


def test_a_submit_says_where_the_job_is(spool: Spool, params: QueryParams) -> None:
    """The id and the spool are all that a later query needs, in whatever process."""
    assert params == QueryParams("key", spool=str(spool.path))


def test_a_repeated_submit_finds_the_same_job(
    handler: LocalOcrHandler, params: QueryParams, sample: Sample, sleepers: Sleepers
) -> None:
    """A submit whose reply was lost makes no second job."""
    again = handler.submit(sample.request, context())

    assert again.query_params == params
    assert len(sleepers.processes) == 1


def test_a_key_of_another_request_is_rejected(
    handler: LocalOcrHandler, params: QueryParams, sample: Sample
) -> None:
    """Certainly no job exists for this request."""
    with pytest.raises(RejectedError) as caught:
        handler.submit(attrs.evolve(sample.request, pages="1"), context())

    assert caught.value.code == "idempotency_conflict"


def test_a_spool_that_cannot_be_written_is_not_sent(sample: Sample, tmp_path: Path) -> None:
    """Nothing was begun, so the submit may simply be tried again."""
    (tmp_path / "file").touch()

    with pytest.raises(NotSentError, match="no job could be started"):
        LocalOcrHandler(tmp_path / "file" / "spool").submit(sample.request, context())


def test_states_become_answers(handler: LocalOcrHandler, spool: Spool, params: QueryParams) -> None:
    """Queued, loading, reading page 2 of 3."""
    assert handler.query(params, QUERY).status is TaskStatus.SUBMITTED

    write(spool, params, status=JobStatus.RUNNING)
    loading = handler.query(params, QUERY)
    assert (loading.status, loading.progress) == (TaskStatus.RUNNING, None)

    write(spool, params, page=1, pages=3)
    reading = handler.query(params, QUERY)
    assert reading.progress == pytest.approx(100 / 3)
    assert reading.provider_status == "page 2 of 3"


def test_a_success_brings_the_result_and_the_usage(
    handler: LocalOcrHandler, spool: Spool, params: QueryParams
) -> None:
    """The response is handed on whole; pages are counted."""
    response = OcrResponse(markdown="# text", usage={"page": 3})
    spool.folder(params.external_task_id).write_result(response)
    write(spool, params, status=JobStatus.SUCCEEDED)

    answer = handler.query(params, QUERY)

    assert (answer.status, answer.result, answer.usage) == (TaskStatus.SUCCEEDED, response, {"page": 3})
    assert answer.expires_after == timedelta(days=30)


def test_a_failure_says_why(handler: LocalOcrHandler, spool: Spool, params: QueryParams) -> None:
    """Code, message and whether it is worth another try come from the job."""
    write(spool, params, status=JobStatus.FAILED, code="broken_document", message="page 1 …")

    error = handler.query(params, QUERY).error

    assert error is not None
    assert (error.code, error.message, error.phase, error.retryable) == (
        "broken_document",
        "page 1 …",
        Phase.QUERY,
        False,
    )


def test_a_job_whose_process_died_is_a_failure_worth_a_retry(
    handler: LocalOcrHandler, params: QueryParams, sleepers: Sleepers
) -> None:
    """Its task need not wait for the deadline."""
    sleepers.kill()

    error = handler.query(params, QUERY).error

    assert error is not None
    assert (error.code, error.retryable) == ("job_died", True)


def test_cancel_is_done_when_the_process_is_gone(
    handler: LocalOcrHandler, spool: Spool, params: QueryParams, sleepers: Sleepers
) -> None:
    """The verdict comes with the cancel itself; a query sees it too."""
    write(spool, params, status=JobStatus.RUNNING, pid=sleepers.processes[0].pid)

    assert handler.cancel(params, QUERY) == CancelResult.done()
    assert handler.query(params, QUERY).status is TaskStatus.CANCELED
    assert handler.cancel(params, QUERY) == CancelResult.done()


def test_cancel_is_refused_after_an_end(handler: LocalOcrHandler, spool: Spool, params: QueryParams) -> None:
    """A success is not taken back."""
    write(spool, params, status=JobStatus.SUCCEEDED)

    assert handler.cancel(params, QUERY).outcome == "refused"


def test_jobs_of_another_machine_are_not_found(handler: LocalOcrHandler, spool: Spool) -> None:
    """The message says where such a job could be seen."""
    elsewhere = QueryParams("other", spool=str(spool.path))

    for call in (handler.query, handler.cancel):
        with pytest.raises(JobNotFoundError, match="only on the machine that runs it"):
            call(elsewhere, QUERY)


def test_a_readable_document_is_accepted(sample: Sample) -> None:
    """The samples pass."""
    LocalOcrHandler().validate(sample.request)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": "https://example.com/a.pdf"}, "url"),
        ({"url": "file://server/a.pdf"}, "url"),
        ({"url": "file:///no/such/file.pdf"}, "url"),
        ({"url": Path("/").as_uri()}, "url"),
        ({"model": "another"}, "model"),
        ({"options": {"dpi": 9}}, "dpi"),
    ],
)
def test_what_this_machine_cannot_read_is_refused(sample: Sample, change: dict[str, Any], field: str) -> None:
    """Before anything is stored, and with the field at fault."""
    with pytest.raises(ValidationError) as caught:
        LocalOcrHandler().validate(attrs.evolve(sample.request, **change))

    assert caught.value.field == field


def test_unknown_options_are_refused(sample: Sample) -> None:
    """Our own options are read strictly."""
    with pytest.raises(UnknownNameError, match="did you mean 'dpi'"):
        LocalOcrHandler().validate(attrs.evolve(sample.request, options={"dbi": 200}))


def test_a_missing_engine_is_told_with_the_fix(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the handler is listed, and says how to get the engine."""
    find: Callable[[str], object] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rapidocr" else find(name))

    with pytest.raises(ValidationError, match=r"pip install 'coatcheck-ocr\[local\]'"):
        LocalOcrHandler().validate(sample.request)
