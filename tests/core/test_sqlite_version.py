"""A file says which tables it has, and a store that does not know them leaves it alone."""

import sqlite3
from pathlib import Path

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
