"""Many workers on one Redis: workers are killed and frozen, the server goes down, connections are cut.

``COATCHECK_TEST_TASKS=50000`` takes that many tasks in place of 5,000, with as many more faults;
``COATCHECK_TEST_SEED`` repeats the order of the faults.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest
from attrs import define
from tests.fault.scripts import redis_workers
from tests.store_redis.servers import RedisServer

from coatcheck.errors import StoreUnavailableError
from coatcheck.manager import Manager
from coatcheck.model import Limit, Rate, Side, SubmitOptions, TaskStatus
from coatcheck.store import Filter, NewTask, Page, Store
from coatcheck.testing.vendor import JobRequest, VendorCall, VendorProcess

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "redis_workers.py"
TASKS = int(os.environ.get("COATCHECK_TEST_TASKS") or 5000)
WORKERS = 8
TENANTS = 10
#: Short enough that a dead worker's tasks are soon gone on with, long enough for a restart of the server.
LEASE = 4.0
#: Submits a second of the provider; what they take at least leaves time for the faults.
RATE = Rate(125, timedelta(milliseconds=500))
ACCOUNT_LIVE = 60
TENANT_LIVE = 13
#: What goes wrong while 5,000 tasks run, in any order.
FAULTS = ["kill"] * 6 + ["freeze"] * 3 + ["freeze long"] * 2 + ["cut"] * 4 + ["restart", "crash"]
PATIENCE = 240.0 + TASKS / 25

T = TypeVar("T")


class Workers:
    """Worker processes that are started, killed and frozen."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "workers.log"
        with self.log.open("ab") as log:
            self._starter = subprocess.Popen(
                [sys.executable, str(SCRIPT), *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.pids: list[int] = []

    def start(self) -> None:
        """Start one more."""
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.write("\n")
        self._starter.stdin.flush()
        line = self._starter.stdout.readline()
        assert line, self.log.read_text()[-5000:]
        self.pids.append(int(line))

    def kill(self, number: int) -> None:
        """Kill one; its process id is not given to another before all are ended."""
        os.kill(self.pids.pop(number), signal.SIGKILL)

    def close(self) -> None:
        """Kill all."""
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.close()
        self._starter.stdout.close()
        assert self._starter.wait(60) == 0, self.log.read_text()[-5000:]


def patiently(call: Callable[[], T]) -> T:
    """Repeat a call until the store answers it."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except StoreUnavailableError:
            assert time.monotonic() < end
            time.sleep(0.05)


@define
class Standing:
    """A lease that a worker was given, as its notes tell it."""

    token: str
    kind: str
    granted: int
    #: It stands until then, at least: renewals that nobody wrote down are missing.
    until: int
    #: When its commit was sent at the earliest; ``None``: never.
    committed: int | None = None


def read_leases(notes: Path) -> dict[str, list[Standing]]:
    """Return the leases of each task in the order in which the store granted them."""
    leases: dict[str, dict[str, Standing]] = defaultdict(dict)
    for line in notes.read_text().splitlines():
        verb, task_id, token, *rest = line.split()
        if verb == "claim":
            kind, granted, until = rest
            # A claim that was repeated after a lost reply gives out the same leases.
            leases[task_id].setdefault(token, Standing(token, kind, int(granted), int(until)))
            continue
        lease = leases[task_id][token]
        if verb == "renew":
            lease.until = max(lease.until, int(rest[0]))
        elif lease.committed is None:
            lease.committed = int(rest[0])
    return {
        task_id: sorted(found.values(), key=lambda lease: lease.granted) for task_id, found in leases.items()
    }


def peaks(calls: list[VendorCall], polls: dict[str, int], whose: Callable[[VendorCall], str]) -> Counter[str]:
    """Return how many jobs were live at the same time at the vendor, at most, for each owner."""
    live: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    for call in calls:
        if call.created:
            live[whose(call)] += 1
            peak[whose(call)] = max(peak[whose(call)], live[whose(call)])
        elif call.call == "query" and call.job is not None and call.text is not None:
            looks[call.job] += 1
            # The query that is told the end.
            live[whose(call)] -= looks[call.job] == polls[call.text] + 1
    return peak


class Faults:
    """Does to workers and server what goes wrong."""

    def __init__(self, server: RedisServer, workers: Workers, rng: random.Random) -> None:
        self._server = server
        self._workers = workers
        self._rng = rng
        self._frozen: list[tuple[float, int]] = []

    def do(self, fault: str) -> None:
        """Let one thing go wrong."""
        match fault:
            case "kill":
                self._workers.kill(self._rng.randrange(WORKERS))
                self._workers.start()
            case "freeze" | "freeze long":
                pid = self._rng.choice(self._workers.pids)
                os.kill(pid, signal.SIGSTOP)
                share = self._rng.uniform(1.2, 1.6) if fault == "freeze long" else self._rng.uniform(0.1, 0.5)
                self._frozen.append((time.monotonic() + share * LEASE, pid))
            case "cut":
                self._server.cut()
            case "restart":
                self._server.restart(away=self._rng.uniform(0.0, 0.5))
            case "crash":
                self._server.restart(kill=True)

    def thaw(self, *, everybody: bool = False) -> None:
        """Let those go on that were frozen for long enough."""
        for until, pid in list(self._frozen):
            if everybody or until <= time.monotonic():
                os.kill(pid, signal.SIGCONT)
                self._frozen.remove((until, pid))


def text_of(number: int) -> str:
    """Return a request's text, which says whose it is."""
    return f"{number % TENANTS} {number}"


def request_of(number: int) -> JobRequest:
    """Return one of the requests: one to three queries, of up to 90 ms each, so that kills meet some."""
    return JobRequest.of(text_of(number), polls=number % 3, latency=number % 4 * 0.03)


def options_of(number: int) -> SubmitOptions:
    """Return the options of the task for it; with the key, a submit may be repeated until it is answered."""
    account = redis_workers.ACCOUNTS[number % 2]
    return SubmitOptions(account=account, tenant=str(number % TENANTS), dedupe_key=text_of(number))


class _KeptError(Exception):
    """Ends a submit whose task was kept back."""


def drafts(manager: Manager, count: int) -> list[NewTask]:
    """Return the tasks that a manager would store for the first requests."""
    kept: list[NewTask] = []

    class Keeping:
        def list(self, where: Filter, *, limit: int) -> Page:
            return Page(items=(), cursor=None)

        def add(self, tasks: Sequence[NewTask]) -> NoReturn:
            kept.extend(tasks)
            raise _KeptError

    store, manager.store = manager.store, Keeping()  # type: ignore[assignment]  # all that a submit needs
    for number in range(count):
        with suppress(_KeptError):
            manager.submit(request_of(number), options_of(number))
    manager.store = store
    return kept


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
def test_every_limit_and_lease_holds_whatever_dies(redis_server: RedisServer, tmp_path: Path) -> None:
    """All tasks end SUCCEEDED with one job each, under three limits, whatever dies (G1 to G3, G5, G6)."""
    seed = int(os.environ.get("COATCHECK_TEST_SEED") or random.SystemRandom().randrange(2**32))
    rng = random.Random(seed)
    notes = tmp_path / "notes.log"
    polls = {text_of(number): number % 3 for number in range(TASKS)}
    wrong: list[BaseException] = []
    with ExitStack() as stack:
        vendor = stack.enter_context(VendorProcess(tmp_path / "vendor.log"))
        registry = redis_workers.registry(vendor.url)

        def open_manager() -> Manager:
            store = registry.open_store(redis_server.url, namespace="fault")
            stack.callback(store.close)
            return Manager(store, registry, accounts=redis_workers.accounts())

        manager = open_manager()
        store: Store = manager.store
        store.set_limit(
            [
                Limit(provider="test:vendor", side=Side.SUBMIT, rate=RATE),
                Limit(account="*", live=ACCOUNT_LIVE),
                Limit(tenant="*", live=TENANT_LIVE),
            ]
        )
        # Most tasks wait from the start, so that limits hold them back; the others come during the faults.
        waiting = drafts(manager, TASKS * 3 // 4)
        for start in range(0, len(waiting), 500):
            store.add(waiting[start : start + 500])
        workers = Workers(tmp_path, redis_server.url, "fault", vendor.url, str(notes), str(LEASE))
        stack.callback(workers.close)
        for _ in range(WORKERS):
            workers.start()

        def submit() -> None:
            try:
                for number in range(len(waiting), TASKS):
                    patiently(partial(submitter.submit, request_of(number), options_of(number)))
            except BaseException as error:
                wrong.append(error)
                raise

        submitter = open_manager()
        submitting = threading.Thread(target=submit, daemon=True)
        submitting.start()
        faults, was_blocked = Faults(redis_server, workers, rng), False
        for fault in rng.sample(FAULTS, k=len(FAULTS)) * max(1, TASKS // 5000):
            pause = time.monotonic() + rng.uniform(0.3, 1.5)
            while time.monotonic() < pause:
                time.sleep(0.02)
                faults.thaw()
            was_blocked = was_blocked or patiently(store.stats).blocked_lanes > 0
            faults.do(fault)
        end = time.monotonic() + PATIENCE
        while (stats := patiently(store.stats)).by_status[TaskStatus.SUCCEEDED] < TASKS:
            assert not wrong, wrong
            assert time.monotonic() < end, (seed, stats, workers.log.read_text()[-5000:])
            faults.thaw()
            was_blocked = was_blocked or stats.blocked_lanes > 0
            if stats.quarantined:
                # Three kills can meet the same task; an operator frees it.
                quarantined = store.list(Filter(quarantined=True), limit=1000).items
                store.make_due([stored.row.id for stored in quarantined], redrive=True)
            time.sleep(0.2)
        faults.thaw(everybody=True)
        submitting.join(PATIENCE)
        assert sum(stats.by_status.values()) == TASKS
        calls = vendor.calls
        log = f"COATCHECK_TEST_SEED={seed}\n{workers.log.read_text()[-5000:]}"

    jobs = Counter(call.text for call in calls if call.created)
    assert jobs == dict.fromkeys(polls, 1), log
    assert was_blocked, "no limit ever refused a task, so nothing was tested"
    of_accounts = peaks(calls, polls, lambda call: str(call.token))
    assert set(of_accounts) == {f"secret-of-{name}" for name in redis_workers.ACCOUNTS}
    assert max(of_accounts.values()) <= ACCOUNT_LIVE, (of_accounts, log)
    of_tenants = peaks(calls, polls, lambda call: str(call.text).split()[0])
    assert max(of_tenants.values()) <= TENANT_LIVE, (of_tenants, log)
    leases = read_leases(notes)
    assert any(lease.committed is None for found in leases.values() for lease in found), (
        "no fault met a lease"
    )
    permits = sorted(
        lease.granted for found in leases.values() for lease in found if lease.kind in {"submit", "resubmit"}
    )
    window = RATE.per // timedelta(microseconds=1)
    for first, last in zip(permits, permits[RATE.count :], strict=False):
        assert last - first >= window, (first, last, log)
    for task_id, found in leases.items():
        for before, after in pairwise(found):
            is_over = before.committed is not None and before.committed <= after.granted
            assert is_over or before.until <= after.granted, (task_id, before, after, log)
