"""``video:aliyun-wan``: the Wan models of Aliyun; the protocol around them is in ``coatcheck_video.aliyun``.

Facts are from the agents-flex adapter (AF), recorded traffic of dashscope 2.0.2 (SDK) and the vendor's pages
(DOC); ``(1)`` marks what one weaker source says. Where AF differs from the vendor, the vendor holds:

- kf2v models (first and last frame) have a submit path of their own (old API of the SDK, DOC); the SDK's new
    API sends them where the others go (?).
- Sound is switched by ``audio`` up to 2.6, not by ``generate_audio``; from 2.7 on it is always there.
- ``fps`` is no parameter; ``ratio`` is one from 2.7 on. Before, models from text and references take
    ``size``, pixels with ``*``: a tier and a ratio become the size that the vendor lists for them.
- Audio beside a prompt or a first frame accompanies the video from 2.5 on (AF refuses it).
- From 2.7 on all media are a list with types.
- 3.0 is known from one source (1).
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import evolve, frozen

from coatcheck.errors import ValidationError
from coatcheck.http.options import choice, text
from coatcheck_video.aliyun import DashScopeHandler, DashScopeOptions
from coatcheck_video.capability import ANYTHING, VideoModel
from coatcheck_video.handler import size_of
from coatcheck_video.model import VideoMode, VideoRequest

#: Pixels by tier and ratio, for models that take a size (DOC).
SIZES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "480P": {"16:9": (832, 480), "9:16": (480, 832), "1:1": (624, 624)},
    "720P": {
        "16:9": (1280, 720),
        "9:16": (720, 1280),
        "1:1": (960, 960),
        "4:3": (1088, 832),
        "3:4": (832, 1088),
    },
    "1080P": {
        "16:9": (1920, 1080),
        "9:16": (1080, 1920),
        "1:1": (1440, 1440),
        "4:3": (1632, 1248),
        "3:4": (1248, 1632),
    },
}
_RATIOS = ("16:9", "9:16", "1:1", "4:3", "3:4")
_TIERS = {"2.7": ("720P", "1080P"), "2.6": ("720P", "1080P"), "2.5": ("480P", "720P", "1080P")}
_NAME = re.compile(r"wanx?(?P<version>\d+\.\d+)-(?P<kind>t2v|i2v|r2v|kf2v|videoedit|video)(?:-.*)?")
_MODES = {
    "t2v": (VideoMode.TEXT,),
    "i2v": (VideoMode.FIRST_FRAME,),
    "kf2v": (VideoMode.FIRST_LAST_FRAME,),
    "r2v": (VideoMode.REFERENCE_IMAGES, VideoMode.VIDEO_TO_VIDEO, VideoMode.OMNI),
    "videoedit": (VideoMode.VIDEO_TO_VIDEO, VideoMode.OMNI),
}

#: The media beside an audio, by kind and whether the model is of 2.7 or later, where modes say too much.
_MEDIA = {
    ("i2v", True): ("first_frame", "last_frame", "source_video"),
    ("r2v", True): ("reference_images", "source_video", "first_frame"),
    ("r2v", False): ("reference_images", "source_video"),
    ("videoedit", True): ("reference_images", "source_video"),
}


@frozen(kw_only=True, eq=False)
class WanOptions(DashScopeOptions):
    """What ``VideoRequest.options`` may hold for ``video:aliyun-wan``; ``extra`` is merged into the body."""

    #: A template of effects for a first frame; the prompt is then ignored.
    template: str | None = text(200, wire="input.template")
    #: One shot or several; 2.6 only, and the prompt must be extended.
    shot_type: str | None = choice("single", "multi", wire="parameters.shot_type")
    #: What an edited video sounds like; 2.7 only.
    audio_setting: str | None = choice("auto", "origin", wire="parameters.audio_setting")


class AliyunWanHandler(DashScopeHandler):
    """Makes videos with Wan models; media are http, https and oss URLs."""

    key = "video:aliyun-wan"
    options_type = WanOptions
    default_model = "wan2.6-t2v"
    default_models: ClassVar[Mapping[VideoMode, str]] = {
        VideoMode.TEXT: "wan2.6-t2v",
        VideoMode.FIRST_FRAME: "wan2.6-i2v",
        VideoMode.FIRST_LAST_FRAME: "wanx2.1-kf2v-plus",
        VideoMode.REFERENCE_IMAGES: "wan2.6-r2v",
    }
    takes = frozenset({
        "negative_prompt", "first_frame", "last_frame", "reference_images", "source_video", "audio",
        "duration", "width", "height", "resolution", "aspect_ratio", "seed", "watermark", "prompt_extend",
        "generate_audio",
    })  # fmt: skip

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make; see ``VideoHandler.validate``."""
        model = self.model(params) or ""
        if not model.lower().startswith("wan"):
            raise ValidationError(
                f"{self.key} has models whose names begin with wan, found {model!r}", "model"
            )
        super().validate(params)
        if params.width is not None and (params.resolution or params.aspect_ratio):
            raise ValidationError(
                "width and height say the resolution and the aspect_ratio already; leave one of both out",
                "width",
            )
        if self._is_sized(params):
            self._size(params)

    def capability(self, request: VideoRequest) -> VideoModel:
        """Return what a model takes, by its version and kind."""
        version, kind = _split(self.model(request))
        if kind not in _MODES:
            return ANYTHING
        return _capability(version, kind)

    def submit_path(self, request: VideoRequest) -> str:
        """Return the path of the submit: kf2v models have their own."""
        if "kf2v" in (self.model(request) or "").lower():
            return "/services/aigc/image2video/video-synthesis"
        return super().submit_path(request)

    def body_of(self, request: VideoRequest) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return ``input`` and ``parameters`` in the protocol of the model's version."""
        version, kind = _split(self.model(request))
        is_sized = self._is_sized(request)
        given: dict[str, Any] = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
        given |= _listed_media(request, kind) if _is_new(version) else _named_media(request, kind)
        return given, {
            "size": self._size(request) if is_sized else size_of(request, "*"),
            "resolution": None if is_sized else self.capability(request).spelled(request.resolution),
            "ratio": None if is_sized else request.aspect_ratio,
            "duration": request.duration,
            "prompt_extend": request.prompt_extend,
            "watermark": request.watermark,
            "seed": request.seed,
            "audio": None if _is_new(version) else request.generate_audio,
        }

    def _is_sized(self, request: VideoRequest) -> bool:
        version, kind = _split(self.model(request))
        return kind in ("t2v", "r2v") and not _is_new(version)

    def _size(self, request: VideoRequest) -> str | None:
        """Return the size to name, for models that know no tier and no ratio."""
        if request.resolution is None and request.aspect_ratio is None:
            return size_of(request, "*")
        tier, ratio = (request.resolution or "1080P").upper(), request.aspect_ratio or "16:9"
        found = SIZES.get(tier, {}).get(ratio)
        if found is None:
            raise ValidationError(
                f"{self.model(request)} has no size of {ratio} at {tier}; choose another aspect_ratio or "
                "resolution, or give width and height",
                "aspect_ratio",
            )
        return f"{found[0]}*{found[1]}"


def _split(model: str | None) -> tuple[str, str]:
    """Return version and kind of a model; blank ones where its name says nothing."""
    match = _NAME.fullmatch((model or "").lower())
    return (match["version"], match["kind"]) if match else ("", "")


def _is_new(version: str) -> bool:
    return version != "" and tuple(map(int, version.split("."))) >= (2, 7)


def _capability(version: str, kind: str) -> VideoModel:
    is_new, has_sound = _is_new(version), version in ("2.5", "2.6")
    known = VideoModel(
        modes=_MODES[kind],
        resolutions=_TIERS.get(version),
        ratios=() if kind in ("i2v", "kf2v") else _RATIOS,
        durations=_durations(version, kind),
        sizes=() if is_new or kind in ("i2v", "kf2v") else _sizes(version),
        sound=(True,) if is_new else (True, False) if has_sound else (False,),
        audio=kind in ("t2v", "i2v") and (is_new or has_sound),
        media=_MEDIA.get((kind, is_new)),
    )
    if is_new and kind == "i2v":
        more = (VideoMode.FIRST_LAST_FRAME, VideoMode.VIDEO_TO_VIDEO, VideoMode.OMNI)
        return evolve(known, modes=(*_MODES[kind], *more))
    if kind == "r2v":
        # Whether references go with an audio is not said of 2.6.
        return evolve(known, references=5, audio=None if has_sound else False)
    return evolve(known, references=3) if kind == "videoedit" else known


def _sizes(version: str) -> tuple[tuple[int, int], ...]:
    tiers = _TIERS.get(version, tuple(SIZES))
    return tuple(size for tier in tiers for size in SIZES[tier].values())


def _durations(version: str, kind: str) -> tuple[int, ...] | None:
    if kind == "videoedit":
        return (0, *range(2, 11))
    if version in ("2.6", "2.7"):
        return tuple(range(2, 11 if kind == "r2v" else 16))
    if version == "2.5":
        return (5, 10)
    return (5,) if version in ("2.1", "2.2") else None


def _named_media(request: VideoRequest, kind: str) -> dict[str, Any]:
    """Return media in fields of their own, as up to 2.6."""
    references = list(request.reference_images)
    video = request.source_video
    if kind == "r2v" and video is not None:
        references, video = [*references, video], None
    has_last = request.last_frame is not None
    return {
        "img_url": None if has_last else request.first_frame,
        "first_frame_url": request.first_frame if has_last else None,
        "last_frame_url": request.last_frame,
        "reference_urls": references or None,
        "video_url": video,
        "audio_url": request.audio,
    }


def _listed_media(request: VideoRequest, kind: str) -> dict[str, Any]:
    """Return media as a list with types, as from 2.7 on."""
    video = {"i2v": "first_clip", "videoedit": "video"}.get(kind, "reference_video")
    found = [
        (video, request.source_video),
        ("first_frame", request.first_frame),
        ("last_frame", request.last_frame),
        *(("reference_image", url) for url in request.reference_images),
    ]
    if kind != "t2v":
        found.append(("driving_audio" if kind == "i2v" else "reference_audio", request.audio))
    media = [{"type": name, "url": url} for name, url in found if url is not None]
    return {"media": media or None, "audio_url": request.audio if kind == "t2v" else None}
