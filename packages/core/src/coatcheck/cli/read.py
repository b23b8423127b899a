"""``coatcheck show``, ``wait`` and ``list``: reading changes nothing."""

from datetime import timedelta

import click

from coatcheck.cli.app import common, find_app
from coatcheck.cli.output import duration, instant, plain, write_fields, write_json, write_table, write_value
from coatcheck.cli.params import DURATION
from coatcheck.cli.progress import finish, follow
from coatcheck.model import Task, TaskStatus

TENANT = click.option("--tenant", metavar="NAME", help="Only a task of this tenant.")


@click.command()
@click.argument("task_id", metavar="ID")
@TENANT
@click.option("--result", "only_result", is_flag=True, help="Print the result and nothing else.")
@common
def show(*, task_id: str, tenant: str | None, only_result: bool) -> None:
    """Print a task: its state, why it waits, its result or error."""
    app = find_app()
    app.plugins  # noqa: B018  # loading is what registers the result types
    task = app.manager.get(task_id, tenant=tenant)
    why = None if task.status.is_end else app.manager.explain(task_id, tenant=tenant)
    if only_result:
        write_json(task.result) if app.is_json else write_value(task.result)
    elif app.is_json:
        write_json({"task": task, "waiting": why})
    else:
        write_fields(_fields(task))
        if why is not None:
            until = f" (until {instant(why.until)})" if why.until else ""
            write_fields([("waits", f"{why.reason}: {why.message}{until}")])
        if task.status is TaskStatus.SUCCEEDED:
            click.echo()
            write_value(task.result)


def _fields(task: Task) -> list[tuple[str, object]]:
    error = task.error
    seen = task.last_observation
    return [
        ("id", task.id),
        ("status", task.status.value),
        ("verdict", task.verdict),
        ("error", error and f"{error.code} ({error.phase}): {error.message}"),
        ("retryable", error and ("yes" if error.retryable else "no")),
        ("request", task.request_type),
        ("handler", task.handler_key),
        ("provider", task.provider_key),
        ("account", task.account),
        ("tenant", task.tenant),
        ("priority", task.priority or None),
        ("generation", task.generation),
        ("external id", task.external_task_id),
        ("query params", (task.query_params and task.query_params.provider_params) or None),
        ("progress", None if task.progress is None else f"{task.progress:.0f} %"),
        ("vendor says", task.provider_status),
        ("last seen", seen and f"{seen.status} at {instant(seen.at)}"),
        ("cancel", task.cancel.name.lower() if task.cancel else None),
        ("created", task.created_at),
        ("scheduled", task.scheduled_at),
        ("submitted", task.submitted_at),
        ("due", task.due_at),
        ("deadline", task.deadline_at),
        ("finished", task.finished_at),
        ("result expires", task.result_expires_at),
        ("result gone", "yes" if task.result_gone else None),
        ("usage", task.usage or None),
        ("submits", task.submit_attempts or None),
        ("queries", task.query_count or None),
        ("dedupe key", task.dedupe_key),
        ("metadata", task.metadata or None),
        *(("note", note) for note in task.notes),
    ]


@click.command()
@click.argument("task_id", metavar="ID")
@click.option("--timeout", help="Patience, like 60 or 5m; without it, until the task ends.", **DURATION)
@TENANT
@common
def wait(task_id: str, timeout: timedelta | None, tenant: str | None) -> None:
    """Wait for a task to end and print its result.

    Exit codes: 0 succeeded, 1 ended badly, 3 still going on when the patience ended.
    """
    app = find_app()
    app.plugins  # noqa: B018  # loading is what registers the result types
    finish(app, follow(app, task_id, timeout, tenant=tenant), task_id, tenant=tenant)


@click.command("list")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in TaskStatus]),
    help="Only these; may be repeated.",
)
@click.option("--tenant", metavar="NAME", help="Only tasks of this tenant.")
@click.option("--handler", "handler_key", metavar="KEY", help="Only tasks of this handler.")
@click.option("--provider", "provider_key", metavar="NAME", help="Only tasks of this provider.")
@click.option("--account", metavar="NAME", help="Only tasks of this account.")
@click.option("--quarantined", is_flag=True, help="Only tasks that killed three workers.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--cursor", metavar="TEXT", help="Go on where the last page ended.")
@common
def list_tasks(
    *,
    statuses: tuple[str, ...],
    tenant: str | None,
    handler_key: str | None,
    provider_key: str | None,
    account: str | None,
    quarantined: bool,
    limit: int,
    cursor: str | None,
) -> None:
    """List tasks, newest first."""
    app = find_app()
    page = app.manager.list(
        statuses=statuses or None,
        tenant=tenant,
        handler_key=handler_key,
        provider_key=provider_key,
        account=account,
        quarantined=quarantined,
        limit=limit,
        cursor=cursor,
    )
    if app.is_json:
        write_json({"items": page.items, "cursor": page.cursor})
        return
    now = app.manager.store.now()
    write_table(
        ("id", "status", "handler", "tenant", "age", "detail"),
        (
            (
                task.id,
                task.status.value,
                task.handler_key,
                task.tenant,
                duration(now - task.created_at),
                _detail(task),
            )
            for task in page.items
        ),
    )
    if page.cursor is not None:
        click.echo(f"more: add --cursor {plain(page.cursor)}", err=True)


def _detail(task: Task) -> str:
    if task.error is not None:
        return f"{task.error.code}: {task.error.message}"[:200]
    return "" if task.progress is None else f"{task.progress:.0f} %"
