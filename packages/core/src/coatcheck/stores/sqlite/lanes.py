"""Lanes: who waits where, which lane is ready, which is blocked by what, and whose turn it is.

A lane is in one place: ready, or blocked by one resource; an empty one is deleted, or kept for a while behind
all that are ready. A wake is pending for a resource as long as it may have room while a lane is blocked on
it, so no lane is forgotten when the lane before it turns out blocked by something else.
"""

from collections.abc import Iterable

from coatcheck.model import CancelFlag, Job, Side, Step, TaskStatus
from coatcheck.store import QUARANTINE_CLAIMS, SUSPECT_CLAIMS
from coatcheck.stores.sqlite.hot import Hot
from coatcheck.stores.sqlite.resources import Resource, Resources
from coatcheck.stores.sqlite.unit import Unit

#: The three orders of waiting: first submits by priority and turn; the others by due time.
SUBMIT, RESUBMIT, QUERY = 0, 1, 2

_ENDS = frozenset(status.value for status in TaskStatus if status.is_end)
_PENDING = TaskStatus.PENDING_SUBMIT.value
_SUBMITTING = TaskStatus.SUBMITTING.value
_REQUESTED = CancelFlag.REQUESTED.value
_GHOST = Job.GHOST.value
_RESUBMIT = Step.RESUBMIT.value

#: How many resources one claim looks at.
WAKES = 64
#: The key of an empty lane: later than every time.
EMPTY = 1 << 62


def permit_side(side: int) -> Side:
    """Return the side whose permits a lane's tasks use."""
    return Side.QUERY if side == QUERY else Side.SUBMIT


class Lanes:
    """The lanes as one transaction changes them; ``settle`` writes down what it did."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._ids: dict[tuple[int, str, str, str, str, int], int] = {}
        #: The heads of the lanes in ``_ids``.
        self._heads: dict[int, tuple[int, int]] = {}
        #: Lanes that got a better head.
        self._raised: set[int] = set()
        #: Lanes that a row has left, maybe the head.
        self._left: set[int] = set()

    def place(self, hot: Hot) -> None:
        """Decide where a row without a living lease waits, from its status, due time and deaths.

        The caller writes the columns.
        """
        self.leave(hot)
        now = self._unit.now
        hot.lost_at = None
        if hot.status in _ENDS:
            hot.look_at = hot.ghost_until if hot.job == _GHOST else None
        elif hot.status == _PENDING:
            limit = hot.submit_deadline_at
            hot.look_at = limit
            if hot.cancel == _REQUESTED:
                hot.look_at = 0
                self._unit.has_work = True
            elif hot.claims >= QUARANTINE_CLAIMS:
                pass
            elif hot.due_at is not None and hot.due_at > now:
                hot.look_at = min(hot.due_at, limit)
            else:
                self._enter(hot, SUBMIT)
        elif hot.claims >= QUARANTINE_CLAIMS:
            hot.look_at = hot.deadline_at
        elif hot.status == _SUBMITTING:
            hot.look_at = hot.deadline_at
            self._enter(hot, RESUBMIT if hot.next_step == _RESUBMIT else QUERY)
        else:
            hot.look_at = hot.deadline_at + hot.lease_length
            self._enter(hot, QUERY)

    def leave(self, hot: Hot) -> None:
        """Take a row out of where it waits."""
        if hot.lane is not None:
            self._left.add(hot.lane)
            hot.lane = None
        hot.suspect_at = None

    def note_left(self, lane: int) -> None:
        """Rows of this lane are being taken."""
        self._left.add(lane)

    def _enter(self, hot: Hot, side: int) -> None:
        unit = self._unit
        due = hot.due_at
        if due is None or due <= unit.now:
            due = due or unit.now
            unit.has_work = True
        if hot.claims >= SUSPECT_CLAIMS:
            hot.suspect_at = due
            return
        if side != SUBMIT:
            head = due, 0
        elif unit.ageing:
            rank = hot.scheduled_at - hot.priority * unit.ageing
            head = rank // unit.ageing, rank
        else:
            head = -hot.priority, hot.scheduled_at
        hot.ord1, hot.ord2 = head
        names = (side, hot.handler, hot.provider, hot.account, hot.tenant, hot.format)
        lane = self._ids.get(names) or self._find(names, head)
        hot.lane = lane
        if head < self._heads[lane]:
            self._heads[lane] = head
            self._raised.add(lane)

    def _find(self, names: tuple[int, str, str, str, str, int], head: tuple[int, int]) -> int:
        """Return the lane of these names, a new one with this head if need be."""
        unit = self._unit
        found = unit.run(
            # Without the index's name SQLite plans anew for each side that is bound: ten times slower.
            "SELECT id, key1, key3 FROM @lanes INDEXED BY @lanes_names WHERE side = ? AND handler = ? "
            "AND provider = ? AND account = ? AND tenant = ? AND format = ?",
            *names,
        ).fetchone()
        if found is None:
            turn = self._turn(names[4]) if names[0] == SUBMIT else 0
            lane = unit.insert(
                "INSERT INTO @lanes (side, handler, provider, account, tenant, format, key1, key3, key2) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*names, *head, turn),
            )
            found = (lane, *head)
        self._ids[names] = found[0]
        self._heads[found[0]] = found[1:]
        return int(found[0])

    def settle(self) -> None:
        """Bring the lanes' keys up to date with their heads."""
        unit = self._unit
        for lane in self._left:
            head = unit.run(
                "SELECT ord1, ord2 FROM @tasks WHERE lane = ? ORDER BY ord1, ord2, seq LIMIT 1", lane
            ).fetchone()
            if head is not None:
                unit.run(
                    "UPDATE @lanes SET key1 = ?, key3 = ? WHERE id = ? AND (key1, key3) <> (?, ?)",
                    *head,
                    lane,
                    *head,
                )
                continue
            gone = unit.run("DELETE FROM @lanes WHERE id = ? AND (side = 0 OR is_ready = 0)", lane)
            if not gone.rowcount:
                # A lane of queries will be used again soon: it stays a while, behind all others.
                unit.run("UPDATE @lanes SET key1 = ? WHERE id = ?", EMPTY, lane)
        unit.many(
            "UPDATE @lanes SET key1 = ?, key3 = ? WHERE id = ?",
            [(*self._heads[lane], lane) for lane in self._raised - self._left],
        )
        self._left.clear()
        self._raised.clear()
        self._ids.clear()
        self._heads.clear()

    def sweep(self, handlers: Iterable[str]) -> None:
        """Delete the lanes that are empty."""
        self._unit.many(
            "DELETE FROM @lanes WHERE side = ? AND handler = ? AND is_ready = 1 AND key1 = ?",
            [(side, handler, EMPTY) for side in (RESUBMIT, QUERY) for handler in handlers],
        )

    # Turns.

    def make_ready(self, lane: int) -> None:
        """Let a lane be claimed from."""
        unit = self._unit
        side, tenant = unit.run("SELECT side, tenant FROM @lanes WHERE id = ?", lane).fetchone()
        turn = self._turn(tenant) if side == SUBMIT else 0
        unit.run("UPDATE @lanes SET is_ready = 1, blocked_by = NULL, key2 = ? WHERE id = ?", turn, lane)

    def _turn(self, tenant: str) -> int:
        """Return the turn of a tenant that gets one more ready lane.

        One that was not waiting starts at the smallest turn of those that are.
        """
        unit = self._unit
        turn: int = unit.one("SELECT turn FROM @tenants WHERE tenant = ?", tenant) or 0
        is_waiting = unit.one(
            "SELECT 1 FROM @lanes INDEXED BY @lanes_tenant "
            "WHERE tenant = ? AND side = 0 AND is_ready = 1 LIMIT 1",
            tenant,
        )
        if not is_waiting:
            turn = max(turn, self._smallest_turn())
            self.set_turns({tenant: turn})
        return turn

    def _smallest_turn(self) -> int:
        smallest: int | None = self._unit.one(
            "SELECT MIN(key2) FROM @lanes INDEXED BY @lanes_turn WHERE is_ready = 1 AND side = 0"
        )
        # Nobody waits: go on from the last turn taken, so that newcomers and old customers meet as equals.
        return self._unit.counters.get("turn", 0) if smallest is None else smallest

    def set_turns(self, turns: dict[str, int]) -> None:
        """Write the tenants' turns, to them and to their lanes."""
        self._unit.many(
            "INSERT INTO @tenants VALUES (?, ?) ON CONFLICT (tenant) DO UPDATE SET turn = excluded.turn",
            list(turns.items()),
        )
        self._unit.many(
            "UPDATE @lanes INDEXED BY @lanes_tenant SET key2 = ? WHERE tenant = ? AND side = 0",
            [(turn, tenant) for tenant, turn in turns.items()],
        )

    def remember_turn(self, turn: int) -> None:
        """Keep the last turn taken, for a time when nobody waits."""
        self._unit.run(
            "INSERT INTO @counters VALUES ('turn', ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            turn,
        )
        self._unit.counters["turn"] = turn

    # Blocking and waking.

    def block(self, lane: int, resource: Resource) -> None:
        """Move a lane to the blocked list of the first resource that refused it."""
        self._unit.run("UPDATE @lanes SET is_ready = 0, blocked_by = ? WHERE id = ?", resource.key, lane)
        if resource.next_at is not None:
            self.wake_at(resource.key, resource.next_at)

    def wake_at(self, key: str, at: int) -> None:
        """Have the lanes blocked on a resource looked at from ``at`` on."""
        self._unit.run(
            "INSERT INTO @wakes VALUES (?, ?) ON CONFLICT (resource) DO UPDATE SET at = MIN(at, excluded.at)",
            key,
            at,
        )

    def wake_now(self, keys: Iterable[str]) -> None:
        """A resource may have room: have its lanes looked at by the next claim."""
        for key in keys:
            blocked = self._unit.one(
                "SELECT 1 FROM @lanes WHERE blocked_by = ? AND is_ready = 0 LIMIT 1", key
            )
            if blocked:
                self.wake_at(key, 0)
                self._unit.has_work = True

    def wake_due(self, resources: Resources, portion: int) -> int:
        """Make lanes ready whose resource has room, at most ``portion`` a resource; return how many."""
        unit = self._unit
        woken = 0
        for (key,) in unit.all(
            "SELECT resource FROM @wakes WHERE at <= ? ORDER BY at LIMIT ?", unit.now, WAKES
        ):
            resource = resources.get(key)
            if resource.room > 0:
                count = min(resource.room, portion)
                lanes = unit.all(
                    "SELECT id FROM @lanes WHERE blocked_by = ? AND is_ready = 0 "
                    "ORDER BY key1, key2, key3, id LIMIT ?",
                    key,
                    count + 1,
                )
                for (lane,) in lanes[:count]:
                    self.make_ready(lane)
                woken += min(count, len(lanes))
                if len(lanes) > count:
                    # More wait for the room that those just woken may leave: the wake stays pending.
                    continue
                unit.run("DELETE FROM @wakes WHERE resource = ?", key)
            elif resource.next_at is not None:
                unit.run("UPDATE @wakes SET at = ? WHERE resource = ?", resource.next_at, key)
            else:
                # A commit, a higher limit or the end of the pause will wake them.
                unit.run("DELETE FROM @wakes WHERE resource = ?", key)
        return woken
