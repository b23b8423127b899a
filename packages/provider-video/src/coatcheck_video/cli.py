"""The commands of this package: options and help only, because they are loaded with the plugin."""

import click


@click.command("demo-video")
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def demo_video(*, is_json: bool) -> None:
    """Watch tasks at vendors that run on this machine and speak the protocols of the real ones.

    Every installed video vendor gets a task in a new store, a SQLite file that stays. Prints where each video
    is and how long the vendor keeps it. No picture is drawn; needs no account.

    Exit codes: 0 all went well, 1 a task did not.
    """
    from coatcheck_video.demo import run

    run(is_json=is_json)
