"""``coatcheck demo-video``: a task at each vendor's sandbox, with live progress, result and lifetime.

Put together from ``coatcheck.local()``, the vendors' own handlers and their sandboxes on this machine;
nothing about tasks or vendors is decided here. All that a run writes lies in one new folder, which stays.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from coatcheck import PollPolicy, Registry, RequestError, Task
from coatcheck.accounts import Accounts
from coatcheck.cli.app import ENDED_BADLY
from coatcheck.cli.demo import command_for, count, interruptible, new_store, start_demo, store_url, watch
from coatcheck.cli.output import duration, instant, plain, write_json
from coatcheck.embedded import local
from coatcheck.manager import error_of
from coatcheck.sandbox import Mounts, Script, Server, VendorSandbox
from coatcheck_video.handler import VideoHandler
from coatcheck_video.model import VideoRequest, VideoResponse

#: What the videos would show, in turn.
PROMPTS = (
    "a paper boat sails across a rain puddle",
    "a lighthouse at dusk, seen from the sea",
    "steam rises from a cup of tea by a window",
    "a kite above a field of barley",
)
#: What a vendor is told beside a prompt: nothing, where that is enough for its default model; or a model,
#: where it has those of many makers; or what its default model must know.
DETAILS: Sequence[Mapping[str, Any]] = (
    {},
    {"model": "maker/model"},
    {"aspect_ratio": "1280:720", "duration": 5},
)
#: Real vendors take minutes and are asked every few seconds.
PACE = PollPolicy(first=timedelta(seconds=0.3), start=timedelta(seconds=0.4), cap=timedelta(seconds=0.4))


@frozen
class Scene:
    """One video that the demo asks for, and who makes it."""

    handler: VideoHandler
    request: VideoRequest

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.handler.key}: {self.request.prompt}"


def run(*, is_json: bool) -> None:
    """Make the videos and end the command with its exit code.

    Raises:
        ValidationError: a store was named; nothing was made.
    """
    app = start_demo("demo-video", "coatcheck sandbox and coatcheck submit video.request", is_json=is_json)
    store = new_store()
    began = time.monotonic()
    with ExitStack() as stack, interruptible(store):
        scenes, environment = _vendors(app.registry, stack)
        tasks = _work(scenes, environment, store, is_quiet=app.is_json)
    made = list(zip(scenes, tasks, strict=True))
    if app.is_json:
        write_json({"store": store_url(store), "videos": [_as_json(scene, task) for scene, task in made]})
    else:
        _print(made, store, time.monotonic() - began)
    if not all(isinstance(task.result, VideoResponse) for task in tasks):
        raise click.exceptions.Exit(ENDED_BADLY)


def _vendors(registry: Registry, stack: ExitStack) -> tuple[list[Scene], Mapping[str, str]]:
    """Serve the vendors until the stack is closed, and return what each is to make and all their keys."""
    found: dict[str, tuple[VideoHandler, VideoRequest]] = {}
    for resolved in registry.handlers_for(VideoRequest):
        handler = resolved.handler
        if isinstance(handler, VideoHandler) and handler.key in registry.names("sandbox"):
            request = _request(handler, PROMPTS[len(found) % len(PROMPTS)])
            if request is not None:
                found[handler.key] = (handler, request)
    sandboxes: dict[str, VendorSandbox] = {}
    for number, key in enumerate(found):
        # Each takes a little longer than the one before, so that there is something to see.
        sandboxes[key] = registry.sandbox(key, script=Script(queued=1, polls=3 + 2 * number))
        stack.callback(sandboxes[key].close)
    server = stack.enter_context(Server(Mounts(sandboxes)))
    scenes: list[Scene] = []
    environment: dict[str, str] = {}
    for key, (handler, request) in found.items():
        here = sandboxes[key].environment(Mounts.url(server.url, key))
        rehearsing = handler.at(here[f"COATCHECK_{key.upper().replace(':', '_').replace('-', '_')}_URL"])
        rehearsing.poll = PACE
        scenes.append(Scene(rehearsing, request))
        environment.update(here)
    return scenes, environment


def _request(handler: VideoHandler, prompt: str) -> VideoRequest | None:
    """Return a request that a vendor takes, or ``None`` where it wants to know more."""
    for details in DETAILS:
        request = VideoRequest(prompt=prompt, **details)
        with suppress(RequestError):
            handler.validate(request)
            return request
    return None


def _work(
    scenes: Sequence[Scene], environment: Mapping[str, str], store: Path, *, is_quiet: bool
) -> list[Task]:
    """Run one task per scene to its end."""
    handlers = [scene.handler for scene in scenes]
    # The sandboxes' own keys and no others: a real one is not sent to a rehearsal.
    accounts = Accounts(environ=environment)
    with local(store, handlers=handlers, plugins=False, accounts=accounts) as house:
        ids = [house.submit(scene.request, handler_key=scene.handler.key).id for scene in scenes]
        return watch(house, ids, [scene.name for scene in scenes], is_quiet=is_quiet)


# Afterwards.


def _as_json(scene: Scene, task: Task) -> dict[str, Any]:
    """Return what programs get."""
    response = task.result if isinstance(task.result, VideoResponse) else None
    return {
        "task_id": task.id,
        "handler": scene.handler.key,
        "prompt": scene.request.prompt,
        "status": task.status,
        "error": task.error,
        "url": response.url if response else None,
        "expires_at": task.result_expires_at,
        "usage": task.usage,
    }


def _print(made: Sequence[tuple[Scene, Task]], store: Path, seconds: float) -> None:
    """Print where each video is, how long it stays there, and where all tasks lie."""
    for scene, task in made:
        click.secho(f"\n=== {plain(scene.name)} ===\n", bold=True)
        if not isinstance(task.result, VideoResponse):
            click.secho(plain(error_of(task)), fg="red")
            continue
        click.echo(plain(task.result, lines=True))
        click.echo(_lifetime(task))
    failed = sum(not isinstance(task.result, VideoResponse) for _, task in made)
    text = f"\n{count(len(made) - failed, 'video')} made in {seconds:.0f} s"
    click.secho(f"{text}; {count(failed, 'task')} ended otherwise" if failed else text, bold=True)
    click.echo("The vendors ended with this command, so the links lead nowhere now; a real one's would work.")
    click.echo(f"The tasks are kept in {store}; this lists them:\n  {command_for(store, 'list')}")


def _lifetime(task: Task) -> str:
    """Say how long the vendor keeps a result, and what to do about it."""
    if task.result_expires_at is None or task.finished_at is None:
        return "the vendor does not say how long it keeps the video: copy it soon"
    stays = duration(task.result_expires_at - task.finished_at)
    return (
        f"the vendor keeps it for {stays}, until {instant(task.result_expires_at)}: copy it before; "
        f"coatcheck refresh {task.id} asks the vendor for it again"
    )
