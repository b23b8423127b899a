"""``video:aliyun-wan``: the contract, what each model is told, the vendor's traps, and its life, live."""

from datetime import timedelta
from typing import Any

import attrs
import pytest
from tests.provider_video.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus, Verdict
from coatcheck.errors import (
    HandlerError,
    JobNotFoundError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Reply
from coatcheck.model import Account, CancelResult, QueryResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import PATIENCE, Live
from coatcheck_video.aliyun import REGIONS
from coatcheck_video.aliyun_wan import AliyunWanHandler, WanOptions
from coatcheck_video.model import VideoMode, VideoRequest, VideoResponse
from coatcheck_video.sandbox.aliyun import AliyunWanSandbox

ACCEPTED = reply({"request_id": "r-1", "output": {"task_id": "T1", "task_status": "PENDING"}})
REQUEST = VideoRequest(prompt="waves at night", duration=5, seed=7)
A, B, C = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4"))
USAGE = {"video_count": 1, "duration": 5, "SR": 720, "size": "1280*720"}


def shown(word: str, **output: Any) -> Reply:
    """Return a reply to a query."""
    return reply({"request_id": "r-2", "output": {"task_id": "T1", "task_status": word, **output}})


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> AliyunWanHandler:
        """Return the handler."""
        return AliyunWanHandler()

    @pytest.fixture
    def params(self) -> VideoRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": ACCEPTED,
            "running": shown("RUNNING"),
            "unknown_word": shown("REHEARSING"),
            "succeeded": reply(
                {
                    "request_id": "r-3",
                    "output": {
                        "task_id": "T1",
                        "task_status": "SUCCEEDED",
                        "video_url": "https://oss.example/v.mp4?Expires=1",
                        "actual_prompt": "long waves",
                    },
                    "usage": USAGE,
                }
            ),
            "failed": shown("FAILED", code="DataInspectionFailed", message="not this"),
            "cancel_accepted": reply({"request_id": "r-4"}),
            "cancel_refused": reply({"code": "UnsupportedOperation", "message": "running"}, 400),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("T1"), QueryParams("T1", base_url=REGIONS["cn-beijing"])]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = AliyunWanHandler
    sandbox_type = AliyunWanSandbox
    path = "/api/v1"
    # Only a job that waits is stopped.
    endless = "a~end=never,queued=1000000"

    @pytest.mark.parametrize(
        "changes",
        [
            {"first_frame": A},
            {"first_frame": A, "last_frame": B},
            {"reference_images": (A, B)},
            {"model": "wan2.7-i2v", "first_frame": A},
        ],
        ids=["first", "first-last", "references", "listed"],
    )
    def test_live_every_kind_of_request_finds_its_model_and_path(
        self, live: Live, changes: dict[str, Any]
    ) -> None:
        """Who names no model gets the one for what was given."""
        response = live.response("a", **changes)
        assert response.usage == {"second": 5, "video": 1}
        assert (response.videos[0].width, response.videos[0].height) == (1280, 720)

    def test_live_a_running_job_is_not_stopped_and_goes_on(self, live: Live) -> None:
        """The vendor refuses, and the task ends as the job does."""
        task = live.house.submit(live.request("a~polls=30"))
        live.watch(task, lambda found: found.status is TaskStatus.RUNNING)
        live.house.manager.cancel(task.id)
        assert live.house.wait(task.id, PATIENCE).status is TaskStatus.SUCCEEDED

    def test_live_unknown_is_an_end_when_it_stays(self, live: Live) -> None:
        """Trap: UNKNOWN is no state to wait in; a single one may be a hiccup, three in a row are none."""
        lost = live.run("a~end=never,words=UNKNOWN+UNKNOWN+UNKNOWN")
        assert lost.error is not None
        assert (lost.status, lost.error.code, lost.verdict) == (TaskStatus.FAILED, "job_lost", Verdict.NOBODY)
        assert lost.query_count == 3
        assert live.run("b~polls=5,words=UNKNOWN+UNKNOWN+RUNNING+UNKNOWN").status is TaskStatus.SUCCEEDED

    def test_live_the_life_of_a_video_is_noted(self, live: Live) -> None:
        """Whoever reads the task knows until when the video can be fetched."""
        task = live.run("a")
        assert task.finished_at is not None
        assert task.result_expires_at is not None
        life = task.result_expires_at - task.finished_at
        assert timedelta(hours=23) < life < timedelta(hours=25)


def call_of(request: VideoRequest) -> Call:
    """Return the submit of a request, checked and signed."""
    handler = AliyunWanHandler()
    handler.validate(request)
    transport = ScriptedTransport([ACCEPTED])
    handler.submit(request, submit_context(transport))
    return transport.calls[0]


def submitted(answer: Reply) -> Any:
    """Submit over a scripted reply."""
    return AliyunWanHandler().submit(REQUEST, submit_context(ScriptedTransport([answer])))


def queried(answer: Reply) -> QueryResult:
    """Query over a scripted reply."""
    return AliyunWanHandler().query(QueryParams("T1"), query_context(ScriptedTransport([answer])))


def test_the_submit_is_what_the_vendor_wants() -> None:
    """Method, path, headers and body, without anything that was not said."""
    call = call_of(REQUEST)
    assert (call.method, call.url) == (
        "POST",
        f"{REGIONS['cn-beijing']}/services/aigc/video-generation/video-synthesis",
    )
    assert call.headers["X-DashScope-Async"] == "enable"
    assert call.headers["Authorization"] == "Bearer secret-of-tests"
    assert call.json == {
        "model": "wan2.6-t2v",
        "input": {"prompt": "waves at night"},
        "parameters": {"duration": 5, "seed": 7},
    }


def test_parameters_are_left_out_when_there_are_none() -> None:
    """An empty object is nothing that was said."""
    assert call_of(VideoRequest(prompt="a")).json == {"model": "wan2.6-t2v", "input": {"prompt": "a"}}


@pytest.mark.parametrize(
    ("changes", "given", "parameters"),
    [
        ({"first_frame": A}, {"img_url": A}, {}),
        ({"first_frame": A, "resolution": "720p"}, {"img_url": A}, {"resolution": "720P"}),
        ({"first_frame": A, "last_frame": B}, {"first_frame_url": A, "last_frame_url": B}, {}),
        ({"reference_images": (A, B)}, {"reference_urls": [A, B]}, {}),
        (
            {"model": "wan2.6-r2v", "reference_images": (A,), "source_video": C},
            {"reference_urls": [A, C]},
            {},
        ),
        ({"audio": C}, {"audio_url": C}, {}),
        ({"resolution": "720P", "aspect_ratio": "9:16"}, {}, {"size": "720*1280"}),
        ({"aspect_ratio": "4:3"}, {}, {"size": "1632*1248"}),
        ({"width": 960, "height": 960}, {}, {"size": "960*960"}),
        ({"generate_audio": False}, {}, {"audio": False}),
        (
            {"model": "wan2.7-t2v", "audio": C, "resolution": "720P", "aspect_ratio": "3:4"},
            {"audio_url": C},
            {"resolution": "720P", "ratio": "3:4"},
        ),
        (
            {"model": "wan2.7-i2v", "first_frame": A, "audio": C},
            {"media": [{"type": "first_frame", "url": A}, {"type": "driving_audio", "url": C}]},
            {},
        ),
        (
            {"model": "wan2.7-videoedit", "source_video": C, "reference_images": (A,)},
            {"media": [{"type": "video", "url": C}, {"type": "reference_image", "url": A}]},
            {},
        ),
        ({"negative_prompt": "rain"}, {"negative_prompt": "rain"}, {}),
        ({"model": "wan9-dream", "first_frame": A}, {"img_url": A}, {}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_each_kind_of_request_is_said_in_the_words_of_its_model(
    changes: dict[str, Any], given: dict[str, Any], parameters: dict[str, Any]
) -> None:
    """Trap: size is pixels, ratio is for 2.7, the switch for sound is called audio."""
    body: Any = call_of(VideoRequest(prompt="a", **changes)).json
    assert body["input"] == {"prompt": "a", **given}
    assert body.get("parameters", {}) == parameters


def test_first_and_last_frame_go_to_a_path_of_their_own() -> None:
    """Trap: kf2v models are not served where the others are."""
    call = call_of(VideoRequest(prompt="a", first_frame=A, last_frame=B))
    assert call.url.endswith("/services/aigc/image2video/video-synthesis")


def test_only_the_submit_is_asynchronous() -> None:
    """Trap: the header of the submit has no business in a query."""
    transport = ScriptedTransport([shown("RUNNING")])
    AliyunWanHandler().query(QueryParams("T1"), query_context(transport))
    (call,) = transport.calls
    assert (call.method, call.url) == ("GET", f"{REGIONS['cn-beijing']}/tasks/T1")
    assert "X-DashScope-Async" not in call.headers


def test_media_in_the_vendors_own_storage_are_resolved() -> None:
    """Only oss:// media need the header."""
    call = call_of(VideoRequest(prompt="a", first_frame="oss://bucket/a.png"))
    assert call.headers["X-DashScope-OssResourceResolve"] == "enable"
    assert "X-DashScope-OssResourceResolve" not in call_of(VideoRequest(prompt="a", first_frame=A)).headers


@pytest.mark.parametrize("workspace", [None, "ws-1"])
def test_a_workspace_is_named_where_the_account_has_one(workspace: str | None) -> None:
    """It is a part of the account, since it goes with the key."""

    def part(name: str) -> str:
        if name == "workspace" and workspace is None:
            raise UnknownNameError("no workspace")
        return "key-1" if name == "secret" else str(workspace)

    signed = AliyunWanHandler().sign(Call("GET", "/tasks/T1"), Account("dashscope", part))
    assert signed.headers.get("X-DashScope-WorkSpace") == workspace


def test_a_job_is_asked_about_in_the_region_of_its_submit() -> None:
    """Trap: ids and keys belong to one region, so the address is kept with the job."""
    there = REGIONS["ap-southeast-1"]
    result = AliyunWanHandler(there).submit(REQUEST, submit_context(ScriptedTransport([ACCEPTED])))
    assert result.query_params is not None
    assert result.query_params["base_url"] == there
    transport = ScriptedTransport([shown("RUNNING")])
    here = AliyunWanHandler(earlier_base_urls=[there])
    here.query(result.query_params, query_context(transport))
    assert transport.calls[0].url == f"{there}/tasks/T1"
    with pytest.raises(HandlerError, match="earlier_base_urls"):
        AliyunWanHandler().query(result.query_params, query_context(ScriptedTransport([])))


@pytest.mark.parametrize(
    ("code", "on_submit", "on_query"),
    [
        ("Throttling.RateQuota", ThrottledError, ThrottledError),
        ("Throttling", ThrottledError, ThrottledError),
        ("InternalError.Timeout", VendorError, VendorError),
        ("InvalidApiKey", RejectedError, VendorError),
        ("Arrearage", RejectedError, VendorError),
        ("InvalidParameter.DataInspection", RejectedError, VendorError),
    ],
)
def test_a_code_under_200_is_an_error(
    code: str, on_submit: type[Exception], on_query: type[Exception]
) -> None:
    """Trap: the HTTP status says that all is well, the body does not."""
    answer = reply({"code": code, "message": "why", "request_id": "r-5"})
    with pytest.raises(on_submit, match="why") as refused:
        submitted(answer)
    assert type(refused.value) is on_submit
    with pytest.raises(on_query, match="why") as caught:
        queried(answer)
    assert type(caught.value) is on_query


@pytest.mark.parametrize("status", [400, 403, 404])
def test_a_refusal_keeps_the_code_of_the_vendor(status: int) -> None:
    """Whoever reads the task learns what was wrong, and the refusal is final."""
    with pytest.raises(RejectedError) as caught:
        submitted(reply({"code": "DataInspectionFailed", "message": "no", "request_id": "r-6"}, status))
    assert caught.value.code == "DataInspectionFailed"
    with pytest.raises(RejectedError) as caught:
        submitted(Reply(status, b"<html>a proxy</html>"))
    assert caught.value.code == f"http_{status}"


def test_a_task_that_the_vendor_does_not_know_is_not_found() -> None:
    """Trap: UNKNOWN comes with 200; whatever stands beside it, it says nothing else."""
    for word in ("UNKNOWN", "Unknown "):
        with pytest.raises(JobNotFoundError):
            queried(shown(word, video_url="https://oss.example/v.mp4"))


def test_a_suspended_job_is_running() -> None:
    """A constant of the vendor's client that no page explains."""
    assert queried(shown("SUSPENDED")).status is TaskStatus.RUNNING


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("DataInspectionFailed", False), ("InternalError.Algo", True), ("Throttling", True)],
)
def test_a_failure_says_whether_another_try_may_go_well(code: str, retryable: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """What moderation refused once it refuses again."""
    for output in ({"code": code, "message": "why"}, {"error_code": code, "error_message": "why"}):
        error = queried(shown("FAILED", **output)).error
        assert error is not None
        assert (error.code, error.message, error.retryable) == (code, "why", retryable)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"duration": 5, "video_count": 1}, {"second": 5, "video": 1}),
        ({"video_duration": 4}, {"second": 4}),
        ({"output_video_duration": 5, "input_video_duration": 3}, {"second": 8}),
        ({"duration": "5.1"}, {"second": 6}),
        ({"duration": True}, {}),
        (None, {}),
    ],
)
def test_usage_is_read_under_all_of_its_names(usage: object, counted: dict[str, int]) -> None:
    """Each model has its own; what is billed of an edited video is input and output."""
    output = {"task_status": "SUCCEEDED", "video_url": "https://oss.example/v.mp4"}
    result = queried(reply({"output": output, "usage": usage}))
    assert isinstance(result.result, VideoResponse)
    assert result.result.usage == counted
    assert (result.usage or {}) == counted


def test_several_results_are_all_read() -> None:
    """In the order of the vendor, each once."""
    results = [{"url": "https://oss.example/1.mp4"}, {"video_url": "https://oss.example/2.mp4"}, {}, "x"]
    found = queried(shown("SUCCEEDED", results=results)).result
    assert isinstance(found, VideoResponse)
    assert [video.url for video in found.videos] == ["https://oss.example/1.mp4", "https://oss.example/2.mp4"]


def test_a_success_without_a_video_failed() -> None:
    """Waiting does not bring one."""
    error = queried(shown("SUCCEEDED")).error
    assert error is not None
    assert error.code == "no_result"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (reply({"request_id": "r"}), CancelResult.accepted()),
        (
            reply({"code": "X", "message": "m"}),
            CancelResult.refused("only a waiting job is stopped: X m"),
        ),
        (Reply(409, b""), CancelResult.refused("only a waiting job is stopped: 409")),
    ],
)
def test_a_cancel_is_believed_when_a_query_sees_it(answer: Reply, found: CancelResult) -> None:
    """The reply says that it was heard, and no more."""
    transport = ScriptedTransport([answer])
    assert AliyunWanHandler().cancel(QueryParams("T1"), query_context(transport)) == found
    assert transport.calls[0].url.endswith("/tasks/T1/cancel")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": "happyhorse-1.1-t2v"}, "model"),
        ({"fps": 24}, "fps"),
        ({"camera_fixed": True}, "camera_fixed"),
        ({"duration": 16}, "duration"),
        ({"resolution": "480P"}, "resolution"),
        ({"first_frame": A, "aspect_ratio": "1:1"}, "aspect_ratio"),
        ({"first_frame": A, "width": 960, "height": 960}, "width"),
        ({"width": 1000, "height": 1000}, "width"),
        ({"width": 960, "height": 960, "resolution": "720P"}, "width"),
        ({"model": "wan2.7-t2v", "generate_audio": False}, "generate_audio"),
        ({"model": "wan2.2-t2v-plus", "audio": C}, "audio"),
        ({"model": "wan2.2-t2v-plus", "generate_audio": True}, "generate_audio"),
        ({"model": "wan2.6-t2v", "first_frame": A}, "mode"),
        ({"model": "wan2.6-r2v", "first_frame": A, "reference_images": (B,)}, "first_frame"),
        ({"reference_images": (A,) * 6}, "reference_images"),
        ({"last_frame": A}, "last_frame"),
        ({"mode": VideoMode.VIDEO_TO_VIDEO}, "mode"),
        ({"first_frame": "ftp://media.example/a.png"}, "first_frame"),
        ({"options": {"shot_type": "many"}}, "shot_type"),
        ({"options": {"extra": {"input": 5}}}, "extra"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_a_model_does_not_take_is_refused_before_it_is_stored(
    changes: dict[str, Any], field: str
) -> None:
    """A field that is dropped in silence is found out from the video, and from the bill."""
    with pytest.raises(ValidationError) as caught:
        AliyunWanHandler().validate(VideoRequest(prompt="a", **changes))
    assert caught.value.field == field


def test_options_stand_where_the_vendor_reads_them_and_below_our_own() -> None:
    """What is newer than this version goes into extra, by its place in the body."""
    options = WanOptions(shot_type="multi", extra={"parameters": {"new": 1, "seed": 9}, "input": {"x": 2}})
    body: Any = call_of(attrs.evolve(REQUEST, options=options)).json
    assert body["input"] == {"prompt": "waves at night", "x": 2}
    assert body["parameters"] == {"new": 1, "shot_type": "multi", "duration": 5, "seed": 7}
