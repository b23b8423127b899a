"""A worker process for the counted handler: ``counted_worker.py STORE LOG [SECONDS OF A CALL]``."""

import sys
from datetime import timedelta
from pathlib import Path

from tests.fault.scripts.counted import registry

from coatcheck import Accounts, Worker
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.worker import WorkerSettings

store, log, busy = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
Worker(
    SqliteStore(store),
    registry(log, busy),
    accounts=Accounts(),
    settings=WorkerSettings(lease=timedelta(seconds=15), grace=timedelta(seconds=5), threads=8),
).run()
