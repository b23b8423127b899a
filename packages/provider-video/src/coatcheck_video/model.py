"""What every video handler takes and gives: one request type, one response type, and what they are made of.

Vendors differ in ``VideoRequest.options`` and in what their models take. Nothing here reads a file or calls a
vendor; media are URLs and nothing else, since another machine carries a task on.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from attrs import field, frozen

from coatcheck.codec import persistent
from coatcheck.errors import ValidationError

_RATIO = re.compile(r"[1-9]\d{0,3}:[1-9]\d{0,3}|[a-z_]{1,20}")
_UPLOAD = "upload the file first and submit its URL"


class VideoMode(StrEnum):
    """What a video is made of."""

    TEXT = "text"
    FIRST_FRAME = "first_frame"
    FIRST_LAST_FRAME = "first_last_frame"
    REFERENCE_IMAGES = "reference_images"
    #: Several kinds of media together.
    OMNI = "omni"
    VIDEO_TO_VIDEO = "video_to_video"
    AUDIO_DRIVEN = "audio_driven"


def _frozen(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValidationError(f"expected a mapping with texts as keys, found {value!r}")
    return MappingProxyType(_copied(value))


def _copied(value: Any) -> Any:
    """Copy what JSON knows; all else stays as it is, and is refused with its path at the submit."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return value


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _mode(value: Any) -> VideoMode | None:
    if value is None:
        return None
    try:
        return VideoMode(value)
    except ValueError:
        raise ValidationError(
            f"mode must be one of {', '.join(VideoMode)}, found {value!r}; leave it out to have it inferred",
            "mode",
        ) from None


@persistent("video.request", version=1)
@frozen(kw_only=True)
class VideoRequest:
    """One video to be made. What is ``None`` is not said to the vendor, whose own default then holds.

    Raises:
        ValidationError: a value is of another kind, or a medium is no URL.
    """

    prompt: str | None = None
    negative_prompt: str | None = None
    #: What the video is made of; inferred from the media if ``None``.
    mode: VideoMode | None = field(default=None, converter=_mode)
    #: URLs of pictures.
    first_frame: str | None = None
    last_frame: str | None = None
    reference_images: tuple[str, ...] = field(default=(), converter=_listed)
    #: URL of a video to be edited, carried on or driven.
    source_video: str | None = None
    #: URL of speech or music.
    audio: str | None = None
    #: In seconds; -1 where the vendor lets its model decide.
    duration: int | None = None
    #: In pixels; both or none.
    width: int | None = None
    height: int | None = None
    #: A tier like ``"720P"``, in any case.
    resolution: str | None = None
    #: Like ``"16:9"``, or a word of the vendor like ``"adaptive"``.
    aspect_ratio: str | None = None
    fps: int | None = None
    seed: int | None = None
    watermark: bool | None = None
    #: Whether the vendor may rewrite the prompt.
    prompt_extend: bool | None = None
    #: Whether the video has sound.
    generate_audio: bool | None = None
    camera_fixed: bool | None = None
    #: The vendor's model; its default for this kind of request if ``None``.
    model: str | None = None
    #: The vendor's own extras, named as the handler documents them.
    options: Mapping[str, Any] = field(factory=dict, converter=_frozen)

    def __attrs_post_init__(self) -> None:
        """Refuse what no handler could use."""
        for name in ("prompt", "negative_prompt", "resolution", "aspect_ratio", "model"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ValidationError(f"{name} must be a text, found {_shown(value)}; or leave it out", name)
        for name in ("watermark", "prompt_extend", "generate_audio", "camera_fixed"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise ValidationError(f"{name} must be True or False, found {_shown(value)}", name)
        for name, least in (("duration", -1), ("width", 1), ("height", 1), ("fps", 1), ("seed", -1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValidationError(
                    f"{name} must be a whole number from {least}, found {_shown(value)}", name
                )
        if (self.width is None) != (self.height is None):
            raise ValidationError("width and height must be given together, found only one of them", "width")
        if self.aspect_ratio is not None and not _RATIO.fullmatch(self.aspect_ratio):
            raise ValidationError(
                f'aspect_ratio must be written like "16:9", found {self.aspect_ratio!r}', "aspect_ratio"
            )
        if not isinstance(self.reference_images, tuple):
            raise ValidationError(
                f"reference_images must be a tuple of URLs, found {_shown(self.reference_images)}",
                "reference_images",
            )
        for name, url in self.media_given():
            _check_medium(name, url)

    def media_given(self) -> list[tuple[str, Any]]:
        """Return the media as pairs of the field's name and the URL, in the order of the fields."""
        found = [("first_frame", self.first_frame), ("last_frame", self.last_frame)]
        found += [("reference_images", url) for url in self.reference_images]
        found += [("source_video", self.source_video), ("audio", self.audio)]
        return [(name, url) for name, url in found if url is not None]


def _shown(value: object) -> str:
    """Return a value for a message: what is no short text by its type, since it may be a whole file."""
    is_short = value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) < 80)
    return repr(value) if is_short else f"a {type(value).__name__}"


def _check_medium(name: str, url: object) -> None:
    if not isinstance(url, str):
        raise ValidationError(f"{name} must be a URL, found {_shown(url)}; {_UPLOAD}", name)
    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError:
        scheme = ""
    if scheme == "data":
        raise ValidationError(f"{name} must be a URL, found a data: URI with the file in it; {_UPLOAD}", name)
    if not scheme or "://" not in url:
        raise ValidationError(
            f"{name} must be a URL like https://…, found {_shown(url)}: no path and no base64; {_UPLOAD}",
            name,
        )


@persistent("video.video", version=1)
@frozen(kw_only=True)
class Video:
    """One video that was made, at the vendor: copy it before the vendor deletes it."""

    url: str
    cover_url: str | None = None
    #: In seconds.
    duration: float | None = None
    #: In pixels.
    width: int | None = None
    height: int | None = None
    #: What else the vendor says about it.
    metadata: Mapping[str, Any] = field(factory=dict, converter=_frozen)


@persistent("video.response", version=1)
@frozen(kw_only=True)
class VideoResponse:
    """What became of a request. How long its URLs live is ``Task.result_expires_at``."""

    videos: tuple[Video, ...] = field(converter=_listed)
    #: What the vendor counts, like ``{"second": 5}``.
    usage: Mapping[str, int] = field(factory=dict, converter=_frozen)
    #: The vendor's own facts about the job.
    metadata: Mapping[str, Any] = field(factory=dict, converter=_frozen)

    @property
    def url(self) -> str:
        """Where the first video is."""
        return self.videos[0].url

    def __str__(self) -> str:
        """Return what a person wants to see: where the videos are."""
        return "\n".join(video.url for video in self.videos)
