"""What commands share: common options, the settings, and what is built from them when it is needed.

The exit codes are here too. Nothing here prints a result.
"""

import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn, ParamSpec, TypeVar

import click

from coatcheck.config import Config
from coatcheck.descriptor import add_declared
from coatcheck.errors import (
    CoatcheckError,
    ConfigError,
    HandlerError,
    RequestError,
    StoreError,
    TaskError,
    TaskNotFoundError,
    ValidationError,
    WaitTimeoutError,
)
from coatcheck.manager import Manager
from coatcheck.plugins import Plugins, load_plugins
from coatcheck.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")

OK = 0
#: The task ended, but not well: failed, canceled, timed out or unknown; or the vendor refused what was asked.
ENDED_BADLY = 1
#: A usage error, a refused request, a wrong setting, an unknown task.
BAD_INPUT = 2
#: The patience of ``--wait`` or ``--timeout`` ended; the task goes on.
PENDING = 3
#: The store does not answer, is full, or the task moved meanwhile.
STORE_FAILED = 4
#: A fault in coatcheck or in a plugin.
BROKEN = 70
INTERRUPTED = 130


def exit_code(error: CoatcheckError) -> int:
    """Return the exit code of an error that a command ended with."""
    if isinstance(error, WaitTimeoutError):
        return PENDING
    if isinstance(error, ConfigError | RequestError | TaskNotFoundError):
        return BAD_INPUT
    if isinstance(error, TaskError | HandlerError):
        return ENDED_BADLY
    return STORE_FAILED if isinstance(error, StoreError) else BROKEN


class App:
    """The settings of one run of the program; the rest is built when it is first asked for."""

    def __init__(self) -> None:
        self.is_json = False
        #: Whoever read the output has closed the pipe.
        self.is_cut_off = False
        self.config_file: str | None = None
        self.overrides: dict[str, Any] = {}

    @cached_property
    def config(self) -> Config:
        """The settings."""
        return Config.load(self.config_file, **self.overrides)

    @cached_property
    def registry(self) -> Registry:
        """The registry, with the handlers of plugins and settings."""
        self.plugins  # noqa: B018  # loading is what fills the registry
        add_declared(self._registry, self.config.handlers, by=str(self.config.path or "settings"))
        return self._registry

    @cached_property
    def plugins(self) -> Plugins:
        """The loaded plugins."""
        self._registry = Registry()
        settings = self.config.plugins
        return load_plugins(self._registry, disabled=settings.disabled, strict=settings.strict)

    @cached_property
    def manager(self) -> Manager:
        """The manager of the configured store; opens the store."""
        return Manager.from_config(self.config, registry=self.registry, plugins=self.plugins)

    def close(self) -> None:
        """Close what was opened."""
        if "manager" in self.__dict__:
            self.manager.close()


def find_app() -> App:
    """Return the app of the running command."""
    return click.get_current_context().ensure_object(App)


def common(function: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that every command has."""

    def override(name: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
        def keep(context: click.Context, _: click.Parameter, value: str | None) -> None:
            if value is not None:
                context.ensure_object(App).overrides[name] = value

        return keep

    def keep_json(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001  # click's signature
        if value:
            context.ensure_object(App).is_json = True

    def keep_config(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(App).config_file = value

    decorators = (
        click.option(
            "--json", is_flag=True, expose_value=False, callback=keep_json, help="Print JSON, for programs."
        ),
        click.option(
            "--store",
            metavar="URL",
            expose_value=False,
            callback=override("store"),
            help="Where the tasks are, like sqlite:///path/to/file.db.",
        ),
        click.option(
            "--namespace",
            metavar="NAME",
            expose_value=False,
            callback=override("namespace"),
            help="The part of the store to use.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            expose_value=False,
            callback=keep_config,
            help="Read this file instead of ./coatcheck.toml.",
        ),
    )
    return functools.reduce(lambda inner, decorate: decorate(inner), reversed(decorators), function)


def refuse(message: str, option: str = "") -> NoReturn:
    """End the command because of what the user typed."""
    raise ValidationError(message, option)
