"""The command line in an empty folder, over a store in a file, with one vendor that a test controls."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from attrs import frozen
from click.testing import CliRunner, Result
from tests.core.manager_house import CancelingVendor, Vendor

from coatcheck import hookimpl
from coatcheck.cli import main
from coatcheck.plugins import Plugins, load_plugins
from coatcheck.registry import Registry


@frozen
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return orjson.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def vendor() -> Vendor:
    """Return the vendor that all commands of a test share."""
    return CancelingVendor()


class NoCommand:
    """Something with a name that is no command."""

    name: str | None = "nonsense"


class Plugin:
    """What a provider's package would register."""

    coatcheck_api = 1

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor

    @hookimpl
    def coatcheck_register_handlers(self, registry: Registry) -> None:
        """Register the vendor."""
        registry.add_handler(self._vendor)

    @hookimpl
    def coatcheck_register_commands(self, registry: Registry) -> None:
        """Register one good command and three bad ones."""

        @click.command()
        def hello() -> None:
            """Greet."""
            click.echo("hello from a plugin")

        @click.command()
        def broken() -> None:
            """Fail."""
            raise ZeroDivisionError("bad\x1b[31m luck")

        @click.command()
        def show() -> None:
            """Take a name that is taken."""

        registry.add_command(hello)
        registry.add_command(broken)
        registry.add_command(show)
        registry.add_command(NoCommand())


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, without settings of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("COATCHECK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COATCHECK_STORE", "sqlite:///tasks.db")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def run(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs one command."""

    def load(registry: Registry, **options: Any) -> Plugins:
        return load_plugins(registry, **options, extra=[Plugin(vendor)])

    monkeypatch.setattr("coatcheck.cli.app.load_plugins", load)

    def run(*arguments: str, input: str | None = None) -> Answer:  # the runner's own word
        result: Result = CliRunner().invoke(main, list(arguments), input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run
