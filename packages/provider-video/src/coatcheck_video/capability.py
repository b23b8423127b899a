"""``VideoModel``: what one model of a vendor takes, as data, and how a request is held against it.

Also how the mode of a request is inferred from its media. No vendor is known here; their tables stand in
their own modules.
"""

from collections.abc import Collection

from attrs import frozen

from coatcheck.errors import ValidationError
from coatcheck_video.model import VideoMode, VideoRequest


def infer(request: VideoRequest, *, with_audio: bool = True) -> VideoMode:
    """Return the mode that the media of a request make.

    Args:
        request: the request; its own ``mode`` is not looked at.
        with_audio: whether its audio counts as what drives the video, and not as mere accompaniment.
    """
    has_frames = request.first_frame is not None or request.last_frame is not None
    has_images = has_frames or bool(request.reference_images)
    if with_audio and request.audio is not None:
        return VideoMode.OMNI if has_images else VideoMode.AUDIO_DRIVEN
    if request.source_video is not None:
        return VideoMode.OMNI if has_images else VideoMode.VIDEO_TO_VIDEO
    if request.reference_images:
        return VideoMode.OMNI if has_frames else VideoMode.REFERENCE_IMAGES
    if request.last_frame is not None:
        return VideoMode.FIRST_LAST_FRAME
    return VideoMode.FIRST_FRAME if request.first_frame is not None else VideoMode.TEXT


def modes_of(request: VideoRequest) -> tuple[VideoMode, ...]:
    """Return the modes that a request may be meant in: with its audio as driver, and as accompaniment."""
    return tuple(dict.fromkeys((infer(request), infer(request, with_audio=False))))


@frozen(kw_only=True)
class VideoModel:
    """What one model takes. ``None`` restricts nothing; an empty list refuses every explicit value."""

    modes: Collection[VideoMode] | None = None
    #: Tiers, as the vendor spells them.
    resolutions: Collection[str] | None = None
    ratios: Collection[str] | None = None
    #: In seconds.
    durations: Collection[int] | None = None
    #: Width and height in pixels.
    sizes: Collection[tuple[int, int]] | None = None
    #: Allowed values of ``generate_audio``: ``(True,)`` always has sound, ``(False,)`` never.
    sound: Collection[bool] | None = None
    #: Whether an audio file is taken beside the media of a mode, which it then does not change.
    audio: bool | None = None
    #: The fields of media beside an audio, where modes alone say too much.
    media: Collection[str] | None = None
    #: The most reference images.
    references: int | None = None

    def check(self, request: VideoRequest, name: str) -> VideoMode:
        """Return the mode of a request, or refuse what the model does not take.

        Args:
            request: the request.
            name: of the model, for messages.

        Raises:
            ValidationError: the first value that is not allowed, with those that are.
        """
        if request.resolution is not None and self.resolutions is not None:
            _check(name, "resolution", request.resolution.lower(), [one.lower() for one in self.resolutions])
        _check(name, "aspect_ratio", request.aspect_ratio, self.ratios)
        _check(name, "duration", request.duration, self.durations)
        if request.width is not None and request.height is not None:
            _check(name, "width", (request.width, request.height), self.sizes)
        mode = self.mode(request, name)
        _check(name, "generate_audio", request.generate_audio, self.sound)
        if self.references is not None and len(request.reference_images) > self.references:
            raise ValidationError(
                f"{name} takes at most {self.references} reference_images, "
                f"found {len(request.reference_images)}",
                "reference_images",
            )
        return mode

    def mode(self, request: VideoRequest, name: str) -> VideoMode:
        """Return the mode that this model makes of a request; see ``check``."""
        if request.last_frame is not None and request.first_frame is None:
            raise ValidationError("a last_frame must come with a first_frame, found it alone", "last_frame")
        if request.audio is not None and self.audio is False:
            raise ValidationError(f"{name} takes no audio; leave it out", "audio")
        for field, _ in request.media_given():
            if field != "audio" and self.media is not None and field not in self.media:
                raise ValidationError(
                    f"{name} takes no {field}; leave it out, or choose another model", field
                )
        possible = modes_of(request) if self.audio is not False else (infer(request),)
        if request.mode is VideoMode.OMNI and request.media_given():
            possible = (VideoMode.OMNI, *possible)
        if request.mode is not None:
            if request.mode not in possible:
                raise ValidationError(
                    f"mode is {request.mode}, but the media of the request make it {possible[0]}; "
                    "leave mode out, or give the media that it needs",
                    "mode",
                )
            possible = (request.mode,)
        mode = next((one for one in possible if self.modes is None or one in self.modes), None)
        if mode is None:
            raise ValidationError(
                f"{name} makes videos from {', '.join(self.modes or ())}, found {possible[0]}; "
                "choose another model or other media",
                "mode",
            )
        if mode is VideoMode.TEXT and request.prompt is None:
            raise ValidationError("a video from text must have a prompt, found none", "prompt")
        return mode

    def spelled(self, resolution: str | None) -> str | None:
        """Return a resolution as the vendor spells it."""
        for one in self.resolutions or ():
            if resolution is not None and one.lower() == resolution.lower():
                return one
        return resolution


#: A model that nobody knows.
ANYTHING = VideoModel()


def _check(model: str, name: str, value: object, allowed: Collection[object] | None) -> None:
    if value is None or allowed is None or value in allowed:
        return
    if not allowed:
        raise ValidationError(f"{model} has no {name} to choose; leave it out, found {value!r}", name)
    listed = ", ".join(str(one) for one in allowed)
    raise ValidationError(f"{name} of {model} must be one of {listed}, found {value!r}", name)
