"""``video:volcengine``: the contract, what each model is told, the vendor's traps, and its life, live."""

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from tests.provider_video.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.errors import (
    JobNotFoundError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Callback, Reply
from coatcheck.model import CancelResult, QueryResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, RecordedCallback, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import PATIENCE, Live
from coatcheck_video.model import VideoMode, VideoRequest, VideoResponse
from coatcheck_video.sandbox.volcengine import VolcengineSandbox
from coatcheck_video.volcengine import REGIONS, VolcengineHandler, VolcengineOptions

HOME = f"{REGIONS['cn-beijing']}/contents/generations/tasks"
ACCEPTED = reply({"id": "cgt-1"})
REQUEST = VideoRequest(prompt="waves at night", duration=5, seed=7, generate_audio=False)
A, B, C, D = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4", "d.mp3"))
TEXT = {"type": "text", "text": "a"}
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def image(url: str, role: str) -> dict[str, Any]:
    """Return a picture as the vendor reads it."""
    return {"type": "image_url", "image_url": {"url": url}, "role": role}


VIDEO = {"type": "video_url", "video_url": {"url": C}, "role": "reference_video"}
AUDIO = {"type": "audio_url", "audio_url": {"url": D}, "role": "reference_audio"}


def shown(word: str, *, headers: dict[str, str] | None = None, **more: Any) -> Reply:
    """Return a reply to a query."""
    return reply({"id": "cgt-1", "status": word, "error": None, **more}, headers=headers or {})


SUCCEEDED = shown(
    "succeeded",
    content={"video_url": "https://tos.example/v.mp4", "last_frame_url": "https://tos.example/l.png"},
    usage={"completion_tokens": 108900, "total_tokens": 108900},
    duration=5,
    resolution="720p",
)


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> VolcengineHandler:
        """Return the handler."""
        return VolcengineHandler()

    @pytest.fixture
    def params(self) -> VideoRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": ACCEPTED,
            "running": shown("running"),
            "unknown_word": shown("rehearsing"),
            "succeeded": SUCCEEDED,
            "failed": shown(
                "failed", error={"code": "OutputVideoSensitiveContentDetected", "message": "not this"}
            ),
            "cancel_done": shown("cancelled"),
            "cancel_accepted": [shown("queued"), reply({})],
            "cancel_refused": shown("running"),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("cgt-1"), QueryParams("cgt-1", base_url=REGIONS["cn-beijing"])]

    @pytest.fixture
    def callback(self) -> RecordedCallback:
        """Return a callback, which is the job as a query shows it."""
        return RecordedCallback(
            callback=Callback(SUCCEEDED.body, received_at=NOON), external_task_id="cgt-1", is_signed=False
        )


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = VolcengineHandler
    sandbox_type = VolcengineSandbox
    path = "/api/v3"
    # Only a job that waits is stopped.
    endless = "a~end=never,queued=1000000"

    @pytest.mark.parametrize(
        "changes",
        [
            {"first_frame": A, "last_frame": B},
            {"reference_images": (A, B), "source_video": C, "audio": D},
            {"model": "doubao-seedance-1-0-pro-250528", "camera_fixed": True},
        ],
        ids=["frames", "references", "first-version"],
    )
    def test_live_every_kind_of_request_is_taken(self, live: Live, changes: dict[str, Any]) -> None:
        """The vendor refuses media without the right role and fields that it does not know."""
        response = live.response("a", **changes)
        assert response.usage == {"token": 108_900, "second": 5}

    def test_live_an_expired_job_failed(self, live: Live) -> None:
        """Trap: the word is an end, and waiting for another one takes a day."""
        task = live.run("a~end=never,words=expired")
        assert task.error is not None
        assert (task.status, task.error.code, task.error.retryable) == (TaskStatus.FAILED, "expired", True)

    def test_live_a_running_job_is_not_stopped_and_goes_on(self, live: Live) -> None:
        """The vendor stops what waits, and nothing else."""
        task = live.house.submit(live.request("a~polls=30"))
        live.watch(task, lambda found: found.status is TaskStatus.RUNNING)
        live.house.manager.cancel(task.id)
        assert live.house.wait(task.id, PATIENCE).status is TaskStatus.SUCCEEDED


def call_of(request: VideoRequest, base_url: str | None = None) -> Call:
    """Return the submit of a request, checked and signed."""
    handler = VolcengineHandler(base_url)
    handler.validate(request)
    transport = ScriptedTransport([ACCEPTED])
    handler.submit(request, submit_context(transport))
    return transport.calls[0]


def submitted(answer: Reply) -> Any:
    """Submit over a scripted reply."""
    return VolcengineHandler().submit(REQUEST, submit_context(ScriptedTransport([answer])))


def queried(answer: Reply) -> QueryResult:
    """Query over a scripted reply."""
    return VolcengineHandler().query(QueryParams("cgt-1"), query_context(ScriptedTransport([answer])))


def test_the_submit_is_what_the_vendor_wants() -> None:
    """Method, address, key and body, without anything that was not said."""
    call = call_of(REQUEST)
    assert (call.method, call.url) == ("POST", HOME)
    assert call.headers["Authorization"] == "Bearer secret-of-tests"
    assert call.json == {
        "model": "doubao-seedance-2-0-260128",
        "content": [{"type": "text", "text": "waves at night"}],
        "duration": 5,
        "seed": 7,
        "generate_audio": False,
    }


@pytest.mark.parametrize(
    ("changes", "content"),
    [
        ({"first_frame": A}, [TEXT, image(A, "first_frame")]),
        (
            {"first_frame": A, "last_frame": B},
            [TEXT, image(A, "first_frame"), image(B, "last_frame")],
        ),
        (
            {"reference_images": (A, B)},
            [TEXT, image(A, "reference_image"), image(B, "reference_image")],
        ),
        ({"source_video": C}, [TEXT, VIDEO]),
        (
            {"reference_images": (A,), "source_video": C, "audio": D},
            [TEXT, image(A, "reference_image"), VIDEO, AUDIO],
        ),
        ({"source_video": C, "audio": D}, [TEXT, VIDEO, AUDIO]),
        ({"model": "dreamina-seedance-2-5-260628", "audio": D}, [TEXT, AUDIO]),
        ({"prompt": None, "first_frame": "asset://a-1"}, [image("asset://a-1", "first_frame")]),
    ],
    ids=["first", "first-last", "references", "video", "all", "video-audio", "audio-2.5", "asset"],
)
def test_every_medium_has_its_role(changes: dict[str, Any], content: list[dict[str, Any]]) -> None:
    """Trap: the vendor refuses videos and audio without one."""
    body: Any = call_of(VideoRequest(**{"prompt": "a", **changes})).json
    assert body["content"] == content


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"resolution": "720P", "aspect_ratio": "adaptive"}, {"resolution": "720p", "ratio": "adaptive"}),
        ({"duration": -1, "watermark": True}, {"duration": -1, "watermark": True}),
        (
            {"model": "doubao-seedance-1-5-pro-251215", "camera_fixed": True},
            {"camera_fixed": True},
        ),
        (
            {"options": {"priority": 3, "return_last_frame": True, "extra": {"tools": [{"type": "web"}]}}},
            {"priority": 3, "return_last_frame": True, "tools": [{"type": "web"}]},
        ),
        ({"options": {"extra": {"seed": 9}}, "seed": 1}, {"seed": 1}),
    ],
)
def test_fields_and_options_stand_under_the_vendors_names(
    changes: dict[str, Any], said: dict[str, Any]
) -> None:
    """Our own fields stand above extra."""
    body: Any = call_of(VideoRequest(prompt="a", generate_audio=True, **changes)).json
    for name in ("model", "content", "generate_audio"):
        del body[name]
    assert body == said


@pytest.mark.parametrize(
    ("region", "model", "asked", "said"),
    [
        ("cn-beijing", None, None, True),
        ("cn-beijing", None, False, False),
        ("ap-southeast", None, None, False),
        ("ap-southeast", None, True, True),
        ("cn-beijing", "doubao-seedance-1-0-pro-250528", None, None),
        ("cn-beijing", "doubao-seedance-1-0-pro-250528", False, None),
        ("cn-beijing", "ep-20260102", None, None),
        ("cn-beijing", "ep-20260102", True, True),
    ],
)
def test_sound_is_always_said_to_models_that_have_it(
    region: str, model: str | None, asked: object, said: object
) -> None:
    """Trap: the vendor's pages disagree about the default, and a silent model refuses the word."""
    changes: Any = {"model": model, "generate_audio": asked}
    body: Any = call_of(VideoRequest(prompt="a", **changes), REGIONS[region]).json
    assert body.get("generate_audio") is said


def test_byteplus_has_its_own_address_and_default_model() -> None:
    """The models of one region are not known in the other."""
    call = call_of(VideoRequest(prompt="a"), REGIONS["ap-southeast"])
    body: Any = call.json
    assert call.url == "https://ark.ap-southeast.bytepluses.com/api/v3/contents/generations/tasks"
    assert body["model"] == "dreamina-seedance-2-0-260128"


def test_a_job_is_asked_about_in_the_region_of_its_submit() -> None:
    """Trap: ids and keys belong to one region, so the address is kept with the job."""
    there = REGIONS["ap-southeast"]
    context = submit_context(ScriptedTransport([ACCEPTED]))
    result = VolcengineHandler(there).submit(REQUEST, context)
    assert result.query_params is not None
    transport = ScriptedTransport([shown("running")])
    VolcengineHandler(earlier_base_urls=[there]).query(result.query_params, query_context(transport))
    assert transport.calls[0].url == f"{there}/contents/generations/tasks/cgt-1"


def test_a_lost_submit_is_not_looked_up() -> None:
    """The list of jobs holds nothing of ours, so nobody can say which job is whose."""
    handler = VolcengineHandler()
    assert (handler.resubmit, handler.has_lookup) == ("never", False)


@pytest.mark.parametrize(
    ("status", "code", "error", "name"),
    [
        (400, "InvalidParameter", RejectedError, "InvalidParameter"),
        (
            400,
            "InputImageSensitiveContentDetected.PrivacyInformation",
            RejectedError,
            "InputImageSensitiveContentDetected.PrivacyInformation",
        ),
        (401, "AuthenticationError", RejectedError, "account_refused"),
        (403, "AccountOverdueError", RejectedError, "account_refused"),
        (404, "ModelNotOpen", RejectedError, "ModelNotOpen"),
        (429, "RateLimitExceeded.EndpointRPMExceeded", ThrottledError, None),
        (429, "QuotaExceeded", ThrottledError, None),
        (500, "InternalServiceError", VendorError, "http_500"),
        (200, "ServerOverloaded", ThrottledError, None),
        (200, "InternalServiceError", VendorError, "InternalServiceError"),
        (200, "InvalidParameter", RejectedError, "InvalidParameter"),
    ],
)
def test_a_refused_submit_says_why(status: int, code: str, error: type[Exception], name: str | None) -> None:
    """What is wrong is not sent again, what comes too early is, and codes count under 200, too."""
    with pytest.raises(error, match="not now") as caught:
        submitted(reply({"error": {"code": code, "message": "not now", "param": "", "type": "E"}}, status))
    assert type(caught.value) is error
    assert name is None or getattr(caught.value, "code", None) == name


def test_a_refusal_of_somebody_in_between_is_final_too() -> None:
    """A proxy has its own words."""
    with pytest.raises(RejectedError) as caught:
        submitted(Reply(400, b"<html>a proxy</html>"))
    assert caught.value.code == "http_400"


@pytest.mark.parametrize(
    "changes",
    [{"fps": 24}, {"negative_prompt": "rain"}, {"prompt_extend": True}, {"width": 1280, "height": 720}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_the_vendor_does_not_know_is_refused(changes: dict[str, Any]) -> None:
    """Trap: the vendor takes no parameter in silence; fps is one that another client sends."""
    with pytest.raises(ValidationError) as caught:
        VolcengineHandler().validate(VideoRequest(prompt="a", **changes))
    assert caught.value.field in changes


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"first_frame": A, "reference_images": (B,)}, "first_frame"),
        ({"first_frame": A, "audio": D}, "first_frame"),
        ({"audio": D}, "audio"),
        ({"reference_images": (A,) * 10}, "reference_images"),
        ({"camera_fixed": True}, "camera_fixed"),
        ({"model": "ep-1", "camera_fixed": True, "reference_images": (A,)}, "camera_fixed"),
        ({"duration": 3}, "duration"),
        ({"resolution": "8k"}, "resolution"),
        ({"aspect_ratio": "2:1"}, "aspect_ratio"),
        ({"model": "dreamina-seedance-2-0-fast-260128", "resolution": "1080p"}, "resolution"),
        ({"model": "doubao-seedance-1-0-pro-250528", "generate_audio": True}, "generate_audio"),
        ({"model": "doubao-seedance-1-0-pro-250528", "duration": -1}, "duration"),
        ({"model": "seedance-1-0-pro-fast-251015", "first_frame": A, "last_frame": B}, "mode"),
        ({"model": "doubao-seedance-1-5-pro-251215", "reference_images": (A,)}, "mode"),
        ({"model": "doubao-seedance-1-5-pro-251215", "audio": D}, "audio"),
        ({"mode": VideoMode.VIDEO_TO_VIDEO}, "mode"),
        ({"first_frame": "oss://bucket/a.png"}, "first_frame"),
        ({"options": {"frames": 30}}, "frames"),
        ({"options": {"frames": 29}, "duration": 5}, "frames"),
        ({"options": {"callback_url": "app.example"}}, "callback_url"),
        ({"options": {"service_tier": "slow"}}, "service_tier"),
    ],
)
def test_what_a_model_does_not_take_is_refused_before_it_is_stored(
    changes: dict[str, Any], field: str
) -> None:
    """Whoever submits reads at once what is wrong, and not from the bill."""
    with pytest.raises(ValidationError) as caught:
        VolcengineHandler().validate(VideoRequest(prompt="a", **changes))
    assert caught.value.field == field


def test_a_misspelt_option_is_told_its_name() -> None:
    """An option that nobody reads is found out from the video."""
    with pytest.raises(UnknownNameError, match="service_tier"):
        VolcengineHandler().validate(VideoRequest(prompt="a", options={"servicetier": "flex"}))


def test_a_success_has_the_video_its_facts_and_its_usage() -> None:
    """What is billed are tokens; the seconds are given as well."""
    found = queried(SUCCEEDED)
    assert isinstance(found.result, VideoResponse)
    (video,) = found.result.videos
    assert (video.url, video.duration) == ("https://tos.example/v.mp4", 5.0)
    assert video.metadata == {"last_frame_url": "https://tos.example/l.png"}
    assert found.usage == found.result.usage == {"token": 108_900, "second": 5}
    assert found.result.metadata == {"duration": 5, "resolution": "720p"}


@pytest.mark.parametrize(
    ("facts", "usage", "seconds"),
    [
        ({"duration": "5", "usage": {"total_tokens": "108900"}}, {"token": 108_900, "second": 5}, 5.0),
        ({"duration": "auto", "usage": {"completion_tokens": "12"}}, {"token": 12}, None),
        ({"usage": None}, {}, None),
        ({"usage": {"total_tokens": 0}, "duration": True}, {"token": 0}, None),
    ],
)
def test_numbers_may_be_texts(facts: dict[str, Any], usage: dict[str, int], seconds: float | None) -> None:
    """Trap: the vendor writes them as it likes."""
    result = queried(shown("succeeded", content={"video_url": "https://tos.example/v.mp4"}, **facts)).result
    assert isinstance(result, VideoResponse)
    assert (result.usage, result.videos[0].duration) == (usage, seconds)


def test_several_videos_are_all_read() -> None:
    """Wherever they stand, each once."""
    content = {
        "video_url": "https://tos.example/1.mp4",
        "videos": [{"url": "https://tos.example/1.mp4"}, {"video_url": "https://tos.example/2.mp4"}, "x"],
        "poster_url": "https://tos.example/p.png",
    }
    result = queried(shown("succeeded", content=content)).result
    assert isinstance(result, VideoResponse)
    assert [video.url for video in result.videos] == [
        "https://tos.example/1.mp4",
        "https://tos.example/2.mp4",
    ]
    assert result.videos[0].cover_url == "https://tos.example/p.png"


@pytest.mark.parametrize(
    ("date", "updated_at", "life"),
    [
        ("Fri, 02 Jan 2026 15:00:00 GMT", int(NOON.timestamp()), timedelta(hours=21)),
        ("Fri, 02 Jan 2026 15:00:00 GMT", str(int(NOON.timestamp())), timedelta(hours=21)),
        ("Sat, 03 Jan 2026 15:00:00 GMT", int(NOON.timestamp()), timedelta(seconds=1)),
        ("Fri, 02 Jan 2026 11:00:00 GMT", int(NOON.timestamp()), timedelta(hours=24)),
        ("some day", int(NOON.timestamp()), timedelta(hours=24)),
        ("Fri, 02 Jan 2026 15:00:00 GMT", None, timedelta(hours=24)),
        ("Fri, 02 Jan 2026 15:00:00 GMT", "1e30", timedelta(hours=24)),
    ],
)
def test_the_life_of_a_video_counts_from_its_completion(
    date: str, updated_at: object, life: timedelta
) -> None:
    """Trap: asking again gives the same link, and no new day; the vendor's clock says what is left."""
    content = {"video_url": "https://tos.example/v.mp4"}
    answer = shown("succeeded", content=content, updated_at=updated_at, headers={"Date": date})
    assert queried(answer).expires_after == life


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("queued", TaskStatus.SUBMITTED),
        ("running", TaskStatus.RUNNING),
        ("cancelled", TaskStatus.CANCELED),
        ("expired", TaskStatus.FAILED),
    ],
)
def test_every_word_is_understood(word: str, status: TaskStatus) -> None:
    """Those of the vendor's pages."""
    assert queried(shown(word)).status is status


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("OutputVideoSensitiveContentDetected", False), ("InternalServiceError", True), (None, False)],
)
def test_a_failure_comes_with_200_and_says_why(code: str | None, retryable: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """What moderation refused once it refuses again."""
    error = queried(shown("failed", error=code and {"code": code, "message": "why"})).error
    assert error is not None
    assert (error.code, error.retryable) == (code or "failed", retryable)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (reply({"error": {"code": "ServerOverloaded", "message": "m"}}), ThrottledError),
        (reply({"error": {"code": "New", "message": "m"}}), VendorError),
        (reply({"error": {"code": "NotFound", "message": "m"}}, 404), JobNotFoundError),
        (reply({"id": "cgt-1"}), VendorError),
    ],
)
def test_an_error_of_a_query_says_nothing_about_the_job(answer: Reply, error: type[Exception]) -> None:
    """Only a status does."""
    with pytest.raises(error) as caught:
        queried(answer)
    assert type(caught.value) is error


def test_a_success_without_a_video_failed() -> None:
    """Waiting does not bring one."""
    error = queried(shown("succeeded", content={})).error
    assert error is not None
    assert error.code == "no_result"


@pytest.mark.parametrize(
    ("answers", "methods", "found"),
    [
        ([shown("queued"), reply({})], ["GET", "DELETE"], CancelResult.accepted()),
        (
            [shown("queued"), reply({"error": {"code": "X", "message": "m"}}, 400)],
            ["GET", "DELETE"],
            CancelResult.refused("only a waiting job is stopped: X m"),
        ),
        (
            [shown("running")],
            ["GET"],
            CancelResult.refused("only a waiting job is stopped, and this one is running"),
        ),
        ([SUCCEEDED], ["GET"], CancelResult.refused("the job has ended already")),
        ([shown("cancelled")], ["GET"], CancelResult.done()),
    ],
    ids=["waits", "starts", "runs", "ended", "canceled"],
)
def test_only_a_waiting_job_is_told_to_stop(
    answers: list[Reply], methods: list[str], found: CancelResult
) -> None:
    """Trap: the same call deletes the record of a finished job, and with it a video that was paid for."""
    transport = ScriptedTransport(answers)
    assert VolcengineHandler().cancel(QueryParams("cgt-1"), query_context(transport)) == found
    assert [call.method for call in transport.calls] == methods
    assert all(call.url == f"{HOME}/cgt-1" for call in transport.calls)


def test_callbacks_are_asked_for_with_the_tasks_id() -> None:
    """The vendor's call must find its task."""
    options = VolcengineOptions(callback_url="https://app.example/callbacks/{task_id}")
    body: Any = call_of(attrs.evolve(REQUEST, options=options)).json
    assert body["callback_url"] == "https://app.example/callbacks/task-1"
