"""Submit counted tasks one by one: ``counted_submitter.py STORE LOG FIRST COUNT``."""

import sys
from pathlib import Path

from tests.fault.scripts.counted import Counted, registry

from coatcheck import Manager
from coatcheck.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
manager = Manager(store, registry(Path(sys.argv[2])))
first, count = int(sys.argv[3]), int(sys.argv[4])
for number in range(first, first + count):
    manager.submit(Counted(number), tenant=f"t{number % 5}")
manager.close()
store.close()
