"""``ocr:textract``: the contract from recorded replies, the text that blocks become, and its life, live."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import attrs
import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus, codec
from coatcheck.errors import (
    ConfigError,
    HandlerError,
    JobNotFoundError,
    NotReadyError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Reply
from coatcheck.model import Account, QueryResult, SubmitContext, SubmitResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply, request_of
from coatcheck.testing.vendor_matrix import Live
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.sandbox.textract import TextractSandbox
from coatcheck_ocr.textract import TextractHandler, TextractOptions

REQUEST = OcrRequest(url="s3://invented-bucket/reports/a b.pdf")
ANALYSIS = attrs.evolve(REQUEST, options=TextractOptions(features=("TABLES", "LAYOUT")))
ACCEPTED = reply({"JobId": "J1"})
LINES: list[dict[str, Any]] = [
    {"BlockType": "PAGE", "Id": "p1", "Page": 1},
    {"BlockType": "LINE", "Id": "l1", "Page": 1, "Text": "A title"},
    {"BlockType": "LINE", "Id": "l2", "Page": 1, "Text": "and more"},
    {"BlockType": "WORD", "Id": "w1", "Page": 1, "Text": "more"},
    {"BlockType": "LINE", "Id": "l3", "Page": 2, "Text": "the end"},
]


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the machine's own AWS settings out of the tests."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_TEXTRACT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def _clock() -> Iterator[None]:
    """Let signatures be made at one time."""
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    with mock.patch("botocore.auth.get_current_datetime", return_value=now):
        yield


def done(*blocks: Mapping[str, Any], **more: Any) -> Reply:
    """Return the reply about a job that is done."""
    return reply({"JobStatus": "SUCCEEDED", "DocumentMetadata": {"Pages": 2}, "Blocks": list(blocks), **more})


def refusal(code: str, status: int = 400) -> Reply:
    """Return an error in the vendor's shape."""
    return reply({"__type": f"com.amazonaws.textract#{code}", "message": "invented"}, status)


@pytest.mark.usefixtures("_clock")
class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> TextractHandler:
        """Return the handler."""
        return TextractHandler(region="eu-west-1")

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return ANALYSIS

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": ACCEPTED,
            "running": reply({"JobStatus": "IN_PROGRESS"}),
            "unknown_word": reply({"JobStatus": "REHEATING"}),
            "succeeded": [done(*LINES[:2], NextToken="n1"), done(*LINES[2:])],
            "failed": reply({"JobStatus": "FAILED", "StatusMessage": "page 2 is broken"}),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        base_url = "https://textract.eu-west-1.amazonaws.com"
        return [
            QueryParams("J1"),
            QueryParams("J1", base_url=base_url, region="eu-west-1", api="analysis"),
        ]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = TextractHandler
    sandbox_type = TextractSandbox
    document = "s3://invented-bucket/{name}"
    parts = ("access_key", "secret_key")

    @pytest.mark.parametrize("features", [None, ("LAYOUT",)], ids=["text", "analysis"])
    def test_live_a_result_in_pages_is_read_to_its_end(
        self, live: Live, features: tuple[str, ...] | None
    ) -> None:
        """All pages in one query, by both interfaces, each by the operation that belongs to it."""
        response = live.response("a.pdf", options=TextractOptions(features=features))
        assert response.text.startswith("a.pdf\nA sandbox read this.")
        assert response.markdown.startswith("# a.pdf" if features else "a.pdf")
        assert live.sandbox.counts["result"] >= 3

    @pytest.mark.parametrize("fault", ["500", "html", "truncate", "429", "empty"])
    def test_live_a_page_that_is_lost_is_read_again(self, live: Live, fault: str) -> None:
        """A result with a hole in it is none: the next query reads all of it."""
        response = live.response(f"a~on_result=ok+{fault}.pdf")
        assert response.text.endswith("![figure](images/figure.png)")

    def test_live_a_repeated_token_with_other_input_says_so(self, live: Live) -> None:
        """The sandbox keeps the vendor's rule about tokens, so that a mistake of ours is seen here."""
        context = SubmitContext(
            task_id="t",
            idempotency_key="k",
            now=datetime(2026, 1, 2, tzinfo=UTC),
            account=Account("aws", lambda _: "some-key"),
            transport=ScriptedTransport(lambda call: live_answer(live, call)),
        )
        live.handler.submit(live.request("a.pdf"), context)
        live.handler.submit(live.request("a.pdf"), context)
        with pytest.raises(VendorError, match="IdempotentParameterMismatch"):
            live.handler.submit(live.request("b.pdf"), context)
        assert len(live.sandbox.jobs) == 1


def live_answer(live: Live, call: Call) -> Reply:
    """Let a sandbox answer a call in this process."""
    request = attrs.evolve(request_of(call), path="/")
    answer = live.sandbox(request)
    return Reply(answer.status, answer.body, answer.headers)


def submitted(
    answer: Reply = ACCEPTED, request: OcrRequest = REQUEST, key: str = "key-1", **parts: str
) -> tuple[SubmitResult, Call]:
    """Submit over a scripted reply; return the result and the call."""
    secrets = {"access_key": "AKINVENTED", "secret_key": "invented-secret", **parts}
    transport = ScriptedTransport([answer])
    context = attrs.evolve(
        submit_context(transport),
        idempotency_key=key,
        account=Account("aws", lambda part: _part(secrets, part)),
    )
    result = TextractHandler(region="eu-west-1").submit(request, context)
    return result, transport.calls[-1]


def _part(secrets: Mapping[str, str], part: str) -> str:
    if part not in secrets:
        raise UnknownNameError.of("account", "aws", ())
    return secrets[part]


def queried(*answers: Reply, params: QueryParams | None = None) -> QueryResult:
    """Query over scripted replies."""
    handler = TextractHandler(region="eu-west-1")
    return handler.query(params or QueryParams("J1"), query_context(ScriptedTransport(answers)))


def response_of(*blocks: Mapping[str, Any], **more: Any) -> OcrResponse:
    """Return what is read out of blocks."""
    found = queried(done(*blocks, **more)).result
    assert isinstance(found, OcrResponse)
    return found


def said(call: Call) -> Any:
    """Return the body of a call."""
    assert isinstance(call.body, bytes)
    return codec.loads(call.body)


@pytest.mark.usefixtures("_clock")
def test_the_submit_is_what_the_vendor_wants() -> None:
    """Method, address, headers, signature and every field."""
    options = TextractOptions(
        features=("QUERIES",),
        queries=("What is the total?",),
        version="v7",
        job_tag="invoices",
        sns_topic="arn:aws:sns:eu-west-1:000000000000:done",
        sns_role="arn:aws:iam::000000000000:role/textract",
        output_bucket="invented-results",
        output_prefix="ocr",
        kms_key="invented-key",
        extra={"AdaptersConfig": {"Adapters": []}, "ClientRequestToken": "not this"},
    )
    _, call = submitted(request=attrs.evolve(REQUEST, options=options), session_token="invented-token")
    assert (call.method, call.url) == ("POST", "https://textract.eu-west-1.amazonaws.com/")
    headers = {name.lower(): value for name, value in call.headers.items()}
    assert headers["content-type"] == "application/x-amz-json-1.1"
    assert headers["x-amz-target"] == "Textract.StartDocumentAnalysis"
    assert headers["x-amz-security-token"] == "invented-token"
    assert headers["x-amz-date"] == "20260102T030405Z"
    assert headers["authorization"].startswith(
        "AWS4-HMAC-SHA256 Credential=AKINVENTED/20260102/eu-west-1/textract/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, Signature="
    )
    assert said(call) == {
        "DocumentLocation": {
            "S3Object": {"Bucket": "invented-bucket", "Name": "reports/a b.pdf", "Version": "v7"}
        },
        "FeatureTypes": ["QUERIES"],
        "QueriesConfig": {"Queries": [{"Text": "What is the total?"}]},
        "ClientRequestToken": "key-1",
        "JobTag": "invoices",
        "NotificationChannel": {
            "SNSTopicArn": "arn:aws:sns:eu-west-1:000000000000:done",
            "RoleArn": "arn:aws:iam::000000000000:role/textract",
        },
        "OutputConfig": {"S3Bucket": "invented-results", "S3Prefix": "ocr"},
        "KMSKeyId": "invented-key",
        "AdaptersConfig": {"Adapters": []},
    }


def test_without_features_only_text_is_detected() -> None:
    """The cheaper interface is the default, and no session token is made up."""
    _, call = submitted()
    assert call.headers["X-Amz-Target"] == "Textract.StartDocumentTextDetection"
    assert "X-Amz-Security-Token" not in call.headers
    assert said(call) == {
        "DocumentLocation": {"S3Object": {"Bucket": "invented-bucket", "Name": "reports/a b.pdf"}},
        "ClientRequestToken": "key-1",
    }


@pytest.mark.parametrize("key", ["x" * 65, "order 7/ä"])
def test_a_key_that_is_no_client_token_is_made_one(key: str) -> None:
    """The same key gives the same token, another one another, and each is of the length that is allowed."""
    tokens = [said(submitted(key=one)[1])["ClientRequestToken"] for one in (key, key, key + "2")]
    assert tokens[0] == tokens[1] != tokens[2]
    assert len(tokens[0]) == 64


def test_the_query_matches_the_submit() -> None:
    """Trap 15: ids of both interfaces look alike, and only the one that made a job knows it."""
    result, _ = submitted(request=ANALYSIS)
    params = result.query_params
    assert params is not None
    assert (params["api"], params["region"]) == ("analysis", "eu-west-1")
    for stored, operation in (
        (params, "GetDocumentAnalysis"),
        (QueryParams("J1"), "GetDocumentTextDetection"),
    ):
        transport = ScriptedTransport([reply({"JobStatus": "IN_PROGRESS"})])
        TextractHandler(region="eu-west-1").query(stored, query_context(transport))
        assert transport.calls[0].headers["X-Amz-Target"] == f"Textract.{operation}"
        assert said(transport.calls[0]) == {"JobId": "J1", "MaxResults": 1000}


def test_all_pages_of_a_result_are_read() -> None:
    """Each page is asked for by the token of the one before; the text is whole."""
    transport = ScriptedTransport(
        [done(*LINES[:2], NextToken="n1"), done(LINES[2], NextToken="n2"), done(*LINES[3:])]
    )
    result = TextractHandler(region="eu-west-1").query(QueryParams("J1"), query_context(transport))
    assert [said(call).get("NextToken") for call in transport.calls] == [None, "n1", "n2"]
    assert isinstance(result.result, OcrResponse)
    assert result.result.text == "A title\nand more\n\nthe end"
    assert [(page.number, page.text) for page in result.result.pages] == [
        (1, "A title\nand more"),
        (2, "the end"),
    ]
    assert result.usage == {"page": 2}
    assert result.expires_after == timedelta(days=7)


@pytest.mark.parametrize(
    ("page", "error"),
    [
        (reply({"JobStatus": "IN_PROGRESS"}), NotReadyError),
        (reply({}), VendorError),
        (refusal("ThrottlingException"), ThrottledError),
        (refusal("ProvisionedThroughputExceededException"), ThrottledError),
        (refusal("InvalidParameterException"), VendorError),
    ],
)
def test_a_page_that_is_not_there_leaves_the_result_for_later(page: Reply, error: type[Exception]) -> None:
    """Trap 5: the second step may come before the content; half a document is never a result."""
    with pytest.raises(error):
        queried(done(*LINES[:2], NextToken="n1"), page)


def test_a_result_of_many_pages_is_read_in_one_query() -> None:
    """A long document of dense text comes in far more replies than a step may follow elsewhere."""
    pages = [
        done({"BlockType": "LINE", "Id": f"x{number}", "Text": "x"}, NextToken="n") for number in range(3000)
    ]
    result = queried(*pages, done(LINES[4]))
    assert isinstance(result.result, OcrResponse)
    assert result.result.pages[0].text == "\n".join("x" * 3000)
    assert result.result.pages[1].text == "the end"


def test_a_result_whose_pages_lead_in_a_circle_is_an_error_of_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is no success without its end, and no vendor may keep a worker for ever."""
    monkeypatch.setattr(TextractHandler, "follow_limit", 2)
    with pytest.raises(HandlerError) as caught:
        queried(*[done(LINES[1], NextToken="n") for _ in range(3)])
    assert caught.value.code == "too_many_follows"


def test_a_partial_success_shows_its_warnings() -> None:
    """Trap 3: "done" with parts missing is a result that says which."""
    warnings = [{"ErrorCode": "INVENTED", "Pages": [2]}]
    result = queried(
        reply(
            {"JobStatus": "PARTIAL_SUCCESS", "Blocks": LINES[:2], "Warnings": warnings, "StatusMessage": "m"}
        )
    )
    assert (result.status, result.provider_status) == (TaskStatus.SUCCEEDED, "PARTIAL_SUCCESS")
    assert isinstance(result.result, OcrResponse)
    assert result.result.metadata == {"warnings": warnings, "status_message": "m"}


@pytest.mark.parametrize("pages", [0, {"Pages": 1}])
def test_a_document_with_nothing_on_it_has_an_empty_text(pages: object) -> None:
    """A blank page is no failure; nor is a count that is no number."""
    result = queried(reply({"JobStatus": "SUCCEEDED", "DocumentMetadata": {"Pages": pages}, "Blocks": []}))
    assert isinstance(result.result, OcrResponse)
    assert (result.result.markdown, result.usage) == ("", None)


def relation(*ids: str, kind: str = "CHILD") -> list[dict[str, Any]]:
    """Return the relationships of a block."""
    return [{"Type": kind, "Ids": list(ids)}]


TABLE: list[dict[str, Any]] = [
    {"BlockType": "LINE", "Id": "l9", "Page": 1, "Text": "a b"},
    {"BlockType": "TABLE", "Id": "t1", "Page": 1, "Relationships": relation("c1", "c2", "c3")},
    {"BlockType": "CELL", "Id": "c1", "RowIndex": 1, "ColumnIndex": 1, "Relationships": relation("w8")},
    {"BlockType": "CELL", "Id": "c2", "RowIndex": 1, "ColumnIndex": 2, "Relationships": relation("w9", "s1")},
    {"BlockType": "CELL", "Id": "c3", "RowIndex": 2, "ColumnIndex": 1},
    {"BlockType": "WORD", "Id": "w8", "Text": "a|"},
    {"BlockType": "WORD", "Id": "w9", "Text": "b"},
    {"BlockType": "SELECTION_ELEMENT", "Id": "s1", "SelectionStatus": "SELECTED"},
]
MARKDOWN_TABLE = "| a\\| | b [x] |\n| --- | --- |\n|  |  |"


def test_tables_follow_the_lines_of_their_page() -> None:
    """Cells are put where their row and column are; without a layout the lines come first."""
    assert response_of(*TABLE).markdown == f"a b\n\n{MARKDOWN_TABLE}"


def test_a_layout_orders_the_page() -> None:
    """Titles, headers, lists and tables become what they are in markdown."""
    blocks: list[dict[str, Any]] = [
        *LINES[:3],
        *TABLE,
        {"BlockType": "LINE", "Id": "l4", "Page": 1, "Text": "item"},
        {"BlockType": "LAYOUT_TITLE", "Id": "y1", "Page": 1, "Relationships": relation("l1")},
        {"BlockType": "LAYOUT_SECTION_HEADER", "Id": "y2", "Page": 1, "Relationships": relation("l2")},
        {"BlockType": "LAYOUT_TABLE", "Id": "y3", "Page": 1, "Relationships": relation("l9")},
        {"BlockType": "LAYOUT_LIST", "Id": "y4", "Page": 1, "Relationships": relation("y5")},
        {"BlockType": "LAYOUT_TEXT", "Id": "y5", "Page": 1, "Relationships": relation("l4")},
    ]
    assert response_of(*blocks).markdown == f"# A title\n\n## and more\n\n{MARKDOWN_TABLE}\n\n- item"


def test_answers_to_questions_are_kept() -> None:
    """Each question, by its alias if it has one, with the text that answers it."""
    blocks: list[dict[str, Any]] = [
        {
            "BlockType": "QUERY",
            "Id": "q1",
            "Query": {"Text": "What is the total?", "Alias": "total"},
            "Relationships": relation("r1", kind="ANSWER"),
        },
        {"BlockType": "QUERY_RESULT", "Id": "r1", "Text": "12.50"},
        {"BlockType": "QUERY", "Id": "q2", "Query": {"Text": "Who signed?"}},
    ]
    assert response_of(*blocks).metadata["answers"] == {"total": "12.50", "Who signed?": ""}


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(
    ("code", "on_submit", "on_query"),
    [
        ("ThrottlingException", ThrottledError, ThrottledError),
        ("LimitExceededException", ThrottledError, ThrottledError),
        ("InternalServerError", VendorError, VendorError),
        ("IdempotentParameterMismatchException", VendorError, VendorError),
        ("InvalidS3ObjectException", RejectedError, VendorError),
        ("BadDocumentException", RejectedError, VendorError),
        ("InventedException", RejectedError, VendorError),
        ("InvalidJobIdException", RejectedError, JobNotFoundError),
        ("AccessDeniedException", RejectedError, VendorError),
    ],
)
def test_an_error_means_what_its_code_says(
    code: str, status: int, on_submit: type[Exception], on_query: type[Exception]
) -> None:
    """Whatever the status; a query that is refused never fails the job."""
    with pytest.raises(on_submit):
        submitted(refusal(code, status))
    with pytest.raises(on_query):
        queried(refusal(code, status))


def test_refused_credentials_close_the_account() -> None:
    """Other tasks of the account need not find out, too."""
    for call in (submitted, queried):
        with pytest.raises(HandlerError) as caught:
            call(reply({"__type": "ExpiredTokenException", "message": "m"}, 403))
        assert caught.value.code == "account_refused"
        assert getattr(caught.value, "gate_delay", None)


@pytest.mark.parametrize(
    ("status", "on_submit"), [(400, RejectedError), (403, RejectedError), (500, VendorError)]
)
def test_an_error_page_means_what_its_status_says(status: int, on_submit: type[Exception]) -> None:
    """A proxy knows no codes: 5xx leaves a submit's outcome open."""
    page = reply("<html>no</html>", status)
    with pytest.raises(on_submit):
        submitted(page)
    with pytest.raises(VendorError) as caught:
        queried(page)
    assert caught.value.code == f"http_{status}"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"url": "https://documents.example/a.pdf"}, "s3 URLs"),
        ({"url": "s3://bucket"}, "s3://bucket/folder"),
        ({"url": "s3://b/a.pdf"}, "s3://bucket/folder"),
        ({"model": "best"}, "features"),
        ({"pages": "1-2"}, "pages"),
        ({"options": {"features": ["TABLE"]}}, "TABLES"),
        ({"options": {"features": ["QUERIES"]}}, "together"),
        ({"options": {"queries": ["Who?"]}}, "together"),
        ({"options": {"sns_topic": "arn"}}, "sns_role"),
        ({"options": {"output_prefix": "p"}}, "output_bucket"),
    ],
)
def test_what_the_vendor_could_not_read_is_refused(changes: dict[str, Any], match: str) -> None:
    """Found out before the task is stored."""
    with pytest.raises(ValidationError, match=match):
        TextractHandler(region="eu-west-1").validate(attrs.evolve(REQUEST, **changes))


def test_the_region_comes_from_the_address_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region gives the address and the other way round; without either nothing is submitted."""
    with pytest.raises(ValidationError, match="AWS_REGION"):
        TextractHandler().validate(REQUEST)
    with pytest.raises(ConfigError, match="eu-west-1"):
        TextractHandler(region="evil.example/")
    assert TextractHandler("https://textract.ap-south-1.amazonaws.com").region == "ap-south-1"
    assert TextractHandler("http://127.0.0.1:5000").region == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert TextractHandler().base_url == "https://textract.us-west-2.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL_TEXTRACT", "http://127.0.0.1:5000/")
    handler = TextractHandler()
    assert (handler.base_url, handler.region) == ("http://127.0.0.1:5000", "us-west-2")


def test_a_job_of_another_region_is_asked_about_there() -> None:
    """A worker whose region changed still finds yesterday's jobs; another host gets no signature."""
    stored = QueryParams(
        "J1", base_url="https://textract.us-west-2.amazonaws.com", region="us-west-2", api="text"
    )
    transport = ScriptedTransport([reply({"JobStatus": "IN_PROGRESS"})])
    handler = TextractHandler(region="eu-west-1")
    handler.query(stored, query_context(transport))
    assert transport.calls[0].url == "https://textract.us-west-2.amazonaws.com/"
    assert "/us-west-2/textract/" in transport.calls[0].headers["Authorization"]
    assert handler.region == "eu-west-1"
    with pytest.raises(HandlerError, match="earlier_base_urls"):
        queried(params=QueryParams("J1", base_url="https://textract.eu-west-1.amazonaws.com.evil.example"))


def test_without_botocore_the_extra_is_named() -> None:
    """Whoever forgot it reads what to install."""
    with (
        mock.patch.dict("sys.modules", {"botocore.auth": None}),
        pytest.raises(ConfigError, match=r"coatcheck-ocr\[textract\]"),
    ):
        TextractHandler(region="eu-west-1").sign(Call("POST", "/"), Account("aws", lambda _: "x"))
