"""``Worker``: claim, call, commit, until told to stop. What each of these means is decided elsewhere."""

import logging
import os
import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from coatcheck.errors import ConfigError, StoreUnavailableError
from coatcheck.model import Limit
from coatcheck.plugins import Plugins
from coatcheck.registry import Registry
from coatcheck.step import Steps, needs_call
from coatcheck.step.steps import AccountSource
from coatcheck.store import Batch, Kind, Room, Store
from coatcheck.worker.aio import AsyncCalls
from coatcheck.worker.claiming import Claimer
from coatcheck.worker.committing import Committer, Counts
from coatcheck.worker.cutting import Cutter
from coatcheck.worker.health import Health, HealthServer
from coatcheck.worker.held import Held, Item
from coatcheck.worker.inbox import Inbox
from coatcheck.worker.patience import Backoff, Log
from coatcheck.worker.pool import Pool
from coatcheck.worker.renewal import Renewal
from coatcheck.worker.running import Runner
from coatcheck.worker.settings import WorkerSettings
from coatcheck.worker.waiting import Waiting

#: Under load commits are this far apart, in seconds, or this many steps: a group costs little more than one.
LINGER = 0.05
GROUP = 200
#: How long the main loop sleeps at most, in seconds.
BEAT = 1.0
#: How long the last commits of a stopping worker may take beyond its grace, in seconds.
_LAST_WORDS = 5.0
#: How often a round tries to claim.
_TRIES = 5


class Worker:
    """Runs the tasks of a store: claims what it has room for, calls vendors, commits what they said.

    One object serves one process and is used from one thread (``stop`` and ``health`` from any). It does not
    close the store: whoever opened it does, after ``run`` has returned.

    Args:
        store: whose tasks.
        registry: the handlers; what is registered later is seen at the next claim.
        accounts: where credentials are looked up.
        transport: performs the calls of handlers that do no I/O themselves.
        plugins: hear of changes.
        settings: see ``WorkerSettings``.
        limits: configured limits, written at the start where the store has none.
        worker_id: names this worker in the store; by default host, process and a random part.
        monotonic: measures durations, in seconds; for tests.
        rng: random draws from 0 to 1; for tests.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        accounts: AccountSource,
        transport: Any = None,
        plugins: Plugins | None = None,
        settings: WorkerSettings | None = None,
        limits: Sequence[Limit] = (),
        worker_id: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.settings = settings = settings or WorkerSettings()
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._store = store
        self._registry = registry
        self._limits = tuple(limits)
        self._monotonic = monotonic
        self._pid = os.getpid()
        self._steps = Steps(registry, accounts, transport, rng=rng, monotonic=monotonic)
        self._log = log = Log(monotonic)
        self._backoff = Backoff(rng)
        self._counts = Counts()
        self._held = Held(
            room=settings.room,
            threads=settings.threads,
            bounds=settings.per_provider,
            default_bound=settings.default_bound,
            async_calls=settings.async_calls,
        )
        self._claimer = Claimer(
            store,
            self._held,
            worker_id=self.worker_id,
            lease=settings.lease,
            handlers=lambda: tuple(registry.handlers),
            backoff=self._backoff,
            log=log,
            monotonic=monotonic,
        )
        self._committer = Committer(
            store,
            self._steps,
            self._held,
            backoff=self._backoff,
            log=log,
            monotonic=monotonic,
            observer=None if plugins is None else plugins.task_changed,
            counts=self._counts,
        )
        self._runner = Runner(self._steps, settings.lease.total_seconds(), monotonic)
        self._renewal = Renewal(store, self._held, settings.lease, log, monotonic)
        self._inbox = Inbox()
        self._pool = Pool(self._runner.call, self._inbox, settings.threads)
        self._async = AsyncCalls(
            self._runner.call_async, self._inbox, at_end=getattr(transport, "leave", None)
        )
        self._cutter = Cutter(
            self._steps,
            self._held,
            pool=self._pool,
            async_calls=self._async,
            committer=self._committer,
            counts=self._counts,
            lease=settings.lease.total_seconds(),
            log=log,
            monotonic=monotonic,
        )
        self._waiting = Waiting(store, self._hear_news)
        self._health_server: HealthServer | None = None
        self._beat = monotonic()
        self._is_set_up = False
        self._handlers_seen: frozenset[str] = frozenset()
        self._async_providers: frozenset[str] = frozenset()
        self._stops = 0
        self._drain_until: float | None = None
        self._has_news = False
        self._last_commit = 0.0

    # The doors.

    def run(self, *, stop_signals: bool = True) -> None:
        """Work until ``stop`` is called, or until SIGTERM or SIGINT; may be called once.

        Then nothing is claimed any more, steps under way get the grace to end, and what does not end is
        given back (queries, and whatever was not sent) or becomes unknown (submits). A second signal ends the
        grace.

        Args:
            stop_signals: whether to listen to signals; only in the main thread of a process.

        Raises:
            ConfigError: the worker is used in another process than the one it was made in.
        """
        self._check_process()
        with self._signals(listen=stop_signals), self._threads():
            self._log(logging.INFO, "worker_started", "worker %s started", self.worker_id)
            self._round()
            while not self._is_over():
                self._sleep()
                self._round()
            self._log(
                logging.INFO,
                "worker_stopped",
                "worker %s stopped after %d steps",
                self.worker_id,
                self._counts.committed,
            )

    def step(self, *, limit: int | None = None) -> int:
        """Do one bounded round in this thread (claim, run, commit); returns how many steps were written.

        For cron jobs and tests. Leases are renewed meanwhile, but a call that takes longer than its limit is
        not given up: it runs in this thread. Not to be mixed with ``run``.

        Args:
            limit: how many steps at most; by default as many as there are threads.

        Raises:
            StoreError: the store failed, several times; the next call repeats the same claim.
            ConfigError: the worker is used in another process than the one it was made in.
        """
        self._check_process()
        self._set_up()
        before = self._counts.committed
        batch = self._claim_here(Room(total=limit or self.settings.threads, is_idle=not len(self._held)))
        items = self._take(batch)
        if not items:
            return 0
        self._renewal.alive_until = self._monotonic() + self.settings.lease.total_seconds()
        self._renewal.start()
        try:
            self._run_here(items)
        finally:
            self._renewal.stop()
        return self._counts.committed - before

    def stop(self) -> None:
        """Ask ``run`` to end; a second call ends the grace. Safe in signal handlers and from any thread."""
        self._stops += 1
        self._inbox.ring()

    def health(self) -> Health:
        """Return how the worker is; safe from any thread."""
        age = self._monotonic() - self._beat
        return Health(
            worker_id=self.worker_id,
            is_alive=age < max(self.settings.lease.total_seconds(), 2 * BEAT),
            is_draining=self._stops > 0,
            beat_age=age,
            held=len(self._held),
            abandoned=sum(lane.stuck for lane in list(self._held.lanes.values())),
            store_failures=self._backoff.failures,
            committed=self._counts.committed,
            lost_leases=self._counts.lost_leases,
            abandoned_calls=self._counts.abandoned_calls,
        )

    @property
    def health_port(self) -> int | None:
        """The port that health is answered on, while ``run`` runs and if the settings want it."""
        return None if self._health_server is None else self._health_server.port

    # Beginning and end.

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ConfigError(
                f"a worker must be used in the process that made it ({self._pid}), found {os.getpid()}; "
                "make the worker after the fork"
            )

    def _set_up(self) -> None:
        """Write limits that the store has not, once."""
        if self._is_set_up:
            return
        handlers = [resolved.handler for resolved in self._registry.handlers.values()]
        for limits in (
            self._limits,
            tuple(limit for handler in handlers for limit in handler.default_limits),
        ):
            if limits:
                self._store.set_limit(limits, only_missing=True)
        self._is_set_up = True

    @contextmanager
    def _signals(self, *, listen: bool) -> Iterator[None]:
        if not listen or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, lambda *_: self.stop())
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        if self.settings.health_port is not None:
            self._health_server = HealthServer(self.settings.health_port, self.health)
            self._health_server.start()
        self._live()
        self._renewal.start()
        try:
            yield
        finally:
            self._waiting.stop()
            self._pool.stop()
            self._async.stop()
            self._renewal.stop()
            if self._health_server is not None:
                self._health_server.stop()

    def _live(self) -> float:
        now = self._beat = self._monotonic()
        self._renewal.alive_until = now + self.settings.lease.total_seconds()
        return now

    # The loop.

    def _round(self) -> None:
        """Take what ended, give up what takes too long, commit, and claim."""
        self._gather()
        now = self._live()
        self._collect()
        self._cutter.watch()
        if self._stops:
            self._drain()
        if now >= self._backoff.until:
            self._commit()
            self._claim()

    def _gather(self) -> None:
        """Under load, wait a little so that the next commit carries a group."""
        is_worth_while = self._held.pace * LINGER >= 2 and (self._pool.is_busy or self._async.is_busy)
        if is_worth_while and len(self._inbox) and not self._stops:
            left = self._last_commit + LINGER - self._monotonic()
            if left > 0:
                self._inbox.wait(left, GROUP)

    def _collect(self) -> None:
        """Take in what ended."""
        for item in self._inbox.take():
            self._runner.finish(item)
            if item.is_late:
                self._cutter.end_late(item)
                self._claimer.hurry()
            else:
                self._committer.add((item,))

    def _commit(self) -> None:
        if not self._committer.has_work:
            return
        soonest = self._committer.run()
        self._last_commit = self._monotonic()
        for account in self._committer.unknown_accounts:
            self._skip(account)
        self._committer.unknown_accounts.clear()
        if soonest is not None:
            self._claimer.hurry(soonest)
        if self._held.was_tight:
            self._claimer.hurry()

    def _skip(self, account: str) -> None:
        self._claimer.skip(account)
        self._log(
            logging.WARNING,
            "unknown_account",
            "account %r is not configured here; its tasks are left to other workers for a minute",
            account,
            subject=account,
            account=account,
        )

    def _claim(self) -> None:
        if self._has_news:
            self._has_news = False
            self._claimer.hurry()
        now = self._monotonic()
        if self._stops:
            if self._claimer.is_unanswered:
                self._give_back_unanswered()
            return
        if now < self._claimer.next_at or not self._claimer.is_possible:
            return
        try:
            self._set_up()
        except Exception as error:  # noqa: BLE001  # whatever the store has, the worker goes on (G10)
            delay = self._backoff.fail(now)
            self._log(logging.WARNING, "store_unavailable", "trying again in %.1f s: %s", delay, error)
            return
        self._held.async_providers = self._find_async_providers()
        batch = self._claimer.try_claim()
        if batch is None:
            return
        if self._stops:
            # Asked to stop while the store answered.
            self._give_back(batch)
            return
        self._dispatch(self._take(batch))
        if not self._waiting.is_waiting and self._claimer.next_at > self._monotonic():
            left = self._claimer.next_at - self._monotonic()
            self._waiting.wait(batch.mark, timedelta(seconds=left))

    def _give_back_unanswered(self) -> None:
        """Learn what a claim gave out whose answer was lost, and give it back: none of it was sent."""
        batch = self._claimer.try_claim()
        if batch is not None:
            self._give_back(batch)

    def _give_back(self, batch: Batch) -> None:
        """Return what was claimed and not begun; steps without a call end here."""
        for item in self._take(batch):
            if item.lane is None:
                self._dispatch((item,))
            else:
                self._cutter.take_back(item)

    def _find_async_providers(self) -> frozenset[str]:
        handlers = self._registry.handlers
        if handlers.keys() != self._handlers_seen:
            self._handlers_seen = frozenset(handlers)
            self._async_providers = frozenset(
                resolved.handler.provider_key
                for key, resolved in handlers.items()
                if self._steps.is_async(key, Kind.SUBMIT) or self._steps.is_async(key, Kind.QUERY)
            )
        return self._async_providers

    def _take(self, batch: Batch) -> list[Item]:
        """Hold the leases of a batch."""
        now, items = self._monotonic(), []
        for lease in batch.leases:
            lane = self._held.lane(lease.stored.row.provider_key) if needs_call(lease) else None
            item = Item(lease, lane, batch.now, self._claimer.sent_at, now)
            self._held.add(item)
            items.append(item)
        return items

    def _dispatch(self, items: Iterable[Item]) -> None:
        """Have calls made; steps without one end here, and never wait behind calls that hang."""
        threaded: list[Item] = []
        on_loop: list[Item] = []
        for item in items:
            if not self._runner.prepare(item) or item.lane is None:
                self._committer.add((item,))
            elif item.lane.is_async and self._steps.is_async(
                item.lease.stored.row.handler_key, item.lease.kind
            ):
                item.is_on_loop = True
                on_loop.append(item)
            else:
                threaded.append(item)
        if threaded:
            self._pool.put(threaded)
        if on_loop:
            self._async.put(on_loop)

    def _hear_news(self) -> None:
        self._has_news = True
        self._inbox.ring()

    def _sleep(self) -> None:
        """Wait until a step ends, there is news, or something is to be done."""
        now = self._monotonic()
        if len(self._inbox):
            return
        until = now + BEAT
        if len(self._held):
            until = min(until, max(self._cutter.next_at, now + 0.001))
        if self._backoff.until > now:
            until = min(until, self._backoff.until)
        else:
            if self._committer.has_group:
                return
            times = [self._committer.next_at()]
            if not self._stops and self._claimer.is_possible:
                times.append(self._claimer.next_at)
            until = min([until, *(at for at in times if at is not None)])
        if self._drain_until is not None and self._drain_until > now:
            until = min(until, self._drain_until)
        if until > now and not self._has_news:
            self._inbox.wait(until - now)

    # The end.

    def _drain(self) -> None:
        """Give back what has not begun; when the grace is over, cut off what has not ended."""
        now = self._monotonic()
        if self._drain_until is None:
            self._drain_until = now + self.settings.grace.total_seconds()
            running = sum(not self._cutter.take_back(item) for item in self._cutter.unfinished())
            self._log(
                logging.INFO,
                "worker_stopping",
                "worker %s stops; %d steps have %s to end",
                self.worker_id,
                running,
                self.settings.grace,
                running=running,
            )
        if self._stops > 1:
            self._drain_until = min(self._drain_until, now)
        if now >= self._drain_until:
            for item in self._cutter.unfinished():
                self._cutter.cut_off(item)

    def _is_over(self) -> bool:
        if self._drain_until is None:
            return False
        if not len(self._held) and not self._committer.has_work and not self._claimer.is_unanswered:
            return True
        if self._monotonic() < self._drain_until + _LAST_WORDS:
            return False
        left = self._committer.forget()
        self._log(logging.ERROR, "not_written", "%d steps could not be written before the worker ended", left)
        return True

    # In this thread.

    def _claim_here(self, room: Room) -> Batch:
        """Claim, trying a few times: an answer that is lost for good leaves submits that nobody sent."""
        for _ in range(_TRIES - 1):
            try:
                return self._claimer.claim(room)
            except StoreUnavailableError:
                time.sleep(self._backoff.fail(self._monotonic()))
        return self._claimer.claim(room)

    def _run_here(self, items: list[Item]) -> None:
        lease = self.settings.lease.total_seconds()
        try:
            for item in items:
                limit = self._call_limit(item)
                self._beat = self._monotonic()
                self._renewal.alive_until = self._beat + lease + limit
                self._runner.run(item)
                self._committer.add((item,))
                if self._monotonic() - self._last_commit >= LINGER:
                    self._commit_here()
            self._commit_here()
        finally:
            # An exception from the store: what was not acknowledged is left to its lease.
            self._committer.forget()
            for item in items:
                self._held.drop(item)

    def _call_limit(self, item: Item) -> float:
        resolved = self._registry.handlers.get(item.lease.stored.row.handler_key)
        return 0.0 if resolved is None else resolved.handler.call_limit.total_seconds()

    def _commit_here(self) -> None:
        """Commit, trying for half a lease while the store does not answer."""
        end = self._monotonic() + self.settings.lease.total_seconds() / 2
        self._commit()
        while self._committer.has_group:
            left = self._backoff.until - self._monotonic()
            if self._monotonic() + max(left, 0) > end:
                raise StoreUnavailableError(
                    "the store did not acknowledge the steps of this round; "
                    "they go on when their leases have run out"
                )
            time.sleep(max(left, 0))
            self._commit()
