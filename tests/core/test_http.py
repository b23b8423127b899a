"""What the steps of an HTTP conversation make of calls, replies and errors, without any I/O."""

import contextlib
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from coatcheck import codec
from coatcheck.errors import (
    CoatcheckError,
    ConfigError,
    HandlerError,
    JobNotFoundError,
    MaybeSentError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    UnsafeUrlError,
    VendorError,
)
from coatcheck.handler import params_type_of
from coatcheck.http import FOLLOWS, Call, Follow, HttpHandler, Part, Reply, path, run, steps
from coatcheck.model import (
    Account,
    CancelResult,
    LookupResult,
    QueryContext,
    QueryParams,
    QueryResult,
    Step,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.policy import LONGEST_ASKED
from coatcheck.testing.transport import ScriptedTransport, reply

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "sk-very-secret-1234"
JOB = QueryParams("job-1")


@codec.persistent("test.http_page")
@frozen
class Page:
    """A request."""

    url: str = "https://example.test/a.png"


class Vendor(HttpHandler[Page]):
    """A handler whose every part a test may replace."""

    key = "test:http"
    base_url = "https://api.vendor.test/v1/"

    def sign(self, call: Call, account: Account) -> Call:
        """Add the secret."""
        return call.with_headers(Authorization=f"Bearer {account.secret()}")

    def submit_call(self, params: Page, context: SubmitContext) -> Call | SubmitResult:
        """Describe the submit."""
        return Call("POST", "/jobs", json={"url": params.url})

    def read_submit(self, reply: Reply, params: Page, context: SubmitContext) -> SubmitResult:
        """Read the reply to a submit."""
        return SubmitResult.submitted(QueryParams(reply.json()["id"]))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call | QueryResult:
        """Describe the query."""
        return Call("GET", path("jobs", params.external_task_id))

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to a query."""
        return QueryResult.running(reply.json().get("progress"))


class CapableVendor(Vendor):
    """A handler with a cancel and a lookup."""

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call | CancelResult:
        """Describe the cancel."""
        return Call("DELETE", path("jobs", params.external_task_id))

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to a cancel."""
        return CancelResult.done()

    def lookup_call(self, params: Page, context: SubmitContext) -> Call | LookupResult:
        """Describe the lookup."""
        return Call("GET", "/jobs", query={"key": context.idempotency_key})

    def read_lookup(self, reply: Reply, params: Page, context: SubmitContext) -> LookupResult:
        """Read the reply to a lookup."""
        jobs = reply.json()
        return LookupResult.found(QueryParams(jobs[0])) if jobs else LookupResult.not_found()


class RegionalVendor(CapableVendor):
    """A handler whose jobs remember the region that they were submitted to."""

    def query_client(self, params: QueryParams, context: QueryContext) -> HttpHandler[Page]:
        """Return a handler for the job's region."""
        client = RegionalVendor()
        client.base_url = f"https://{params['region']}.vendor.test"
        return client


def account_of(**parts: str) -> Account:
    """Return an account with these parts; a missing one is unknown, as ``Accounts`` says it."""

    def lookup(part: str) -> str:
        if part not in parts:
            raise UnknownNameError(f"no {part} here", "account", "default")
        return parts[part]

    return Account("default", lookup)


def submit_context(transport: Any = None, **changes: Any) -> SubmitContext:
    """Return a context for submits and lookups."""
    context = SubmitContext(
        task_id="task-1",
        idempotency_key="key-1",
        now=NOW,
        account=account_of(secret=SECRET),
        transport=transport,
    )
    return attrs.evolve(context, **changes)


def query_context(transport: Any = None) -> QueryContext:
    """Return a context for queries and cancels."""
    return QueryContext(
        task_id="task-1",
        created_at=NOW,
        deadline_at=NOW + timedelta(hours=24),
        now=NOW,
        account=account_of(secret=SECRET),
        transport=transport,
    )


def submit(handler: HttpHandler[Any], *outcomes: Reply | Exception) -> SubmitResult:
    """Submit against scripted outcomes."""
    return handler.submit(Page(), submit_context(ScriptedTransport(outcomes)))


def query(handler: HttpHandler[Any], *outcomes: Reply | Exception) -> QueryResult:
    """Query against scripted outcomes."""
    return handler.query(JOB, query_context(ScriptedTransport(outcomes)))


def outcome_of(step: Any, *arguments: Any) -> Any:
    """Return a step's result, or the error that it raised."""
    try:
        return step(*arguments)
    except CoatcheckError as error:
        return error


# The reply table.

SUBMIT_COLUMN: dict[int, type[CoatcheckError]] = {
    302: VendorError,
    400: RejectedError,
    401: RejectedError,
    402: RejectedError,
    403: RejectedError,
    404: RejectedError,
    408: VendorError,
    409: RejectedError,
    410: RejectedError,
    422: RejectedError,
    425: ThrottledError,
    429: ThrottledError,
    500: VendorError,
    502: VendorError,
    503: VendorError,
    504: VendorError,
}
QUERY_COLUMN: dict[int, type[CoatcheckError]] = {
    302: VendorError,
    400: VendorError,
    401: VendorError,
    402: VendorError,
    403: VendorError,
    404: JobNotFoundError,
    408: VendorError,
    410: JobNotFoundError,
    422: VendorError,
    425: ThrottledError,
    429: ThrottledError,
    500: VendorError,
    503: VendorError,
}


@pytest.mark.parametrize("status", SUBMIT_COLUMN)
def test_a_status_on_submit_follows_the_table(status: int) -> None:
    """Refused, throttled and unknown submits must not be taken for each other: one costs a second job."""
    error = outcome_of(submit, Vendor(), reply({"id": "job-1"}, status))
    assert type(error) is SUBMIT_COLUMN[status]
    if isinstance(error, VendorError):
        assert error.http_status == status


@pytest.mark.parametrize("status", QUERY_COLUMN)
def test_a_status_on_query_follows_the_table(status: int) -> None:
    """A query that was answered with an error says nothing about the job, 404 and 410 apart."""
    error = outcome_of(query, Vendor(), reply({"progress": 5}, status))
    assert type(error) is QUERY_COLUMN[status]


@pytest.mark.parametrize("status", [401, 402])
def test_a_refused_account_closes_its_gate_for_a_minute(status: int) -> None:
    """Every further call with a refused key is wasted, and may get the account blocked."""
    for error in (outcome_of(submit, Vendor(), Reply(status)), outcome_of(query, Vendor(), Reply(status))):
        assert error.code == "account_refused"
        assert error.gate_delay == timedelta(seconds=60)


def test_503_is_a_throttle_only_with_a_retry_after_that_can_be_read() -> None:
    """Without the header a 503 may come from a proxy after the vendor took the job."""
    error = outcome_of(submit, Vendor(), Reply(503, headers={"Retry-After": "3"}))
    assert isinstance(error, ThrottledError)
    assert error.delay == timedelta(seconds=3)
    error = outcome_of(submit, Vendor(), Reply(503, headers={"Retry-After": "later"}))
    assert isinstance(error, VendorError)


@pytest.mark.parametrize("error", [NotSentError("no route"), MaybeSentError("reset")])
def test_what_the_transport_raised_gets_through(error: HandlerError) -> None:
    """Only the transport knows whether a call left; its word decides whether a submit may be tried again."""
    assert outcome_of(submit, Vendor(), error) is error
    assert outcome_of(query, Vendor(), error) is error


@pytest.mark.parametrize(
    "body", [b"", b"<html>succeeded</html>", b"{}", b"[]", b"null", b'{"id": "', b'{"id": 7}']
)
def test_2xx_without_a_usable_body_or_id_is_an_unknown_submit(body: bytes) -> None:
    """The vendor may have taken the job under an id that we cannot read."""
    error = outcome_of(submit, Vendor(), Reply(200, body))
    assert isinstance(error, HandlerError)
    assert not isinstance(error, NotSentError | RejectedError | ThrottledError)


@given(status=st.integers(200, 599), body=st.binary(max_size=200), kind=st.sampled_from(list(Step)))
def test_no_reply_makes_a_step_raise_anything_but_handler_errors(
    status: int, body: bytes, kind: Step
) -> None:
    """Whatever a vendor sends, the worker gets a result or an error that it understands."""
    is_query = kind in (Step.QUERY, Step.CANCEL)
    context = query_context() if is_query else submit_context()
    transport = ScriptedTransport([Reply(status, body)])
    context = attrs.evolve(context, transport=transport)
    with contextlib.suppress(HandlerError):
        run(steps(CapableVendor(), kind, JOB if is_query else Page(), context), context)
    assert len(transport.calls) == 1


def test_a_status_that_the_call_accepts_reaches_the_reader() -> None:
    """Vendors that put their answers into other statuses can be read, if the handler says so."""

    class Teapot(Vendor):
        def query_call(self, params: QueryParams, context: QueryContext) -> Call:
            return Call("GET", "/jobs/1", accept=[418])

        def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
            return QueryResult.running(provider_status=str(reply.status))

    assert query(Teapot(), Reply(418)).provider_status == "418"
    assert isinstance(outcome_of(query, Teapot(), Reply(500)), VendorError)


@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_address_is_no_answer_to_a_lookup(status: int) -> None:
    """A lookup that finds nothing leads to a second job; a wrong address must not."""
    handler = CapableVendor()
    assert isinstance(
        outcome_of(handler.lookup, Page(), submit_context(ScriptedTransport([Reply(status)]))), VendorError
    )
    found = handler.lookup(Page(), submit_context(ScriptedTransport([reply(["job-1"])])))
    assert found.query_params == JOB
    missed = handler.lookup(Page(), submit_context(ScriptedTransport([reply([])])))
    assert missed.query_params is None


# Retry-After.


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("7", timedelta(seconds=7)),
        (" 2.5 ", timedelta(seconds=2.5)),
        ("-4", timedelta()),
        ("1e9", LONGEST_ASKED),
        ("1e400", LONGEST_ASKED),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Fri, 02 Jan 2026 03:04:35 GMT", timedelta(seconds=30)),
        ("Fri, 02 Jan 2026 03:04:35", timedelta(seconds=30)),
        ("Fri, 02 Jan 2026 03:00:00 GMT", timedelta()),
        ("Sat, 02 Jan 2027 03:00:00 GMT", LONGEST_ASKED),
        ("Fri, 99 Jan 2026 03:00:00 GMT", None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_clamped(header: str, expected: timedelta | None) -> None:
    """A vendor's wish is honoured within reason, and nonsense is no wish."""
    assert Reply(429, headers={"Retry-After": header}).retry_after(NOW) == expected


def test_a_date_in_retry_after_counts_from_the_vendors_own_clock() -> None:
    """Two clocks that differ by minutes would make the delay wrong by minutes."""
    headers = {"Retry-After": "Fri, 02 Jan 2026 09:00:30 GMT", "Date": "Fri, 02 Jan 2026 09:00:00 GMT"}
    assert Reply(429, headers=headers).retry_after(NOW) == timedelta(seconds=30)


# Where calls go.


def test_a_path_is_joined_to_the_base_url_and_signed() -> None:
    """Credentials are added last, so that nothing before the transport ever holds them."""
    transport = ScriptedTransport([reply({"progress": 1})])
    Vendor().query(QueryParams("a/b?c"), query_context(transport))
    assert transport.calls[0].url == "https://api.vendor.test/v1/jobs/a%2Fb%3Fc"
    assert transport.calls[0].headers["Authorization"] == f"Bearer {SECRET}"
    conversation = steps(Vendor(), Step.QUERY, JOB, query_context())
    assert "Authorization" not in next(conversation).headers
    conversation.close()


@pytest.mark.parametrize("segment", ["", ".", ".."])
def test_an_id_cannot_lead_out_of_its_path(segment: str) -> None:
    """An id comes from the vendor; as a path segment it must stay one."""
    with pytest.raises(HandlerError, match="must be a name"):
        path("jobs", segment)


class Wandering(Vendor):
    """Queries wherever the vendor says."""

    allowed_hosts = ("files.vendor.test", ".cdn.test")

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Follow the poll URL."""
        return Call("GET", params["poll_url"])


@pytest.mark.parametrize(
    "url",
    [
        "http://api.vendor.test/v1/jobs/1",
        "https://api.vendor.test:8443/v1/jobs/1",
        "https://api.vendor.test@evil.test/",
        "https://api.vendor.test\\@evil.test/",
        "https://evil.test/?https://api.vendor.test/",
        "//evil.test/jobs",
        "file:///etc/passwd",
        "http://files.vendor.test/a",
        "https://cdn.test/a",
        "https://evilcdn.test/a",
        "https://169.254.169.254/latest",
        "https://[::ffff:127.0.0.1]/",
        "https://2130706433/",
        "https://files.vendor.test/a b",
        "https://files.vendor.test:port/",
        "https://[::1/",
        "jobs/1",
        "",
    ],
)
def test_a_foreign_address_is_refused(url: str) -> None:
    """An address that the vendor made up must lead neither our key nor our network elsewhere."""
    transport = ScriptedTransport([])
    with pytest.raises(UnsafeUrlError):
        Wandering().query(QueryParams("job-1", poll_url=url), query_context(transport))
    assert transport.calls == []


@pytest.mark.parametrize(
    ("url", "is_signed"),
    [
        ("https://api.vendor.test/other/1", True),
        ("https://API.vendor.test:443/other/1", True),
        ("https://files.vendor.test/1", False),
        ("https://eu.cdn.test/1", False),
    ],
)
def test_credentials_go_to_the_configured_origin_only(url: str, *, is_signed: bool) -> None:
    """Hosts that the handler allows are called without a key."""
    transport = ScriptedTransport([reply({"progress": 1})])
    Wandering().query(QueryParams("job-1", poll_url=url), query_context(transport))
    assert ("Authorization" in transport.calls[0].headers) == is_signed


def test_a_region_kept_with_the_job_is_asked_and_gets_the_credentials() -> None:
    """Submit here, look there: where a job is belongs to the job, not to the process that asks (F30)."""
    job = QueryParams("job-1", region="north")
    transport = ScriptedTransport([reply({}), reply({})])
    RegionalVendor().query(job, query_context(transport))
    RegionalVendor().cancel(job, query_context(transport))
    assert [call.url for call in transport.calls] == ["https://north.vendor.test/jobs/job-1"] * 2
    assert all(call.headers["Authorization"] == f"Bearer {SECRET}" for call in transport.calls)


def test_a_region_that_nobody_knows_is_an_error_of_the_query() -> None:
    """Params of an older version may lack what the handler reads; that says nothing about the job."""
    with pytest.raises(HandlerError, match="query_client failed with KeyError"):
        query(RegionalVendor())


def test_a_secret_in_a_foreign_call_is_refused() -> None:
    """A handler that puts its key into a call by hand must not send it to another host."""

    class Leaky(Wandering):
        def query_call(self, params: QueryParams, context: QueryContext) -> Call:
            return Call("GET", "https://files.vendor.test/1", headers={"X-Key": context.account.secret()})

    transport = ScriptedTransport([])
    with pytest.raises(UnsafeUrlError, match="credentials go to https"):
        Leaky().query(JOB, query_context(transport))
    assert transport.calls == []


def test_an_unsafe_submit_is_a_refusal() -> None:
    """It was certainly not sent, and would lead to the same place next time."""

    class Lost(Vendor):
        base_url = "https://api.vendor.test"

        def submit_call(self, params: Page, context: SubmitContext) -> Call:
            return Call("POST", "https://evil.test/jobs")

    with pytest.raises(RejectedError, match=r"evil\.test") as caught:
        submit(Lost())
    assert caught.value.code == "unsafe_url"


@pytest.mark.parametrize(
    "base", ["", "api.vendor.test", "ftp://api.test", "https://me:pw@api.test", "https://a/?k=1"]
)
def test_a_wrong_base_url_is_a_configuration_error_that_shows_no_password(base: str) -> None:
    """The message says what a base URL must be; a submit with it was not sent."""

    class Wrong(Vendor):
        base_url = base

    with pytest.raises(ConfigError, match="base_url must be an absolute http") as caught:
        query(Wrong())
    assert "pw" not in str(caught.value)
    with pytest.raises(NotSentError, match="base_url"):
        submit(Wrong())


# Secrets.


def test_no_message_holds_a_secret_that_the_vendor_echoes() -> None:
    """Error texts are stored, logged and shown (G8); so are the errors behind them, in a traceback."""
    error = outcome_of(submit, Vendor(), reply({"error": f"unknown key {SECRET}"}, 403))
    assert isinstance(error, RejectedError)
    assert SECRET not in f"{error} {error!r} {error.args}"
    assert "***" in str(error)

    class Clumsy(Vendor):
        def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
            raise ValueError(f"cannot read {reply.text}")

    error = outcome_of(query, Clumsy(), reply(f"the key is {SECRET}"))
    assert isinstance(error, VendorError)
    assert SECRET not in f"{error} {error.__cause__} {error.__cause__!r}"


def test_a_repr_shows_neither_headers_nor_query_nor_body() -> None:
    """Calls and replies end up in logs and in assertion messages."""
    call = Call(
        "GET", f"https://a.test/x?token={SECRET}", headers={"A": SECRET}, query={"k": SECRET}, json=[SECRET]
    )
    assert repr(call) == "<Call GET https://a.test/x>"
    assert SECRET not in repr(Reply(200, SECRET.encode(), {"Set-Cookie": SECRET}))
    assert SECRET not in repr(Part(content=SECRET))


def test_a_missing_secret_is_raised_as_it_is_when_nothing_was_sent() -> None:
    """The worker gives such a step back, to a worker that has the account."""
    transport = ScriptedTransport([])
    with pytest.raises(UnknownNameError):
        Vendor().submit(Page(), submit_context(transport, account=account_of()))


def test_a_second_secret_that_is_missing_is_not_sent() -> None:
    """Half of the credentials were handed out, but the call did not leave: the submit may be tried again."""

    class TwoParts(Vendor):
        def sign(self, call: Call, account: Account) -> Call:
            return call.with_headers(X_Id=account.secret("id"), X_Key=account.secret("key"))

    with pytest.raises(NotSentError, match="nothing was sent"):
        TwoParts().submit(Page(), submit_context(ScriptedTransport([]), account=account_of(id="id-1234")))


def test_a_secret_that_is_missing_after_the_reply_does_not_claim_that_nothing_was_sent() -> None:
    """The job may exist by then."""

    class Late(Vendor):
        def read_submit(self, reply: Reply, params: Page, context: SubmitContext) -> SubmitResult:
            return SubmitResult.submitted(QueryParams(context.account.secret("other")))

    error = outcome_of(submit, Late(), reply({"id": "job-1"}))
    assert isinstance(error, VendorError)


# Submits.


def test_a_submit_creates_and_a_query_does_not() -> None:
    """The transport treats a call that creates a job with more care."""
    transport = ScriptedTransport([reply({"id": "job-1"}), reply({})])
    assert Vendor().submit(Page(), submit_context(transport)).query_params == JOB
    Vendor().query(JOB, query_context(transport))
    assert [call.creates for call in transport.calls] == [True, False]


def test_a_resubmit_is_the_same_conversation() -> None:
    """A lost submit is sent again exactly as it was."""
    calls = [next(steps(Vendor(), kind, Page(), submit_context())) for kind in (Step.SUBMIT, Step.RESUBMIT)]
    assert calls[0] == calls[1]


def test_a_describer_may_return_a_result_and_then_nothing_is_called() -> None:
    """Some answers need no call."""

    class Knowing(Vendor):
        def submit_call(self, params: Page, context: SubmitContext) -> SubmitResult:
            return SubmitResult.failed("too_small", "one pixel")

        def query_call(self, params: QueryParams, context: QueryContext) -> QueryResult:
            return QueryResult.canceled()

    assert submit(Knowing()).status is TaskStatus.FAILED
    assert query(Knowing()).status is TaskStatus.CANCELED


def test_a_bug_before_the_submit_means_that_nothing_was_sent() -> None:
    """The worker must not take a KeyError of our own for a lost job."""

    class Buggy(Vendor):
        def submit_call(self, params: Page, context: SubmitContext) -> Call:
            return Call("POST", dict[str, str]()["nothing"])

    with pytest.raises(NotSentError, match=r"KeyError: 'nothing'"):
        submit(Buggy())


def test_a_call_that_is_no_call_was_not_sent() -> None:
    """A forgotten return is found out before anything leaves."""

    class Forgetful(Vendor):
        def submit_call(self, params: Page, context: SubmitContext) -> Call:
            return None  # type: ignore[return-value]  # the mistake that the test is about

    with pytest.raises(NotSentError, match="expected a Call, found NoneType"):
        submit(Forgetful())


def test_a_reader_that_returns_something_else_is_an_error() -> None:
    """A forgotten return must not look like an answer."""

    class Mute(Vendor):
        def read_submit(self, reply: Reply, params: Page, context: SubmitContext) -> SubmitResult:
            return None  # type: ignore[return-value]  # the mistake that the test is about

        def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
            return SubmitResult.submitted(JOB)  # type: ignore[return-value]  # the mistake that the test is about

    with pytest.raises(HandlerError, match="read_submit must return a SubmitResult, found NoneType"):
        submit(Mute(), reply({}))
    with pytest.raises(HandlerError, match="read_query must return a QueryResult, found SubmitResult"):
        query(Mute(), reply({}))


class Uploading(Vendor):
    """Registers the page before it submits."""

    def prepare_calls(self, params: Page, context: SubmitContext) -> Generator[Call, Reply, Page | None]:
        """Get a place for the page."""
        place = yield Call("POST", "/places")
        yield Call("PUT", "/places/1", body=b"page")
        return Page(place.json()["url"])


def test_prepared_params_take_the_place_of_the_request() -> None:
    """What was uploaded is what the submit is about, and only the submit creates the job."""
    transport = ScriptedTransport([reply({"url": "place:1"}), Reply(204), reply({"id": "job-1"})])
    assert Uploading().submit(Page(), submit_context(transport)).query_params == JOB
    assert transport.calls[-1].json == {"url": "place:1"}
    assert [call.creates for call in transport.calls] == [False, False, True]
    assert all("Authorization" in call.headers for call in transport.calls)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (MaybeSentError("reset"), NotSentError),
        (NotSentError("no route"), NotSentError),
        (Reply(500), NotSentError),
        (Reply(302), NotSentError),
        (Reply(200, b"<html>"), NotSentError),
        (Reply(429), ThrottledError),
        (Reply(401), RejectedError),
        (Reply(404), RejectedError),
    ],
)
def test_what_is_unknown_in_a_preparation_was_not_sent(
    outcome: Reply | Exception, expected: type[Exception]
) -> None:
    """A preparation creates nothing billable, so the whole submit may be tried again."""
    assert type(outcome_of(submit, Uploading(), outcome)) is expected


def test_a_preparation_may_handle_an_error_itself() -> None:
    """A place that exists already is no reason to give up."""

    class Patient(Vendor):
        def prepare_calls(self, params: Page, context: SubmitContext) -> Generator[Call, Reply, Page | None]:
            try:
                yield Call("POST", "/places")
            except RejectedError:
                yield Call("GET", "/places")
            return None

    result = submit(Patient(), Reply(409), Reply(200), reply({"id": "job-1"}))
    assert result.query_params == JOB


# Queries of several calls.


class Paging(Vendor):
    """Reads its result page by page."""

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Begin with the first page."""
        return self.read_page(reply, 0)

    def read_page(self, reply: Reply, total: int) -> QueryResult | Follow:
        """Read a page and go on to the next."""
        page = reply.json()
        total += page["words"]
        if page["next"]:
            return Follow(Call("GET", page["next"]), lambda following: self.read_page(following, total))
        return QueryResult.succeeded(total)


def test_a_result_of_several_pages_counts_when_all_were_read() -> None:
    """Half a result is none."""
    first, last = reply({"words": 3, "next": "/pages/2"}), reply({"words": 4, "next": None})
    assert query(Paging(), first, last).result == 7
    for outcome in (Reply(500), MaybeSentError("reset"), Reply(200, b"<html>")):
        assert isinstance(outcome_of(query, Paging(), first, outcome), VendorError | MaybeSentError)


def test_a_missing_page_does_not_mean_that_the_job_is_lost() -> None:
    """After three of those the task would fail, though the vendor has just said that it is done."""
    error = outcome_of(query, Paging(), reply({"words": 3, "next": "/pages/2"}), Reply(404))
    assert isinstance(error, VendorError)


def test_a_query_follows_at_most_fifty_calls() -> None:
    """A vendor whose pages lead in a circle must not keep a worker for ever."""
    endless = [reply({"words": 1, "next": "/pages/2"})] * (FOLLOWS + 1)
    error = outcome_of(query, Paging(), *endless)
    assert isinstance(error, HandlerError)
    assert error.code == "too_many_follows"
    assert query(Paging(), *endless[:FOLLOWS], reply({"words": 1, "next": None})).result == FOLLOWS + 1


def test_a_handler_may_follow_more_calls_where_its_vendor_pages_long_results() -> None:
    """Its own limit holds instead, and is named in the error."""

    class Long(Paging):
        follow_limit = FOLLOWS + 2

    pages = [reply({"words": 1, "next": "/pages/2"})] * (FOLLOWS + 3)
    assert query(Long(), *pages[:-1], reply({"words": 1, "next": None})).result == FOLLOWS + 3
    error = outcome_of(query, Long(), *pages)
    assert isinstance(error, HandlerError)
    assert error.code == "too_many_follows"
    assert f"at most {FOLLOWS + 2} calls" in error.message


# Capabilities and declarations.


def test_capabilities_are_there_when_their_calls_are_defined() -> None:
    """The traits of a task say what any worker may do for it."""
    assert (Vendor().has_cancel, Vendor().has_lookup) == (False, False)
    assert (CapableVendor().has_cancel, CapableVendor().has_lookup) == (True, True)
    assert CapableVendor().traits.has_cancel
    assert not Vendor().traits.has_lookup

    class Own(Vendor):
        def cancel(self, params: QueryParams, context: QueryContext) -> CancelResult:
            return CancelResult.done()

    assert Own().has_cancel
    assert not Own().has_lookup


def test_a_capability_needs_both_of_its_methods() -> None:
    """Half a pair is found out when the class is made, not when a job is to be canceled."""
    with pytest.raises(ConfigError, match="must define both lookup_call and read_lookup"):
        type("Half", (Vendor,), {"lookup_call": CapableVendor.lookup_call})


def test_a_cancel_reads_the_query_column() -> None:
    """An error says nothing about the job; the vendor's answer does."""
    handler = CapableVendor()
    assert handler.cancel(JOB, query_context(ScriptedTransport([Reply(204)]))).outcome == "done"
    error = outcome_of(handler.cancel, JOB, query_context(ScriptedTransport([Reply(500)])))
    assert isinstance(error, VendorError)


def test_the_params_type_is_found_through_http_handler() -> None:
    """Authors declare the request once, in the generic base."""
    assert params_type_of(CapableVendor) is Page


def test_a_cancel_may_need_no_call() -> None:
    """A vendor whose jobs cannot be stopped after a minute need not be asked."""

    class Late(CapableVendor):
        def cancel_call(self, params: QueryParams, context: QueryContext) -> CancelResult:
            return CancelResult.refused("too late")

    assert Late().cancel(JOB, query_context(ScriptedTransport([]))).outcome == "refused"


@pytest.mark.parametrize("name", ["query_call", "read_query"])
def test_a_bug_in_a_query_is_an_error_of_the_step(name: str) -> None:
    """The task goes on to its next query; the worker sees no foreign exception."""

    def broken(*_: object) -> Call:
        raise KeyError("oops")

    handler = type("Buggy", (Vendor,), {name: broken})()
    error = outcome_of(query, handler, reply({}))
    assert isinstance(error, HandlerError)
    assert "KeyError: 'oops'" in str(error)


def test_a_bug_in_the_reader_of_a_page_is_an_error_of_the_step() -> None:
    """Readers of further pages are the handler's code too."""
    error = outcome_of(query, Paging(), reply({"words": 1, "next": "/pages/2"}), reply({"no": "words"}))
    assert isinstance(error, VendorError)
    error = outcome_of(query, Paging(), reply({"words": 1, "next": "/pages/2"}), Reply(200, b"<html>"))
    assert error.code == "unreadable_reply"


def test_no_credentials_are_added_unless_the_handler_signs() -> None:
    """A vendor on the own network needs none, and an account that is not configured must not matter."""

    class Open(Vendor):
        sign = HttpHandler.sign

    transport = ScriptedTransport([reply({"id": "job-1"})])
    assert Open().submit(Page(), submit_context(transport, account=account_of())).query_params == JOB
    assert transport.calls[0].headers == {}


def test_a_handler_without_a_transport_says_what_is_missing() -> None:
    """Called by hand, without a worker, the context may lack it."""
    with pytest.raises(ConfigError, match=r"needs context\.transport"):
        Vendor().query(JOB, query_context())


def test_a_call_has_one_body() -> None:
    """Two bodies are a mistake that no vendor would report well."""
    with pytest.raises(HandlerError, match="at most one of json, form"):
        Call("POST", "/jobs", json={}, form={})


def test_a_broken_body_is_shown_on_one_line_and_cut() -> None:
    """Error texts are read in lists and logs; a whole page with control characters is not."""
    with pytest.raises(VendorError) as caught:
        Reply(200, b"<html>\r\n\x1b[31m" + b"x" * 5000).json()
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()
    assert "an empty body" in str(outcome_of(Reply(200).json))
