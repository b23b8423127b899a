"""``video:kling``: the contract, what each path is told, both kinds of keys, the vendor's traps, its life."""

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import jwt
import pytest
from tests.provider_video.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.errors import (
    CallbackRefusedError,
    HandlerError,
    JobNotFoundError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Callback, CallbackNote, Reply, VendorHandler
from coatcheck.model import Account, LookupResult, QueryResult, SubmitContext
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, RecordedCallback, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import Live
from coatcheck_video import kling
from coatcheck_video.kling import REGIONS, KlingHandler, KlingOptions
from coatcheck_video.model import VideoMode, VideoRequest, VideoResponse
from coatcheck_video.sandbox.kling import KlingSandbox

HOME = f"{REGIONS['international']}/v1/videos"
REQUEST = VideoRequest(prompt="waves at night", model="kling-v3", duration=5)
A, B, C = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4"))
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SECRET_KEY = "a made-up secret key of the tests"


def enveloped(data: object, code: int = 0, status: int = 200, message: str = "SUCCEED") -> Reply:
    """Return a reply as the vendor wraps it."""
    return reply({"code": code, "message": message, "request_id": "r-1", "data": data}, status)


def shown(word: str, **more: Any) -> Reply:
    """Return a reply that shows a job."""
    return enveloped({"task_id": "T1", "task_status": word, **more})


def refused(code: int, status: int, message: str = "why") -> Reply:
    """Return a refusal."""
    return enveloped(None, code, status, message)


ACCEPTED = shown("submitted", task_info={"external_task_id": "key-1"})
SUCCEEDED = shown(
    "succeed",
    task_result={"videos": [{"id": "v1", "url": "https://files.example/v.mp4", "duration": "5.1"}]},
    final_unit_deduction="2",
)


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> KlingHandler:
        """Return the handler."""
        return KlingHandler()

    @pytest.fixture
    def params(self) -> VideoRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        return {
            "accepted": shown("submitted"),
            "running": shown("processing"),
            "unknown_word": shown("rehearsing"),
            "succeeded": SUCCEEDED,
            "failed": shown("failed", task_status_msg="not this"),
            "found": shown("processing"),
            "not_found": refused(1203, 404),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("T1"), QueryParams("T1", kind="omni-video", base_url=REGIONS["international"])]

    @pytest.fixture
    def callback(self) -> RecordedCallback:
        """Return a callback, which is the envelope of a query's reply."""
        return RecordedCallback(
            callback=Callback(SUCCEEDED.body, received_at=NOON), external_task_id="T1", is_signed=False
        )


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = KlingHandler
    sandbox_type = KlingSandbox

    @pytest.fixture
    def hasty(self, tmp_path: Path) -> Iterator[Live]:
        """Return a vendor and a house that looks lost submits up at once."""
        with _Hasty().living(tmp_path) as live:
            yield live

    @pytest.mark.parametrize("fault", ["html", "reset"])
    def test_live_a_submit_that_is_no_answer_is_unknown_and_not_repeated(
        self, hasty: Live, fault: str
    ) -> None:
        """The job is found by our own key, and there is one."""
        assert hasty.run(f"a~on_submit={fault}").status is TaskStatus.SUCCEEDED
        assert (len(hasty.sandbox.jobs), posts(hasty)) == (1, 1)

    def test_live_a_second_job_for_our_key_is_refused_and_the_first_one_found(self, hasty: Live) -> None:
        """Trap: a lookup that finds nothing, wrongly, leads to a refusal, and not to an end of the task."""
        assert hasty.run("a~on_submit=reset,on_lookup=404+404").status is TaskStatus.SUCCEEDED
        assert (len(hasty.sandbox.jobs), posts(hasty)) == (1, 2)

    @pytest.mark.parametrize(
        "changes",
        [
            {"model": "kling-v2-6", "first_frame": A, "last_frame": B, "generate_audio": True},
            {"reference_images": (A, B), "aspect_ratio": "9:16"},
            {"source_video": C, "reference_images": (A,), "duration": 5},
        ],
        ids=["frames", "references", "omni"],
    )
    def test_live_a_job_is_asked_about_below_the_path_that_made_it(
        self, live: Live, changes: dict[str, Any]
    ) -> None:
        """Trap: below another path the vendor does not know it, so the kind is kept with the task."""
        response = live.response("a", **changes)
        assert response.usage == {"second": 5, "unit": 2}

    @pytest.mark.filterwarnings("ignore:The HMAC key")  # the matrix's secret is a short one
    def test_live_a_pair_of_keys_signs_a_token(self, tmp_path: Path) -> None:
        """The older kind of account: the vendor sees a token, and the secret key never."""
        with _Paired().living(tmp_path) as live:
            assert live.run("a").status is TaskStatus.SUCCEEDED
            tokens = {request.header("authorization") for request in live.sandbox.requests}
        (token,) = tokens
        assert token is not None
        assert token.count(".") == 2


class _Hasty(TestLive):
    """Looks lost submits up at once."""

    def handler_at(self, url: str) -> VendorHandler[Any, Any]:
        """Return a handler whose calls are short, so that a lookup need not wait for one of them."""
        handler = super().handler_at(url)
        handler.call_limit = timedelta(seconds=1)
        return handler


class _Paired(TestLive):
    """Has an older account."""

    parts = ("access_key", "secret_key")


def posts(live: Live) -> int:
    """Return how many submits reached the vendor."""
    return sum(request.method == "POST" for request in live.sandbox.requests)


def call_of(request: VideoRequest) -> Call:
    """Return the submit of a request, checked and signed."""
    handler = KlingHandler()
    handler.validate(request)
    transport = ScriptedTransport([ACCEPTED])
    handler.submit(request, submit_context(transport))
    return transport.calls[0]


def submitted(answer: Reply) -> Any:
    """Submit over a scripted reply."""
    return KlingHandler().submit(REQUEST, submit_context(ScriptedTransport([answer])))


def queried(answer: Reply) -> QueryResult:
    """Query over a scripted reply."""
    return KlingHandler().query(QueryParams("T1"), query_context(ScriptedTransport([answer])))


def looked_up(answer: Reply) -> LookupResult:
    """Look up over a scripted reply."""
    return KlingHandler().lookup(REQUEST, submit_context(ScriptedTransport([answer])))


def test_the_submit_is_what_the_vendor_wants() -> None:
    """Trap: the length is a text; our key goes along, so that a lost job is found."""
    call = call_of(REQUEST)
    assert (call.method, call.url) == ("POST", f"{HOME}/text2video")
    assert call.headers["Authorization"] == "Bearer secret-of-tests"
    assert call.json == {
        "model_name": "kling-v3",
        "prompt": "waves at night",
        "duration": "5",
        "external_task_id": "key-1",
    }


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"aspect_ratio": "9:16"}, "text2video", {"aspect_ratio": "9:16"}),
        ({"first_frame": A}, "image2video", {"image": A}),
        ({"first_frame": A, "last_frame": B}, "image2video", {"image": A, "image_tail": B}),
        (
            {"reference_images": (A, B)},
            "multi-image2video",
            {"image_list": [{"image": A}, {"image": B}]},
        ),
        (
            {"model": "kling-v3-omni", "first_frame": A, "last_frame": B},
            "omni-video",
            {
                "model_name": "kling-v3-omni",
                "image_list": [
                    {"image_url": A, "type": "first_frame"},
                    {"image_url": B, "type": "end_frame"},
                ],
            },
        ),
        ({"model": "kling-video-o1"}, "omni-video", {"model_name": "kling-video-o1"}),
        (
            {
                "source_video": C,
                "reference_images": (A,),
                "options": {"refer_type": "base", "keep_original_sound": False},
            },
            "omni-video",
            {
                "model_name": "kling-video-o1",
                "image_list": [{"image_url": A}],
                "video_list": [{"video_url": C, "refer_type": "base", "keep_original_sound": "no"}],
            },
        ),
        (
            {"source_video": C, "options": {"keep_original_sound": True}},
            "omni-video",
            {
                "model_name": "kling-video-o1",
                "video_list": [{"video_url": C, "keep_original_sound": "yes"}],
            },
        ),
        (
            {"model": "kling-v2-6", "generate_audio": True, "watermark": False, "options": {"mode": "pro"}},
            "text2video",
            {
                "model_name": "kling-v2-6",
                "sound": "on",
                "watermark_info": {"enabled": False},
                "mode": "pro",
            },
        ),
        ({"generate_audio": False}, "text2video", {"sound": "off"}),
        (
            {"model": "kling-v1-6", "generate_audio": False, "options": {"cfg_scale": 0.5}},
            "text2video",
            {"model_name": "kling-v1-6", "cfg_scale": 0.5},
        ),
        (
            {"negative_prompt": "rain", "options": {"extra": {"camera_control": {"type": "simple"}}}},
            "text2video",
            {"negative_prompt": "rain", "camera_control": {"type": "simple"}},
        ),
        (
            {"model": "kling-video-o1", "options": {"extra": {"image_list": [{"image_url": A}]}}},
            "omni-video",
            {"model_name": "kling-video-o1", "image_list": [{"image_url": A}]},
        ),
    ],
    ids=[
        "text", "first", "first-last", "references", "omni-frames", "omni-text", "omni-edit", "omni-sound",
        "sound", "no-sound", "silent", "extra", "extra-media",
    ],
)  # fmt: skip
def test_each_kind_of_request_goes_to_its_own_path(
    changes: dict[str, Any], kind: str, said: dict[str, Any]
) -> None:
    """With the media under the names of that path."""
    call = call_of(VideoRequest(prompt="a", **changes))
    assert call.url == f"{HOME}/{kind}"
    assert call.json == {"prompt": "a", "external_task_id": "key-1", **said}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"resolution": "720P"}, "resolution"),
        ({"seed": 7}, "seed"),
        ({"fps": 24}, "fps"),
        ({"audio": C}, "audio"),
        ({"first_frame": A, "aspect_ratio": "16:9"}, "aspect_ratio"),
        ({"model": "kling-v3", "aspect_ratio": "4:3"}, "aspect_ratio"),
        ({"model": "kling-v2-1", "duration": 6}, "duration"),
        ({"model": "kling-v3", "duration": 16}, "duration"),
        ({"model": "kling-video-o1", "duration": 12}, "duration"),
        ({"model": "kling-v2-1", "generate_audio": True}, "generate_audio"),
        ({"model": "kling-v1-6", "reference_images": (A,) * 5}, "reference_images"),
        ({"model": "kling-v3", "source_video": C}, "mode"),
        ({"last_frame": A}, "last_frame"),
        ({"mode": VideoMode.FIRST_FRAME}, "mode"),
        ({"first_frame": "oss://bucket/a.png"}, "first_frame"),
        ({"options": {"refer_type": "base"}}, "refer_type"),
        ({"options": {"keep_original_sound": True}}, "keep_original_sound"),
        ({"options": {"mode": "best"}}, "mode"),
        ({"options": {"callback_url": "app.example"}}, "callback_url"),
    ],
)
def test_what_a_model_does_not_take_is_refused_before_it_is_stored(
    changes: dict[str, Any], field: str
) -> None:
    """A field that is dropped in silence is found out from the video, and from the bill."""
    with pytest.raises(ValidationError) as caught:
        KlingHandler().validate(VideoRequest(prompt="a", **changes))
    assert caught.value.field == field


def test_a_misspelt_option_is_told_its_name() -> None:
    """An option that nobody reads is found out from the video."""
    with pytest.raises(UnknownNameError, match="cfg_scale"):
        KlingHandler().validate(VideoRequest(prompt="a", options={"cfgscale": 0.5}))


def test_the_path_of_a_job_is_kept_with_it() -> None:
    """Trap: a job is known below its own path only, and at its own address."""
    there = REGIONS["china"]
    request = VideoRequest(prompt="a", first_frame=A)
    result = KlingHandler(there).submit(request, submit_context(ScriptedTransport([ACCEPTED])))
    assert result.query_params is not None
    transport = ScriptedTransport([shown("processing")])
    KlingHandler(earlier_base_urls=[there]).query(result.query_params, query_context(transport))
    assert transport.calls[0].url == f"{there}/v1/videos/image2video/T1"


@pytest.mark.parametrize(
    ("code", "status", "error", "name"),
    [
        (1002, 401, RejectedError, "account_refused"),
        (1100, 429, RejectedError, "account_refused"),
        (1101, 429, RejectedError, "account_refused"),
        (1102, 429, RejectedError, "account_refused"),
        (1304, 429, RejectedError, "account_refused"),
        (1103, 403, RejectedError, "1103"),
        (1201, 400, RejectedError, "1201"),
        (1203, 404, RejectedError, "1203"),
        (1301, 400, RejectedError, "1301"),
        (1302, 429, ThrottledError, None),
        (1303, 429, ThrottledError, None),
        (5000, 500, VendorError, "http_500"),
        (1102, 200, RejectedError, "account_refused"),
        (1303, 200, ThrottledError, None),
        (1301, 200, RejectedError, "1301"),
        (5001, 200, VendorError, "5001"),
    ],
)
def test_a_refused_submit_says_why(code: int, status: int, error: type[Exception], name: str | None) -> None:
    """Trap: 429 also says that the account is empty or the address not allowed, which no waiting helps."""
    with pytest.raises(error, match="why") as caught:
        submitted(refused(code, status))
    assert type(caught.value) is error
    assert name is None or getattr(caught.value, "code", None) == name


@pytest.mark.parametrize(
    ("answer", "delay"),
    [
        (reply({"code": 1302, "message": "m"}, 429, headers={"Retry-After": "7"}), timedelta(seconds=7)),
        (Reply(429, b"<html>slow down</html>"), None),
    ],
)
def test_a_throttle_keeps_its_delay(answer: Reply, delay: timedelta | None) -> None:
    """Whoever asks for patience, the vendor or somebody in between."""
    for step in (submitted, queried, looked_up):
        with pytest.raises(ThrottledError) as caught:
            step(answer)
        assert caught.value.delay == delay


@pytest.mark.parametrize(
    ("answer", "error", "name"),
    [
        (refused(1102, 429), VendorError, "account_refused"),
        (refused(1203, 404), JobNotFoundError, "not_found"),
        (refused(1203, 200), JobNotFoundError, "not_found"),
        (refused(1201, 200), VendorError, "1201"),
        (refused(1301, 200), VendorError, "1301"),
        (enveloped(None), VendorError, "unreadable_reply"),
    ],
)
def test_an_error_of_a_query_says_nothing_about_the_job(
    answer: Reply, error: type[HandlerError], name: str
) -> None:
    """Only a status does; the job is asked about again."""
    with pytest.raises(error) as caught:
        queried(answer)
    assert (type(caught.value), caught.value.code) == (error, name)


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("submitted", TaskStatus.SUBMITTED),
        ("processing", TaskStatus.RUNNING),
        ("failed", TaskStatus.FAILED),
        ("succeeded", TaskStatus.RUNNING),
    ],
)
def test_every_word_is_understood(word: str, status: TaskStatus) -> None:
    """Trap: the word for done is succeed, and any other spelling is none that the vendor has."""
    assert queried(shown(word)).status is status


def test_a_success_has_its_videos_and_its_usage() -> None:
    """Trap: numbers are texts, and a video of 5 seconds is 5.1 long."""
    videos = [
        {"id": "v1", "url": "https://files.example/1.mp4", "duration": "5.1"},
        {"id": 2, "url": "https://files.example/2.mp4", "watermark_url": "https://files.example/w.mp4"},
        {"id": "v3"},
    ]
    found = queried(
        shown("succeed", task_result={"videos": videos}, final_unit_deduction="1.5", created_at=1)
    )
    assert isinstance(found.result, VideoResponse)
    first, second = found.result.videos
    assert (first.url, first.duration, first.metadata) == ("https://files.example/1.mp4", 5.1, {"id": "v1"})
    assert second.metadata == {"id": "2", "watermark_url": "https://files.example/w.mp4"}
    assert found.usage == found.result.usage == {"second": 5, "unit": 2}
    assert found.result.metadata == {"created_at": 1, "final_unit_deduction": "1.5"}


@pytest.mark.parametrize("more", [{}, {"task_result": {}}, {"task_result": {"videos": []}}])
def test_a_success_without_a_video_failed(more: dict[str, Any]) -> None:
    """Waiting does not bring one."""
    error = queried(shown("succeed", **more)).error
    assert error is not None
    assert error.code == "no_result"


def test_a_failure_says_why() -> None:
    """In the vendor's words."""
    error = queried(shown("failed", task_status_msg="too dark")).error
    assert error is not None
    assert (error.code, error.message) == ("failed", "too dark")


def test_the_life_of_a_video_counts_from_its_completion() -> None:
    """30 days, by the vendor's own clock."""
    videos = {"videos": [{"url": "https://files.example/v.mp4"}]}
    data = {"task_status": "succeed", "task_result": videos, "updated_at": int(NOON.timestamp() * 1000)}
    dated = reply({"code": 0, "data": data}, headers={"Date": "Sun, 04 Jan 2026 12:00:00 GMT"})
    assert queried(dated).expires_after == timedelta(days=28)
    assert queried(reply({"code": 0, "data": data})).expires_after == timedelta(days=30)


# Lost submits.


def test_a_lost_job_is_looked_up_by_our_key_below_its_path() -> None:
    """The same query as ever, with our key in the place of the job's id."""
    transport = ScriptedTransport([shown("processing", task_info={"external_task_id": "key-1"})])
    request = VideoRequest(prompt="a", first_frame=A)
    found = KlingHandler().lookup(request, submit_context(transport))
    assert found.query_params is not None
    assert found.query_params == QueryParams("T1", base_url=REGIONS["international"], kind="image2video")
    (call,) = transport.calls
    assert (call.method, call.url) == ("GET", f"{HOME}/image2video/key-1")


@pytest.mark.parametrize("status", [200, 404])
def test_only_the_vendors_own_code_says_that_there_is_no_job(status: int) -> None:
    """It leads to a second submit."""
    assert looked_up(refused(1203, status)) == LookupResult.not_found()


@pytest.mark.parametrize(
    "answer",
    [
        refused(1202, 404),
        refused(1201, 200),
        enveloped(None),
        shown("processing", task_info={"external_task_id": "another"}),
        reply({"message": "no route"}, 404),
    ],
)
def test_any_other_reply_to_a_lookup_is_asked_for_again(answer: Reply) -> None:
    """Neither a job of somebody else's nor a missing page says anything."""
    with pytest.raises(VendorError):
        looked_up(answer)


@pytest.mark.parametrize("status", [200, 400])
def test_a_refused_duplicate_means_that_there_is_a_job(status: int) -> None:
    """Trap: it is no refusal of the task, and the job is looked up again."""
    with pytest.raises(VendorError) as caught:
        submitted(refused(1201, status, "external_task_id k already exists"))
    assert caught.value.code == "duplicate_key"


def test_a_wrong_key_is_a_refusal_like_any_other() -> None:
    """Only one that is there already is more."""
    with pytest.raises(RejectedError):
        submitted(refused(1201, 400, "external_task_id is too long"))


# Keys.


def account(**parts: str) -> Account:
    """Return an account with these parts and no others."""

    def secret(part: str) -> str:
        if part not in parts:
            raise UnknownNameError(f"no {part}", "account", "kling", ("kling",))
        return parts[part]

    return Account("kling", secret)


def context_of(transport: ScriptedTransport, owner: Account, **changes: Any) -> SubmitContext:
    """Return a context for a submit with an account."""
    return attrs.evolve(submit_context(transport), account=owner, **changes)


PAIR = account(access_key="ak-of-tests", secret_key=SECRET_KEY)


def test_a_pair_of_keys_signs_a_token_of_half_an_hour() -> None:
    """Trap: with a start in the past, since the vendor's clock may be behind ours."""
    transport = ScriptedTransport([ACCEPTED])
    before = int(time.time())
    KlingHandler().submit(REQUEST, context_of(transport, PAIR))
    scheme, _, token = transport.calls[0].headers["Authorization"].partition(" ")
    assert scheme == "Bearer"
    assert jwt.get_unverified_header(token) == {"alg": "HS256", "typ": "JWT"}
    claims = jwt.decode(token, SECRET_KEY, algorithms=["HS256"])
    assert claims["iss"] == "ak-of-tests"
    assert before + 1800 <= claims["exp"] <= time.time() + 1800
    assert claims["exp"] - claims["nbf"] == 1805


def test_a_token_is_kept_and_signed_anew_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One signature serves many calls, and none of them arrives with an old token."""
    signed = count(1)
    monkeypatch.setattr(kling, "sign_token", lambda *_: f"token-{next(signed)}")
    handler, transport = KlingHandler(), ScriptedTransport([ACCEPTED] * 4)
    for minutes in (0, 10, 29.5, 40):
        now = NOON + timedelta(minutes=minutes)
        handler.submit(REQUEST, context_of(transport, PAIR, now=now))
    sent = [call.headers["Authorization"] for call in transport.calls]
    assert sent == [f"Bearer token-{number}" for number in (1, 1, 2, 2)]


def test_a_kept_token_that_is_refused_is_signed_anew_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was submitted; when a fresh one is refused as well it is the keys, or the clock."""
    signed = count(1)
    monkeypatch.setattr(kling, "sign_token", lambda *_: f"token-{next(signed)}")
    handler = KlingHandler()
    transport = ScriptedTransport([ACCEPTED, refused(1004, 401), refused(1003, 401)])
    handler.submit(REQUEST, context_of(transport, PAIR))
    with pytest.raises(NotSentError) as caught:
        handler.submit(REQUEST, context_of(transport, PAIR))
    assert caught.value.code == "token_refused"
    with pytest.raises(RejectedError) as rejected:
        handler.submit(REQUEST, context_of(transport, PAIR))
    assert rejected.value.code == "account_refused"
    assert next(signed) == 3


def test_a_single_key_is_sent_as_it_is() -> None:
    """The newer kind of account, which counts where there are both."""
    for owner in (account(secret="one"), account(secret="one", access_key="a", secret_key="b")):
        transport = ScriptedTransport([ACCEPTED])
        KlingHandler().submit(REQUEST, context_of(transport, owner))
        assert transport.calls[0].headers["Authorization"] == "Bearer one"


def test_an_account_without_keys_is_told_so() -> None:
    """Another worker may have them."""
    with pytest.raises(UnknownNameError, match="secret"):
        KlingHandler().submit(REQUEST, context_of(ScriptedTransport([ACCEPTED]), account()))


def test_a_missing_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, and the message has the command."""
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(NotSentError, match=r"pip install 'coatcheck-video\[kling\]'"):
        KlingHandler().submit(REQUEST, context_of(ScriptedTransport([]), PAIR))


# Callbacks.


def test_callbacks_are_asked_for_with_the_tasks_id() -> None:
    """The vendor's call must find its task."""
    options = KlingOptions(callback_url="https://app.example/callbacks/{task_id}")
    body: Any = call_of(attrs.evolve(REQUEST, options=options)).json
    assert body["callback_url"] == "https://app.example/callbacks/task-1"


def test_a_callback_is_read_with_and_without_an_envelope() -> None:
    """It is a hint either way; one that names no job is none."""
    for body in (b'{"data": {"task_id": "T1"}}', b'{"task_id": "T1", "task_status": "succeed"}'):
        callback = Callback(body, received_at=NOON)
        assert KlingHandler().read_callback(callback, query_context()) == CallbackNote("T1")
    with pytest.raises(CallbackRefusedError):
        KlingHandler().read_callback(
            Callback(b'{"task_status": "succeed"}', received_at=NOON), query_context()
        )
