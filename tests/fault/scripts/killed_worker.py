"""A worker as a process of its own, to be killed: ``killed_worker.py STORE URL LEASE [CALL_LIMIT]``."""

import logging
import sys
from datetime import timedelta

from tests.fault.scripts.stores import open_store

from coatcheck.accounts import Accounts
from coatcheck.registry import Registry
from coatcheck.testing.vendor import LookupVendorHandler, PlainVendorHandler, VendorHandler
from coatcheck.transport import RequestsTransport
from coatcheck.worker import Worker, WorkerSettings


def main(url: str, vendor_url: str, lease: str, call_limit: str = "3") -> None:
    """Work until killed; says "ready" once everything is set up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    registry = Registry()
    for handler in (VendorHandler, PlainVendorHandler, LookupVendorHandler):
        registry.add_handler(handler(vendor_url, call_limit=timedelta(seconds=float(call_limit))))
    store = open_store(url)
    worker = Worker(
        store,
        registry,
        accounts=Accounts(environ={}),
        transport=RequestsTransport(),
        settings=WorkerSettings(lease=timedelta(seconds=float(lease)), threads=16),
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    worker.run()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
