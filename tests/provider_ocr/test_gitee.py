"""``ocr:gitee``: the contract from recorded replies, the shapes that its results have, and its life, live."""

from typing import Any

import attrs
import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.errors import ThrottledError, UnknownNameError, ValidationError
from coatcheck.http import Reply
from coatcheck.model import QueryResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import Live
from coatcheck_ocr.gitee import GiteeHandler, GiteeOptions
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.sandbox.gitee import GiteeSandbox

DOCUMENT = Reply(200, b"%PDF-1.4 invented", {"Content-Type": "application/pdf"})
ACCEPTED = reply({"task_id": "T1", "status": "waiting", "created_at": 1764000000, "urls": {"get": "…"}})
REQUEST = OcrRequest(url="https://documents.example/reports/a.pdf", options={"table_enable": True})


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> GiteeHandler:
        """Return the handler."""
        return GiteeHandler()

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": [DOCUMENT, ACCEPTED],
            "running": reply({"task_id": "T1", "status": "in_progress", "started_at": 1764000001}),
            "unknown_word": reply({"task_id": "T1", "status": "preheating"}),
            "succeeded": reply(
                {
                    "task_id": "T1",
                    "status": "success",
                    "output": {"segments": [{"index": 0, "content": "# A"}, {"index": 1, "content": "text"}]},
                    "created_at": 1764000000000,
                    "completed_at": 1764000009000,
                }
            ),
            "failed": reply(
                {"task_id": "T1", "status": "failure", "error": {"code": "E7", "message": "page 2 is broken"}}
            ),
            "at_once": [
                DOCUMENT,
                reply({"task_id": "T1", "status": "success", "output": {"markdown": "# A"}}),
            ],
            "cancel_done": reply({"task_id": "T1", "status": "cancelled"}),
            "cancel_accepted": reply({"task_id": "T1", "status": "in_progress"}),
            "cancel_refused": reply({"task_id": "T1", "status": "success"}),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("T1"), QueryParams("T1", base_url="https://ai.gitee.com/v1")]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = GiteeHandler
    sandbox_type = GiteeSandbox
    path = "/v1"

    @pytest.mark.parametrize(
        "changes",
        [{}, {"options": GiteeOptions(output_format="md")}, {"model": "MinerU2.5"}],
        ids=["inline", "link", "archive"],
    )
    def test_live_the_text_is_found_wherever_the_vendor_puts_it(
        self, live: Live, changes: dict[str, Any]
    ) -> None:
        """Segments, a link to a file, a link to an archive: it is the same document."""
        response = live.response("a.pdf", **changes)
        assert response.markdown.startswith("# a.pdf")
        if "options" in changes:
            assert f"]({live.url}/ocr-gitee/files/" in response.markdown

    @pytest.mark.parametrize("fault", ["500", "html", "truncate"])
    def test_live_a_download_that_fails_is_made_again(self, live: Live, fault: str) -> None:
        """The vendor is asked again, and gives a link again."""
        response = live.response(f"a~on_result={fault}+{fault}.pdf", model="MinerU2.5")
        assert "sandbox read this" in response.markdown

    def test_live_a_result_that_is_gone_is_a_lost_job(self, live: Live) -> None:
        """A link that leads nowhere time after time is not waited for until the deadline."""
        task = live.run("a~on_result=404+404+404.pdf", options=GiteeOptions(output_format="md"))
        assert task.error is not None
        assert (task.status, task.error.code) == (TaskStatus.FAILED, "job_lost")
        assert "result" in task.error.message


def submitted(answer: Reply, request: OcrRequest = REQUEST) -> tuple[Any, ScriptedTransport]:
    """Submit over scripted replies."""
    transport = ScriptedTransport([DOCUMENT, answer])
    return GiteeHandler().submit(request, submit_context(transport)), transport


def queried(*answers: Reply) -> QueryResult:
    """Query over scripted replies."""
    return GiteeHandler().query(QueryParams("T1"), query_context(ScriptedTransport(answers)))


def response_of(output: object) -> OcrResponse:
    """Return what is read out of an output."""
    found = queried(reply({"task_id": "T1", "status": "success", "output": output})).result
    assert isinstance(found, OcrResponse)
    return found


def test_the_upload_is_what_the_vendor_wants() -> None:
    """Method, path, key, every field as text; the model is always named, true has small letters."""
    request = attrs.evolve(
        REQUEST,
        pages="1-5",
        options=GiteeOptions(table_enable=True, failover=False, extra={"new_field": 1, "model": "not this"}),
    )
    _, transport = submitted(ACCEPTED, request)
    fetch, call = transport.calls
    assert (fetch.method, fetch.url, dict(fetch.headers)) == ("GET", request.url, {})
    assert (call.method, call.url) == ("POST", "https://ai.gitee.com/v1/async/documents/parse")
    assert call.headers == {"X-Failover-Enabled": "false", "Authorization": "Bearer secret-of-tests"}
    assert call.multipart is not None
    parts: Any = {name: part[0] if isinstance(part, list) else part for name, part in call.multipart.items()}
    assert {name: part.content for name, part in parts.items() if name != "file"} == {
        "table_enable": "true",
        "new_field": "1",
        "model": "Unlimited-OCR",
        "end_pages": "5",
    }
    assert (parts["file"].filename, parts["file"].content_type) == ("a.pdf", "application/octet-stream")


@pytest.mark.parametrize(
    ("url", "name", "expected"),
    [
        ("https://h.example/x/a.pdf?sig=1", None, "a.pdf"),
        ("https://h.example/x/a.pdf", "report", "report.pdf"),
        ("https://h.example/x/a.pdf", "report.docx", "report.docx"),
        ("https://h.example/x/a", None, "a.tmp"),
        ("https://h.example/", None, "document.tmp"),
        ("https://h.example/a.notasuffixatall", "b", "b.tmp"),
    ],
)
def test_the_document_has_a_name_with_a_suffix(url: str, name: str | None, expected: str) -> None:
    """The vendor tells the kind of a document by it."""
    _, transport = submitted(ACCEPTED, OcrRequest(url=url, file_name=name))
    parts: Any = transport.calls[-1].multipart
    assert parts["file"][0].filename == expected


def test_a_submit_that_failed_for_want_of_room_is_a_throttle() -> None:
    """Trap 2: the vendor says 200 and a failed task, and means "not now"."""
    full = {"task_id": "T9", "status": "failure", "output": {"error": "Too many tasks are running"}}
    with pytest.raises(ThrottledError, match="no room"):
        submitted(reply(full))


def test_a_submit_that_failed_for_another_reason_fails() -> None:
    """What waiting does not cure is told at once."""
    result, _ = submitted(reply({"task_id": "T9", "status": "failure", "output": {"error": "no such font"}}))
    assert (result.status, result.error.message) == (TaskStatus.FAILED, "no such font")


def test_the_rate_limit_of_the_old_gateway_is_a_throttle() -> None:
    """Trap 1: HTTP 200 with an error code, on submit and on query."""
    limited = reply({"error_code": 18, "error_msg": "Open api qps request limit reached"})
    with pytest.raises(ThrottledError):
        submitted(limited)
    with pytest.raises(ThrottledError):
        queried(limited)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"error": {"code": "E7", "type": "t", "message": "m"}}, "E7", "m"),
        ({"error": "broken", "message": "the file is broken"}, "failed", "the file is broken"),
        ({"error": "broken"}, "failed", "broken"),
        ({"error_code": 12, "error_message": "m"}, "12", "m"),
        ({"output": {"error": "no such page"}}, "failed", "no such page"),
        ({}, "failed", "the vendor says that the job failed"),
    ],
)
def test_a_failure_is_read_in_all_of_its_shapes(body: dict[str, Any], code: str, message: str) -> None:
    """The adapter that this follows broke on an error that is a plain text."""
    result = queried(reply({"task_id": "T1", "status": "FAILED", **body}))
    assert result.error is not None
    assert (result.error.code, result.error.message) == (code, message)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"markdown": "# A", "text": "A"}, "# A"),
        ({"md": "# A"}, "# A"),
        ({"segments": [{"index": 1, "content": "a"}, {"index": 0, "content": "b"}]}, "a\nb"),
        ({"text": "A"}, "A"),
        ({"text_result": "A"}, "A"),
        ({"pages": [{"page_index": 0, "text_result": "A"}, {"page_index": 1, "text_result": "B"}]}, "A\n\nB"),
        ("# A", "# A"),
        ({"json_url": "https://f.example/a.json"}, ""),
    ],
)
def test_the_text_is_found_under_all_of_its_names(output: object, expected: str) -> None:
    """Segments stay in the order of the list, whatever their indexes say."""
    assert response_of(output).markdown == expected


def test_all_files_are_listed() -> None:
    """What is offered for download is kept as a link, by our types where there is one."""
    output = {
        "markdown": "# A",
        "content_list_url": "https://f.example/l.json",
        "zip_url": "https://f.example/a.zip",
        "files": [
            {"type": "docx", "url": "https://f.example/a.docx"},
            {"format": "MD", "file_url": "https://f.example/a.md"},
            {},
        ],
        "file_url": "ftp://f.example/x",
    }
    assert [(file.type, file.url) for file in response_of(output).resources] == [
        ("json", "https://f.example/l.json"),
        ("archive", "https://f.example/a.zip"),
        ("docx", "https://f.example/a.docx"),
        ("markdown", "https://f.example/a.md"),
    ]


def test_a_job_that_is_done_without_a_result_failed() -> None:
    """Success with nothing in it is no success, and waiting does not help."""
    result = queried(reply({"task_id": "T1", "status": "success", "output": {}}))
    assert result.error is not None
    assert result.error.code == "no_result"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"table_enabled": True}, UnknownNameError),
        ({"table_enable": "yes"}, ValidationError),
        ({"end_pages": 0}, ValidationError),
        ({"output_format": "html"}, ValidationError),
        ({"extra": 5}, ValidationError),
    ],
)
def test_an_option_that_means_nothing_is_refused_before_it_is_stored(
    options: dict[str, Any], error: type[Exception]
) -> None:
    """A misspelt option that is passed on would be found out from a bill."""
    with pytest.raises(error, match=r"did you mean 'table_enable'|must be"):
        GiteeHandler().validate(attrs.evolve(REQUEST, options=options))


@pytest.mark.parametrize("pages", ["2-3", "1,3"])
def test_pages_that_the_vendor_cannot_choose_are_refused(pages: str) -> None:
    """The vendor knows a last page only."""
    with pytest.raises(ValidationError, match="pages"):
        GiteeHandler().validate(attrs.evolve(REQUEST, pages=pages))
