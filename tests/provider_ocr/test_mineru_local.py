"""``ocr:mineru-local`` and its older generation: contracts, both steps of a result, and their lives, live."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.accounts import Accounts
from coatcheck.errors import (
    NotReadyError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Reply
from coatcheck.model import QueryResult
from coatcheck.sandbox import Script
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, answered_by, reply
from coatcheck.testing.vendor_matrix import SECRET, Live
from coatcheck_ocr.mineru_local import (
    MinerULocalHandler,
    MinerULocalOptions,
    MinerUV3Handler,
    MinerUV3Options,
)
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.sandbox.documents import archive
from coatcheck_ocr.sandbox.mineru_local import MinerULocalSandbox, MinerUV3Sandbox

BASE = "http://10.0.0.7:8000"
REQUEST = OcrRequest(url="https://documents.example/reports/a.pdf", model="flash")
DOCUMENT = Reply(200, b"%PDF-1.4 invented", {"Content-Type": "application/pdf"})


@attrs.frozen
class Named:
    """Stands for a job of a sandbox: its name alone counts."""

    name: str


ZIP = Reply(200, archive(Named("a.pdf")), {"Content-Type": "application/zip"})  # type: ignore[arg-type]  # see Named


def shown(status: str, file_status: str | None = None, **file: Any) -> dict[str, Any]:
    """Return what a server of version 4 says about a job."""
    return {
        "task_id": "job_0a",
        "status": status,
        "progress": {"completed": 0, "failed": 0, "total": 1},
        "files": [{"file_id": "f1", "name": "a.pdf", "status": file_status or status, **file}],
        "status_url": "/v1/tasks/job_0a",
        "result_url": "/v1/tasks/job_0a/result",
    }


ACCEPTED = reply(shown("queued"), 202)
BROKEN = {"type": "engine_error", "code": "parse_failed", "message": "Unsupported file type", "param": None}


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> MinerULocalHandler:
        """Return the handler."""
        return MinerULocalHandler(BASE)

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": [DOCUMENT, ACCEPTED],
            "running": reply(shown("running")),
            "unknown_word": reply(shown("postprocessing")),
            "succeeded": [reply(shown("completed", output_files={"zip": {"file_id": "f2"}})), ZIP],
            "failed": reply(shown("failed", error=BROKEN)),
            "cancel_done": reply(shown("canceled")),
            "cancel_accepted": reply(shown("running")),
            "cancel_refused": reply({"error": {"code": "job_already_terminal", "message": "it ended"}}, 409),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("job_0a"), QueryParams("job_0a", base_url=BASE)]


class TestV3Contract(HandlerContract):
    """The rules that every handler keeps, for the older generation."""

    @pytest.fixture
    def handler(self) -> MinerUV3Handler:
        """Return the handler."""
        return MinerUV3Handler(BASE)

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return OcrRequest(url=REQUEST.url)

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        task = {"task_id": "t1", "backend": "pipeline", "file_names": ["a"]}
        return {
            "accepted": [DOCUMENT, reply({**task, "status": "pending", "queued_ahead": 0}, 202)],
            "running": reply({**task, "status": "processing"}),
            "unknown_word": reply({**task, "status": "cooling"}),
            "succeeded": [reply({**task, "status": "completed"}), ZIP],
            "failed": reply({**task, "status": "failed", "error": "the file is damaged"}),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("t1"), QueryParams("t1", base_url=BASE)]


class Both(VendorMatrix):
    """What both generations have beside the common matrix."""

    @pytest.mark.parametrize("fault", ["500", "html", "truncate", "409", "404"])
    def test_live_a_result_that_is_no_archive_is_asked_for_again(self, live: Live, fault: str) -> None:
        """Trap 5: the second step may fail like any call, and says nothing about the job."""
        response = live.response(f"a~on_result={fault}+{fault}.pdf")
        assert response.markdown.startswith(f"# a~on_result={fault}+{fault}.pdf")
        assert live.sandbox.counts["submit"] == 1


class TestLive(Both):
    """The whole life against the sandbox."""

    handler_type = MinerULocalHandler
    sandbox_type = MinerULocalSandbox

    def test_live_the_server_may_fetch_the_document(self, live: Live) -> None:
        """Then nothing is fetched here, and the job is the same."""
        response = live.response("b.pdf", options=MinerULocalOptions(server_fetches=True))
        assert response.markdown.startswith("# b.pdf")


class TestV3Live(Both):
    """The whole life against the sandbox, which refuses every call that carries credentials."""

    handler_type = MinerUV3Handler
    sandbox_type = MinerUV3Sandbox

    def test_live_no_secret_is_written_anywhere(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A key that somebody configured all the same goes nowhere."""
        with self.living(tmp_path) as live:
            live.run("a.pdf")
            assert live.sandbox.requests
            assert not any(SECRET in str(request) for request in live.sandbox.requests)

    def test_live_a_refused_key_says_so(self, tmp_path: Path) -> None:
        """There is no key to refuse: the document is read with whatever the account holds."""
        with self.living(tmp_path) as live:
            assert live.run("a.pdf").status is TaskStatus.SUCCEEDED


def submitted(
    answer: Reply, request: OcrRequest = REQUEST, *, is_fetched: bool = True
) -> tuple[Any, list[Call]]:
    """Submit over scripted replies."""
    transport = ScriptedTransport([DOCUMENT, answer] if is_fetched else [answer])
    return MinerULocalHandler(BASE).submit(request, submit_context(transport)), transport.calls


def queried(*answers: Reply) -> tuple[QueryResult, list[Call]]:
    """Query over scripted replies."""
    transport = ScriptedTransport(answers)
    return MinerULocalHandler(BASE).query(QueryParams("job_0a"), query_context(transport)), transport.calls


def parts_of(call: Call) -> dict[str, Any]:
    """Return what a multipart body holds: texts, lists of texts, or the names of files."""
    assert call.multipart is not None
    found: dict[str, Any] = {}
    for name, given in call.multipart.items():
        values = [part.filename or part.content for part in given]  # type: ignore[union-attr]  # always lists here
        found[name] = values[0] if len(values) == 1 else values
    return found


def test_options_stand_in_the_query_of_an_upload() -> None:
    """Trap 14: the body holds the document and nothing else; the tier is always named where one is known."""
    request = attrs.evolve(
        REQUEST, pages="1-3,7", options=MinerULocalOptions(ocr_mode="txt", output_formats=("middle_json",))
    )
    _, (fetch, call) = submitted(ACCEPTED, request)
    assert (fetch.method, fetch.url, dict(fetch.headers)) == ("GET", request.url, {})
    assert (call.method, call.url) == ("POST", f"{BASE}/v1/tasks")
    assert call.query == {
        "tier": "flash",
        "ocr_mode": "txt",
        "page_range": "1-3,7",
        "output_formats": ["middle_json", "zip"],
    }
    assert call.headers == {"Authorization": "Bearer secret-of-tests"}
    assert parts_of(call) == {"files": "a.pdf"}


def test_a_url_for_the_server_stands_in_json() -> None:
    """Then the options stand in the body, and the pages at the file."""
    request = attrs.evolve(REQUEST, pages="2", options={"server_fetches": True, "ocr_mode": "ocr"})
    _, (call,) = submitted(ACCEPTED, request, is_fetched=False)
    assert (call.method, call.url, dict(call.query)) == ("POST", f"{BASE}/v1/tasks", {})
    assert call.json == {
        "tier": "flash",
        "ocr_mode": "ocr",
        "files": [{"source": {"type": "url", "url": request.url}, "page_range": "2"}],
        "output_formats": ["zip"],
    }


@pytest.mark.parametrize(
    ("url", "name", "expected"),
    [
        ("https://h.example/a.docx?x=1", None, "a.docx"),
        ("https://h.example/a.docx", "b", "b.docx"),
        ("https://h.example/a.docx", "b.pdf", "b.pdf"),
        ("https://h.example/a", "b", "b"),
    ],
)
def test_the_document_keeps_its_suffix(url: str, name: str | None, expected: str) -> None:
    """The server tells the kind of a document by it."""
    _, (_, call) = submitted(ACCEPTED, OcrRequest(url=url, file_name=name))
    assert parts_of(call)["files"] == expected


def test_a_result_takes_a_second_call() -> None:
    """Trap 5: the status holds no content; the archive is fetched in the same step, with the key."""
    files = {"markdown": None, "middle_json": {"file_id": "f3", "bytes": 9}, "zip": {"file_id": "f/2"}}
    done = shown("completed", parse={"parser_version": "4.0.12", "duration_ms": 7}, output_files=files)
    result, (query, fetch) = queried(reply(done), ZIP)
    assert (query.method, query.url) == ("GET", f"{BASE}/v1/tasks/job_0a")
    assert (fetch.method, fetch.url, dict(fetch.query)) == (
        "GET",
        f"{BASE}/v1/tasks/job_0a/result",
        {"response_format": "zip"},
    )
    assert fetch.headers == {"Authorization": "Bearer secret-of-tests"}
    response = result.result
    assert isinstance(response, OcrResponse)
    assert response.markdown.startswith("# a.pdf")
    assert [(file.type, file.url) for file in response.resources] == [
        ("middle_json", f"{BASE}/v1/files/f3/content"),
        ("archive", f"{BASE}/v1/files/f%2F2/content"),
    ]
    assert dict(response.metadata) == {"parser_version": "4.0.12", "duration_ms": 7}
    assert result.expires_after is not None


def test_relative_links_are_not_needed() -> None:
    """Trap 11: paths are made of the id, whatever the links say."""
    odd = {**shown("completed"), "status_url": "//evil.example/x", "result_url": "http://evil.example/y"}
    _, calls = queried(reply(odd), ZIP)
    assert all(call.url.startswith(f"{BASE}/v1/tasks/job_0a") for call in calls)


def test_a_result_that_is_not_ready_is_waited_for() -> None:
    """Trap 5: 202 is no result, though it is a success of the call."""
    with pytest.raises(NotReadyError):
        queried(reply(shown("completed")), reply(shown("running"), 202))


def test_a_result_that_is_refused_is_asked_about_again() -> None:
    """409 contradicts the status that was just read; the next query sees which holds."""
    with pytest.raises(VendorError) as caught:
        queried(reply(shown("completed")), reply(shown("failed"), 409))
    assert caught.value.code == "result_refused"


@pytest.mark.parametrize(
    ("status", "file_status", "expected"),
    [
        ("partial", "completed", TaskStatus.SUCCEEDED),
        ("partial", "failed", TaskStatus.FAILED),
        ("completed", "failed", TaskStatus.FAILED),
    ],
)
def test_a_part_that_failed_is_not_taken_for_a_success(
    status: str, file_status: str, expected: TaskStatus
) -> None:
    """Trap 3: of a job that is done in part, the status of our document counts."""
    error = BROKEN if file_status == "failed" else None
    answers = [reply(shown(status, file_status, error=error))]
    result, _ = queried(*answers, *([ZIP] if expected is TaskStatus.SUCCEEDED else []))
    assert result.status is expected
    if result.error is not None:
        assert (result.error.code, result.error.message) == ("parse_failed", "Unsupported file type")


def test_a_job_that_ended_cannot_be_stopped() -> None:
    """The server says 409, and the job's own end stays."""
    transport = ScriptedTransport(answered_by(MinerULocalSandbox(script=Script(at_once=True))))
    handler = MinerULocalHandler(BASE)
    request = attrs.evolve(REQUEST, options={"server_fetches": True})
    params = handler.submit(request, submit_context(transport)).query_params
    assert params is not None
    found = handler.cancel(params, query_context(transport))
    assert (found.outcome, found.message) == ("refused", "it has ended")
    assert (transport.calls[-1].method, transport.calls[-1].url) == ("DELETE", f"{BASE}/v1/tasks/job-1")


def test_a_tier_that_the_server_has_not_is_refused_for_good() -> None:
    """503 usually means "later"; here no waiting helps, and no job was made."""
    error = {"type": "engine_error", "code": "quality_tier_unavailable", "message": "Pass tier='flash'."}
    with pytest.raises(RejectedError, match="model") as caught:
        submitted(reply({"error": error}, 503))
    assert caught.value.code == "quality_tier_unavailable"


@pytest.mark.parametrize("body", [{"error": {"code": "engine_error", "message": "no"}}, "<html>busy</html>"])
def test_any_other_503_keeps_its_meaning(body: Any) -> None:
    """With a delay it is a throttle, without one nobody knows what became of the submit."""
    with pytest.raises(ThrottledError):
        submitted(reply(body, 503, headers={"Retry-After": "3"}))
    with pytest.raises(VendorError) as caught:
        submitted(reply(body, 503))
    assert type(caught.value) is VendorError


def test_a_server_without_a_key_is_asked_without_one() -> None:
    """Nothing is configured: nothing is sent. What is configured and cannot be read is an error."""
    call = Call("GET", f"{BASE}/v1/tasks/x")
    handler = MinerULocalHandler(BASE)
    bare = Accounts(environ={}).get(handler.account, handler.account_env)
    assert dict(handler.sign(call, bare).headers) == {}
    customary = Accounts(environ={"MINERU_API_KEY": "k"}).get(handler.account, handler.account_env)
    assert handler.sign(call, customary).headers == {"Authorization": "Bearer k"}
    table = {handler.account: {"secret": "env:NOT_SET_HERE"}}
    broken = Accounts(table, environ={}).get(handler.account, handler.account_env)
    with pytest.raises(UnknownNameError, match="NOT_SET_HERE"):
        handler.sign(call, broken)


def test_an_address_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no public one; the server's own variable is read, and ours wins."""
    for name in ("MINERU_API_URL", "COATCHECK_OCR_MINERU_LOCAL_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValidationError, match="MINERU_API_URL"):
        MinerULocalHandler().validate(REQUEST)
    monkeypatch.setenv("MINERU_API_URL", "http://a.example:8000/")
    assert MinerULocalHandler().base_url == "http://a.example:8000"
    monkeypatch.setenv("COATCHECK_OCR_MINERU_LOCAL_URL", "http://b.example:8000")
    assert MinerULocalHandler().base_url == "http://b.example:8000"


def v3(request: OcrRequest) -> tuple[Call, ...]:
    """Submit to the older generation."""
    transport = ScriptedTransport([DOCUMENT, reply({"task_id": "t1", "status": "pending"}, 202)])
    MinerUV3Handler(BASE).submit(request, submit_context(transport))
    return tuple(transport.calls)


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        (None, {}),
        ("1", {"start_page_id": "0", "end_page_id": "0"}),
        ("2-5", {"start_page_id": "1", "end_page_id": "4"}),
    ],
)
def test_the_older_generation_counts_pages_from_0(pages: str | None, expected: Mapping[str, str]) -> None:
    """Trap 12: our pages begin at 1, whatever the server counts from."""
    _, call = v3(OcrRequest(url=REQUEST.url, pages=pages))
    found = parts_of(call)
    assert {name: value for name, value in found.items() if name.endswith("_page_id")} == expected


def test_the_older_generation_gets_its_own_fields() -> None:
    """All in the body as text, several of one name where it is a list, and no key."""
    options = MinerUV3Options(lang_list=("ch", "en"), table_enable=False)
    _, call = v3(OcrRequest(url=REQUEST.url, model="pipeline", options=options))
    assert (call.method, call.url, dict(call.headers)) == ("POST", f"{BASE}/tasks", {})
    assert parts_of(call) == {
        "lang_list": ["ch", "en"],
        "table_enable": "false",
        "backend": "pipeline",
        "return_md": "true",
        "return_images": "true",
        "response_format_zip": "true",
        "files": "a.pdf",
    }


def test_the_older_generation_reads_one_range() -> None:
    """Several ranges cannot be said to it."""
    with pytest.raises(ValidationError, match="one range"):
        MinerUV3Handler(BASE).validate(OcrRequest(url=REQUEST.url, pages="1,3"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ocr_modes": "txt"}, UnknownNameError),
        ({"ocr_mode": "text"}, ValidationError),
        ({"output_formats": ["docx"]}, ValidationError),
        ({"server_fetches": "yes"}, ValidationError),
    ],
)
def test_an_option_that_means_nothing_is_refused_before_it_is_stored(
    options: dict[str, Any], error: type[Exception]
) -> None:
    """The server refuses them too, but only after the upload."""
    with pytest.raises(error, match=r"ocr_mode|must be"):
        MinerULocalHandler(BASE).validate(attrs.evolve(REQUEST, options=options))
