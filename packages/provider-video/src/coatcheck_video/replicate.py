"""``video:replicate``: models of many makers at Replicate; official ones, versions, and deployments.

Facts are from recorded traffic of replicate 1.0.7 (SDK) and the vendor's pages (DOC); ``(1)`` marks what one
weaker source says:

- An official model has a path of its own, a version goes into the body, and a deployment has a path (SDK).
    The input differs by model; the names below are the usual ones (DOC).
- ``Prefer: wait=n`` holds the submit until the job ends or n seconds are over, so a reply to a submit may be
    an end (DOC). It is sent only where the option ``wait`` asks for it.
- Words: DOC. ``aborted`` is a deadline (``Cancel-After``) that came before the start: an end.
- ``output`` is a text, a list or an object (DOC). Input, output and logs are removed an hour after the end:
    ``data_removed``, and no output (DOC). Progress is in the logs only, as tqdm writes it (SDK).
- Errors are RFC 7807 (DOC). 429 says in its ``detail`` when the limit resets: "resets in ~30s" (DOC).
- Moderation is a failure whose text has a code like E005 (1).
- 600 submits a minute and 3000 other calls, 6 submits with low credit; a job runs for 30 minutes at most
    (DOC). No idempotency key; the list of jobs says nothing by which a lost one could be known.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from attrs import frozen

from coatcheck.errors import JobNotFoundError, ThrottledError, ValidationError
from coatcheck.http import Call, Callback, CallbackNote, Follow, Reply, callback_url, path
from coatcheck.http.options import text, whole
from coatcheck.http.read import id_of, members, members_if_any, shortened, text_of, within
from coatcheck.http.vendor import CANCELED, FAILED, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import (
    CancelResult,
    Limit,
    QueryContext,
    QueryParams,
    QueryResult,
    Rate,
    Side,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.policy import LONGEST_ASKED, PollPolicy
from coatcheck_video.callbacks import replicate as callbacks
from coatcheck_video.handler import VideoJob, counted, number_of, videos_of
from coatcheck_video.hosted import HostedHandler, HostedOptions
from coatcheck_video.model import VideoRequest

_MODEL = re.compile(r"(?P<owner>\w[\w.-]*)/(?P<name>\w[\w.-]*)(?::(?P<version>[\w.-]+))?", re.ASCII)
_RESETS = re.compile(r"resets in ~?(\d{1,6}(?:\.\d+)?) ?s")
_CODE = re.compile(r"\bE\d{3,4}\b")
_PROGRESS = re.compile(r"(\d{1,3})%\|")
#: How much of the logs is looked through for progress, in characters.
_TAIL = 2000
#: Refusals of a submit that say in their body what is wrong, and the throttle that says how long.
_REFUSALS = (400, 403, 404, 422, 429)
_PATIENCE = timedelta(seconds=60)


@frozen(kw_only=True, eq=False)
class ReplicateOptions(HostedOptions):
    """What ``VideoRequest.options`` may hold for ``video:replicate``; ``extra`` holds inputs of the model."""

    #: A deployment of your own, like "owner/name", in place of a model.
    deployment: str | None = text(200)
    #: Seconds that the submit may wait for the end of the job.
    wait: int | None = whole(1, 60)
    #: Seconds until the vendor cancels the job.
    cancel_after: int | None = whole(1, 86_400)


class ReplicateHandler(HostedHandler):
    """Makes videos with models at Replicate, named like ``"owner/name"`` or ``"owner/name:version"``."""

    key = "video:replicate"
    account = "replicate"
    account_env: Mapping[str, tuple[str, ...]] = {
        "secret": ("REPLICATE_API_TOKEN",),
        callbacks.SECRET_PART: ("REPLICATE_WEBHOOK_SECRET",),
    }
    base_url = "https://api.replicate.com"
    base_url_env = ("REPLICATE_BASE_URL",)
    options_type = ReplicateOptions
    poll = PollPolicy.exponential(timedelta(seconds=5))
    result_life = timedelta(hours=1)
    default_limits = (
        Limit(account="replicate", side=Side.SUBMIT, rate=Rate(600, timedelta(minutes=1))),
        Limit(account="replicate", side=Side.QUERY, rate=Rate(3000, timedelta(minutes=1))),
    )
    names: ClassVar[Mapping[str, str]] = {
        "prompt": "prompt",
        "negative_prompt": "negative_prompt",
        "first_frame": "image",
        "last_frame": "last_frame",
        "duration": "duration",
        "resolution": "resolution",
        "aspect_ratio": "aspect_ratio",
        "seed": "seed",
        "generate_audio": "generate_audio",
    }
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "starting": SUBMITTED,
        "processing": RUNNING,
        "succeeded": SUCCEEDED,
        "failed": FAILED,
        "canceled": CANCELED,
        "aborted": CANCELED,
    }

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make; see ``HostedHandler.validate``."""
        super().validate(params)
        self._target(params)

    def submit_call(self, params: VideoRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        options = self.options(params)
        place, body = self._target(params)
        body["input"] = self.input_of(params)
        url = callback_url(options.get("callback_url"), self.key, context.task_id)
        if url is not None:
            body |= {"webhook": url, "webhook_events_filter": ["completed"]}
        headers: dict[str, str] = {}
        wait, cancel_after = options.get("wait"), options.get("cancel_after")
        if wait is not None:
            headers["Prefer"] = f"wait={wait}"
        if cancel_after is not None:
            headers["Cancel-After"] = f"{cancel_after}s"
        patience = _PATIENCE if wait is None else timedelta(seconds=wait + 30)
        return Call("POST", place, headers=headers, json=body, accept=_REFUSALS, timeout=patience)

    def read_submit(self, reply: Reply, params: VideoRequest, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit, a throttle with what it says about its end."""
        self._check_patience(reply, context.now)
        return super().read_submit(reply, params, context)

    def read_submitted(self, reply: Reply, request: VideoRequest) -> VideoJob:
        """Read the reply to the submit; with the option ``wait`` it may be the end."""
        if not reply.is_success:
            message = text_of(members_if_any(reply), "detail", "title")
            return self.judge(f"http_{reply.status}", message or reply.excerpt, creating=True)
        return self._job(members(reply))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("v1", "predictions", params.external_task_id), accept=(429,))

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to the query, a throttle with what it says about its end."""
        self._check_patience(reply, context.now)
        return super().read_query(reply, params, context)

    def read_job(self, reply: Reply, params: QueryParams) -> VideoJob:
        """Read the reply to the query.

        Raises:
            JobNotFoundError: the job succeeded, and the vendor has removed what it made.
        """
        body = members(reply)
        job = self._job(body)
        if job.status is SUCCEEDED and body.get("data_removed") is True and not job.videos:
            raise JobNotFoundError(
                f"{self.key}: the job succeeded, and the vendor removed its output, as it does after an hour"
            )
        return job

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the cancel."""
        return Call("POST", path("v1", "predictions", params.external_task_id, "cancel"))

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to the cancel, which shows the job."""
        return self.read_stopped(members(reply).get("status"))

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Verify a callback with the account's ``webhook_secret``; a hint, whatever it says of the job."""
        return callbacks.read_callback(callback, context.account)

    def _target(self, request: VideoRequest) -> tuple[str, dict[str, Any]]:
        """Return where a request is submitted, and what the body says of its model."""
        deployment = self.options(request).get("deployment")
        if deployment is not None and request.model is not None:
            raise ValidationError(
                f"a deployment has a model of its own, found model {request.model!r} beside it; "
                "leave one of both out",
                "model",
            )
        name = deployment or self.model(request)
        found = _MODEL.fullmatch(name or "")
        if found is None or (deployment is not None and found["version"] is not None):
            raise ValidationError(
                f'{self.key} must be told a model like "owner/name" or "owner/name:version", or the option '
                f'deployment like "owner/name"; found {name!r}',
                "model" if deployment is None else "deployment",
            )
        if found["version"] is not None:
            return path("v1", "predictions"), {"version": found["version"]}
        kind = "models" if deployment is None else "deployments"
        return path("v1", kind, found["owner"], found["name"], "predictions"), {}

    def _job(self, body: Mapping[str, Any]) -> VideoJob:
        word = body.get("status")
        status = self.status_of(word)
        message = shortened(body.get("error"))
        code = _CODE.search(message)
        is_done = status is SUCCEEDED
        return VideoJob(
            status=status,
            id=id_of(body, "id"),
            word=str(word),
            progress=_progress(body.get("logs")) if status is RUNNING else None,
            code="failed" if code is None else code[0],
            message=message,
            videos=videos_of(_urls(body.get("output"))) if is_done else (),
            usage=counted(predict_second=within(body, "metrics", "predict_time")) if is_done else {},
            metadata=_facts(body),
        )

    def _check_patience(self, reply: Reply, now: datetime) -> None:
        if reply.status != 429:
            return
        said = _RESETS.search(text_of(members_if_any(reply), "detail") or "")
        asked = None if said is None else min(timedelta(seconds=float(said[1])), LONGEST_ASKED)
        raise ThrottledError(
            f"{self.key} was answered with 429: {reply.excerpt}; the vendor asks for patience",
            delay=reply.retry_after(now) or asked,
        )


def _urls(output: object) -> Iterator[object]:
    """Return all texts of an output, whatever its shape is."""
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list):
        for one in output:
            yield from _urls(one)
    else:
        yield output


def _progress(logs: object) -> float | None:
    found = _PROGRESS.findall(logs[-_TAIL:]) if isinstance(logs, str) else []
    return min(float(found[-1]), 100.0) if found else None


def _facts(body: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        name: text_of(body, name) for name in ("model", "version", "created_at", "started_at", "completed_at")
    }
    metrics = body.get("metrics")
    facts |= {name: number_of(within(metrics, name)) for name in ("predict_time", "total_time")}
    return {name: value for name, value in facts.items() if value is not None}
