"""``video:kling``: the Kling models at their own API, in China and elsewhere.

There is no official client. Facts are from clients and notes of third parties, which agree with a copy of the
vendor's pages (3P), and from excerpts of these (DOC); ``(1)`` marks what one weaker source says, ``(?)`` what
is not sure:

- Keys are of one address. A key is sent as it is; the older pair of an access key and a secret key signs a
    token (HS256, ``iss``, ``exp`` of 30 minutes, ``nbf`` 5 s ago).
- Each kind of video has a path, and a job is asked about below the path that made it, so the kind is kept
    with the task. A newer API with other paths exists (?) and is not used.
- ``duration`` is a text. Sound (``sound``) is for 2.6 and later, in the mode "pro". ``image2video`` has no
    ``aspect_ratio``; at most 4 reference images (1).
- Every reply is ``{"code", "message", "request_id", "data"}``; the code is 0 where all is well.
- 429 comes for rates and parallel jobs (1302, 1303), and also for arrears, used-up packs (1100 to 1102) and
    addresses that are not allowed (1304), which no waiting helps.
- The word for done is ``succeed``. Lengths and the deduction are texts.
- ``external_task_id`` is unique in an account, a second one is refused, and a job can be asked about by it:
    in the place of its id (?). Which code refuses a second one is not said, so its message is read (?).
- Files are deleted after 30 days. No cancel.
- Callbacks have the data of a job, in the envelope of a reply or without (?), and are unsigned.
"""

import re
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from attrs import evolve, frozen

from coatcheck.accounts import part_of
from coatcheck.errors import ConfigError, ThrottledError, ValidationError, VendorError
from coatcheck.http import (
    Call,
    Callback,
    CallbackNote,
    Follow,
    Reply,
    Token,
    Trouble,
    VendorOptions,
    callback_url,
    path,
)
from coatcheck.http.options import choice, number, switch, text
from coatcheck.http.read import error_of, id_of, members, members_if_any, shortened, text_of, within
from coatcheck.http.vendor import FAILED, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import (
    Account,
    LookupResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck_video.capability import VideoModel
from coatcheck_video.handler import VideoHandler, VideoJob, counted, life_left, number_of, videos_of
from coatcheck_video.model import Video, VideoMode, VideoRequest

#: The addresses (3P); another one for all, ``https://api.klingai.com``, is the older one.
REGIONS: Mapping[str, str] = {
    "international": "https://api-singapore.klingai.com",
    "china": "https://api-beijing.klingai.com",
}
#: How long the vendor keeps a video.
LIFE = timedelta(days=30)
#: How long a token holds that is signed with a pair of keys, and how much earlier it begins: clocks differ.
TOKEN_LIFE = timedelta(minutes=30)
_EARLIER = timedelta(seconds=5)
#: Refusals that have a code to be read.
_REFUSALS = (400, 403, 404, 429)
#: Options that stand beside the video.
_ABOUT_VIDEO = ("refer_type", "keep_original_sound")
_FINE = (None, "0")
_NOT_THERE = "1203"
_DUPLICATE = re.compile(
    r"(?=.*external[_ ]?task[_ ]?id).*(?:exist|duplicate|repeat|unique|already|已存在|重复)", re.IGNORECASE
)

_RATIOS = ("16:9", "9:16", "1:1")
_PLAIN = VideoModel(
    modes=(
        VideoMode.TEXT,
        VideoMode.FIRST_FRAME,
        VideoMode.FIRST_LAST_FRAME,
        VideoMode.REFERENCE_IMAGES,
    ),
    ratios=_RATIOS,
    durations=(5, 10),
    sound=(False,),
    references=4,
)
_OMNI = VideoModel(durations=tuple(range(3, 11)))


@frozen(kw_only=True, eq=False)
class KlingOptions(VendorOptions):
    """What ``VideoRequest.options`` may hold for ``video:kling``; which of them count depends on the model.

    ``extra`` is merged into the body, for instance ``camera_control``, ``voice_list`` or ``element_list``.
    """

    #: The quality, and with it the price; "4k" for 3.0.
    mode: str | None = choice("std", "pro", "4k")
    #: How closely the prompt is followed; for 1.x.
    cfg_scale: float | None = number(0, 1)
    #: Several shots in one video, and who makes them; for 3.0. ``multi_prompt`` goes into ``extra``.
    multi_shot: bool | None = switch()
    shot_type: str | None = choice("customize", "intelligence")
    #: Whether a ``source_video`` is one to learn from, or the one to change.
    refer_type: str | None = choice("feature", "base")
    #: Whether its sound is kept.
    keep_original_sound: bool | None = switch()
    #: Where the vendor tells of changes, with ``{task_id}`` where the task's id belongs.
    callback_url: str | None = text(2000)


class KlingHandler(VideoHandler):
    """Makes videos with Kling models; media are http and https URLs.

    A submit whose reply is lost is looked up by our own key, and the vendor refuses a second job for it.
    """

    key = "video:kling"
    account = "kling"
    account_env: Mapping[str, tuple[str, ...]] = {
        "secret": ("KLING_API_KEY", "KLINGAI_API_KEY"),
        "access_key": ("KLINGAI_ACCESS_KEY",),
        "secret_key": ("KLINGAI_SECRET_KEY",),
    }
    base_url = REGIONS["international"]
    options_type = KlingOptions
    default_models: ClassVar[Mapping[VideoMode, str]] = {
        VideoMode.OMNI: "kling-video-o1",
        VideoMode.VIDEO_TO_VIDEO: "kling-video-o1",
    }
    models: ClassVar[Mapping[str, VideoModel]] = {
        "kling-v1": _PLAIN,
        "kling-v1-5": _PLAIN,
        "kling-v1-6": _PLAIN,
        "kling-v2-master": _PLAIN,
        "kling-v2-1": _PLAIN,
        "kling-v2-1-master": _PLAIN,
        "kling-v2-5-turbo": _PLAIN,
        "kling-v2-6": evolve(_PLAIN, sound=None),
        "kling-v3": evolve(_PLAIN, sound=None, durations=tuple(range(3, 16))),
        "kling-video-o1": _OMNI,
        "kling-v3-omni": _OMNI,
    }
    takes = frozenset({
        "negative_prompt", "first_frame", "last_frame", "reference_images", "source_video", "duration",
        "aspect_ratio", "watermark", "generate_audio",
    })  # fmt: skip
    poll = PollPolicy.exponential(timedelta(seconds=10))
    result_life = LIFE
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "submitted": SUBMITTED,
        "processing": RUNNING,
        "succeed": SUCCEEDED,
        "failed": FAILED,
    }
    #: Codes that are not here refuse a submit, and leave a query to be repeated.
    troubles: ClassVar[Mapping[str, Trouble]] = {
        **dict.fromkeys(("1000", "1001", "1002", "1003", "1004"), Trouble.ACCOUNT),
        **dict.fromkeys(("1100", "1101", "1102"), Trouble.ACCOUNT),
        _NOT_THERE: Trouble.MISSING,
        "1302": Trouble.BUSY,
        "1303": Trouble.BUSY,
        "1304": Trouble.ACCOUNT,
        **dict.fromkeys(("5000", "5001", "5002"), Trouble.UNSURE),
    }

    # Credentials.

    def token_call(self, account: Account, last: Token | None) -> Token | None:
        """Return a token that is signed with the account's pair of keys; ``None`` where it has one key."""
        if not _has_pair(account):
            return None
        signed = sign_token(account.secret("access_key"), account.secret("secret_key"))
        return Token(signed, TOKEN_LIFE)

    def sign(self, call: Call, account: Account) -> Call:
        """Add the account's key, or the token that its pair of keys has signed."""
        secret = account.secret("token" if _has_pair(account) else "secret")
        return call.with_headers(Authorization=f"Bearer {secret}")

    # Requests.

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make; see ``VideoHandler.validate``."""
        super().validate(params)
        options = self.options(params)
        for name in _ABOUT_VIDEO:
            if name in options and params.source_video is None:
                raise ValidationError(
                    f"{name} says something about a source_video, found none; leave it out", name
                )

    def capability(self, request: VideoRequest) -> VideoModel:
        """Return what the model takes on the path that the request goes to."""
        known = super().capability(request)
        has_frames = request.first_frame is not None
        if has_frames and not _is_omni(self.model(request)) and not _is_mixed(request):
            return evolve(known, ratios=())
        return known

    def submit_call(self, params: VideoRequest, context: SubmitContext) -> Call:
        """Describe the submit, whose path depends on the media and the model."""
        kind, options = self._kind(params), self.options(params)
        said = self.fields(
            params,
            model_name=self.model(params),
            prompt=params.prompt,
            negative_prompt=params.negative_prompt,
            aspect_ratio=params.aspect_ratio,
            duration=None if params.duration is None else str(params.duration),
            sound=self._sound(params),
            watermark_info=None if params.watermark is None else {"enabled": params.watermark},
            callback_url=callback_url(options.get("callback_url"), self.key, context.task_id),
            external_task_id=context.idempotency_key,
            **_media(params, kind, options),
        )
        body = {name: value for name, value in said.items() if name not in _ABOUT_VIDEO}
        return Call("POST", path("v1", "videos", kind), json=body, accept=_REFUSALS)

    def _kind(self, request: VideoRequest) -> str:
        """Return the last segment of the path for a request."""
        match self.mode(request):
            case VideoMode.OMNI | VideoMode.VIDEO_TO_VIDEO:
                return "omni-video"
            case _ if _is_omni(self.model(request)):
                return "omni-video"
            case VideoMode.FIRST_FRAME | VideoMode.FIRST_LAST_FRAME:
                return "image2video"
            case VideoMode.REFERENCE_IMAGES:
                return "multi-image2video"
        return "text2video"

    def _sound(self, request: VideoRequest) -> str | None:
        """Return what to say about sound, which is nothing to a model that is known to be silent."""
        if request.generate_audio is None or self.capability(request).sound is not None:
            return None
        return "on" if request.generate_audio else "off"

    # Replies.

    def read_submit(self, reply: Reply, params: VideoRequest, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit; see ``VendorHandler.read_submit``."""
        self._check_patience(reply, context.now, creating=True)
        return super().read_submit(reply, params, context)

    def read_submitted(self, reply: Reply, request: VideoRequest) -> VideoJob:
        """Read the reply to the submit."""
        body = members(reply) if reply.is_success else members_if_any(reply)
        code, message = error_of(body)
        if not reply.is_success or code not in _FINE:
            if _DUPLICATE.search(message):
                raise VendorError(
                    f"{self.key}: the vendor has a job for our key already, whose id was never heard: "
                    f"{message}",
                    code="duplicate_key",
                )
            return self.judge(code or f"http_{reply.status}", message or reply.excerpt, creating=True)
        data = body.get("data")
        word = within(data, "task_status")
        status = SUBMITTED if word is None else self.status_of(word)
        return VideoJob(
            status=status,
            id=id_of(data, "task_id"),
            word=None if word is None else str(word),
            message=shortened(text_of(data, "task_status_msg")),
            params={"kind": self._kind(request)},
        )

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query, below the path that made the job."""
        kind = params.get("kind", "text2video")
        return Call("GET", path("v1", "videos", kind, params.external_task_id), accept=(429,))

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to the query; see ``VendorHandler.read_query``."""
        self._check_patience(reply, context.now, creating=False)
        return super().read_query(reply, params, context)

    def read_job(self, reply: Reply, params: QueryParams) -> VideoJob:
        """Read the reply to the query."""
        body = members(reply)
        code, message = error_of(body)
        if code not in _FINE:
            return self.judge(code, message, creating=False)
        data = body.get("data")
        word = within(data, "task_status")
        status = self.status_of(word)
        listed = within(data, "task_result", "videos")
        videos = [video for one in (listed if isinstance(listed, list) else ()) for video in _videos(one)]
        seconds = [video.duration for video in videos if video.duration is not None]
        deducted = within(data, "final_unit_deduction")
        updated_at = number_of(within(data, "updated_at"))
        return VideoJob(
            status=status,
            word=str(word),
            message=shortened(text_of(data, "task_status_msg")),
            videos=tuple(videos),
            # A video of 5 seconds may be 5.1 long.
            usage=counted(second=round(sum(seconds)) if seconds else None, unit=deducted),
            expires_after=life_left(LIFE, updated_at and updated_at / 1000, reply),
            metadata={
                "created_at": within(data, "created_at"),
                "updated_at": within(data, "updated_at"),
                "final_unit_deduction": deducted,
            },
        )

    def lookup_call(self, params: VideoRequest, context: SubmitContext) -> Call:
        """Describe the question for the job of our key."""
        place = path("v1", "videos", self._kind(params), context.idempotency_key)
        return Call("GET", place, accept=(404, 429))

    def read_lookup(self, reply: Reply, params: VideoRequest, context: SubmitContext) -> LookupResult:
        """Read whether there is one: only the vendor's own code says that there is none."""
        self._check_patience(reply, context.now, creating=False)
        body = members(reply)
        code, message = error_of(body)
        if code == _NOT_THERE:
            return LookupResult.not_found()
        if code not in _FINE:
            self.judge(code, message, creating=False)
        data = body.get("data")
        job_id = id_of(data, "task_id")
        if job_id is None or within(data, "task_info", "external_task_id") not in (
            None,
            context.idempotency_key,
        ):
            raise VendorError(
                f"{self.key}: expected the job of our key, found {reply.excerpt}; the reply is not used",
                code="unreadable_reply",
                http_status=reply.status,
            )
        job = VideoJob(status=SUBMITTED, id=job_id, params={"kind": self._kind(params)})
        return LookupResult.found(self.create_query_params(job, params))

    def read_callback(self, callback: Callback, context: QueryContext) -> CallbackNote:
        """Read which job a callback is about; the vendor does not sign them."""
        body = callback.json()
        return CallbackNote(id_of(within(body, "data"), "task_id") or id_of(body, "task_id") or "")

    def _check_patience(self, reply: Reply, now: datetime, *, creating: bool) -> None:
        """Raise what 429 means, which here is not always that waiting helps."""
        if reply.status != 429:
            return
        code, message = error_of(members_if_any(reply))
        if self.trouble_of(code or "") is Trouble.ACCOUNT:
            self.judge(code, message, creating=creating)
        raise ThrottledError(
            f"{self.key} was answered with 429: {reply.excerpt}; the vendor asks for patience",
            delay=reply.retry_after(now),
        )


def sign_token(access_key: str, secret_key: str) -> str:
    """Return a token for a pair of keys, good for 30 minutes by the clock of this machine.

    Raises:
        ConfigError: the extra ``coatcheck-video[kling]`` is not installed.
    """
    try:
        import jwt
    except ImportError:
        raise ConfigError(
            "an access_key and a secret_key of Kling need the PyJWT package, which is not installed; run "
            "pip install 'coatcheck-video[kling]', or use a single key"
        ) from None
    now = int(time.time())
    claims = {
        "iss": access_key,
        "exp": now + int(TOKEN_LIFE.total_seconds()),
        "nbf": now - int(_EARLIER.total_seconds()),
    }
    return jwt.encode(claims, secret_key, algorithm="HS256")


def _has_pair(account: Account) -> bool:
    """Whether an account has a pair of keys and no single one."""
    return part_of(account, "secret") is None and part_of(account, "access_key") is not None


def _is_omni(model: str | None) -> bool:
    return model is not None and (model == "kling-video-o1" or model.endswith("-omni"))


def _is_mixed(request: VideoRequest) -> bool:
    return bool(request.reference_images) or request.source_video is not None


def _media(request: VideoRequest, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the media of a request as a path names them; what is not there is ``None``."""
    if kind == "image2video":
        return {"image": request.first_frame, "image_tail": request.last_frame}
    if kind == "multi-image2video":
        return {"image_list": [{"image": url} for url in request.reference_images]}
    if kind != "omni-video":
        return {}
    images = [{"image_url": url} for url in request.reference_images]
    for url, place in ((request.first_frame, "first_frame"), (request.last_frame, "end_frame")):
        if url is not None:
            images.append({"image_url": url, "type": place})
    videos = []
    if request.source_video is not None:
        video = {"video_url": request.source_video}
        if "refer_type" in options:
            video["refer_type"] = options["refer_type"]
        if "keep_original_sound" in options:
            video["keep_original_sound"] = "yes" if options["keep_original_sound"] else "no"
        videos.append(video)
    return {"image_list": images or None, "video_list": videos or None}


def _videos(one: object) -> tuple[Video, ...]:
    facts = {"id": id_of(one, "id"), "watermark_url": text_of(one, "watermark_url")}
    return videos_of(
        [within(one, "url")],
        duration=number_of(within(one, "duration")),
        metadata={name: value for name, value in facts.items() if value is not None},
    )
