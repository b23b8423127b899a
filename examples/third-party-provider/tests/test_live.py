"""The whole way: a task, a worker, HTTP over a real socket, and a vendor that listens on localhost."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from coatcheck_thumbnail import Thumbnail, ThumbnailHandler, ThumbnailRequest

import coatcheck
from coatcheck import PollPolicy, Task, TaskFailedError, TaskStatus
from coatcheck.embedded import Local
from coatcheck.sandbox import Answer, Request, Server

QUICK = PollPolicy.exponential(timedelta(milliseconds=20))
CAT = "https://pictures.example/cat.png"


class FakeVendor:
    """The vendor's API: a job is drawn at its second query, unless its picture's name says otherwise."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.ids: dict[str, str] = {}
        #: What goes wrong with the next submits, after they were carried out.
        self.faults: list[Any] = []

    def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        if request.header("authorization") != "Bearer open sesame":
            return Answer.json({"reason": {"code": "who_are_you"}}, 401)
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "thumbnails"):
                return self.submit(request)
            case ("GET", "v1", "thumbnails", job_id) if job_id in self.jobs:
                return self.query(self.jobs[job_id])
            case ("DELETE", "v1", "thumbnails", job_id) if job_id in self.jobs:
                self.jobs[job_id]["state"] = "canceled"
                return Answer.json(self.jobs[job_id])
        return Answer.json({"reason": {"code": "nothing_here"}}, 404)

    def submit(self, request: Request) -> Answer:
        """Make a job, once for each key."""
        key, wanted = request.headers["idempotency-key"], request.json()
        job_id = self.ids.setdefault(key, f"th-{len(self.ids) + 1}")
        job = self.jobs.setdefault(job_id, {"id": job_id, "state": "waiting", "wanted": wanted})
        answer = Answer.json(job, 202)
        return Answer(fault=self.faults.pop()) if self.faults else answer

    def query(self, job: dict[str, Any]) -> Answer:
        """Move a job on, and show it."""
        wanted = job["wanted"]
        if wanted["url"].endswith("film.mp4"):
            job |= {"state": "failed", "reason": {"code": "no_picture", "text": "it is a film"}}
        elif job["state"] == "waiting":
            job |= {"state": "drawing", "percent": 50}
        elif job["state"] == "drawing" and not wanted["url"].endswith("endless.png"):
            image = {"url": f"https://files.thumbnails.example/{job['id']}.png", "width": wanted["width"]}
            job |= {"state": "done", "image": image | {"height": wanted["width"] * 3 // 4}}
        return Answer.json(job)


@pytest.fixture
def vendor() -> FakeVendor:
    """Return the vendor."""
    return FakeVendor()


@pytest.fixture
def url(vendor: FakeVendor) -> Iterator[str]:
    """Return where the vendor listens."""
    with Server(vendor) as server:
        yield f"{server.url}/v1"


def open_house(url: str, secret: str = "open sesame") -> Local:
    """Return a store and a worker for this vendor alone."""
    return coatcheck.local(
        handlers=[ThumbnailHandler(url, poll=QUICK)],
        accounts={"thumbnail": {"secret": lambda: secret}},
        plugins=False,
    )


@pytest.fixture
def house(url: str) -> Iterator[Local]:
    """Return what runs tasks."""
    with open_house(url) as running:
        yield running


def test_a_request_becomes_a_thumbnail(house: Local) -> None:
    """From the request to the result, through the store and the wire."""
    thumbnail = house.run(ThumbnailRequest(CAT, width=64), timeout=30)
    assert thumbnail == Thumbnail("https://files.thumbnails.example/th-1.png", 64, 48)


def test_a_lost_reply_makes_no_second_job(house: Local, vendor: FakeVendor) -> None:
    """The vendor honours the key, so the submit is sent again and finds the first one's job."""
    vendor.faults = ["reset"]
    task = house.wait(house.submit(ThumbnailRequest(CAT)).id, 30)
    assert task.status is TaskStatus.SUCCEEDED
    assert not vendor.faults
    assert len(vendor.jobs) == 1


def test_a_failure_keeps_the_words_of_the_vendor(house: Local) -> None:
    """Whoever waits for the result learns what the vendor said."""
    with pytest.raises(TaskFailedError, match="it is a film"):
        house.run(ThumbnailRequest("https://pictures.example/film.mp4"), timeout=30)


def test_a_canceled_job_is_stopped_at_the_vendor(house: Local, vendor: FakeVendor) -> None:
    """A cancel reaches the vendor, which would go on drawing otherwise."""

    def stop(task: Task) -> None:
        if task.status is TaskStatus.RUNNING:
            house.manager.cancel(task.id)

    task = house.submit(ThumbnailRequest("https://pictures.example/endless.png"))
    assert house.manager.wait(task.id, 30, on_change=stop).status is TaskStatus.CANCELED
    assert [job["state"] for job in vendor.jobs.values()] == ["canceled"]


def test_a_refused_secret_ends_the_task(url: str) -> None:
    """A wrong secret is the vendor's refusal; nothing is tried again with it, and nothing shows it."""
    with open_house(url, secret="open barley") as house, pytest.raises(TaskFailedError) as caught:
        house.run(ThumbnailRequest(CAT), timeout=30)
    assert "who_are_you" in str(caught.value)
    assert "barley" not in str(caught.value)
