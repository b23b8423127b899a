"""Commands that move one task: cancel, retry, refresh, resume, resolve, make-due."""

import getpass
from typing import Any, Literal

import click

from coatcheck import codec
from coatcheck.cli.app import App, common, find_app, refuse
from coatcheck.cli.output import instant, plain, write_json
from coatcheck.cli.progress import describe
from coatcheck.cli.read import TENANT
from coatcheck.errors import CoatcheckError
from coatcheck.model import QueryParams, Task, TaskStatus

TASK = click.argument("task_id", metavar="ID")


def whoami() -> str:
    """Return the name that the operating system has for the user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user in a container
        return "unknown"


BY = click.option("--by", default=whoami, metavar="NAME", help="Who does this; the user by default.")


def _done(app: App, task: Task) -> None:
    if app.is_json:
        write_json(task)
    else:
        click.echo(f"{plain(task.id)} {describe(task)}")


@click.command()
@TASK
@TENANT
@common
def cancel(task_id: str, tenant: str | None) -> None:
    """Stop a task: at once if it was not submitted, else by asking the vendor."""
    app = find_app()
    task = app.manager.cancel(task_id, tenant=tenant)
    _done(app, task)
    if not task.status.is_end and not app.is_json:
        click.echo(f"a worker asks the vendor next; see: coatcheck wait {plain(task_id)}", err=True)


@click.command()
@TASK
@TENANT
@common
def retry(task_id: str, tenant: str | None) -> None:
    """Submit a failed task again, as a new generation."""
    app = find_app()
    _done(app, app.manager.retry(task_id, tenant=tenant))


@click.command()
@TASK
@TENANT
@common
def resume(task_id: str, tenant: str | None) -> None:
    """Track a job again whose end nobody saw."""
    app = find_app()
    _done(app, app.manager.resume(task_id, tenant=tenant))


@click.command()
@TASK
@TENANT
@common
def refresh(task_id: str, tenant: str | None) -> None:
    """Ask the vendor now, once.

    Of a task that succeeded the result is fetched again, by the same job: links to results expire. Where the
    vendor has forgotten the job, that is noted, and the old result stays. A task that ended otherwise is left
    as it is.
    """
    app = find_app()
    app.plugins  # noqa: B018  # loading is what registers handlers and result types
    before = app.manager.get(task_id, tenant=tenant, with_result=False)
    after = app.manager.refresh(task_id, tenant=tenant)
    _done(app, after)
    if before.status.is_end and not app.is_json:
        click.echo(_refreshed(after), err=True)


def _refreshed(task: Task) -> str:
    """Say what became of a task that had ended before."""
    if task.status is not TaskStatus.SUCCEEDED:
        return "it has ended, so nobody was asked; see: coatcheck retry, coatcheck resume"
    if task.external_task_id is None:
        return "the submit gave the result at once, so there is no job to ask about"
    if task.result_gone:
        return "the vendor does not know the job any more: the result is gone, what was stored is kept"
    until = f", good until {instant(task.result_expires_at)}" if task.result_expires_at else ""
    return f"the result was fetched again{until}"


@click.command()
@TASK
@click.option(
    "--to",
    type=click.Choice(["submitted", "failed", "pending"]),
    required=True,
    help="What is true at the vendor: it has the job; it has none; it has none and shall get one.",
)
@click.option("--external-id", metavar="ID", help="The vendor's id for the job; with --to submitted.")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="One more thing that the handler's queries need, like region=eu; may be repeated.",
)
@click.option("--reason", required=True, help="How that was found out; kept with the task.")
@BY
@TENANT
@common
def resolve(
    *,
    task_id: str,
    to: Literal["submitted", "failed", "pending"],
    external_id: str | None,
    params: tuple[str, ...],
    reason: str,
    by: str,
    tenant: str | None,
) -> None:
    """Say what became of a submit whose outcome is unknown, after looking at the vendor."""
    app = find_app()
    query_params = None
    if external_id is not None:
        try:
            query_params = QueryParams(external_id, **read_pairs(params, "--param"))
        except CoatcheckError as error:
            refuse(str(error), "external_id")
    elif params:
        refuse("--param goes with --external-id", "param")
    task = app.manager.resolve(task_id, to=to, query_params=query_params, reason=reason, by=by, tenant=tenant)
    _done(app, task)


@click.command("make-due")
@TASK
@click.option("--redrive", is_flag=True, help="Free it from quarantine too.")
@TENANT
@common
def make_due(*, task_id: str, redrive: bool, tenant: str | None) -> None:
    """Let a waiting task's next step happen now."""
    app = find_app()
    _done(app, app.manager.make_due(task_id, redrive=redrive, tenant=tenant))


def read_pairs(pairs: tuple[str, ...], option: str) -> dict[str, Any]:
    """Return ``name=value`` texts as a dict; a value is JSON where it is, else a text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            refuse(f"{option} needs name=value, found {pair!r}", option.strip("-"))
        try:
            found[name] = codec.loads(text)
        except ValueError:
            found[name] = text
    return found
