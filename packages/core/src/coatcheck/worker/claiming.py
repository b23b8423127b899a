"""Claiming: when, how much, and the same claim again when the store's reply was lost."""

import logging
import secrets
from collections.abc import Callable, Collection
from datetime import timedelta

from attrs import frozen

from coatcheck import codec
from coatcheck.store import Batch, Room, Store
from coatcheck.worker.held import Held
from coatcheck.worker.patience import Backoff, Log

#: An idle worker claims this often at least, to show that it is there; in seconds.
IDLE = 30.0
#: And at least once in this part of a lease: a worker that died told nobody when its leases run out.
_LEASE_SHARE = 1 / 3
#: A worker without room claims this often, for what needs none; in seconds.
FULL = 5.0
#: How long an account that is not configured here is left out, in seconds.
SKIP = 60.0


@frozen
class _Sent:
    """A claim that was sent and not yet answered."""

    nonce: str
    room: Room
    skip: tuple[str, ...]
    at: float


class Claimer:
    """Claims for one worker.

    Args:
        store: where from.
        held: says how much room there is.
        worker_id: who claims.
        lease: how long claims last.
        handlers: returns the keys that can be run here.
        backoff: how long a failing store is left alone.
        log: says what went wrong.
        monotonic: measures durations, in seconds.
    """

    def __init__(
        self,
        store: Store,
        held: Held,
        *,
        worker_id: str,
        lease: timedelta,
        handlers: Callable[[], Collection[str]],
        backoff: Backoff,
        log: Log,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._held = held
        self._worker_id = worker_id
        self._lease = lease
        self._handlers = handlers
        self._backoff = backoff
        self._log = log
        self._monotonic = monotonic
        self._unanswered: _Sent | None = None
        self._skips: dict[str, float] = {}
        self._waits_for_idle = False
        #: When to claim next, by the monotonic clock.
        self.next_at = 0.0
        #: When the claim behind the last batch was first sent: the leases count from there.
        self.sent_at = 0.0

    @property
    def is_possible(self) -> bool:
        """Whether a claim is allowed: no suspect is held, and none waits until nothing is held."""
        if self._held.is_alone:
            return False
        return not self._waits_for_idle or not len(self._held)

    @property
    def is_unanswered(self) -> bool:
        """Whether the store may have given out leases that this worker does not know of yet."""
        return self._unanswered is not None

    def skip(self, account: str) -> None:
        """Leave an account out for a minute."""
        self._skips[account] = self._monotonic() + SKIP

    def hurry(self, delay: float = 0.0) -> None:
        """Claim after ``delay`` seconds, if not earlier."""
        self.next_at = min(self.next_at, self._monotonic() + delay)

    def claim(self, room: Room | None = None) -> Batch:
        """Claim, or repeat the claim that was not answered.

        Args:
            room: how much; by default what is free.

        Raises:
            Exception: whatever the store raised; the next call repeats this claim.
        """
        now = self._monotonic()
        sent = self._unanswered
        if sent is None:
            self._skips = {account: until for account, until in self._skips.items() if until > now}
            sent = _Sent(secrets.token_hex(16), room or self._held.room(now), tuple(sorted(self._skips)), now)
            self._unanswered = sent
        batch = self._store.claim(
            self._worker_id,
            sent.nonce,
            format=codec.FORMAT,
            handlers=self._handlers(),
            room=sent.room,
            lease=self._lease,
            skip=sent.skip,
        )
        self._unanswered = None
        self._backoff.succeed()
        self.sent_at = sent.at
        self._waits_for_idle = batch.has_suspects
        self._held.note_claim(sent.room, batch.leases)
        self.next_at = now if batch.has_suspects else now + self._pause(batch, sent.room)
        return batch

    def try_claim(self) -> Batch | None:
        """Claim; a failure is logged, and the claim is repeated after a while."""
        try:
            return self.claim()
        except Exception as error:  # noqa: BLE001  # whatever the store has, the worker goes on (G10)
            delay = self._backoff.fail(self._monotonic())
            self._log(
                logging.WARNING,
                "store_unavailable",
                "the store does not answer a claim, trying again in %.1f s: %s",
                delay,
                error,
                subject="claim",
            )
            return None

    def _pause(self, batch: Batch, room: Room) -> float:
        """Return after how many seconds to claim again if nothing is heard."""
        pause = min(IDLE, self._lease.total_seconds() * _LEASE_SHARE)
        if batch.next_at is not None:
            pause = min(pause, max(0.0, (batch.next_at - batch.now).total_seconds()))
        for until in self._skips.values():
            pause = min(pause, max(0.0, until - self._monotonic()))
        if not batch.leases and pause <= 0:
            # Something is due that this worker has no room for; a step that ends makes some.
            pause = FULL if room.total <= 0 else 0.05
        return pause
