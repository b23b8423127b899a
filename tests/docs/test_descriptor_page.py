"""The page about declared handlers names everything that a description may hold."""

import re
from pathlib import Path

import attrs
import pytest

from coatcheck.descriptor import tables
from coatcheck.descriptor.tables import CallTable, Descriptor

PAGE = (Path(__file__).parents[2] / "docs/reference/descriptor.md").read_text("utf-8")
TABLES = [cls for name, cls in vars(tables).items() if name.endswith("Table") and isinstance(cls, type)]


@pytest.mark.parametrize("cls", [Descriptor, *TABLES], ids=lambda cls: cls.__name__)
def test_every_key_of_a_table_is_on_the_page(cls: type) -> None:
    """A key that nobody can look up is of no use."""
    named = set(re.findall(r"`(\w+)(?: = [^`]*)?`", PAGE))
    shared = {one.name for one in attrs.fields(CallTable)}
    own = {one.name for one in attrs.fields(cls)} - (shared if cls is not CallTable else set())
    assert own
    assert own <= named


def test_page_invents_no_key() -> None:
    """What stands in the first column of a table of keys is one."""
    known = {one.name for cls in (Descriptor, *TABLES) for one in attrs.fields(cls)}
    keys = PAGE.partition("## Keys")[2].partition("## A vendor")[0]
    columns = re.findall(r"^\| (`.*?) \|", keys, re.MULTILINE)
    assert columns
    assert {name for column in columns for name in re.findall(r"`(\w+)`", column)} <= known
