"""``ocr:paddleocr``: the contract from recorded replies, both forms of a submit, and its life, live."""

from typing import Any

import attrs
import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus, codec
from coatcheck.errors import (
    HandlerError,
    JobNotFoundError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Reply
from coatcheck.model import QueryResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import Live
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.paddleocr import PaddleHandler, PaddleOptions
from coatcheck_ocr.sandbox.paddleocr import PaddleSandbox

URL = "https://documents.example/reports/a.pdf"
REQUEST = OcrRequest(url=URL, options={"merge_tables": True})
JOBS = "https://paddleocr.aistudio-app.com/api/v2/ocr/jobs"
DOCUMENT = Reply(200, b"%PDF-1.4 invented", {"Content-Type": "application/pdf"})


def ok(**data: Any) -> Reply:
    """Return a reply without an error."""
    return reply({"code": 0, "msg": "ok", "data": data})


def trouble(code: int, status: int = 200) -> Reply:
    """Return an error."""
    return reply({"code": code, "msg": "invented"}, status)


def lines(*results: Any) -> Reply:
    """Return a result as the vendor stores it: one JSON value a line."""
    return reply(b"\n".join(codec.dumps({"result": result}) for result in results) + b"\n")


def layout(text: str, **images: str) -> dict[str, Any]:
    """Return one page of a document model."""
    return {"markdown": {"text": text, "images": images}, "outputImages": {}, "prunedResult": {}}


ACCEPTED = ok(jobId="J1")
DONE = ok(
    state="done",
    extractProgress={"totalPages": 2, "extractedPages": 2},
    resultUrl={"jsonUrl": "https://bos.example/a.jsonl", "markdownUrl": "https://bos.example/a.md"},
)
RESULT = lines(
    {"layoutParsingResults": [layout("# A"), layout("B")], "dataInfo": {}},
    {"layoutParsingResults": [layout("C")]},
)


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> PaddleHandler:
        """Return the handler."""
        return PaddleHandler()

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": ACCEPTED,
            "running": ok(state="running", extractProgress={"totalPages": 4, "extractedPages": 1}),
            "unknown_word": ok(state="preheating"),
            "succeeded": [DONE, RESULT],
            "failed": ok(state="failed", errorMsg="page 2 is broken"),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [
            QueryParams("J1"),
            QueryParams("J1", base_url=PaddleHandler.base_url, kind="job", pages="2-3"),
        ]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = PaddleHandler
    sandbox_type = PaddleSandbox

    @pytest.mark.parametrize("upload", [None, True], ids=["url", "file"])
    def test_live_a_document_is_read_by_its_url_or_as_a_file(self, live: Live, upload: bool | None) -> None:  # noqa: FBT001  # a parameter of the test
        """It is the same job for the vendor, with the same options."""
        response = live.response("a.pdf", options=PaddleOptions(upload=upload, merge_tables=True))
        assert response.markdown.startswith("# a.pdf")
        assert response.markdown.endswith("The second page.")
        assert f"]({live.url}/ocr-paddleocr/files/job-1/figure.png)" in response.markdown
        assert response.usage == {"page": 2}
        assert live.sandbox.jobs["job-1"].facts["optionalPayload"] == {"mergeTables": True}

    def test_live_a_model_of_lines_gives_its_text(self, live: Live) -> None:
        """PP-OCR reads lines, which are joined."""
        assert live.response("a.pdf", model="PP-OCRv6").markdown.startswith("# a.pdf\n\nA sandbox read this.")

    @pytest.mark.parametrize("fault", ["500", "html", "truncate", "garbage"])
    def test_live_a_result_that_is_not_whole_is_fetched_again(self, live: Live, fault: str) -> None:
        """A part of the lines is not the document."""
        response = live.response(f"a~on_result={fault}+{fault}.pdf")
        assert response.usage == {"page": 2}

    def test_live_a_result_that_is_gone_is_a_lost_job(self, live: Live) -> None:
        """A link that leads nowhere time after time is not waited for until the deadline."""
        task = live.run("a~on_result=404+404+404.pdf")
        assert task.error is not None
        assert (task.status, task.error.code) == (TaskStatus.FAILED, "job_lost")


def submitted(*answers: Reply, request: OcrRequest = REQUEST) -> tuple[Any, list[Call]]:
    """Submit over scripted replies."""
    transport = ScriptedTransport(answers)
    return PaddleHandler().submit(request, submit_context(transport)), transport.calls


def queried(*answers: Reply, params: QueryParams | None = None) -> tuple[QueryResult, list[Call]]:
    """Query over scripted replies."""
    transport = ScriptedTransport(answers)
    return PaddleHandler().query(params or QueryParams("J1"), query_context(transport)), transport.calls


def response_of(*answers: Reply, params: QueryParams | None = None) -> OcrResponse:
    """Return what is read out of replies."""
    found = queried(*answers, params=params)[0].result
    assert isinstance(found, OcrResponse)
    return found


OPTIONS = PaddleOptions(
    merge_tables=True,
    top_p=0.5,
    markdown_ignore_labels=("footer",),
    batch_id="batch-1",
    client_platform="tests",
    extra={"layoutThreshold": {"1": 0.5}},
)
PAYLOAD = {
    "mergeTables": True,
    "topP": 0.5,
    "markdownIgnoreLabels": ["footer"],
    "layoutThreshold": {"1": 0.5},
}


def test_a_url_is_submitted_as_json() -> None:
    """The options stand below optionalPayload, in the vendor's spelling; the model is always named."""
    result, (call,) = submitted(ACCEPTED, request=attrs.evolve(REQUEST, pages="2-3", options=OPTIONS))
    assert (call.method, call.url) == ("POST", JOBS)
    assert call.headers == {"Client-Platform": "tests", "Authorization": "Bearer secret-of-tests"}
    assert codec.loads(codec.dumps(call.json)) == {
        "fileUrl": URL,
        "model": "PaddleOCR-VL-1.6",
        "optionalPayload": PAYLOAD,
        "pageRanges": "2-3",
        "batchId": "batch-1",
    }
    assert result.query_params == QueryParams(
        "J1", base_url=PaddleHandler.base_url, kind="job", pages="2-3", client_platform="tests"
    )
    _, (call,) = queried(ok(state="pending"), params=result.query_params)
    assert call.headers == {"Client-Platform": "tests", "Authorization": "Bearer secret-of-tests"}


def test_a_file_is_submitted_with_its_options_as_json_text() -> None:
    """Trap 14: in a multipart body the options are one part of JSON text, not one part each."""
    options = {**OPTIONS, "upload": True}
    result, (fetch, call) = submitted(DOCUMENT, ACCEPTED, request=attrs.evolve(REQUEST, options=options))
    assert (fetch.method, fetch.url, dict(fetch.headers)) == ("GET", URL, {})
    assert (call.method, call.url, call.json) == ("POST", JOBS, None)
    assert call.multipart is not None
    parts: Any = {name: part[0] if isinstance(part, list) else part for name, part in call.multipart.items()}
    assert set(parts) == {"model", "optionalPayload", "batchId", "file"}
    assert codec.loads(parts["optionalPayload"].content) == PAYLOAD
    assert (parts["model"].content, parts["batchId"].content) == ("PaddleOCR-VL-1.6", "batch-1")
    assert (parts["file"].filename, parts["file"].content) == ("a.pdf", b"%PDF-1.4 invented")
    assert result.status is TaskStatus.SUBMITTED


def test_a_job_of_a_batch_is_asked_about_by_its_own_id() -> None:
    """Trap 15: an id of a batch looks the same and has another path; what was submitted is a job."""
    result, _ = submitted(ACCEPTED, request=attrs.evolve(REQUEST, options=PaddleOptions(batch_id="batch-1")))
    _, (call,) = queried(ok(state="pending"), params=result.query_params)
    assert (call.method, call.url) == ("GET", f"{JOBS}/J1")
    assert result.query_params["kind"] == "job"
    _, (call,) = queried(ok(state="pending"), params=QueryParams("batch/J1"))
    assert call.url == f"{JOBS}/batch%2FJ1"


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("code", [10010, 12002])
def test_a_full_queue_is_a_throttle_under_whatever_status(code: int, status: int) -> None:
    """Trap 1: 10010 comes with 400, which means "refused for good" elsewhere, and with 200."""
    with pytest.raises(ThrottledError):
        submitted(trouble(code, status))
    with pytest.raises(ThrottledError):
        queried(trouble(code, status))


@pytest.mark.parametrize("status", [200, 400, 403])
@pytest.mark.parametrize("code", [*range(10001, 10010), 12001, 19999])
def test_a_refused_submit_fails_with_the_vendors_code(code: int, status: int) -> None:
    """Trap 1: no job exists, under whatever status; the day's quota is back tomorrow."""
    with pytest.raises(RejectedError, match="invented") as caught:
        submitted(trouble(code, status))
    assert (caught.value.code, caught.value.retryable) == (str(code), code == 12001)


@pytest.mark.parametrize("code", [11001, 11002])
@pytest.mark.parametrize("status", [200, 400])
def test_a_job_that_the_vendor_does_not_have_is_missing(code: int, status: int) -> None:
    """Trap 1: unknown and expired jobs are told by a code; the life cycle looks more than once."""
    with pytest.raises(JobNotFoundError):
        queried(trouble(code, status))


def test_a_code_that_says_the_job_failed_ends_it() -> None:
    """Trap 1: the vendor's verdict may come as a code."""
    result, _ = queried(trouble(11003, 400))
    assert result.error is not None
    assert (result.status, result.error.code) == (TaskStatus.FAILED, "11003")


@pytest.mark.parametrize(
    "answer", [reply("<html>no</html>", 400), reply({}, 403), trouble(19999), trouble(1, 403)]
)
def test_a_query_that_is_refused_without_a_known_code_says_nothing_of_the_job(answer: Reply) -> None:
    """A proxy answers with 400 and 403, too."""
    with pytest.raises(VendorError):
        queried(answer)


@pytest.mark.parametrize("answer", [reply("<html>no</html>", 400), reply({}, 403)])
def test_a_submit_that_is_refused_without_a_code_is_refused(answer: Reply) -> None:
    """What the reply table says of 4xx holds for those that are read here."""
    with pytest.raises(RejectedError):
        submitted(answer)


@pytest.mark.parametrize(
    ("found", "progress"),
    [
        ({"totalPages": 4, "extractedPages": 1}, 25.0),
        ({"totalPages": 4, "extractedPages": 9}, 100.0),
        ({"totalPages": 0, "extractedPages": 0}, None),
        ({"totalPages": "4"}, None),
        (None, None),
    ],
)
def test_progress_is_the_share_of_pages(found: object, progress: float | None) -> None:
    """It is not made up where the vendor has not counted yet."""
    result, _ = queried(ok(state="running", extractProgress=found))
    assert result.progress == progress


def test_pages_are_joined_in_the_order_of_the_lines() -> None:
    """One line may hold several pages; all of them count."""
    result, (_, download) = queried(DONE, RESULT)
    response = result.result
    assert isinstance(response, OcrResponse)
    assert response.markdown == "# A\n\nB\n\nC"
    assert [(page.number, page.markdown) for page in response.pages] == [(1, "# A"), (2, "B"), (3, "C")]
    assert result.usage == {"page": 3}
    assert [(file.type, file.url) for file in response.resources] == [
        ("json", "https://bos.example/a.jsonl"),
        ("markdown", "https://bos.example/a.md"),
    ]
    assert (download.url, dict(download.headers)) == ("https://bos.example/a.jsonl", {})


def test_chosen_pages_have_their_numbers_in_the_document() -> None:
    """The result has only the pages that were asked for."""
    response = response_of(DONE, RESULT, params=QueryParams("J1", pages="2,7-8"))
    assert [page.number for page in response.pages] == [2, 7, 8]
    response = response_of(DONE, RESULT, params=QueryParams("J1", pages="2"))
    assert [page.number for page in response.pages] == [1, 2, 3]


def test_image_names_become_links_page_by_page() -> None:
    """Two pages may use one name for two pictures."""
    pages = [
        layout(
            f'![]({name}) <img src="{name}"> ![](other.png)', **{name: f"https://bos.example/{number}.png"}
        )
        for number, name in enumerate(["imgs/1.png", "imgs/1.png"])
    ]
    assert response_of(DONE, lines({"layoutParsingResults": pages})).markdown == "\n\n".join(
        f'![](https://bos.example/{n}.png) <img src="https://bos.example/{n}.png"> ![](other.png)'
        for n in (0, 1)
    )


def test_lines_of_text_are_joined() -> None:
    """Models of lines give no markdown."""
    pages = [{"prunedResult": {"rec_texts": ["a", "b"]}}, {"prunedResult": {}}, {"prunedResult": None}]
    response = response_of(DONE, lines({"ocrResults": pages}))
    assert response.markdown.rstrip() == "a\nb"
    assert len(response.pages) == 3


def test_a_result_without_pages_falls_back_to_the_markdown_file() -> None:
    """Lines of a shape that nobody knows are no reason to lose the text."""
    markdown = Reply(200, b"# From the file")
    assert response_of(DONE, lines({"newResults": []}, None), markdown).markdown == "# From the file"
    only = ok(state="DONE", resultUrl={"markdownUrl": "https://bos.example/a.md"})
    assert response_of(only, markdown).markdown == "# From the file"


def test_a_result_that_is_no_json_is_fetched_again() -> None:
    """Half a line is not the end of the document."""
    with pytest.raises(HandlerError, match="a line of JSON"):
        queried(DONE, reply(RESULT.body[:-20]))


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (None, {"use_textline_orientation": True}, ValidationError, "does not take use_textline_orientation"),
        ("PP-OCRv6", {"merge_tables": True}, ValidationError, "does not take merge_tables"),
        ("PP-StructureV3", {"top_p": 0.5}, ValidationError, "does not take top_p"),
        (None, {"merge_table": True}, UnknownNameError, "did you mean 'merge_tables'"),
        (None, {"top_p": 2}, ValidationError, "must be"),
        (None, {"min_pixels": 9, "max_pixels": 3}, ValidationError, "at most max_pixels"),
    ],
)
def test_an_option_that_the_model_does_not_take_is_refused(
    model: str | None, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """The vendor would refuse it with 10008, after the task has waited for its turn."""
    with pytest.raises(error, match=words):
        PaddleHandler().validate(attrs.evolve(REQUEST, model=model, options=options))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("PP-OCRv5", {"text_det_thresh": 0.3, "upload": True}),
        ("PP-StructureV3", {"use_table_recognition": True, "use_textline_orientation": False}),
        ("PaddleOCR-VL-1.5", {"top_p": 1, "batch_id": "b", "extra": {"new": 1}}),
        ("Model-Of-Tomorrow", {"top_p": 1, "use_textline_orientation": True}),
    ],
)
def test_an_option_that_the_model_takes_is_accepted(model: str, options: dict[str, Any]) -> None:
    """A model that this version does not know takes anything."""
    PaddleHandler().validate(attrs.evolve(REQUEST, model=model, options=options))
