"""The embedded default store: one SQLite file, or memory, with lanes, limits, turns, leases and gates."""

from coatcheck.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
