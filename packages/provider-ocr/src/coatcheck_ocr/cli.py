"""The commands of this package: options and help only, because they are loaded with the plugin."""

from pathlib import Path

import click


@click.command()
@click.argument(
    "files",
    metavar="[FILE]...",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def demo(files: tuple[Path, ...], *, is_json: bool) -> None:
    """Read sample documents on this machine, or your own FILEs (PNG, JPEG, TIFF, PDF).

    Every document becomes a task of ocr:local in a new store, a SQLite file that stays. Prints the
    recognised markdown, and for the samples whether the words that they show are there. Needs no account.

    Exit codes: 0 all was read, 1 a document failed or a sample lacks words, 2 the engine is not installed or
    a file cannot be read.
    """
    from coatcheck_ocr.demo import run

    run(files, is_json=is_json)
