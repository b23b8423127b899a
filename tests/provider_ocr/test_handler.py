"""``OcrHandler``: words, codes, addresses, and what a regional or batch vendor has to override."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from coatcheck import QueryParams, TaskStatus, codec
from coatcheck.accounts import Accounts, key_of, part_of
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
from coatcheck.http import Call, Follow, Reply, path
from coatcheck.http.read import id_of, members
from coatcheck.http.vendor import FAILED, SUBMITTED, SUCCEEDED, Trouble
from coatcheck.model import Account, CancelResult, QueryContext, SubmitContext
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck_ocr.handler import OcrHandler, OcrJob, suffixed_name
from coatcheck_ocr.model import OcrRequest, OcrResource, OcrResponse
from coatcheck_ocr.results import OcrOutput, links

REQUEST = OcrRequest(url="https://documents.example/a.pdf")
PLACES = ("https://north.vendor.example", "https://south.vendor.example")


class Plain(OcrHandler):
    """A vendor as simple as can be."""

    key = "ocr:plain-vendor"
    base_url = "https://api.vendor.example/v1"
    base_url_env = ("VENDOR_URL",)
    result_life = timedelta(hours=1)
    states: ClassVar[Mapping[str, TaskStatus]] = {"new": SUBMITTED, "1": SUCCEEDED, "bad": FAILED}
    troubles: ClassVar[Mapping[str, Trouble]] = {trouble.value: trouble for trouble in Trouble}

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        return Call("POST", "/jobs", json=self.fields(params, url=params.url, model=self.model(params)))

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit."""
        return self._job(reply)

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("jobs", params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query."""
        return self._job(reply)

    def _job(self, reply: Reply) -> OcrJob:
        body = members(reply)
        link = body.get("link")
        output = OcrOutput(
            markdown=body.get("markdown"),
            resources=(OcrResource(type="markdown", url=link),) if link else (),
        )
        word = body.get("word")
        return OcrJob(status=self.status_of(word), id=id_of(body, "id"), word=str(word), output=output)


class Regional(Plain):
    """The same vendor in two regions: a small subclass."""

    key = "ocr:regional"

    def create_query_params(self, response: OcrJob, request: OcrRequest) -> QueryParams:
        """Keep the region."""
        params = super().create_query_params(response, request)
        return QueryParams(params.external_task_id, region="south")

    def query_client(self, params: QueryParams, context: QueryContext) -> OcrHandler:
        """Ask the region."""
        return self.at(f"https://{params['region']}.vendor.example")


def submit(handler: OcrHandler, answer: Reply, request: OcrRequest = REQUEST) -> Any:
    """Submit against one reply."""
    return handler.submit(request, submit_context(ScriptedTransport([answer])))


def query(handler: OcrHandler, params: QueryParams, *answers: Reply) -> tuple[Any, list[Call]]:
    """Query against replies."""
    transport = ScriptedTransport(answers)
    return handler.query(params, query_context(transport)), transport.calls


# Addresses.


def test_a_region_is_found_again_from_what_is_stored() -> None:
    """The task carries its region through any restart; the key goes there and nowhere else."""
    params = submit(Regional(), reply({"id": "j", "word": "new"})).query_params
    assert dict(params.provider_params) == {"region": "south"}
    _, (call,) = query(Regional(), params, reply({"word": "new"}))
    assert call.url == "https://south.vendor.example/jobs/j"
    assert call.headers["Authorization"] == "Bearer secret-of-tests"


@pytest.mark.parametrize(
    "params",
    [
        QueryParams("j"),
        QueryParams("j", base_url="https://api.vendor.example/v1"),
        QueryParams("j", base_url="https://api.vendor.example/v1", added_later={"x": 1}),
    ],
)
def test_query_params_of_every_version_are_read(params: QueryParams) -> None:
    """Jobs of the oldest version, which kept the id alone, and of newer ones are found (G7)."""
    _, (call,) = query(Plain(), params, reply({"word": "new"}))
    assert call.url == "https://api.vendor.example/v1/jobs/j"


def test_yesterdays_jobs_are_asked_at_yesterdays_address_if_it_is_named() -> None:
    """A stored address is followed only if the handler was told of it: the key must not go anywhere else."""
    params = submit(Plain(PLACES[0]), reply({"id": "j", "word": "new"})).query_params
    assert params["base_url"] == PLACES[0]
    with pytest.raises(HandlerError, match=r"submitted to https://north.*earlier_base_urls") as caught:
        query(Plain(PLACES[1]), params)
    assert caught.value.code == "other_address"
    _, (call,) = query(Plain(PLACES[1], earlier_base_urls=[PLACES[0] + "/"]), params, reply({"word": "new"}))
    assert call.url == f"{PLACES[0]}/jobs/j"


def test_the_address_comes_from_the_caller_the_environment_or_the_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this order, so that a sandbox or a proxy needs no code."""
    assert Plain().base_url == "https://api.vendor.example/v1"
    monkeypatch.setenv("VENDOR_URL", "https://customary.example/")
    assert Plain().base_url == "https://customary.example"
    monkeypatch.setenv("COATCHECK_OCR_PLAIN_VENDOR_URL", "https://ours.example")
    assert Plain().base_url == "https://ours.example"
    assert Plain("https://caller.example").base_url == "https://caller.example"


def test_a_vendor_without_an_address_says_how_to_give_one() -> None:
    """Self-hosted services have no address that everybody knows."""

    class Hosted(Plain):
        base_url = ""

    with pytest.raises(ValidationError, match="VENDOR_URL or COATCHECK_OCR_PLAIN_VENDOR_URL"):
        Hosted().validate(REQUEST)


def test_a_second_handler_of_a_vendor_has_a_key_and_an_account_of_its_own() -> None:
    """Two addresses of one vendor live side by side."""
    other = Plain(PLACES[0], key="ocr:north", account="north")
    assert (other.key, other.account, other.provider_key) == ("ocr:north", "north", "ocr:north")


# Words and codes.


@pytest.mark.parametrize(("word", "status"), [("NEW", SUBMITTED), (" New ", SUBMITTED), (1, SUCCEEDED)])
def test_words_are_compared_without_case_and_numbers_as_text(word: object, status: TaskStatus) -> None:
    """Trap 4: the same vendor writes Success and success, another says 1."""
    assert Plain().status_of(word) is status


def test_an_unknown_word_is_running_and_warned_of_once_per_handler(caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log for each new word, however many tasks see it."""
    with caplog.at_level(logging.WARNING, "coatcheck.http.vendor"):
        for handler in (Plain(), Plain(), Regional()):
            found, _ = query(handler, QueryParams("j", region="south"), reply({"word": "frobnicating\n"}))
            assert (found.status, found.provider_status) == (TaskStatus.RUNNING, "frobnicating\n")
    assert [record.getMessage().split(":")[1] for record in caplog.records] == ["plain-vendor", "regional"]


@pytest.mark.parametrize("word", [None, "", True, [], {}, 1.5])
def test_a_reply_without_a_status_says_nothing(word: object) -> None:
    """Not even that the job is running."""
    with pytest.raises(VendorError, match="expected a status"):
        Plain().status_of(word)


@pytest.mark.parametrize(
    ("trouble", "on_submit", "on_query"),
    [
        (Trouble.BUSY, ThrottledError, ThrottledError),
        (Trouble.AGAIN, NotSentError, VendorError),
        (Trouble.UNSURE, VendorError, VendorError),
        (Trouble.ACCOUNT, RejectedError, VendorError),
        (Trouble.MISSING, RejectedError, JobNotFoundError),
        (Trouble.FINAL, RejectedError, None),
        (Trouble.FINAL_RETRYABLE, RejectedError, None),
    ],
)
def test_codes_under_200_come_to_what_they_mean(
    trouble: Trouble, on_submit: type[Exception], on_query: type[Exception] | None
) -> None:
    """Trap 1: what other vendors say by the HTTP status, these say in the body."""
    handler = Plain()
    with pytest.raises(on_submit) as caught:
        handler.judge(trouble.value, "why", creating=True, delay=timedelta(seconds=3))
    assert type(caught.value) is on_submit
    assert "why" in str(caught.value)
    if on_query is None:
        job = handler.judge(trouble.value, "why", creating=False)
        assert (job.status, job.code, job.message) == (FAILED, trouble.value, "why")
        assert job.retryable is (trouble is Trouble.FINAL_RETRYABLE)
    else:
        with pytest.raises(on_query) as caught:
            handler.judge(trouble.value, "why", creating=False)
        assert type(caught.value) is on_query


def test_a_code_that_nobody_knows_refuses_a_submit_and_leaves_a_query() -> None:
    """The vendor said no to the submit; about the job it said nothing."""
    with pytest.raises(RejectedError) as refused:
        Plain().judge(4711, "?", creating=True)
    assert refused.value.code == "4711"
    with pytest.raises(VendorError):
        Plain().judge(4711, "?", creating=False)


def test_a_throttle_keeps_its_delay() -> None:
    """What the vendor asks for decides how long the gate is shut."""
    with pytest.raises(ThrottledError) as caught:
        Plain().judge("busy", "", creating=True, delay=timedelta(seconds=3))
    assert caught.value.delay == timedelta(seconds=3)


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("gone", CancelResult.done()),
        ("1", CancelResult.refused("the job has ended already")),
        ("bad", CancelResult.refused("the job has ended already")),
        ("new", CancelResult.accepted()),
        ("a new word", CancelResult.accepted()),
    ],
)
def test_a_cancel_is_read_from_the_status_that_it_leaves(word: str, answer: CancelResult) -> None:
    """Only a job that says that it has stopped has stopped."""

    class Stopping(Plain):
        states: ClassVar[Mapping[str, TaskStatus]] = {**Plain.states, "gone": TaskStatus.CANCELED}

    assert Stopping().read_stopped(word) == answer


# Accounts that need not be whole.


def test_a_server_without_a_key_is_one_without_an_account() -> None:
    """Where an account is there, a missing key is a mistake and not a server that needs none."""
    assert key_of(Accounts(environ={}).get("server")) is None
    assert key_of(Accounts(environ={"COATCHECK_ACCOUNT_SERVER": "key-1"}).get("server")) == "key-1"
    with pytest.raises(UnknownNameError):
        key_of(Accounts({"server": {"secret": "env:NOT_SET"}}, environ={}).get("server"))


def test_a_part_that_an_account_may_lack_is_none_where_it_is_missing_or_blank() -> None:
    """A blank part is no credential."""
    assert part_of(Accounts(environ={}).get("pair"), "second") is None
    assert part_of(Account("pair", lambda _: ""), "second") is None
    assert part_of(Account("pair", str.upper), "second") == "SECOND"


# Requests and results.


@pytest.mark.parametrize("url", ["ftp://h.example/a", "s3://b/a", "data:,x"])
def test_a_url_that_the_vendor_cannot_read_is_refused(url: str) -> None:
    """Before it is stored, with the schemes that are read."""
    with pytest.raises(ValidationError, match="reads http and https URLs"):
        Plain().validate(OcrRequest(url=url))


def test_pages_are_refused_where_the_vendor_cannot_choose_any() -> None:
    """Reading the whole document instead would be paid for."""
    with pytest.raises(ValidationError, match="cannot choose pages"):
        Plain().validate(OcrRequest(url=REQUEST.url, pages="1"))


def test_one_range_of_pages_is_read_and_several_are_refused() -> None:
    """A vendor that reads one range must not leave out the others."""
    handler = Plain()
    for pages, found in ((None, None), ("3", (3, 3)), ("2-5", (2, 5))):
        assert handler.page_range(OcrRequest(url=REQUEST.url, pages=pages)) == found
    with pytest.raises(ValidationError, match='like "2-5"'):
        handler.page_range(OcrRequest(url=REQUEST.url, pages="1,3"))


@pytest.mark.parametrize(
    ("url", "file_name", "name"),
    [
        ("https://d.example/a.pdf?x=.png", None, "a.pdf"),
        ("https://d.example/a.pdf", "march", "march.pdf"),
        ("https://d.example/a.pdf", "march.tiff", "march.tiff"),
        ("https://d.example/get", None, "get"),
        ("https://d.example/", None, "document"),
    ],
)
def test_a_document_goes_out_with_a_suffix_where_there_is_one(
    url: str, file_name: str | None, name: str
) -> None:
    """Servers tell the kind of a document by it."""
    assert suffixed_name(OcrRequest(url=url, file_name=file_name)) == name


def test_our_own_fields_win_over_extras() -> None:
    """What the handler says about the document cannot be changed by an option."""
    request = OcrRequest(url=REQUEST.url, model="big", options={"extra": {"url": "x", "model": "y", "z": 1}})
    call = Plain().submit_call(request, submit_context())
    assert call.json == {"url": REQUEST.url, "model": "big", "z": 1}


def test_a_result_that_is_there_at_once_ends_the_submit_and_one_behind_a_link_does_not() -> None:
    """A submit makes one call: the download is the first query's."""
    done = submit(Plain(), reply({"id": "j", "word": 1, "markdown": "# A"}))
    assert (done.status, str(done.result), done.expires_after) == (SUCCEEDED, "# A", timedelta(hours=1))
    linked = submit(Plain(), reply({"id": "j", "word": 1, "link": "https://files.example/a.md"}))
    assert linked.status is TaskStatus.RUNNING
    assert linked.query_params.external_task_id == "j"


def test_a_result_behind_a_link_is_fetched_in_the_same_step_with_its_life_noted() -> None:
    """The response is whole and can be stored; its links die when the vendor says."""
    answer = reply({"word": 1, "link": "https://files.example/d/a.md"})
    result, calls = query(Plain(), QueryParams("j"), answer, reply("![](b.png)"))
    assert isinstance(result.result, OcrResponse)
    assert result.result.markdown == "![](https://files.example/d/b.png)"
    assert result.expires_after == timedelta(hours=1)
    assert "Authorization" in calls[0].headers
    assert "Authorization" not in calls[1].headers
    assert codec.encode_value(result.result, field="result", cap=10_000)


def test_only_addresses_of_the_web_are_links() -> None:
    """A vendor may leave the place blank, or put something else there."""
    found = links(
        [("markdown", "https://f.example/a"), ("json", None), ("zip", ""), ("pdf", "ftp://f.example")]
    )
    assert found == (OcrResource(type="markdown", url="https://f.example/a"),)
