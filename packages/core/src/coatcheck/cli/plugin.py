"""``coatcheck plugins`` and ``coatcheck handlers``: what is installed here, and what is broken."""

from typing import Any

import click

from coatcheck import codec
from coatcheck.cli.app import common, find_app
from coatcheck.cli.output import plain, write_json, write_table
from coatcheck.codec.allowed import by_class
from coatcheck.codec.shape import fields_of


@click.command()
@common
def plugins() -> None:
    """List the installed plugins and what is wrong with the broken ones."""
    app = find_app()
    report = app.plugins.report
    if app.is_json:
        write_json({"plugins": list(report)})
        return
    write_table(
        ("name", "package", "version", "status", "error"),
        ((one.name, one.distribution, one.version, one.status.value, one.error) for one in report),
    )
    if report.failed:
        names = ", ".join(one.name for one in report.failed)
        click.echo(
            f"broken: {plain(names)}; repair or remove them, or name them in [plugins] disabled", err=True
        )


@click.command()
@common
def handlers() -> None:
    """List the handlers that are installed here and the requests that they take."""
    app = find_app()
    by = app.registry.names("handler")
    found: list[dict[str, Any]] = [
        {
            "key": resolved.key,
            "request": codec.type_name(resolved.params_type),
            "fields": [one.name for one in fields_of(by_class[resolved.params_type])],
            "provider": resolved.handler.provider_key,
            "account": resolved.handler.account,
            "resubmit": resolved.handler.resubmit,
            "cancel": resolved.handler.has_cancel,
            "lookup": resolved.handler.has_lookup,
            "local_files": resolved.handler.local_files,
            "by": by[resolved.key],
        }
        for resolved in app.registry.handlers.values()
    ]
    if app.is_json:
        write_json({"handlers": found})
        return
    write_table(
        ("key", "request", "fields", "account", "by"),
        ((one["key"], one["request"], " ".join(one["fields"]), one["account"], one["by"]) for one in found),
    )
    if not found:
        click.echo(
            "no handlers; install a provider package, like pip install 'coatcheck-ocr[local]'", err=True
        )
