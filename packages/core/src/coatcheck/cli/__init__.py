"""The command line: one module per command group, loaded when it is used; plugins add commands.

Here are the table of commands and the one place where errors become messages and exit codes. No command
decides anything: each calls the manager, a worker or the registry, and prints.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from coatcheck.cli.app import BROKEN, INTERRUPTED, OK, App, common, exit_code
from coatcheck.cli.output import plain, write_json
from coatcheck.errors import CoatcheckError, PluginError, closest

#: Command → the module of its group and its name there.
BUILT_IN: Mapping[str, tuple[str, str]] = {
    "submit": ("submit", "submit"),
    "show": ("read", "show"),
    "wait": ("read", "wait"),
    "list": ("read", "list_tasks"),
    "cancel": ("operate", "cancel"),
    "retry": ("operate", "retry"),
    "refresh": ("operate", "refresh"),
    "resolve": ("operate", "resolve"),
    "resume": ("operate", "resume"),
    "make-due": ("operate", "make_due"),
    "worker": ("worker", "worker"),
    "sandbox": ("sandbox", "sandbox"),
    "handlers": ("plugin", "handlers"),
    "plugins": ("plugin", "plugins"),
    "limits": ("limit", "limits"),
    "provider": ("limit", "provider"),
    "account": ("limit", "account"),
    "tenant": ("limit", "tenant"),
    "stats": ("keep", "stats"),
    "prune": ("keep", "prune"),
}


class Commands(click.Group):
    """All commands; whatever one of them raises becomes one message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, built-in ones first."""
        return [*BUILT_IN, *self._added(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; plugins are loaded only for names that are not built in."""
        if cmd_name in BUILT_IN:
            module, name = BUILT_IN[cmd_name]
            found: click.Command = getattr(importlib.import_module(f"coatcheck.cli.{module}"), name)
            return found
        added: click.Command | None = ctx.ensure_object(App).registry.commands.get(cmd_name)
        if added is not None and not isinstance(added, click.Command):
            raise PluginError(
                f"command {cmd_name!r} must be a click.Command, found {added!r}; repair its plugin"
            )
        return added

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed, or refuse it with the closest name."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"no command {plain(name)!r}{closest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def _added(self, ctx: click.Context) -> list[str]:
        """Return the names that plugins added; what is wrong with one of them is told, and stops nothing."""
        app = ctx.ensure_object(App)
        try:
            commands = app.registry.commands
        except CoatcheckError as error:
            # Help has to work above all where the settings do not.
            click.echo(f"commands of plugins are not listed: {plain(error)}", err=True)
            return []
        usable = []
        for name, command in commands.items():
            if name in BUILT_IN or not isinstance(command, click.Command):
                problem = "is taken by coatcheck" if name in BUILT_IN else "is no click.Command"
                by = app.registry.names("command")[name]
                click.echo(f"command {plain(name)!r} of {plain(by)} is left out: it {problem}", err=True)
            else:
                usable.append(name)
        return usable

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            ctx.ensure_object(App).is_cut_off = True
            raise

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run the program; always ends with ``SystemExit``."""
        app = App()
        options.update(standalone_mode=False, obj=app)
        try:
            code = super().main(*args, **options)
        except BaseException as error:  # noqa: BLE001  # the outermost place: each error gets its message and code here
            code = _report(error, app)
        finally:
            app.close()
        sys.exit(code if isinstance(code, int) else OK)


def _report(error: BaseException, app: App) -> int:
    """Print what went wrong, without a traceback, and return the exit code."""
    match error:
        case CoatcheckError():
            _print(app, type(error).__name__, str(error))
            return exit_code(error)
        case click.exceptions.Exit():
            return error.exit_code
        case click.ClickException():
            error.show()
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            click.echo("interrupted; what was stored goes on", err=True)
            return INTERRUPTED
        case SystemExit():
            # click ends so when whoever reads our output has seen enough; that is nobody's failure.
            return OK if app.is_cut_off else error.code if isinstance(error.code, int) else BROKEN
    if os.environ.get("COATCHECK_TRACEBACK"):
        traceback.print_exception(error)
    hint = "; COATCHECK_TRACEBACK=1 shows where"
    _print(app, "Broken", f"a fault in coatcheck or in a plugin: {type(error).__name__}: {error}{hint}")
    return BROKEN


def _print(app: App, kind: str, message: str) -> None:
    if app.is_json:
        write_json({"error": kind, "message": message}, err=True)
    else:
        click.echo(f"Error: {plain(message, lines=True)}", err=True)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="coatcheck")
@common
def main() -> None:
    """Durable, throttled, recoverable tasks for vendor APIs that answer with a ticket.

    Settings come from options, COATCHECK_* variables and coatcheck.toml, in this order. Exit codes: 0 well, 1
    the task ended badly, 2 bad usage, request or settings, 3 the patience ended and the task goes on, 4 the
    store failed, 70 a fault.
    """
