"""``ocr:baidu``: the contract, the forms of credentials, the codes that come with 200, and its life, live."""

from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.errors import (
    HandlerError,
    JobNotFoundError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Reply, Token
from coatcheck.model import Account, QueryResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import PATIENCE, SECRET, Live
from coatcheck_ocr.baidu import BaiduHandler, BaiduOptions
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.sandbox.baidu import BaiduSandbox

URL = "https://documents.example/reports/a.pdf?signature=1"
REQUEST = OcrRequest(url=URL, options={"merge_tables": True})
PLACE = "https://aip.baidubce.com/rest/2.0/brain/online/v2"


def ok(**result: Any) -> Reply:
    """Return a reply without an error."""
    return reply({"log_id": "9", "error_code": 0, "error_msg": "", "result": result})


def trouble(code: object) -> Reply:
    """Return an error as the vendor has it, under 200."""
    return reply({"log_id": 9, "error_code": code, "error_msg": "invented"})


ACCEPTED = ok(task_id="task-A")
DONE = ok(
    task_id="task-A",
    status="success",
    task_error=None,
    markdown_url="https://bos.example/a.md",
    parse_result_url="https://bos.example/a.json",
)
MARKDOWN = Reply(200, b'# A\n\n<img src="https://bos.example/1.png?sig=x" alt="1"/>\n')
PARSED = reply(
    {
        "file_name": "a.pdf",
        "pages": [
            {"page_id": "p0", "page_num": 0, "text": "A", "meta": {"page_width": 800, "page_height": 600}},
            {"page_id": "p1", "page_num": 1, "text": "B"},
        ],
    }
)
TOKEN = reply({"access_token": "24.token-of-tests", "expires_in": 2592000})


class WithToken(BaiduHandler):
    """The handler for the contract's account, which has every part, with a token that needs no call."""

    def token_call(self, account: Account, last: Token | None) -> Token:
        """Return the secret itself."""
        return Token(account.secret())


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> BaiduHandler:
        """Return the handler."""
        return WithToken()

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": ACCEPTED,
            "running": ok(task_id="task-A", status="processing", task_error=None),
            "unknown_word": ok(task_id="task-A", status="preheating"),
            "succeeded": [DONE, PARSED, MARKDOWN],
            "failed": ok(task_id="task-A", status="failed", task_error="page 2 is broken"),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("task-A"), QueryParams("task-A", base_url=BaiduHandler.base_url, family="parser")]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = BaiduHandler
    sandbox_type = BaiduSandbox

    def request_for(self, name: str, url: str) -> OcrRequest:
        """Return a request with the script in the document's name: the vendor's longest URL is too short."""
        return attrs.evolve(self.request, url=f"{url}/documents/a.pdf", file_name=name)

    @pytest.mark.parametrize("model", ["PaddleOCR-VL", "Unlimited-OCR", "parser"])
    def test_live_every_family_is_asked_where_it_was_submitted(self, live: Live, model: str) -> None:
        """The same id means nothing to another family, so the family is kept with the task."""
        response = live.response("a.pdf", model=model)
        assert response.markdown.startswith("# a.pdf")
        assert f"]({live.url}/ocr-baidu/files/" in response.markdown
        assert response.usage == {"page": 1}

    @pytest.mark.parametrize("fault", ["500", "html", "truncate"])
    def test_live_a_download_that_fails_is_made_again(self, live: Live, fault: str) -> None:
        """The vendor is asked again, and gives a link again."""
        response = live.response(f"a~on_result={fault}+{fault}+{fault}.pdf")
        assert "sandbox read this" in response.markdown

    def test_live_a_result_that_is_gone_is_a_lost_job(self, live: Live) -> None:
        """A link that leads nowhere time after time is not waited for until the deadline."""
        task = live.run(f"a~on_result={'+'.join(['404'] * 6)}.pdf")
        assert task.error is not None
        assert (task.status, task.error.code) == (TaskStatus.FAILED, "job_lost")
        assert "result" in task.error.message

    def test_live_a_pair_of_keys_is_exchanged_once(self, tmp_path: Path) -> None:
        """All steps of an account use one access token, until the vendor refuses it."""
        with self.living_with_a_pair(tmp_path) as live:
            assert isinstance(live.sandbox, BaiduSandbox)
            assert live.run("a~polls=2.pdf").status is TaskStatus.SUCCEEDED
            assert live.run("b.pdf").status is TaskStatus.SUCCEEDED
            assert len(live.sandbox.issued) == 1
            live.sandbox.revoke()
            assert live.run("c.pdf").status is TaskStatus.SUCCEEDED
            assert len(live.sandbox.issued) == 2
            assert len(live.sandbox.jobs) == 3

    def test_live_a_token_that_is_refused_in_the_middle_is_replaced(self, tmp_path: Path) -> None:
        """A query under an expired token says nothing about the job."""
        with self.living_with_a_pair(tmp_path) as live:
            assert isinstance(live.sandbox, BaiduSandbox)
            task = live.house.submit(live.request("a~polls=3.pdf"))
            live.watch(task, lambda found: found.query_count > 0)
            live.sandbox.revoke()
            assert live.house.wait(task.id, PATIENCE).status is TaskStatus.SUCCEEDED
            assert len(live.sandbox.jobs) == 1

    def test_live_a_wrong_pair_of_keys_says_so(self, tmp_path: Path) -> None:
        """Whoever mistyped a secret key reads about the key, and nothing was submitted."""
        with self.living_with_a_pair(tmp_path, BaiduSandbox(tokens=["another"])) as live:
            task = live.run("a.pdf")
            assert live.sandbox.counts["submit"] == 0
        assert task.error is not None
        assert (task.status, task.error.code) == (TaskStatus.FAILED, "account_refused")

    def test_live_neither_key_nor_token_is_written_anywhere(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The token stands in the URL of every call: it must not come out of there (G8)."""
        with caplog.at_level("DEBUG"), self.living_with_a_pair(tmp_path) as live:
            assert isinstance(live.sandbox, BaiduSandbox)
            live.run("a~on_query=html+500.pdf")
            live.run("a~on_submit=reset.pdf")
            secrets = [SECRET, *live.sandbox.issued]
        content = b"".join(file.read_bytes() for file in tmp_path.glob("tasks.db*"))
        assert len(secrets) == 2
        assert content
        for secret in secrets:
            assert secret.encode() not in content
            assert secret not in caplog.text

    def living_with_a_pair(
        self, folder: Path, sandbox: BaiduSandbox | None = None
    ) -> AbstractContextManager[Live]:
        """Return what ``living`` does, for an account with an API key and a secret key."""

        class Pair(TestLive):
            parts = ("secret", "secret_key")

        return Pair().living(folder, sandbox)


def account(**parts: str) -> Account:
    """Return an account with these parts and no others."""

    def look_up(part: str) -> str:
        if part in parts:
            return parts[part]
        raise UnknownNameError.of("account", "tests", ())

    return Account("tests", look_up)


KEY = account(secret="bce-v3/key-of-tests")
STATIC = account(secret="static-token-of-tests")
PAIR = account(secret="api-key-of-tests", secret_key="secret-key-of-tests")


def submitted(
    *answers: Reply, whose: Account = KEY, request: OcrRequest = REQUEST, handler: BaiduHandler | None = None
) -> tuple[Any, list[Call]]:
    """Submit over scripted replies."""
    transport = ScriptedTransport(answers)
    context = attrs.evolve(submit_context(transport), account=whose)
    return (handler or BaiduHandler()).submit(request, context), transport.calls


def queried(
    *answers: Reply,
    whose: Account = KEY,
    params: QueryParams | None = None,
    handler: BaiduHandler | None = None,
) -> tuple[QueryResult, list[Call]]:
    """Query over scripted replies."""
    transport = ScriptedTransport(answers)
    context = attrs.evolve(query_context(transport), account=whose)
    return (handler or BaiduHandler()).query(params or QueryParams("task-A"), context), transport.calls


def test_the_submit_is_what_the_vendor_wants() -> None:
    """Path, bearer key, a form with true in small letters, the name with its suffix, and no model."""
    request = attrs.evolve(
        REQUEST,
        options=BaiduOptions(merge_tables=True, angle_adjust=False, extra={"dewarp": 1, "file_url": "x"}),
    )
    result, (call,) = submitted(ACCEPTED, request=request)
    assert (call.method, call.url, dict(call.query)) == ("POST", f"{PLACE}/paddle-vl-parser/task", {})
    assert call.headers == {"Authorization": "Bearer bce-v3/key-of-tests"}
    assert call.form == {
        "merge_tables": "true",
        "angle_adjust": "false",
        "dewarp": "1",
        "file_url": URL,
        "file_name": "a.pdf",
    }
    assert result.status is TaskStatus.SUBMITTED
    assert result.query_params == QueryParams(
        "task-A", base_url=BaiduHandler.base_url, family="paddle-vl-parser"
    )


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (None, "paddle-vl-parser"),
        ("PaddleOCR-VL-1.6-0.9B", "paddle-vl-parser"),
        ("Unlimited-OCR", "unlimited-ocr-parser"),
        ("parser", "parser"),
    ],
)
def test_the_model_decides_the_path_of_submit_and_query(model: str | None, family: str) -> None:
    """The model's name is never sent; the query goes to the family of the submit."""
    result, (call,) = submitted(ACCEPTED, request=attrs.evolve(REQUEST, model=model))
    assert call.url == f"{PLACE}/{family}/task"
    assert "model" not in (call.form or {})
    _, (call,) = queried(ok(status="pending"), params=result.query_params)
    assert (call.method, call.url) == ("POST", f"{PLACE}/{family}/task/query")
    assert call.form == {"task_id": "task-A"}


def test_an_access_token_goes_into_the_query() -> None:
    """A key of the old form is no bearer token."""
    _, (call,) = submitted(ACCEPTED, whose=STATIC)
    assert dict(call.query) == {"access_token": "static-token-of-tests"}
    assert "Authorization" not in call.headers


def test_a_pair_of_keys_is_exchanged_for_a_token() -> None:
    """One exchange serves submit and queries; only it carries the pair."""
    handler = BaiduHandler()
    _, (exchange, call) = submitted(TOKEN, ACCEPTED, whose=PAIR, handler=handler)
    assert (exchange.method, exchange.url) == ("POST", "https://aip.baidubce.com/oauth/2.0/token")
    assert dict(exchange.query) == {
        "grant_type": "client_credentials",
        "client_id": "api-key-of-tests",
        "client_secret": "secret-key-of-tests",
    }
    assert dict(call.query) == {"access_token": "24.token-of-tests"}
    _, (call,) = queried(ok(status="pending"), whose=PAIR, handler=handler)
    assert dict(call.query) == {"access_token": "24.token-of-tests"}


def test_a_token_lives_as_long_as_the_vendor_says() -> None:
    """Thirty days, by the vendor's own number; without one until it is refused."""
    handler = BaiduHandler()
    assert handler.read_token(TOKEN, PAIR) == Token("24.token-of-tests", timedelta(days=30))
    assert handler.read_token(reply({"access_token": "t"}), PAIR) == Token("t", None)


def test_a_refused_pair_of_keys_submits_nothing() -> None:
    """The vendor's reason is told, and the account's gate closes."""
    refused = reply({"error": "invalid_client", "error_description": "unknown client id"})
    with pytest.raises(RejectedError, match="unknown client id") as caught:
        submitted(refused, whose=PAIR)
    assert caught.value.code == "account_refused"
    assert caught.value.gate_delay
    with pytest.raises(HandlerError, match="access token"):
        submitted(reply({"expires_in": 5}), whose=PAIR)


@pytest.mark.parametrize("code", [100, 110, 111])
def test_a_token_that_is_refused_is_exchanged_again(code: int) -> None:
    """Trap 1: the vendor says 200 and means 401; the next call has a new token."""
    handler = BaiduHandler()
    with pytest.raises(NotSentError) as not_sent:
        submitted(TOKEN, trouble(code), whose=PAIR, handler=handler)
    assert not_sent.value.code == "token_refused"
    _, calls = submitted(TOKEN, ACCEPTED, whose=PAIR, handler=handler)
    assert len(calls) == 2
    with pytest.raises(VendorError) as failed:
        queried(trouble(code), whose=PAIR, handler=handler)
    assert failed.value.code == "token_refused"
    _, calls = queried(TOKEN, ok(status="pending"), whose=PAIR, handler=handler)
    assert len(calls) == 2


@pytest.mark.parametrize("whose", [KEY, STATIC], ids=["key", "token"])
@pytest.mark.parametrize("code", [100, 110, 111, 6, 14, 17, 19])
def test_a_refused_key_or_quota_closes_the_accounts_gate(code: int, whose: Account) -> None:
    """Trap 1: asking again with the same key or the same quota is of no use, and no job has failed."""
    with pytest.raises(RejectedError) as rejected:
        submitted(trouble(code), whose=whose)
    assert (rejected.value.code, bool(rejected.value.gate_delay)) == ("account_refused", True)
    with pytest.raises(VendorError) as failed:
        queried(trouble(code), whose=whose)
    assert (failed.value.code, bool(failed.value.gate_delay)) == ("account_refused", True)


@pytest.mark.parametrize(
    ("code", "delay"), [(18, timedelta(seconds=1)), (4, None), ("18", timedelta(seconds=1))]
)
def test_too_many_calls_are_a_throttle(code: object, delay: timedelta | None) -> None:
    """Trap 1: the limit of calls a second comes with 200; the next one is not for another second."""
    for ask in (submitted, queried):
        with pytest.raises(ThrottledError) as caught:
            ask(trouble(code))
        assert caught.value.delay == delay


@pytest.mark.parametrize(("code", "error"), [(1, VendorError), (282000, VendorError), (2, NotSentError)])
def test_an_error_inside_the_vendor_is_not_the_end(code: int, error: type[Exception]) -> None:
    """Trap 1: after "unknown" a job may exist, so nothing is sent again; a query is repeated in any case."""
    with pytest.raises(error):
        submitted(trouble(code))
    with pytest.raises(VendorError):
        queried(trouble(code))


@pytest.mark.parametrize("code", [3, 216100, 216101, 216200, 216201, 216202, 282003, 999])
def test_a_refused_request_fails_at_once(code: int) -> None:
    """Trap 1: no job was made, and the same request will be refused again."""
    with pytest.raises(RejectedError) as caught:
        submitted(trouble(code))
    assert (caught.value.code, caught.value.retryable) == (str(code), False)


@pytest.mark.parametrize("code", [216100, 216101, 282003])
def test_a_query_whose_parameter_is_refused_means_that_the_task_is_unknown(code: int) -> None:
    """The task is the only parameter of a query."""
    with pytest.raises(JobNotFoundError):
        queried(trouble(code))


def test_a_document_that_cannot_be_read_is_a_failure_of_the_job() -> None:
    """Trap 1: some codes end the job; after "recognition failed" a new one may go well."""
    result, _ = queried(trouble(216201))
    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("216201", False)
    result, _ = queried(trouble(282810))
    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("282810", True)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("quota used up", "failed", "quota used up"),
        ({"error_code": 17, "error_msg": "quota used up"}, "17", "quota used up"),
        (None, "failed", "the vendor says that the job failed"),
    ],
)
def test_the_reason_of_a_failed_task_is_told(error: object, code: str, message: str) -> None:
    """A quota can end while the task runs; the reason is in task_error then."""
    result, _ = queried(ok(task_id="task-A", status="failed", task_error=error))
    assert result.error is not None
    assert (result.error.code, result.error.message) == (code, message)


def test_the_result_has_text_pages_and_usage() -> None:
    """Both files are fetched without credentials; pages are counted, since the reply counts none."""
    result, calls = queried(DONE, PARSED, MARKDOWN)
    response = result.result
    assert isinstance(response, OcrResponse)
    assert response.markdown.startswith("# A")
    assert [(page.number, page.markdown, page.width, page.height) for page in response.pages] == [
        (1, "A", 800, 600),
        (2, "B", None, None),
    ]
    assert result.usage == {"page": 2}
    assert result.expires_after == timedelta(days=30)
    assert [(file.type, file.url) for file in response.resources] == [
        ("markdown", "https://bos.example/a.md"),
        ("json", "https://bos.example/a.json"),
    ]
    assert [dict(call.headers) for call in calls[1:]] == [{}, {}]
    assert [dict(call.query) for call in calls[1:]] == [{}, {}]


def test_a_result_without_its_parsed_form_is_whole() -> None:
    """One family gives markdown only, and a parsed result that is gone takes nothing with it."""
    only = ok(task_id="task-A", status="SUCCESS", markdown_url="https://bos.example/a.md")
    result, _ = queried(only, MARKDOWN)
    assert (result.status, result.usage) == (TaskStatus.SUCCEEDED, None)
    for gone in (Reply(404), Reply(403), reply({"pages": None}), reply([])):
        result, _ = queried(DONE, gone, MARKDOWN)
        assert (result.status, result.usage) == (TaskStatus.SUCCEEDED, None)


def test_a_parsed_result_beyond_all_measure_stays_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would fill the memory is not read for the sake of a count."""
    monkeypatch.setattr("coatcheck_ocr.baidu.PAGES_CAP", 20)
    result, _ = queried(DONE, PARSED, MARKDOWN)
    assert (result.status, result.usage) == (TaskStatus.SUCCEEDED, None)


@pytest.mark.parametrize(
    ("url", "name", "expected"),
    [
        ("https://h.example/x/a.pdf?sig=1", None, "a.pdf"),
        ("https://h.example/x/%E6%8A%A5%E5%91%8A.pdf", None, "报告.pdf"),
        ("https://h.example/x/a.pdf", "report", "report.pdf"),
        ("https://h.example/x", "report.docx", "report.docx"),
    ],
)
def test_the_document_has_a_name_with_its_suffix(url: str, name: str | None, expected: str) -> None:
    """The vendor tells the kind of a document by it."""
    request = OcrRequest(url=url, file_name=name)
    BaiduHandler().validate(request)
    _, (call,) = submitted(ACCEPTED, request=request)
    assert (call.form or {})["file_name"] == expected


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"url": "https://h.example/x"}, ValidationError, "suffix"),
        ({"url": f"https://h.example/{'x' * 1024}/a.pdf"}, ValidationError, "1024 bytes"),
        ({"pages": "1-3"}, ValidationError, "pages"),
        ({"model": "PaddleOCR-VLM"}, UnknownNameError, "did you mean 'PaddleOCR-VL'"),
        ({"options": {"merge_table": True}}, UnknownNameError, "did you mean 'merge_tables'"),
        ({"options": {"merge_tables": "true"}}, ValidationError, "must be"),
    ],
)
def test_what_the_vendor_could_not_read_is_refused(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Before anything is stored, with the reason."""
    with pytest.raises(error, match=words):
        BaiduHandler().validate(attrs.evolve(REQUEST, **changes))


def test_the_limits_that_the_vendor_names_hold_by_default() -> None:
    """Two submits and ten queries a second."""
    limits = {limit.side: limit.rate for limit in BaiduHandler.default_limits}
    assert {str(side): rate and (rate.count, rate.per) for side, rate in limits.items()} == {
        "submit": (2, timedelta(seconds=1)),
        "query": (10, timedelta(seconds=1)),
    }
