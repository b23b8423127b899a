"""``video:fal``: models of many makers in the queue of fal.

Facts are from recorded traffic of fal-client 1.0.3 (SDK), the vendor's pages (DOC) and other clients (3P);
``(1)`` marks what one weaker source says, ``(?)`` what is not sure:

- Submit: POST to the model's path, with its inputs as the body and ``fal_webhook`` in the query; priority,
    timeout of the start and hint of a runner are headers (SDK).
- The reply has three addresses, for status, result and cancel (SDK, DOC). They lack what follows the first
    two parts of the model's path, so they are kept and not made again.
- Status: 202 while the job waits or runs, 200 when it is done (DOC). ``COMPLETED`` means finished: ``error``
    may be set, and the result may be an error with 4xx or 5xx and a ``detail`` (DOC). After a cancel it is
    taken for canceled where ``error_type`` says so (?). A result that is asked for too early is 400 "Request
    is still in progress".
- ``X-Fal-Retryable`` (older: ``X-Fal-Needs-Retry``), ``X-Fal-Error-Type``; 504 with
    ``X-Fal-Request-Timeout-Type`` is the timeout that the request set (DOC). The queue runs a job again whose
    runner failed; 502 and 503 come from what stands before it (SDK).
- Cancel: 202 ``CANCELLATION_REQUESTED``, 400 ``ALREADY_COMPLETED``, 404 ``NOT_FOUND``; a running job may
    finish all the same (DOC).
- 403 may be an empty balance (1). The life of the media is a setting of the account (?). No idempotency key,
    no list.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, ClassVar
from urllib.parse import urlsplit

from attrs import frozen

from coatcheck.accounts import part_of
from coatcheck.errors import HandlerError, UnknownNameError, ValidationError, VendorError
from coatcheck.http import Call, Callback, CallbackNote, Follow, Reply, VendorOptions, callback_url, path
from coatcheck.http.options import choice, text, whole
from coatcheck.http.read import id_of, members, members_if_any, shortened, text_of, whole_of, within
from coatcheck.http.vendor import CANCELED, FAILED, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import (
    Account,
    CancelResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck_video.callbacks.fal import FalKeys
from coatcheck_video.handler import VideoJob, counted, number_of, videos_of
from coatcheck_video.hosted import HostedHandler, HostedOptions
from coatcheck_video.model import Video, VideoRequest

_MODEL = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)+", re.ASCII)
#: What a result may be that is the failure of its job; all other errors say nothing about it.
_FAILURES = (
    *(status for status in range(400, 500) if status not in (401, 402, 403, 404, 408, 409, 410, 425, 429)),
    500,
    504,
)


@frozen(kw_only=True, eq=False)
class FalOptions(HostedOptions):
    """What ``VideoRequest.options`` may hold for ``video:fal``; ``extra`` holds inputs of the model."""

    #: How the duration is written: "5", 5 or "5s". Most models want a text, the default.
    duration_as: str | None = choice("text", "number", "seconds")
    #: The place in the queue.
    priority: str | None = choice("normal", "low")
    #: Seconds within which the job has to start, or it fails.
    start_timeout: int | None = whole(2, 86_400)
    #: Jobs with the same hint go to the same runner.
    runner_hint: str | None = text(200)


class FalHandler(HostedHandler):
    """Makes videos with models at fal, named by their path like ``"owner/model/text-to-video"``."""

    key = "video:fal"
    account = "fal"
    account_env: Mapping[str, tuple[str, ...]] = {
        "secret": ("FAL_KEY",),
        "key_id": ("FAL_KEY_ID",),
        "key_secret": ("FAL_KEY_SECRET",),
    }
    base_url = "https://queue.fal.run"
    options_type = FalOptions
    poll = PollPolicy.exponential(timedelta(seconds=5))
    names: ClassVar[Mapping[str, str]] = {
        "prompt": "prompt",
        "negative_prompt": "negative_prompt",
        "first_frame": "image_url",
        "last_frame": "end_image_url",
        "source_video": "video_url",
        "duration": "duration",
        "resolution": "resolution",
        "aspect_ratio": "aspect_ratio",
        "seed": "seed",
        "generate_audio": "generate_audio",
    }
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "in_queue": SUBMITTED,
        "in_progress": RUNNING,
        # What it came to is in the result.
        "completed": SUCCEEDED,
    }

    def sign(self, call: Call, account: Account) -> Call:
        """Add the account's ``secret``, or its ``key_id`` and ``key_secret``, as a key."""
        try:
            key = account.secret()
        except UnknownNameError:
            key_id, key_secret = part_of(account, "key_id"), part_of(account, "key_secret")
            if key_id is None or key_secret is None:
                raise
            key = f"{key_id}:{key_secret}"
        return call.with_headers(Authorization=f"Key {key}")

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make; see ``HostedHandler.validate``."""
        super().validate(params)
        model = self.model(params)
        if not _MODEL.fullmatch(model or ""):
            raise ValidationError(
                f'{self.key} must be told the path of a model, like "owner/model/text-to-video"; '
                f"found {model!r}",
                "model",
            )

    def said(self, name: str, value: Any, options: VendorOptions) -> Any:
        """Return a field's value as models want it: a duration as the option says."""
        if name != "duration":
            return value
        match options.get("duration_as"):
            case "number":
                return value
            case "seconds":
                return f"{value}s"
        return str(value)

    def submit_call(self, params: VideoRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        options = self.options(params)
        headers = {
            "X-Fal-Queue-Priority": options.get("priority"),
            "X-Fal-Request-Timeout": options.get("start_timeout"),
            "X-Fal-Runner-Hint": options.get("runner_hint"),
        }
        return Call(
            "POST",
            path(*(self.model(params) or "").split("/")),
            headers={name: str(value) for name, value in headers.items() if value is not None},
            query={"fal_webhook": callback_url(options.get("callback_url"), self.key, context.task_id)},
            json=self.input_of(params),
            accept=(400, 403, 404, 422),
        )

    def read_submitted(self, reply: Reply, request: VideoRequest) -> VideoJob:
        """Read the reply to the submit, and keep where its job is asked about."""
        if not reply.is_success:
            return self.judge(*_error(reply), creating=True)
        body = members(reply)
        job_id = id_of(body, "request_id")
        word = text_of(body, "status") or "IN_QUEUE"
        # A job whose place is not named is where fal's own client would look for it.
        place = self.base_url + path(*(self.model(request) or "").split("/")[:2], "requests", job_id or "-")
        urls = {"status_url": f"{place}/status", "response_url": place, "cancel_url": f"{place}/cancel"}
        return VideoJob(
            # Even a job that is finished already has to be asked what it came to.
            status=SUBMITTED if self.status_of(word) is SUBMITTED else RUNNING,
            id=job_id,
            word=word,
            params={name: self._at_home(text_of(body, name)) or url for name, url in urls.items()},
        )

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query, at the address that the submit was answered with."""
        return Call("GET", self._place(params, "status_url"))

    def read_job(self, reply: Reply, params: QueryParams) -> VideoJob | Follow:
        """Read the reply to the query; the result of a finished job follows."""
        body = members(reply)
        word = body.get("status")
        status = self.status_of(word)
        if status is not SUCCEEDED:
            return VideoJob(status=status, word=str(word))
        kind = text_of(body, "error_type")
        seconds = number_of(within(body, "metrics", "inference_time"))
        if kind is not None or body.get("error"):
            return VideoJob(
                status=_end_of(kind or ""),
                word=str(word),
                code=kind or "failed",
                message=shortened(body.get("error")),
                retryable=_is_retryable(reply),
            )
        call = Call("GET", self._place(params, "response_url"), accept=_FAILURES)
        return Follow(call, partial(self._read_result, word=str(word), seconds=seconds))

    def _read_result(self, reply: Reply, *, word: str, seconds: float | None) -> QueryResult | Follow:
        """Read the result of a job that is finished, which may be that it failed."""
        if reply.is_success:
            output = members(reply)
            facts = {"seed": whole_of(output, "seed"), "inference_time": seconds}
            job = VideoJob(
                status=SUCCEEDED,
                word=word,
                videos=tuple(_videos(output)),
                usage=counted(inference_second=seconds),
                metadata=facts,
            )
            return self.answer(job)
        code, message = _error(reply)
        is_late = reply.status == 504 and reply.header("x-fal-request-timeout-type") == "user"
        if reply.status == 400 and "in progress" in message.lower():
            return self.answer(VideoJob(status=RUNNING, word=word))
        if not (is_late or "detail" in members_if_any(reply)):
            raise VendorError(
                f"{self.key}: expected the result of a finished job, found {reply.status}: {reply.excerpt}",
                code=f"http_{reply.status}",
                http_status=reply.status,
            )
        failed = VideoJob(
            status=_end_of(code),
            word=word,
            code="start_timeout" if is_late else code,
            message=message,
            retryable=_is_retryable(reply),
        )
        return self.answer(failed)

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the cancel."""
        return Call("PUT", self._place(params, "cancel_url"), accept=(400, 404))

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to the cancel; whether the job has stopped is seen by the next query."""
        if reply.is_success:
            return CancelResult.accepted()
        word = text_of(members_if_any(reply), "status") or reply.excerpt
        return CancelResult.refused(f"the vendor answered {reply.status}: {shortened(word, 200)}")

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote | Follow:
        """Verify a callback with the keys that fal publishes; a hint, whatever it says of the job."""
        return self._keys.read_callback(callback, context.now)

    @cached_property
    def _keys(self) -> FalKeys:
        return FalKeys()

    def _place(self, params: QueryParams, name: str) -> str:
        url = params.get(name)
        if not isinstance(url, str):
            raise HandlerError(
                f"{self.key}: expected {name} among the query params, found none; it stands in the vendor's "
                "reply to the submit",
                code="no_address",
            )
        return url

    def _at_home(self, place: str | None) -> str | None:
        """Return an address of the vendor's on our own origin: the key goes to no other.

        A gateway may answer with the address of what is behind it; the same path leads there through it.
        """
        try:
            parts, own = urlsplit(place or ""), urlsplit(self.base_url)
        except ValueError:
            return None
        if not parts.netloc:
            return None
        if (parts.scheme, parts.netloc.lower()) == (own.scheme, own.netloc.lower()):
            return place
        return f"{self.base_url}{parts.path}{f'?{parts.query}' if parts.query else ''}"


def _error(reply: Reply) -> tuple[str, str]:
    """Return code and message of an error: a text, or a list of what is wrong with which input."""
    detail = members_if_any(reply).get("detail")
    code = reply.header("x-fal-error-type")
    if not isinstance(detail, list):
        return code or f"http_{reply.status}", shortened(detail) or reply.excerpt
    told = []
    for one in detail:
        place = within(one, "loc")
        inputs = ".".join(map(str, place)) if isinstance(place, list) else ""
        told.append(f"{inputs}: {text_of(one, 'msg')}" if inputs else str(text_of(one, "msg")))
    return text_of(within(detail, 0), "type") or code or f"http_{reply.status}", shortened("; ".join(told))


def _end_of(code: str) -> TaskStatus:
    """Return how a job ended that finished with an error; nothing but its type tells of a cancel."""
    return CANCELED if "cancel" in code.lower() else FAILED


def _is_retryable(reply: Reply) -> bool:
    said = reply.header("x-fal-retryable") or reply.header("x-fal-needs-retry") or ""
    return said.strip().lower() in ("true", "1")


def _videos(output: Mapping[str, Any]) -> Iterator[Video]:
    several = output.get("videos")
    seen = set()
    for one in (output.get("video"), *(several if isinstance(several, list) else ())):
        facts = {name: within(one, name) for name in ("content_type", "file_name", "file_size")}
        known = {name: value for name, value in facts.items() if isinstance(value, str | int)}
        for video in videos_of([one if isinstance(one, str) else within(one, "url")], metadata=known):
            if video.url not in seen:
                seen.add(video.url)
                yield video
