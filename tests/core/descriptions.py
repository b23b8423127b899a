"""Descriptions that the tests of declared handlers share: of the local vendor, and of one that nobody has."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from coatcheck.descriptor import DescribedHandler, Descriptor
from coatcheck.http import Reply
from coatcheck.model import Account, QueryContext, QueryParams, SubmitContext
from coatcheck.testing.transport import ScriptedTransport

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

#: The local vendor with all that it can do.
VENDOR: dict[str, Any] = {
    "key": "test:declared",
    "base_url": "http://vendor.test",
    "account": "shop",
    "resubmit": "idempotent",
    "auth": {"Authorization": "Bearer {secret}"},
    "poll": {"first": "20ms", "start": "20ms", "cap": "20ms", "jitter": 0},
    "submit": {
        "path": "/jobs",
        "headers": {"Idempotency-Key": "{idempotency_key}"},
        "json": {"text": "{request.data.text}", "script": "{request.data.script?}"},
        "id": "id",
        "status": "status",
    },
    "query": {
        "path": "/jobs/{external_task_id}",
        "status": "status",
        "progress": "progress",
        "query_after": "poll_after",
    },
    "words": {
        "submitted": ["queued"],
        "running": ["running"],
        "succeeded": ["succeeded"],
        "failed": ["failed"],
        "canceled": ["canceled"],
    },
    "failure": {"code": "error.code", "message": "error.message"},
    "result": {"value": "output"},
    "usage": {"pages": "usage.pages"},
    "cancel": {
        "path": "/jobs/{external_task_id}/cancel",
        "outcome": "cancel",
        "done": ["done"],
        "refused": ["refused"],
    },
}

#: A vendor with an envelope around everything, poll URLs of its own and results on another host.
WRAPPED: dict[str, Any] = {
    "key": "wrapped:parse",
    "base_url": "https://api.wrapped.example/v1",
    "region": "eu",
    "allowed_hosts": ["files.wrapped.example"],
    "auth": {"X-Api-Key": "{secret}"},
    "submit": {
        "path": "/parse",
        "query": {"region": "{region}", "pages": "{request.data.pages?}"},
        "json": {
            "source": "{request.data.url}",
            "options": {"lang": "{request.data.lang?}", "label": "t-{task_id}"},
        },
        "id": "data.id",
        "params": {"poll_url": "data.links.poll"},
        "keep": {"lang": "{request.data.lang?}"},
    },
    "query": {
        "url": "{params.poll_url}",
        "headers": {"X-Lang": "{params.lang?}"},
        "status": "data.state",
        "progress": "data.done",
        "total": "data.total",
        "params": {"poll_url": "data.links.poll"},
    },
    "words": {"succeeded": [2, "finished"], "failed": [3], "submitted": [0], "canceled": [9]},
    "failure": {"code": "data.reason", "message": "data.detail", "retryable": ["overloaded"]},
    "errors": {
        "code": "code",
        "message": "msg",
        "ok": [0],
        "rejected": ["A01", 216100],
        "throttled": [18],
        "not_ready": [20],
        "not_found": [404],
        "failed": [500],
        "delay": "wait",
    },
    "result": {
        "url": "data.links.result",
        "expires_after": "1h",
        "fetch": {"url": "{url}"},
        "value": "pages[].text",
    },
    "usage": {"pages": "data.total"},
}


def described(base: dict[str, Any] = VENDOR, **changes: Any) -> DescribedHandler:
    """Return the handler of a description; ``submit__path="/x"`` changes one value, ``...`` takes it out."""
    return Descriptor.of(changed(base, **changes)).handler()


def changed(base: dict[str, Any] = VENDOR, **changes: Any) -> dict[str, Any]:
    """Return a copy of a description with some values changed."""
    table = copy.deepcopy(base)
    for name, value in changes.items():
        *outer, last = name.split("__")
        inner = table
        for step in outer:
            inner = inner.setdefault(step, {})
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return table


def account(secret: str = "s3cret-value") -> Account:
    """Return an account."""
    return Account("shop", lambda part: secret if part == "secret" else f"{secret}-{part}")


def submitting(*script: Reply | Exception) -> tuple[SubmitContext, ScriptedTransport]:
    """Return a context for a submit, and the transport that answers in it."""
    transport = ScriptedTransport(script)
    context = SubmitContext(
        task_id="task-1", idempotency_key="key-1", now=NOW, account=account(), transport=transport
    )
    return context, transport


def asking(*script: Reply | Exception) -> tuple[QueryContext, ScriptedTransport]:
    """Return a context for a query, and the transport that answers in it."""
    transport = ScriptedTransport(script)
    context = QueryContext(
        task_id="task-1",
        created_at=NOW,
        deadline_at=NOW + timedelta(hours=1),
        now=NOW,
        account=account(),
        transport=transport,
    )
    return context, transport


def job(**params: Any) -> QueryParams:
    """Return the params of a job."""
    return QueryParams("job-7", **params)
