"""A handler that writes down every call it makes, for tests with several processes."""

import os
import time
from datetime import timedelta
from pathlib import Path

from attrs import frozen

from coatcheck import PollPolicy, QueryParams, QueryResult, Registry, SubmitResult, TaskHandler, persistent
from coatcheck.model import QueryContext, SubmitContext


@persistent("test.fault.counted")
@frozen
class Counted:
    """A request: how long the job takes, in queries."""

    number: int
    queries: int = 2


@persistent("test.fault.done")
@frozen
class Done:
    """The result."""

    number: int


class CountedHandler(TaskHandler[Counted]):
    """Notes each call as ``kind task number`` in one file; lines of this length are written in one piece."""

    key = "test:counted"
    account = "counted"
    poll = PollPolicy(first=timedelta(), start=timedelta(), jitter=0)

    def __init__(self, log: Path, busy: float = 0.0) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._busy = busy

    def _note(self, *words: object) -> None:
        os.write(self._log, (" ".join(str(word) for word in words) + "\n").encode())

    def submit(self, params: Counted, context: SubmitContext) -> SubmitResult:
        """Note the submit; the vendor's id says how the job goes."""
        self._note("submit", context.task_id, params.number, time.time())
        time.sleep(self._busy)
        return SubmitResult.submitted(QueryParams(f"job-{params.number}", queries=params.queries))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Note the query; the last one ends the job."""
        self._note("query", context.task_id, context.query_count, time.time())
        time.sleep(self._busy)
        if context.query_count + 1 < params["queries"]:
            return QueryResult.running()
        self._note("end", context.task_id, 0, time.time())
        return QueryResult.succeeded(Done(int(params.external_task_id.removeprefix("job-"))))


def registry(log: Path, busy: float = 0.0) -> Registry:
    """Return a registry that holds the handler."""
    registry = Registry()
    registry.add_handler(CountedHandler(log, busy))
    return registry
