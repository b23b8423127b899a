"""``ocr:docling``: the contract from recorded replies, the shapes of its results, and its life, live."""

import io
import zipfile
from datetime import timedelta
from typing import Any

import attrs
import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus, codec
from coatcheck.errors import (
    JobNotFoundError,
    RejectedError,
    TaskFailedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Reply
from coatcheck.model import Account, QueryResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import Live
from coatcheck_ocr.docling import DoclingHandler, DoclingOptions
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.sandbox.docling import DoclingSandbox

URL = "http://docling.example:5001"
DOCUMENT = Reply(200, b"%PDF-1.4 invented", {"Content-Type": "application/pdf"})
REQUEST = OcrRequest(url="https://documents.example/reports/a.pdf", options={"do_ocr": True})


def task(word: str, **more: Any) -> Reply:
    """Return what the server says about a task."""
    return reply({"task_id": "T1", "task_type": "convert", "task_status": word, "task_meta": None, **more})


def result(word: str | None = "success", **more: Any) -> Reply:
    """Return a result in JSON."""
    document = {"filename": "a.pdf", "md_content": "# A", "json_content": None, "text_content": None}
    return reply({"document": document, "status": word, "errors": [], "processing_time": 1.5, **more})


ACCEPTED = task("pending", task_position=1)


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> DoclingHandler:
        """Return the handler."""
        return DoclingHandler(URL)

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": [DOCUMENT, ACCEPTED],
            "running": task("started"),
            "unknown_word": task("defrosting"),
            "succeeded": [task("success"), result()],
            "failed": task("failure", error_message="the worker was lost"),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("T1"), QueryParams("T1", base_url=URL, tenant="blue")]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = DoclingHandler
    sandbox_type = DoclingSandbox

    @pytest.mark.parametrize("options", [{}, {"target": "zip"}, {"server_fetches": True}], ids=str)
    def test_live_the_text_is_found_wherever_the_server_puts_it(
        self, live: Live, options: dict[str, Any]
    ) -> None:
        """In the reply or in an archive, of a document that was sent or fetched there."""
        response = live.response("a.pdf", options=options)
        assert "A sandbox read this." in response.markdown

    def test_live_a_document_that_failed_in_a_task_that_did_not_is_a_failure(self, live: Live) -> None:
        """Trap 3: the task is done, and what counts is the document."""
        with pytest.raises(TaskFailedError, match="not a document"):
            live.response("corrupt.pdf")

    @pytest.mark.parametrize("fault", ["500", "html", "truncate", "reset"])
    @pytest.mark.parametrize("target", ["inbody", "zip"])
    def test_live_a_result_that_is_lost_is_fetched_again(self, live: Live, fault: str, target: str) -> None:
        """Trap 7: a second fetch soon after the first still finds it."""
        response = live.response(f"a~on_result={fault}.pdf", options=DoclingOptions(target=target))
        assert "A sandbox read this." in response.markdown
        assert live.sandbox.counts["result"] == 2

    def test_live_a_result_that_is_gone_is_a_lost_job(self, live: Live) -> None:
        """Trap 7: a result that was removed does not come back, and the deadline is not waited for."""
        task = live.run("a~on_result=404+404+404.pdf")
        assert task.error is not None
        assert (task.status, task.error.code) == (TaskStatus.FAILED, "job_lost")
        assert "5 minutes" in task.error.message

    def test_live_a_tenant_sees_its_own_tasks(self, live: Live) -> None:
        """The server knows a task under its tenant only, so every call names it."""
        assert live.run("a.pdf", options=DoclingOptions(tenant="blue")).status is TaskStatus.SUCCEEDED
        assert {request.header("x-tenant-id") for request in live.sandbox.requests} == {"blue"}


def submitted(*answers: Reply, request: OcrRequest = REQUEST, account: Account | None = None) -> Any:
    """Submit over scripted replies; return the result and the transport."""
    transport = ScriptedTransport(answers)
    context = submit_context(transport)
    if account is not None:
        context = attrs.evolve(context, account=account)
    return DoclingHandler(URL).submit(request, context), transport


def queried(*answers: Reply, params: QueryParams | None = None) -> QueryResult:
    """Query over scripted replies."""
    transport = ScriptedTransport(answers)
    return DoclingHandler(URL).query(params or QueryParams("T1"), query_context(transport))


def error_code(answer: QueryResult) -> tuple[str, str, bool]:
    """Return what a failure says."""
    assert answer.error is not None
    return answer.error.code, answer.error.message, answer.error.retryable


def parts_of(call: Call) -> dict[str, list[Any]]:
    """Return the contents of a call's parts by name."""
    assert call.multipart is not None
    parts: dict[str, Any] = dict(call.multipart)
    return {
        name: [part.content for part in (given if isinstance(given, list) else [given])]
        for name, given in parts.items()
        if name != "files"
    }


def test_the_upload_is_what_the_server_wants() -> None:
    """Method, path, key and tenant, every option as flat fields, lists as repeated ones."""
    request = OcrRequest(
        url="https://documents.example/x/a.pdf?sig=1",
        file_name="report",
        model="vlm",
        pages="2-5",
        options=DoclingOptions(
            to_formats=("md", "text"),
            do_ocr=False,
            images_scale=2.0,
            tenant="blue",
            extra={"vlm_pipeline_model_api": {"url": "u"}, "pipeline": "not this"},
        ),
    )
    _, transport = submitted(DOCUMENT, ACCEPTED, request=request)
    fetch, call = transport.calls
    assert (fetch.url, dict(fetch.headers)) == (request.url, {})
    assert (call.method, call.url) == ("POST", f"{URL}/v1/convert/file/async")
    assert call.headers == {"X-Tenant-Id": "blue", "X-Api-Key": "secret-of-tests"}
    assert parts_of(call) == {
        "to_formats": ["md", "text"],
        "do_ocr": ["false"],
        "images_scale": ["2.0"],
        "vlm_pipeline_model_api": [codec.dumps({"url": "u"})],
        "pipeline": ["vlm"],
        "page_range": ["2", "5"],
        "target_type": ["inbody"],
    }
    (file,) = call.multipart["files"]
    assert (file.filename, file.content_type) == ("report.pdf", "application/octet-stream")


def test_a_url_that_the_server_fetches_is_one_source() -> None:
    """One, because of two the failed one would be missing without a word; and the target is named."""
    options = DoclingOptions(server_fetches=True, target="zip", do_table_structure=True)
    _, transport = submitted(ACCEPTED, request=attrs.evolve(REQUEST, options=options, pages="3"))
    (call,) = transport.calls
    assert (call.method, call.url) == ("POST", f"{URL}/v1/convert/source/async")
    assert call.json == {
        "sources": [{"kind": "http", "url": REQUEST.url}],
        "options": {"do_table_structure": True, "page_range": [3, 3]},
        "target": {"kind": "zip"},
    }


def test_a_server_without_a_key_is_sent_none() -> None:
    """Where nothing is configured nothing is sent; a part that is missing is still a mistake."""

    def missing(known: tuple[str, ...]) -> Account:
        def secret(part: str) -> str:
            raise UnknownNameError.of("account", "docling", known)

        return Account("docling", secret)

    _, transport = submitted(DOCUMENT, ACCEPTED, account=missing(()))
    assert dict(transport.calls[-1].headers) == {}
    with pytest.raises(UnknownNameError):
        DoclingHandler(URL).sign(Call("GET", "/"), missing(("docling",)))


def test_the_tenant_goes_with_every_query() -> None:
    """It is kept with the task, whatever the next worker is set to."""
    options = DoclingOptions(tenant="blue")
    accepted, _ = submitted(DOCUMENT, ACCEPTED, request=attrs.evolve(REQUEST, options=options))
    transport = ScriptedTransport([task("success"), result()])
    DoclingHandler(URL).query(accepted.query_params, query_context(transport))
    assert [(call.method, call.url) for call in transport.calls] == [
        ("GET", f"{URL}/v1/status/poll/T1"),
        ("GET", f"{URL}/v1/result/T1"),
    ]
    assert all(call.headers["X-Tenant-Id"] == "blue" for call in transport.calls)


def test_a_result_is_read_with_what_the_server_says_about_it() -> None:
    """Markdown, plain text, the time that it took, and how long the server keeps it."""
    document = {"md_content": "# A", "text_content": "A"}
    answer = queried(task("success"), result(document=document))
    assert isinstance(answer.result, OcrResponse)
    assert (answer.result.markdown, answer.result.text) == ("# A", "A")
    assert answer.result.metadata == {"document_status": "success", "processing_time": 1.5}
    assert answer.expires_after == timedelta(minutes=5)


@pytest.mark.parametrize("word", ["success", "SUCCESS", "partial_success"])
def test_a_partial_success_shows_its_errors(word: str) -> None:
    """Trap 3: "done" with parts missing is a result that says which."""
    error = {"component_type": "model", "error_message": "page 2 is broken", "page_no": 2, "other": []}
    answer = queried(task(word), result("partial_success", errors=[error]))
    assert answer.status is TaskStatus.SUCCEEDED
    assert isinstance(answer.result, OcrResponse)
    assert answer.result.metadata["errors"] == [
        {"component_type": "model", "error_message": "page 2 is broken", "page_no": 2}
    ]


@pytest.mark.parametrize("word", ["failure", "skipped"])
def test_a_failed_document_fails_the_task(word: str) -> None:
    """Trap 3: the task says "success" for a corrupt file, and for a URL that the server refuses."""
    error = {"category": "security", "error_message": "URL is not allowed"}
    answer = queried(task("success"), result(word, document={"md_content": None}, errors=[error]))
    assert error_code(answer) == ("security", "URL is not allowed", False)
    without_reason = queried(task("success"), result(word, document={}, errors=None))
    assert error_code(without_reason)[0] == "failed"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {"failure": {"category": "timeout", "message": "too slow", "retryable": True}},
            ("timeout", "too slow", True),
        ),
        ({"error_message": "generic"}, ("failed", "generic", False)),
        ({}, ("failed", "the vendor says that the job failed", False)),
    ],
)
def test_a_failed_task_says_why(body: dict[str, Any], expected: tuple[str, str, bool]) -> None:
    """In the status, since the result of a failed task is 404; or in a result of its own kind."""
    assert error_code(queried(task("failure", **body))) == expected
    assert error_code(queried(task("success"), reply({"kind": "TaskFailureResult", **body}))) == expected


def test_a_submit_that_failed_at_once_fails() -> None:
    """There is nothing to be asked for."""
    answer, _ = submitted(DOCUMENT, task("failure", error_message="no such pipeline"))
    assert (answer.status, answer.error.message) == (TaskStatus.FAILED, "no such pipeline")


def test_a_submit_that_is_done_at_once_is_fetched_by_a_query() -> None:
    """The reply to a submit has no text."""
    answer, _ = submitted(DOCUMENT, task("success"))
    assert (answer.status, answer.query_params.external_task_id) == (TaskStatus.RUNNING, "T1")


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (reply({"detail": "Task result not found"}, 404), JobNotFoundError),
        (reply({}), VendorError),
        (reply("<html>no</html>", 502), VendorError),
        (Reply(200, b"PK\x03\x04 cut off"), VendorError),
        (reply({"detail": "busy"}, 503, headers={"Retry-After": "1"}), ThrottledError),
    ],
)
def test_a_result_that_is_not_there_leaves_the_task_as_it_is(second: Reply, error: type[Exception]) -> None:
    """Trap 5: the second step may come before the content, or to another server than the first."""
    with pytest.raises(error):
        queried(task("success"), second)


def test_an_archive_without_a_text_is_a_failure() -> None:
    """Trap 3: documents that failed are silently missing from archives."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w"):
        pass
    # An archive without entries begins with its end.
    assert error_code(queried(task("success"), Reply(200, buffer.getvalue())))[0] == "no_result"


@pytest.mark.parametrize("status", [422, 404])
def test_a_refused_submit_is_not_repeated(status: int) -> None:
    """Options that the server does not take, or a server of another version."""
    with pytest.raises(RejectedError):
        submitted(DOCUMENT, reply({"detail": [{"msg": "invented"}]}, status))


def test_a_busy_server_is_asked_again() -> None:
    """503 with a delay is no failure of the submit: nothing was created."""
    with pytest.raises(ThrottledError) as caught:
        submitted(DOCUMENT, reply({"detail": "busy"}, 503, headers={"Retry-After": "1"}))
    assert caught.value.delay == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pages": "1,3"}, "pages"),
        ({"options": {"image_export_mode": "none"}}, "placeholder"),
        ({"options": {"to_formats": ["html"]}}, "'md'"),
        ({"options": {"do_ocr": "yes"}}, "True or False"),
        ({"url": "s3://bucket/a.pdf"}, "http"),
    ],
)
def test_what_the_server_could_not_read_is_refused(changes: dict[str, Any], match: str) -> None:
    """Found out before the task is stored."""
    with pytest.raises(ValidationError, match=match):
        DoclingHandler(URL).validate(attrs.evolve(REQUEST, **changes))


def test_the_address_has_no_default() -> None:
    """A server of one's own is somewhere that only its owner knows."""
    with pytest.raises(ValidationError, match="COATCHECK_OCR_DOCLING_URL"):
        DoclingHandler().validate(REQUEST)
