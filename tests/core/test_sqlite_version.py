"""A file says which tables it has, and a store that cannot work with them leaves it alone."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from coatcheck.errors import StoreConfigError
from coatcheck.stores.sqlite import SqliteStore


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE coatcheck_meta SET value = '99' WHERE name = 'version'",
        "DELETE FROM coatcheck_meta WHERE name = 'version'",
    ],
)
def test_a_file_with_other_tables_is_refused(tmp_path: Path, statement: str) -> None:
    """Tables of a newer version, or from before versions were written down, are not touched."""
    path = tmp_path / "tasks.db"
    SqliteStore(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreConfigError, match="tables of version"):
        SqliteStore(str(path))
    assert path.read_bytes() == before


def test_namespaces_of_one_file_agree_on_its_version(tmp_path: Path) -> None:
    """Opening a second namespace, or the same one again, finds the version that the first wrote."""
    path = tmp_path / "tasks.db"
    for namespace in ("one", "two", "one"):
        SqliteStore(str(path), namespace=namespace).close()


def test_a_library_without_json_is_refused_before_a_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old builds of SQLite left the JSON functions out; that is said when a store is opened."""

    class Old(sqlite3.Connection):
        def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("json_each", "no_such_function"), *more)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: connect(path, factory=Old, **more))
    with pytest.raises(StoreConfigError, match=r"JSON functions, found 3\."):
        SqliteStore(str(tmp_path / "tasks.db"))
    assert list(tmp_path.iterdir()) == []
