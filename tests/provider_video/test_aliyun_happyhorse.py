"""``video:aliyun-happyhorse``: the contract, what each model is told, and its life, live.

What both families of Aliyun share is tested with ``video:aliyun-wan``.
"""

from typing import Any

import attrs
import pytest
from tests.provider_video.vendor_matrix import VendorMatrix

from coatcheck import Limit, QueryParams, Rate
from coatcheck.errors import ValidationError
from coatcheck.model import Side
from coatcheck.testing.contexts import submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import Live
from coatcheck_video.aliyun_happyhorse import AliyunHappyHorseHandler, HappyHorseOptions
from coatcheck_video.aliyun_wan import AliyunWanHandler
from coatcheck_video.model import VideoRequest
from coatcheck_video.sandbox.aliyun import AliyunHappyHorseSandbox

ACCEPTED = reply({"request_id": "r-1", "output": {"task_id": "T1", "task_status": "PENDING"}})
A, B, C = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4"))
EDIT = "happyhorse-1.0-video-edit"


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> AliyunHappyHorseHandler:
        """Return the handler."""
        return AliyunHappyHorseHandler()

    @pytest.fixture
    def params(self) -> VideoRequest:
        """Return a request."""
        return VideoRequest(prompt="make it snow", source_video=C, reference_images=(A,))

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        output = {"task_id": "T1", "task_status": "SUCCEEDED", "video_url": "https://oss.example/v.mp4"}
        return {
            "accepted": ACCEPTED,
            "running": reply({"output": {"task_id": "T1", "task_status": "RUNNING"}}),
            "unknown_word": reply({"output": {"task_id": "T1", "task_status": "TROTTING"}}),
            "succeeded": reply({"output": output, "usage": {"video_count": 1, "duration": 12}}),
            "failed": reply({"output": {"task_status": "FAILED", "code": "InvalidURL", "message": "gone"}}),
            "cancel_accepted": reply({"request_id": "r-4"}),
            "cancel_refused": reply({"code": "X", "message": "running"}, 400),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("T1"), QueryParams("T1", base_url=AliyunHappyHorseHandler.base_url)]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = AliyunHappyHorseHandler
    sandbox_type = AliyunHappyHorseSandbox
    path = "/api/v1"
    # Only a job that waits is stopped.
    endless = "a~end=never,queued=1000000"

    def test_live_a_video_is_edited_with_references(self, live: Live) -> None:
        """Trap: AF takes this for a mode that the model lacks."""
        response = live.response("a", source_video=C, reference_images=(A,))
        assert response.usage["video"] == 1
        (job,) = live.sandbox.jobs.values()
        assert job.facts["model"] == EDIT


def body_of(request: VideoRequest) -> Any:
    """Return the body of the submit of a request."""
    handler = AliyunHappyHorseHandler()
    handler.validate(request)
    transport = ScriptedTransport([ACCEPTED])
    handler.submit(request, submit_context(transport))
    return transport.calls[0].json


@pytest.mark.parametrize(
    ("changes", "model", "media", "parameters"),
    [
        ({}, "happyhorse-1.1-t2v", None, {}),
        (
            {"aspect_ratio": "21:9", "duration": 3},
            "happyhorse-1.1-t2v",
            None,
            {"ratio": "21:9", "duration": 3},
        ),
        ({"first_frame": A}, "happyhorse-1.1-i2v", [{"type": "first_frame", "url": A}], {}),
        (
            {"reference_images": (A, B)},
            "happyhorse-1.1-r2v",
            [{"type": "reference_image", "url": A}, {"type": "reference_image", "url": B}],
            {},
        ),
        (
            {"source_video": C, "reference_images": (A,), "options": {"audio_setting": "origin"}},
            EDIT,
            [{"type": "video", "url": C}, {"type": "reference_image", "url": A}],
            {"audio_setting": "origin"},
        ),
        (
            {"resolution": "720p", "watermark": False},
            "happyhorse-1.1-t2v",
            None,
            {"resolution": "720P", "watermark": False},
        ),
        ({"generate_audio": True}, "happyhorse-1.1-t2v", None, {}),
    ],
)
def test_each_kind_of_request_is_said_in_the_words_of_its_model(
    changes: dict[str, Any], model: str, media: object, parameters: dict[str, Any]
) -> None:
    """Media in the vendor's order, and nothing that was not said."""
    body = body_of(VideoRequest(prompt="a", **changes))
    assert body["model"] == model
    assert body["input"].get("media") == media
    assert body.get("parameters", {}) == parameters


def test_a_first_frame_needs_no_prompt() -> None:
    """The picture says enough."""
    assert body_of(VideoRequest(first_frame=A))["input"] == {"media": [{"type": "first_frame", "url": A}]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": "wan2.6-t2v"}, "model"),
        ({"negative_prompt": "rain"}, "negative_prompt"),
        ({"prompt_extend": True}, "prompt_extend"),
        ({"first_frame": A, "last_frame": B}, "last_frame"),
        ({"audio": C}, "audio"),
        ({"width": 1280, "height": 720}, "width"),
        ({"generate_audio": False}, "generate_audio"),
        ({"first_frame": A, "aspect_ratio": "16:9"}, "aspect_ratio"),
        ({"source_video": C, "aspect_ratio": "16:9"}, "aspect_ratio"),
        ({"source_video": C, "duration": 5}, "duration"),
        ({"source_video": C, "first_frame": A}, "first_frame"),
        ({"source_video": C, "reference_images": (A,) * 6}, "reference_images"),
        ({"reference_images": (A,) * 10}, "reference_images"),
        ({"model": "happyhorse-1.0-t2v", "aspect_ratio": "21:9"}, "aspect_ratio"),
        ({"duration": 2}, "duration"),
        ({"resolution": "480P"}, "resolution"),
        ({"prompt": None, "reference_images": (A,)}, "prompt"),
        ({"prompt": None, "source_video": C}, "prompt"),
        ({"options": {"audio_setting": "loud"}}, "audio_setting"),
    ],
    ids=str,
)
def test_what_a_model_does_not_take_is_refused_before_it_is_stored(
    changes: dict[str, Any], field: str
) -> None:
    """A field that is dropped in silence is found out from the video, and from the bill."""
    request = attrs.evolve(VideoRequest(prompt="a"), **changes)
    with pytest.raises(ValidationError) as caught:
        AliyunHappyHorseHandler().validate(request)
    assert caught.value.field == field


def test_both_families_share_an_account_and_its_limit() -> None:
    """One key opens both, and the vendor counts the queries of both together: 20 a second."""
    wan, horse = AliyunWanHandler(), AliyunHappyHorseHandler()
    assert (
        wan.default_limits
        == horse.default_limits
        == (Limit(account="dashscope", side=Side.QUERY, rate=Rate(20)),)
    )
    assert (
        (wan.account, wan.account_env)
        == (horse.account, horse.account_env)
        == (
            "dashscope",
            {"secret": ("DASHSCOPE_API_KEY",)},
        )
    )
    assert HappyHorseOptions(audio_setting="auto").wire() == {"parameters.audio_setting": "auto"}
