"""``video:volcengine`` sends what the clients of both regions send: Ark's, and BytePlus's if it is there.

Both write ``null`` for what was not said; we leave it out, so nulls are dropped before the comparison.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.wire.recorder import KEY, NOW, Recorder, lived, recording, shown

from coatcheck import QueryParams, TaskStatus
from coatcheck.model import Account, QueryContext
from coatcheck.sandbox import Answer, Request
from coatcheck.transport import RequestsTransport
from coatcheck_video.model import VideoRequest
from coatcheck_video.volcengine import VolcengineHandler, VolcengineOptions

pytestmark = pytest.mark.wire

A, B, C, D = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4", "d.mp3"))
HEADERS = ("authorization",)
TEXT = {"type": "text", "text": "a"}


def image(url: str, role: str) -> dict[str, Any]:
    """Return a picture as the vendor reads it."""
    return {"type": "image_url", "image_url": {"url": url}, "role": role}


def answer(request: Request) -> Answer:
    """Answer like the vendor: an id, then a finished job."""
    if request.method != "GET":
        return Answer.json({"id": "cgt-1"} if request.method == "POST" else {})
    content = {"video_url": "https://tos.example/v.mp4"}
    shown_job = {"id": "cgt-1", "model": "m", "status": "succeeded", "content": content}
    return Answer.json(shown_job | {"created_at": 1_767_000_000, "updated_at": 1_767_000_090})


@pytest.fixture(params=["volcenginesdkarkruntime", "byteplussdkarkruntime"])
def sdk(request: pytest.FixtureRequest) -> Any:
    """Return the vendor's client for one of its regions."""
    return pytest.importorskip(request.param, reason="run nox -s wire")


@pytest.fixture
def recorder() -> Recorder:
    """Return a server that keeps what it was sent."""
    return Recorder(answer)


@pytest.fixture
def url(recorder: Recorder) -> Iterator[str]:
    """Return where the server is."""
    with recording(recorder) as found:
        yield f"{found}/api/v3"


def calls_of(recorder: Recorder) -> list[dict[str, Any]]:
    """Return what was recorded, without nulls, and without a content type where there is no content."""
    found = [shown(request, *HEADERS) for request in recorder.take()]
    for call in found:
        if call["method"] == "POST":
            call["body"] = {name: value for name, value in call["body"].items() if value is not None}
        else:
            del call["headers"]["content-type"], call["body"]
    return found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            VideoRequest(
                prompt="a", generate_audio=False, duration=5, resolution="720P", aspect_ratio="9:16", seed=7
            ),
            {
                "content": [TEXT],
                "generate_audio": False,
                "duration": 5,
                "resolution": "720p",
                "ratio": "9:16",
                "seed": 7,
            },
        ),
        (
            VideoRequest(
                prompt="a",
                model="doubao-seedance-1-5-pro-251215",
                first_frame=A,
                last_frame=B,
                generate_audio=True,
                camera_fixed=True,
                watermark=True,
                options=VolcengineOptions(
                    return_last_frame=True,
                    service_tier="flex",
                    execution_expires_after=3600,
                    safety_identifier="u-1",
                    draft=False,
                    callback_url="https://app.example/callbacks",
                ),
            ),
            {
                "model": "doubao-seedance-1-5-pro-251215",
                "content": [TEXT, image(A, "first_frame"), image(B, "last_frame")],
                "generate_audio": True,
                "camera_fixed": True,
                "watermark": True,
                "return_last_frame": True,
                "service_tier": "flex",
                "execution_expires_after": 3600,
                "safety_identifier": "u-1",
                "draft": False,
                "callback_url": "https://app.example/callbacks",
            },
        ),
        (
            VideoRequest(prompt="a", reference_images=(A,), source_video=C, audio=D, options={"priority": 3}),
            {
                "content": [
                    TEXT,
                    image(A, "reference_image"),
                    {"type": "video_url", "video_url": {"url": C}, "role": "reference_video"},
                    {"type": "audio_url", "audio_url": {"url": D}, "role": "reference_audio"},
                ],
                "generate_audio": True,
                "priority": 3,
            },
        ),
    ],
    ids=["text", "frames", "references"],
)
def test_submit_and_query_are_those_of_the_vendors_client(
    sdk: Any, recorder: Recorder, url: str, ours: VideoRequest, theirs: dict[str, Any]
) -> None:
    """Method, path, key and body, call by call."""
    with sdk.Ark(base_url=url, api_key=KEY, max_retries=0) as client:
        client.content_generation.tasks.create(**{"model": "doubao-seedance-2-0-260128", **theirs})
        client.content_generation.tasks.get(task_id="cgt-1")
    expected = calls_of(recorder)
    _, result = lived(VolcengineHandler(url), ours)
    assert result.status is TaskStatus.SUCCEEDED
    assert calls_of(recorder) == expected
    assert [call["method"] for call in expected] == ["POST", "GET"]


def test_a_cancel_is_that_of_the_vendors_client(sdk: Any, recorder: Recorder, url: str) -> None:
    """Ours looks first; what follows is the same."""
    with sdk.Ark(base_url=url, api_key=KEY, max_retries=0) as client:
        client.content_generation.tasks.delete("cgt-1")
    expected = calls_of(recorder)
    recorder.answer = lambda request: Answer.json({"status": "queued"} if request.method == "GET" else {})
    transport = RequestsTransport()
    context = QueryContext(
        task_id="task-1",
        created_at=NOW,
        deadline_at=NOW,
        now=NOW,
        account=Account("wire", lambda _: KEY),
        transport=transport,
    )
    try:
        result = VolcengineHandler(url).cancel(QueryParams("cgt-1", base_url=url), context)
    finally:
        transport.close()
    assert result.outcome == "accepted"
    assert calls_of(recorder)[1:] == expected
