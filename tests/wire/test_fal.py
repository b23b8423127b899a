"""``video:fal`` sends what fal-client sends; that one says "no logs" in so many words, too."""

from typing import Any

import attrs
import pytest
from tests.wire.recorder import KEY, Recorder, lived, recording, shown, stopped

from coatcheck import TaskStatus
from coatcheck.sandbox import Answer, Request
from coatcheck_video.fal import FalHandler, FalOptions
from coatcheck_video.model import VideoRequest

pytestmark = pytest.mark.wire

sdk: Any = pytest.importorskip("fal_client", reason="run nox -s wire")

HEADERS = ("authorization", "x-fal-queue-priority", "x-fal-runner-hint")
MODEL = "acme/dream/v2/image-to-video"
INPUT = {"prompt": "waves", "image_url": "https://media.example/a.png", "duration": "5", "seed": 7}
REQUEST = VideoRequest(
    prompt="waves", first_frame="https://media.example/a.png", duration=5, seed=7, model=MODEL
)


def answer(request: Request) -> Answer:
    """Answer like the vendor: addresses without the rest of the model's path, and a job that is finished."""
    place = f"http://{request.header('host')}/acme/dream/requests/q1"
    urls = {"status_url": f"{place}/status", "response_url": place, "cancel_url": f"{place}/cancel"}
    if request.method == "POST":
        return Answer.json({"request_id": "q1", "status": "IN_QUEUE", "queue_position": 0, **urls})
    if request.method == "PUT":
        return Answer.json({"status": "CANCELLATION_REQUESTED"}, 202)
    if request.path.endswith("/status"):
        return Answer.json({"request_id": "q1", "status": "COMPLETED", "metrics": {}, "logs": None})
    return Answer.json({"video": {"url": "https://files.example/v.mp4"}})


def calls(recorder: Recorder) -> list[dict[str, Any]]:
    """Return the calls that were recorded, without the words for "no logs"; a timeout is a number."""
    found = []
    for request in recorder.take():
        call = shown(request, *HEADERS)
        call["query"] = {
            name: value for name, value in call["query"].items() if (name, value) != ("logs", "false")
        }
        timeout = request.header("x-fal-request-timeout")
        found.append({**call, "timeout": None if timeout is None else float(timeout)})
    return found


def sent_by_sdk(recorder: Recorder, **named: Any) -> list[dict[str, Any]]:
    """Return what the vendor's client sends to make a job, take its result, and cancel it."""
    client = sdk.SyncClient(key=KEY)
    with client._client:  # it has no close of its own
        handle = client.submit(MODEL, INPUT, **named)
        assert handle.get() == {"video": {"url": "https://files.example/v.mp4"}}
        handle.cancel()
    return calls(recorder)


def sent_by_us(recorder: Recorder, url: str, options: FalOptions) -> list[dict[str, Any]]:
    """Return what our handler sends for the same."""
    handler = FalHandler(url)
    made, seen = lived(handler, attrs.evolve(REQUEST, options=options))
    assert seen.status is TaskStatus.SUCCEEDED
    assert made.query_params is not None
    assert stopped(handler, made.query_params).outcome == "accepted"
    return calls(recorder)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, FalOptions()),
        (
            {
                "priority": "low",
                "hint": "tenant-7",
                "start_timeout": 30,
                "webhook_url": "https://app.example/task-1",
            },
            FalOptions(
                priority="low",
                runner_hint="tenant-7",
                start_timeout=30,
                callback_url="https://app.example/{task_id}",
            ),
        ),
    ],
    ids=["plain", "options"],
)
def test_a_job_is_made_read_and_canceled_like_the_sdk_does(
    monkeypatch: pytest.MonkeyPatch, theirs: dict[str, Any], ours: FalOptions
) -> None:
    """Method, path, query, key and body of every call."""
    recorder = Recorder(answer)
    with recording(recorder) as url:
        monkeypatch.setattr(sdk.client, "QUEUE_URL_FORMAT", f"{url}/")
        expected = sent_by_sdk(recorder, **theirs)
        assert sent_by_us(recorder, url, ours) == expected
    assert [call["method"] for call in expected] == ["POST", "GET", "GET", "PUT"]
