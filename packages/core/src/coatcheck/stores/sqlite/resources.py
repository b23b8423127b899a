"""What can stand in a task's way: pauses, gates, rates and live jobs, each with the room it has now.

A resource is known by a key, so that a lane can say what blocks it. All rooms are read inside the claim's
transaction and spent in memory, so all limits of a task are taken together or not at all.
"""

from datetime import timedelta

from attrs import define

from coatcheck.micros import span
from coatcheck.model import ANY, Rate, Side
from coatcheck.stores.sqlite.unit import Limits, Subject, Unit

#: Separates the parts of a key; names hold no control characters.
SEPARATOR = "\x1f"
PLENTY = 1 << 60


@define
class Resource:
    """Something that has room for so many more steps now."""

    key: str
    room: int
    #: When it will have room again by itself.
    next_at: int | None = None
    spent: int = 0

    def spend(self, places: int = 1) -> None:
        """Take places."""
        self.room -= places
        self.spent += places


def key_of(*parts: str) -> str:
    """Build a resource's key."""
    return SEPARATOR.join(parts)


def load_limits(unit: Unit, known: Limits) -> Limits:
    """Return the namespace's limits, read again only when somebody has set one; reads the counters."""
    unit.counters = dict(unit.all("SELECT name, value FROM @counters"))
    version = unit.counters["limits"]
    if version == known.version:
        return known
    fresh = Limits(version)
    for side, provider, account, tenant, count, per, live in unit.all(
        "SELECT side, provider, account, tenant, count, per, live FROM @limits"
    ):
        subject: Subject = (side, provider, account, tenant)
        if side == "live":
            fresh.live[subject] = live
        else:
            fresh.rates[subject] = None if count is None else Rate(count, timedelta(microseconds=per))
    return fresh


class Resources:
    """The resources that one transaction has looked at."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._known: dict[str, Resource] = {}
        self._of_lane: dict[tuple[str, ...], tuple[Resource, ...]] = {}
        self._paused: set[tuple[str, str]] | None = None

    def of(self, side: Side, provider: str, account: str, tenant: str | None) -> tuple[Resource, ...]:
        """Return what a step needs room in.

        ``tenant`` is given for a first submit, which also takes slots.
        """
        asked = (side, provider, account, "-" if tenant is None else f"t{tenant}")
        found = self._of_lane.get(asked)
        if found is None:
            keys = [key_of("gate", provider, account, side), *self._rate_keys(side, provider, account)]
            if side is Side.SUBMIT:
                keys[:0] = [key_of("pause", "provider", provider), key_of("pause", "account", account)]
            if tenant is not None:
                keys.insert(0, key_of("pause", "tenant", tenant))
                keys += self._live_keys(account, tenant)
            resources = (self.get(key) for key in keys)
            # What is open for all needs no counting.
            found = tuple(resource for resource in resources if resource.room < PLENTY)
            self._of_lane[asked] = found
        return found

    def get(self, key: str) -> Resource:
        """Return the resource with its room at this instant."""
        found = self._known.get(key)
        if found is None:
            kind, *parts = key.split(SEPARATOR)
            found = self._known[key] = getattr(self, f"_{kind}")(key, *parts)
        return found

    def record_permits(self) -> None:
        """Write down the permits that were spent, and forget those that no window can see."""
        unit = self._unit
        for key, resource in self._known.items():
            if not resource.spent or not key.startswith("rate"):
                continue
            rate = self._rate_of(key)
            if rate is None:
                continue
            unit.run("DELETE FROM @permits WHERE resource = ? AND at <= ?", key, unit.now - span(rate.per))
            unit.run(
                "INSERT INTO @permits VALUES (?, ?, ?) "
                "ON CONFLICT (resource, at) DO UPDATE SET count = count + excluded.count",
                key,
                unit.now,
                resource.spent,
            )

    # Which limits there are.

    def _rate_keys(self, side: Side, provider: str, account: str) -> list[str]:
        if not self._unit.limits.rates:
            return []
        pairs = ((provider, ""), ("", account), (provider, account))
        keys = [key_of("rate", side, *pair) for pair in pairs]
        return [key for key in keys if self._rate_of(key) is not None]

    def _live_keys(self, account: str, tenant: str) -> list[str]:
        if not self._unit.limits.live:
            return []
        return [key_of("live", "account", account), key_of("live", "tenant", tenant)]

    def _rate_of(self, key: str) -> Rate | None:
        _, side, provider, account = key.split(SEPARATOR)
        rates = self._unit.limits.rates
        for named_provider in (provider, ANY) if provider else (None,):
            for named_account in (account, ANY) if account else (None,):
                subject = (side, named_provider, named_account, None)
                if subject in rates:
                    return rates[subject]
        return None

    def _live_of(self, kind: str, name: str) -> int | None:
        live = self._unit.limits.live
        for named in (name, ANY):
            subject = ("live", None, named, None) if kind == "account" else ("live", None, None, named)
            if subject in live:
                return live[subject]
        return None

    # How much room each kind has.

    def _pause(self, key: str, kind: str, name: str) -> Resource:
        if self._paused is None:
            self._paused = set(self._unit.all("SELECT kind, name FROM @pauses"))
        return Resource(key, 0 if (kind, name) in self._paused else PLENTY)

    def _gate(self, key: str, provider: str, account: str, side: str) -> Resource:
        until = self._unit.one(
            "SELECT until FROM @gates WHERE provider = ? AND account = ? AND side = ? AND until > ?",
            provider,
            account,
            side,
            self._unit.now,
        )
        return Resource(key, PLENTY if until is None else 0, until)

    def _rate(self, key: str, side: str, provider: str, account: str) -> Resource:
        rate = self._rate_of(key)
        if rate is None:
            return Resource(key, PLENTY)
        per = span(rate.per)
        used, oldest = self._unit.all(
            "SELECT COALESCE(SUM(count), 0), MIN(at) FROM @permits WHERE resource = ? AND at > ?",
            key,
            self._unit.now - per,
        )[0]
        next_at = self._unit.now + per if oldest is None else oldest + per
        return Resource(key, rate.count - used, next_at)

    def _live(self, key: str, kind: str, name: str) -> Resource:
        limit = self._live_of(kind, name)
        if limit is None:
            return Resource(key, PLENTY)
        counted = (
            "SELECT COUNT(*) FROM (SELECT 1 FROM @tasks INDEXED BY @tasks_account "
            "WHERE account = ? AND job > 0 LIMIT ?)"
            if kind == "account"
            else "SELECT COUNT(*) FROM (SELECT 1 FROM @tasks INDEXED BY @tasks_tenant_live "
            "WHERE tenant = ? AND job = 1 LIMIT ?)"
        )
        return Resource(key, limit - self._unit.one(counted, name, limit))
