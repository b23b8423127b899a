"""Calls that lead elsewhere: redirects, links of vendors, and content fetched from the URL of a request."""

import io
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
    HandlerError,
    MaybeSentError,
    NotReadyError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnsafeUrlError,
    VendorError,
)
from coatcheck.http import REDIRECTS, Call, Follow, FromUrl, HttpHandler, Part, Reply, check_public
from coatcheck.http.address import check_address, check_host
from coatcheck.model import Account, QueryContext, QueryParams, QueryResult, SubmitContext, SubmitResult
from coatcheck.testing.transport import ScriptedTransport, reply

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "sk-very-secret-1234"
JOB = QueryParams("job-1")


@codec.persistent("test.http_scan")
@frozen
class Scan:
    """A request."""

    url: str = "https://example.test/scans/a%20page.png?token=1"


class Uploader(HttpHandler[Scan]):
    """A vendor that takes no URLs: what they lead to is uploaded."""

    key = "test:uploader"
    base_url = "https://api.vendor.test/v1"
    allowed_hosts: tuple[str, ...] = ("files.vendor.test", ".cdn.test", "http://10.0.0.7:9000")

    def sign(self, call: Call, account: Account) -> Call:
        """Add the secret."""
        return call.with_headers(Authorization=f"Bearer {account.secret()}")

    def submit_call(self, params: Scan, context: SubmitContext) -> Call:
        """Upload the page."""
        return Call("POST", "/jobs", multipart={"file": FromUrl(params.url), "model": Part(content="large")})

    def read_submit(self, reply: Reply, params: Scan, context: SubmitContext) -> SubmitResult:
        """Read the id."""
        return SubmitResult.submitted(QueryParams(reply.json()["id"]))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Look at the job."""
        return Call("GET", "/jobs/1", headers={"X-Team": "red", "Accept": "application/json"})

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Fetch the result from where the vendor says."""
        seen = reply.json()
        if seen.get("link"):
            return Follow(Call("GET", seen["link"], plain=True, body_cap=2000, spool=True), self.read_result)
        return QueryResult.running(provider_status=seen.get("state", "?"))

    def read_result(self, reply: Reply) -> QueryResult:
        """Read the file."""
        return QueryResult.succeeded(reply.as_file().read().decode())


def contexts(transport: Any) -> tuple[SubmitContext, QueryContext]:
    """Return the contexts of both steps."""
    account = Account("default", lambda _: SECRET)
    submit = SubmitContext(task_id="t", idempotency_key="k", now=NOW, account=account, transport=transport)
    query = QueryContext(
        task_id="t", created_at=NOW, deadline_at=NOW, now=NOW, account=account, transport=transport
    )
    return submit, query


def submit(*outcomes: Any, handler: Uploader | None = None, url: str | None = None) -> ScriptedTransport:
    """Submit against scripted outcomes and return what was called."""
    transport = ScriptedTransport(outcomes)
    (handler or Uploader()).submit(Scan() if url is None else Scan(url), contexts(transport)[0])
    return transport


def query(*outcomes: Any, handler: Uploader | None = None) -> tuple[QueryResult, ScriptedTransport]:
    """Query against scripted outcomes."""
    transport = ScriptedTransport(outcomes)
    return (handler or Uploader()).query(JOB, contexts(transport)[1]), transport


def parts_of(call: Call, name: str = "file") -> list[Part]:
    """Return the parts that a call was sent with."""
    assert call.multipart is not None
    given = call.multipart[name]
    assert isinstance(given, list)
    assert all(isinstance(part, Part) for part in given)
    return given


def moved(url: str, status: int = 302) -> Reply:
    """Return a redirect."""
    return Reply(status, headers={"Location": url})


# Content of a request's URL.


def test_the_content_of_a_url_is_fetched_without_credentials_and_uploaded_with_them() -> None:
    """A vendor without URL input works with URLs, and the host of the page never sees our key."""
    page = Reply(200, b"page", {"Content-Type": "image/png"})
    fetch, upload = submit(page, reply({"id": "job-1"})).calls
    assert (fetch.method, fetch.url, fetch.headers) == ("GET", Scan().url, {})
    assert (fetch.guarded, fetch.creates, fetch.spool) == (True, False, True)
    assert upload.creates
    assert upload.headers["Authorization"] == f"Bearer {SECRET}"
    (file,) = parts_of(upload)
    assert (file.content, file.filename, file.content_type) == (b"page", "a page.png", "image/png")


def test_a_fetched_file_has_the_name_and_type_that_the_handler_gives() -> None:
    """Some vendors look at nothing else to find out what a document is."""

    class Naming(Uploader):
        def submit_call(self, params: Scan, context: SubmitContext) -> Call:
            part = FromUrl(params.url, filename="b.pdf", content_type="application/pdf", cap=10)
            return Call("POST", "/jobs", multipart={"files": [part, Part(content=b"second")]})

    fetch, upload = submit(Reply(200, b"page"), reply({"id": "1"}), handler=Naming()).calls
    assert fetch.body_cap == 10
    first, second = parts_of(upload, "files")
    assert (first.filename, first.content_type) == ("b.pdf", "application/pdf")
    assert second.content == b"second"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://a.test/x/y.pdf", "y.pdf"),
        ("https://a.test/", "file"),
        ("https://a.test", "file"),
        ("https://a.test/%2e%2e%2fetc%2fpasswd", ".._etc_passwd"),
        ("https://a.test/a%22%0d%0ab", "a_b"),
    ],
)
def test_a_name_that_comes_from_a_url_is_only_a_name(url: str, name: str) -> None:
    """It goes into a header, and perhaps into a folder of the vendor's."""
    _, upload = submit(Reply(200, b"page"), reply({"id": "1"}), url=url).calls
    assert parts_of(upload)[0].filename == name


@pytest.mark.parametrize(
    ("outcome", "expected", "code"),
    [
        (Reply(404), RejectedError, "http_404"),
        (Reply(401), RejectedError, "http_401"),
        (Reply(500), NotSentError, "http_500"),
        (Reply(429, headers={"Retry-After": "9"}), NotSentError, "http_429"),
        (Reply(200), RejectedError, "source_empty"),
        (MaybeSentError("reset"), NotSentError, "maybe_sent"),
        (NotSentError("no route"), NotSentError, "not_sent"),
        (VendorError("large", code="body_too_large"), RejectedError, "source_too_large"),
        (UnsafeUrlError("inside"), RejectedError, "unsafe_url"),
    ],
)
def test_a_fetch_that_fails_means_that_nothing_was_sent(
    outcome: Any, expected: type[HandlerError], code: str
) -> None:
    """The host of a document says nothing about the vendor: no gate closes, and a submit may be repeated."""
    with pytest.raises(expected) as caught:
        submit(outcome)
    error: Any = caught.value  # of a class that the table says
    assert type(error) is expected
    assert error.code == code
    assert getattr(error, "gate_delay", None) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost:8000/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://0x7f.1/",
        "http://10.0.0.8:9000/",
        "https://api.vendor.test@10.0.0.1/",
        "file:///etc/passwd",
        "ftp://example.test/a",
        "//example.test/a",
        "https://example.test/a b",
    ],
)
def test_a_request_cannot_make_us_look_inside(url: str) -> None:
    """Whoever may submit must not get to read what only this machine can reach."""
    transport = ScriptedTransport([])
    with pytest.raises(RejectedError) as caught:
        Uploader().submit(Scan(url), contexts(transport)[0])
    assert caught.value.code == "unsafe_url"
    assert transport.calls == []


@pytest.mark.parametrize(
    ("url", "is_guarded"),
    [
        ("https://example.test/a", True),
        ("https://files.vendor.test/a", True),
        ("http://10.0.0.7:9000/a", False),
        ("https://api.vendor.test/v1/files/1", False),
    ],
)
def test_only_what_the_handler_lists_may_lead_inside(url: str, *, is_guarded: bool) -> None:
    """A name that is listed may still be made to lead inside; an origin that is listed is meant."""
    fetch, _ = submit(Reply(200, b"page"), reply({"id": "1"}), url=url).calls
    assert fetch.guarded is is_guarded
    assert fetch.headers == {}


def test_a_server_beside_the_vendor_on_this_machine_must_be_listed() -> None:
    """A vendor on localhost may redirect to its neighbours as well as to itself."""

    class Beside(Uploader):
        base_url = "http://127.0.0.1:8000"
        allowed_hosts: tuple[str, ...] = ()

    fetch, _ = submit(
        Reply(200, b"page"), reply({"id": "1"}), handler=Beside(), url="http://127.0.0.1:8000/a"
    ).calls
    assert not fetch.guarded
    with pytest.raises(RejectedError, match="allowed_hosts"):
        submit(handler=Beside(), url="http://127.0.0.1:8001/a")
    listing = type("Listing", (Beside,), {"allowed_hosts": ("127.0.0.1",)})()
    fetch, _ = submit(
        Reply(200, b"page"), reply({"id": "1"}), handler=listing, url="http://127.0.0.1:9/a"
    ).calls
    assert not fetch.guarded


def test_check_public_says_it_to_whoever_submits() -> None:
    """A request that can never work is better refused before it is stored."""
    check_public("https://example.test/a?b=c")
    for url in ("http://127.0.0.1/", "file:///a", "https://example.test/a b", "http://0x7f000001/"):
        with pytest.raises(UnsafeUrlError):
            check_public(url)


# Addresses.


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.100.100.200",
        "127.0.0.1",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.1.1",
        "192.0.0.192",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_public_is_refused_however_it_is_written(address: str) -> None:
    """Each of these has been used to get at something that was not meant for the open network."""
    with pytest.raises(UnsafeUrlError):
        check_address(address, "name.test")


@pytest.mark.parametrize("address", ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2001:4860:4860::8888"])
def test_a_public_address_is_fine(address: str) -> None:
    """A check that refuses the open network would be switched off."""
    check_address(address, "name.test")


@given(number=st.integers(0, 2**32 - 1))
def test_an_address_that_is_written_as_one_number_is_refused(number: int) -> None:
    """Programs read such hosts differently, so no check of ours could be sure of it."""
    for host in (str(number), hex(number), f"0{number:o}"):
        with pytest.raises(UnsafeUrlError):
            check_host(host)


# Redirects.


def test_a_reading_call_follows_redirects_on_its_own_origin() -> None:
    """A vendor that moved its addresses still gets the key, and its 404 still means that."""
    result, transport = query(moved("/v2/jobs/1", 308), moved("2"), reply({"state": "x"}))
    assert result.provider_status == "x"
    assert [call.url for call in transport.calls] == [
        "https://api.vendor.test/v1/jobs/1",
        "https://api.vendor.test/v2/jobs/1",
        "https://api.vendor.test/v2/jobs/2",
    ]
    assert all(call.headers["Authorization"] == f"Bearer {SECRET}" for call in transport.calls)


def test_credentials_never_cross_to_another_origin() -> None:
    """What a redirect leads to is somebody else, and may lead back (F76)."""
    _, transport = query(
        moved("https://other.test/a"), moved("https://api.vendor.test/v1/jobs/1"), reply({"state": "x"})
    )
    first, second, third = transport.calls
    assert first.headers["Authorization"]
    assert dict(second.headers) == dict(third.headers) == {"Accept": "application/json"}
    assert second.guarded
    assert not third.guarded


@pytest.mark.parametrize(
    "place",
    [
        "http://api.vendor.test/v1/jobs/1",
        "https://127.0.0.1/",
        "https://[::ffff:127.0.0.1]/",
        "https://2130706433/",
        "file:///etc/passwd",
        "https://me:pw@other.test/",
        f"https://other.test/?key={SECRET}",
    ],
)
def test_a_redirect_that_leads_astray_is_refused(place: str) -> None:
    """Inside, out of TLS, to a file, or with our key in it."""
    transport = ScriptedTransport([moved(place)])
    with pytest.raises(UnsafeUrlError):
        Uploader().query(JOB, contexts(transport)[1])
    assert len(transport.calls) == 1


def test_redirects_end() -> None:
    """A circle must not keep a worker."""
    transport = ScriptedTransport([moved("/v1/jobs/1")] * (REDIRECTS + 1))
    with pytest.raises(VendorError) as caught:
        Uploader().query(JOB, contexts(transport)[1])
    assert caught.value.code == "http_302"
    assert len(transport.calls) == REDIRECTS + 1


def test_a_redirect_without_a_place_is_an_error() -> None:
    """It says nothing."""
    with pytest.raises(VendorError):
        query(Reply(302))


def test_what_another_origin_does_not_have_is_no_lost_job() -> None:
    """Three of those in a row would end the task as lost."""
    with pytest.raises(VendorError) as caught:
        query(moved("https://other.test/a"), Reply(404))
    assert caught.value.code == "http_404"


def test_a_submit_and_every_other_post_stay_where_they_are() -> None:
    """A redirected POST could be carried out twice."""

    class Posting(Uploader):
        def submit_call(self, params: Scan, context: SubmitContext) -> Call:
            return Call("POST", "/jobs", json={})

        def query_call(self, params: QueryParams, context: QueryContext) -> Call:
            return Call("POST", "/query", form={"id": "1"})

    with pytest.raises(VendorError):
        submit(moved("/v2/jobs", 307), handler=Posting())
    with pytest.raises(VendorError):
        query(moved("/v2/query", 307), handler=Posting())


def test_odd_characters_in_a_place_are_quoted() -> None:
    """Servers write them as they are, and browsers forgive it."""
    _, transport = query(moved("/v1/a b\xe9#top"), reply({}))
    assert transport.calls[1].url == "https://api.vendor.test/v1/a%20b%E9"


# Results elsewhere.


def test_a_result_is_fetched_from_any_public_host_without_credentials() -> None:
    """Vendors keep results at hosts that nobody can list beforehand."""
    result, transport = query(reply({"link": "https://store.test/r?sig=1"}), Reply(200, b"text"))
    assert result.result == "text"
    fetch = transport.calls[1]
    assert (fetch.guarded, fetch.sign, fetch.body_cap, dict(fetch.headers)) == (True, None, 2000, {})


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Reply(404), VendorError),
        (Reply(403), VendorError),
        (Reply(401), VendorError),
        (Reply(429, headers={"Retry-After": "9"}), NotReadyError),
        (Reply(503, headers={"Retry-After": "9"}), NotReadyError),
        (Reply(503), VendorError),
    ],
)
def test_the_host_of_a_result_closes_no_gate(outcome: Reply, expected: type[CoatcheckError]) -> None:
    """It is not the vendor; the query is repeated, and brings a new link."""
    with pytest.raises(expected) as caught:
        query(reply({"link": "https://store.test/r"}), outcome)
    assert not isinstance(caught.value, ThrottledError)
    assert getattr(caught.value, "gate_delay", None) is None
    if isinstance(caught.value, NotReadyError):
        assert caught.value.delay == timedelta(seconds=9)


def test_a_link_with_our_key_in_it_is_not_called() -> None:
    """A vendor that echoes the key into a link would give it to the host of the link."""
    with pytest.raises(UnsafeUrlError):
        query(reply({"link": f"https://store.test/r?key={SECRET}"}))


def test_files_are_closed_when_the_step_ends() -> None:
    """A spooled body may lie on the disk."""
    files: list[io.BytesIO] = []

    class Spooling(ScriptedTransport):
        def perform(self, call: Call, account: Account) -> Reply:
            answer = super().perform(call, account)
            if call.spool:
                files.append(io.BytesIO(answer.body))
                return attrs.evolve(answer, body=b"", file=files[-1])
            return answer

    transport = Spooling([reply({"link": "https://store.test/r"}), moved("/b"), Reply(200, b"text")])
    assert Uploader().query(JOB, contexts(transport)[1]).result == "text"
    transport = Spooling([Reply(200, b"page"), Reply(400)])
    with pytest.raises(RejectedError):
        Uploader().submit(Scan(), contexts(transport)[0])
    assert len(files) == 3
    assert all(file.closed for file in files)
