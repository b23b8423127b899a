"""``video:gitee``: the contract, the four ways of a submit, where results stand, and its life, live."""

from datetime import timedelta
from typing import Any

import pytest
from tests.provider_video.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.errors import RejectedError, ThrottledError, UnknownNameError, ValidationError, VendorError
from coatcheck.http import Call, FromUrl, Reply
from coatcheck.model import CancelResult, QueryResult
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import Live
from coatcheck_video.gitee import GiteeHandler, GiteeOptions
from coatcheck_video.model import VideoRequest, VideoResponse
from coatcheck_video.sandbox.gitee import GiteeSandbox

HOME = "https://ai.gitee.com"
REQUEST = VideoRequest(prompt="waves at night", seed=7)
A, B, C, D = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4", "d.mp3"))


def shown(word: str, **more: Any) -> Reply:
    """Return a reply to a submit or a query."""
    return reply({"task_id": "T1", "status": word, "created_at": 1_767_000_000_000, **more})


ACCEPTED = shown("waiting", urls={"get": f"{HOME}/api/v1/task/T1"})


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> GiteeHandler:
        """Return the handler."""
        return GiteeHandler()

    @pytest.fixture
    def params(self) -> VideoRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        done = shown("success", output={"file_url": "https://files.example/v.mp4"}, price=0.5, currency="CNY")
        return {
            "accepted": ACCEPTED,
            "at_once": done,
            "running": shown("in_progress"),
            "unknown_word": shown("rehearsing"),
            "succeeded": done,
            "failed": shown("failure", output={"error": "not this"}),
            "cancel_done": shown("cancelled"),
            "cancel_accepted": reply({}),
            "cancel_refused": shown("success"),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("T1"), QueryParams("T1", base_url="https://ai.gitee.com/v1")]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = GiteeHandler
    sandbox_type = GiteeSandbox
    path = "/v1"

    @pytest.mark.parametrize(
        "changes",
        [
            {"first_frame": "{}/documents/a.png"},
            {"prompt": None, "source_video": "{}/documents/c.mp4", "audio": "{}/documents/d.mp3"},
            {"prompt": None, "source_video": "{}/documents/c.mp4", "first_frame": "{}/documents/a.png"},
            {
                "prompt": None,
                "source_video": "{}/documents/c.mp4",
                "reference_images": ("{}/documents/a.png",),
            },
        ],
        ids=["first", "audio", "upload", "reference"],
    )
    def test_live_every_kind_of_request_finds_its_path_and_model(
        self, live: Live, changes: dict[str, Any]
    ) -> None:
        """Whoever names no model gets one for what was given; what has to be uploaded is fetched."""
        placed: dict[str, Any] = {
            name: tuple(one.format(live.url) for one in value)
            if isinstance(value, tuple)
            else value and value.format(live.url)
            for name, value in changes.items()
        }
        task = live.run("a", **placed)
        assert task.status is TaskStatus.SUCCEEDED
        assert isinstance(task.result, VideoResponse)
        assert task.result.metadata["price"] == 0.5


def call_of(request: VideoRequest) -> Call:
    """Return the submit of a request, checked and signed."""
    handler = GiteeHandler()
    handler.validate(request)
    got = reply(b"the bytes")
    transport = ScriptedTransport(lambda call: got if call.method == "GET" else ACCEPTED)
    handler.submit(request, submit_context(transport))
    return transport.calls[-1]


def submitted(answer: Reply) -> Any:
    """Submit over a scripted reply."""
    return GiteeHandler().submit(REQUEST, submit_context(ScriptedTransport([answer])))


def queried(answer: Reply) -> QueryResult:
    """Query over a scripted reply."""
    return GiteeHandler().query(QueryParams("T1"), query_context(ScriptedTransport([answer])))


def urls_of(answer: Reply) -> list[str]:
    """Return the videos in a reply to a query."""
    result = queried(answer).result
    assert isinstance(result, VideoResponse)
    return [video.url for video in result.videos]


@pytest.mark.parametrize(
    ("request_", "kind", "body"),
    [
        (REQUEST, "generations", {"model": "happyhorse-1.1", "prompt": "waves at night", "seed": 7}),
        (
            VideoRequest(prompt="a", first_frame=A, width=960, height=544, fps=24),
            "image-to-video",
            {
                "model": "Wan2_2-I2V-A14B",
                "prompt": "a",
                "image_url": A,
                "width": 960,
                "height": 544,
                "fps": 24,
            },
        ),
        (
            VideoRequest(source_video=C, audio=D),
            "audio-video-to-video",
            {"model": "Duix.Heygem", "ref_video": C, "ref_audio": D},
        ),
    ],
    ids=["text", "first", "audio"],
)
def test_each_kind_of_request_goes_to_its_own_path(
    request_: VideoRequest, kind: str, body: dict[str, Any]
) -> None:
    """Method, address, key and body, without anything that was not said."""
    call = call_of(request_)
    assert (call.method, call.url) == ("POST", f"{HOME}/v1/async/videos/{kind}")
    assert call.headers["Authorization"] == "Bearer secret-of-tests"
    assert call.json == body


@pytest.mark.parametrize(
    "changes", [{"first_frame": A}, {"reference_images": (A,)}], ids=["first", "reference"]
)
def test_a_video_and_an_image_are_sent_as_bytes(changes: dict[str, Any]) -> None:
    """Trap: this path takes no URLs; the files are called like their fields, and there is no prompt."""
    options = GiteeOptions(num_frames=49, extra={"stylize": True, "lora": {"name": "x"}})
    call = call_of(VideoRequest(source_video=C, options=options, **changes))
    # An upload takes its time, and so do the two fetches before it.
    assert timedelta(seconds=120) < call.timeout < GiteeHandler.call_limit == timedelta(seconds=600)
    assert call.url == f"{HOME}/v1/async/videos/image-video-to-video"
    found: dict[str, Any] = {}
    parts: Any = call.multipart
    for name, given in parts.items():
        (part,) = given if isinstance(given, list) else [given]
        assert not isinstance(part, FromUrl)
        found[name] = (part.content, part.filename, part.content_type)
    assert found == {
        "model": ("Wan2.7", None, None),
        "num_frames": ("49", None, None),
        "stylize": ("true", None, None),
        "lora": (b'{"name":"x"}', None, None),
        "ref_image": (b"the bytes", "ref_image", "application/octet-stream"),
        "drive_video": (b"the bytes", "drive_video", "application/octet-stream"),
    }


def test_options_stand_below_our_own_fields() -> None:
    """Trap: here named fields win over options, as in every handler of ours."""
    options = {"num_inference_steps": 30, "guidance_scale": 7.5, "extra": {"prompt": "other", "duration": 5}}
    assert call_of(VideoRequest(prompt="a", options=options)).json == {
        "model": "happyhorse-1.1",
        "prompt": "a",
        "num_inference_steps": 30,
        "guidance_scale": 7.5,
        "duration": 5,
    }


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"duration": 5}, "duration"),
        ({"resolution": "720P"}, "resolution"),
        ({"generate_audio": True}, "generate_audio"),
        ({"watermark": False}, "watermark"),
        ({"first_frame": A, "last_frame": B}, "last_frame"),
        ({"model": "new", "reference_images": (A,)}, "reference_images"),
        ({"model": "new", "audio": D}, "audio"),
        ({"audio": D}, "audio"),
        ({"prompt": None, "first_frame": A}, "prompt"),
        ({"model": "new", "prompt": None, "source_video": C}, "source_video"),
        ({"model": "new", "prompt": None, "source_video": C, "reference_images": (A, B)}, "source_video"),
        (
            {"model": "new", "prompt": None, "source_video": C, "first_frame": A, "audio": D},
            "source_video",
        ),
        ({"source_video": C, "first_frame": A}, "prompt"),
        ({"source_video": C, "audio": D}, "prompt"),
        ({"model": "happyhorse-1.1", "first_frame": A}, "mode"),
        ({"model": "LTX-2"}, "mode"),
        ({"model": "HappyHorse-1.0", "prompt": None, "source_video": C, "audio": D}, "mode"),
        ({"first_frame": "oss://bucket/a.png"}, "first_frame"),
        ({"options": {"num_frames": 0}}, "num_frames"),
    ],
)
def test_what_the_vendor_does_not_take_is_refused_before_it_is_stored(
    changes: dict[str, Any], field: str
) -> None:
    """A field that is dropped in silence is found out from the video, and from the bill."""
    with pytest.raises(ValidationError) as caught:
        GiteeHandler().validate(VideoRequest(**{"prompt": "a", **changes}))
    assert caught.value.field == field


def test_model_names_are_case_sensitive() -> None:
    """Trap: HappyHorse-1.0 and happyhorse-1.1 are both spelled like this; another spelling is unknown."""
    GiteeHandler().validate(VideoRequest(prompt="a", first_frame=A, model="HAPPYHORSE-1.1"))


def test_a_misspelt_option_is_told_its_name() -> None:
    """An option that nobody reads is found out from the video."""
    with pytest.raises(UnknownNameError, match="num_frames"):
        GiteeHandler().validate(VideoRequest(prompt="a", options={"numframes": 5}))


@pytest.mark.parametrize(
    ("output", "urls"),
    [
        ("https://files.example/1.mp4", ["https://files.example/1.mp4"]),
        ({"file_url": "https://files.example/1.mp4"}, ["https://files.example/1.mp4"]),
        (
            {"video_url": "https://files.example/1.mp4", "url": "https://files.example/1.mp4"},
            ["https://files.example/1.mp4"],
        ),
        (
            {"videos": [{"url": "https://files.example/1.mp4"}, "https://files.example/2.mp4"]},
            ["https://files.example/1.mp4", "https://files.example/2.mp4"],
        ),
        (
            [{"data": {"output": {"url": "https://files.example/1.mp4"}}}, {"seed": 7}, None],
            ["https://files.example/1.mp4"],
        ),
    ],
    ids=["text", "object", "twice", "list", "nested"],
)
def test_a_result_is_found_wherever_the_model_puts_it(output: object, urls: list[str]) -> None:
    """Trap: every model has its own shape."""
    assert urls_of(shown("success", output=output)) == urls


def test_a_success_has_its_cover_its_price_and_its_life() -> None:
    """What the vendor says beside the video is kept."""
    output = {"url": "https://files.example/1.mp4", "poster_url": "https://files.example/1.png"}
    found = queried(
        shown("success", output=output, price=0.5, currency="CNY", completed_at=1_767_000_090_000)
    )
    assert found.expires_after == timedelta(days=1)
    assert isinstance(found.result, VideoResponse)
    assert found.result.videos[0].cover_url == "https://files.example/1.png"
    assert found.result.metadata == {
        "price": 0.5,
        "currency": "CNY",
        "created_at": 1_767_000_000_000,
        "completed_at": 1_767_000_090_000,
    }


@pytest.mark.parametrize("output", [None, {}, {"url": "later"}, {"seed": 7}])
def test_a_success_without_a_video_failed(output: object) -> None:
    """Waiting does not bring one."""
    error = queried(shown("success", output=output)).error
    assert error is not None
    assert error.code == "no_result"


@pytest.mark.parametrize(
    "more",
    [
        {"message": "why"},
        {"error_message": "why"},
        {"output": {"error": "why"}},
        {"error": {"code": "failed", "message": "why"}},
    ],
)
@pytest.mark.parametrize("word", ["failure", "failed", "error", "FAILURE"])
def test_a_failure_says_why_in_any_of_its_places(word: str, more: dict[str, Any]) -> None:
    """Trap: the reason stands here or there, and the word is in any case."""
    error = queried(shown(word, **more)).error
    assert error is not None
    assert (error.code, error.message) == ("failed", "why")


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("waiting", TaskStatus.SUBMITTED),
        ("pending", TaskStatus.SUBMITTED),
        ("in_progress", TaskStatus.RUNNING),
        ("is_process", TaskStatus.RUNNING),
        ("cancelled", TaskStatus.CANCELED),
        ("canceled", TaskStatus.CANCELED),
    ],
)
def test_every_word_is_understood(word: str, status: TaskStatus) -> None:
    """Those that were seen."""
    assert queried(shown(word)).status is status


def test_an_accepted_job_may_come_without_a_word() -> None:
    """An id is enough."""
    result = submitted(reply({"task_id": "T1"}))
    assert (result.status, result.query_params.external_task_id) == (TaskStatus.SUBMITTED, "T1")


@pytest.mark.parametrize(
    ("answer", "error", "code"),
    [
        (reply({"error": {"code": "x", "type": "y", "message": "why"}}, 400), RejectedError, "x"),
        (reply({"error": {"type": "y", "message": "why"}}, 403), RejectedError, "y"),
        (reply({"message": "why"}, 404), RejectedError, "http_404"),
        (reply({"message": "why"}, 401), RejectedError, "account_refused"),
        (reply({"message": "why"}, 429), ThrottledError, None),
        (reply({"error": {"code": "x", "message": "why"}}), RejectedError, "x"),
    ],
)
def test_a_refused_submit_says_why(answer: Reply, error: type[Exception], code: str | None) -> None:
    """What is wrong is not sent again."""
    with pytest.raises(error, match="why") as caught:
        submitted(answer)
    assert code is None or getattr(caught.value, "code", None) == code


def test_an_error_instead_of_a_job_says_nothing_about_it() -> None:
    """Only a status does."""
    with pytest.raises(VendorError, match="why"):
        queried(reply({"error": {"code": "x", "message": "why"}}))


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (shown("cancelled"), CancelResult.done()),
        (shown("in_progress"), CancelResult.accepted()),
        (Reply(200, b""), CancelResult.accepted()),
        (shown("success"), CancelResult.refused("the job has ended already")),
        (
            reply({"error": {"code": "x", "message": "why"}}, 400),
            CancelResult.refused("the vendor does not stop the job: x why"),
        ),
    ],
)
def test_a_cancel_goes_below_another_path(answer: Reply, found: CancelResult) -> None:
    """Trap: it is not below /v1 like the query."""
    transport = ScriptedTransport([answer])
    assert GiteeHandler().cancel(QueryParams("T1"), query_context(transport)) == found
    (call,) = transport.calls
    assert (call.method, call.url) == ("POST", f"{HOME}/api/v1/task/T1/cancel")
    assert call.headers["Authorization"] == "Bearer secret-of-tests"
