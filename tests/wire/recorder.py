"""``Recorder``: a vendor's server that keeps what it was sent, so that two clients can be compared."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from coatcheck import codec
from coatcheck.http import VendorHandler
from coatcheck.model import (
    Account,
    CancelResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
)
from coatcheck.sandbox import Answer, Request, Server
from coatcheck.transport import RequestsTransport

KEY = "key-of-wire-tests"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_ACCOUNT = Account("wire", lambda _: KEY)


class Recorder:
    """An ``App`` that answers by a function and keeps the requests for which that has an answer.

    Args:
        answer: the vendor's answers; ``None`` leaves a request out of the record, like a download.
        files: what other requests are answered with, by path.
    """

    def __init__(
        self, answer: Callable[[Request], Answer | None], files: dict[str, bytes] | None = None
    ) -> None:
        self.answer = answer
        self.files = files or {}
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        answer = self.answer(request)
        if answer is not None:
            self.requests.append(request)
            return answer
        content = self.files.get(request.path)
        return Answer(404) if content is None else Answer(200, content)

    def take(self) -> list[Request]:
        """Return the requests since the last time."""
        taken, self.requests = self.requests, []
        return taken


@contextmanager
def recording(recorder: Recorder) -> Iterator[str]:
    """Serve a recorder; gives its URL."""
    with Server(recorder) as server:
        yield server.url


def shown(request: Request, *headers: str) -> dict[str, Any]:
    """Return what two clients have to agree in: method, path, query, some headers, and the body's content.

    A multipart body is compared by its parts, since every client has a boundary of its own.
    """
    kind = (request.header("content-type") or "").partition(";")[0]
    body: Any = request.body
    if kind == "application/json" and request.body:
        body = request.json()
    elif kind == "multipart/form-data":
        body = {name: (_value(part.content), part.filename) for name, part in request.parts().items()}
    return {
        "method": request.method,
        "path": request.path,
        "query": dict(request.query),
        "headers": {name: request.header(name) for name in headers} | {"content-type": kind},
        "body": body,
    }


def _value(content: bytes) -> Any:
    """Return JSON text as its value: its spaces are nobody's business."""
    try:
        return codec.loads(content)
    except ValueError:
        return content


def lived(
    handler: VendorHandler[Any, Any], request: Any, queries: int = 1
) -> tuple[SubmitResult, QueryResult]:
    """Submit a request and ask about its job, over real sockets."""
    handler.validate(request)
    with closing(RequestsTransport()) as transport:
        made = handler.submit(
            request,
            SubmitContext(
                task_id="task-1", idempotency_key="key-1", now=NOW, account=_ACCOUNT, transport=transport
            ),
        )
        assert made.query_params is not None
        context = _query_context(transport)
        results = [handler.query(made.query_params, context) for _ in range(queries)]
    return made, results[-1]


def stopped(handler: VendorHandler[Any, Any], params: QueryParams) -> CancelResult:
    """Cancel a job, over real sockets."""
    with closing(RequestsTransport()) as transport:
        return handler.cancel(params, _query_context(transport))


def _query_context(transport: RequestsTransport) -> QueryContext:
    return QueryContext(
        task_id="task-1",
        created_at=NOW,
        deadline_at=NOW + timedelta(hours=24),
        now=NOW,
        account=_ACCOUNT,
        transport=transport,
    )
