"""``coatcheck submit``: store a task, and wait for it if asked to."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import click

from coatcheck import codec
from coatcheck.cli.app import App, common, find_app, refuse
from coatcheck.cli.output import plain, write_json
from coatcheck.cli.params import DURATION, INSTANT
from coatcheck.cli.progress import finish, follow
from coatcheck.cli.request import read_request, request_type


@click.command()
@click.argument("type_name", metavar="TYPE")
@click.argument("fields", nargs=-1, metavar="[FIELD]...")
@click.option("--wait", help="Wait this long (60, 5m) for the end, and print the result.", **DURATION)
@click.option(
    "--handler", "handler_key", metavar="KEY", help="Which handler; by default the only or chosen one."
)
@click.option(
    "--provider", "provider_key", metavar="NAME", help="The vendor for limits; the handler's by default."
)
@click.option("--account", metavar="NAME", help="Which credentials; the handler's by default.")
@click.option("--tenant", metavar="NAME", help="Whose task it is.")
@click.option("--priority", type=int, help="-1000 to 1000, higher first.")
@click.option("--delay", help="Submit no earlier than this long from now.", **DURATION)
@click.option("--run-at", help="Submit no earlier than this time, like 2030-01-31T08:00Z.", **INSTANT)
@click.option("--deadline", help="Give up this long after the scheduled time (24h).", **DURATION)
@click.option("--queue-deadline", help="Do not submit later than this long after it.", **DURATION)
@click.option("--stall-limit", help="Give up when the job shows no change for this long.", **DURATION)
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="Kept with the task; may be repeated.")
@click.option(
    "--dedupe-key", metavar="KEY", help="An equal request with this key returns the first one's task."
)
@click.option(
    "--on-duplicate",
    type=click.Choice(["return", "retry_failed"]),
    help="What to do with the first task if it has failed.",
)
@click.option(
    "--idempotency-key", metavar="KEY", help="Sent to vendors that honour one; the task's id by default."
)
@click.option(
    "--cancel-on-deadline", is_flag=True, default=None, help="Ask the vendor to stop at the deadline."
)
@common
def submit(type_name: str, fields: tuple[str, ...], wait: timedelta | None, **options: Any) -> None:
    """Store a task for a request of TYPE; a worker takes it from there.

    FIELDs are name=value, a URL, a JSON object, @file or - (standard input) with one:

    \b
      coatcheck submit ocr.request https://example.com/a.pdf pages=1-3
      coatcheck submit ocr.request '{"url": "https://example.com/a.pdf"}' --wait 60

    Prints the task's id; with --wait the result. Exit codes: 0 stored (and succeeded), 1 ended badly,
    2 refused, 3 still going on when the patience ended, 4 the store failed.
    """  # noqa: D301  # \b is click's mark for a paragraph that is not to be folded
    app = find_app()
    app.plugins  # noqa: B018  # loading is what registers the request types
    request = read_request(request_type(type_name), fields)
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if "metadata" in given:
        given["metadata"] = _metadata(given["metadata"])
    if not app.manager.store.is_shared:
        refuse(
            f"a task in a {app.manager.store.kind} store would be gone when this command ends; "
            "use --store sqlite:///path/to/file.db",
            "store",
        )
    task = app.manager.submit(request, **given)
    if wait is None:
        _stored(app, task.id, is_replay=task.is_replay)
        return
    finish(app, follow(app, task.id, wait), task.id)


def _stored(app: App, task_id: str, *, is_replay: bool) -> None:
    if app.is_json:
        write_json(app.manager.get(task_id).evolve(is_replay=is_replay))
        return
    click.echo(plain(task_id))
    if is_replay:
        click.echo("this dedupe key was used before: this is the task of that time", err=True)


def _metadata(pairs: tuple[str, ...]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            refuse(f"--metadata needs name=value, found {pair!r}", "metadata")
        try:
            found[name] = codec.loads(text)
        except ValueError:
            found[name] = text
    return found
