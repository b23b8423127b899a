"""What a described handler makes of requests and replies, beyond the contract of handlers."""

import logging
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.descriptions import VENDOR, WRAPPED, account, asking, described, job, submitting

from coatcheck import codec
from coatcheck.descriptor import JsonRequest, JsonResult
from coatcheck.errors import (
    ConfigError,
    HandlerError,
    JobNotFoundError,
    NotReadyError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnsafeUrlError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call
from coatcheck.model import CancelResult, LookupResult, QueryParams, TaskStatus
from coatcheck.testing.transport import reply
from coatcheck.testing.vendor import JobRequest

POLL = "https://api.wrapped.example/v1/jobs/7"


def said(state: object = None, **more: Any) -> dict[str, Any]:
    """Return a reply of the vendor with the envelope."""
    data = {"state": state, **more} if state is not None else more
    return {"code": 0, "msg": "", "data": data}


# Calls.


def test_submit_fills_every_part_of_the_call() -> None:
    """Method, address, query, headers and body come from the description, values from request and context."""
    context, transport = submitting(reply(said(id="7", links={"poll": POLL})))
    request = JsonRequest({"url": "https://d.example/ä.pdf", "pages": [1, 2], "lang": "en"})
    described(WRAPPED).submit(request, context)
    (call,) = transport.calls
    assert (call.method, call.url) == ("POST", "https://api.wrapped.example/v1/parse")
    assert call.query == {"region": "eu", "pages": [1, 2]}
    assert call.json == {
        "source": "https://d.example/ä.pdf",
        "options": {"lang": "en", "label": "t-task-1"},
    }
    assert call.headers == {"X-Api-Key": "s3cret-value"}


def test_optional_value_that_is_missing_takes_its_entry_away() -> None:
    """A vendor's option that nobody set is not sent at all, in no part of the call."""
    context, transport = submitting(reply(said(id="7")))
    result = described(WRAPPED).submit(JsonRequest({"url": "u", "lang": None}), context)
    (call,) = transport.calls
    assert call.query == {"region": "eu"}
    assert call.json == {"source": "u", "options": {"label": "t-task-1"}}
    assert result.query_params == QueryParams("7", region="eu")


@pytest.mark.parametrize("value", [7, 2.5, True, None, ["a", {"b": 1}], {"a": []}, "7"])
def test_a_value_keeps_its_type_where_the_placeholder_is_the_whole_text(value: object) -> None:
    """A number stays a number and a table a table; only a text around the placeholder makes it a text."""
    context, transport = submitting(reply({"id": "7"}))
    described(submit__json={"x": "{request.data.x}"}).submit(JsonRequest({"x": value}), context)
    assert transport.calls[0].json == {"x": value}


def test_body_may_be_one_placeholder() -> None:
    """The request's own JSON is sent as it is."""
    context, transport = submitting(reply({"id": "7"}))
    described(submit__json="{request.data}").submit(JsonRequest({"a": [1, None]}), context)
    assert transport.calls[0].json == {"a": [1, None]}


def test_numbers_and_booleans_inside_a_text_are_written_as_json_does() -> None:
    """``true`` and not ``True``: a vendor does not speak Python."""
    context, transport = submitting(reply({"id": "7"}))
    table = {"a": "x{request.data.n}-{request.data.b}", "b": "{{{request.data.n}}}"}
    handler = described(submit__json=table, submit__query={"b": "{request.data.b}"})
    handler.submit(JsonRequest({"n": 1.5, "b": True}), context)
    assert transport.calls[0].json == {"a": "x1.5-true", "b": "{1.5}"}
    assert transport.calls[0].query == {"b": "true"}


@pytest.mark.parametrize(("value", "quoted"), [("a/b?c#d", "a%2Fb%3Fc%23d"), ("ü x", "%C3%BC%20x"), (7, "7")])
def test_values_in_a_path_are_quoted_as_one_segment(value: object, quoted: str) -> None:
    """Whatever an id holds, it stays one segment."""
    context, transport = submitting(reply({"id": "7"}))
    handler = described(submit__path="/a/{request.data.x}:run")
    handler.submit(JsonRequest({"x": value, "text": "t"}), context)
    assert transport.calls[0].url == f"http://vendor.test/a/{quoted}:run"


@pytest.mark.parametrize("value", ["", " ", ".", ".."])
def test_values_that_would_lead_elsewhere_are_refused(value: str) -> None:
    """A blank segment or ``..`` would be the address of something else."""
    handler = described(submit__path="/a/{request.data.x}")
    with pytest.raises(ValidationError):
        handler.validate(JsonRequest({"x": value, "text": "t"}))


def test_fields_of_registered_types_are_filled_in_at_any_depth() -> None:
    """Nested tables are reached with dots, durations and the like are written as JSON has them."""
    context, transport = submitting(reply({"id": "7"}))
    handler = described(
        request="test.job", submit__json={"n": "{request.script.deep.n}", "t": "{request.text}"}
    )
    handler.submit(JobRequest("a", script={"deep": {"n": 3}}), context)
    assert transport.calls[0].json == {"n": 3, "t": "a"}


# Requests.


def test_request_that_lacks_a_value_is_refused_before_the_store() -> None:
    """The submitter hears of it, not the worker hours later."""
    handler = described()
    handler.validate(JsonRequest({"text": "a"}))
    with pytest.raises(
        ValidationError, match=r"submit\.json\.text needs request\.data\.text, which is missing"
    ):
        handler.validate(JsonRequest({"txt": "a"}))


@pytest.mark.parametrize("value", ["a\nb", "a\r\nX: y", "日本"])
def test_value_that_cannot_be_a_header_is_refused_before_the_store(value: str) -> None:
    """A line break in a header would be a second header."""
    handler = described(submit__headers={"X-Name": "{request.data.n}", "K": "{idempotency_key}"})
    with pytest.raises(ValidationError, match="X-Name"):
        handler.validate(JsonRequest({"n": value, "text": "t"}))


def test_worker_with_another_description_than_the_submitter_sends_nothing() -> None:
    """A stored request that lacks what is needed now was certainly not sent, even if it is only kept."""
    context, transport = submitting()
    with pytest.raises(NotSentError, match=r"request\.data\.lang"):
        described(WRAPPED, submit__keep={"lang": "{request.data.lang}"}).submit(
            JsonRequest({"url": "u"}), context
        )
    assert not transport.calls


# Credentials.


def test_secret_is_added_when_the_call_is_signed_and_not_before() -> None:
    """No call that is described, logged or kept holds a credential; parts of an account have names."""
    handler = described(auth={"Authorization": "Bearer {secret}", "X-App": "{secret.app}"})
    context, transport = submitting(reply({"id": "7"}))
    call = handler.submit_call(JsonRequest({"text": "a"}), context)
    assert "s3cret" not in str((call.url, call.headers, call.query, call.json))
    handler.submit(JsonRequest({"text": "a"}), context)
    assert transport.calls[0].headers["Authorization"] == "Bearer s3cret-value"
    assert transport.calls[0].headers["X-App"] == "s3cret-value-app"


def test_secret_that_cannot_be_sent_is_not_shown_and_nothing_was_sent() -> None:
    """A line break in a secret's file must not make the outcome of a submit unknown."""
    with pytest.raises(ConfigError, match="Latin-1") as caught:
        described().sign(Call("GET", "/"), account("a\nb"))
    assert "a\nb" not in str(caught.value)


def test_poll_url_of_an_allowed_host_gets_no_credentials_and_of_others_no_call() -> None:
    """Where a vendor's reply leads is checked, whatever the reply says."""
    handler = described(WRAPPED)
    running = reply(said(1))
    for url, headers in ((POLL, {"X-Api-Key": "s3cret-value"}), ("https://files.wrapped.example/7", {})):
        context, transport = asking(running)
        handler.query(job(poll_url=url), context)
        assert (transport.calls[0].url, transport.calls[0].headers) == (url, headers)
    for url in (
        "https://evil.example/7",
        "http://api.wrapped.example/v1/7",
        "//evil.example/7",
        "file:///etc/x",
    ):
        context, transport = asking(running)
        with pytest.raises(UnsafeUrlError):
            handler.query(job(poll_url=url), context)
        assert not transport.calls


def test_relative_poll_url_is_one_of_the_vendor() -> None:
    """``/v1/jobs/7`` in a reply is counted from the host, as a browser would."""
    context, transport = asking(reply(said(1)))
    described(WRAPPED).query(job(poll_url="/v1/jobs/7"), context)
    assert transport.calls[0].url == POLL
    assert transport.calls[0].headers == {"X-Api-Key": "s3cret-value"}


# Submits.


@pytest.mark.parametrize("found", [7, "7", 7.0])
def test_id_may_be_a_number(found: object) -> None:
    """An external task id is a text, whatever JSON type the vendor gives it."""
    context, _ = submitting(reply({"id": found}))
    result = described().submit(JsonRequest({"text": "a"}), context)
    assert result.query_params == QueryParams("7")


@pytest.mark.parametrize(
    "body", [{"id": ""}, {"id": [1]}, {"id": 2.5}, {"id": 1e25}, {"id": {"x": 1}}, {"job": 1}]
)
def test_submit_without_a_usable_id_is_unknown(body: dict[str, Any]) -> None:
    """A job may exist, so nothing that says otherwise is raised."""
    context, _ = submitting(reply(body))
    with pytest.raises(VendorError, match=r"submit\.id"):
        described().submit(JsonRequest({"text": "a"}), context)


def test_params_come_from_reply_and_request_and_region() -> None:
    """All that a later query needs is stored beside the id."""
    context, _ = submitting(reply(said(id="7", links={"poll": POLL})))
    result = described(WRAPPED).submit(JsonRequest({"url": "u", "lang": "en"}), context)
    assert result.query_params == QueryParams("7", poll_url=POLL, lang="en", region="eu")
    assert result.status is TaskStatus.SUBMITTED


def test_submit_may_be_done_failed_or_running_at_once() -> None:
    """With a status in the reply to the submit, its end is the task's."""
    done = {"status": "Succeeded", "output": {"a": 1}, "usage": {"pages": 2}}
    context, _ = submitting(reply(done))
    result = described(result__expires_after="1d").submit(JsonRequest({"text": "a"}), context)
    assert (result.status, result.result) == (TaskStatus.SUCCEEDED, JsonResult({"a": 1}))
    assert (result.usage, result.expires_after) == ({"pages": 2}, timedelta(days=1))
    context, _ = submitting(reply({"status": "FAILED", "error": {"code": 5, "message": "no"}}))
    result = described().submit(JsonRequest({"text": "a"}), context)
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("5", "no")
    context, _ = submitting(reply({"id": "7", "status": "running"}))
    result = described().submit(JsonRequest({"text": "a"}), context)
    assert (result.status, result.provider_status) == (TaskStatus.RUNNING, "running")


def test_success_without_its_result_is_left_to_the_first_query() -> None:
    """A submit's reply that says "done" and holds no result still holds the id of the job."""
    fetch = {"path": "/jobs/{external_task_id}/result"}
    typed = {"type": "test.result", "value": "{text: output.text}"}
    for handler in (described(), described(result__fetch=fetch), described(result=typed)):
        context, _ = submitting(reply({"id": "7", "status": "succeeded"}))
        result = handler.submit(JsonRequest({"text": "a"}), context)
        assert (result.status, result.query_params) == (TaskStatus.RUNNING, QueryParams("7"))


# Queries.


@pytest.mark.parametrize(
    ("body", "progress"),
    [
        ({"progress": 40}, 40),
        ({"progress": "40 %"}, 40),
        ({"progress": 0}, 0),
        ({"progress": "soon"}, None),
        ({"progress": True}, None),
        ({"progress": 400}, None),
        ({"progress": [4]}, None),
        ({}, None),
    ],
)
def test_progress_is_read_leniently(body: dict[str, Any], progress: float | None) -> None:
    """A progress that makes no sense is none, and never an error."""
    context, _ = asking(reply({"status": "running", **body}))
    assert described().query(job(), context).progress == progress


@pytest.mark.parametrize(
    ("total", "body", "progress"),
    [
        ("total", {"progress": 3, "total": 12}, 25),
        ("total", {"progress": 3, "total": 0}, None),
        ("total", {"progress": 3}, None),
        ("`1`", {"progress": 0.4}, 40),
    ],
)
def test_progress_may_count_up_to_a_total(total: str, body: dict[str, Any], progress: float | None) -> None:
    """Pages of pages and fractions of one become percent."""
    context, _ = asking(reply({"status": "running", **body}))
    assert described(query__total=total).query(job(), context).progress == progress


@pytest.mark.parametrize(
    ("after", "delay"), [(7, 7), ("2.5", 2.5), (-1, 0), (10**9, 3600), ("later", None), (None, None)]
)
def test_vendors_delay_until_the_next_query_is_bounded(after: object, delay: float | None) -> None:
    """What the vendor asks for is believed for up to an hour."""
    context, _ = asking(reply({"status": "queued", "poll_after": after}))
    result = described().query(job(), context)
    assert result.status is TaskStatus.SUBMITTED
    assert result.query_after == (None if delay is None else timedelta(seconds=delay))


def test_what_can_be_missing_never_costs_the_result() -> None:
    """An expression for progress, usage or a message that fails on a reply is one that finds nothing."""
    broken = "length(nothing)"
    handler = described(
        query__progress=broken,
        query__query_after=broken,
        usage={"pages": broken, "words": "usage.words"},
        failure={"code": broken, "message": broken},
    )
    context, _ = asking(reply({"status": "succeeded", "output": 1, "usage": {"words": "12"}}))
    result = handler.query(job(), context)
    assert (result.result, result.usage) == (JsonResult(1), {"words": 12})
    context, _ = asking(reply({"status": "running"}))
    assert handler.query(job(), context).progress is None
    context, _ = asking(reply({"status": "failed"}))
    error = handler.query(job(), context).error
    assert error is not None
    assert error.code == "failed"


def test_status_may_be_a_number_or_a_boolean_and_words_are_compared_in_any_case() -> None:
    """Vendors say ``2``, ``true`` and ``Done``."""
    handler = described(words={"succeeded": [2, True, "done"], "failed": ["x"]})
    for status in (2, 2.0, "2", True, "true", " DONE "):
        context, _ = asking(reply({"status": status, "output": 1}))
        assert handler.query(job(), context).status is TaskStatus.SUCCEEDED


@pytest.mark.parametrize("body", [{}, {"status": None}, {"status": ""}, {"status": {}}, {"status": ["done"]}])
def test_reply_without_a_state_is_an_error(body: dict[str, Any]) -> None:
    """Nothing is no evidence, for neither end."""
    context, _ = asking(reply(body))
    with pytest.raises(VendorError, match=r"query\.status"):
        described().query(job(), context)


def test_unknown_word_is_running_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody should hear of a new word, and nobody should hear of it at each poll."""
    handler = described()
    with caplog.at_level(logging.WARNING):
        for word in ("napping", "napping", "running", "queued", "napping"):
            context, _ = asking(reply({"status": word}))
            assert handler.query(job(), context).provider_status == word
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "task-1" in caplog.text


def test_failure_says_code_message_and_whether_to_try_again() -> None:
    """What the vendor said of a failed job is kept, and never blank."""
    handler = described(WRAPPED)
    for data, expected in (
        ({"reason": "overloaded", "detail": "busy"}, ("overloaded", "busy", True)),
        ({"reason": 7, "detail": {"why": "x"}}, ("7", '{"why":"x"}', False)),
        ({}, ("failed", "the vendor says '3' and gives no reason", False)),
    ):
        context, _ = asking(reply(said(3, **data)))
        error = handler.query(job(poll_url=POLL), context).error
        assert error is not None
        assert (error.code, error.message, error.retryable) == expected


def test_canceled_is_the_vendors_verdict() -> None:
    """A job that was canceled at the vendor's ends as canceled."""
    context, _ = asking(reply(said(9, total=4)))
    result = described(WRAPPED).query(job(poll_url=POLL), context)
    assert (result.status, result.usage) == (TaskStatus.CANCELED, {"pages": 4})


def test_moved_params_keep_what_did_not_move() -> None:
    """A new poll URL replaces the old one and nothing else."""
    context, _ = asking(reply(said(1, links={"poll": f"{POLL}?turn=2"})))
    result = described(WRAPPED).query(job(poll_url=POLL, lang="en", added="x"), context)
    assert result.next_query_params == job(poll_url=f"{POLL}?turn=2", lang="en", added="x")
    context, _ = asking(reply(said(1)))
    assert described(WRAPPED).query(job(poll_url=POLL), context).next_query_params is None


def test_query_without_a_param_that_it_needs_says_which() -> None:
    """A job that was stored without its poll URL is an error with a name, and no call."""
    context, transport = asking()
    with pytest.raises(HandlerError, match=r"params\.poll_url"):
        described(WRAPPED).query(job(), context)
    assert not transport.calls


def test_job_is_asked_about_in_the_region_of_its_submit() -> None:
    """Whoever moves a description to another region still finds the jobs of the old one."""
    handler = described(
        base_url="https://{region}.vendor.example/v1",
        region="us",
        submit__headers={"K": "{idempotency_key}", "X-Region": "{region}"},
        query__headers={"X-Region": "{region}"},
    )
    context, transport = submitting(reply({"id": "7"}))
    stored = handler.submit(JsonRequest({"text": "a"}), context).query_params
    assert stored == QueryParams("7", region="us")
    assert transport.calls[0].url == "https://us.vendor.example/v1/jobs"
    for params, region in ((stored, "us"), (QueryParams("7", region="eu"), "eu"), (QueryParams("7"), "us")):
        query, asked = asking(reply({"status": "running"}))
        assert params is not None
        handler.query(params, query)
        (call,) = asked.calls
        assert call.url == f"https://{region}.vendor.example/v1/jobs/7"
        assert call.headers == {"X-Region": region, "Authorization": "Bearer s3cret-value"}


# Results.


def test_result_is_fetched_by_one_more_call_without_credentials() -> None:
    """The link leads to another host; its reply is the result, the link and its life are kept."""
    result_url = "https://files.wrapped.example/7"
    done = reply(said(2, links={"result": result_url}, total=2))
    context, transport = asking(done, reply({"pages": [{"text": "A"}, {"text": "B"}]}))
    result = described(WRAPPED).query(job(poll_url=POLL), context)
    assert result.result == JsonResult(["A", "B"], result_url)
    assert (result.expires_after, result.usage) == (timedelta(hours=1), {"pages": 2})
    fetched = transport.calls[1]
    assert (fetched.method, fetched.url, fetched.headers) == ("GET", result_url, {})
    assert fetched.body_cap == codec.CAPS["result"]


def test_result_may_be_a_text_a_link_or_the_whole_reply() -> None:
    """Markdown at a link, the link alone, or everything that was said."""
    done = {"status": "succeeded", "link": "/files/7.md"}
    context, transport = asking(reply(done), reply("# Ä"))
    fetch = {"url": "{url}", "format": "text"}
    result = described(result={"url": "link", "fetch": fetch}).query(job(), context)
    assert result.result == JsonResult("# Ä", "/files/7.md")
    assert transport.calls[1].url == "http://vendor.test/files/7.md"
    context, _ = asking(reply(done))
    assert described(result={"url": "link"}).query(job(), context).result == JsonResult(None, "/files/7.md")
    context, _ = asking(reply(done))
    assert described(result=...).query(job(), context).result == JsonResult(done)


def test_result_that_is_missing_or_does_not_fit_is_an_error() -> None:
    """A success whose result cannot be read is asked for again, and says what was expected where."""
    typed = {"type": "test.result", "value": "output"}
    for handler, body, message in (
        (described(), {"status": "succeeded"}, "'output'"),
        (described(result={"url": "link"}), {"status": "succeeded", "link": 7}, "'link'"),
        (described(result=typed), {"status": "succeeded", "output": "A"}, "no test.result"),
        (described(result=typed), {"status": "succeeded", "output": {"text": 7}}, r"\.text"),
    ):
        context, _ = asking(reply(body))
        with pytest.raises(VendorError, match=message):
            handler.query(job(), context)


def test_fetch_that_fails_is_an_error_and_no_lost_job() -> None:
    """A result that is not there yet says nothing about the job, and neither does an error page."""
    done = {"status": "succeeded"}
    handler = described(VENDOR, errors={"code": "oops"}, result={"fetch": {"path": "/r/{external_task_id}"}})
    for answer in (reply({}, 404), reply("<html>", 200), reply({"oops": 7}), reply({"status": "x"}, 500)):
        context, _ = asking(reply(done), answer)
        with pytest.raises(VendorError):
            handler.query(job(), context)


def test_link_may_lead_to_any_public_host_if_the_description_says_so() -> None:
    """Signed links of storages have hosts that nobody can list; no key goes there, and none is inside."""
    handler = described(result={"url": "link", "fetch": {"url": "{url}", "plain": True}})
    context, transport = asking(
        reply({"status": "succeeded", "link": "https://a1.storage.example/7"}), reply([1])
    )
    result = handler.query(job(), context).result
    assert result == JsonResult([1], "https://a1.storage.example/7")
    assert (transport.calls[1].headers, transport.calls[1].guarded) == ({}, True)
    context, transport = asking(reply({"status": "succeeded", "link": "http://169.254.169.254/x"}))
    with pytest.raises(UnsafeUrlError):
        handler.query(job(), context)
    assert len(transport.calls) == 1


# Errors inside HTTP 200.


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("A01", RejectedError),
        ("a01", RejectedError),
        (216100, RejectedError),
        ("216100", RejectedError),
        (18, ThrottledError),
        (20, NotReadyError),
        (404, JobNotFoundError),
        (999, VendorError),
        (None, VendorError),
        ([], VendorError),
    ],
)
def test_error_codes_in_a_good_reply_are_what_they_are_listed_as(
    code: object, expected: type[HandlerError]
) -> None:
    """A code in no list, or none where good ones are listed, is no evidence of anything."""
    body = {"code": code, "msg": "no", "wait": 7, "data": {"id": "7", "state": 2}}
    handler = described(WRAPPED)
    context, _ = submitting(reply(body))
    query, _ = asking(reply(body))
    for step in (
        lambda: handler.submit(JsonRequest({"url": "u"}), context),
        lambda: handler.query(job(poll_url=POLL), query),
    ):
        with pytest.raises(HandlerError) as caught:
            step()
        assert type(caught.value) is expected
        if expected in (ThrottledError, NotReadyError):
            assert getattr(caught.value, "delay", None) == timedelta(seconds=7)
        if expected is RejectedError:
            assert caught.value.code == str(code)


def test_error_code_of_a_failed_job_ends_it() -> None:
    """A code that says that the job failed is the vendor's verdict, in both replies."""
    body = {"code": 500, "msg": "no text"}
    context, _ = submitting(reply(body))
    query, _ = asking(reply(body))
    handler = described(WRAPPED)
    for result in (
        handler.submit(JsonRequest({"url": "u"}), context),
        handler.query(job(poll_url=POLL), query),
    ):
        assert result.status is TaskStatus.FAILED
        assert result.error is not None
        assert (result.error.code, result.error.message) == ("500", "no text")


def test_without_a_list_of_good_codes_a_missing_code_is_no_error() -> None:
    """Vendors that send an error only when there is one."""
    handler = described(errors={"code": "error.code", "throttled": ["busy"]})
    context, _ = asking(reply({"status": "running"}))
    assert handler.query(job(), context).status is TaskStatus.RUNNING
    context, _ = asking(reply({"status": "running", "error": {"code": "busy"}}))
    with pytest.raises(ThrottledError):
        handler.query(job(), context)


# Cancels and lookups.


def test_cancel_without_a_word_means_that_the_vendor_will_stop() -> None:
    """Any 2xx is an acceptance, without a look at its body; listed statuses are refusals."""
    handler = described(
        cancel={"method": "DELETE", "path": "/jobs/{external_task_id}", "refused_status": [409]}
    )
    context, transport = asking(reply("", 204))
    assert handler.cancel(job(), context) == CancelResult.accepted()
    assert (transport.calls[0].method, transport.calls[0].url) == ("DELETE", "http://vendor.test/jobs/job-7")
    context, _ = asking(reply("too late", 409))
    assert handler.cancel(job(), context).outcome == "refused"
    context, _ = asking(reply("", 404))
    with pytest.raises(HandlerError):
        handler.cancel(job(), context)


def test_words_of_a_cancel_are_read_and_nothing_is_no_word() -> None:
    """A body is needed where its word decides, except for a word that is always the same."""
    handler = described(cancel__message="why")
    context, _ = asking(reply({"cancel": "Refused", "why": "finished"}))
    assert handler.cancel(job(), context) == CancelResult.refused("finished")
    for answer in (reply(""), reply({}), reply("<html>")):
        context, _ = asking(answer)
        with pytest.raises(VendorError):
            handler.cancel(job(), context)
    context, _ = asking(reply("", 204))
    assert described(cancel__outcome="'done'").cancel(job(), context) == CancelResult.done()


def test_error_codes_hold_for_a_cancel_too() -> None:
    """A cancel that the envelope refuses is a refusal, not an acceptance."""
    cancel = {"path": "/jobs/{external_task_id}/cancel"}
    for code, expected in (("A01", RejectedError), (500, VendorError), (1, VendorError)):
        context, _ = asking(reply({"code": code}))
        with pytest.raises(HandlerError) as caught:
            described(WRAPPED, cancel=cancel).cancel(job(), context)
        assert type(caught.value) is expected
    context, _ = asking(reply({"code": 0}))
    assert described(WRAPPED, cancel=cancel).cancel(job(), context) == CancelResult.accepted()


LOOKUP = {"path": "/jobs", "query": {"key": "{idempotency_key}"}, "jobs": "jobs", "id": "id"}


def test_lookup_believes_only_a_list_of_jobs() -> None:
    """To say that there is none makes a second job possible, so it takes an empty list."""
    handler = described(lookup=LOOKUP)
    context, transport = submitting(reply({"jobs": [{"id": "7"}]}))
    assert handler.lookup(JsonRequest({"text": "a"}), context) == LookupResult.found(QueryParams("7"))
    assert transport.calls[0].query == {"key": "key-1"}
    context, _ = submitting(reply({"jobs": []}))
    assert handler.lookup(JsonRequest({"text": "a"}), context) == LookupResult.not_found()
    bodies: list[dict[str, Any]] = [
        {},
        {"jobs": None},
        {"jobs": {}},
        {"jobs": [{}]},
        {"jobs": [{"id": "7"}] * 2},
    ]
    for body in bodies:
        context, _ = submitting(reply(body))
        with pytest.raises(VendorError):
            handler.lookup(JsonRequest({"text": "a"}), context)


def test_lookup_picks_the_job_with_our_key() -> None:
    """A vendor that lists everybody's jobs must not hand us somebody else's."""
    handler = described(lookup={"path": "/jobs", "jobs": "jobs", "id": "id", "key": "meta.key"})
    jobs = [{"id": "6", "meta": {"key": "key-0"}}, {"id": "7", "meta": {"key": "key-1"}}, {"id": "8"}]
    context, _ = submitting(reply({"jobs": jobs}))
    assert handler.lookup(JsonRequest({"text": "a"}), context) == LookupResult.found(QueryParams("7"))
    context, _ = submitting(reply({"jobs": jobs[:1]}))
    assert handler.lookup(JsonRequest({"text": "a"}), context) == LookupResult.not_found()
    context, _ = submitting(reply({"jobs": jobs[2:]}))
    with pytest.raises(VendorError, match=r"meta\.key"):
        handler.lookup(JsonRequest({"text": "a"}), context)


def test_lookup_takes_the_vendors_own_code_for_not_found() -> None:
    """A code that is listed as "not found" is the vendor's word; a 404 may be a wrong address."""
    handler = described(lookup=LOOKUP, errors={"code": "code", "not_found": [404], "failed": [5]})
    context, _ = submitting(reply({"code": 404}))
    assert handler.lookup(JsonRequest({"text": "a"}), context) == LookupResult.not_found()
    for answer in (reply({"code": 5}), reply({"code": 404}, 404)):
        context, _ = submitting(answer)
        with pytest.raises(HandlerError):
            handler.lookup(JsonRequest({"text": "a"}), context)


# Whatever comes.

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
REPLIES = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {},
        optional={
            name: st.sampled_from(["succeeded", "failed", "queued", 0, 1, 2, 3, 18, "job-7"]) | JSON
            for name in ("id", "status", "progress", "poll_after", "output", "usage", "error", "code", "data")
        },
    ),
)


@given(REPLIES)
def test_any_reply_is_a_result_or_an_error_of_the_handler(body: Any) -> None:
    """No reply breaks the reading, makes up an id, or ends a job without the vendor's word for it."""
    for base in (VENDOR, WRAPPED):
        handler = described(base)
        context, _ = submitting(reply(body))
        try:
            accepted = handler.submit(JsonRequest({"text": "a", "url": "u"}), context)
        except NotSentError:
            pytest.fail("a reply came, so something was sent")
        except HandlerError:
            pass
        else:
            assert accepted.query_params is not None or accepted.status.is_end
        query, _ = asking(reply(body))
        try:
            seen = handler.query(job(poll_url=POLL), query)
        except (HandlerError, AssertionError):
            continue  # an AssertionError: the link of a success was followed, and nothing is scripted there
        assert seen.status.is_queryable or (seen.provider_status or seen.error)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_any_request_arrives_as_it_is(data: dict[str, Any]) -> None:
    """What a submitter put into the request is what the vendor gets, whatever it holds."""
    context, transport = submitting(reply({"id": "7"}))
    described(submit__json={"all": "{request.data}"}).submit(JsonRequest(data), context)
    assert transport.calls[0].json == {"all": data}


@given(st.text(min_size=1, max_size=20))
def test_any_text_stays_one_segment_of_a_path(text: str) -> None:
    """Whatever it holds, it can be read back whole; what would lead elsewhere is refused."""
    context, transport = submitting(reply({"id": "7"}))
    handler = described(submit__path="/a/{request.data.x}/z")
    try:
        handler.submit(JsonRequest({"x": text, "text": "t"}), context)
    except NotSentError:
        assert not text.strip() or text in (".", "..")
        return
    segments = transport.calls[0].url.removeprefix("http://vendor.test/").split("/")
    assert [unquote(segment) for segment in segments] == ["a", text, "z"]
