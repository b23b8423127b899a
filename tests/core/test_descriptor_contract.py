"""Described handlers keep the contract of handlers, whatever their vendor looks like."""

from typing import Any

import pytest
from tests.core.descriptions import VENDOR, WRAPPED, changed

from coatcheck.descriptor import DescribedHandler, Descriptor, JsonRequest
from coatcheck.model import QueryParams
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import reply
from coatcheck.testing.vendor import JobRequest

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


class TestDescribedVendor(HandlerContract):
    """One call each, a key, a cancel, and requests and results of plain JSON."""

    @pytest.fixture
    def handler(self) -> DescribedHandler:
        """Return the handler."""
        return Descriptor.of(VENDOR).handler()

    @pytest.fixture
    def params(self) -> Any:
        """Return a request."""
        return JsonRequest({"text": "a"})

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return the vendor's replies."""
        return RECORDINGS

    @pytest.fixture
    def old_params(self) -> list[bytes]:
        """Return a request as the first version stored it."""
        return [b'{"type":"json.request","version":1,"data":{"data":{"text":"a"}}}']

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return query params as the first version stored them."""
        return [QueryParams("job-7")]


class TestDescribedVendorWithTypes(HandlerContract):
    """Requests and results of registered types, and a lookup instead of a second submit."""

    @pytest.fixture
    def handler(self) -> DescribedHandler:
        """Return the handler."""
        lookup = {"path": "/jobs", "query": {"key": "{idempotency_key}"}, "jobs": "jobs", "id": "id"}
        table = changed(
            request="test.job",
            resubmit="never",
            submit__json={"text": "{request.text}", "script": "{request.script}"},
            result={"type": "test.result", "value": "{text: output.text}"},
            lookup=lookup,
        )
        return Descriptor.of(table).handler()

    @pytest.fixture
    def params(self) -> Any:
        """Return a request."""
        return JobRequest("a")

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return the vendor's replies."""
        return RECORDINGS


class TestDescribedVendorWithEnvelope(HandlerContract):
    """Codes in HTTP 200, poll URLs that move, and a result behind one more call."""

    @pytest.fixture
    def handler(self) -> DescribedHandler:
        """Return the handler."""
        return Descriptor.of(WRAPPED).handler()

    @pytest.fixture
    def params(self) -> Any:
        """Return a request."""
        return JsonRequest({"url": "https://documents.example/a.pdf"})

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return the vendor's replies."""

        def said(state: object, **more: Any) -> dict[str, Any]:
            return {"code": 0, "msg": "", "data": {"id": 7, "state": state, **more}}

        links = {"poll": "https://api.wrapped.example/v1/jobs/7", "result": "https://files.wrapped.example/7"}
        return {
            "accepted": reply(said(0, links=links)),
            "running": reply(said(1, done=3, total=12)),
            "unknown_word": reply(said("napping")),
            "moved": reply(said(1, links={"poll": "https://api.wrapped.example/v1/jobs/7?turn=2"})),
            "succeeded": [
                reply(said(2, links=links, total=12)),
                reply({"pages": [{"text": "A"}, {"text": "B"}]}),
            ],
            "failed": reply(said(3, reason="overloaded", detail="too much at once")),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return query params as the first version stored them."""
        return [QueryParams("7", poll_url="https://api.wrapped.example/v1/jobs/7", region="eu")]
