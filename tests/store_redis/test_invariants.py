"""What is in Redis after every step of the state machine: nothing is indexed twice, forgotten or left behind.

A task that an index forgot would wait for ever, and one that it kept would be handed out twice; the contract
would see either only by luck. So this test looks inside, which no other does.
"""

import random
import secrets
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from tests.store_redis.servers import RedisServer

from coatcheck.lifecycle import GateClose
from coatcheck.model import Job, Limit, Rate, Side, TaskStatus
from coatcheck.store import Filter, Kind, Lease, Room, Transition
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import claim, new_task, transition
from coatcheck.testing.store_machine import store_machine
from coatcheck_redis import scripts
from coatcheck_redis.store import RedisStore

_ROW = struct.Struct("<B31q")
_COLUMNS = (
    *("layout", "seq", "status", "version", "generation", "format", "priority", "deadline", "queue_deadline"),
    *("stall_limit", "created", "scheduled", "deadline_at", "queue_at", "stall_at", "due", "updated"),
    *("finished", "step", "cancel", "redue", "claims", "until", "length", "job", "ghost_until", "lane"),
    *("ord1", "ord2", "suspect", "look", "hold"),
)
_ZERO = 1 << 52
_FIRST_END = 5
_QUARANTINE = 3

Row = dict[str, Any]


def enc(number: int) -> bytes:
    """Return a number in the order of texts, as the scripts write it."""
    return struct.pack(">Q", number + _ZERO)


def dec(text: bytes, at: int = 0) -> int:
    """Read a number that ``enc`` wrote."""
    return int(struct.unpack_from(">Q", text, at)[0]) - _ZERO


def lane_id(number: int) -> bytes:
    """Return a lane's number as the scripts write it."""
    return struct.pack(">Q", number)[2:]


class House:
    """Everything that a namespace keeps, read at once."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        def key(name: str) -> str:
            return f"coatcheck:{{{namespace}}}:{name}"

        def read(*words: Any, **options: Any) -> dict[bytes, float]:
            found: Any = client.zrange(*words, **options)
            return dict(found)

        hashes: Any = {
            name: client.hgetall(key(name)) for name in ("tasks", "lanes", "turns", "rules", "meta")
        }
        zsets: Any = {
            name: read(key(name), 0, -1, withscores=True)
            for name in (
                *("waiting", "ready", "blocked", "wakes", "look", "leases", "suspects", "live", "index"),
                "active",
            )
        }
        self.zsets: dict[str, dict[bytes, float]] = zsets
        self.hashes: dict[str, dict[bytes, bytes]] = hashes
        self.rows = {id_: self._row(blob) for id_, blob in self.hashes["tasks"].items()}

    @staticmethod
    def _row(blob: bytes) -> Row:
        row: Row = dict(zip(_COLUMNS, _ROW.unpack_from(blob), strict=True))
        names, dedupe, token, _, _ = blob[_ROW.size :].split(b"\0")
        row["handler"], row["provider"], row["account"], row["tenant"] = names.split(b"\x1f")
        row["dedupe"], row["token"] = dedupe, token
        return row

    def check_scores(self) -> None:
        """Appointments, leases and suspects stand as their rows say."""
        for name, column in (("look", "look"), ("leases", "hold"), ("suspects", "suspect")):
            expected = {id_: row[column] for id_, row in self.rows.items() if row[column] >= 0}
            assert self.zsets[name] == expected, name
        for id_, row in self.rows.items():
            assert (row["hold"] >= 0) <= (row["token"] != b""), id_
            places = (row["lane"] != 0) + (row["suspect"] >= 0)
            assert places <= (row["status"] < _FIRST_END and row["hold"] < 0), id_
            is_known = places or row["look"] >= 0 or row["hold"] >= 0
            assert is_known or row["status"] >= _FIRST_END, f"{id_!r} waits nowhere"

    def check_members(self) -> None:
        """Slots, lists and histories are those of the rows."""
        live, index = set(), set()
        for id_, row in self.rows.items():
            if row["job"] > 0:
                live.add(b"a" + row["account"] + b"\0" + id_)
            if row["job"] == 1:
                live.add(b"t" + row["tenant"] + b"\0" + id_)
            index.add(b"a" + enc(row["seq"]) + id_)
            if row["tenant"]:
                index.add(b"o" + row["tenant"] + b"\0" + enc(row["seq"]) + id_)
            if row["finished"] >= 0 and row["job"] == 0:
                index.add(b"e" + bytes([row["status"]]) + enc(row["finished"]) + id_)
            if row["finished"] < 0 and row["claims"] >= _QUARANTINE:
                index.add(b"d" + enc(row["seq"]) + id_)
        assert set(self.zsets["live"]) == live
        assert set(self.zsets["index"]) == index

    def check_lanes(self) -> None:
        """A lane is in exactly one place, under the keys of its head, and an empty one is gone."""
        waiting: dict[int, list[bytes]] = defaultdict(list)
        for id_, row in self.rows.items():
            if row["lane"]:
                member = (
                    lane_id(row["lane"]) + enc(row["ord1"]) + enc(row["ord2"]) + struct.pack(">Q", row["seq"])
                )
                waiting[row["lane"]].append(member + id_)
        assert set(self.zsets["waiting"]) == {member for members in waiting.values() for member in members}
        lanes = self.hashes["lanes"]
        numbers = {int(value) for name, value in lanes.items() if name[:1] == b"n"}
        assert numbers == set(waiting)
        assert {name[1:] for name in lanes if name[:1] == b"i"} == {lane_id(number) for number in numbers}
        stands = set()
        for number, members in waiting.items():
            value = lanes[b"i" + lane_id(number)]
            head = min(members)
            assert (value[:8], value[8:16]) == (head[6:14], head[14:22]), f"lane {number} has keys of another"
            name, _, rest = value[16:].partition(b"\0")
            state_and_resource, _, member = rest.partition(b"\0")
            state = state_and_resource[:1]
            assert lanes[b"n" + name] == str(number).encode()
            line = {b"r": "ready", b"b": "blocked"}[state]
            assert member in self.zsets[line], f"lane {number} is not where it says"
            stands.add((line, member))
        for line in ("ready", "blocked"):
            found = {member for member in self.zsets[line] if line == "blocked" or member[:1] != b"t"}
            assert found == {member for place, member in stands if place == line}, line

    def check_turns(self) -> None:
        """Each tenant has one entry for each band that it waits in, and is active as long as it has one."""
        bands: dict[bytes, list[bytes]] = defaultdict(list)
        for member in self.zsets["ready"]:
            if member[:1] == b"0":
                start = member.index(b"\0") + 9
                end = member.index(b"\0", start)
                bands[member[1:end]].append(member)
        turns = self.hashes["turns"]
        kept = {name[1:]: value for name, value in turns.items() if name[:1] == b"b"}
        assert set(kept) == set(bands)
        assert set(kept.values()) == {member for member in self.zsets["ready"] if member[:1] == b"t"}
        count: dict[bytes, int] = defaultdict(int)
        for band, members in bands.items():
            entry, head = kept[band], min(members)
            at, tenant = band.index(b"\0") + 9, band[band.index(b"\0") + 9 :]
            count[tenant] += 1
            begin = len(band) + 2
            turn, n = struct.unpack("<qq", turns[b"t" + tenant])
            assert entry[:1] + entry[1 : at + 1] == b"t" + band[:at]
            assert dec(entry, at + 1) <= turn
            assert entry[at + 9 : at + 23] == head[begin : begin + 14]
            assert entry[at + 23 : at + 24] == (b"+" if len(members) > 1 else b"-")
            assert self.zsets["active"][tenant] == turn
            assert n > 0
        assert set(self.zsets["active"]) == set(count)
        for name, value in turns.items():
            if name[:1] == b"t":
                assert struct.unpack("<qq", value)[1] == count[name[1:]], name

    def check_blocked(self) -> None:
        """No lane is blocked on a resource with room unless a wake for it is pending."""
        rules, wakes = self.hashes["rules"], self.zsets["wakes"]
        for member in self.zsets["blocked"]:
            key = member.partition(b"\0")[0]
            kind, *parts = key.split(b"\x1f")
            if key in wakes:
                continue
            if kind == b"pause":
                assert b"p" + b"\x1f".join(parts) in rules, key
            else:
                # Rates and gates have a time at which they end; only live jobs wait for a commit.
                assert kind == b"live", key
                limit = rules[b"l" + b"\x1f".join(parts)]
                prefix = parts[0][:1] + parts[1] + b"\0"
                used = sum(name.startswith(prefix) for name in self.zsets["live"])
                assert used >= int(limit), key


def look_into(client: redis.Redis, namespace: str) -> None:
    """Check that all that is kept agrees with the rows."""
    house = House(client, namespace)
    house.check_scores()
    house.check_members()
    house.check_lanes()
    house.check_turns()
    house.check_blocked()


class _Watched:
    """Looks into Redis after every step."""

    client: ClassVar[redis.Redis]
    store: Any

    @invariant()
    def redis_is_in_order(self) -> None:
        """All that is kept agrees with the rows."""
        look_into(self.client, self.store.namespace)


@pytest.mark.parametrize("ageing", [None, timedelta(seconds=10)])
def test_indexes_and_rows_agree_after_every_step(redis7: RedisServer, ageing: timedelta | None) -> None:
    """Whatever happens, each task waits in one place, and each lane stands where it can be found."""

    def open_store(clock: FakeClock) -> RedisStore:
        return RedisStore(redis7.url, namespace=f"i{secrets.token_hex(6)}", ageing=ageing, clock=clock)

    with redis7.client() as client:
        driven = store_machine(open_store, ageing=ageing)
        machine: Any = type("Watched", (_Watched, driven), {"client": client})
        # A run is many calls; how long they take is for the benchmarks to say.
        long_runs = settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        run_state_machine_as_test(machine, settings=long_runs)


#: What bounds a claim, and how small it is made, so that short histories meet every bound.
_BOUNDS = {
    "base": {"local PORTION = 1000": "local PORTION = 4"},
    "claim": {
        "URGENT, PATIENCE = 256, 500": "URGENT, PATIENCE = 2, 3",
        "WAKES, MOST_WOKEN = 64, 1000": "WAKES, MOST_WOKEN = 1, 2",
        "MOST_SUSPECTS = 1024": "MOST_SUSPECTS = 4",
        "math.max(total, 16)": "math.max(total, 1)",
    },
}


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts that look at a few rows and lanes where they look at hundreds otherwise."""
    read = scripts._read

    def read_small(name: str) -> str:
        text = read(name)
        for bound, small in _BOUNDS.get(name, {}).items():
            assert bound in text
            text = text.replace(bound, small)
        return text

    monkeypatch.setattr(scripts, "_read", read_small)
    scripts.script.cache_clear()
    yield
    monkeypatch.undo()
    scripts.script.cache_clear()


def _step(lease: Lease, rng: random.Random) -> Transition | None:
    """Return what comes of a step; ``None``: its worker died."""
    chance = rng.random()
    if chance < 0.1:
        return None
    match lease.kind:
        case Kind.SUBMIT if chance < 0.2:
            gate = GateClose(delay=timedelta(seconds=2))
            return transition(lease, TaskStatus.PENDING_SUBMIT, delay=1, side=Side.SUBMIT, gate=gate)
        case Kind.SUBMIT:
            return transition(lease, TaskStatus.SUBMITTED, delay=rng.randrange(4))
        case Kind.QUERY if chance < 0.5:
            return transition(lease, TaskStatus.SUCCEEDED)
        case Kind.QUERY if chance < 0.6:
            return transition(lease, TaskStatus.SUBMIT_UNKNOWN, ghost_for=timedelta(seconds=5))
        case Kind.QUERY:
            return transition(lease, TaskStatus.RUNNING, delay=rng.randrange(4))
        case Kind.RECOVER:
            return transition(lease, TaskStatus.PENDING_SUBMIT, job=Job.NONE)
        case _:
            return transition(lease, TaskStatus.TRACKING_TIMED_OUT, job=Job.NONE)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("seed", range(3))
def test_what_one_claim_leaves_the_next_ones_find(redis7: RedisServer, seed: int, namespace: str) -> None:
    """However little a claim looks at, every task ends in time, and nothing is forgotten on the way (G6)."""
    rng, clock = random.Random(seed), FakeClock()
    ageing = timedelta(seconds=7) if seed % 2 else None
    handlers = ("first", "second")
    with closing(RedisStore(redis7.url, namespace=namespace, ageing=ageing, clock=clock)) as store:
        store.set_limit([Limit(account=f"a{number}", live=2) for number in range(6)])
        rate = Rate(3, timedelta(seconds=2))
        store.set_limit([Limit(provider="p0", side=Side.SUBMIT, rate=rate), Limit(tenant="t1", live=2)])
        tasks = [
            new_task(
                handler_key=rng.choice(handlers),
                provider_key=f"p{rng.randrange(3)}",
                account=f"a{rng.randrange(6)}",
                tenant=f"t{rng.randrange(6)}",
                priority=rng.choice([0, 0, 5]),
                delay=timedelta(seconds=rng.choice([0, 0, 20])),
                queue_deadline=rng.choice([None, timedelta(seconds=20)]),
            )
            for _ in range(80)
        ]
        store.add(tasks)
        with redis7.client() as client:
            waiting, began = len(tasks), clock()
            while waiting:
                able = rng.choice([handlers, handlers, handlers[:1], handlers[1:]])
                room = Room(total=rng.choice([5, 50]), is_idle=rng.choice([True, False]))
                batch = claim(store, room=room, worker=rng.choice("abc"), handlers=able)
                moves = [move for lease in batch.leases if (move := _step(lease, rng)) is not None]
                store.commit(moves)
                waiting -= sum(move.status.is_end for move in moves)
                look_into(client, namespace)
                if not batch.leases and room.is_idle and able == handlers:
                    dead = [stored.row.id for stored in store.list(Filter(quarantined=True)).items]
                    store.make_due(dead, redrive=True)
                    if not dead and batch.next_at is not None:
                        clock.move_to(batch.next_at)
                assert clock() - began < timedelta(hours=1), "expected all to end long before their deadline"
