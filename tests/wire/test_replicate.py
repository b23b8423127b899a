"""``video:replicate`` sends what replicate sends."""

from typing import Any

import attrs
import pytest
from tests.wire.recorder import KEY, Recorder, lived, recording, shown, stopped

from coatcheck import TaskStatus
from coatcheck.sandbox import Answer, Request
from coatcheck_video.model import VideoRequest
from coatcheck_video.replicate import ReplicateHandler, ReplicateOptions

pytestmark = pytest.mark.wire

sdk: Any = pytest.importorskip("replicate", reason="run nox -s wire")

HEADERS = ("authorization", "prefer")
INPUT = {"prompt": "waves", "image": "https://media.example/a.png", "duration": 5, "seed": 7}
REQUEST = VideoRequest(prompt="waves", first_frame="https://media.example/a.png", duration=5, seed=7)


def answer(request: Request) -> Answer:
    """Answer like the vendor: a job that starts, then runs, then is canceled."""
    is_new = request.method == "POST" and request.path.endswith("predictions")
    word = "starting" if is_new else "processing" if request.method == "GET" else "canceled"
    return Answer.json(
        {
            "id": "p1",
            "model": "acme/dream",
            "version": "5c7d",
            "status": word,
            "input": {},
            "output": None,
            "logs": "",
            "error": None,
            "metrics": None,
            "created_at": "2026-01-02T03:04:05Z",
            "urls": {"get": "https://api.replicate.com/v1/predictions/p1"},
        },
        201 if is_new else 200,
    )


def sent_by_sdk(recorder: Recorder, url: str, **named: Any) -> list[dict[str, Any]]:
    """Return what the vendor's client sends to make a job, look at it, and cancel it."""
    client = sdk.Client(api_token=KEY, base_url=url)
    with client._client:  # it has no close of its own
        made = client.predictions.create(input=INPUT, **named)
        assert client.predictions.get(made.id).status == "processing"
        assert client.predictions.cancel(made.id).status == "canceled"
    return [shown(request, *HEADERS) for request in recorder.take()]


def sent_by_us(recorder: Recorder, url: str, **changes: Any) -> list[dict[str, Any]]:
    """Return what our handler sends for the same."""
    handler = ReplicateHandler(url)
    made, seen = lived(handler, attrs.evolve(REQUEST, **changes))
    assert (made.status, seen.status) == (TaskStatus.SUBMITTED, TaskStatus.RUNNING)
    assert made.query_params is not None
    assert stopped(handler, made.query_params).outcome == "done"
    return [shown(request, *HEADERS) for request in recorder.take()]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"model": "acme/dream"}, {"model": "acme/dream"}),
        ({"version": "5c7d"}, {"model": "acme/dream:5c7d"}),
        ({"deployment": "acme/mine"}, {"options": ReplicateOptions(deployment="acme/mine")}),
        # With a model this client drops the wait.
        ({"version": "5c7d", "wait": 5}, {"model": "acme/dream:5c7d", "options": ReplicateOptions(wait=5)}),
        (
            {
                "version": "5c7d",
                "webhook": "https://app.example/task-1",
                "webhook_events_filter": ["completed"],
            },
            {
                "model": "acme/dream:5c7d",
                "options": ReplicateOptions(callback_url="https://app.example/{task_id}"),
            },
        ),
    ],
    ids=["model", "version", "deployment", "wait", "callback"],
)
def test_a_job_is_made_watched_and_canceled_like_the_sdk_does(
    theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    """Method, path, query, key and body of every call."""
    recorder = Recorder(answer)
    with recording(recorder) as url:
        expected = sent_by_sdk(recorder, url, **theirs)
        assert sent_by_us(recorder, url, **ours) == expected
    assert [call["method"] for call in expected] == ["POST", "GET", "POST"]
