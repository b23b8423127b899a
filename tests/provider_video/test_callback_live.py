"""Callbacks of the video vendors from end to end: sandbox, the application's web server, worker, task."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
from attrs import define, field

import coatcheck
from coatcheck import CallbackRefusedError, PollPolicy, TaskNotFoundError, TaskStatus
from coatcheck.accounts import Accounts
from coatcheck.embedded import Local
from coatcheck.sandbox import Answer, Mounts, Request, Server, VendorSandbox
from coatcheck.testing.vendor_matrix import PATIENCE
from coatcheck_video.model import VideoRequest
from coatcheck_video.plugin import VENDORS

#: Without a callback nobody would look in the time that a test has.
HOURLY = PollPolicy(first=timedelta(hours=1), start=timedelta(hours=1), cap=timedelta(hours=1), jitter=0)
#: What these vendors have to be told beside a prompt.
MODELS = {"video:replicate": "owner/name", "video:fal": "fal-ai/some-model/text-to-video"}
#: Those that sign; whoever knows the address of another can hurry it, and do nothing else.
SIGNED = {"video:replicate", "video:fal"}
CALLING = [kind.key for kind, _ in VENDORS if hasattr(kind, "read_callback")]


@define
class Application:
    """A web application in the way of the how-to, and what it answered."""

    house: Local | None = None
    taken: list[Request] = field(factory=list)
    refused: list[str] = field(factory=list)

    def __call__(self, request: Request) -> Answer:
        """Take one callback."""
        assert self.house is not None
        task_id = request.path.rpartition("/")[2]
        # Before: the task may end while this is under way.
        self.taken.append(request)
        try:
            self.house.manager.receive_callback(task_id, body=request.body, headers=request.headers)
        except (CallbackRefusedError, TaskNotFoundError) as error:
            self.taken.remove(request)
            self.refused.append(type(error).__name__)
            return Answer(404)
        return Answer(204)


@define
class Stage:
    """One vendor, the application and a house."""

    key: str
    sandbox: VendorSandbox
    application: Application
    house: Local
    #: The application's address.
    url: str

    def submit(self, name: str) -> str:
        """Ask for a video and for callbacks, and return the task's id."""
        request = VideoRequest(
            prompt=name, model=MODELS.get(self.key), options={"callback_url": f"{self.url}/calls/{{task_id}}"}
        )
        return self.house.submit(request).id


@pytest.fixture(params=CALLING)
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Serve one of the vendors that call back."""
    key: str = request.param
    registry = coatcheck.Registry()
    coatcheck.load_plugins(registry)
    application = Application()
    with ExitStack() as stack:
        server = stack.enter_context(Server(application))
        sandbox: VendorSandbox = registry.sandbox(key)
        vendor = stack.enter_context(Server(Mounts({key: sandbox})))
        stack.callback(sandbox.close)
        environment = sandbox.environment(Mounts.url(vendor.url, key))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        (kind,) = (kind for kind, _ in VENDORS if kind.key == key)
        handler = kind(poll=HOURLY)
        house = stack.enter_context(
            coatcheck.local(
                tmp_path / "tasks.db",
                plugins=False,
                handlers=[handler],
                accounts=Accounts(environ=environment),
            )
        )
        application.house = house
        yield Stage(key, sandbox, application, house, server.url)
        sandbox.close()


def test_live_callback_ends_a_task_that_nobody_would_have_asked_about(stage: Stage) -> None:
    """The vendor calls, the application takes it, the worker asks, and the vendor's answer is the result."""
    task = stage.house.wait(stage.submit("a~polls=9,seconds=0.3"), PATIENCE)
    assert task.status is TaskStatus.SUCCEEDED
    assert stage.sandbox.counts["submit"] == 1
    assert stage.application.taken
    assert {request.path for request in stage.application.taken} == {f"/calls/{task.id}"}
    assert stage.application.refused == []
    # Nobody looked by himself: each query follows a callback.
    assert 1 <= task.query_count <= len(stage.application.taken)


def test_live_forged_callback_changes_nothing(stage: Stage) -> None:
    """A callback of another job, and one that was changed, or not signed at all, where the vendor signs."""
    task = stage.house.wait(stage.submit("a~seconds=0.3"), PATIENCE)
    genuine = stage.application.taken[-1]
    other = stage.submit("b~end=never")
    until = time.monotonic() + PATIENCE.total_seconds()
    while (job := stage.house.manager.get(other).external_task_id) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    moved = attrs.evolve(genuine, path=f"/calls/{other}")
    forged, expected = [moved], ["TaskNotFoundError"]
    if stage.key in SIGNED:
        renamed = attrs.evolve(
            moved, body=moved.body.replace(str(task.external_task_id).encode(), job.encode())
        )
        assert renamed.body != moved.body
        forged += [renamed, attrs.evolve(renamed, headers={})]
        expected += ["CallbackRefusedError"] * 2
    assert [stage.application(request).status for request in forged] == [404] * len(forged)
    assert stage.application.refused == expected
    assert not stage.house.manager.get(other).status.is_end
