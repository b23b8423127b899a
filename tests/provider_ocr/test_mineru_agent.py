"""``ocr:mineru-agent``: the contract, uploads, and its life, live; no call of it carries a key."""

from pathlib import Path
from typing import Any

import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.errors import NotSentError, RejectedError, ValidationError
from coatcheck.http import Reply
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import PATIENCE, SECRET, Live
from coatcheck_ocr.mineru import MinerUAgentHandler, MinerUAgentOptions
from coatcheck_ocr.model import OcrRequest
from coatcheck_ocr.sandbox.mineru import MinerUAgentSandbox

BASE = "https://mineru.net/api/v1/agent"
REQUEST = OcrRequest(url="https://documents.example/a.pdf")


def envelope(data: Any) -> Reply:
    """Return a reply in the vendor's envelope."""
    return reply({"code": 0, "msg": "ok", "trace_id": "t1", "data": data})


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> MinerUAgentHandler:
        """Return the handler."""
        return MinerUAgentHandler()

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        done = {"task_id": "T1", "state": "done", "markdown_url": "https://f.example/a.md"}
        failed = {"task_id": "T1", "state": "failed", "err_code": -30003, "err_msg": "too many pages"}
        return {
            "accepted": envelope({"task_id": "T1"}),
            "running": envelope({"task_id": "T1", "state": "running"}),
            "unknown_word": envelope({"task_id": "T1", "state": "polishing"}),
            "succeeded": [envelope(done), reply("# A\n\n![x](images/x.png)")],
            "failed": envelope(failed),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("T1"), QueryParams("T1", base_url=BASE, kind="agent")]


class TestLive(VendorMatrix):
    """The whole life against the sandbox, which refuses every call that carries credentials."""

    handler_type = MinerUAgentHandler
    sandbox_type = MinerUAgentSandbox
    path = "/api/v1/agent"

    def test_live_no_secret_is_written_anywhere(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A key that somebody configured all the same goes nowhere, not even to the vendor."""
        with self.living(tmp_path) as live:
            live.run("a.pdf")
            assert live.sandbox.requests
            assert not any(SECRET in str(request) for request in live.sandbox.requests)

    def test_live_a_refused_key_says_so(self, tmp_path: Path) -> None:
        """There is no key to refuse: nothing is looked up, and the document is read."""
        with self.living(tmp_path) as live:
            live.house.manager.accounts = None  # type: ignore[assignment]  # a look-up would be an error
            assert live.run("a.pdf").status is TaskStatus.SUCCEEDED

    def test_live_a_local_file_is_uploaded_and_read(self, live: Live, tmp_path: Path) -> None:
        """The file goes up from here, and the task holds its id only."""
        path = tmp_path / "a~queued=1.pdf"
        path.write_text("content")
        assert isinstance(live.handler, MinerUAgentHandler)
        request = live.handler.upload(path)
        response = live.house.result(live.house.submit(request).id, PATIENCE)
        assert response.markdown.startswith("# a~queued=1.pdf")
        assert f"]({live.url}/ocr-mineru-agent/storage/" in response.markdown


def test_the_calls_are_what_the_vendor_wants() -> None:
    """Method, path and fields, and no key."""
    request = OcrRequest(
        url=REQUEST.url, pages="1-3", options=MinerUAgentOptions(language="en", is_ocr=False)
    )
    transport = ScriptedTransport([envelope({"task_id": "T1"})])
    result = MinerUAgentHandler().submit(request, submit_context(transport))
    (call,) = transport.calls
    assert (call.method, call.url, dict(call.headers)) == ("POST", f"{BASE}/parse/url", {})
    assert call.json == {"url": request.url, "page_range": "1-3", "language": "en", "is_ocr": False}
    assert result.query_params is not None
    transport = ScriptedTransport([envelope({"task_id": "T1", "state": "pending"})])
    MinerUAgentHandler().query(result.query_params, query_context(transport))
    (call,) = transport.calls
    assert (call.method, call.url, dict(call.headers)) == ("GET", f"{BASE}/parse/T1", {})


def test_an_upload_is_what_the_vendor_wants(tmp_path: Path) -> None:
    """One ask and one PUT, which begins the reading; the submit makes no call."""
    path = tmp_path / "b.docx"
    path.write_bytes(b"content")
    place = "https://storage.example/1?signature=s"
    transport = ScriptedTransport([envelope({"task_id": "T/1", "file_url": place}), Reply(200)])
    request = MinerUAgentHandler().upload(path, transport=transport, options={"enable_table": True})
    ask, put = transport.calls
    assert (ask.method, ask.url, dict(ask.headers)) == ("POST", f"{BASE}/parse/file", {})
    assert ask.json == {"file_name": "b.docx", "enable_table": True}
    assert (put.method, put.url, dict(put.headers), put.body) == ("PUT", place, {}, b"content")
    result = MinerUAgentHandler().submit(request, submit_context(ScriptedTransport([])))
    assert result.query_params == QueryParams("T/1", base_url=BASE, kind="agent")


def test_an_answer_without_a_place_is_no_upload(tmp_path: Path) -> None:
    """Nothing was sent, so the upload may be tried again."""
    path = tmp_path / "b.docx"
    path.write_bytes(b"content")
    with pytest.raises(NotSentError, match="file_url"):
        MinerUAgentHandler().upload(path, transport=ScriptedTransport([envelope({"task_id": "T1"})]))


@pytest.mark.parametrize("code", [-30001, -30002, -30003, -30004])
def test_a_document_that_is_too_much_is_refused(code: int) -> None:
    """Trap 1: HTTP 200 with an error code."""
    transport = ScriptedTransport([reply({"code": code, "msg": "no"})])
    with pytest.raises(RejectedError) as caught:
        MinerUAgentHandler().submit(REQUEST, submit_context(transport))
    assert caught.value.code == str(code)


def test_a_model_is_refused() -> None:
    """There is none to choose."""
    with pytest.raises(ValidationError, match="model"):
        MinerUAgentHandler().validate(OcrRequest(url=REQUEST.url, model="vlm"))
