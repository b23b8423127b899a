"""One claim: urgent rows for anybody, wakes, then half of the room for queries and half for submits.

Everything is read, decided and written inside one transaction. Rows are taken from lanes through a heap, so
that neither the backlog nor the lanes that cannot move cost anything.
"""

import heapq
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from attrs import define, field

from coatcheck.micros import from_micros
from coatcheck.model import CancelFlag, Job, Step, TaskStatus
from coatcheck.store import QUARANTINE_CLAIMS, Kind, Lease, Room
from coatcheck.stores.sqlite.hot import COLUMNS, SHOWN, Hot, split, stored_of
from coatcheck.stores.sqlite.lanes import EMPTY, QUERY, RESUBMIT, SUBMIT, Lanes, permit_side
from coatcheck.stores.sqlite.resources import SEPARATOR, Resource, Resources, key_of
from coatcheck.stores.sqlite.unit import LISTED, Unit, listed

#: How many urgent rows of a kind one claim looks at.
URGENT = 256
#: How many lanes one claim may look at before it says "come back at once".
PATIENCE = 4_000
#: Lanes fetched at a time.
PAGE = 64
#: How many suspects one claim looks at.
MOST_SUSPECTS = 1024

#: When a suspect that nothing but a commit or a person can free is looked at again, in microseconds.
_SUSPECT_PAUSE = 1_000_000

_ENDS = frozenset(status.value for status in TaskStatus if status.is_end)
# Plain values: reaching into an enum costs as much as the rest of what is done for a row.
_PENDING = TaskStatus.PENDING_SUBMIT.value
_SUBMITTING = TaskStatus.SUBMITTING.value
_REQUESTED = CancelFlag.REQUESTED.value
_LIVE = Job.LIVE.value
_KINDS = {kind.value: kind for kind in Kind}
_SUBMIT_KIND, _EXPIRE_KIND = Kind.SUBMIT, Kind.EXPIRE
_PARAM_KINDS = (Kind.SUBMIT, Kind.RESUBMIT, Kind.LOOKUP)

_STEP = "COALESCE(next_step, 'query')"
#: What a waiting row is claimed for; takes the time twice. Queryable ones get a last query, however late.
_KIND = (
    f"CASE status WHEN '{_PENDING}' THEN CASE "
    "WHEN MIN(deadline_at, COALESCE(queue_deadline_at, deadline_at)) <= ? THEN 'expire' ELSE 'submit' END "
    f"WHEN '{_SUBMITTING}' THEN CASE WHEN deadline_at <= ? THEN 'expire' ELSE {_STEP} END "
    f"ELSE CASE cancel WHEN {_REQUESTED} THEN 'cancel' ELSE {_STEP} END END"
)
#: Rows of a lane in their order.
_WAITING = (
    f"SELECT seq, ord1, ord2, {_KIND}, {SHOWN} FROM @tasks "  # noqa: S608  # fixed texts
    "WHERE lane = ? AND ord1 <= ? ORDER BY ord1, ord2, seq LIMIT ? OFFSET ?"
)

_LEASE = (
    "UPDATE @tasks SET token = ? || seq, lease_until = ?, lease_length = ?, claims = claims + ?, redue = 0, "
    "lane = NULL, "
)
#: A worker in a submit that is only slow gets half a lease more before it counts as lost.
LOST_AT = f"lost_at = CASE status WHEN '{_SUBMITTING}' THEN ? ELSE ? END"
_LEASE_CALLS = f"{_LEASE}{LOST_AT} WHERE seq IN {LISTED}"
_LEASE_SUBMITS = f"{_LEASE}lost_at = ?, status = '{_SUBMITTING}', job = {_LIVE} WHERE seq IN {LISTED}"

#: The times, after a given one, at which something wants to be looked at.
_TIMES = (
    "SELECT (SELECT MIN(look_at) FROM @tasks WHERE look_at > ?), "
    "(SELECT MIN(lost_at) FROM @tasks WHERE lost_at > ?), "
    "(SELECT MIN(suspect_at) FROM @tasks WHERE suspect_at > ?), (SELECT MIN(at) FROM @wakes)"
)
_SIDES = f"(SELECT {SUBMIT} AS side UNION ALL SELECT {RESUBMIT} UNION ALL SELECT {QUERY})"
#: The keys of the best lane of each handler on each side.
_HEADS = (
    "SELECT lane.side, lane.handler, lane.key1, lane.key3 "  # noqa: S608  # fixed texts
    f"FROM json_each(?) AS given CROSS JOIN {_SIDES} AS sides CROSS JOIN @lanes AS lane "
    "ON lane.id = (SELECT id FROM @lanes INDEXED BY @lanes_ready WHERE side = sides.side "
    "AND handler = given.value AND is_ready = 1 ORDER BY key1, key2, key3, id LIMIT 1)"
)
_NO_HEAD = (EMPTY + 1, 0)
#: When, after a given time, a row in a lane of these handlers is due.
_DUE = (
    "SELECT MIN((SELECT MIN(key1) FROM @lanes INDEXED BY @lanes_ready WHERE side = sides.side "  # noqa: S608  # fixed
    "AND handler = given.value AND is_ready = 1 AND key1 > ?)) "
    f"FROM json_each(?) AS given CROSS JOIN {_SIDES} AS sides WHERE sides.side <> {SUBMIT}"
)


@define
class Taken:
    """A row that is being leased."""

    kind: Kind
    seq: int
    #: The values of ``SHOWN``, from before.
    shown: tuple[Any, ...]
    #: Whether the worker may die of it.
    is_risky: bool


@define
class _Lane:
    """A ready lane during one claim."""

    id: int
    side: int
    provider: str
    tenant: str
    key1: int
    key3: int
    resources: tuple[Resource, ...]
    #: Loaded rows, the next one last: number, both parts of the order, kind, and what callers see.
    rows: list[tuple[Any, ...]] = field(factory=list)
    fetched: int = 0
    is_drained: bool = False


#: A lane in the heap: its key, the number of the source that it came from (−1 when put back), itself.
_Entry = tuple[tuple[int, int, int, int], int, _Lane]


class Claim:
    """The state of one claim."""

    def __init__(
        self,
        unit: Unit,
        *,
        format: int,
        handlers: Collection[str],
        room: Room,
        lease: int,
        skip: Collection[str],
    ) -> None:
        self.unit = unit
        self.lanes = Lanes(unit)
        self.resources = Resources(unit)
        self.taken: list[Taken] = []
        self.has_suspects = False
        self._format = format
        self._handlers = sorted(handlers)
        self._listed_handlers = listed(self._handlers)
        self._room = room
        self._used: dict[str, int] = {}
        self._lease = lease
        self._skip = frozenset(skip)
        self._heads: dict[tuple[int, str], tuple[int, int]] = {}
        self._turns: dict[str, int] = {}
        self._turns_before: dict[str, int] = {}
        self._seen: dict[int, _Lane] = {}
        self._suspect_at: int | None = None
        #: Providers that this worker has no room for: their lanes are passed over, however many there are.
        self._full = {name for name, places in room.per_provider.items() if places < 1}
        self._patience = PATIENCE
        self._is_cut_short = False

    def run(self) -> None:
        """Take what there is room for."""
        are_looks, are_lost, are_suspects, are_wakes = self._due_times()
        if are_looks or are_lost:
            self._attend()
            self.lanes.settle()
            _, _, are_suspects, are_wakes = self._due_times()
        if are_suspects and self._take_suspect():
            self._is_cut_short = True
            return
        places = self._room.total
        portion = max(places, 16)
        if are_wakes:
            self.lanes.wake_due(self.resources, portion)
        self._find_heads()
        first = self._query_share(places)
        queries = self._pick((QUERY,), first)
        taken = queries + self._pick((RESUBMIT, SUBMIT), places - queries)
        if queries == first:
            taken += self._pick((QUERY,), places - taken)
        while are_wakes and taken < places and self._patience > 0:
            if not self.lanes.wake_due(self.resources, portion):
                break
            self._find_heads()
            taken += self._pick((QUERY,), places - taken)
            taken += self._pick((RESUBMIT, SUBMIT), places - taken)
        self._is_cut_short |= taken >= places > 0

    def run_only(self, ids: Sequence[str]) -> None:
        """Take these tasks, if they are queryable, free and allowed."""
        found = {row[0].id: row for row in self._rows(f"id IN {LISTED}", listed(ids))}
        for hot, kind, shown in (found[id_] for id_ in dict.fromkeys(ids) if id_ in found):
            is_free = hot.token is None or (hot.lease_until or 0) <= self.unit.now
            if (
                TaskStatus(hot.status).is_queryable
                and is_free
                and hot.claims < QUARANTINE_CLAIMS
                and hot.handler in self._handlers
                and hot.account not in self._skip
                and len(self.taken) < self._room.total
                and self._spend(QUERY, hot)
            ):
                self._take(kind, hot, shown)

    def finish(self, token: str) -> tuple[Lease, ...]:
        """Write the leases down and return them."""
        unit = self.unit
        submits: list[int] = []
        calls: tuple[list[int], list[int]] = [], []
        for taken in self.taken:
            (submits if taken.kind is _SUBMIT_KIND else calls[taken.is_risky]).append(taken.seq)
        until = unit.now + self._lease
        late = until + self._lease // 2
        for claims, seqs in enumerate(calls):
            if seqs:
                unit.run(_LEASE_CALLS, token, until, self._lease, claims, late, until, listed(seqs))
        if submits:
            unit.run(_LEASE_SUBMITS, token, until, self._lease, 1, late, listed(submits))
            unit.count({_PENDING: -len(submits), _SUBMITTING: len(submits)})
        turns = {t: turn for t, turn in self._turns.items() if turn != self._turns_before[t]}
        if turns:
            self.lanes.set_turns(turns)
            self.lanes.remember_turn(max(turns.values()) - 1)
        self.resources.record_permits()
        self.lanes.settle()
        params = load_params(unit, [taken.seq for taken in self.taken if taken.kind in _PARAM_KINDS])
        expires_at = from_micros(until)
        return tuple(
            Lease(
                kind=taken.kind,
                stored=stored_of(
                    taken.shown,
                    params.get(taken.seq),
                    leased_for=taken.kind,
                    claims_more=taken.is_risky,
                ),
                token=f"{token}{taken.seq}",
                expires_at=expires_at,
            )
            for taken in self.taken
        )

    def next_at(self) -> int | None:
        """Return when something may be due that was not taken now."""
        unit = self.unit
        if self._is_cut_short or self._patience <= 0:
            return unit.now
        times = [
            *self._times(unit.now),
            self._suspect_at,
            unit.one(_DUE, unit.now, self._listed_handlers),
        ]
        known = [at for at in times if at is not None and at < EMPTY]
        return max(min(known), unit.now) if known else None

    def _times(self, after: int) -> tuple[int | None, ...]:
        times: tuple[int | None, ...] = self.unit.run(_TIMES, after, after, after).fetchone()
        return times

    def _due_times(self) -> list[bool]:
        """Return which of the times have come: of looks, lost leases, suspects and wakes."""
        return [at is not None and at <= self.unit.now for at in self._times(-1)]

    def _rows(self, where: str, *values: object) -> list[tuple[Hot, Kind, tuple[Any, ...]]]:
        """Return whole rows of formats that the worker can read, with what they are claimed for."""
        # Fixed texts.
        text = f"SELECT {COLUMNS}, {_KIND}, {SHOWN} FROM @tasks WHERE format <= ? AND {where}"  # noqa: S608
        now = self.unit.now
        found = []
        for values_ in self.unit.all(text, now, now, self._format, *values):
            hot, (kind, *shown) = split(values_)
            found.append((hot, _KINDS[kind], tuple(shown)))
        return found

    def _take(self, kind: Kind, hot: Hot, shown: tuple[Any, ...]) -> None:
        """Take a row that did not come out of a lane's turn."""
        if hot.suspect_at is not None:
            self.unit.run("UPDATE @tasks SET suspect_at = NULL WHERE seq = ?", hot.seq)
        self.lanes.leave(hot)
        self.taken.append(Taken(kind, hot.seq, shown, kind is not _EXPIRE_KIND))

    # Rows that need attention whatever their lane.

    def _attend(self) -> None:
        """Look at every row whose time to be looked at has come, and at every lost lease."""
        unit = self.unit
        lost = self._rows("lost_at <= ? ORDER BY lost_at LIMIT ?", unit.now, URGENT)
        free = self._rows("look_at <= ? AND lost_at IS NULL ORDER BY look_at LIMIT ?", unit.now, URGENT)
        self._is_cut_short = URGENT in (len(lost), len(free))
        for hot, _, shown in lost + free:
            kind = self._urgent_kind(hot)
            if kind is not None:
                self.lanes.leave(hot)
                hot.look_at = None
                self.taken.append(Taken(kind, hot.seq, shown, is_risky=False))
        unit.many(
            "UPDATE @tasks SET job = ?, lane = ?, ord1 = ?, ord2 = ?, suspect_at = ?, due_at = ?, "
            "look_at = ?, lost_at = ? WHERE seq = ?",
            [
                (h.job, h.lane, h.ord1, h.ord2, h.suspect_at, h.due_at, h.look_at, h.lost_at, h.seq)
                for h, _, _ in lost + free
            ],
        )

    def _urgent_kind(self, hot: Hot) -> Kind | None:
        """Return what anybody may take the row for; otherwise say on the row where it waits."""
        now = self.unit.now
        if hot.status in _ENDS:
            # The job whose end nobody saw has had its time.
            hot.job, hot.look_at = Job.NONE, None
            self.lanes.wake_now([key_of("live", "account", hot.account)])
            return None
        if hot.lost_at is not None:
            if hot.status == _SUBMITTING:
                return Kind.RECOVER
            # Its worker is gone or slow: anybody may go on.
            hot.due_at = min(hot.due_at or now, now)
        if hot.status == _PENDING:
            if hot.cancel == _REQUESTED:
                return Kind.CANCEL
            if hot.submit_deadline_at <= now:
                return Kind.EXPIRE
        elif hot.status == _SUBMITTING:
            if hot.deadline_at <= now:
                return Kind.EXPIRE
        elif hot.deadline_at + hot.lease_length <= now:
            return Kind.EXPIRE
        self.lanes.place(hot)
        return None

    # Suspects: tasks that two workers died with.

    def _take_suspect(self) -> bool:
        """Give an idle worker one suspect, alone; tell a busy one that there are some."""
        if self._room.total < 1:
            return False
        for hot, kind, shown in self._suspects():
            side = _side_of(hot)
            blocked = [resource for resource in self._needs(side, hot) if resource.room < 1]
            if blocked:
                times = [r.next_at for r in blocked if r.next_at is not None]
                self._suspect_at = min([*times, self._suspect_at or self.unit.now + _SUSPECT_PAUSE])
            elif not self._room.is_idle:
                self.has_suspects = True
                return False
            elif not self.taken and self._spend(side, hot):
                self._take(kind, hot, shown)
                return True
        return False

    def _suspects(self) -> Iterator[tuple[Hot, Kind, tuple[Any, ...]]]:
        """Yield the suspects for this worker, a page at a time: those that wait for a limit hide no other."""
        for offset in range(0, MOST_SUSPECTS, PAGE):
            page = self._rows(
                f"suspect_at <= ? AND handler IN {LISTED} AND account NOT IN {LISTED} "
                "ORDER BY suspect_at LIMIT ? OFFSET ?",
                self.unit.now,
                self._listed_handlers,
                listed(sorted(self._skip)),
                PAGE,
                offset,
            )
            yield from page
            if len(page) < PAGE:
                return

    # Lanes.

    def _find_heads(self) -> None:
        """Look which handlers have something in their lanes."""
        rows = self.unit.all(_HEADS, self._listed_handlers) if self._room.total > 0 else ()
        self._heads = {(side, handler): (key1, key3) for side, handler, key1, key3 in rows}

    def _query_share(self, places: int) -> int:
        """Return how many places the query side gets first.

        An odd one goes to the side whose head waited longer.
        """
        half, odd = divmod(places, 2)
        if not odd:
            return half
        now = self.unit.now
        query = min((key1 for (side, _), (key1, _) in self._heads.items() if side == QUERY), default=EMPTY)
        submit = min((key3 for (side, _), (_, key3) in self._heads.items() if side == SUBMIT), default=EMPTY)
        return half + 1 if query <= min(now, submit) else half

    def _ready(self, side: int, handler: str) -> Iterator[_Lane]:
        """Yield a handler's ready lanes in order, a page at a time."""
        # A submit's order is no time: every row of its lane is due.
        latest = EMPTY if side == SUBMIT else self.unit.now
        last = (-EMPTY, 0, 0, 0)
        while True:
            page = self.unit.all(
                "SELECT id, provider, account, tenant, key1, key2, key3, format "
                "FROM @lanes INDEXED BY @lanes_ready "
                "WHERE side = ? AND handler = ? AND is_ready = 1 AND key1 <= ? "
                "AND (key1, key2, key3, id) > (?, ?, ?, ?) "
                "AND instr(?, char(31) || account || char(31)) = 0 "
                "AND instr(?, char(31) || provider || char(31)) = 0 "
                "AND (? OR instr(?, char(31) || provider || char(31)) > 0) "
                "ORDER BY key1, key2, key3, id LIMIT ?",
                side,
                handler,
                latest,
                *last,
                _joined(self._skip),
                _joined(self._full),
                self._room.default > 0,
                _joined(self._room.per_provider),
                PAGE,
            )
            for id_, provider, account, tenant, key1, key2, key3, format_ in page:
                last = (key1, key2, key3, id_)
                if format_ > self._format:
                    continue
                if side == SUBMIT and tenant not in self._turns:
                    self._turns[tenant] = self._turns_before[tenant] = key2
                lane = self._seen.get(id_)
                if lane is None:
                    needs = self.resources.of(
                        permit_side(side), provider, account, tenant if side == SUBMIT else None
                    )
                    lane = _Lane(id_, side, provider, tenant, key1, key3, needs)
                    self._seen[id_] = lane
                if lane.rows or not lane.is_drained:
                    yield lane
            if len(page) < PAGE:
                return

    def _pick(self, sides: tuple[int, ...], places: int) -> int:
        """Take up to ``places`` rows from the ready lanes of these sides, best first."""
        taken = 0
        for side in sides:
            if taken < places:
                taken += self._pick_side(side, places - taken)
        return taken

    def _pick_side(self, side: int, places: int) -> int:
        latest = EMPTY if side == SUBMIT else self.unit.now
        sources = [
            self._ready(side, handler)
            for handler in self._handlers
            if self._heads.get((side, handler), _NO_HEAD)[0] <= latest
        ]
        heap: list[_Entry] = []
        for number, source in enumerate(sources):
            self._pull(heap, source, number)
        taken = 0
        while heap and taken < places and self._patience > 0:
            key, number, lane = heapq.heappop(heap)
            if number >= 0:
                # The first time this lane is seen: its source may have another as good as it.
                self._pull(heap, sources[number], number)
            if side == SUBMIT and key[1] < self._turns[lane.tenant]:
                heapq.heappush(heap, (self._key(lane), -1, lane))
                continue
            if self._provider_room(lane.provider) < 1:
                self._full.add(lane.provider)
                continue
            refused = next((resource for resource in lane.resources if resource.room < 1), None)
            if refused is not None:
                self._patience -= 1
                self.lanes.block(lane.id, refused)
                continue
            taken += self._take_from(lane, places - taken, heap)
            # One row is enough to see that the lane has to wait for a resource.
            if self._peek(lane, min(places - taken, max(1, self._room_in(lane))), len(heap) + 1):
                heapq.heappush(heap, (self._key(lane), -1, lane))
        return taken

    def _take_from(self, lane: _Lane, places: int, heap: list[_Entry]) -> int:
        """Take rows from the best lane as long as it stays the best and nothing refuses."""
        rival = heap[0][0] if heap else None
        places = min(places, self._room_in(lane))
        taken = calls = 0
        while taken < places and (lane.rows or self._peek(lane, places - taken, len(heap) + 1)):
            if taken and rival is not None and self._key(lane) > rival:
                break
            row = lane.rows.pop()
            taken += 1
            kind = _KINDS[row[3]]
            is_call = kind is not _EXPIRE_KIND
            self.taken.append(Taken(kind, row[0], row[4:], is_call))
            if is_call:
                calls += 1
                if lane.side == SUBMIT:
                    self._turns[lane.tenant] += 1
        for resource in lane.resources:
            resource.spend(calls)
        self._used[lane.provider] = self._used.get(lane.provider, 0) + calls
        if taken:
            self.lanes.note_left(lane.id)
        return taken

    def _pull(
        self,
        heap: list[_Entry],
        source: Iterator[_Lane],
        number: int,
    ) -> None:
        lane = next(source, None)
        if lane is not None:
            heapq.heappush(heap, (self._key(lane), number, lane))

    def _key(self, lane: _Lane) -> tuple[int, int, int, int]:
        turn = self._turns[lane.tenant] if lane.side == SUBMIT else 0
        if lane.rows:
            lane.key1, lane.key3 = lane.rows[-1][1:3]
        return (lane.key1, turn, lane.key3, lane.id)

    def _peek(self, lane: _Lane, places: int, rivals: int) -> bool:
        """Make sure that the lane's next row is loaded."""
        if not lane.rows and not lane.is_drained and places > 0:
            count = max(2, lane.fetched, places // rivals + 1)
            count = min(count, places)
            now = self.unit.now
            rows = self.unit.all(
                _WAITING,
                now,
                now,
                lane.id,
                EMPTY if lane.side == SUBMIT else now,
                count,
                lane.fetched,
            )
            lane.fetched += len(rows)
            lane.is_drained = len(rows) < count
            # Last first, so that the next one is popped from the end.
            rows.reverse()
            lane.rows = rows
        return bool(lane.rows)

    def _room_in(self, lane: _Lane) -> int:
        """Return how many calls the lane's provider and resources have room for."""
        room = self._provider_room(lane.provider)
        return min([room, *(resource.room for resource in lane.resources)])

    def _provider_room(self, provider: str) -> int:
        return self._room.of(provider) - self._used.get(provider, 0)

    def _needs(self, side: int, hot: Hot) -> tuple[Resource, ...]:
        tenant = hot.tenant if side == SUBMIT else None
        return self.resources.of(permit_side(side), hot.provider, hot.account, tenant)

    def _spend(self, side: int, hot: Hot) -> bool:
        """Take all that one row needs, or nothing."""
        needs = self._needs(side, hot)
        if any(resource.room < 1 for resource in needs) or self._provider_room(hot.provider) < 1:
            return False
        for resource in needs:
            resource.spend()
        self._used[hot.provider] = self._used.get(hot.provider, 0) + 1
        return True


def load_params(unit: Unit, seqs: Sequence[int]) -> dict[int, bytes]:
    """Return the params of the rows with these numbers, as far as there are any."""
    if not seqs:
        return {}
    text = f"SELECT seq, data FROM @params WHERE seq IN {LISTED}"  # noqa: S608  # fixed texts
    return dict(unit.all(text, listed(seqs)))


def _joined(names: Iterable[str]) -> str:
    """Return names as one text in which SQL finds each between two separators."""
    return SEPARATOR + SEPARATOR.join(names) + SEPARATOR


def _side_of(hot: Hot) -> int:
    if hot.status == _PENDING:
        return SUBMIT
    return RESUBMIT if hot.next_step == Step.RESUBMIT else QUERY


def new_token() -> str:
    """Return the random part that a claim's tokens share; each ends in the number of its row."""
    return secrets.token_hex(16) + "-"
