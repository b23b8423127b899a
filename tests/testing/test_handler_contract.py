"""The handlers of the local vendor keep the handler contract, and so do handlers of other kinds."""

from collections.abc import Generator
from datetime import timedelta

import pytest
from attrs import frozen

from coatcheck import codec
from coatcheck.errors import NotSentError
from coatcheck.handler import TaskHandler
from coatcheck.http import Call, Follow, HttpHandler, Reply, path
from coatcheck.model import (
    Account,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
)
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import reply
from coatcheck.testing.vendor import JobRequest, LookupVendorHandler, PlainVendorHandler, VendorHandler

JOB = {"id": "job-7", "status": "queued"}
DONE = {"id": "job-7", "status": "succeeded", "output": {"text": "A"}, "usage": {"pages": 1}}
RECORDINGS: Recordings = {
    "accepted": reply(JOB, 201),
    "at_once": reply(DONE, 201),
    "running": reply({"id": "job-7", "status": "running", "progress": 40}),
    "unknown_word": reply({"id": "job-7", "status": "frobnicating"}),
    "succeeded": reply(DONE),
    "failed": reply({"id": "job-7", "status": "failed", "error": {"code": "bad", "message": "no text"}}),
    "cancel_done": reply({"cancel": "done"}),
    "cancel_accepted": reply({"cancel": "accepted"}),
    "cancel_refused": reply({"cancel": "refused"}),
    "found": reply({"jobs": [JOB]}),
    "not_found": reply({"jobs": []}),
}


class VendorContract(HandlerContract):
    """What the handlers of the local vendor have in common."""

    @pytest.fixture
    def params(self) -> JobRequest:
        """Return a request."""
        return JobRequest("a")

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return the vendor's replies."""
        return RECORDINGS

    @pytest.fixture
    def old_params(self) -> list[bytes]:
        """Return a request as the first version stored it."""
        return [b'{"type":"test.job","version":1,"data":{"text":"a","script":{}}}']

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return query params as the first version stored them."""
        return [QueryParams("job-7")]


class TestVendorHandler(VendorContract):
    """The one with a key and a cancel."""

    @pytest.fixture
    def handler(self) -> VendorHandler:
        """Return the handler."""
        return VendorHandler("http://vendor.test", signs=True)


class TestLookupVendorHandler(VendorContract):
    """The one with a lookup."""

    @pytest.fixture
    def handler(self) -> LookupVendorHandler:
        """Return the handler."""
        return LookupVendorHandler("http://vendor.test/base", signs=True)


class TestPlainVendorHandler(VendorContract):
    """The one that cannot recognise its job."""

    @pytest.fixture
    def handler(self) -> PlainVendorHandler:
        """Return the handler."""
        return PlainVendorHandler("http://vendor.test")


@codec.persistent("test.contract_document")
@frozen
class Document:
    """A request for several pages."""

    url: str
    language: str = "en"


@codec.persistent("test.contract_text")
@frozen
class Text:
    """The text of several pages."""

    pages: tuple[str, ...]


class PagedHandler(HttpHandler[Document]):
    """Takes a ticket before the submit, keeps a cursor, and reads its result page by page elsewhere."""

    key = "test:paged"
    base_url = "https://api.vendor.test/v2/"
    allowed_hosts = (".files.vendor.test",)

    def sign(self, call: Call, account: Account) -> Call:
        """Add the secret to the query, as some vendors want it."""
        return call.with_query(access_token=account.secret())

    def prepare_calls(
        self, params: Document, context: SubmitContext
    ) -> Generator[Call, Reply, Document | None]:
        """Register the document first."""
        ticket = yield Call("POST", "/documents", json={"url": params.url})
        return Document(ticket.json()["document"], params.language)

    def submit_call(self, params: Document, context: SubmitContext) -> Call:
        """Describe the submit."""
        return Call("POST", "/jobs", form={"document": params.url, "language": params.language})

    def read_submit(self, reply: Reply, params: Document, context: SubmitContext) -> SubmitResult:
        """Read the reply to a submit."""
        return SubmitResult.submitted(QueryParams(reply.json()["job"], cursor=0))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("jobs", params.external_task_id), query={"cursor": params["cursor"]})

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to a query."""
        job = reply.json()
        match job["state"]:
            case "done":
                return self.next_page(job["pages"], ())
            case "error":
                return QueryResult.failed("unreadable", job["reason"])
            case word if job.get("cursor", params["cursor"]) != params["cursor"]:
                moved = QueryParams(params.external_task_id, cursor=job["cursor"])
                return QueryResult.running(provider_status=word, next_query_params=moved)
            case word:
                return QueryResult.running(provider_status=word)

    def next_page(self, url: str, pages: tuple[str, ...]) -> Follow:
        """Describe the next page, and how it is read."""

        def read(reply: Reply) -> QueryResult | Follow:
            page = reply.json()
            known = (*pages, page["text"])
            if page["next"]:
                return self.next_page(page["next"], known)
            return QueryResult.succeeded(Text(known), expires_after=timedelta(days=1))

        return Follow(Call("GET", url), read)


PAGE = "https://eu.files.vendor.test/page"


class TestPagedHandler(HandlerContract):
    """Steps of several calls, with credentials in the query."""

    @pytest.fixture
    def handler(self) -> PagedHandler:
        """Return the handler."""
        return PagedHandler()

    @pytest.fixture
    def params(self) -> Document:
        """Return a request."""
        return Document("https://example.test/a.pdf")

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return the vendor's replies."""
        return {
            "accepted": [reply({"document": "doc-1"}), reply({"job": "job/7"})],
            "running": reply({"state": "reading"}),
            "unknown_word": reply({"state": "frobnicating"}),
            "moved": reply({"state": "reading", "cursor": 3}),
            "succeeded": [
                reply({"state": "done", "pages": f"{PAGE}/1"}),
                reply({"text": "one", "next": f"{PAGE}/2"}),
                reply({"text": "two", "next": None}),
            ],
            "failed": reply({"state": "error", "reason": "no pages"}),
        }


class PendingTray(TaskHandler[JobRequest]):
    """A handler without HTTP, and with async methods: its vendor is an object beside it."""

    key = "test:tray"

    def __init__(self) -> None:
        self.state = "running"

    async def submit(self, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Put the request into the tray."""
        if self.state == "locked":
            raise NotSentError("the tray is locked")
        return SubmitResult.running(QueryParams("tray-1"))

    async def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Look into the tray."""
        if self.state == "succeeded":
            return QueryResult.succeeded(JobRequest("done"))
        return (
            QueryResult.running()
            if self.state == "running"
            else QueryResult.failed("torn", "the page is torn")
        )


class TestHandlerWithoutHttp(HandlerContract):
    """Recordings may be functions that bring a situation about; rules about HTTP are skipped."""

    @pytest.fixture
    def handler(self) -> PendingTray:
        """Return the handler."""
        return PendingTray()

    @pytest.fixture
    def params(self) -> JobRequest:
        """Return a request."""
        return JobRequest("a")

    @pytest.fixture
    def recordings(self, handler: PendingTray) -> Recordings:
        """Return what puts the tray into each state."""

        def become(state: str, params: QueryParams | None) -> QueryParams | None:
            handler.state = state
            return params

        job = QueryParams("tray-1")
        return {
            "accepted": lambda: become("running", None),
            "submit_not_sent": lambda: become("locked", None),
            "running": lambda: become("running", job),
            "succeeded": lambda: become("succeeded", job),
            "failed": lambda: become("torn", job),
        }
