"""A thread that renews all leases at once, as long as the main loop is alive."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from coatcheck.store import Store
from coatcheck.worker.held import Held
from coatcheck.worker.patience import Log

#: How long to wait after a renewal that failed, as a part of the time between renewals.
_AGAIN = 0.1


class Renewal:
    """Renews what is held each third of a lease.

    A main loop that hangs must lose its leases, so that others go on with its tasks: no renewal is sent when
    it has not beaten for a lease. Its beat is ``alive_until``, by the monotonic clock.

    Args:
        store: where leases are renewed.
        held: the leases.
        lease: their length.
        log: says what went wrong.
        monotonic: measures durations, in seconds.
    """

    def __init__(
        self,
        store: Store,
        held: Held,
        lease: timedelta,
        log: Log,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._held = held
        self._lease = lease
        self._log = log
        self._monotonic = monotonic
        self._every = lease.total_seconds() / 3
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: The main loop promises to beat again before this time.
        self.alive_until = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, name="coatcheck-renewal", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for a renewal that is under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._every)
            self._thread = None

    def _work(self) -> None:
        delay = self._every
        while not self._stop.wait(delay):
            delay = self._every if self.renew() else self._every * _AGAIN

    def renew(self) -> bool:
        """Renew once; false when the store did not answer."""
        items = self._held.snapshot()
        if not items:
            return True
        sent = self._monotonic()
        if sent >= self.alive_until:
            self._log(
                logging.ERROR,
                "renewal_stopped",
                "the main loop has not moved for a lease: its leases are not renewed any more",
            )
            return True
        try:
            answers = self._store.renew(
                [(item.lease.task_id, item.lease.token) for item in items], self._lease
            )
        except Exception as error:  # noqa: BLE001  # whatever it was, the leases run on and it is tried again
            self._log(logging.WARNING, "renewal_failed", "leases could not be renewed: %s", error)
            return False
        for item, is_good in zip(items, answers, strict=True):
            if is_good:
                item.proved_at = sent
            else:
                # Somebody else has it, or its commit was just written; the commit's answer tells.
                item.is_lost = True
        return True
