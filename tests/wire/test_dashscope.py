"""``video:aliyun-wan`` and ``video:aliyun-happyhorse`` send what the new API of dashscope sends.

Its old API adds fields of its own that no page of the vendor names, so it is no measure; except for the path
of first and last frames, where the new API differs from the old one and from the vendor's pages.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.wire.recorder import KEY, Recorder, lived, recording, shown

from coatcheck import TaskStatus
from coatcheck.sandbox import Answer, Request
from coatcheck_video.aliyun_happyhorse import AliyunHappyHorseHandler
from coatcheck_video.aliyun_wan import AliyunWanHandler
from coatcheck_video.handler import VideoHandler
from coatcheck_video.model import VideoRequest

pytestmark = pytest.mark.wire

sdk: Any = pytest.importorskip("dashscope", reason="run nox -s wire")

A, B, C = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4"))
HEADERS = ("authorization", "x-dashscope-async")


def answer(request: Request) -> Answer:
    """Answer like the vendor: a waiting task, then a finished one."""
    output = {"task_id": "T1", "task_status": "PENDING"}
    if request.method == "GET":
        output |= {"task_status": "SUCCEEDED", "video_url": "https://oss.example/v.mp4"}
    return Answer.json({"request_id": "r", "output": output, "usage": {"video_count": 1, "duration": 5}})


@pytest.fixture
def recorder() -> Recorder:
    """Return a server that keeps what it was sent."""
    return Recorder(answer)


@pytest.fixture
def url(recorder: Recorder) -> Iterator[str]:
    """Return where the server is."""
    with recording(recorder) as found:
        yield f"{found}/api/v1"


def sent_by_sdk(recorder: Recorder, url: str, **said: Any) -> list[dict[str, Any]]:
    """Return what the vendor's client sends for one video."""
    client = sdk.Client(api_key=KEY, base_url=url)
    try:
        client.videos.jobs.create(**said)
        client.videos.jobs.fetch("T1")
    finally:
        client.close()
    return [shown(request, *HEADERS) for request in recorder.take()]


@pytest.mark.parametrize(
    ("handler_type", "ours", "theirs"),
    [
        (
            AliyunWanHandler,
            VideoRequest(prompt="a", width=1280, height=720, duration=5, seed=7, watermark=False),
            {"model": "wan2.6-t2v", "size": "1280*720", "duration": 5, "seed": 7, "watermark": False},
        ),
        (
            AliyunWanHandler,
            VideoRequest(prompt="a", first_frame=A, resolution="720P", prompt_extend=True),
            {
                "model": "wan2.6-i2v",
                "extra_input": {"img_url": A},
                "resolution": "720P",
                "prompt_extend": True,
            },
        ),
        (
            AliyunWanHandler,
            VideoRequest(prompt="a", model="wan2.7-i2v", first_frame=A, duration=4),
            {"model": "wan2.7-i2v", "media": [{"type": "first_frame", "url": A}], "duration": 4},
        ),
        (
            AliyunHappyHorseHandler,
            VideoRequest(prompt="a", aspect_ratio="9:16", resolution="1080p"),
            {"model": "happyhorse-1.1-t2v", "ratio": "9:16", "resolution": "1080P"},
        ),
        (
            AliyunHappyHorseHandler,
            VideoRequest(
                prompt="a", source_video=C, reference_images=(A,), options={"audio_setting": "origin"}
            ),
            {
                "model": "happyhorse-1.0-video-edit",
                "media": [{"type": "video", "url": C}, {"type": "reference_image", "url": A}],
                "parameters": {"audio_setting": "origin"},
            },
        ),
    ],
    ids=["text", "first", "listed", "horse-text", "horse-edit"],
)
def test_submit_and_query_are_those_of_the_vendors_client(
    recorder: Recorder,
    url: str,
    handler_type: type[VideoHandler],
    ours: VideoRequest,
    theirs: dict[str, Any],
) -> None:
    """Method, path, body and the headers that count, call by call."""
    expected = sent_by_sdk(recorder, url, prompt="a", **theirs)
    _, result = lived(handler_type(url), ours)
    found = [shown(request, *HEADERS) for request in recorder.take()]
    assert result.status is TaskStatus.SUCCEEDED
    assert found[0]["body"] == expected[0]["body"]
    assert [_without_kind(call) for call in found] == [_without_kind(call) for call in expected]


def test_first_and_last_frame_go_where_the_old_client_sends_them(
    recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path alone is compared, and the media: the rest of the old API's body is its own."""
    monkeypatch.setattr(sdk, "base_http_api_url", url)
    model = "wanx2.1-kf2v-plus"
    sdk.VideoSynthesis.async_call(model=model, prompt="a", first_frame_url=A, last_frame_url=B, api_key=KEY)
    (expected,) = [shown(request, *HEADERS) for request in recorder.take()]
    lived(AliyunWanHandler(url), VideoRequest(prompt="a", first_frame=A, last_frame=B))
    found = shown(recorder.take()[0], *HEADERS)
    assert (found["method"], found["path"], found["body"]["model"]) == ("POST", expected["path"], model)
    for name in ("first_frame_url", "last_frame_url"):
        assert found["body"]["input"][name] == expected["body"]["input"][name]


def _without_kind(call: dict[str, Any]) -> dict[str, Any]:
    """Leave out the content type of a call without content."""
    headers = {
        name: value for name, value in call["headers"].items() if call["body"] or name != "content-type"
    }
    return {**call, "headers": headers}
