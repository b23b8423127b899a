"""A worker for one vendor, to be killed: ``slots_worker.py STORE URL MAX_JOB_TIME``."""

import logging
import sys
from datetime import timedelta

from coatcheck.accounts import Accounts
from coatcheck.registry import Registry
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.vendor_matrix import QUICK
from coatcheck.transport import RequestsTransport
from coatcheck.worker import Worker, WorkerSettings
from coatcheck_video.kling import KlingHandler

#: A short lease, so that the test waits little for dead workers.
LEASE = timedelta(seconds=1)
ACCOUNT = "kling"


def registry(url: str, max_job_time: float) -> Registry:
    """Return what has the vendor's handler; this vendor stops no job, and finds one by our key."""
    handler = KlingHandler(url, account=ACCOUNT, poll=QUICK)
    # A lookup comes no earlier than a submit may still be under way.
    handler.call_limit = timedelta(seconds=2)
    handler.max_job_time = timedelta(seconds=max_job_time)
    made = Registry()
    made.add_handler(handler)
    return made


def main(path: str, url: str, max_job_time: str) -> None:
    """Work until killed; says "ready" once everything is set up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    store = SqliteStore(path)
    worker = Worker(
        store,
        registry(url, float(max_job_time)),
        accounts=Accounts({ACCOUNT: {"secret": lambda: "sandbox-key"}}, environ={}),
        transport=RequestsTransport(),
        settings=WorkerSettings(lease=LEASE, threads=8),
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    worker.run()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
