"""``video:aliyun-happyhorse``: Aliyun's HappyHorse models; their protocol is in ``coatcheck_video.aliyun``.

Facts are from the agents-flex adapter (AF), recorded traffic of dashscope 2.0.2 (SDK) and the vendor's pages
(DOC). Where AF differs from the vendor, the vendor holds:

- All media are a list with types, in the order video, first frame, reference images (AF, SDK).
- Sound is always there and cannot be asked for: ``generate_audio=True`` is not sent.
- A video may be edited with reference images (DOC); AF refuses that as another mode.
- 1.0 has the first five ratios only (DOC); AF lets it have all.
- The watermark is on unless it is turned off (DOC).
"""

import re
from typing import Any, ClassVar

from attrs import frozen

from coatcheck.errors import ValidationError
from coatcheck.http.options import choice
from coatcheck_video.aliyun import DashScopeHandler, DashScopeOptions
from coatcheck_video.capability import ANYTHING, VideoModel
from coatcheck_video.model import VideoMode, VideoRequest

_NAME = re.compile(r"happyhorse-(?P<version>\d+\.\d+)-(?P<kind>t2v|i2v|r2v|video-edit)(?:-.*)?")
_TIERS = ("720P", "1080P")
_RATIOS = ("16:9", "9:16", "1:1", "4:3", "3:4")
_MORE_RATIOS = ("4:5", "5:4", "9:21", "21:9")
_SECONDS = tuple(range(3, 16))
_ALWAYS = (True,)


@frozen(kw_only=True, eq=False)
class HappyHorseOptions(DashScopeOptions):
    """What ``VideoRequest.options`` may hold for ``video:aliyun-happyhorse``; see ``DashScopeOptions``."""

    #: What an edited video sounds like.
    audio_setting: str | None = choice("auto", "origin", wire="parameters.audio_setting")


class AliyunHappyHorseHandler(DashScopeHandler):
    """Makes videos with HappyHorse models; media are http, https and oss URLs."""

    key = "video:aliyun-happyhorse"
    options_type = HappyHorseOptions
    default_model = "happyhorse-1.1-t2v"
    default_models: ClassVar[dict[VideoMode, str]] = {
        VideoMode.TEXT: "happyhorse-1.1-t2v",
        VideoMode.FIRST_FRAME: "happyhorse-1.1-i2v",
        VideoMode.REFERENCE_IMAGES: "happyhorse-1.1-r2v",
        VideoMode.VIDEO_TO_VIDEO: "happyhorse-1.0-video-edit",
        VideoMode.OMNI: "happyhorse-1.0-video-edit",
    }
    takes = frozenset({
        "first_frame", "reference_images", "source_video", "duration", "resolution", "aspect_ratio", "seed",
        "watermark", "generate_audio",
    })  # fmt: skip

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make; see ``VideoHandler.validate``."""
        model = self.model(params) or ""
        if not model.lower().startswith("happyhorse-"):
            raise ValidationError(
                f"{self.key} has models whose names begin with happyhorse-, found {model!r}", "model"
            )
        super().validate(params)
        if params.prompt is None and _split(model)[1] in ("r2v", "video-edit"):
            raise ValidationError(f"{model} must have a prompt, found none", "prompt")

    def capability(self, request: VideoRequest) -> VideoModel:
        """Return what a model takes, by its version and kind."""
        version, kind = _split(self.model(request) or "")
        ratios = _RATIOS if version == "1.0" else (*_RATIOS, *_MORE_RATIOS)
        match kind:
            case "t2v":
                return VideoModel(
                    modes=(VideoMode.TEXT,),
                    resolutions=_TIERS,
                    ratios=ratios,
                    durations=_SECONDS,
                    sound=_ALWAYS,
                )
            case "i2v":
                return VideoModel(
                    modes=(VideoMode.FIRST_FRAME,),
                    resolutions=_TIERS,
                    ratios=(),
                    durations=_SECONDS,
                    sound=_ALWAYS,
                )
            case "r2v":
                return VideoModel(
                    modes=(VideoMode.REFERENCE_IMAGES,),
                    resolutions=_TIERS,
                    ratios=ratios,
                    durations=_SECONDS,
                    sound=_ALWAYS,
                    references=9,
                )
            case "video-edit":
                return VideoModel(
                    modes=(VideoMode.VIDEO_TO_VIDEO, VideoMode.OMNI),
                    resolutions=_TIERS,
                    ratios=(),
                    durations=(),
                    sound=_ALWAYS,
                    media=("source_video", "reference_images"),
                    references=5,
                )
        return ANYTHING

    def body_of(self, request: VideoRequest) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return ``input`` and ``parameters``."""
        found = [("video", request.source_video), ("first_frame", request.first_frame)]
        found += [("reference_image", url) for url in request.reference_images]
        media = [{"type": kind, "url": url} for kind, url in found if url is not None]
        return {"prompt": request.prompt, "media": media or None}, {
            "resolution": self.capability(request).spelled(request.resolution),
            "ratio": request.aspect_ratio,
            "duration": request.duration,
            "watermark": request.watermark,
            "seed": request.seed,
        }


def _split(model: str) -> tuple[str, str]:
    """Return version and kind of a model; blank ones where its name says nothing."""
    match = _NAME.fullmatch(model.lower())
    return (match["version"], match["kind"]) if match else ("", "")
