"""The vendor's API: which calls are made and what their replies mean; a transport makes them."""

import os
from datetime import timedelta
from typing import Any

from coatcheck import (
    Account,
    Call,
    CancelResult,
    HttpHandler,
    PollPolicy,
    QueryContext,
    QueryParams,
    QueryResult,
    Reply,
    SubmitContext,
    SubmitResult,
    ValidationError,
)
from coatcheck.http import path
from coatcheck_thumbnail.model import Thumbnail, ThumbnailRequest

#: How long the vendor keeps a thumbnail.
KEPT = timedelta(days=1)


class ThumbnailHandler(HttpHandler[ThumbnailRequest]):
    """Draws thumbnails at the vendor.

    Args:
        base_url: where the vendor is; by default the variable ``COATCHECK_THUMBNAIL_URL``, or the vendor's
            public address.
        poll: the pace of queries; every 2 s if not given.
    """

    key = "thumbnail:example"
    account = "thumbnail"
    #: The vendor answers a repeated Idempotency-Key with the job that it made before.
    resubmit = "idempotent"
    base_url = "https://api.thumbnails.example/v1"
    poll = PollPolicy.exponential(timedelta(seconds=2))

    def __init__(self, base_url: str | None = None, *, poll: PollPolicy | None = None) -> None:
        self.base_url = base_url or os.environ.get("COATCHECK_THUMBNAIL_URL") or type(self).base_url
        self.poll = poll or type(self).poll

    def validate(self, params: ThumbnailRequest) -> None:
        """Refuse what the vendor would refuse, before anything is stored."""
        if not isinstance(params.url, str) or not params.url.startswith(("https://", "http://")):
            raise ValidationError(f"url must be an http(s) URL, found {params.url!r}", "url")
        if type(params.width) is not int or not 16 <= params.width <= 2048:
            raise ValidationError(
                f"width must be a whole number of pixels from 16 to 2048, found {params.width!r}", "width"
            )

    def sign(self, call: Call, account: Account) -> Call:
        """Add the account's secret; it is looked up at each call."""
        return call.with_headers(Authorization=f"Bearer {account.secret()}")

    def submit_call(self, params: ThumbnailRequest, context: SubmitContext) -> Call:
        """Describe the call that makes the job."""
        return Call(
            "POST",
            "/thumbnails",
            headers={"Idempotency-Key": context.idempotency_key},
            json={"url": params.url, "width": params.width},
        )

    def read_submit(self, reply: Reply, params: ThumbnailRequest, context: SubmitContext) -> SubmitResult:
        """Read the job's id; a picture that the vendor has drawn before is there at once."""
        job = reply.json()
        if job["state"] == "done":
            return SubmitResult.succeeded(_thumbnail(job), expires_after=KEPT)
        return SubmitResult.submitted(QueryParams(job["id"]), provider_status=job["state"])

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the call that looks at the job."""
        return Call("GET", path("thumbnails", params.external_task_id))

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Read the job's state; a word that we do not know is "still running"."""
        job = reply.json()
        match job["state"]:
            case "done":
                return QueryResult.succeeded(_thumbnail(job), expires_after=KEPT)
            case "failed":
                return QueryResult.failed(job["reason"]["code"], job["reason"]["text"])
            case "canceled":
                return QueryResult.canceled(provider_status="canceled")
            case "waiting":
                return QueryResult.submitted(provider_status="waiting")
            case word:
                return QueryResult.running(job.get("percent"), provider_status=word)

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the call that stops the job; 409 is the vendor's "too late"."""
        return Call("DELETE", path("thumbnails", params.external_task_id), accept=[409])

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read what the vendor says to a cancel."""
        if reply.status == 409:
            return CancelResult.refused("the job has ended")
        return CancelResult.done() if reply.json()["state"] == "canceled" else CancelResult.accepted()


def _thumbnail(job: dict[str, Any]) -> Thumbnail:
    image = job["image"]
    return Thumbnail(image["url"], image["width"], image["height"])
