"""``video:fal``: the contract, the three addresses of a job, the vendor's traps, and its life, live."""

from datetime import timedelta
from typing import Any

import attrs
import pytest
from tests.provider_video.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus, codec
from coatcheck.errors import (
    CoatcheckError,
    HandlerError,
    JobNotFoundError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Callback, Reply
from coatcheck.model import Account, CancelResult, QueryResult, SubmitResult
from coatcheck.sandbox import Request
from coatcheck.testing.contexts import NOW, query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, RecordedCallback, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import PATIENCE, Live
from coatcheck_video.callbacks.fal import FalSigner
from coatcheck_video.fal import FalHandler, FalOptions
from coatcheck_video.model import VideoRequest, VideoResponse
from coatcheck_video.sandbox.fal import FalSandbox

HOME = "https://queue.fal.run"
MODEL = "acme/dream/v2/text-to-video"
PLACE = f"{HOME}/acme/dream/requests/q1"
URLS = {"status_url": f"{PLACE}/status", "response_url": PLACE, "cancel_url": f"{PLACE}/cancel"}
PARAMS = QueryParams("q1", **URLS)
REQUEST = VideoRequest(prompt="waves at night", model=MODEL, duration=5, seed=7)
A, B, C = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4"))
V, W = "https://files.example/v.mp4", "https://files.example/w.mp4"
ACCEPTED = reply(
    {"request_id": "q1", "gateway_request_id": "q1", "status": "IN_QUEUE", "queue_position": 0, **URLS}
)
SIGNER = FalSigner()


def shown(word: str, status: int = 202, **more: Any) -> Reply:
    """Return a reply to a query."""
    return reply({"request_id": "q1", "status": word, **more}, status)


DONE = shown("COMPLETED", 200, metrics={"inference_time": 4.2})
MADE = reply(
    {"video": {"url": V, "content_type": "video/mp4", "file_name": "v.mp4", "file_size": 9}, "seed": 1}
)
MODERATED = [
    {"loc": ["body", "prompt"], "msg": "not this", "type": "content_policy_violation", "input": "waves"}
]


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> FalHandler:
        """Return the handler."""
        return FalHandler()

    @pytest.fixture
    def params(self) -> VideoRequest:
        """Return a request."""
        return attrs.evolve(REQUEST, options={"priority": "low", "names": {"last_frame": "tail_image_url"}})

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": ACCEPTED,
            "running": shown("IN_PROGRESS", logs=[]),
            "unknown_word": shown("REHEARSING"),
            "succeeded": [DONE, MADE],
            "failed": [DONE, reply({"detail": MODERATED}, 422)],
            "cancel_accepted": reply({"status": "CANCELLATION_REQUESTED"}, 202),
            "cancel_refused": reply({"status": "ALREADY_COMPLETED"}, 400),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [PARAMS, QueryParams("q1", base_url=HOME, **URLS)]

    @pytest.fixture
    def callback(self) -> RecordedCallback:
        """Return a callback as the vendor signs it."""
        body = codec.dumps({"request_id": "q1", "status": "OK", "payload": {"video": {"url": V}}})
        return RecordedCallback(
            callback=Callback(body, SIGNER.sign("q1", "user-1", NOW, body), received_at=NOW),
            external_task_id="q1",
            replies=[reply(SIGNER.jwks())],
        )


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = FalHandler
    sandbox_type = FalSandbox
    request = VideoRequest(prompt="a", model=MODEL)

    def test_live_a_finished_job_that_failed_is_a_failure(self, live: Live) -> None:
        """Trap: its status is the same as that of one that went well."""
        task = live.run("a~end=failed")
        assert task.error is not None
        assert (task.status, task.error.code, task.provider_status) == (
            TaskStatus.FAILED,
            "content_policy_violation",
            "COMPLETED",
        )

    @pytest.mark.parametrize("fault", ["html", "500", "502", "429", "truncate", "reset"])
    def test_live_a_result_that_is_no_answer_is_fetched_again(self, live: Live, fault: str) -> None:
        """The job is finished, and nobody has seen yet what it came to."""
        task = live.run(f"a~on_result={fault}+{fault}")
        assert task.status is TaskStatus.SUCCEEDED
        assert live.sandbox.counts["result"] == 3

    def test_live_a_job_that_goes_on_after_a_cancel_succeeds(self, live: Live) -> None:
        """Trap: the vendor accepts the cancel of a running job, and may finish it all the same."""
        task = live.house.submit(live.request("a~polls=10,cancel=refused"))
        live.watch(task, lambda found: found.status is TaskStatus.RUNNING)
        live.house.manager.cancel(task.id)
        assert live.house.wait(task.id, PATIENCE).status is TaskStatus.SUCCEEDED


def call_of(request: VideoRequest) -> Call:
    """Return the submit of a request, checked and signed."""
    handler = FalHandler()
    handler.validate(request)
    transport = ScriptedTransport([ACCEPTED])
    handler.submit(request, submit_context(transport))
    return transport.calls[0]


def submitted(answer: Reply, handler: FalHandler | None = None) -> SubmitResult:
    """Submit over a scripted reply."""
    return (handler or FalHandler()).submit(REQUEST, submit_context(ScriptedTransport([answer])))


def queried(*answers: Reply) -> QueryResult:
    """Query over scripted replies."""
    transport = ScriptedTransport(answers)
    result = FalHandler().query(PARAMS, query_context(transport))
    assert len(transport.calls) == len(answers)
    return result


def test_the_submit_is_what_the_vendor_wants() -> None:
    """Method, path, headers and body, without anything that was not said."""
    call = call_of(REQUEST)
    assert (call.method, call.url) == ("POST", f"{HOME}/{MODEL}")
    assert dict(call.headers) == {"Authorization": "Key secret-of-tests"}
    assert call.json == {"prompt": "waves at night", "duration": "5", "seed": 7}
    assert not any(call.query.values())


def test_what_the_queue_is_told_stands_in_headers() -> None:
    """Priority, timeout of the start and hint are no inputs of the model."""
    options = FalOptions(priority="low", start_timeout=30, runner_hint="tenant-7")
    call = call_of(attrs.evolve(REQUEST, options=options))
    assert {name: value for name, value in call.headers.items() if name.startswith("X-Fal")} == {
        "X-Fal-Queue-Priority": "low",
        "X-Fal-Request-Timeout": "30",
        "X-Fal-Runner-Hint": "tenant-7",
    }
    assert call.json == call_of(REQUEST).json


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"first_frame": A}, {"image_url": A}),
        ({"first_frame": A, "last_frame": B}, {"image_url": A, "end_image_url": B}),
        (
            {"first_frame": A, "last_frame": B, "options": {"names": {"last_frame": "tail_image_url"}}},
            {"image_url": A, "tail_image_url": B},
        ),
        ({"source_video": C}, {"video_url": C}),
        ({"duration": 5}, {"duration": "5"}),
        ({"duration": 5, "options": {"duration_as": "number"}}, {"duration": 5}),
        ({"duration": 5, "options": {"duration_as": "seconds"}}, {"duration": "5s"}),
        (
            {"reference_images": (A, B), "options": {"names": {"reference_images": "image_urls"}}},
            {"image_urls": [A, B]},
        ),
        ({"options": {"extra": {"cfg_scale": 0.5}}}, {"cfg_scale": 0.5}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_request_is_said_in_the_names_of_its_model(changes: dict[str, Any], given: dict[str, Any]) -> None:
    """Trap: durations are mostly texts, and the last frame has two names."""
    assert call_of(VideoRequest(prompt="a", model=MODEL, **changes)).json == {"prompt": "a", **given}


def test_callbacks_are_asked_for_where_there_is_an_address() -> None:
    """In the query of the submit, with the task's id in the address."""
    call = call_of(attrs.evolve(REQUEST, options={"callback_url": "https://app.example/{task_id}"}))
    assert call.query == {"fal_webhook": "https://app.example/task-1"}


@pytest.mark.parametrize("parts", [{"secret": "id:s"}, {"key_id": "id", "key_secret": "s"}, {"key_id": "id"}])
def test_a_key_may_come_in_two_parts(parts: dict[str, str]) -> None:
    """As the vendor's own client reads it; half a key is none."""

    def part(name: str) -> str:
        if name not in parts:
            raise UnknownNameError(f"no {name}")
        return parts[name]

    handler, account = FalHandler(), Account("fal", part)
    if len(parts) == 1 and "key_id" in parts:
        with pytest.raises(UnknownNameError, match="no secret"):
            handler.sign(Call("GET", "/x"), account)
        return
    assert handler.sign(Call("GET", "/x"), account).headers["Authorization"] == "Key id:s"


def test_a_job_is_asked_about_at_the_addresses_of_the_reply() -> None:
    """Trap: they lack the rest of the model's path, so nobody may make them from it."""
    made = submitted(ACCEPTED)
    assert made.query_params is not None
    assert {name: made.query_params[name] for name in URLS} == URLS
    transport = ScriptedTransport([DONE, MADE, reply({"status": "CANCELLATION_REQUESTED"}, 202)])
    FalHandler().query(made.query_params, query_context(transport))
    FalHandler().cancel(made.query_params, query_context(transport))
    assert [(call.method, call.url) for call in transport.calls] == [
        ("GET", f"{PLACE}/status"),
        ("GET", PLACE),
        ("PUT", f"{PLACE}/cancel"),
    ]
    assert all(call.headers["Authorization"] == "Key secret-of-tests" for call in transport.calls)


def test_a_reply_without_addresses_leads_to_where_the_client_would_look() -> None:
    """The first two parts of the model's path and the id are enough."""
    made = submitted(reply({"request_id": "q1"}))
    assert made.query_params is not None
    assert {name: made.query_params[name] for name in URLS} == URLS


@pytest.mark.parametrize("home", ["https://gate.example", "https://gate.example/fal"])
def test_a_gateway_is_asked_at_its_own_address(home: str) -> None:
    """The key goes to nobody else, whatever address stands in the reply; strange ones are not used."""
    handler = FalHandler(home)
    made = submitted(ACCEPTED, handler)
    assert made.query_params is not None
    assert made.query_params["status_url"] == f"{home}/acme/dream/requests/q1/status"
    transport = ScriptedTransport([shown("IN_PROGRESS")])
    handler.query(made.query_params, query_context(transport))
    assert transport.calls[0].url == f"{home}/acme/dream/requests/q1/status"
    for strange in ("/requests/q1/status", "https://[broken", ""):
        made = submitted(reply({"request_id": "q1", "status_url": strange}), handler)
        assert made.query_params is not None
        assert made.query_params["status_url"] == f"{home}/acme/dream/requests/q1/status"


def test_a_job_without_an_address_cannot_be_asked_about() -> None:
    """Who resolves a task by hand is told what is missing."""
    with pytest.raises(HandlerError, match="expected status_url"):
        FalHandler().query(QueryParams("q1"), query_context(ScriptedTransport([])))


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (shown("IN_QUEUE", queue_position=3), TaskStatus.SUBMITTED),
        (shown("IN_PROGRESS", logs=[{"message": "x"}]), TaskStatus.RUNNING),
        (shown("IN_PROGRESS", 200), TaskStatus.RUNNING),
    ],
)
def test_a_job_that_waits_or_runs_is_answered_with_202(answer: Reply, status: TaskStatus) -> None:
    """Trap: the status says nothing more than that there is an answer."""
    assert queried(answer).status is status


def test_even_a_job_that_is_finished_at_once_is_asked_what_it_came_to() -> None:
    """The reply to the submit has no result."""
    made = submitted(reply({"request_id": "q1", "status": "COMPLETED", **URLS}))
    assert (made.status, made.provider_status) == (TaskStatus.RUNNING, "COMPLETED")


def test_a_success_has_its_video_and_what_is_known_of_it() -> None:
    """Usage is the time that the model ran, a begun second in full."""
    result = queried(DONE, MADE)
    assert isinstance(result.result, VideoResponse)
    (video,) = result.result.videos
    assert (video.url, video.metadata) == (
        V,
        {"content_type": "video/mp4", "file_name": "v.mp4", "file_size": 9},
    )
    assert (result.usage, result.expires_after) == ({"inference_second": 5}, None)
    assert result.result.metadata == {"seed": 1, "inference_time": 4.2}


@pytest.mark.parametrize(
    ("output", "urls"),
    [
        ({"video": {"url": V}}, [V]),
        ({"video": V}, [V]),
        ({"videos": [{"url": V}, {"url": W}, {"url": V}, None]}, [V, W]),
        ({"video": {"url": V}, "videos": [{"url": V}, {"url": W}]}, [V, W]),
    ],
)
def test_one_video_or_several(output: dict[str, Any], urls: list[str]) -> None:
    """Each once, whatever the model calls them."""
    result = queried(DONE, reply(output)).result
    assert isinstance(result, VideoResponse)
    assert [video.url for video in result.videos] == urls


def test_a_finished_job_without_a_video_failed() -> None:
    """Trap: a model may finish with nothing."""
    error = queried(DONE, reply({"images": []})).error
    assert error is not None
    assert error.code == "no_result"


@pytest.mark.parametrize(
    ("answers", "code", "message", "retryable"),
    [
        ([shown("COMPLETED", 200, error="out of memory", error_type="oom")], "oom", "out of memory", False),
        ([shown("COMPLETED", 200, error="out of memory")], "failed", "out of memory", False),
        (
            [DONE, reply({"detail": MODERATED}, 422)],
            "content_policy_violation",
            "body.prompt: not this",
            False,
        ),
        (
            [
                DONE,
                reply(
                    {"detail": "no GPU"},
                    500,
                    headers={"X-Fal-Retryable": "true", "X-Fal-Error-Type": "infra"},
                ),
            ],
            "infra",
            "no GPU",
            True,
        ),
        ([DONE, reply({"detail": "x"}, 500, headers={"X-Fal-Needs-Retry": "1"})], "http_500", "x", True),
        (
            [DONE, reply("late", 504, headers={"X-Fal-Request-Timeout-Type": "user"})],
            "start_timeout",
            "'late'",
            False,
        ),
    ],
    ids=["status", "bare", "moderated", "broken", "older-header", "late"],
)
def test_completed_is_not_success(answers: list[Reply], code: str, message: str, retryable: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """Trap: the failure stands in the status, or only in the result."""
    result = queried(*answers)
    assert result.error is not None
    assert result.status is TaskStatus.FAILED
    assert (result.error.code, result.error.message, result.error.retryable) == (code, message, retryable)


def test_what_a_model_was_given_is_not_repeated_in_the_failure() -> None:
    """Trap: the detail has the input in it, which may be anybody's text."""
    error = queried(DONE, reply({"detail": MODERATED}, 422)).error
    assert error is not None
    assert "waves" not in error.message


@pytest.mark.parametrize(
    "answer",
    [
        Reply(500, b"<html>nginx</html>"),
        Reply(502, b'{"detail": "bad gateway"}'),
        Reply(504, b'{"error": "timeout"}'),
        Reply(504, b"late", headers={"X-Fal-Request-Timeout-Type": "gateway"}),
        Reply(404, b'{"detail": "not found"}'),
        Reply(403, b'{"detail": "locked"}'),
        Reply(400, b"no"),
        Reply(200, b"<html>"),
    ],
    ids=lambda answer: str(answer.status),
)
def test_a_broken_result_says_nothing_about_the_job(answer: Reply) -> None:
    """Trap: what stands before the vendor answers with the same statuses."""
    with pytest.raises(VendorError):
        queried(DONE, answer)


def test_a_result_that_is_still_being_made_is_waited_for() -> None:
    """Trap: asked for too early it is an error, and not one of the job's."""
    result = queried(DONE, reply({"detail": "Request is still in progress"}, 400))
    assert (result.status, result.error) == (TaskStatus.RUNNING, None)


def test_a_job_that_the_vendor_does_not_know_is_not_found() -> None:
    """Some times in a row it is lost."""
    with pytest.raises(JobNotFoundError):
        queried(reply({"detail": "not found"}, 404))


def test_a_canceled_job_is_not_a_failure() -> None:
    """Trap: there is no word for it, only a finished job with an error of that type."""
    assert (
        queried(shown("COMPLETED", 200, error="x", error_type="client_cancelled")).status
        is TaskStatus.CANCELED
    )
    assert queried(shown("COMPLETED", 200, error="canceled by a tool")).status is TaskStatus.FAILED
    answer = reply({"detail": "x"}, 499, headers={"X-Fal-Error-Type": "client_cancelled"})
    assert queried(DONE, answer).status is TaskStatus.CANCELED


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (reply({"status": "CANCELLATION_REQUESTED"}, 202), CancelResult.accepted()),
        (
            reply({"status": "ALREADY_COMPLETED"}, 400),
            CancelResult.refused("the vendor answered 400: ALREADY_COMPLETED"),
        ),
        (reply({"status": "NOT_FOUND"}, 404), CancelResult.refused("the vendor answered 404: NOT_FOUND")),
        (Reply(400, b"x"), CancelResult.refused("the vendor answered 400: 'x'")),
    ],
)
def test_a_cancel_is_a_wish(answer: Reply, found: CancelResult) -> None:
    """It is believed when a query sees it."""
    assert FalHandler().cancel(PARAMS, query_context(ScriptedTransport([answer]))) == found


@pytest.mark.parametrize(
    ("answer", "expected", "code"),
    [
        (reply({"detail": MODERATED}, 422), RejectedError, "content_policy_violation"),
        (reply({"detail": "no such app"}, 404), RejectedError, "http_404"),
        (
            reply({"detail": "x"}, 400, headers={"X-Fal-Error-Type": "bad_request"}),
            RejectedError,
            "bad_request",
        ),
        (reply({"detail": "exhausted balance"}, 403), RejectedError, "http_403"),
        (reply({"detail": "no"}, 401), RejectedError, "account_refused"),
        (reply({"detail": "slow"}, 429), ThrottledError, None),
        (reply({"detail": "down"}, 503), VendorError, "http_503"),
    ],
    ids=["moderated", "app", "type", "balance", "key", "busy", "down"],
)
def test_a_refused_submit_is_final_and_a_broken_one_unknown(
    answer: Reply, expected: type[CoatcheckError], code: str | None
) -> None:
    """Only a throttle is tried again by itself."""
    with pytest.raises(expected) as caught:
        submitted(answer)
    assert type(caught.value) is expected
    assert code is None or getattr(caught.value, "code", None) == code


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": None}, "model"),
        ({"model": "dream"}, "model"),
        ({"model": "acme/../dream"}, "model"),
        ({"model": "acme/dream?x=1"}, "model"),
        ({"fps": 24}, "fps"),
        ({"audio": C}, "audio"),
        ({"reference_images": (A,)}, "reference_images"),
        ({"first_frame": "oss://media.example/a.png"}, "first_frame"),
        ({"options": {"priority": "high"}}, "priority"),
        ({"options": {"start_timeout": 1}}, "start_timeout"),
        ({"options": {"callback_url": "app.example"}}, "callback_url"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_said_is_refused_before_it_is_stored(changes: dict[str, Any], field: str) -> None:
    """A field that is dropped in silence is found out from the video, and from the bill."""
    with pytest.raises(ValidationError) as caught:
        FalHandler().validate(VideoRequest(**{"prompt": "a", "model": MODEL, **changes}))
    assert caught.value.field == field


def test_jobs_are_looked_at_every_few_seconds() -> None:
    """Trap: the vendor's own client asks ten times a second."""
    assert FalHandler.poll.start == timedelta(seconds=5)


def test_a_house_may_have_a_default_model() -> None:
    """Then requests that any vendor can make go here, too."""

    class Ours(FalHandler):
        default_model = MODEL

    handler = Ours()
    handler.validate(VideoRequest(prompt="a"))
    transport = ScriptedTransport([reply({"request_id": "q1"})])
    made = handler.submit(VideoRequest(prompt="a"), submit_context(transport))
    assert transport.calls[0].url == f"{HOME}/{MODEL}"
    assert made.query_params is not None
    assert made.query_params["response_url"] == PLACE


@pytest.mark.parametrize(
    ("method", "place", "body", "status"),
    [
        ("GET", "/acme/dream/v2/requests/job-1/status", None, 404),
        ("GET", "/acme/dream/requests/job-1", None, 400),
        ("GET", "/acme/dream/requests/job-9/status", None, 404),
        ("POST", "/acme/dream", [], 422),
    ],
    ids=["sub-path", "too-early", "unknown", "no-object"],
)
def test_the_sandbox_refuses_what_the_vendor_refuses(method: str, place: str, body: Any, status: int) -> None:
    """Who makes addresses from the model's path, or asks too early, finds out here; media may name a job."""
    sandbox = FalSandbox()
    key = {"authorization": f"Key {sandbox.environment('http://x')['FAL_KEY']}"}
    made = Request("POST", "/acme/dream/v2", headers=key, body=codec.dumps({"image_url": f"{A}~end=never"}))
    assert sandbox(made).status == 200
    sent = Request(method, place, headers=key, body=b"" if body is None else codec.dumps(body))
    assert sandbox(sent).status == status
