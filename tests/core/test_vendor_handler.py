"""``VendorHandler``: words, codes, addresses, and what a regional or batch vendor has to override."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest
from attrs import field, frozen

from coatcheck import QueryParams, TaskStatus
from coatcheck.codec import persistent
from coatcheck.errors import (
    HandlerError,
    JobNotFoundError,
    NotSentError,
    RejectedError,
    ThrottledError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Follow, Reply, VendorHandler, VendorJob, path
from coatcheck.http.read import id_of, members
from coatcheck.http.vendor import FAILED, SUBMITTED, SUCCEEDED, Trouble
from coatcheck.model import CancelResult, QueryContext, QueryResult, SubmitContext
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.transport import ScriptedTransport, reply

PLACES = ("https://north.vendor.example", "https://south.vendor.example")


@persistent("tests.vendor-work")
@frozen(kw_only=True)
class Work:
    """A request for work of no kind in particular."""

    text: str = "a"
    model: str | None = None
    options: Mapping[str, Any] = field(factory=dict)


REQUEST = Work()


@frozen(kw_only=True)
class WorkJob(VendorJob):
    """What a reply says about work, and what it gives: a text, or a link to one."""

    text: str | None = None
    link: str | None = None
    usage: Mapping[str, int] = field(factory=dict)


class Plain(VendorHandler[Work, WorkJob]):
    """A vendor as simple as can be."""

    key = "test:plain-vendor"
    job_type = WorkJob
    base_url = "https://api.vendor.example/v1"
    base_url_env = ("VENDOR_URL",)
    result_life = timedelta(hours=1)
    states: ClassVar[Mapping[str, TaskStatus]] = {"new": SUBMITTED, "1": SUCCEEDED, "bad": FAILED}
    troubles: ClassVar[Mapping[str, Trouble]] = {trouble.value: trouble for trouble in Trouble}

    def submit_call(self, params: Work, context: SubmitContext) -> Call:
        """Describe the submit."""
        return Call("POST", "/jobs", json=self.fields(params, text=params.text, model=self.model(params)))

    def read_submitted(self, reply: Reply, request: Work) -> WorkJob:
        """Read the reply to the submit."""
        return self._job(reply) if reply.is_success else self.refused(reply)

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("jobs", params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> WorkJob:
        """Read the reply to the query."""
        return self._job(reply)

    def finish(self, job: WorkJob, *, at_once: bool = False) -> QueryResult | Follow:
        """Return the text, or the call for it."""
        if job.link is None:
            return self.succeeded(job, {"text": job.text})
        return Follow(Call("GET", job.link, plain=True), partial(self._fetched, job=job))

    def _fetched(self, reply: Reply, job: WorkJob) -> QueryResult:
        return self.succeeded(job, {"text": reply.text})

    def _job(self, reply: Reply) -> WorkJob:
        body = members(reply)
        word = body.get("word")
        return WorkJob(
            status=self.status_of(word),
            id=id_of(body, "id"),
            word=str(word),
            code=body.get("code", "failed"),
            message=body.get("why", ""),
            expires_after=None if "life" not in body else timedelta(seconds=body["life"]),
            text=body.get("text"),
            link=body.get("link"),
            usage={"coin": body["cost"]} if "cost" in body else {},
        )


class Regional(Plain):
    """The same vendor in two regions: a small subclass."""

    key = "test:regional"

    def create_query_params(self, response: WorkJob, request: Work) -> QueryParams:
        """Keep the region."""
        params = super().create_query_params(response, request)
        return QueryParams(params.external_task_id, region="south")

    def query_client(self, params: QueryParams, context: QueryContext) -> VendorHandler[Work, WorkJob]:
        """Ask the region."""
        return self.at(f"https://{params['region']}.vendor.example")


def submit(handler: Plain, answer: Reply, request: Work = REQUEST) -> Any:
    """Submit against one reply."""
    return handler.submit(request, submit_context(ScriptedTransport([answer])))


def query(handler: Plain, params: QueryParams, *answers: Reply) -> tuple[Any, list[Call]]:
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
    monkeypatch.setenv("COATCHECK_TEST_PLAIN_VENDOR_URL", "https://ours.example")
    assert Plain().base_url == "https://ours.example"
    assert Plain("https://caller.example").base_url == "https://caller.example"


def test_a_vendor_without_an_address_says_how_to_give_one() -> None:
    """Self-hosted services have no address that everybody knows."""

    class Hosted(Plain):
        base_url = ""

    with pytest.raises(ValidationError, match="VENDOR_URL or COATCHECK_TEST_PLAIN_VENDOR_URL"):
        Hosted().validate(REQUEST)


def test_a_second_handler_of_a_vendor_has_a_key_and_an_account_of_its_own() -> None:
    """Two addresses of one vendor live side by side."""
    other = Plain(PLACES[0], key="test:north", account="north")
    assert (other.key, other.account, other.provider_key) == ("test:north", "north", "test:north")


# Words and codes.


@pytest.mark.parametrize(("word", "status"), [("NEW", SUBMITTED), (" New ", SUBMITTED), (1, SUCCEEDED)])
def test_words_are_compared_without_case_and_numbers_as_text(word: object, status: TaskStatus) -> None:
    """The same vendor writes Success and success, another says 1."""
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
    """What other vendors say by the HTTP status, these say in the body."""
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


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (reply({"error": {"code": "E7", "message": "why"}}, 400), "E7", "why"),
        (reply({"message": "why"}, 403), "http_403", "why"),
        (Reply(404, b"<html>a proxy</html>"), "http_404", "a proxy"),
    ],
    ids=["code", "words", "page"],
)
def test_a_refusal_says_why_as_well_as_it_can(answer: Reply, code: str, message: str) -> None:
    """By the vendor's code, by its words, or by what somebody in between has said."""
    with pytest.raises(RejectedError, match=message) as caught:
        Plain().refused(answer)
    assert caught.value.code == code
    with pytest.raises(ThrottledError):
        Plain().refused(reply({"error": {"code": "busy", "message": "full"}}, 400))


@pytest.mark.parametrize("trouble", Trouble)
def test_a_failure_may_go_well_another_time_where_its_trouble_passes(trouble: Trouble) -> None:
    """What is wrong with the request, the key or the job stays wrong."""
    passing = {Trouble.BUSY, Trouble.AGAIN, Trouble.UNSURE, Trouble.FINAL_RETRYABLE}
    assert Plain().is_retryable(trouble.value) is (trouble in passing)
    assert not Plain().is_retryable("nobody knows it")


# Requests and results.


def test_a_url_of_another_scheme_is_refused_with_those_that_are_read() -> None:
    """Before it is stored."""
    Plain().check_url("HTTPS://documents.example/a", "source")
    with pytest.raises(ValidationError, match="reads http and https URLs, found ftp: in source") as caught:
        Plain().check_url("ftp://documents.example/a", "source")
    assert caught.value.field == "source"


def test_our_own_fields_win_over_extras() -> None:
    """What the handler says about the work cannot be changed by an option; what is not said is left out."""
    request = Work(text="b", options={"extra": {"text": "x", "z": 1}})
    assert Plain().submit_call(request, submit_context()).json == {"text": "b", "z": 1}


def test_a_failure_keeps_the_words_of_the_vendor() -> None:
    """On the submit as on the query, with what it counts; a failure without words gets some."""
    for body, code, message in (
        ({"word": "bad", "code": "E7", "why": "too dark", "cost": 3}, "E7", "too dark"),
        ({"word": "bad", "cost": 3}, "failed", "the vendor says that the job failed"),
    ):
        found, _ = query(Plain(), QueryParams("j"), reply(body))
        for result in (submit(Plain(), reply(body)), found):
            assert (result.status, result.usage, result.provider_status) == (FAILED, {"coin": 3}, "bad")
            assert (result.error.code, result.error.message) == (code, message)


def test_a_result_that_is_there_at_once_ends_the_submit_and_one_behind_a_link_does_not() -> None:
    """A submit makes one call: what follows it is the first query's."""
    done = submit(Plain(), reply({"id": "j", "word": 1, "text": "A"}))
    assert (done.status, done.result, done.expires_after) == (SUCCEEDED, {"text": "A"}, timedelta(hours=1))
    linked = submit(Plain(), reply({"id": "j", "word": 1, "link": "https://files.example/a"}))
    assert (linked.status, linked.query_params.external_task_id) == (TaskStatus.RUNNING, "j")


def test_a_result_lives_as_long_as_the_reply_says_or_else_the_vendor() -> None:
    """The reply may know better than the page of the vendor."""
    for body, life in (({"word": 1}, timedelta(hours=1)), ({"word": 1, "life": 5}, timedelta(seconds=5))):
        found, _ = query(Plain(), QueryParams("j"), reply(body))
        assert found.expires_after == life
