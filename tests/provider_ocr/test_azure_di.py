"""``ocr:azure-di``: the contract from recorded replies, the address in a header, and its life, live."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.errors import (
    ConfigError,
    HandlerError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
)
from coatcheck.http import Call, Reply
from coatcheck.model import Account, QueryResult, SubmitResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import Live
from coatcheck_ocr.azure_di import AzureHandler, AzureOptions
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.sandbox.azure_di import AzureSandbox

HOME = "https://resource.example"
REQUEST = OcrRequest(url="https://documents.example/reports/a.pdf", options={"locale": "en-US"})
PLACE = f"{HOME}/documentintelligence/documentModels/prebuilt-layout/analyzeResults/R1?api-version=2024-11-30"


def accepted(place: str = PLACE, **headers: str) -> Reply:
    """Return what a submit is answered with: nothing but headers."""
    return Reply(202, b"", {"Operation-Location": place, "apim-request-id": "R1", **headers})


def status(word: str, **more: Any) -> Reply:
    """Return what a query is answered with."""
    return reply({"status": word, "createdDateTime": "2026-01-02T03:04:05Z", **more})


RESULT = {
    "apiVersion": "2024-11-30",
    "modelId": "prebuilt-layout",
    "contentFormat": "markdown",
    "content": "# 😀 A\n<!-- PageBreak -->\nB",
    "pages": [
        {
            "pageNumber": 1,
            "unit": "pixel",
            "width": 800,
            "height": 600,
            "spans": [{"offset": 0, "length": 5}],
            "lines": [{"content": "😀 A"}],
        },
        {"pageNumber": 2, "unit": "inch", "width": 8.5, "height": 11, "spans": [{"offset": 25, "length": 1}]},
    ],
    "figures": [{"id": "1.1"}],
}
DONE = status("succeeded", analyzeResult=RESULT)


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> AzureHandler:
        """Return the handler."""
        return AzureHandler(HOME)

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": accepted(),
            "running": status("running"),
            "unknown_word": status("preheating"),
            "succeeded": DONE,
            "failed": status("failed", error={"code": "InvalidRequest", "message": "m"}),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("R1"), QueryParams("R1", base_url=HOME, url=PLACE, model="prebuilt-layout")]


class TestLive(VendorMatrix):
    """The whole life against the sandbox, which is below a path of its server, like what a gateway serves."""

    handler_type = AzureHandler
    sandbox_type = AzureSandbox

    # Without "truncate": the vendor's answer has no body that could be cut off.
    @pytest.mark.parametrize("fault", ["html", "500!", "reset", "garbage", "empty"])
    def test_live_a_submit_that_is_no_answer_is_unknown_and_not_repeated(
        self, live: Live, fault: str
    ) -> None:
        """The vendor has made a job, under an address that we never heard."""
        super().test_live_a_submit_that_is_no_answer_is_unknown_and_not_repeated(live, fault)

    @pytest.mark.parametrize("model", ["prebuilt-layout", "prebuilt-read", "custom.model_1"])
    def test_live_every_model_is_asked_where_it_was_submitted(self, live: Live, model: str) -> None:
        """The address of a job has the model in it."""
        response = live.response("a.pdf", model=model)
        assert response.markdown.startswith("# a.pdf")
        assert response.usage == {"page": 1}

    def test_live_the_key_is_in_the_vendors_own_header(self, live: Live) -> None:
        """It is no bearer token."""
        live.run("a.pdf")
        calls = [request for request in live.sandbox.requests if "analyze" in request.path]
        assert len(calls) >= 2
        assert all(call.header("ocp-apim-subscription-key") for call in calls)
        assert not any(call.header("authorization") for call in calls)


def account(**parts: str) -> Account:
    """Return an account with these parts and no others."""

    def look_up(part: str) -> str:
        if part in parts:
            return parts[part]
        raise UnknownNameError.of("account", "tests", ())

    return Account("tests", look_up)


KEY = account(secret="key-of-tests")


def submitted(
    answer: Reply, *, request: OcrRequest = REQUEST, home: str = HOME, whose: Account = KEY
) -> tuple[SubmitResult, Call]:
    """Submit over a scripted reply."""
    transport = ScriptedTransport([answer])
    result = AzureHandler(home).submit(request, attrs.evolve(submit_context(transport), account=whose))
    return result, transport.calls[0]


def queried(
    answer: Reply, params: QueryParams | None = None, handler: AzureHandler | None = None
) -> tuple[QueryResult, Call]:
    """Query over a scripted reply."""
    transport = ScriptedTransport([answer])
    context = attrs.evolve(query_context(transport), account=KEY)
    asked = params or QueryParams("R1", base_url=HOME, url=PLACE)
    result = (handler or AzureHandler(HOME)).query(asked, context)
    return result, transport.calls[0]


def response_of(result: Any, **params: Any) -> OcrResponse:
    """Return what is read out of an analysis."""
    asked = QueryParams("R1", base_url=HOME, url=PLACE, **params)
    found = queried(status("succeeded", analyzeResult=result), asked)[0].result
    assert isinstance(found, OcrResponse)
    return found


def test_the_submit_is_what_the_vendor_wants() -> None:
    """Lists are joined by commas in the query, spans count code points, the layout comes in markdown."""
    options = AzureOptions(
        locale="en-US",
        features=("formulas", "queryFields"),
        query_fields=("Total", "Date"),
        extra={"new": "1"},
    )
    _, call = submitted(accepted(), request=attrs.evolve(REQUEST, pages="1-3,5", options=options))
    assert (call.method, call.url) == (
        "POST",
        f"{HOME}/documentintelligence/documentModels/prebuilt-layout:analyze",
    )
    assert dict(call.headers) == {"Ocp-Apim-Subscription-Key": "key-of-tests"}
    assert dict(call.query) == {
        "api-version": "2024-11-30",
        "pages": "1-3,5",
        "stringIndexType": "unicodeCodePoint",
        "locale": "en-US",
        "features": "formulas,queryFields",
        "queryFields": "Total,Date",
        "outputContentFormat": "markdown",
        "new": "1",
    }
    assert call.json == {"urlSource": REQUEST.url}


def test_another_model_is_not_asked_for_markdown() -> None:
    """Only the layout model has it; its own users may still want plain text."""
    _, call = submitted(accepted(), request=OcrRequest(url=REQUEST.url, model="my model"))
    assert call.url == f"{HOME}/documentintelligence/documentModels/my%20model:analyze"
    assert dict(call.query) == {"api-version": "2024-11-30", "stringIndexType": "unicodeCodePoint"}
    options = AzureOptions(output_content_format="text")
    _, call = submitted(accepted(), request=attrs.evolve(REQUEST, options=options))
    assert call.query["outputContentFormat"] == "text"


def test_an_account_without_a_key_uses_its_bearer_token() -> None:
    """Entra ID is the other way in; with neither, nothing is sent."""
    _, call = submitted(accepted(), whose=account(entra_token="bearer-of-tests"))
    assert dict(call.headers) == {"Authorization": "Bearer bearer-of-tests"}
    with pytest.raises((ConfigError, HandlerError)):
        submitted(accepted(), whose=account())


def test_the_address_of_the_job_comes_in_a_header() -> None:
    """Trap 10: the body is empty; the whole address is kept, and asked as it is."""
    result, _ = submitted(accepted(**{"Retry-After": "2"}))
    assert result.query_params == QueryParams("R1", base_url=HOME, url=PLACE, model="prebuilt-layout")
    assert result.query_after == timedelta(seconds=2)
    assert result.query_params is not None
    _, call = queried(status("running"), result.query_params)
    assert (call.method, call.url, dict(call.query)) == ("GET", PLACE, {})
    assert dict(call.headers) == {"Ocp-Apim-Subscription-Key": "key-of-tests"}


@pytest.mark.parametrize(
    ("home", "place", "asked"),
    [
        (
            "https://gateway.example/team/ocr",
            "https://gateway.example/team/ocr/documentintelligence/documentModels/m/analyzeResults/R1?api-version=v",
            "https://gateway.example/team/ocr/documentintelligence/documentModels/m/analyzeResults/R1?api-version=v",
        ),
        (
            "https://gateway.example/team/ocr",
            "https://backend.example/documentintelligence/documentModels/m/analyzeResults/R1?api-version=v",
            "https://gateway.example/team/ocr/documentintelligence/documentModels/m/analyzeResults/R1?api-version=v",
        ),
        (HOME, "/documentintelligence/documentModels/m/analyzeResults/R1", None),
        (HOME, f"{HOME}/other/place/R1", f"{HOME}/other/place/R1"),
        (HOME, "http://resource.example/documentintelligence/x/R1", f"{HOME}/documentintelligence/x/R1"),
    ],
)
def test_the_path_of_the_address_is_kept_and_the_key_stays_at_home(
    home: str, place: str, asked: str | None
) -> None:
    """Trap 10: a gateway has a path of its own, and may name what is behind it, where the key must not go."""
    result, _ = submitted(accepted(place), home=home)
    assert result.query_params is not None
    assert result.query_params.external_task_id == "R1"
    _, call = queried(status("running"), result.query_params, AzureHandler(home))
    assert call.url == (asked or f"{HOME}{place}")
    assert urlsplit(call.url)[:2] == urlsplit(home)[:2]
    assert "Ocp-Apim-Subscription-Key" in call.headers


@pytest.mark.parametrize("answer", [Reply(202), accepted("https://[broken"), accepted(f"{HOME}/")])
def test_a_submit_without_an_address_is_unknown(answer: Reply) -> None:
    """Trap 10: there may be a job, and nobody knows where."""
    with pytest.raises(HandlerError) as caught:
        submitted(answer)
    assert not isinstance(caught.value, RejectedError)


def test_an_id_alone_still_leads_to_the_job() -> None:
    """What an early version stored is asked about at the usual place."""
    _, call = queried(status("running"), QueryParams("R1"))
    assert call.url == PLACE.partition("?")[0]
    assert dict(call.query) == {"api-version": "2024-11-30"}


def test_a_job_of_another_region_is_asked_about_there() -> None:
    """The region is in the stored address; a handler that knows it asks there, and no other one does."""
    there = "https://westeurope.example"
    params = QueryParams("R1", base_url=there, url=PLACE.replace(HOME, there))
    _, call = queried(status("running"), params, AzureHandler(HOME, earlier_base_urls=[there]))
    assert call.url == PLACE.replace(HOME, there)
    assert "Ocp-Apim-Subscription-Key" in call.headers
    with pytest.raises(HandlerError, match="earlier_base_urls"):
        queried(status("running"), params)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("notStarted", TaskStatus.SUBMITTED),
        ("NotStarted", TaskStatus.SUBMITTED),
        ("Running", TaskStatus.RUNNING),
        ("SUCCEEDED", TaskStatus.SUCCEEDED),
        ("Failed", TaskStatus.FAILED),
        ("skipped", TaskStatus.FAILED),
        ("canceled", TaskStatus.CANCELED),
    ],
)
def test_status_words_count_in_any_case(word: str, expected: TaskStatus) -> None:
    """Trap 4: one word has a capital inside, and versions differ."""
    result, _ = queried(status(word, analyzeResult=RESULT))
    assert (result.status, result.provider_status) == (expected, word)


def test_the_result_has_the_pages_by_their_spans() -> None:
    """Trap 12: pages are counted from 1, and spans count code points, not bytes or halves of an emoji."""
    result, _ = queried(DONE)
    response = result.result
    assert isinstance(response, OcrResponse)
    assert response.markdown == RESULT["content"]
    assert [(page.number, page.markdown, page.text, page.width, page.height) for page in response.pages] == [
        (1, "# 😀 A", "😀 A", 800, 600),
        (2, "B", "", None, None),
    ]
    assert result.usage == {"page": 2}
    assert result.expires_after == timedelta(hours=24)
    assert response.metadata == {"model_id": "prebuilt-layout", "api_version": "2024-11-30"}


def test_plain_content_is_text() -> None:
    """Models without markdown give the reading order only; a page falls back to its lines."""
    pages = [{"pageNumber": 1, "lines": [{"content": "A"}, {"content": "B"}], "spans": None}]
    response = response_of({"content": "A\nB", "pages": pages})
    assert (response.markdown, response.text) == ("A\nB", "A\nB")
    assert [page.markdown for page in response.pages] == ["A\nB"]


def test_files_are_listed_where_they_were_asked_for() -> None:
    """They lie below the job's own address; nothing is listed that was not made."""
    assert response_of(RESULT).resources == ()
    files = [(file.type, file.url) for file in response_of(RESULT, output=["pdf", "figures"]).resources]
    place, query = PLACE.split("?")
    assert files == [("pdf", f"{place}/pdf?{query}"), ("figure", f"{place}/figures/1.1?{query}")]
    options = AzureOptions(output=("pdf", "figures"))
    result, call = submitted(accepted(), request=attrs.evolve(REQUEST, options=options))
    assert call.query["output"] == "pdf,figures"
    assert result.query_params is not None
    assert result.query_params["output"] == ["pdf", "figures"]


def test_a_success_without_a_result_failed() -> None:
    """There is nothing to wait for."""
    result, _ = queried(status("succeeded"))
    assert result.error is not None
    assert result.error.code == "no_result"


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"error": {"code": "InvalidRequest", "message": "Bad."}}, "InvalidRequest", "Bad."),
        (
            {"error": {"code": "A", "message": "Bad.", "innererror": {"code": "B", "message": "Too long."}}},
            "B",
            "Bad. Too long.",
        ),
        ({}, "failed", "the vendor says that the job failed"),
    ],
)
def test_a_failure_says_what_is_inside(body: dict[str, Any], code: str, message: str) -> None:
    """The outer code is the same for everything."""
    result, _ = queried(status("failed", **body))
    assert result.error is not None
    assert (result.error.code, result.error.message) == (code, message)


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"Retry-After": "7"}, timedelta(seconds=7)),
        ({"retry-after-ms": "1500"}, timedelta(seconds=1.5)),
        ({"x-ms-retry-after-ms": "250", "Retry-After": "1"}, timedelta(milliseconds=250)),
        ({"retry-after-ms": "soon"}, None),
        ({"retry-after-ms": "9" * 40}, timedelta(hours=1)),
        ({}, None),
    ],
)
def test_a_throttle_has_its_delay_in_any_of_three_headers(
    headers: dict[str, str], delay: timedelta | None
) -> None:
    """Two of them count milliseconds."""
    busy = reply({"error": {"code": "429", "message": "slow down"}}, 429, headers=headers)
    for ask in (submitted, queried):
        with pytest.raises(ThrottledError) as caught:
            ask(busy)
        assert caught.value.delay == delay


def test_the_vendors_pace_of_queries_is_kept() -> None:
    """A running job says when to come back."""
    slow = Reply(200, status("running").body, {"Retry-After": "9"})
    assert queried(slow)[0].query_after == timedelta(seconds=9)
    assert queried(status("running"))[0].query_after is None


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"options": {"feature": ["formulas"]}}, UnknownNameError, "did you mean 'features'"),
        ({"options": {"features": ["formula"]}}, ValidationError, "must be"),
        (
            {"model": "prebuilt-read", "options": {"output_content_format": "markdown"}},
            ValidationError,
            "gives no markdown",
        ),
    ],
)
def test_what_the_vendor_could_not_read_is_refused(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Before anything is stored, with the reason."""
    with pytest.raises(error, match=words):
        AzureHandler(HOME).validate(attrs.evolve(REQUEST, **changes))


def test_without_an_endpoint_nothing_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every resource has an address of its own; it is found where users of the vendor have it."""
    for name in ("COATCHECK_OCR_AZURE_DI_URL", "DOCUMENTINTELLIGENCE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValidationError, match="DOCUMENTINTELLIGENCE_ENDPOINT"):
        AzureHandler().validate(REQUEST)
    monkeypatch.setenv("DOCUMENTINTELLIGENCE_ENDPOINT", f"{HOME}/")
    assert AzureHandler().base_url == HOME
