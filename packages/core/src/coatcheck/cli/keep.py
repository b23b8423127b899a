"""``coatcheck stats`` and ``coatcheck prune``: the state of a store, and its size."""

from datetime import timedelta

import click

from coatcheck.cli.app import common, find_app
from coatcheck.cli.output import duration, write_fields, write_json
from coatcheck.cli.params import DURATION
from coatcheck.config import shown_url
from coatcheck.manager import PRUNABLE
from coatcheck.model import ENDS, TaskStatus


@click.command()
@common
def stats() -> None:
    """Print how many tasks there are in each state, and what waits."""
    app = find_app()
    found = app.manager.stats()
    if app.is_json:
        write_json(found)
        return
    late = None if found.oldest_due_at is None else found.now - found.oldest_due_at
    write_fields(
        [
            ("store", shown_url(app.config.store)),
            ("namespace", app.config.namespace),
            *((status.value, count) for status, count in found.by_status.items() if count),
            ("quarantined", found.quarantined or None),
            ("lanes ready", found.ready_lanes),
            ("lanes blocked", found.blocked_lanes),
            ("head is late by", None if late is None else duration(max(late, timedelta()))),
            ("paused", len(found.pauses) or None),
            ("gates closed", len(found.gates) or None),
            ("handlers served", ", ".join(sorted(found.handlers)) or "none"),
        ]
    )


@click.command()
@click.option("--older-than", required=True, help="Age since the end, like 30d.", **DURATION)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in sorted(ENDS)]),
    help="Only these ends; by default all but submit_unknown, which waits for an operator.",
)
@common
def prune(older_than: timedelta, statuses: tuple[str, ...]) -> None:
    """Delete tasks that ended long ago; workers may go on meanwhile."""
    app = find_app()
    ends = [TaskStatus(status) for status in statuses] or sorted(PRUNABLE)
    deleted = app.manager.prune(dict.fromkeys(ends, older_than))
    if app.is_json:
        write_json({"deleted": deleted})
    else:
        click.echo(f"{deleted} deleted")
