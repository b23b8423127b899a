"""``VideoHandler``: what all video vendors over HTTP have in common; a vendor adds paths, words and shapes.

Here are the checks of a request and the way from a finished job to a response; what is not about videos is in
``coatcheck.http.VendorHandler``. No vendor is known here and nothing does I/O.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

import attrs
from attrs import field, frozen

from coatcheck.errors import ValidationError
from coatcheck.http import Follow, Reply, VendorHandler, VendorJob, check_callback_url
from coatcheck.model import QueryResult
from coatcheck_video.capability import ANYTHING, VideoModel, modes_of
from coatcheck_video.model import Video, VideoMode, VideoRequest, VideoResponse

#: Fields of a request that are no words to the vendor, or that every vendor takes.
_ALWAYS = frozenset({"prompt", "mode", "model", "options"})
_FIELDS = tuple(attribute.name for attribute in attrs.fields(VideoRequest) if attribute.name not in _ALWAYS)


@frozen(kw_only=True)
class VideoJob(VendorJob):
    """What one reply says about a job, and what the job gives."""

    videos: tuple[Video, ...] = ()
    #: What the vendor counts, like ``{"second": 5}``; see ``counted``.
    usage: Mapping[str, int] = field(factory=dict)
    #: Small facts about the job; no secrets.
    metadata: Mapping[str, Any] = field(factory=dict)


class VideoHandler(VendorHandler[VideoRequest, VideoJob]):
    """Base of the video vendors; a subclass sets the attributes below and defines four methods.

    These are ``submit_call``, ``query_call``, ``read_submitted`` and ``read_job``; see ``VendorHandler``.
    """

    job_type = VideoJob
    #: What the vendor's models take, by their names; any other model is not restricted.
    models: ClassVar[Mapping[str, VideoModel]] = {}
    #: The model for a kind of request that names none; ``default_model`` for the rest.
    default_models: ClassVar[Mapping[VideoMode, str]] = {}
    #: The fields of a request, beside prompt, mode, model and options, that can be said to the vendor.
    takes: ClassVar[frozenset[str]] = frozenset()

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make.

        Raises:
            ValidationError: a value, a medium or a combination is not for this vendor or model.
            UnknownNameError: no option has that name.
        """
        super().validate(params)
        for name in _FIELDS:
            if name not in self.takes and getattr(params, name) not in (None, ()):
                raise ValidationError(
                    f"{self.key} cannot be told {name}; leave it out, or see the vendor's options", name
                )
        for name, url in params.media_given():
            self.check_url(url, name)
        calls = self.options(params).get("callback_url")
        if calls is not None:
            check_callback_url(calls)
        self.mode(params)

    def model(self, request: VideoRequest) -> str | None:
        """Return the model to name: the request's, else the default for its kind."""
        if request.model is not None:
            return request.model
        wanted = modes_of(request) if request.mode is None else (request.mode, *modes_of(request))
        found = (self.default_models[mode] for mode in wanted if mode in self.default_models)
        return next(found, self.default_model)

    def capability(self, request: VideoRequest) -> VideoModel:
        """Return what the model of a request takes; override where names follow a pattern."""
        return self.models.get(self.model(request) or "", ANYTHING)

    def mode(self, request: VideoRequest) -> VideoMode:
        """Return the mode of a request for its model.

        Raises:
            ValidationError: see ``VideoModel.check``.
        """
        return self.capability(request).check(request, self.model(request) or self.key)

    def finish(self, job: VideoJob, *, at_once: bool = False) -> QueryResult | Follow:
        """Return the response of a job that succeeded; without a video it failed ``no_result``."""
        if not job.videos:
            return QueryResult.failed(
                "no_result",
                "the vendor calls the job done and gives no video; look at it there",
                provider_status=job.word,
                usage=dict(job.usage) or None,
            )
        known = {name: value for name, value in job.metadata.items() if value is not None}
        return self.succeeded(job, VideoResponse(videos=job.videos, usage=dict(job.usage), metadata=known))


def videos_of(urls: Iterable[object], **more: Any) -> tuple[Video, ...]:
    """Return a video for each different web address out of what stands in its place.

    Args:
        urls: what the vendor has there.
        more: fields that all of them share.
    """
    found = dict.fromkeys(
        url for url in urls if isinstance(url, str) and url.startswith(("https://", "http://"))
    )
    return tuple(Video(url=url, **more) for url in found)


def number_of(value: object) -> float | None:
    """Return a finite number, which some vendors write as a text; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def counted(**units: object) -> dict[str, int]:
    """Return usage in whole units, a begun one in full; what is no number from 0 is left out."""
    found = {unit: number_of(value) for unit, value in units.items()}
    return {unit: math.ceil(count) for unit, count in found.items() if count is not None and count >= 0}


def life_left(life: timedelta, since: object, reply: Reply) -> timedelta | None:
    """Return how long a result is still kept, by the vendor's own clock, or ``None`` where that is not said.

    For vendors that give the same link whenever they are asked.

    Args:
        life: how long the vendor keeps it.
        since: from when on, in seconds since the epoch.
        reply: what the vendor said that in; its ``Date`` is the time.
    """
    seconds = number_of(since)
    try:
        now = parsedate_to_datetime(reply.header("date") or "")
        left = life - (now - datetime.fromtimestamp(seconds or 0, UTC))
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    return min(max(left, timedelta(seconds=1)), life) if seconds else None


def size_of(request: VideoRequest, between: str) -> str | None:
    """Return width and height as one text, like ``"1280*720"``; ``None`` where they are not given."""
    return None if request.width is None else f"{request.width}{between}{request.height}"
