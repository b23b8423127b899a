"""``DashScopeHandler``: the protocol that Aliyun's video models share; a family of models adds its input.

Facts are from the agents-flex adapter (AF), recorded traffic of dashscope 2.0.2 (SDK) and the vendor's pages
(DOC); ``(1)`` marks what one weaker source says, ``(?)`` what is not sure:

- Model, key and host must be of one region (DOC). The host is kept with each job, so a job is asked about
    where it was submitted.
- ``X-DashScope-Async: enable`` on the submit only; without it 403 (DOC). ``X-DashScope-WorkSpace`` is
    optional; ``X-DashScope-OssResourceResolve`` goes with ``oss://`` media.
- An error is a non-empty ``code`` at the top, usually with 4xx, but also with 200 (AF, DOC).
- Words: AF, SDK, DOC. UNKNOWN with 200 means that the id is not known or older than 24 h: what others say
    with 404, and so an end when it stays, which AF never sees as one.
- Cancel stops a PENDING job only. Job and video are kept for 24 h. Queries: 20 a second per account, one
    every 15 s is recommended (DOC).
- Usage has the seconds under one of several names, by the model; edited videos count input and output.
- No idempotency key. Times carry no zone (?).
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from attrs import frozen

from coatcheck.accounts import part_of
from coatcheck.errors import ValidationError
from coatcheck.http import Call, Reply, Trouble, VendorOptions, path
from coatcheck.http.read import error_of, id_of, members, members_if_any, shortened, text_of, within
from coatcheck.http.vendor import CANCELED, FAILED, REFUSALS, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import (
    Account,
    CancelResult,
    Limit,
    QueryContext,
    QueryParams,
    Rate,
    Side,
    SubmitContext,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck_video.handler import VideoHandler, VideoJob, counted, number_of, videos_of
from coatcheck_video.model import Video, VideoRequest

#: The addresses of the regions (DOC); workspaces have hosts of their own.
REGIONS: Mapping[str, str] = {
    "cn-beijing": "https://dashscope.aliyuncs.com/api/v1",
    "ap-southeast-1": "https://dashscope-intl.aliyuncs.com/api/v1",
    "us-east-1": "https://dashscope-us.aliyuncs.com/api/v1",
    "cn-hongkong": "https://cn-hongkong.dashscope.aliyuncs.com/api/v1",
}
_SIZE = re.compile(r"(\d{1,5})\*(\d{1,5})")
_PLACES = ("input", "parameters")


@frozen(kw_only=True, eq=False)
class DashScopeOptions(VendorOptions):
    """Base of the options: a wire name like ``parameters.shot_type`` says where in the body a value goes.

    ``extra`` is merged into the body: ``extra={"parameters": {"new": 1}}``.
    """

    def __attrs_post_init__(self) -> None:
        for place in _PLACES:
            if not isinstance(self.extra.get(place, {}), Mapping):
                raise ValidationError(
                    f"extra[{place!r}] must be a mapping of the vendor's own fields", "extra"
                )


class DashScopeHandler(VideoHandler):
    """Base of the handlers of Aliyun's video models; they share an account."""

    account = "dashscope"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("DASHSCOPE_API_KEY",)}
    base_url = REGIONS["cn-beijing"]
    base_url_env = ("DASHSCOPE_BASE_URL", "DASHSCOPE_HTTP_BASE_URL")
    schemes = ("http", "https", "oss")
    poll = PollPolicy.exponential(timedelta(seconds=15))
    result_life = timedelta(hours=24)
    default_limits = (Limit(account="dashscope", side=Side.QUERY, rate=Rate(20)),)
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "pending": SUBMITTED,
        "queued": SUBMITTED,
        "running": RUNNING,
        "processing": RUNNING,
        "suspended": RUNNING,
        "succeeded": SUCCEEDED,
        "success": SUCCEEDED,
        "failed": FAILED,
        "canceled": CANCELED,
        "cancelled": CANCELED,
    }
    #: By the part of the code before its first dot.
    troubles: ClassVar[Mapping[str, Trouble]] = {
        "Throttling": Trouble.BUSY,
        "InternalError": Trouble.UNSURE,
        "ServiceUnavailable": Trouble.UNSURE,
        "GatewayTimeout": Trouble.UNSURE,
        "InvalidApiKey": Trouble.ACCOUNT,
        "Arrearage": Trouble.ACCOUNT,
        #: The status, which stands in for a code.
        "UNKNOWN": Trouble.MISSING,
    }

    def trouble_of(self, code: str) -> Trouble | None:
        """Return what a code means: ``Throttling.RateQuota`` is a kind of ``Throttling``."""
        return super().trouble_of(code.partition(".")[0])

    def sign(self, call: Call, account: Account) -> Call:
        """Add the key, and the workspace where the account has one."""
        signed = super().sign(call, account)
        workspace = part_of(account, "workspace")
        return signed if workspace is None else signed.with_headers(X_DashScope_WorkSpace=workspace)

    # What a family of models defines.

    def submit_path(self, request: VideoRequest) -> str:
        """Return the path of the submit."""
        return "/services/aigc/video-generation/video-synthesis"

    def body_of(self, request: VideoRequest) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return ``input`` and ``parameters`` of a request; ``None`` in them is left out."""
        raise NotImplementedError(f"{type(self).__name__} must define body_of")

    # The common course.

    def submit_call(self, params: VideoRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        headers = {"X-DashScope-Async": "enable"}
        if any(url.lower().startswith("oss://") for _, url in params.media_given()):
            headers["X-DashScope-OssResourceResolve"] = "enable"
        body: dict[str, Any] = {"input": {}, "parameters": {}}
        for name, value in self.options(params).wire().items():
            place, _, inner = name.partition(".")
            if inner:
                body[place][inner] = value
            elif place in _PLACES:
                body[place].update(value)
            else:
                body[place] = value
        for place, own in zip(_PLACES, self.body_of(params), strict=True):
            body[place].update((name, value) for name, value in own.items() if value is not None)
        if not body["parameters"]:
            del body["parameters"]
        body["model"] = self.model(params)
        return Call("POST", self.submit_path(params), headers=headers, json=body, accept=REFUSALS)

    def read_submitted(self, reply: Reply, request: VideoRequest) -> VideoJob:
        """Read the reply to the submit."""
        if not reply.is_success:
            return self.refused(reply)
        body = members(reply)
        output = body.get("output")
        if body.get("code"):
            return self.judge(*error_of(body), creating=True)
        word = within(output, "task_status")
        return VideoJob(
            status=SUBMITTED if word is None else self.status_of(word),
            id=id_of(output, "task_id"),
            word=None if word is None else str(word),
            code=text_of(output, "code", "error_code") or "failed",
            message=shortened(text_of(output, "message", "error_message")),
        )

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("tasks", params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> VideoJob:
        """Read the reply to the query."""
        body = members(reply)
        output = body.get("output")
        word = within(output, "task_status")
        is_unknown = isinstance(word, str) and word.strip().upper() == "UNKNOWN"
        if is_unknown:
            # An end when it stays: after three in a row the job counts as lost, be it too old or never there.
            return self.judge("UNKNOWN", "the vendor does not know the task", creating=False)
        if body.get("code") and (word is None or self.status_of(word) is not FAILED):
            return self.judge(*error_of(body), creating=False)
        status = self.status_of(word)
        code = text_of(output, "code", "error_code") or text_of(body, "code")
        message = text_of(output, "message", "error_message") or text_of(body, "message")
        usage = body.get("usage")
        return VideoJob(
            status=status,
            word=str(word),
            code=code or "failed",
            message=shortened(message),
            retryable=code is not None and self.is_retryable(code),
            videos=_videos(output, usage) if status is SUCCEEDED else (),
            usage=_usage(usage),
            metadata=_facts(body),
        )

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the cancel; only a job that waits is stopped."""
        return Call("POST", path("tasks", params.external_task_id, "cancel"), accept=(400, 403, 409))

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to the cancel; whether the job has stopped is seen by the next query."""
        body = members_if_any(reply)
        if reply.is_success and not body.get("code"):
            return CancelResult.accepted()
        code, message = error_of(body)
        return CancelResult.refused(
            f"only a waiting job is stopped: {code or reply.status} {message}".strip()
        )


def _usage(usage: object) -> dict[str, int]:
    seconds = next((value for name in ("duration", "video_duration") if (value := within(usage, name))), None)
    if seconds is None:
        made, read = (number_of(within(usage, f"{side}_video_duration")) for side in ("output", "input"))
        # What is billed of an edited video is both.
        seconds = None if made is None else made + (read or 0)
    return counted(second=seconds, video=within(usage, "video_count"))


def _videos(output: object, usage: object) -> tuple[Video, ...]:
    results = within(output, "results")
    found = [within(output, "video_url")]
    for result in results if isinstance(results, list) else ():
        found += [within(result, "video_url"), within(result, "url")]
    size = _SIZE.fullmatch(text_of(usage, "size") or "")
    return videos_of(
        found,
        cover_url=text_of(output, "cover_url", "first_frame_url"),
        duration=number_of(within(usage, "output_video_duration")) or number_of(within(usage, "duration")),
        width=int(size[1]) if size else None,
        height=int(size[2]) if size else None,
    )


def _facts(body: Mapping[str, Any]) -> dict[str, Any]:
    output, usage = body.get("output"), body.get("usage")
    names = ("submit_time", "scheduled_time", "end_time", "orig_prompt", "actual_prompt")
    facts = {"request_id": text_of(body, "request_id")} | {name: text_of(output, name) for name in names}
    facts |= {name: text_of(usage, name) for name in ("size", "ratio", "video_ratio")}
    facts["SR"] = id_of(usage, "SR")
    return {name: value for name, value in facts.items() if value is not None}
