"""``coatcheck worker``: run tasks until a signal comes."""

from datetime import timedelta
from typing import Any

import click

from coatcheck.cli.app import common, find_app
from coatcheck.cli.params import DURATION


@click.command()
@click.option("--lease", "worker_lease", type=DURATION, help="How long a claim lasts without renewal (30s).")
@click.option("--grace", "worker_grace", type=DURATION, help="How long to finish after SIGTERM (30s).")
@click.option("--threads", "worker_threads", type=int, help="How many calls at once.")
@click.option("--once", is_flag=True, help="One bounded round, for cron jobs; then end.")
@common
def worker(*, once: bool, **settings: timedelta | int | None) -> None:
    """Claim due tasks, call vendors and write down what they said.

    Runs until SIGINT or SIGTERM, then finishes what it began within its grace. Any number of workers may
    share a store.
    """
    app = find_app()
    app.overrides.update({name: value for name, value in settings.items() if value is not None})
    run: Any = None
    raise NotImplementedError(run)
