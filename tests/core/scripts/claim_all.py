"""Claim and finish tasks one at a time until none is left; print their ids."""

import secrets
import sys
from datetime import timedelta

from coatcheck.model import Job, TaskStatus
from coatcheck.store import Room, Transition
from coatcheck.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
worker = secrets.token_hex(4)
while True:
    batch = store.claim(
        worker,
        secrets.token_hex(8),
        format=1,
        handlers=["contract:ocr"],
        room=Room(total=2),
        lease=timedelta(minutes=5),
    )
    if not batch.leases:
        break
    store.commit(
        [
            Transition(
                task_id=lease.task_id,
                key=lease.token,
                status=TaskStatus.SUCCEEDED,
                generation=1,
                next_step=None,
                delay=None,
                job=Job.NONE,
                format=1,
                record=b"done",
            )
            for lease in batch.leases
        ]
    )
    for lease in batch.leases:
        sys.stdout.write(f"{lease.task_id}\n")
store.close()
