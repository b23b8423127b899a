"""``video:runway`` sends what runwayml sends; a cancel looks first, which that one leaves to its user."""

from typing import Any

import attrs
import pytest
from tests.wire.recorder import KEY, Recorder, lived, recording, shown, stopped

from coatcheck import TaskStatus
from coatcheck.sandbox import Answer, Request
from coatcheck_video.model import VideoRequest
from coatcheck_video.runway import RunwayHandler, RunwayOptions

pytestmark = pytest.mark.wire

sdk: Any = pytest.importorskip("runwayml", reason="run nox -s wire")

HEADERS = ("authorization", "x-runway-version")
A, B, C, D = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4", "d.mp3"))


def answer(request: Request) -> Answer:
    """Answer like the vendor: a job that runs until it is deleted."""
    if request.method == "POST":
        return Answer.json({"id": "t1", "estimatedCost": {"credits": 25}})
    if request.method == "DELETE":
        return Answer(204)
    shown = {"id": "t1", "status": "RUNNING", "progress": 0.5, "createdAt": "2026-01-02T03:04:05.000Z"}
    return Answer.json({**shown, "estimatedCost": {"credits": 25}})


def calls(recorder: Recorder) -> list[dict[str, Any]]:
    """Return the calls that were recorded; a type of a body that is not there is nobody's business."""
    found = [shown(request, *HEADERS) for request in recorder.take()]
    for call in found:
        if not call["body"]:
            del call["headers"]["content-type"]
    return found


def sent_by_sdk(recorder: Recorder, url: str, resource: str, **named: Any) -> list[dict[str, Any]]:
    """Return what the vendor's client sends to make a job, look at it twice, and cancel it."""
    with sdk.RunwayML(api_key=KEY, base_url=url, max_retries=0) as client:
        made = getattr(client, resource).create(**named)
        for _ in range(2):
            assert client.tasks.retrieve(made.id).status == "RUNNING"
        client.tasks.delete(made.id)
    return calls(recorder)


def sent_by_us(recorder: Recorder, url: str, request: VideoRequest) -> list[dict[str, Any]]:
    """Return what our handler sends for the same."""
    handler = RunwayHandler(url)
    made, seen = lived(handler, request)
    assert (made.status, seen.status, seen.progress) == (TaskStatus.SUBMITTED, TaskStatus.RUNNING, 50.0)
    assert made.query_params is not None
    assert stopped(handler, made.query_params).outcome == "done"
    return calls(recorder)


TEXT = VideoRequest(prompt="waves", model="gen4.5", aspect_ratio="1280:720", duration=5, seed=7)
DANCE = attrs.evolve(TEXT, model="seedance2", generate_audio=True)


@pytest.mark.parametrize(
    ("resource", "theirs", "ours"),
    [
        (
            "text_to_video",
            {"model": "gen4.5", "duration": 5, "content_moderation": {"public_figure_threshold": "low"}},
            attrs.evolve(TEXT, options=RunwayOptions(public_figure_threshold="low")),
        ),
        (
            "text_to_video",
            {
                "model": "seedance2",
                "duration": 5,
                "audio": True,
                "references": [{"uri": A}, {"uri": B}],
                "reference_audio": [{"type": "audio", "uri": D}],
            },
            attrs.evolve(DANCE, reference_images=(A, B), audio=D),
        ),
        (
            "image_to_video",
            {"model": "gen4.5", "duration": 5, "prompt_image": A, "output_format": "prores"},
            attrs.evolve(TEXT, first_frame=A, options=RunwayOptions(output_format="prores")),
        ),
        (
            "image_to_video",
            {
                "model": "veo3.1",
                "duration": 4,
                "negative_prompt": "rain",
                "prompt_image": [{"uri": A, "position": "first"}, {"uri": B, "position": "last"}],
            },
            attrs.evolve(
                TEXT, model="veo3.1", duration=4, negative_prompt="rain", first_frame=A, last_frame=B
            ),
        ),
        (
            "video_to_video",
            {"model": "aleph2", "video_uri": C, "target_aspect_ratio": "16:9"},
            attrs.evolve(
                TEXT,
                model="aleph2",
                duration=None,
                source_video=C,
                width=1280,
                height=720,
                aspect_ratio="16:9",
            ),
        ),
        (
            "video_to_video",
            {
                "model": "seedance2",
                "duration": "auto",
                "audio": True,
                "prompt_video": C,
                "references": [{"uri": A}],
            },
            attrs.evolve(DANCE, duration=-1, source_video=C, reference_images=(A,)),
        ),
    ],
    ids=["text", "references", "image", "frames", "video", "dance"],
)
def test_a_job_is_made_watched_and_canceled_like_the_sdk_does(
    resource: str, theirs: dict[str, Any], ours: VideoRequest
) -> None:
    """Method, path, version, key and body of every call, for each path and kind of field."""
    recorder = Recorder(answer)
    with recording(recorder) as url:
        expected = sent_by_sdk(
            recorder, url, resource, prompt_text="waves", ratio="1280:720", seed=7, **theirs
        )
        assert sent_by_us(recorder, url, ours) == expected
    assert [call["method"] for call in expected] == ["POST", "GET", "GET", "DELETE"]
