"""``video:volcengine``: the Seedance models of Ark in China, and of BytePlus ModelArk elsewhere.

Facts are from the agents-flex adapter (AF), recorded traffic of volcengine-ark-runtime 5.0.54 and of
byteplus-python-sdk-v2 3.0.63 (SDK), the vendors' pages (DOC) and calls of third parties (3P); ``(1)`` marks
what one weaker source says, ``(?)`` what is not sure. Where AF differs from the vendor, the vendor holds:

- Key, model and address are of one region (DOC). The address is kept with each job.
- Every medium has a role; AF sends videos and audio without, which the vendor refuses (3P). Frames and
    references exclude each other; an audio alone is no reference for 2.0, and is one for 2.5 (1).
- A field that the model does not know is a 400 (3P). ``fps`` is AF's alone; there is no negative prompt.
- ``generate_audio`` is on by default on Ark's page and off on BytePlus's (?), so it is always sent to models
    that have sound, as the page of the address says.
- Refusals are ``{"error": {"code", "message", "param", "type"}}`` with 4xx; a job that failed has the same
    ``error`` with 200 (AF, SDK). Codes but for the sensitive content ones are (1).
- ``expired`` ends a job that waited longer than ``execution_expires_after`` (DOC); for AF it never ends.
- Numbers in ``usage`` and ``duration`` may be texts (3P).
- DELETE cancels a queued job, and deletes the record of one that has ended; a running one is an error (DOC).
- The video is kept for 24 h from its completion, and another query gives the same link (3P); the record for
    7 days, of a canceled job for 24 h.
- No idempotency key. The list of jobs has nothing of ours in it and leaves some of them out, so it tells
    neither that a lost submit made a job nor that it did not: there is no lookup.
- Callbacks are the job as a query shows it, unsigned (DOC).
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

from attrs import evolve, frozen

from coatcheck.errors import ValidationError
from coatcheck.http import (
    Call,
    Callback,
    CallbackNote,
    Follow,
    Reply,
    Trouble,
    VendorOptions,
    callback_url,
    path,
)
from coatcheck.http.options import choice, switch, text, whole
from coatcheck.http.read import error_of, id_of, members, members_if_any, text_of, within
from coatcheck.http.vendor import CANCELED, FAILED, REFUSALS, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import CancelResult, QueryContext, QueryParams, SubmitContext, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck_video.capability import VideoModel
from coatcheck_video.handler import VideoHandler, VideoJob, counted, life_left, number_of, videos_of
from coatcheck_video.model import Video, VideoMode, VideoRequest

#: The addresses that make videos (DOC).
REGIONS: Mapping[str, str] = {
    "cn-beijing": "https://ark.cn-beijing.volces.com/api/v3",
    "ap-southeast": "https://ark.ap-southeast.bytepluses.com/api/v3",
}
#: How long a video is kept after its completion, however often its link is asked for (DOC, 3P).
LIFE = timedelta(hours=24)
_BYTEPLUS = ".bytepluses.com"
_TASKS = "/contents/generations/tasks"
_VERSION = re.compile(r"seedance-(\d+)-")
_FACTS = (
    "model", "created_at", "updated_at", "seed", "resolution", "ratio", "duration", "frames",
    "framespersecond", "generate_audio", "service_tier", "output_format", "draft", "draft_task_id",
    "revised_prompt",
)  # fmt: skip

_FRAMES = (VideoMode.TEXT, VideoMode.FIRST_FRAME, VideoMode.FIRST_LAST_FRAME)
_REFERENCES = (VideoMode.REFERENCE_IMAGES, VideoMode.OMNI, VideoMode.VIDEO_TO_VIDEO)
_V1_0 = VideoModel(
    modes=(VideoMode.TEXT, VideoMode.FIRST_FRAME),
    resolutions=("480p", "720p", "1080p"),
    ratios=("16:9", "4:3", "1:1", "3:4", "9:16", "21:9", "adaptive"),
    durations=tuple(range(2, 13)),
    sound=(False,),
    audio=False,
)
_V1_5 = evolve(_V1_0, modes=_FRAMES, durations=(-1, *range(4, 13)), sound=(True, False))
_V2_0 = evolve(
    _V1_5,
    modes=(*_FRAMES, *_REFERENCES),
    resolutions=("480p", "720p", "1080p", "4k"),
    durations=(-1, *range(4, 16)),
    audio=None,
    references=9,
)
_V2_0_SMALL = evolve(_V2_0, resolutions=("480p", "720p"))


@frozen(kw_only=True, eq=False)
class VolcengineOptions(VendorOptions):
    """What ``VideoRequest.options`` may hold for ``video:volcengine``; a model refuses what it does not have.

    ``extra`` is merged into the body, for instance ``tools``.
    """

    #: The length in frames instead of seconds; 1.0 only: 25 + 4n, from 29 to 289.
    frames: int | None = whole(29, 289)
    #: Whether the last frame is given as a picture, too: ``last_frame_url`` in the video's metadata.
    return_last_frame: bool | None = switch()
    #: "flex" is cheaper and later; 1.x only.
    service_tier: str | None = choice("default", "flex")
    #: After how many seconds a job that still waits expires; the vendor's default is 48 hours.
    execution_expires_after: int | None = whole(3600, 259_200)
    #: A hash that stands for your end user.
    safety_identifier: str | None = text(64)
    #: A cheap preview; 1.5-pro only.
    draft: bool | None = switch()
    #: Higher goes first; 2.x only.
    priority: int | None = whole(0, 9)
    #: 2.5 only.
    output_format: str | None = choice("mp4", "mov")
    #: Where the vendor tells of changes, with ``{task_id}`` where the task's id belongs.
    callback_url: str | None = text(2000)


class VolcengineHandler(VideoHandler):
    """Makes videos with Seedance models; media are http, https and asset URLs."""

    key = "video:volcengine"
    account = "volcengine"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("ARK_API_KEY",)}
    base_url = REGIONS["cn-beijing"]
    options_type = VolcengineOptions
    schemes = ("http", "https", "asset")
    default_model = "doubao-seedance-2-0-260128"
    poll = PollPolicy.exponential(timedelta(seconds=10))
    result_life = LIFE
    takes = frozenset({
        "first_frame", "last_frame", "reference_images", "source_video", "audio", "duration", "resolution",
        "aspect_ratio", "seed", "watermark", "camera_fixed", "generate_audio",
    })  # fmt: skip
    models: ClassVar[Mapping[str, VideoModel]] = {
        "doubao-seedance-2-0-260128": _V2_0,
        "doubao-seedance-1-5-pro-251215": _V1_5,
        "doubao-seedance-1-0-pro-250528": _V1_0,
        "doubao-seedance-1-0-lite-t2v-250428": evolve(_V1_0, modes=(VideoMode.TEXT,)),
        # BytePlus.
        "dreamina-seedance-2-5-260628": evolve(
            _V2_0, modes=None, resolutions=("480p", "720p", "1080p"), durations=(-1, *range(4, 31))
        ),
        "dreamina-seedance-2-0-260128": _V2_0,
        "dreamina-seedance-2-0-fast-260128": _V2_0_SMALL,
        "dreamina-seedance-2-0-mini-260615": _V2_0_SMALL,
        "seedance-1-5-pro-251215": _V1_5,
        "seedance-1-0-pro-250528": _V1_0,
        "seedance-1-0-pro-fast-251015": _V1_0,
    }
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "queued": SUBMITTED,
        "pending": SUBMITTED,
        "running": RUNNING,
        "processing": RUNNING,
        "succeeded": SUCCEEDED,
        "success": SUCCEEDED,
        "failed": FAILED,
        "expired": FAILED,
        "cancelled": CANCELED,
        "canceled": CANCELED,
    }
    #: By the part of the code before its first dot.
    troubles: ClassVar[Mapping[str, Trouble]] = {
        "RateLimitExceeded": Trouble.BUSY,
        "ServerOverloaded": Trouble.BUSY,
        "QuotaExceeded": Trouble.BUSY,
        "InternalServiceError": Trouble.UNSURE,
        "AuthenticationError": Trouble.ACCOUNT,
        "AccountOverdueError": Trouble.ACCOUNT,
        #: The status, which stands in for a code: another job may find its turn.
        "expired": Trouble.FINAL_RETRYABLE,
    }

    def trouble_of(self, code: str) -> Trouble | None:
        """Return what a code means: ``RateLimitExceeded.EndpointRPMExceeded`` is a ``RateLimitExceeded``."""
        return super().trouble_of(code.partition(".")[0])

    def model(self, request: VideoRequest) -> str | None:
        """Return the model to name; BytePlus has its own default."""
        if request.model is None and self._is_byteplus:
            return "dreamina-seedance-2-0-260128"
        return super().model(request)

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make; see ``VideoHandler.validate``."""
        super().validate(params)
        model, options = self.model(params) or "", self.options(params)
        has_references = bool(params.reference_images) or params.source_video is not None
        version = _VERSION.search(model)
        if params.first_frame is not None and (has_references or params.audio is not None):
            raise ValidationError(
                "frames and references exclude each other: a first_frame goes with no reference_images, "
                "source_video or audio; leave one or the other out",
                "first_frame",
            )
        modes = self.capability(params).modes
        is_alone = params.audio is not None and not has_references
        if is_alone and modes is not None and VideoMode.AUDIO_DRIVEN not in modes:
            raise ValidationError(
                f"{model} takes an audio beside reference_images or a source_video only; add one, or leave "
                "the audio out",
                "audio",
            )
        if params.camera_fixed is not None and (has_references or (version and version[1] == "2")):
            raise ValidationError(
                "camera_fixed is for 1.x models without references; leave it out", "camera_fixed"
            )
        frames = options.get("frames")
        if frames is not None and ((frames - 25) % 4 or params.duration is not None):
            raise ValidationError(
                f"frames must be 25 + 4n, in place of a duration; found {frames} and {params.duration} s",
                "frames",
            )

    def submit_call(self, params: VideoRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        capability, options = self.capability(params), self.options(params)
        body = self.fields(
            params,
            model=self.model(params),
            content=_content(params),
            resolution=capability.spelled(params.resolution),
            ratio=params.aspect_ratio,
            duration=params.duration,
            seed=params.seed,
            watermark=params.watermark,
            camera_fixed=params.camera_fixed,
            generate_audio=self._sound(params),
            callback_url=callback_url(options.get("callback_url"), self.key, context.task_id),
        )
        return Call("POST", _TASKS, json=body, accept=REFUSALS)

    def read_submitted(self, reply: Reply, request: VideoRequest) -> VideoJob:
        """Read the reply to the submit, which has an id and no status."""
        if not reply.is_success:
            return self.refused(reply)
        body = members(reply)
        job_id = id_of(body, "id")
        if job_id is None and body.get("error"):
            return self.judge(*error_of(body), creating=True)
        return VideoJob(status=SUBMITTED, id=job_id)

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", _TASKS + path(params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> VideoJob:
        """Read the reply to the query."""
        body = members(reply)
        word = body.get("status")
        code, message = error_of(body)
        if word is None and body.get("error"):
            return self.judge(code, message, creating=False)
        status = self.status_of(word)
        code = code or str(word).lower()
        seconds = number_of(body.get("duration"))
        return VideoJob(
            status=status,
            word=str(word),
            code=code,
            message=message,
            retryable=self.is_retryable(code),
            videos=_videos(body.get("content"), seconds),
            usage=counted(token=_tokens(body.get("usage")), second=seconds),
            expires_after=life_left(LIFE, body.get("updated_at"), reply),
            metadata={
                name: body.get(name) for name in _FACTS if isinstance(body.get(name), str | int | float)
            },
        )

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the look before the cancel: the same call would delete the record of a finished job."""
        return self.query_call(params, context)

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult | Follow:
        """Stop a job that waits; a job that runs goes on."""
        word = members(reply).get("status")
        status = self.status_of(word)
        if status is SUBMITTED:
            # The one follow-up that changes something: it may be repeated, since it is preceded by a look.
            call = Call("DELETE", _TASKS + path(params.external_task_id), accept=(*REFUSALS, 409))
            return Follow(call, self._read_deleted)
        if status is RUNNING:
            return CancelResult.refused(f"only a waiting job is stopped, and this one is {word}")
        return self.read_stopped(word)

    def _read_deleted(self, reply: Reply) -> CancelResult:
        """Read the reply to the cancel, which does not say what became of the job: the next query does."""
        if reply.is_success:
            return CancelResult.accepted()
        code, message = error_of(members_if_any(reply))
        return CancelResult.refused(
            f"only a waiting job is stopped: {code or reply.status} {message}".strip()
        )

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Read which job a callback is about; the vendor does not sign them."""
        return callback.note("id")

    @property
    def _is_byteplus(self) -> bool:
        return (urlsplit(self.base_url).hostname or "").endswith(_BYTEPLUS)

    def _sound(self, request: VideoRequest) -> bool | None:
        """Return what to say about sound, which is nothing to a model that is known to be silent."""
        sound = self.capability(request).sound
        if sound is None:
            return request.generate_audio
        if True not in sound:
            return None
        return not self._is_byteplus if request.generate_audio is None else request.generate_audio


def _content(request: VideoRequest) -> list[dict[str, Any]]:
    found = [
        ("image_url", request.first_frame, "first_frame"),
        ("image_url", request.last_frame, "last_frame"),
        *(("image_url", url, "reference_image") for url in request.reference_images),
        ("video_url", request.source_video, "reference_video"),
        ("audio_url", request.audio, "reference_audio"),
    ]
    content: list[dict[str, Any]] = []
    if request.prompt is not None:
        content.append({"type": "text", "text": request.prompt})
    content += [
        {"type": kind, kind: {"url": url}, "role": role} for kind, url, role in found if url is not None
    ]
    return content


def _tokens(usage: object) -> object:
    total = within(usage, "total_tokens")
    return within(usage, "completion_tokens") if total is None else total


def _videos(content: object, seconds: float | None) -> tuple[Video, ...]:
    listed = within(content, "videos")
    found = [within(content, "video_url"), within(content, "file_url")]
    for one in listed if isinstance(listed, list) else ():
        found += [within(one, "url"), within(one, "video_url")]
    last = text_of(content, "last_frame_url")
    return videos_of(
        found,
        cover_url=text_of(content, "poster_url"),
        duration=seconds,
        metadata={} if last is None else {"last_frame_url": last},
    )
