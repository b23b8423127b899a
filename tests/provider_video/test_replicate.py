"""``video:replicate``: the contract, three ways to name a model, the vendor's traps, and its life, live."""

import base64
from datetime import timedelta
from typing import Any

import attrs
import pytest
from tests.provider_video.vendor_matrix import VendorMatrix

from coatcheck import Limit, QueryParams, Rate, TaskStatus, codec
from coatcheck.errors import (
    CoatcheckError,
    JobNotFoundError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Callback, Reply
from coatcheck.model import CancelResult, QueryResult, Side, SubmitResult
from coatcheck.sandbox import Request
from coatcheck.testing.contexts import NOW, query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, RecordedCallback, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import Live
from coatcheck_video.callbacks.replicate import sign
from coatcheck_video.model import VideoRequest, VideoResponse
from coatcheck_video.replicate import ReplicateHandler, ReplicateOptions
from coatcheck_video.sandbox.replicate import ReplicateSandbox

HOME = "https://api.replicate.com"
MODEL = "acme/dream-1.5"
REQUEST = VideoRequest(prompt="waves at night", model=MODEL, duration=5, seed=7)
A, B, C = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4"))
V, W = "https://files.example/v.mp4", "https://files.example/w.mp4"


def shown(word: str, status: int = 200, **more: Any) -> Reply:
    """Return a prediction."""
    return reply({"id": "p1", "status": word, "output": None, "error": None, "logs": "", **more}, status)


ACCEPTED = shown("starting", 201)


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> ReplicateHandler:
        """Return the handler."""
        return ReplicateHandler()

    @pytest.fixture
    def params(self) -> VideoRequest:
        """Return a request."""
        return attrs.evolve(REQUEST, options={"names": {"first_frame": "start_image"}, "wait": 5})

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": ACCEPTED,
            "at_once": shown("succeeded", 201, output=V),
            "running": shown("processing", logs=" 40%|####      | 4/10"),
            "unknown_word": shown("rehearsing"),
            "succeeded": shown("succeeded", output=[V], metrics={"predict_time": 4.2}, model=MODEL),
            "failed": shown("failed", error="the prompt was flagged as sensitive (E005)"),
            "cancel_done": shown("canceled"),
            "cancel_accepted": shown("processing"),
            "cancel_refused": shown("succeeded", output=V),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("p1"), QueryParams("p1", base_url=HOME)]

    @pytest.fixture
    def callback(self) -> RecordedCallback:
        """Return a callback as the vendor signs it."""
        secret = "whsec_" + base64.b64encode(b"signing key of a contract").decode()
        body = codec.dumps({"id": "p1", "status": "succeeded", "output": V})
        return RecordedCallback(
            callback=Callback(body, sign(secret, "msg-1", NOW, body), received_at=NOW),
            external_task_id="p1",
            secrets={"webhook_secret": secret},
        )


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = ReplicateHandler
    sandbox_type = ReplicateSandbox
    request = VideoRequest(prompt="a", model=MODEL)

    @pytest.mark.parametrize(
        "changes",
        [
            {"model": f"{MODEL}:5c7d"},
            {"model": None, "options": {"deployment": "acme/mine"}},
            {"first_frame": A, "last_frame": B},
        ],
        ids=["version", "deployment", "frames"],
    )
    def test_live_every_way_to_name_a_model_is_served(self, live: Live, changes: dict[str, Any]) -> None:
        """Official models, versions and deployments, each at its place."""
        assert live.response("a", **changes).usage == {"predict_second": 5}

    def test_live_a_submit_that_waits_brings_the_result(self, live: Live) -> None:
        """With the option the first reply may be the last; without it, never."""
        task = live.run("a~at_once=1", options={"wait": 10})
        assert (task.status, task.query_count) == (TaskStatus.SUCCEEDED, 0)
        self.check_result(task.result)
        self.check_result(live.house.manager.refresh_result(task.id).result)
        assert live.run("a~at_once=1").query_count == 1

    def test_live_a_result_that_the_vendor_removed_is_gone(self, live: Live) -> None:
        """Trap: an hour later the job has still succeeded, and there is nothing any more."""
        task = live.run("a")
        assert task.finished_at is not None
        assert task.result_expires_at is not None
        assert timedelta(minutes=59) < task.result_expires_at - task.finished_at < timedelta(minutes=61)
        manager = live.house.manager
        assert manager.refresh_result(task.id).result_gone is False
        live.sandbox.remove()  # type: ignore[attr-defined]  # it is a ReplicateSandbox
        found = manager.refresh_result(task.id)
        assert (found.status, found.result_gone, found.result) == (TaskStatus.SUCCEEDED, True, task.result)


def call_of(request: VideoRequest) -> Call:
    """Return the submit of a request, checked and signed."""
    handler = ReplicateHandler()
    handler.validate(request)
    transport = ScriptedTransport([ACCEPTED])
    handler.submit(request, submit_context(transport))
    return transport.calls[0]


def submitted(answer: Reply, request: VideoRequest = REQUEST) -> SubmitResult:
    """Submit over a scripted reply."""
    return ReplicateHandler().submit(request, submit_context(ScriptedTransport([answer])))


def queried(answer: Reply) -> QueryResult:
    """Query over a scripted reply."""
    return ReplicateHandler().query(QueryParams("p1"), query_context(ScriptedTransport([answer])))


@pytest.mark.parametrize(
    ("model", "options", "place", "more"),
    [
        (MODEL, {}, "/v1/models/acme/dream-1.5/predictions", {}),
        (f"{MODEL}:5c7d", {}, "/v1/predictions", {"version": "5c7d"}),
        (None, {"deployment": "acme/mine"}, "/v1/deployments/acme/mine/predictions", {}),
    ],
    ids=["official", "version", "deployment"],
)
def test_a_model_a_version_and_a_deployment_have_places_of_their_own(
    model: str | None, options: dict[str, Any], place: str, more: dict[str, str]
) -> None:
    """Method, path, headers and body, without anything that was not said."""
    call = call_of(VideoRequest(prompt="waves at night", model=model, duration=5, options=options))
    assert (call.method, call.url) == ("POST", HOME + place)
    assert dict(call.headers) == {"Authorization": "Bearer secret-of-tests"}
    assert call.json == {"input": {"prompt": "waves at night", "duration": 5}, **more}


def test_nobody_waits_unless_asked_to() -> None:
    """Trap: a submit that waits holds a thread and a lease for a minute."""
    assert "Prefer" not in call_of(REQUEST).headers
    call = call_of(attrs.evolve(REQUEST, options=ReplicateOptions(wait=60, cancel_after=90)))
    assert (call.headers["Prefer"], call.headers["Cancel-After"]) == ("wait=60", "90s")
    assert call.timeout > timedelta(seconds=60)


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"first_frame": A}, {"image": A}),
        ({"first_frame": A, "last_frame": B}, {"image": A, "last_frame": B}),
        (
            {"negative_prompt": "rain", "generate_audio": False},
            {"negative_prompt": "rain", "generate_audio": False},
        ),
        (
            {"resolution": "720p", "aspect_ratio": "9:16", "seed": 1},
            {"resolution": "720p", "aspect_ratio": "9:16", "seed": 1},
        ),
        (
            {
                "first_frame": A,
                "last_frame": B,
                "options": {"names": {"first_frame": "start_image", "last_frame": "end_image"}},
            },
            {"start_image": A, "end_image": B},
        ),
        (
            {
                "reference_images": (A, B),
                "fps": 24,
                "options": {"names": {"reference_images": "images", "fps": "fps"}},
            },
            {"images": [A, B], "fps": 24},
        ),
        ({"options": {"extra": {"cfg": 0.5, "prompt": "not this"}}}, {"cfg": 0.5}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_request_is_said_in_the_names_of_its_model(changes: dict[str, Any], given: dict[str, Any]) -> None:
    """Trap: what one model calls image is start_image for another."""
    body: Any = call_of(VideoRequest(prompt="a", model=MODEL, **changes)).json
    assert body["input"] == {"prompt": "a", **given}


def test_callbacks_are_asked_for_where_there_is_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the end only, with the task's id in the address."""
    option = {"callback_url": "https://app.example/{task_id}"}
    body: Any = call_of(attrs.evolve(REQUEST, options=option)).json
    assert (body["webhook"], body["webhook_events_filter"]) == ("https://app.example/task-1", ["completed"])
    monkeypatch.setenv("COATCHECK_VIDEO_REPLICATE_CALLBACK_URL", "https://all.example/{task_id}")
    body = call_of(REQUEST).json
    assert body["webhook"] == "https://all.example/task-1"


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("starting", TaskStatus.SUBMITTED),
        ("processing", TaskStatus.RUNNING),
        ("canceled", TaskStatus.CANCELED),
        ("aborted", TaskStatus.CANCELED),
    ],
)
def test_each_word_is_a_state(word: str, status: TaskStatus) -> None:
    """Trap: aborted is an end, though no page about statuses lists it among them."""
    assert queried(shown(word)).status is status


def test_a_job_that_is_over_at_the_submit_is_ended_by_it() -> None:
    """With ``wait`` the reply may be any end; a canceled one is seen by the first query."""
    waiting = attrs.evolve(REQUEST, options={"wait": 5})
    made = submitted(shown("succeeded", 201, output=V), waiting)
    assert isinstance(made.result, VideoResponse)
    assert (made.status, made.expires_after) == (TaskStatus.SUCCEEDED, timedelta(hours=1))
    assert made.query_params is not None
    assert made.query_params.external_task_id == "p1"
    failed = submitted(shown("failed", 201, error="no (E005)"), waiting)
    assert failed.error is not None
    assert (failed.status, failed.error.code) == (TaskStatus.FAILED, "E005")
    for word in ("canceled", "aborted", "processing"):
        open_ = submitted(shown(word, 201), waiting)
        assert open_.query_params is not None
        assert (open_.status, open_.query_params.external_task_id) == (TaskStatus.RUNNING, "p1")


@pytest.mark.parametrize(
    ("output", "urls"),
    [
        (V, [V]),
        ([V, W], [V, W]),
        ({"video": V, "seed": 3}, [V]),
        ({"videos": [{"url": V}, {"url": W}]}, [V, W]),
        ([V, V, None, 7, "no address"], [V]),
    ],
    ids=["text", "list", "object", "nested", "mixed"],
)
def test_an_output_has_many_shapes(output: object, urls: list[str]) -> None:
    """Trap: a text from one model, a list from another, an object from a third."""
    result = queried(shown("succeeded", output=output)).result
    assert isinstance(result, VideoResponse)
    assert [video.url for video in result.videos] == urls


def test_a_success_tells_how_long_the_model_ran() -> None:
    """A begun second in full; the facts are kept beside it."""
    metrics = {"predict_time": 4.2, "total_time": 9}
    result = queried(shown("succeeded", output=V, metrics=metrics, model=MODEL, version="5c7d"))
    assert (result.usage, result.expires_after) == ({"predict_second": 5}, timedelta(hours=1))
    assert isinstance(result.result, VideoResponse)
    assert result.result.metadata == {"model": MODEL, "version": "5c7d", **metrics}


def test_a_success_without_output_failed_unless_it_was_removed() -> None:
    """Trap: removed output says that the job is too old to be known, and not that it made nothing."""
    error = queried(shown("succeeded")).error
    assert error is not None
    assert error.code == "no_result"
    with pytest.raises(JobNotFoundError, match="removed its output"):
        queried(shown("succeeded", data_removed=True))
    assert queried(shown("failed", data_removed=True, error="x")).status is TaskStatus.FAILED
    assert queried(shown("succeeded", data_removed=True, output=V)).status is TaskStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("logs", "progress"),
    [
        ("", None),
        (" 10%|#\r 40%|####", 40.0),
        ("Loading…\n100%|##########| 9/9", 100.0),
        (None, None),
        ("50% off", None),
    ],
)
def test_progress_is_read_from_the_logs(logs: object, progress: float | None) -> None:
    """Trap: no field has it; the bar that the model draws has."""
    assert queried(shown("processing", logs=logs)).progress == progress


@pytest.mark.parametrize("step", [submitted, queried])
@pytest.mark.parametrize(
    ("answer", "delay"),
    [
        (reply({"detail": "Your rate limit resets in ~30s."}, 429), timedelta(seconds=30)),
        (reply({"detail": "resets in ~30s"}, 429, headers={"Retry-After": "7"}), timedelta(seconds=7)),
        (reply({"detail": "resets in ~999999s"}, 429), timedelta(hours=1)),
        (Reply(429, b"<html>"), None),
    ],
    ids=["words", "header", "long", "none"],
)
def test_a_throttle_lasts_as_long_as_it_says(step: Any, answer: Reply, delay: timedelta | None) -> None:
    """Trap: how long stands in the text of the error."""
    with pytest.raises(ThrottledError) as caught:
        step(answer)
    assert caught.value.delay == delay


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        (401, RejectedError, "account_refused"),
        (402, RejectedError, "account_refused"),
        (404, RejectedError, "http_404"),
        (422, RejectedError, "http_422"),
        (500, VendorError, "http_500"),
    ],
)
def test_a_refused_submit_is_final_and_a_broken_one_unknown(
    status: int, expected: type[CoatcheckError], code: str
) -> None:
    """The vendor's words reach whoever reads the task."""
    problem = {"type": "about:blank", "title": "No", "status": status, "detail": "prompt is required"}
    with pytest.raises(expected, match="prompt is required") as caught:
        submitted(reply(problem, status))
    assert type(caught.value) is expected
    assert getattr(caught.value, "code", None) == code


def test_what_stands_before_the_vendor_may_refuse_too() -> None:
    """A refusal that is no JSON is one all the same."""
    with pytest.raises(RejectedError, match="a proxy"):
        submitted(Reply(403, b"<html>a proxy</html>"))


def test_a_failure_has_the_code_that_stands_in_its_text() -> None:
    """Moderation has one; what was refused once is refused again."""
    error = queried(shown("failed", error="flagged as sensitive (E005)")).error
    assert error is not None
    assert (error.code, error.retryable) == ("E005", False)
    error = queried(shown("failed", error=None)).error
    assert error is not None
    assert (error.code, error.message) == ("failed", "the vendor says that the job failed")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("canceled", CancelResult.done()),
        ("aborted", CancelResult.done()),
        ("processing", CancelResult.accepted()),
        ("succeeded", CancelResult.refused("the job has ended already")),
    ],
)
def test_a_cancel_is_what_the_job_became(word: str, found: CancelResult) -> None:
    """The reply shows the job."""
    transport = ScriptedTransport([shown(word)])
    assert ReplicateHandler().cancel(QueryParams("p/1"), query_context(transport)) == found
    assert (transport.calls[0].method, transport.calls[0].url) == (
        "POST",
        f"{HOME}/v1/predictions/p%2F1/cancel",
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": None}, "model"),
        ({"model": "dream"}, "model"),
        ({"model": "acme/dream/fast"}, "model"),
        ({"model": "acme/.."}, "model"),
        ({"options": {"deployment": "acme/mine"}}, "model"),
        ({"model": None, "options": {"deployment": "acme/mine:5c7d"}}, "deployment"),
        ({"fps": 24}, "fps"),
        ({"camera_fixed": True}, "camera_fixed"),
        ({"source_video": C}, "source_video"),
        ({"reference_images": (A,)}, "reference_images"),
        ({"first_frame": A, "options": {"names": {"first_frame": "prompt"}}}, "first_frame"),
        ({"first_frame": "ftp://media.example/a.png"}, "first_frame"),
        ({"options": {"names": {"first_frame": ""}}}, "names"),
        ({"options": {"names": ["image"]}}, "names"),
        ({"options": {"wait": 61}}, "wait"),
        ({"options": {"callback_url": "https://user@app.example/"}}, "callback_url"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_said_is_refused_before_it_is_stored(changes: dict[str, Any], field: str) -> None:
    """A field that is dropped in silence is found out from the video, and from the bill."""
    with pytest.raises(ValidationError) as caught:
        ReplicateHandler().validate(VideoRequest(**{"prompt": "a", "model": MODEL, **changes}))
    assert caught.value.field == field


def test_a_name_for_a_field_that_there_is_not_is_refused_with_the_closest() -> None:
    """A mistyped field would leave the default name standing."""
    with pytest.raises(UnknownNameError, match="did you mean 'first_frame'"):
        ReplicateHandler().validate(attrs.evolve(REQUEST, options={"names": {"first_fram": "image"}}))


def test_the_vendors_rates_are_kept_without_being_set() -> None:
    """600 submits and 3000 other calls a minute, for each account."""
    minute = timedelta(minutes=1)
    assert ReplicateHandler.default_limits == (
        Limit(account="replicate", side=Side.SUBMIT, rate=Rate(600, minute)),
        Limit(account="replicate", side=Side.QUERY, rate=Rate(3000, minute)),
    )


def test_a_house_may_have_a_default_model() -> None:
    """Then requests that any vendor can make go here, too; a deployment still takes its place."""

    class Ours(ReplicateHandler):
        default_model = MODEL

    handler = Ours()
    for options, place in (({}, f"models/{MODEL}"), ({"deployment": "acme/mine"}, "deployments/acme/mine")):
        request = VideoRequest(prompt="a", options=options)
        handler.validate(request)
        transport = ScriptedTransport([ACCEPTED])
        handler.submit(request, submit_context(transport))
        assert transport.calls[0].url == f"{HOME}/v1/{place}/predictions"


@pytest.mark.parametrize(
    ("place", "body", "status"),
    [
        ("/v1/predictions", {"input": {}}, 422),
        ("/v1/predictions", {"version": "5c7d"}, 422),
        ("/v1/predictions/acme", {}, 404),
        ("/v1/predictions", {"version": "5c7d", "input": {"seed": 1, "image": A}}, 201),
    ],
    ids=["no-version", "no-input", "no-place", "media-only"],
)
def test_the_sandbox_refuses_what_the_vendor_refuses(place: str, body: Any, status: int) -> None:
    """A version belongs into the body, and so does the input."""
    sandbox = ReplicateSandbox()
    key = {"authorization": f"Bearer {sandbox.environment('http://x')['REPLICATE_API_TOKEN']}"}
    assert sandbox(Request("POST", place, headers=key, body=codec.dumps(body))).status == status
