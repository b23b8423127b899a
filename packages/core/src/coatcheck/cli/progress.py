"""Follows a task on standard error: one live line on a terminal, one line per change elsewhere."""

import shlex
from contextlib import nullcontext
from datetime import timedelta

import click
from rich.text import Text

from coatcheck.cli.app import OK, PENDING, App, exit_code
from coatcheck.cli.output import console, plain, write_json, write_value
from coatcheck.errors import WaitTimeoutError
from coatcheck.manager import error_of
from coatcheck.model import Task, TaskStatus


def describe(task: Task) -> str:
    """Return one line about a task's state."""
    parts = [task.status.value]
    if task.progress is not None and not task.status.is_end:
        parts.append(f"{task.progress:.0f} %")
    if task.provider_status and not task.status.is_end:
        parts.append(f"({plain(task.provider_status)})")
    if task.error is not None:
        parts.append(f"{plain(task.error.code)}: {plain(task.error.message)}")
    return " ".join(parts)


def follow(app: App, task_id: str, patience: timedelta | None, *, tenant: str | None = None) -> Task | None:
    """Wait for a task and show what happens; ``None`` when the patience ended first."""
    out = console(stderr=True)
    is_live = out.is_terminal and not app.is_json
    # Leaving the block takes the live line away again.
    with out.status(Text(plain(task_id))) if is_live else nullcontext() as status:
        shown = ""

        def show(text: str) -> None:
            nonlocal shown
            if status is not None:
                # As a Text: in a str, rich would read a vendor's words as markup.
                status.update(Text(f"{plain(task_id)} {text}"))
            elif not app.is_json and text != shown:
                click.echo(f"{plain(task_id)} {text}", err=True)
            shown = text

        try:
            return app.manager.wait(
                task_id,
                patience,
                tenant=tenant,
                on_change=lambda task: show(describe(task)),
                on_waiting=lambda why: show(f"waits: {plain(why.message)}"),
            )
        except WaitTimeoutError:
            return None


def finish(app: App, task: Task | None, task_id: str, *, tenant: str | None = None) -> None:
    """Print how the waiting ended, and end the command with the code for it."""
    context = click.get_current_context()
    if task is None:
        pending = app.manager.get(task_id, tenant=tenant)
        why = app.manager.explain(task_id, tenant=tenant)
        if app.is_json:
            write_json(pending)
        else:
            click.echo(f"{plain(task_id)} {describe(pending)}: {plain(why.message)}")
            click.echo(f"it goes on; wait for it with: {_command(app, task_id)}")
        context.exit(PENDING)
    if app.is_json:
        write_json(task)
    elif task.status is TaskStatus.SUCCEEDED:
        write_value(task.result)
    else:
        click.echo(plain(error_of(task)), err=True)
    context.exit(OK if task.status is TaskStatus.SUCCEEDED else exit_code(error_of(task)))


def _command(app: App, task_id: str) -> str:
    """Return the command that goes on waiting, for the same store."""
    given = {"config": app.config_file, **app.overrides}
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return plain(shlex.join(["coatcheck", "wait", task_id, *options]))
