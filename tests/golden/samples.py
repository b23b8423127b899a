"""What the golden records are made of and how they are compared; see README.md."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from coatcheck import codec
from coatcheck.codec import RawValue, persistent, upcast
from coatcheck.model import (
    CancelFlag,
    Failure,
    HandlerTraits,
    Observation,
    Phase,
    QueryParams,
    Step,
    Task,
    TaskStatus,
    Verdict,
)
from coatcheck.store import Row, Stored

FOLDER = Path(__file__).parent
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


class Quality(StrEnum):
    """An enum inside a request."""

    DRAFT = "draft"
    FINE = "fine"


@persistent("golden.page")
@frozen
class Page:
    """A registered type inside another."""

    url: str
    size: tuple[int, int] | None = None


@persistent("golden.request", version=2)
@frozen(kw_only=True)
class Request:
    """One field of every kind that may be stored. Version 1 called ``pages`` ``urls``."""

    pages: list[Page]
    quality: Quality = Quality.DRAFT
    since: datetime | None = None
    patience: timedelta = timedelta(seconds=90)
    weight: int | float = 1
    options: Mapping[str, Any] = attrs.field(factory=dict)


@upcast("golden.request", from_version=1)
def name_pages(data: dict[str, Any]) -> dict[str, Any]:
    """Make pages of URLs."""
    urls = data.pop("urls")
    pages = [{"type": "golden.page", "version": 1, "data": {"url": url}} for url in urls]
    return {**data, "pages": pages}


def tasks() -> dict[str, tuple[Task, object]]:
    """Return the tasks of the current format by file name, each with its request."""
    plain = Request(pages=[Page("https://vendor.example/1.png")])
    full = Request(
        pages=[Page("https://vendor.example/1.png", (640, 480)), Page("https://vendor.example/二.png")],
        quality=Quality.FINE,
        since=NOW,
        patience=timedelta(milliseconds=1500),
        weight=0.5,
        options={"lang": ["zh", "en"], "deep": {"a": None, "b": True}},
    )
    pending = Task(
        id="0198-pending",
        status=TaskStatus.PENDING_SUBMIT,
        handler_key="ocr:golden",
        provider_key="golden",
        account="default",
        request_type="golden.request",
        idempotency_key="0198-pending",
        traits=HandlerTraits(),
        created_at=NOW,
        scheduled_at=NOW,
        deadline_at=NOW + timedelta(hours=24),
        due_at=NOW,
        updated_at=NOW,
    )
    running = pending.evolve(
        id="0198-running",
        idempotency_key="key-of-the-caller",
        status=TaskStatus.RUNNING,
        version=7,
        generation=2,
        tenant="acme",
        priority=-3,
        dedupe_key="invoice-7",
        metadata={"customer": "c-1", "tags": ["a", "b"]},
        cancel_on_deadline=True,
        traits=HandlerTraits(
            resubmit="idempotent",
            has_lookup=True,
            has_cancel=True,
            lookup_delay=timedelta(minutes=3),
            max_job_time=timedelta(hours=2),
            not_found_limit=5,
            keep_params="accepted",
        ),
        deadline=timedelta(hours=1),
        queue_deadline=timedelta(minutes=10),
        stall_limit=timedelta(minutes=5),
        queue_deadline_at=NOW + timedelta(minutes=10),
        stall_at=NOW + timedelta(minutes=5),
        submitted_at=NOW,
        next_step=Step.QUERY,
        cancel=CancelFlag.REQUESTED,
        is_leased=True,
        claims=1,
        query_params=QueryParams("job-1", region="cn-beijing", cursor={"page": 2}),
        progress=37.5,
        provider_status="DOING",
        last_observation=Observation(TaskStatus.RUNNING, 37.5, "DOING", NOW),
        resources=(("file", "f-1"), ("task", "job-1")),
        submit_attempts=2,
        not_sent_count=1,
        query_count=12,
        consecutive_errors=1,
        not_found_count=1,
        lookup_misses=1,
        cancel_tries=1,
        error=Failure("vendor_error", "HTTP 502, 什么", Phase.QUERY, retryable=True),
        notes=("late reply ignored",),
    )
    ended: dict[str, Any] = {
        "next_step": None,
        "due_at": None,
        "finished_at": NOW,
        "is_leased": False,
        "claims": 0,
    }
    succeeded = running.evolve(
        id="0198-succeeded",
        status=TaskStatus.SUCCEEDED,
        verdict=Verdict.VENDOR,
        progress=100.0,
        error=None,
        usage={"page": 2, "token": 0},
        result=Page("https://vendor.example/result.md", (1, 2)),
        result_expires_at=NOW + timedelta(days=1),
        result_gone=True,
        **ended,
    )
    failed = pending.evolve(
        id="0198-failed",
        idempotency_key="0198-failed",
        status=TaskStatus.FAILED,
        verdict=Verdict.VENDOR,
        error=Failure("rejected", "the file is empty", Phase.SUBMIT),
        submit_attempts=1,
        result={"plain": [1, 2.5, None]},
        **ended,
    )
    lookup = pending.evolve(
        id="0198-lookup",
        idempotency_key="0198-lookup",
        status=TaskStatus.SUBMITTING,
        next_step=Step.LOOKUP,
        submit_attempts=1,
        error=Failure("maybe_sent", "reset", Phase.LOOKUP, retryable=True),
    )
    return {
        "pending": (pending, plain),
        "running": (running, full),
        "succeeded": (succeeded, full),
        "failed": (failed, plain),
        "lookup": (lookup, plain),
    }


def picture(value: Any) -> Any:
    """Return a value as plain JSON that names every field: what the files keep of its meaning."""
    if isinstance(value, RawValue):
        return {"raw": value.type, "version": value.version, "data": value.data}
    if attrs.has(type(value)):
        names = (
            value.__dict__ if isinstance(value, Task | Row) else [f.name for f in attrs.fields(type(value))]
        )
        shown = {name: picture(getattr(value, name)) for name in names}
        return shown if isinstance(value, Task | Row) else {"class": type(value).__name__, **shown}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return {"seconds": value.total_seconds()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: picture(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [picture(item) for item in value]
    return value


def to_file(task: Task, request: object) -> dict[str, Any]:
    """Return the content of a golden file."""
    row = Row(**{field.name: getattr(task, field.name) for field in attrs.fields(Row)})
    envelopes = {"params": request, "result": task.result}
    written = {
        name: codec.loads(codec.encode_value(value, field=name, cap=10_000))
        for name, value in envelopes.items()
        if value is not None
    }
    return {
        "row": picture(row),
        "format": codec.FORMAT,
        "record": codec.loads(codec.encode_record(task)),
        **written,
        "task": {
            name: value
            for name, value in picture(task).items()
            if name not in {"unknown_fields", "is_replay"}
        },
        "request": picture(request),
    }


_ROW_READERS: Mapping[str, Any] = {
    "status": TaskStatus,
    "cancel": CancelFlag,
    "next_step": Step,
    **dict.fromkeys(
        ("deadline", "queue_deadline", "stall_limit"), lambda data: timedelta(seconds=data["seconds"])
    ),
}


def from_file(content: Mapping[str, Any]) -> Stored:
    """Return what a store would give out for a golden file."""
    row: dict[str, Any] = {}
    for name, value in content["row"].items():
        if value is None:
            row[name] = None
        elif name.endswith("_at"):
            row[name] = datetime.fromisoformat(value)
        else:
            row[name] = _ROW_READERS.get(name, lambda data: data)(value)
    payloads = {name: codec.dumps(content[name]) for name in ("params", "result") if name in content}
    return Stored(row=Row(**row), format=content["format"], record=codec.dumps(content["record"]), **payloads)
