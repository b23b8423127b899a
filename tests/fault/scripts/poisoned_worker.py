"""A worker whose handler ends the whole process for one request: ``python poisoned_worker.py STORE``."""

import os
import sys
from datetime import timedelta

from attrs import frozen
from tests.fault.scripts.stores import open_store

from coatcheck.accounts import Accounts
from coatcheck.codec import persistent
from coatcheck.handler import TaskHandler
from coatcheck.model import QueryContext, QueryParams, QueryResult, SubmitContext, SubmitResult
from coatcheck.policy import PollPolicy
from coatcheck.registry import Registry
from coatcheck.worker import Worker, WorkerSettings

#: A short lease, so that the test waits little for dead workers.
LEASE = timedelta(seconds=0.5)


@persistent("test.poison")
@frozen
class Poison:
    """A request that is harmless, or deadly at its "submit" or its "query"."""

    deadly_at: str = ""


class PoisonHandler(TaskHandler[Poison]):
    """Takes every request; a deadly one kills its worker."""

    key = "test:poison"
    resubmit = "idempotent"
    poll = PollPolicy(first=timedelta(), start=timedelta(), jitter=0)

    def submit(self, params: Poison, context: SubmitContext) -> SubmitResult:
        """Take it, or die without a word."""
        if params.deadly_at == "submit":
            os._exit(9)
        return SubmitResult.submitted(QueryParams("job", deadly_at=params.deadly_at))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Succeed, or die without a word."""
        if params["deadly_at"] == "query":
            os._exit(9)
        return QueryResult.succeeded("done")


def registry() -> Registry:
    """Return what has the handler."""
    made = Registry()
    made.add_handler(PoisonHandler())
    return made


def main(url: str) -> None:
    """Work until something kills it, or SIGTERM."""
    store = open_store(url)
    worker = Worker(
        store, registry(), accounts=Accounts(environ={}), settings=WorkerSettings(lease=LEASE, threads=4)
    )
    worker.run()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
