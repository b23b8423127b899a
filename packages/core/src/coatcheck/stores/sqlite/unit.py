"""One write transaction.

Statements, the time it happens at, and whether somebody must be woken afterwards.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from coatcheck import codec
from coatcheck.model import Rate
from coatcheck.stores.sqlite.database import Database

#: What a limit's ``subject`` is made of: side or "live", provider, account, tenant.
Subject = tuple[str, str | None, str | None, str | None]

# JSON serves to give a statement many numbers and texts, or to fetch them, at once; records stay opaque here.

#: Stands in a statement after ``IN``; its value is made by ``listed``.
LISTED = "(SELECT value FROM json_each(?))"


def listed(values: Iterable[str | int]) -> str:
    """Return any number of values as one that a statement can be given."""
    return codec.dumps(list(values)).decode()


@define
class Limits:
    """The limits of the namespace as they were at ``version``; kept between transactions."""

    version: int = -1
    rates: dict[Subject, Rate | None] = field(factory=dict)
    live: dict[Subject, int | None] = field(factory=dict)


class Unit:
    """One write transaction at one instant (microseconds since the epoch)."""

    def __init__(
        self, database: Database, cursor: sqlite3.Cursor, now: int, limits: Limits, ageing: int
    ) -> None:
        self.now = now
        self.ageing = ageing
        self.limits = limits
        #: The counters of the namespace as they were when it began.
        self.counters: dict[str, int] = {}
        #: Something may be due now that was not before.
        self.has_work = False
        self._sql = database.sql
        self._cursor = cursor

    def run(self, text: str, *values: Any) -> sqlite3.Cursor:
        """Execute one statement; ``@`` stands for the namespace."""
        return self._cursor.execute(self._sql(text), values)

    def many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute one statement for many rows."""
        if rows:
            self._cursor.executemany(self._sql(text), rows)

    def all(self, text: str, *values: Any) -> list[Any]:
        """Fetch all rows."""
        return self._cursor.execute(self._sql(text), values).fetchall()

    def packed(self, columns: str, source: str, *values: Any) -> list[list[Any]]:
        """Fetch all rows of numbers and texts in one piece.

        A third faster than row by row, where Python lets other threads in between.
        """
        text = f"SELECT json_group_array(json_array({columns})) FROM {source}"  # noqa: S608  # fixed texts
        rows: list[list[Any]] = codec.loads(self.one(text, *values))
        return rows

    def one(self, text: str, *values: Any) -> Any:
        """Fetch the first column of the first row, or ``None``."""
        found = self._cursor.execute(self._sql(text), values).fetchone()
        return None if found is None else found[0]

    def insert(self, text: str, values: Sequence[Any]) -> int:
        """Insert one row and return its number."""
        return int(self._cursor.execute(self._sql(text), values).lastrowid or 0)

    def announce(self) -> None:
        """Raise the work counter, if something may be due."""
        if self.has_work:
            self.run("UPDATE @counters SET value = value + 1 WHERE name = 'work'")

    def count(self, deltas: dict[str, int]) -> None:
        """Add to the number of tasks of each status."""
        self.many(
            "INSERT INTO @counts VALUES (?, ?) "
            "ON CONFLICT (status) DO UPDATE SET count = count + excluded.count",
            [(status, delta) for status, delta in deltas.items() if delta],
        )
