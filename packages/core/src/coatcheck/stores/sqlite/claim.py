"""One claim: urgent rows for anybody, wakes, then half of the room for queries and half for submits.

Everything is read, decided and written inside one transaction. Rows are taken from lanes through a heap, so
that neither the backlog nor the lanes that cannot move cost anything.
"""

import heapq
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence

from attrs import define, field

from coatcheck.model import CancelFlag, Job, Step, TaskStatus
from coatcheck.store import QUARANTINE_CLAIMS, Kind, Lease, Room
from coatcheck.stores.sqlite.clock import from_micros
from coatcheck.stores.sqlite.hot import COLUMNS, Hot, split, stored_of
from coatcheck.stores.sqlite.lanes import QUERY, RESUBMIT, SUBMIT, Lanes, permit_side
from coatcheck.stores.sqlite.resources import SEPARATOR, Resource, Resources, key_of
from coatcheck.stores.sqlite.unit import Unit

#: How many urgent rows one claim looks at.
URGENT = 256
#: How many lanes one claim may look at before it says "come back at once".
PATIENCE = 4_000
#: Later than every time.
_FOREVER = 1 << 62
#: Lanes fetched at a time.
PAGE = 64

#: When a suspect that nothing but a commit or a person can free is looked at again, in microseconds.
_SUSPECT_PAUSE = 1_000_000

_ENDS = frozenset(status.value for status in TaskStatus if status.is_end)
# Plain values: reaching into an enum costs as much as the rest of what is done for a row.
_PENDING = TaskStatus.PENDING_SUBMIT.value
_SUBMITTING = TaskStatus.SUBMITTING.value
_REQUESTED = CancelFlag.REQUESTED.value
_KINDS = {step.value: Kind(step.value) for step in Step}
_SUBMIT_KIND, _EXPIRE_KIND, _RECOVER_KIND = Kind.SUBMIT, Kind.EXPIRE, Kind.RECOVER
_PARAM_KINDS = (Kind.SUBMIT, Kind.RESUBMIT, Kind.LOOKUP)


@define
class Taken:
    """A row that is being leased."""

    kind: Kind
    hot: Hot
    record: bytes


@define
class _Lane:
    """A ready lane during one claim."""

    id: int
    side: int
    provider: str
    account: str
    tenant: str
    key1: int
    key3: int
    resources: tuple[Resource, ...]
    #: Loaded rows, the next one last.
    rows: list[tuple[Hot, bytes]] = field(factory=list)
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
        self._room = room
        self._used: dict[str, int] = {}
        self._lease = lease
        self._skip = frozenset(skip)
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
        self._attend()
        self.lanes.settle()
        if self._take_suspect():
            self._is_cut_short = True
            return
        places = self._room.total
        first = self._query_share(places)
        portion = max(places, 16)
        self.lanes.wake_due(self.resources, portion)
        queries = self._pick((QUERY,), first)
        taken = queries + self._pick((RESUBMIT, SUBMIT), places - queries)
        taken += self._pick((QUERY,), places - taken)
        while taken < places and self._patience > 0 and self.lanes.wake_due(self.resources, portion):
            taken += self._pick((QUERY,), places - taken)
            taken += self._pick((RESUBMIT, SUBMIT), places - taken)
        self._is_cut_short |= taken >= places > 0

    def run_only(self, ids: Sequence[str]) -> None:
        """Take these tasks, if they are queryable, free and allowed."""
        for id_ in dict.fromkeys(ids):
            for hot, (record,) in self._rows("id = ? AND format <= ?", id_, self._format):
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
                    self._take(_kind_of(hot), hot, record)

    def finish(self, token: str) -> tuple[Lease, ...]:
        """Write the leases down and return them."""
        unit = self.unit
        until = unit.now + self._lease
        first_submits = []
        others = []
        for number, taken in enumerate(self.taken):
            hot = taken.hot
            self.lanes.leave(hot)
            hot.token = f"{token}{number:x}"
            hot.lease_until, hot.lease_length, hot.look_at = until, self._lease, until
            if hot.status != _PENDING and taken.kind is not _RECOVER_KIND and taken.kind is not _EXPIRE_KIND:
                hot.claims += 1
            if taken.kind is _SUBMIT_KIND:
                hot.claims += 1
                hot.status, hot.job = _SUBMITTING, Job.LIVE
                first_submits.append(hot)
            else:
                others.append(hot)
            if hot.status == _SUBMITTING:
                # A worker that is only slow gets half a lease more before its submit counts as lost.
                hot.look_at = until + self._lease // 2
        unit.many(
            "UPDATE @tasks SET token = ?, lease_until = ?, lease_length = ?, look_at = ?, claims = ?, "
            "lane = NULL, suspect = 0, redue = 0 WHERE seq = ?",
            [(h.token, until, self._lease, h.look_at, h.claims, h.seq) for h in others],
        )
        unit.many(
            "UPDATE @tasks SET token = ?, lease_until = ?, lease_length = ?, look_at = ?, claims = ?, "
            "lane = NULL, suspect = 0, redue = 0, status = 'submitting', job = 1 WHERE seq = ?",
            [(h.token, until, self._lease, h.look_at, h.claims, h.seq) for h in first_submits],
        )
        if first_submits:
            unit.count({_PENDING: -len(first_submits), _SUBMITTING: len(first_submits)})
        turns = {t: turn for t, turn in self._turns.items() if turn != self._turns_before[t]}
        if turns:
            self.lanes.set_turns(turns)
            self.lanes.remember_turn(max(turns.values()) - 1)
        self.resources.record_permits()
        self.lanes.settle()
        params = self._params([h.seq for h in self._needing_params()])
        return tuple(
            Lease(
                kind=taken.kind,
                stored=stored_of(taken.hot, taken.record, params.get(taken.hot.seq)),
                token=taken.hot.token or "",
                expires_at=from_micros(until),
            )
            for taken in self.taken
        )

    def next_at(self) -> int | None:
        """Return when something may be due that was not taken now."""
        unit = self.unit
        if self._is_cut_short or self._patience <= 0:
            return unit.now
        times = [
            unit.one("SELECT MIN(look_at) FROM @tasks WHERE look_at > ?", unit.now),
            unit.one("SELECT MIN(at) FROM @wakes"),
            unit.one("SELECT MIN(due_at) FROM @tasks WHERE suspect = 1 AND due_at > ?", unit.now),
            self._suspect_at,
        ]
        times += (
            unit.one(
                "SELECT MIN(key1) FROM @lanes INDEXED BY @lanes_ready "
                "WHERE side = ? AND handler = ? AND is_ready = 1 AND key1 > ?",
                side,
                handler,
                unit.now,
            )
            for side in (RESUBMIT, QUERY)
            for handler in self._handlers
        )
        known = [at for at in times if at is not None]
        return max(min(known), unit.now) if known else None

    def _needing_params(self) -> Iterator[Hot]:
        for taken in self.taken:
            if taken.kind in _PARAM_KINDS:
                yield taken.hot

    def _params(self, seqs: Sequence[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for seq in seqs:
            data = self.unit.one("SELECT data FROM @params WHERE seq = ?", seq)
            if data is not None:
                found[seq] = data
        return found

    def _rows(self, where: str, *values: object) -> list[tuple[Hot, tuple[bytes]]]:
        text = f"SELECT {COLUMNS}, record FROM @tasks WHERE {where}"  # noqa: S608  # fixed texts
        return [split(row) for row in self.unit.all(text, *values)]

    def _take(self, kind: Kind, hot: Hot, record: bytes) -> None:
        self.taken.append(Taken(kind, hot, record))

    # Rows that need attention whatever their lane.

    def _attend(self) -> None:
        """Look at every row whose time to be looked at has come."""
        unit = self.unit
        rows = self._rows(
            "look_at <= ? AND format <= ? ORDER BY look_at LIMIT ?", unit.now, self._format, URGENT
        )
        self._is_cut_short = len(rows) == URGENT
        moved = []
        for hot, (record,) in rows:
            kind = self._urgent_kind(hot)
            if kind is not None:
                self.lanes.leave(hot)
                self._take(kind, hot, record)
            moved.append(hot)
        unit.many(
            "UPDATE @tasks SET job = ?, lane = ?, ord1 = ?, ord2 = ?, suspect = ?, due_at = ?, look_at = ? "
            "WHERE seq = ?",
            [(h.job, h.lane, h.ord1, h.ord2, h.suspect, h.due_at, h.look_at, h.seq) for h in moved],
        )

    def _urgent_kind(self, hot: Hot) -> Kind | None:
        """Return what anybody may take the row for; otherwise say on the row where it waits."""
        now = self.unit.now
        if hot.status in _ENDS:
            # The job whose end nobody saw has had its time.
            hot.job, hot.look_at = Job.NONE, None
            self.lanes.wake_now([key_of("live", "account", hot.account)])
            return None
        if hot.token is not None and hot.lease_until is not None:
            if hot.lease_until > now:
                hot.look_at = hot.lease_until
                return None
            if hot.status == _SUBMITTING:
                if hot.lease_until + hot.lease_length // 2 <= now:
                    return Kind.RECOVER
                hot.look_at = hot.lease_until + hot.lease_length // 2
                return None
            # Its worker is gone or slow: anybody may go on.
            hot.due_at = min(hot.due_at or now, now)
        if hot.status == _PENDING:
            if hot.cancel == CancelFlag.REQUESTED:
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
        for hot, (record,) in self._rows(
            "suspect = 1 AND due_at <= ? AND format <= ? ORDER BY due_at LIMIT ?",
            self.unit.now,
            self._format,
            PAGE,
        ):
            if hot.handler not in self._handlers or hot.account in self._skip or self._room.total < 1:
                continue
            side = _side_of(hot)
            blocked = [resource for resource in self._needs(side, hot) if resource.room < 1]
            if blocked:
                times = [r.next_at for r in blocked if r.next_at is not None]
                self._suspect_at = min([*times, self._suspect_at or self.unit.now + _SUSPECT_PAUSE])
            elif not self._room.is_idle:
                self.has_suspects = True
            elif not self.taken and self._spend(side, hot):
                self._take(_kind_of(hot), hot, record)
                return True
        return False

    # Lanes.

    def _query_share(self, places: int) -> int:
        """Return how many places the query side gets first.

        An odd one goes to the side whose head waited longer.
        """
        half, odd = divmod(places, 2)
        if not odd:
            return half
        query = self._head(QUERY, "key1")
        submit = self._head(SUBMIT, "key3")
        if query is None or query > self.unit.now:
            return half
        return half + 1 if submit is None or query <= submit else half

    def _head(self, side: int, column: str) -> int | None:
        text = (
            f"SELECT {column} FROM @lanes INDEXED BY @lanes_ready "  # noqa: S608  # one of two columns
            "WHERE side = ? AND handler = ? AND is_ready = 1 ORDER BY key1, key2, key3, id LIMIT 1"
        )
        heads = [self.unit.one(text, side, handler) for handler in self._handlers]
        return min((head for head in heads if head is not None), default=None)

    def _ready(self, side: int, handler: str) -> Iterator[_Lane]:
        """Yield a handler's ready lanes in order, a page at a time."""
        last = (-(1 << 62), 0, 0, 0)
        while True:
            page = self.unit.all(
                "SELECT id, provider, account, tenant, key1, key2, key3, format "
                "FROM @lanes INDEXED BY @lanes_ready "
                "WHERE side = ? AND handler = ? AND is_ready = 1 AND (key1, key2, key3, id) > (?, ?, ?, ?) "
                "AND instr(?, char(31) || account || char(31)) = 0 "
                "AND instr(?, char(31) || provider || char(31)) = 0 "
                "AND (? OR instr(?, char(31) || provider || char(31)) > 0) "
                "ORDER BY key1, key2, key3, id LIMIT ?",
                side,
                handler,
                *last,
                _listed(self._skip),
                _listed(self._full),
                self._room.default > 0,
                _listed(self._room.per_provider),
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
                    lane = _Lane(id_, side, provider, account, tenant, key1, key3, needs)
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
        now = self.unit.now
        sources = [self._ready(side, handler) for handler in self._handlers]
        heap: list[_Entry] = []
        for number, source in enumerate(sources):
            self._pull(heap, source, number)
        taken = 0
        while heap and taken < places and self._patience > 0:
            key, number, lane = heapq.heappop(heap)
            if number >= 0:
                # The first time this lane is seen: its source may have another as good as it.
                self._pull(heap, sources[number], number)
            if side != SUBMIT and lane.key1 > now:
                break
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
            if self._peek(lane, places - taken, len(heap) + 1):
                heapq.heappush(heap, (self._key(lane), -1, lane))
        return taken

    def _take_from(self, lane: _Lane, places: int, heap: list[_Entry]) -> int:
        """Take rows from the best lane as long as it stays the best and nothing refuses."""
        now = self.unit.now
        rival = heap[0][0] if heap else None
        room = self._provider_room(lane.provider)
        for resource in lane.resources:
            room = min(room, resource.room)
        taken = 0
        while taken < places and self._peek(lane, places - taken, len(heap) + 1):
            if taken and (room < 1 or (rival is not None and self._key(lane) > rival)):
                break
            hot, record = lane.rows.pop()
            taken += 1
            if _is_overdue(hot, now):
                self._take(Kind.EXPIRE, hot, record)
                continue
            room -= 1
            for resource in lane.resources:
                resource.spend()
            self._used[lane.provider] = self._used.get(lane.provider, 0) + 1
            self._take(_kind_of(hot), hot, record)
            if lane.side == SUBMIT:
                self._turns[lane.tenant] += 1
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
        return (lane.key1, turn, lane.key3, lane.id)

    def _peek(self, lane: _Lane, places: int, rivals: int) -> bool:
        """Make sure that the lane's next row is loaded, and give the lane its key."""
        if not lane.rows and not lane.is_drained and places > 0:
            count = max(2, lane.fetched, places // rivals + 1)
            count = min(count, places)
            # A submit's order is no time: every row of its lane is due.
            latest = _FOREVER if lane.side == SUBMIT else self.unit.now
            rows = self._rows(
                "lane = ? AND ord1 <= ? ORDER BY ord1, ord2, seq LIMIT ? OFFSET ?",
                lane.id,
                latest,
                count,
                lane.fetched,
            )
            # Last first, so that the next one is popped from the end.
            lane.rows = [(hot, record) for hot, (record,) in reversed(rows)]
            lane.fetched += len(rows)
            lane.is_drained = len(rows) < count
        if not lane.rows:
            return False
        head = lane.rows[-1][0]
        lane.key1, lane.key3 = head.ord1 or 0, head.ord2 or 0
        return True

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


def _listed(names: Iterable[str]) -> str:
    """Return names as one text in which SQL finds each between two separators."""
    return SEPARATOR + SEPARATOR.join(names) + SEPARATOR


def _is_overdue(hot: Hot, now: int) -> bool:
    """Whether a row is past the time for a vendor call that it waits for.

    Queryable ones get their last query.
    """
    if hot.status == _PENDING:
        return hot.submit_deadline_at <= now
    return hot.status == _SUBMITTING and hot.deadline_at <= now


def _kind_of(hot: Hot) -> Kind:
    """Return what a row in a lane is claimed for."""
    if hot.status == _PENDING:
        return Kind.SUBMIT
    if hot.cancel == _REQUESTED and hot.status != _SUBMITTING:
        return Kind.CANCEL
    return _KINDS[hot.next_step or "query"]


def _side_of(hot: Hot) -> int:
    if hot.status == _PENDING:
        return SUBMIT
    return RESUBMIT if hot.next_step == Step.RESUBMIT else QUERY


def new_token() -> str:
    """Return the random part that a claim's tokens share."""
    return secrets.token_hex(16) + "-"
