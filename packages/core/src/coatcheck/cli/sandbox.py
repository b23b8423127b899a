"""``coatcheck sandbox``: vendors on this machine, to develop against without an account."""

import shlex
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress

import click

from coatcheck.cli.app import common, find_app, refuse
from coatcheck.cli.output import plain, write_json
from coatcheck.errors import CoatcheckError

PORT = 8765


@click.command()
@click.argument("names", metavar="[HANDLER]...", nargs=-1)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, help=f"Listen here; 0: any ({PORT}).")
@click.option("--script", metavar="TEXT", default="", help="How jobs go, like polls=3,on_query=429:2+html.")
@common
def sandbox(*, names: tuple[str, ...], port: int, script: str) -> None:
    """Serve the protocols of the installed vendors, or of HANDLERs, on this machine only.

    Prints the variables that lead the handlers here, and serves until Ctrl-C. A document's name may say how
    its job goes, in place of --script: invoice~polls=3,end=failed.pdf. /documents/NAME gives a document.
    """
    from coatcheck.sandbox import Mounts, Script, Server

    app = find_app()
    chosen = names or tuple(app.registry.names("sandbox"))
    if not chosen:
        refuse("no installed plugin brings a sandbox; install one, like coatcheck-ocr", "names")
    values = Script.named(f"~{script}")
    made = {name: app.registry.sandbox(name, script=values) for name in chosen}
    signals = {signal.SIGINT, signal.SIGTERM}
    # Before the server's thread exists, so that it inherits the mask and the signals come here.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        server = Server(Mounts(made), port=port)
    except OSError as error:
        raise CoatcheckError(
            f"cannot listen on port {port}: {error.strerror}; choose another by --port"
        ) from None
    with ExitStack() as closing:
        for vendor in made.values():
            closing.callback(vendor.close)
        closing.enter_context(server)
        _show({name: dict(vendor.environment(Mounts.url(server.url, name))) for name, vendor in made.items()})
        with suppress(KeyboardInterrupt):
            signal.sigwait(signals)


def _show(environments: Mapping[str, Mapping[str, str]]) -> None:
    if find_app().is_json:
        write_json({"environment": environments})
        return
    for name, variables in environments.items():
        click.echo(f"# {plain(name)}")
        for variable, value in variables.items():
            click.echo(f"export {plain(variable)}={shlex.quote(plain(value))}")
    click.echo("# serving; Ctrl-C ends it")
