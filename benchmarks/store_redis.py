"""Claim and commit on Redis, beside bare redis-py and beside a store that moves one task in a round trip.

Run ``nox -s bench -- store_redis`` (or this file). Everything shares one server and one run, in turns:

- pairs of claim and commit a second: ours in batches of 100; a bare loop of two scripts, one that claims 100
  by due time and one that writes them back, without limits, turns, fences or checks; and the shape that this
  project's ancestor has, whose eight threads list candidates and need four calls for each task;
- a claim of 100 while 1,000,000 tasks wait in 10,000 lanes of which 9,000 are blocked, beside one with 10,000
  tasks in 1,000 open lanes;
- the memory that a waiting and a finished task take.

How soon a worker hears of a new task is measured by ``idle``.
"""

import argparse
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import attrs
import redis
from _redis import open_store, redis_server
from store_sqlite import BATCH, LEASE, RECORD, fill, new_task, still_running

from coatcheck.model import Job, Limit, TaskStatus
from coatcheck.store import Kind, Lease, Room, Store, Transition

DAY = timedelta(days=1)
#: Of the store that goes task by task: how many threads, and how many candidates each of them lists.
THREADS, CANDIDATES = 8, 20
#: Lanes are accounts times tenants; nine accounts of ten are blocked.
ACCOUNTS, TENANTS = 100, 100
OPEN_ACCOUNTS = 10

_BARE_CLAIM = """
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, ARGV[2])
local found = {}
for i, id in ipairs(ids) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZADD', KEYS[2], ARGV[3], id)
  redis.call('HSET', KEYS[3] .. id, 'token', ARGV[4])
  found[i] = {id, redis.call('HGET', KEYS[3] .. id, 'record')}
end
return found
"""
_BARE_COMMIT = """
for i = 2, #ARGV, 2 do
  redis.call('ZREM', KEYS[2], ARGV[i])
  redis.call('HSET', KEYS[3] .. ARGV[i], 'status', 'running', 'record', ARGV[i + 1])
  redis.call('ZADD', KEYS[1], ARGV[1], ARGV[i])
end
return #ARGV
"""


class Bare:
    """The same records in a hash for each task, by due time, claimed and written back by the batch."""

    def __init__(self, url: str, tasks: int) -> None:
        self._redis = redis.Redis.from_url(url)
        self._claim = self._redis.register_script(_BARE_CLAIM)
        self._commit = self._redis.register_script(_BARE_COMMIT)
        self._keys = ["{bare}due", "{bare}leases", "{bare}task:"]
        load(self._redis, "{bare}", tasks)

    def round(self) -> int:
        """Claim a batch and write it back."""
        now = time.time()
        found = self._claim(self._keys, [now, BATCH, now + 30, secrets.token_hex(16)])
        arguments: list[Any] = [time.time()]
        for task_id, _ in found:
            arguments += (task_id, RECORD)
        self._commit(self._keys, arguments)
        return len(found)

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


_ONE_CLAIM = """
if redis.call('HGET', KEYS[3], 'token') then return 0 end
redis.call('HSET', KEYS[3], 'token', ARGV[2], 'until', ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
_ONE_SAVE = """
if redis.call('HGET', KEYS[3], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[3], 'status', 'running', 'record', ARGV[2])
redis.call('HINCRBY', KEYS[3], 'version', 1)
return 1
"""
_ONE_RELEASE = """
if redis.call('HGET', KEYS[3], 'token') ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[3], 'token', 'until')
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[3])
return 1
"""


class OneByOne:
    """The ancestor's shape: eight threads list the same candidates and need four calls for each task.

    They are a look at the row, a claim that somebody else may win, a save under the version, and a release;
    the texts of the scripts are sent each time.
    """

    def __init__(self, url: str, tasks: int) -> None:
        self._redis = redis.Redis.from_url(url)
        self._pool = ThreadPoolExecutor(THREADS)
        load(self._redis, "{one}", tasks)

    def round(self) -> int:
        """Let each thread claim, save and release what it wins of the candidates."""
        return sum(self._pool.map(lambda _: self._turn(), range(THREADS)))

    def _turn(self) -> int:
        client, due = self._redis, "{one}due"
        found = client.zrangebyscore(due, 0, time.time(), 0, CANDIDATES)
        done = 0
        for task_id in found:
            key = f"{{one}}task:{task_id.decode()}"
            row = client.hgetall(key)
            token = secrets.token_hex(16)
            keys = (due, "{one}leases", key)
            if not client.eval(_ONE_CLAIM, 3, *keys, time.time() + 30, token, task_id):
                continue
            client.eval(_ONE_SAVE, 3, *keys, row[b"version"], RECORD)
            client.eval(_ONE_RELEASE, 3, *keys, time.time(), token, task_id)
            done += 1
        return done

    def close(self) -> None:
        """End the threads and close the connections."""
        self._pool.shutdown()
        self._redis.close()


def load(client: redis.Redis, tag: str, tasks: int) -> None:
    """Store tasks that are due."""
    for start in range(0, tasks, 1000):
        with client.pipeline(transaction=False) as pipe:
            for number in range(start, min(tasks, start + 1000)):
                pipe.hset(f"{tag}task:{number}", mapping={"version": 1, "record": RECORD})
                pipe.zadd(f"{tag}due", {str(number): time.time()})
            pipe.execute()


def store_round(store: Store) -> int:
    """Claim a batch and commit it."""
    claimed = store.claim(
        "w", secrets.token_hex(8), format=1, handlers=["h"], room=Room(total=BATCH), lease=LEASE
    )
    store.commit([still_running(lease) for lease in claimed.leases])
    return len(claimed.leases)


def pairs(server: Any, tasks: int, runs: int) -> None:
    """Compare pairs a second, and the CPU time of a pair here and in the server."""
    store = open_store(server.url, "pairs")
    fill(store, tasks)  # type: ignore[arg-type]  # any store does
    bare, single = Bare(server.url, tasks), OneByOne(server.url, tasks)
    rounds: dict[str, Callable[[], int]] = {
        "store": lambda: store_round(store),
        "bare redis-py, batched": bare.round,
        "one task a round trip": single.round,
    }
    rates: dict[str, list[float]] = {name: [] for name in rounds}
    cpu: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(runs):
        for name, round_ in rounds.items():
            done, start, spent = 0, time.perf_counter(), time.process_time() + cpu_of(server)
            while time.perf_counter() - start < 2.0:
                done += round_()
            rates[name].append(done / (time.perf_counter() - start))
            cpu[name].append((time.process_time() + cpu_of(server) - spent) / done)
    for opened in (store, bare, single):
        opened.close()
    print(f"claim+commit pairs/s, batches of {BATCH}, {tasks:,} tasks, median of {runs}:")
    for name, found in rates.items():
        print(
            f"  {name:24} {statistics.median(found):8,.0f} ({min(found):,.0f}-{max(found):,.0f}), "
            f"{statistics.median(cpu[name]) * 1e6:.0f} us of CPU a pair"
        )
    for name in list(rates)[1:]:
        share = statistics.median(o / t for o, t in zip(rates["store"], rates[name], strict=True))
        by_cpu = statistics.median(t / o for o, t in zip(cpu["store"], cpu[name], strict=True))
        print(f"  the store does {share:.2f} times what {name!r} does, by CPU {by_cpu:.2f} times")


def cpu_of(server: Any) -> float:
    """Return the CPU seconds of the server so far."""
    with server.client() as client:
        found = client.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


def add_lanes(store: Store, accounts: Sequence[int], each: int, priority: int = 0) -> None:
    """Add tasks to the lanes of some accounts, ``each`` to every one of them."""
    for account in accounts:
        tasks = [
            new_task(f"a{account}", f"t{tenant}", priority) for tenant in range(TENANTS) for _ in range(each)
        ]
        for start in range(0, len(tasks), 1000):
            store.add(tasks[start : start + 1000])


def claim(store: Store, room: int) -> tuple[float, int]:
    """Claim, and return how long it took and how many leases it brought."""
    start = time.perf_counter()
    batch = store.claim("w", secrets.token_hex(8), format=1, handlers=["h"], room=Room(total=room), lease=DAY)
    return time.perf_counter() - start, len(batch.leases)


def lanes(url: str, waiting: int, runs: int) -> None:
    """Compare a claim among few tasks in open lanes with one among many that are mostly blocked."""
    few, many = open_store(url, "few"), open_store(url, "many")
    each = max(1, waiting // (ACCOUNTS * TENANTS))
    blocked = range(OPEN_ACCOUNTS, ACCOUNTS)
    started = time.perf_counter()
    # Blocked tasks come first by priority: a claim has to get past them.
    many.set_limit([Limit(account=f"a{account}", live=1) for account in blocked])
    for account in blocked:
        many.add([new_task(f"a{account}", "first", priority=20)])
    taken = 0
    while taken < len(blocked):
        taken += claim(many, len(blocked))[1]
    add_lanes(many, blocked, each, priority=10)
    add_lanes(many, range(OPEN_ACCOUNTS), each)
    filled = time.perf_counter() - started
    add_lanes(few, range(OPEN_ACCOUNTS), 10)
    total = ACCOUNTS * TENANTS * each
    print(f"a claim of {BATCH} ({total:,} tasks added in {filled:.0f} s, {total / filled:,.0f}/s):")
    first = claim(many, BATCH)[0]
    turns = 1
    while many.stats().blocked_lanes < len(blocked) * TENANTS and turns < 1000:
        first += claim(many, BATCH)[0]
        turns += 1
    found = len(blocked) * TENANTS
    print(f"  finding out that {found:,} lanes are blocked: {first * 1000:.0f} ms in {turns} claims")
    times: dict[str, list[float]] = {"few": [], "many": []}
    for _ in range(runs):
        for name, store in (("few", few), ("many", many)):
            seconds, leases = claim(store, BATCH)
            if leases != BATCH:
                raise SystemExit(f"expected {BATCH} leases, found {leases}")
            times[name].append(seconds)
    medians = {name: statistics.median(found) * 1000 for name, found in times.items()}
    worst = {name: max(found) * 1000 for name, found in times.items()}
    print(
        f"  {OPEN_ACCOUNTS * TENANTS * 10:,} tasks in {OPEN_ACCOUNTS * TENANTS:,} open lanes: "
        f"{medians['few']:.2f} ms (worst {worst['few']:.1f})"
    )
    print(
        f"  {total:,} tasks in {ACCOUNTS * TENANTS:,} lanes, {len(blocked) * TENANTS:,} of them blocked: "
        f"{medians['many']:.2f} ms (worst {worst['many']:.1f})"
    )
    print(f"  ratio {medians['many'] / medians['few']:.2f}")
    few.close()
    many.close()


def succeeded(lease: Lease) -> Transition:
    """Return the transition of a query that saw the end."""
    return attrs.evolve(
        still_running(lease),
        status=TaskStatus.SUCCEEDED,
        next_step=None,
        delay=None,
        job=Job.NONE,
        result=RECORD,
        drop_params=True,
    )


def memory(server: Any, tasks: int) -> None:
    """Print what a task takes while it waits and once it has ended."""

    def used() -> int:
        with server.client() as client:
            return int(client.info("memory")["used_memory"])

    store = open_store(server.url, "memory")
    before = used()
    for _ in range(0, tasks, 1000):
        store.add([attrs.evolve(new_task(), params=RECORD) for _ in range(1000)])
    waiting = used() - before
    while claimed := store.claim(
        "w", secrets.token_hex(8), format=1, handlers=["h"], room=Room(total=BATCH), lease=LEASE
    ).leases:
        store.commit([succeeded(one) if one.kind is Kind.QUERY else still_running(one) for one in claimed])
    finished = used() - before
    ended = store.stats().by_status[TaskStatus.SUCCEEDED]
    if ended != tasks:
        raise SystemExit(f"expected {tasks} ended tasks, found {ended}")
    store.close()
    print(f"memory a task, {tasks:,} tasks, {len(RECORD)} bytes each of record, params and result:")
    print(f"  waiting {waiting / tasks:,.0f} bytes, finished {finished / tasks:,.0f} bytes")


def main() -> None:
    """Run all and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=("pairs", "lanes", "memory"))
    parser.add_argument("--appendonly", action="store_true", help="let the server write everything to a file")
    given = parser.parse_args()
    options = ("--appendonly", "yes") if given.appendonly else ()
    parts: dict[str, Callable[[Any], None]] = {
        "pairs": lambda server: pairs(server, given.tasks, given.runs),
        "lanes": lambda server: lanes(server.url, given.waiting, 20),
        "memory": lambda server: memory(server, given.tasks),
    }
    for name, part in parts.items():
        if given.only in {None, name}:
            with redis_server(*options) as server:
                part(server)


if __name__ == "__main__":
    main()
