"""``video:runway``: the models of Runway, and those of others that it hosts.

Facts are from runwayml 5.24.0 and its recorded traffic (SDK) and the vendor's pages (DOC); ``(1)`` marks what
one weaker source says:

- Three paths, by the media: text, image and video to video; ``X-Runway-Version`` is mandatory in every call
    (SDK). Media are https or ``runway://`` addresses (SDK). A ratio is pixels with a colon for most models,
    and words for some.
- The source of a video to video is ``videoUri`` for some models and ``promptVideo`` for the rest; references
    are ``references`` with a ``uri``, audio is ``referenceAudio`` (SDK).
- Words: SDK. THROTTLED is held back by the account's own concurrency: it waits, and is no error. CANCELLED is
    an end, at which the vendor's own client waits on. Progress is from 0 to 1.
- DELETE cancels a job that waits or runs, and deletes one that has ended, with its result; both are 204, and
    GET is 404 afterwards (SDK). A running job that was canceled is not refunded (DOC).
- Addresses live for 24 to 48 hours; a query gives fresh ones (SDK). ``cost.credits`` of an ended job is what
    is charged for it (SDK).
- Errors ``{error, issues}`` (1). ``failureCode``: SAFETY, INPUT_PREPROCESSING and ASSET.INVALID are final,
    INTERNAL may go well another time (DOC).
- Ask at most every 5 s (SDK). No list, no callbacks, no idempotency key.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from attrs import evolve, frozen

from coatcheck.errors import ValidationError
from coatcheck.http import Call, Follow, Reply, VendorOptions, path
from coatcheck.http.options import choice, text
from coatcheck.http.read import id_of, members, members_if_any, shortened, text_of, within
from coatcheck.http.vendor import CANCELED, FAILED, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import Account, CancelResult, QueryContext, QueryParams, SubmitContext, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck_video.capability import ANYTHING, VideoModel
from coatcheck_video.handler import VideoHandler, VideoJob, counted, number_of, size_of, videos_of
from coatcheck_video.model import VideoMode, VideoRequest

API_VERSION = "2024-11-06"
#: The longest prompt of Runway's own models, in UTF-16 units; hosted ones take more.
LONGEST_PROMPT = 1000

_TEXT, _IMAGE, _VIDEO = "text_to_video", "image_to_video", "video_to_video"
#: The model whose relation of the sides has a field of its own, beside the pixels.
_RELATED = "aleph2"
_VIDEO_URI = frozenset({_RELATED, "gemini_omni_flash", "gemini_omni_flash_1.1", "kling_4"})
_SIX = ("1280:720", "720:1280", "1104:832", "960:960", "832:1104", "1584:672")
_VEO = ("1280:720", "720:1280", "1080:1920", "1920:1080")
_WORDS = ("adaptive", "21:9", "16:9", "4:3", "1:1", "3:4", "9:16")
#: What models must be told, and the vendor has no default for.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "gen4.5": ("duration", "aspect_ratio"),
    "gen4_turbo": ("aspect_ratio",),
    "veo3.1": ("aspect_ratio",),
    "veo3.1_fast": ("aspect_ratio",),
}


_Row = tuple[str, VideoModel]


def _text(model: VideoModel, *, references: bool = False) -> _Row:
    modes = (VideoMode.TEXT, VideoMode.REFERENCE_IMAGES) if references else (VideoMode.TEXT,)
    return _TEXT, evolve(model, modes=modes)


def _image(model: VideoModel, *, last: bool = True, references: bool = False) -> _Row:
    modes = (VideoMode.FIRST_FRAME, VideoMode.FIRST_LAST_FRAME) if last else (VideoMode.FIRST_FRAME,)
    return _IMAGE, evolve(model, modes=(*modes, VideoMode.OMNI) if references else modes)


def _video(model: VideoModel, *, references: bool = False) -> _Row:
    modes = (VideoMode.VIDEO_TO_VIDEO, VideoMode.OMNI) if references else (VideoMode.VIDEO_TO_VIDEO,)
    return _VIDEO, evolve(model, modes=modes)


def _sized(model: VideoModel, ratios: tuple[str, ...]) -> VideoModel:
    """Return a model whose ratios are pixels."""
    sizes = tuple((int(width), int(height)) for width, height in (ratio.split(":") for ratio in ratios))
    return evolve(model, ratios=ratios, sizes=sizes)


def _table() -> dict[str, dict[str, VideoModel]]:
    """Return what each model takes at each path (SDK); what is not said here is left to the vendor."""
    plain = VideoModel(resolutions=(), audio=False)
    loud = VideoModel(resolutions=())
    gen4 = _sized(evolve(plain, sound=()), _SIX)
    gen45 = evolve(gen4, durations=tuple(range(2, 11)))
    veo = _sized(evolve(plain, durations=(4, 6, 8)), _VEO)
    turbo = evolve(plain, durations=(5, 10))
    kling = evolve(plain, durations=tuple(range(3, 16)))
    hailuo = VideoModel(ratios=_WORDS, sizes=(), resolutions=("768p", "2k"))
    h3 = VideoModel(audio=False, resolutions=("480p", "768p"))
    horse = VideoModel(audio=False, resolutions=("720p", "1080p"))
    grok = VideoModel(resolutions=("480p", "720p", "1080p"))
    found: dict[str, tuple[_Row, ...]] = {
        "gen4.5": (_text(_sized(gen45, _SIX[:2])), _image(gen45, last=False)),
        "gen4_turbo": (_image(gen4, last=False),),
        _RELATED: (_video(evolve(plain, durations=(), sound=())),),
        "kling2.5_turbo_pro": (_text(turbo), _image(turbo)),
        "kling_4": (
            _text(plain, references=True),
            _image(plain, references=True),
            _video(plain, references=True),
        ),
        "hailuo3": (_text(hailuo, references=True), _image(hailuo), _video(hailuo, references=True)),
        "h3_max": (_text(h3), _image(h3)),
        "happyhorse_1_0": (_text(plain), _image(horse, last=False)),
        "grok_imagine_1_5": (
            _text(grok, references=True),
            _image(evolve(grok, audio=False), last=False),
        ),
    }
    found |= dict.fromkeys(("veo3.1", "veo3.1_fast"), (_text(veo), _image(veo)))
    edited = _video(evolve(plain, durations=()), references=True)
    for size in ("standard", "pro", "4k"):
        found[f"kling3.0_{size}"] = (_text(kling), _image(kling))
        found[f"klingO3_{size}"] = (_text(kling), _image(kling, references=True), edited)
    dance = (_text(loud, references=True), _image(loud), _video(loud, references=True))
    found |= dict.fromkeys(("seedance2", "seedance2_fast", "seedance2_mini", "seedance2_5"), dance)
    found |= dict.fromkeys(("wan3", "wan3_prime"), (_text(loud, references=True), _image(loud)))
    return {name: dict(rows) for name, rows in found.items()}


#: What each model takes, by its name and path; any other model is not restricted.
MODELS: Mapping[str, Mapping[str, VideoModel]] = _table()


@frozen(kw_only=True, eq=False)
class RunwayOptions(VendorOptions):
    """What ``VideoRequest.options`` may hold for ``video:runway``; ``extra`` is merged into the body."""

    #: A ratio that is neither pixels nor a relation, like "auto_720p".
    ratio: str | None = text(40)
    #: How strictly public figures are recognised.
    public_figure_threshold: str | None = choice("auto", "low")
    #: Like "mp4" or "prores".
    output_format: str | None = text(60, wire="outputFormat")

    def wire(self) -> dict[str, Any]:
        """Return what is given, moderation in the object of its own that the vendor wants."""
        said = super().wire()
        threshold = said.pop("public_figure_threshold", None)
        if threshold is not None:
            said["contentModeration"] = {"publicFigureThreshold": threshold}
        return said


class RunwayHandler(VideoHandler):
    """Makes videos with the models at Runway; media are https and runway URLs."""

    key = "video:runway"
    account = "runway"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("RUNWAYML_API_SECRET",)}
    base_url = "https://api.dev.runwayml.com"
    base_url_env = ("RUNWAYML_BASE_URL",)
    options_type = RunwayOptions
    schemes = ("https", "runway")
    poll = PollPolicy.exponential(timedelta(seconds=6))
    # The least that the vendor promises.
    result_life = timedelta(hours=24)
    default_models: ClassVar[Mapping[VideoMode, str]] = {
        VideoMode.TEXT: "gen4.5",
        VideoMode.FIRST_FRAME: "gen4.5",
        VideoMode.FIRST_LAST_FRAME: "veo3.1",
        VideoMode.VIDEO_TO_VIDEO: _RELATED,
    }
    takes = frozenset({
        "negative_prompt", "first_frame", "last_frame", "reference_images", "source_video", "audio",
        "duration", "width", "height", "resolution", "aspect_ratio", "seed", "generate_audio",
    })  # fmt: skip
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "pending": SUBMITTED,
        "throttled": SUBMITTED,
        "running": RUNNING,
        "succeeded": SUCCEEDED,
        "failed": FAILED,
        "cancelled": CANCELED,
        "canceled": CANCELED,
    }

    def sign(self, call: Call, account: Account) -> Call:
        """Add the key, and the version of the API, without which no call is served."""
        return super().sign(call, account).with_headers(X_Runway_Version=API_VERSION)

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make; see ``VideoHandler.validate``."""
        if self.model(params) is None:
            raise ValidationError(
                f"{self.key} has no default model for this kind of request; name one", "model"
            )
        super().validate(params)
        model = self.model(params) or ""
        if params.source_video is not None and params.first_frame is not None:
            raise ValidationError(
                f"{self.key} makes a video from frames or from a video, found both; leave one of them out",
                "first_frame",
            )
        if params.seed is not None and not 0 <= params.seed < 2**32:
            raise ValidationError(
                f"seed of {self.key} must be from 0 to {2**32 - 1}, found {params.seed}", "seed"
            )
        units = len((params.prompt or "").encode("utf-16-le", "surrogatepass")) // 2
        if model.startswith("gen4") and units > LONGEST_PROMPT:
            raise ValidationError(
                f"a prompt for {model} may have {LONGEST_PROMPT} UTF-16 units, found {units}; shorten it",
                "prompt",
            )
        said = {"duration": params.duration, "aspect_ratio": self._ratio(params)}
        for name in _NEEDED.get(model, ()):
            if said[name] is None:
                raise ValidationError(f"{model} must be told {name}, found none", name)

    def capability(self, request: VideoRequest) -> VideoModel:
        """Return what a model takes at the path that the media of the request lead to."""
        rows = MODELS.get(self.model(request) or "")
        if rows is None:
            return ANYTHING
        modes = tuple(mode for row in rows.values() for mode in row.modes or ())
        return rows.get(_place(request), VideoModel(modes=modes))

    def submit_call(self, params: VideoRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        model = self.model(params) or ""
        video_field = "videoUri" if model in _VIDEO_URI else "promptVideo"
        body = self.fields(
            params,
            model=model,
            promptText=params.prompt,
            negativePrompt=params.negative_prompt,
            promptImage=_frames(params),
            references=[{"uri": url} for url in params.reference_images] or None,
            referenceAudio=None if params.audio is None else [{"type": "audio", "uri": params.audio}],
            duration="auto" if params.duration == -1 else params.duration,
            ratio=self._ratio(params),
            targetAspectRatio=params.aspect_ratio if model == _RELATED else None,
            resolution=self.capability(params).spelled(params.resolution),
            seed=params.seed,
            audio=params.generate_audio,
            **{video_field: params.source_video},
        )
        return Call("POST", path("v1", _place(params)), json=body, accept=(400, 403, 404))

    def read_submitted(self, reply: Reply, request: VideoRequest) -> VideoJob:
        """Read the reply to the submit, which has the job's id and no state."""
        if not reply.is_success:
            return self.judge(
                f"http_{reply.status}", _problem(members_if_any(reply)) or reply.excerpt, creating=True
            )
        return VideoJob(status=SUBMITTED, id=id_of(members(reply), "id"))

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("v1", "tasks", params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> VideoJob:
        """Read the reply to the query; each one has fresh addresses."""
        body = members(reply)
        word = body.get("status")
        status = self.status_of(word)
        code = text_of(body, "failureCode")
        done = number_of(body.get("progress"))
        output = body.get("output")
        return VideoJob(
            status=status,
            word=str(word),
            progress=None if done is None else min(max(100 * done, 0.0), 100.0),
            code=code or "failed",
            message=shortened(text_of(body, "failure")),
            retryable=(code or "").split(".")[0] == "INTERNAL",
            videos=videos_of(output) if status is SUCCEEDED and isinstance(output, list) else (),
            # What is charged in the end; a refund is 0.
            usage=counted(credit=within(body, "cost", "credits")),
            metadata={"created_at": text_of(body, "createdAt")},
        )

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the look before the cancel: what stops a running job deletes a finished one."""
        return self.query_call(params, context)

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult | Follow:
        """Read how the job is, and let the delete follow only where there is something to stop."""
        job = self.read_job(reply, params)
        if job.status is CANCELED:
            return CancelResult.done(dict(job.usage) or None)
        if job.status in (SUCCEEDED, FAILED):
            return CancelResult.refused("the job has ended already")
        if self._known(job.word or "") is None:
            return CancelResult.refused(
                f"the job is {job.word}, which may be an end: it would be deleted with its result"
            )
        # A Follow that changes something: a repeat finds the job stopped, and what is between this look and
        # the delete is one round trip, in place of the whole time since the last query.
        call = Call("DELETE", path("v1", "tasks", params.external_task_id), accept=(404,))
        return Follow(call, _deleted)

    def _ratio(self, request: VideoRequest) -> str | None:
        """Return the one ratio that a request says.

        Raises:
            ValidationError: it says several.
        """
        related = None if self.model(request) == _RELATED else request.aspect_ratio
        said = [size_of(request, ":"), related, self.options(request).get("ratio")]
        found = [one for one in said if one is not None]
        if len(found) > 1:
            raise ValidationError(
                "width and height, aspect_ratio and the option ratio say the same, found "
                f"{' and '.join(found)}; leave one of them",
                "ratio" if related is None else "aspect_ratio",
            )
        return found[0] if found else None


def _place(request: VideoRequest) -> str:
    if request.source_video is not None:
        return _VIDEO
    return _TEXT if request.first_frame is None else _IMAGE


def _frames(request: VideoRequest) -> str | list[dict[str, str]] | None:
    if request.first_frame is None or request.last_frame is None:
        return request.first_frame
    return [
        {"uri": request.first_frame, "position": "first"},
        {"uri": request.last_frame, "position": "last"},
    ]


def _deleted(reply: Reply) -> CancelResult:
    """Read the reply to the delete; a job that is not there any more runs no more either."""
    return CancelResult.done()


def _problem(body: Mapping[str, Any]) -> str:
    """Return the text of an error and what is wrong with which field."""
    issues = body.get("issues")
    told = [text_of(body, "error")]
    for issue in issues if isinstance(issues, list) else ():
        place = within(issue, "path")
        field = ".".join(map(str, place)) if isinstance(place, list) else ""
        told.append(": ".join(part for part in (field, text_of(issue, "message")) if part))
    return shortened("; ".join(part for part in told if part))
