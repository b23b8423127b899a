"""The package root: every public name is there, and importing it stays light."""

import subprocess
import sys

import pytest

import coatcheck

#: What only a process that does the work needs.
HEAVY = {
    "requests",
    "urllib3",
    "click",
    "rich",
    "sqlite3",
    "hypothesis",
    "pytest",
    "coatcheck.worker",
    "coatcheck.manager",
}


@pytest.mark.parametrize("name", coatcheck.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Names that are imported later resolve like the others, and are listed."""
    assert getattr(coatcheck, name) is not None
    assert name in dir(coatcheck)


def test_a_wrong_name_is_an_attribute_error() -> None:
    """The module behaves like one without lazy names: hasattr works."""
    assert not hasattr(coatcheck, "Manger")
    with pytest.raises(ImportError, match="Manger"):
        exec("from coatcheck import Manger")  # the statement is the test


def test_importing_the_package_and_writing_a_handler_stays_light() -> None:
    """A plugin or a web process that only describes work does not pay for doing it."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from coatcheck import TaskHandler, hookimpl, persistent, SubmitOptions, Registry\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "coatcheck.handler" in loaded.split()
    assert not HEAVY & set(loaded.split())
