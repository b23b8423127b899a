"""The whole way: a task, a worker, HTTP over a real socket, and a vendor that listens on localhost."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from coatcheck_thumbnail import Thumbnail, ThumbnailHandler, ThumbnailRequest
from coatcheck_thumbnail.sandbox import ThumbnailSandbox

import coatcheck
from coatcheck import PollPolicy, Task, TaskFailedError, TaskStatus
from coatcheck.embedded import Local
from coatcheck.sandbox import Server

QUICK = PollPolicy.exponential(timedelta(milliseconds=20))
CAT = "https://pictures.example/cat.png"


@pytest.fixture
def vendor() -> ThumbnailSandbox:
    """Return the vendor."""
    return ThumbnailSandbox(tokens=["open sesame"])


@pytest.fixture
def url(vendor: ThumbnailSandbox) -> Iterator[str]:
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
    assert thumbnail == Thumbnail("https://files.thumbnails.example/job-1.png", 64, 48)


def test_a_lost_reply_makes_no_second_job(house: Local, vendor: ThumbnailSandbox) -> None:
    """The vendor honours the key, so the submit is sent again and finds the first one's job."""
    vendor.fault("submit", "reset")
    task = house.wait(house.submit(ThumbnailRequest(CAT)).id, 30)
    assert task.status is TaskStatus.SUCCEEDED
    assert len(vendor.jobs) == 1
    assert [request.method for request in vendor.requests][:2] == ["POST", "POST"]


def test_a_failure_keeps_the_words_of_the_vendor(house: Local) -> None:
    """Whoever waits for the result learns what the vendor said."""
    with pytest.raises(TaskFailedError, match="cannot draw"):
        house.run(ThumbnailRequest("https://pictures.example/cat~end=failed.png"), timeout=30)


def test_a_canceled_job_is_stopped_at_the_vendor(house: Local, vendor: ThumbnailSandbox) -> None:
    """A cancel reaches the vendor, which would go on drawing otherwise."""

    def stop(task: Task) -> None:
        if task.status is TaskStatus.RUNNING:
            house.manager.cancel(task.id)

    task = house.submit(ThumbnailRequest("https://pictures.example/cat~end=never.png"))
    assert house.manager.wait(task.id, 30, on_change=stop).status is TaskStatus.CANCELED
    assert [job.state for job in vendor.jobs.values()] == ["canceled"]


def test_a_refused_secret_ends_the_task(url: str) -> None:
    """A wrong secret is the vendor's refusal; nothing is tried again with it, and nothing shows it."""
    with open_house(url, secret="open barley") as house, pytest.raises(TaskFailedError) as caught:
        house.run(ThumbnailRequest(CAT), timeout=30)
    assert "e401" in str(caught.value)
    assert "barley" not in str(caught.value)
