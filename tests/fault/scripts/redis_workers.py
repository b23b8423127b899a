"""Worker processes that come and go quickly: ``redis_workers.py URL NAMESPACE VENDOR LOG LEASE``.

Each line on standard input starts a worker, whose process id is printed: a fork, because a fault test starts
many and imports cost more than what it tests. When the input ends, all workers that are left are killed.

Every worker writes down what its store granted and what it was about to send, in one file; what a killed one
had no time to write only makes the test's claims weaker, never wrong.
"""

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from coatcheck.accounts import Accounts
from coatcheck.registry import Registry
from coatcheck.store import Batch, Committed, Room, Store, Transition
from coatcheck.testing.vendor import VendorHandler
from coatcheck.transport.over_aiohttp import AiohttpTransport
from coatcheck.worker import Worker, WorkerSettings
from coatcheck_redis import plugin

ACCOUNTS = ("left", "right")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    """Return an instant as whole microseconds since the epoch."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def accounts() -> Accounts:
    """Return the accounts; a job's secret says at the vendor whose it is."""
    return Accounts({name: {"secret": partial(_secret_of, name)} for name in ACCOUNTS}, environ={})


def _secret_of(name: str) -> str:
    return f"secret-of-{name}"


def registry(vendor_url: str) -> Registry:
    """Return the handler of the vendor, which honours the key, and the store's scheme."""
    made = Registry()
    made.add_handler(VendorHandler(vendor_url, account=ACCOUNTS[0], signs=True))
    plugin.coatcheck_register_stores(made)
    return made


class Noted:
    """A store that writes down leases, renewals and commits."""

    def __init__(self, store: Store, log: Path) -> None:
        self._store = store
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _note(self, lines: Iterable[str]) -> None:
        # Whole lines in one write: a kill leaves no half of one.
        if text := "".join(f"{line}\n" for line in lines):
            os.write(self._log, text.encode())

    def claim(
        self,
        worker_id: str,
        nonce: str,
        *,
        format: int,
        handlers: Collection[str],
        room: Room,
        lease: timedelta,
        skip: Collection[str] = (),
        only: Sequence[str] | None = None,
    ) -> Batch:
        """Note what was granted: when, and until when."""
        batch = self._store.claim(
            worker_id, nonce, format=format, handlers=handlers, room=room, lease=lease, skip=skip, only=only
        )
        length = lease // timedelta(microseconds=1)
        ends = [(one, micros(one.expires_at)) for one in batch.leases]
        self._note(f"claim {one.task_id} {one.token} {one.kind} {end - length} {end}" for one, end in ends)
        return batch

    def renew(self, leases: Sequence[tuple[str, str]], lease: timedelta) -> Sequence[bool]:
        """Note which leases stand for another while, at least."""
        until = time.time_ns() // 1000 + lease // timedelta(microseconds=1)
        answers = self._store.renew(leases, lease)
        self._note(
            f"renew {task_id} {token} {until}"
            for (task_id, token), is_held in zip(leases, answers, strict=True)
            if is_held
        )
        return answers

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Note what is about to be committed: from here on the task may be claimed again."""
        now = time.time_ns() // 1000
        self._note(f"commit {one.task_id} {one.key} {now}" for one in transitions if one.is_leased)
        return self._store.commit(transitions)


def work(url: str, namespace: str, vendor_url: str, log: str, lease: str) -> None:
    """Be a worker until SIGTERM."""
    known = registry(vendor_url)
    store = known.open_store(url, namespace=namespace)
    transport = AiohttpTransport()
    Worker(
        Noted(store, Path(log)),
        known,
        accounts=accounts(),
        transport=transport,
        settings=WorkerSettings(
            lease=timedelta(seconds=float(lease)), grace=timedelta(seconds=10), threads=4, room=48
        ),
    ).run()
    transport.close()
    store.close()


def main(*arguments: str) -> None:
    """Start a worker for each line of input."""
    pids = []
    while sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                sys.stdin.close()
                logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
                work(*arguments)
                code = 0
            except BaseException:  # noqa: BLE001  # the child must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in pids:
        # Nobody waited for them, so the ids are still theirs.
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
