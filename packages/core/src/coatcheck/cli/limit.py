"""``coatcheck limits``, and pauses of providers, accounts and tenants; workers obey at their next claim."""

from collections.abc import Iterable
from typing import Literal

import click

from coatcheck.cli.app import common, find_app, refuse
from coatcheck.cli.operate import BY
from coatcheck.cli.output import duration, instant, plain, write_json, write_table
from coatcheck.cli.params import RATE
from coatcheck.model import Limit, Rate, Side


@click.group()
def limits() -> None:
    """Rates and numbers of live jobs, for all workers of the store."""


@limits.command("list")
@common
def list_limits() -> None:
    """Print limits, pauses and closed gates."""
    app = find_app()
    stats = app.manager.stats()
    if app.is_json:
        write_json({"limits": stats.limits, "pauses": stats.pauses, "gates": stats.gates})
        return
    rows = [("limit", _subject(limit), _amount(limit), "") for limit in stats.limits]
    rows += [
        (
            "pause",
            f"{pause.kind} {pause.name!r}",
            "submits stopped",
            f"by {pause.by} at {instant(pause.since)}: {pause.reason}",
        )
        for pause in stats.pauses
    ]
    rows += [
        (
            "gate",
            f"provider {gate.provider!r} account {gate.account!r} {gate.side}",
            "closed",
            f"until {instant(gate.until)}",
        )
        for gate in stats.gates
    ]
    write_table(("kind", "of", "value", "detail"), rows)


def _subject(limit: Limit) -> str:
    named = (("provider", limit.provider), ("account", limit.account), ("tenant", limit.tenant))
    parts = [f"{kind} {name!r}" for kind, name in named if name is not None]
    return " ".join([*parts, limit.side or "live jobs"])


def _amount(limit: Limit) -> str:
    if limit.rate is not None:
        return f"{limit.rate.count}/{duration(limit.rate.per)}"
    return "none" if limit.live is None else str(limit.live)


@limits.command("set")
@click.option("--provider", metavar="NAME", help="Of this provider; * stands for all without their own.")
@click.option("--account", metavar="NAME", help="Of this account, or *.")
@click.option("--tenant", metavar="NAME", help="Of this tenant, or *.")
@click.option("--side", type=click.Choice([side.value for side in Side]), help="Which calls a rate is for.")
@click.option("--rate", help="Calls per window, like 10/s or 600/5m.", **RATE)
@click.option("--live", type=int, help="How many jobs may be live at once.")
@click.option("--off", is_flag=True, help="Lift the limit.")
@common
def set_limit(
    *,
    provider: str | None,
    account: str | None,
    tenant: str | None,
    side: str | None,
    rate: Rate | None,
    live: int | None,
    off: bool,
) -> None:
    """Set or lift one limit, live.

    \b
      coatcheck limits set --provider ocr:gitee --side submit --rate 10/s
      coatcheck limits set --account default --live 5
      coatcheck limits set --account default --off
    """  # noqa: D301  # \b is click's mark for a paragraph that is not to be folded
    app = find_app()
    if sum((rate is not None, live is not None, off)) != 1:
        refuse("give exactly one of --rate, --live and --off", "rate")
    limit = Limit(
        provider=provider,
        account=account,
        tenant=tenant,
        side=None if side is None else Side(side),
        rate=rate,
        live=live,
    )
    app.manager.set_limits(limit)
    _report([limit])


@limits.command()
@common
def apply() -> None:
    """Write the limits of coatcheck.toml over those of the store; others stay."""
    app = find_app()
    configured = app.config.limits
    if configured:
        app.manager.set_limits(*configured)
    _report(configured)


def _report(written: Iterable[Limit]) -> None:
    if find_app().is_json:
        write_json({"limits": list(written)})
        return
    lines = [f"{plain(_subject(limit))}: {_amount(limit)}" for limit in written]
    click.echo("\n".join(lines) or "there are no [[limits]] in the settings; nothing was changed")


def _pausable(kind: Literal["provider", "account", "tenant"]) -> click.Group:
    noun = "an account" if kind == "account" else f"a {kind}"

    @click.group(kind, help=f"Stop and restart the submits of {noun}.")
    def group() -> None:
        pass

    @group.command(help=f"Stop submits of {noun}; its running jobs are queried on.")
    @click.argument("name")
    @click.option("--reason", required=True, help="Why; shown to whoever asks why a task waits.")
    @BY
    @common
    def pause(name: str, reason: str, by: str) -> None:
        app = find_app()
        app.manager.pause(kind, name, by=by, reason=reason)
        _paused(name, is_paused=True)

    @group.command(help=f"Let submits of {noun} go on.")
    @click.argument("name")
    @common
    def unpause(name: str) -> None:
        app = find_app()
        was_paused = app.manager.unpause(kind, name)
        _paused(name, is_paused=False, was_paused=was_paused)

    def _paused(name: str, *, is_paused: bool, was_paused: bool = True) -> None:
        if find_app().is_json:
            write_json({kind: name, "is_paused": is_paused, "was_paused": was_paused})
            return
        state = "is paused" if is_paused else "goes on" if was_paused else "was not paused"
        click.echo(f"{kind} {plain(name)} {state}")

    return group


provider = _pausable("provider")
account = _pausable("account")
tenant = _pausable("tenant")

__all__ = ["account", "limits", "provider", "tenant"]
