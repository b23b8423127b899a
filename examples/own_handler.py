"""A handler for an HTTP vendor: it describes calls and reads replies, and never waits or retries.

The vendor is the one that ``coatcheck[testing]`` brings for tests, on this machine; it loses its first reply.
"""

from datetime import timedelta

from attrs import frozen

import coatcheck
from coatcheck import Call, QueryContext, QueryParams, QueryResult, Reply, SubmitContext, SubmitResult
from coatcheck.http import path
from coatcheck.testing.vendor import LocalVendor


@coatcheck.persistent("example.shout")
@frozen
class Shout:
    """What is asked for and, in capitals, what comes back."""

    text: str


class ShoutHandler(coatcheck.HttpHandler[Shout]):
    """The vendor's two calls."""

    key = "example:shout"
    resubmit = "idempotent"  # the vendor honours our key, so a submit without a reply may be sent again
    poll = coatcheck.PollPolicy.exponential(timedelta(milliseconds=100))

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def submit_call(self, params: Shout, context: SubmitContext) -> Call:
        """Describe the call that makes the job."""
        key = {"Idempotency-Key": context.idempotency_key}
        return Call("POST", "/jobs", headers=key, json={"text": params.text})

    def read_submit(self, reply: Reply, params: Shout, context: SubmitContext) -> SubmitResult:
        """Read the job's id, with which all queries are made."""
        return SubmitResult.submitted(QueryParams(reply.json()["id"]))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the call that looks at the job."""
        return Call("GET", path("jobs", params.external_task_id))

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Read the job's state; a word that we do not know is "still running"."""
        job = reply.json()
        if job["status"] == "succeeded":
            return QueryResult.succeeded(Shout(job["output"]["text"]))
        if job["status"] == "failed":
            return QueryResult.failed(job["error"]["code"], job["error"]["message"])
        return QueryResult.running(job.get("progress"), provider_status=job["status"])


with LocalVendor() as vendor, coatcheck.local(handlers=[ShoutHandler(vendor.url)]) as house:
    vendor.fault("submit", "reset")
    print(house.run(Shout("hi")).text, vendor.count("submit"), "submits,", vendor.created.total(), "job")
