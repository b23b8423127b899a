"""``coatcheck worker``: run tasks until a signal comes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import click

from coatcheck.cli.app import App, common, find_app, refuse
from coatcheck.cli.output import console, plain, write_json
from coatcheck.cli.params import DURATION


@click.command()
@click.option("--lease", "worker_lease", help="How long a claim lasts without renewal (30s).", **DURATION)
@click.option("--grace", "worker_grace", help="How long steps may end after a signal (30s).", **DURATION)
@click.option("--threads", "worker_threads", type=int, help="How many calls at once (32).")
@click.option("--room", "worker_room", type=int, help="How many steps are held at once (512).")
@click.option("--health-port", "worker_health_port", type=int, help="Answer GET /health on this local port.")
@click.option("--once", is_flag=True, help="Do one bounded round, for cron jobs, and end.")
@click.option("--quiet", is_flag=True, help="Log warnings and errors only.")
@common
def worker(*, once: bool, quiet: bool, **settings: timedelta | int | None) -> None:
    """Claim due tasks, call vendors and write down what they said.

    Runs until SIGINT or SIGTERM, then lets steps under way end within the grace; a second signal cuts them
    off. Any number of workers may share a store. The log goes to standard error.
    """
    from coatcheck.worker import Worker, WorkerSettings, own_process

    app = find_app()
    app.overrides.update({name: value for name, value in settings.items() if value is not None})
    manager = app.manager
    _check(app)
    made = Worker(
        manager.store,
        manager.registry,
        accounts=manager.accounts,
        transport=manager.transport,
        plugins=manager.plugins,
        settings=WorkerSettings.of(app.config.worker),
        limits=app.config.limits,
    )
    with _log_on_stderr(logging.WARNING if quiet else logging.INFO), own_process():
        if not once:
            made.run()
            return
        steps = made.step()
    if app.is_json:
        write_json({"steps": steps})
    else:
        click.echo(f"{steps} steps")


def _check(app: App) -> None:
    """Say what keeps this worker from being of use, before it sits there quietly."""
    if not app.manager.store.is_shared:
        refuse(
            f"nobody else can reach a {app.manager.store.kind} store, so a worker would never find a task; "
            "use --store sqlite:///file.db",
            "store",
        )
    for info in app.plugins.report.failed:
        click.echo(f"{plain(info)} could not be loaded: {plain(info.error)}", err=True)
    if not app.registry.handlers:
        refuse(
            "no handlers are installed here, so a worker could do nothing; coatcheck plugins shows what is",
            "handlers",
        )


class _Lines(logging.Handler):
    """Prints records as lines that are safe on a terminal: messages may hold texts of vendors."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            console(stderr=True).print(plain(text, lines=True), soft_wrap=True)
        except Exception:  # noqa: BLE001  # a log line must never stop the worker
            self.handleError(record)


@contextmanager
def _log_on_stderr(level: int) -> Iterator[None]:
    lines = _Lines()
    lines.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    ours = logging.getLogger("coatcheck")
    before = ours.level
    logging.getLogger().addHandler(lines)
    ours.setLevel(level)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(lines)
        ours.setLevel(before)
