"""``video:runway``: the contract, what each model is told, the vendor's traps, and its life, live."""

from datetime import timedelta
from typing import Any

import attrs
import pytest
from tests.provider_video.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus, codec
from coatcheck.errors import (
    CoatcheckError,
    JobNotFoundError,
    RejectedError,
    ThrottledError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Reply
from coatcheck.model import CancelResult, QueryResult
from coatcheck.sandbox import Request
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import PATIENCE, Live
from coatcheck_video.model import VideoMode, VideoRequest, VideoResponse
from coatcheck_video.runway import RunwayHandler, RunwayOptions
from coatcheck_video.sandbox.runway import RunwaySandbox

HOME = "https://api.dev.runwayml.com"
ACCEPTED = reply({"id": "t1", "estimatedCost": {"credits": 25}})
REQUEST = VideoRequest(prompt="waves at night", aspect_ratio="1280:720", duration=5, seed=7)
A, B, C, D = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4", "d.mp3"))
V, W = "https://files.example/v.mp4?token=1", "https://files.example/v.mp4?token=2"


def shown(word: str, **more: Any) -> Reply:
    """Return a task of the vendor's."""
    return reply({"id": "t1", "status": word, "createdAt": "2026-01-02T03:04:05.000Z", **more})


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> RunwayHandler:
        """Return the handler."""
        return RunwayHandler()

    @pytest.fixture
    def params(self) -> VideoRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": ACCEPTED,
            "running": shown("RUNNING", progress=0.4),
            "unknown_word": shown("REHEARSING"),
            "succeeded": shown("SUCCEEDED", output=[V], cost={"credits": 25}),
            "failed": shown(
                "FAILED", failure="not this", failureCode="SAFETY.INPUT.TEXT", cost={"credits": 0}
            ),
            "cancel_done": [shown("RUNNING"), Reply(204)],
            "cancel_refused": shown("SUCCEEDED", output=[V]),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("t1"), QueryParams("t1", base_url=HOME)]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = RunwayHandler
    sandbox_type = RunwaySandbox
    request = VideoRequest(prompt="a", model="veo3.1", aspect_ratio="1280:720", duration=4)

    def test_live_a_job_that_is_held_back_waits(self, live: Live) -> None:
        """Trap: THROTTLED is the vendor's own queue, and no error of ours."""
        task = live.house.submit(live.request("a~queued=1000000"))
        seen = live.watch(task, lambda found: found.query_count > 2)
        assert (seen.status, seen.provider_status, seen.consecutive_errors) == (
            TaskStatus.SUBMITTED,
            "THROTTLED",
            0,
        )
        live.house.manager.cancel(task.id)
        assert live.house.wait(task.id, PATIENCE).status is TaskStatus.CANCELED

    @pytest.mark.parametrize(
        "changes",
        [
            {"model": "gen4_turbo", "first_frame": A, "aspect_ratio": "1584:672"},
            {"model": None, "first_frame": A, "last_frame": B, "duration": None},
            {"model": None, "source_video": C, "duration": None, "aspect_ratio": "16:9"},
        ],
        ids=["first", "first-last", "video"],
    )
    def test_live_every_kind_of_request_finds_its_path(self, live: Live, changes: dict[str, Any]) -> None:
        """Who names no model gets one for what was given; usage is what the vendor charges."""
        assert live.response("a", **changes).usage == {"credit": 25}

    def test_live_a_refresh_brings_fresh_addresses(self, live: Live) -> None:
        """Trap: the addresses die after a day; the job is there as long as nobody deletes it."""
        task = live.run("a~link_life=3600")
        assert task.finished_at is not None
        assert task.result_expires_at is not None
        life = task.result_expires_at - task.finished_at
        assert timedelta(hours=23) < life < timedelta(hours=25)
        (job,) = live.sandbox.jobs.values()
        job.script = attrs.evolve(job.script, link_life=7200)
        refreshed = live.house.manager.refresh_result(task.id)
        assert isinstance(task.result, VideoResponse)
        assert isinstance(refreshed.result, VideoResponse)
        assert refreshed.result.url != task.result.url
        assert refreshed.result_gone is False
        live.sandbox.forget()
        assert live.house.manager.refresh_result(task.id).result_gone is True

    def test_live_a_job_that_has_ended_unseen_is_not_deleted(self, live: Live) -> None:
        """Trap: the call that stops a running job deletes a finished one, with the video in it."""
        task = live.house.submit(live.request("a~end=never"))
        live.watch(task, lambda found: found.query_count > 0)
        (job,) = live.sandbox.jobs.values()
        job.script = attrs.evolve(job.script, end="succeeded", polls=0)
        live.house.manager.cancel(task.id)
        assert live.house.wait(task.id, PATIENCE).status is TaskStatus.SUCCEEDED
        assert "DELETE" not in [request.method for request in live.sandbox.requests]

    def test_live_a_delete_without_an_answer_is_not_taken_for_a_cancel(self, live: Live) -> None:
        """Nobody has said that the job is stopped: it is not found any more, which is an end, too."""
        task = live.house.submit(live.request("a~end=never,on_cancel=reset"))
        live.watch(task, lambda found: found.query_count > 0)
        live.house.manager.cancel(task.id)
        found = live.house.wait(task.id, PATIENCE)
        assert found.error is not None
        assert (found.status, found.error.code) == (TaskStatus.FAILED, "job_lost")


def call_of(request: VideoRequest) -> Call:
    """Return the submit of a request, checked and signed."""
    handler = RunwayHandler()
    handler.validate(request)
    transport = ScriptedTransport([ACCEPTED])
    handler.submit(request, submit_context(transport))
    return transport.calls[0]


def submitted(answer: Reply) -> Any:
    """Submit over a scripted reply."""
    return RunwayHandler().submit(REQUEST, submit_context(ScriptedTransport([answer])))


def queried(answer: Reply) -> QueryResult:
    """Query over a scripted reply."""
    return RunwayHandler().query(QueryParams("t1"), query_context(ScriptedTransport([answer])))


def test_the_submit_is_what_the_vendor_wants() -> None:
    """Method, path, headers and body, without anything that was not said."""
    call = call_of(REQUEST)
    assert (call.method, call.url) == ("POST", f"{HOME}/v1/text_to_video")
    assert call.headers["Authorization"] == "Bearer secret-of-tests"
    assert call.json == {
        "model": "gen4.5",
        "promptText": "waves at night",
        "ratio": "1280:720",
        "duration": 5,
        "seed": 7,
    }


def test_every_call_names_the_version() -> None:
    """Trap: without it no call is served, whichever it is."""
    transport = ScriptedTransport([ACCEPTED, shown("RUNNING"), shown("RUNNING"), Reply(204)])
    handler = RunwayHandler()
    handler.submit(REQUEST, submit_context(transport))
    handler.query(QueryParams("t1"), query_context(transport))
    handler.cancel(QueryParams("t1"), query_context(transport))
    assert [call.headers["X-Runway-Version"] for call in transport.calls] == ["2024-11-06"] * 4


@pytest.mark.parametrize(
    ("changes", "place", "given"),
    [
        ({"first_frame": A}, "image_to_video", {"model": "gen4.5", "promptImage": A}),
        (
            {"first_frame": A, "last_frame": B, "duration": 4},
            "image_to_video",
            {
                "model": "veo3.1",
                "promptImage": [{"uri": A, "position": "first"}, {"uri": B, "position": "last"}],
                "duration": 4,
            },
        ),
        (
            {"source_video": C, "duration": None, "aspect_ratio": "16:9"},
            "video_to_video",
            {"model": "aleph2", "videoUri": C, "targetAspectRatio": "16:9", "ratio": None, "duration": None},
        ),
        (
            {"source_video": C, "duration": None, "aspect_ratio": "16:9", "width": 1280, "height": 720},
            "video_to_video",
            {"model": "aleph2", "videoUri": C, "targetAspectRatio": "16:9", "duration": None},
        ),
        (
            {"model": "seedance2", "source_video": C, "reference_images": (A,), "duration": -1},
            "video_to_video",
            {"promptVideo": C, "references": [{"uri": A}], "duration": "auto"},
        ),
        (
            {"model": "seedance2_5", "reference_images": (A, B), "audio": D, "generate_audio": True},
            "text_to_video",
            {
                "references": [{"uri": A}, {"uri": B}],
                "referenceAudio": [{"type": "audio", "uri": D}],
                "audio": True,
            },
        ),
        (
            {"model": "hailuo3", "first_frame": A, "aspect_ratio": "adaptive", "resolution": "768P"},
            "image_to_video",
            {"promptImage": A, "ratio": "adaptive", "resolution": "768p"},
        ),
        (
            {"aspect_ratio": None, "width": 720, "height": 1280},
            "text_to_video",
            {"model": "gen4.5", "ratio": "720:1280"},
        ),
        (
            {"model": "kling_4", "first_frame": A, "aspect_ratio": None, "options": {"ratio": "auto_720p"}},
            "image_to_video",
            {"promptImage": A, "ratio": "auto_720p"},
        ),
        (
            {"model": "veo3.1_fast", "duration": 8, "negative_prompt": "rain"},
            "text_to_video",
            {"duration": 8, "negativePrompt": "rain"},
        ),
        (
            {"model": "dream9", "first_frame": "runway://upload-1"},
            "image_to_video",
            {"promptImage": "runway://upload-1"},
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_each_kind_of_request_is_said_in_the_words_of_its_model(
    changes: dict[str, Any], place: str, given: dict[str, Any]
) -> None:
    """The path goes by the media; fields and ratio go by the model."""
    request = attrs.evolve(REQUEST, **changes)
    call = call_of(request)
    assert call.url == f"{HOME}/v1/{place}"
    said = {
        "model": request.model,
        "promptText": "waves at night",
        "ratio": "1280:720",
        "duration": 5,
        "seed": 7,
        **given,
    }
    assert call.json == {name: value for name, value in said.items() if value is not None}


def test_options_stand_where_the_vendor_reads_them_and_below_our_own() -> None:
    """Moderation is an object of its own; what is newer than this version goes into extra."""
    options = RunwayOptions(
        public_figure_threshold="low", output_format="prores", extra={"proresProfile": "422", "seed": 1}
    )
    body: Any = call_of(attrs.evolve(REQUEST, options=options)).json
    assert body["contentModeration"] == {"publicFigureThreshold": "low"}
    assert (body["outputFormat"], body["proresProfile"], body["seed"]) == ("prores", "422", 7)
    assert "public_figure_threshold" not in body


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("PENDING", TaskStatus.SUBMITTED),
        ("THROTTLED", TaskStatus.SUBMITTED),
        ("RUNNING", TaskStatus.RUNNING),
        ("CANCELLED", TaskStatus.CANCELED),
        ("CANCELED", TaskStatus.CANCELED),
    ],
)
def test_each_word_is_a_state(word: str, status: TaskStatus) -> None:
    """Trap: THROTTLED waits; and the vendor's own client waits for ever on CANCELLED, with two L."""
    assert queried(shown(word)).status is status


@pytest.mark.parametrize(
    ("done", "progress"), [(0, 0.0), (0.5, 50.0), (1, 100.0), (1.5, 100.0), ("x", None), (None, None)]
)
def test_progress_is_from_0_to_1(done: object, progress: float | None) -> None:
    """Trap: 1 is all of it, and no hundredth."""
    assert queried(shown("RUNNING", progress=done)).progress == progress


def test_every_end_says_what_it_cost() -> None:
    """A refund is 0, which is a price; a canceled job may have one, too."""
    assert queried(shown("SUCCEEDED", output=[V, W], cost={"credits": 25})).usage == {"credit": 25}
    assert queried(shown("FAILED", failure="x", cost={"credits": 0})).usage == {"credit": 0}
    assert queried(shown("CANCELLED", cost={"credits": 12})).usage == {"credit": 12}
    assert queried(shown("CANCELLED")).usage is None


def test_all_outputs_are_videos() -> None:
    """In the order of the vendor."""
    result = queried(shown("SUCCEEDED", output=[V, W]))
    assert isinstance(result.result, VideoResponse)
    assert [video.url for video in result.result.videos] == [V, W]
    assert result.expires_after == timedelta(hours=24)
    error = queried(shown("SUCCEEDED", output=None)).error
    assert error is not None
    assert error.code == "no_result"


@pytest.mark.parametrize(
    ("code", "retryable"),
    [
        ("INTERNAL", True),
        ("INTERNAL.BAD_OUTPUT.CODE01", True),
        ("SAFETY.INPUT.TEXT", False),
        ("INPUT_PREPROCESSING.INTERNAL", False),
        ("ASSET.INVALID", False),
        ("INTERNALS", False),
        (None, False),
    ],
)
def test_a_failure_says_whether_another_try_may_go_well(code: str | None, retryable: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """What moderation refused once it refuses again."""
    error = queried(shown("FAILED", failure="why", failureCode=code)).error
    assert error is not None
    assert (error.code, error.message, error.retryable) == (code or "failed", "why", retryable)


@pytest.mark.parametrize(
    ("answers", "found", "methods"),
    [
        ([shown("PENDING"), Reply(204)], CancelResult.done(), ["GET", "DELETE"]),
        ([shown("THROTTLED"), Reply(204)], CancelResult.done(), ["GET", "DELETE"]),
        ([shown("RUNNING"), Reply(404)], CancelResult.done(), ["GET", "DELETE"]),
        ([shown("CANCELLED", cost={"credits": 12})], CancelResult.done({"credit": 12}), ["GET"]),
        ([shown("SUCCEEDED", output=[V])], CancelResult.refused("the job has ended already"), ["GET"]),
        ([shown("FAILED")], CancelResult.refused("the job has ended already"), ["GET"]),
    ],
    ids=["pending", "throttled", "gone", "canceled", "succeeded", "failed"],
)
def test_only_what_can_be_stopped_is_deleted(
    answers: list[Reply], found: CancelResult, methods: list[str]
) -> None:
    """Trap: DELETE of a finished job is answered in the same way, and takes the result with it."""
    transport = ScriptedTransport(answers)
    assert RunwayHandler().cancel(QueryParams("t1"), query_context(transport)) == found
    assert [call.method for call in transport.calls] == methods
    assert {call.url for call in transport.calls} == {f"{HOME}/v1/tasks/t1"}


def test_a_job_in_a_state_that_nobody_knows_is_not_deleted() -> None:
    """It may be an end, and then the result would be gone."""
    transport = ScriptedTransport([shown("ARCHIVED")])
    found = RunwayHandler().cancel(QueryParams("t1"), query_context(transport))
    assert (found.outcome, len(transport.calls)) == ("refused", 1)


@pytest.mark.parametrize("answers", [[Reply(404)], [Reply(200, b"<html>")], [shown("RUNNING"), Reply(500)]])
def test_a_cancel_without_an_answer_is_no_cancel(answers: list[Reply]) -> None:
    """A job that cannot be looked at is not deleted, and a broken delete stopped nothing for certain."""
    transport = ScriptedTransport(answers)
    with pytest.raises((JobNotFoundError, VendorError)):
        RunwayHandler().cancel(QueryParams("t1"), query_context(transport))
    assert len(transport.calls) == len(answers)


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        (400, RejectedError, "http_400"),
        (401, RejectedError, "account_refused"),
        (404, RejectedError, "http_404"),
        (429, ThrottledError, None),
        (502, VendorError, "http_502"),
    ],
)
def test_a_refused_submit_is_final_and_a_broken_one_unknown(
    status: int, expected: type[CoatcheckError], code: str | None
) -> None:
    """Trap: the vendor's own client sends a submit again after 502, which may make two jobs."""
    problem = {
        "error": "not like this",
        "issues": [{"path": ["ratio"], "message": "bad"}, {"message": "worse"}, 7],
    }
    with pytest.raises(expected, match="not like this") as caught:
        submitted(reply(problem, status))
    assert type(caught.value) is expected
    assert code is None or getattr(caught.value, "code", None) == code
    if status == 400:
        assert "not like this; ratio: bad; worse" in str(caught.value)


def test_a_refusal_that_is_no_json_is_one_all_the_same() -> None:
    """What stands before the vendor may refuse, too."""
    with pytest.raises(RejectedError, match="a proxy"):
        submitted(Reply(403, b"<html>a proxy</html>"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"duration": None}, "duration"),
        ({"aspect_ratio": None}, "aspect_ratio"),
        ({"duration": 11}, "duration"),
        ({"duration": -1}, "duration"),
        ({"aspect_ratio": "16:9"}, "aspect_ratio"),
        ({"aspect_ratio": "1104:832"}, "aspect_ratio"),
        ({"aspect_ratio": None, "width": 1000, "height": 1000}, "width"),
        ({"width": 1280, "height": 720}, "aspect_ratio"),
        ({"aspect_ratio": None, "width": 1280, "height": 720, "options": {"ratio": "auto_720p"}}, "ratio"),
        ({"resolution": "720P"}, "resolution"),
        ({"generate_audio": True}, "generate_audio"),
        ({"audio": D}, "audio"),
        ({"prompt": "é" * 1001}, "prompt"),
        ({"prompt": "🌊" * 501}, "prompt"),
        ({"model": "gen4_turbo"}, "mode"),
        ({"first_frame": A, "last_frame": B, "model": "gen4.5"}, "mode"),
        ({"model": "veo3.1", "duration": 4, "source_video": C}, "mode"),
        ({"model": "seedance2", "first_frame": A, "reference_images": (B,)}, "mode"),
        ({"model": "dream9", "source_video": C, "first_frame": A}, "first_frame"),
        ({"reference_images": (A,)}, "model"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"fps": 24}, "fps"),
        ({"watermark": False}, "watermark"),
        ({"mode": VideoMode.VIDEO_TO_VIDEO}, "mode"),
        ({"first_frame": "oss://bucket/a.png"}, "first_frame"),
        ({"first_frame": "http://media.example/a.png"}, "first_frame"),
        ({"options": {"public_figure_threshold": "high"}}, "public_figure_threshold"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_a_model_does_not_take_is_refused_before_it_is_stored(
    changes: dict[str, Any], field: str
) -> None:
    """A field that is dropped in silence is found out from the video, and from the bill."""
    with pytest.raises(ValidationError) as caught:
        RunwayHandler().validate(attrs.evolve(REQUEST, **changes))
    assert caught.value.field == field


def test_a_prompt_is_measured_as_the_vendor_measures_it() -> None:
    """Trap: a character may be two units; hosted models take longer prompts."""
    RunwayHandler().validate(attrs.evolve(REQUEST, prompt="🌊" * 500))
    RunwayHandler().validate(attrs.evolve(REQUEST, model="seedance2", prompt="a" * 3000))


@pytest.mark.parametrize(
    ("place", "body", "version", "status"),
    [
        ("/v1/image_to_video", {"model": "m"}, None, 400),
        ("/v1/image_to_video", {}, "2024-11-06", 400),
        ("/v1/sounds", {"model": "m"}, "2024-11-06", 404),
        ("/v1/image_to_video", {"model": "m", "promptImage": [{"uri": A}]}, "2024-11-06", 200),
    ],
    ids=["no-version", "no-model", "no-place", "media-only"],
)
def test_the_sandbox_refuses_what_the_vendor_refuses(
    place: str, body: Any, version: str | None, status: int
) -> None:
    """Who forgets the version, or the model, finds out here."""
    sandbox = RunwaySandbox()
    key = {"authorization": f"Bearer {sandbox.environment('http://x')['RUNWAYML_API_SECRET']}"}
    headers = key if version is None else {**key, "x-runway-version": version}
    assert sandbox(Request("POST", place, headers=headers, body=codec.dumps(body))).status == status


def test_the_sandbox_deletes_a_job_that_has_ended_like_the_vendor() -> None:
    """This is what a cancel has to beware of."""
    sandbox = RunwaySandbox()
    headers = {"authorization": "Bearer x", "x-runway-version": "2024-11-06"}
    body = codec.dumps({"model": "m", "promptText": "a~at_once=1"})
    assert sandbox(Request("POST", "/v1/text_to_video", headers=headers, body=body)).status == 200
    seen = [
        sandbox(Request(method, "/v1/tasks/job-1", headers=headers)).status
        for method in ("GET", "DELETE", "GET")
    ]
    assert seen == [200, 204, 404]
