"""Contexts for steps that a test runs by hand, with an account whose every part is the same secret."""

from datetime import UTC, datetime, timedelta
from typing import Any

from coatcheck.model import Account, QueryContext, SubmitContext

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
#: Every part of it is ``SECRET``.
SECRET = "secret-of-tests"  # noqa: S105  # a made-up one
ACCOUNT = Account("tests", lambda _: SECRET)


def submit_context(transport: Any = None) -> SubmitContext:
    """Return a context for a submit or a lookup."""
    return SubmitContext(
        task_id="task-1", idempotency_key="key-1", now=NOW, account=ACCOUNT, transport=transport
    )


def query_context(transport: Any = None) -> QueryContext:
    """Return a context for a query or a cancel."""
    return QueryContext(
        task_id="task-1",
        created_at=NOW,
        deadline_at=NOW + timedelta(hours=24),
        now=NOW,
        account=ACCOUNT,
        transport=transport,
    )
