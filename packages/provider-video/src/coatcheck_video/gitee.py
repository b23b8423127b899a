"""``video:gitee``: Gitee AI, also called MoArk, at ai.gitee.com.

Facts are from the agents-flex adapter (AF), whose mapping is sure, and from samples of third parties (3P);
``(1)`` marks what one weaker source says, ``(?)`` what is not sure:

- Four submit paths below ``/async/videos``, by the media (AF). Text and a first frame are JSON with a prompt;
    a video with an audio is JSON without one; a video with an image is multipart with the bytes of both,
    without a prompt. Others send a first frame as multipart, too (1).
- Which further fields a model reads is not said. AF sends none but options; those that other clients use are
    ``negative_prompt``, ``num_frames``, ``num_inference_steps``, ``guidance_scale``, ``width``, ``height``,
    ``fps`` and ``seed``, and with an image and a video ``guidance``, ``steps``, ``lora``, ``checkpoint``,
    ``version`` and ``stylize``.
- Model names are case-sensitive (AF).
- Query: GET ``/v1/task/{id}``, also below ``/api/v1`` (AF, 3P). Words: AF; ``pending``, ``is_process`` and
    ``error`` (1). Times are epoch milliseconds; ``price`` is in ``currency``.
- The reason of a failure is in ``message``, ``error_message`` or ``output.error`` (AF).
- The result stands somewhere in ``output``: a text, an object, nested or listed (AF). Its link is good for
    a day (DOC); a signature for 7 days was seen (1).
- Errors ``{"error": {"code", "type", "message"}}`` or a plain ``message``; which codes and limits there are
    is not known (?).
- Cancel: POST ``/api/v1/task/{id}/cancel`` (3P). No list, no callback, no idempotency key.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from attrs import frozen

from coatcheck.errors import ValidationError
from coatcheck.http import Call, FromUrl, Reply, VendorOptions, path
from coatcheck.http.call import Parts
from coatcheck.http.form import form_parts
from coatcheck.http.options import number, whole
from coatcheck.http.read import error_of, id_of, members, members_if_any, shortened, text_of, within
from coatcheck.http.vendor import CANCELED, FAILED, REFUSALS, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import CancelResult, QueryContext, QueryParams, SubmitContext, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck_video.capability import VideoModel
from coatcheck_video.handler import VideoHandler, VideoJob, videos_of
from coatcheck_video.model import VideoMode, VideoRequest

_BYTES = "application/octet-stream"
_TEXT = VideoModel(modes=(VideoMode.TEXT,))
_TEXT_OR_BOTH = VideoModel(modes=(VideoMode.TEXT, VideoMode.OMNI))
_FIRST = VideoModel(modes=(VideoMode.FIRST_FRAME,))


@frozen(kw_only=True, eq=False)
class GiteeOptions(VendorOptions):
    """What ``VideoRequest.options`` may hold for ``video:gitee``; which count depends on the model."""

    #: The length in frames.
    num_frames: int | None = whole(1, 100_000)
    num_inference_steps: int | None = whole(1, 1000)
    guidance_scale: float | None = number(0, 1000)


class GiteeHandler(VideoHandler):
    """Makes videos at Gitee AI; media are http and https URLs.

    For a video that is driven by an image the handler fetches both and sends them on.
    """

    key = "video:gitee"
    account = "gitee"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("GITEE_AI_API_KEY",)}
    base_url = "https://ai.gitee.com/v1"
    options_type = GiteeOptions
    default_model = "happyhorse-1.1"
    default_models: ClassVar[Mapping[VideoMode, str]] = {
        VideoMode.FIRST_FRAME: "Wan2_2-I2V-A14B",
        VideoMode.OMNI: "Wan2.7",
        VideoMode.AUDIO_DRIVEN: "Duix.Heygem",
    }
    models: ClassVar[Mapping[str, VideoModel]] = {
        "happyhorse-1.1": _TEXT,
        "Wan2.1-T2V-14B": _TEXT,
        "ViduQ3-Turbo": _TEXT,
        "ViduQ3-Pro": _TEXT,
        "ViduQ2-Turbo": _TEXT,
        "ViduQ2-Pro": _TEXT,
        "HunyuanVideo-1.5": _TEXT,
        "HappyHorse-1.0": _TEXT_OR_BOTH,
        "Wan2.7": _TEXT_OR_BOTH,
        "LTX-2": _FIRST,
        "Wan2_2-I2V-A14B": _FIRST,
        "InfiniteTalk": _FIRST,
        "Duix.Heygem": VideoModel(modes=(VideoMode.AUDIO_DRIVEN,)),
    }
    takes = frozenset({
        "negative_prompt", "first_frame", "reference_images", "source_video", "audio", "width", "height",
        "fps", "seed",
    })  # fmt: skip
    poll = PollPolicy.exponential(timedelta(seconds=5))
    #: Room for the fetch and the upload.
    call_limit = timedelta(seconds=600)
    result_life = timedelta(days=1)
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "waiting": SUBMITTED,
        "pending": SUBMITTED,
        "in_progress": RUNNING,
        "is_process": RUNNING,
        "success": SUCCEEDED,
        "failure": FAILED,
        "failed": FAILED,
        "error": FAILED,
        "cancelled": CANCELED,
        "canceled": CANCELED,
    }

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not make; see ``VideoHandler.validate``."""
        super().validate(params)
        images = [url for url in (params.first_frame, *params.reference_images) if url is not None]
        if params.source_video is None:
            for name in ("audio", "reference_images"):
                if getattr(params, name):
                    raise ValidationError(
                        f"{name} must come with a source_video for {self.key}; add one, or leave {name} out",
                        name,
                    )
            if params.prompt is None:
                raise ValidationError("a video from an image must have a prompt, found none", "prompt")
            return
        if len(images) + (params.audio is not None) != 1:
            raise ValidationError(
                f"for {self.key} a source_video comes with one image (first_frame or reference_images) or "
                "with an audio, and nothing else",
                "source_video",
            )
        if params.prompt is not None:
            raise ValidationError(f"{self.key} has no prompt beside a source_video; leave it out", "prompt")

    def submit_call(self, params: VideoRequest, context: SubmitContext) -> Call:
        """Describe the submit, whose path and form depend on the media."""
        said = self.fields(
            params,
            model=self.model(params),
            prompt=params.prompt,
            negative_prompt=params.negative_prompt,
            width=params.width,
            height=params.height,
            fps=params.fps,
            seed=params.seed,
        )
        kind = "generations"
        if params.source_video is not None and params.audio is not None:
            kind = "audio-video-to-video"
            said |= {"ref_audio": params.audio, "ref_video": params.source_video}
        elif params.source_video is not None:
            (image,) = (url for url in (params.first_frame, *params.reference_images) if url is not None)
            return _upload(said, image, params.source_video)
        elif params.first_frame is not None:
            kind = "image-to-video"
            said["image_url"] = params.first_frame
        return Call("POST", path("async", "videos", kind), json=said, accept=REFUSALS)

    def read_submitted(self, reply: Reply, request: VideoRequest) -> VideoJob:
        """Read the reply to the submit."""
        if not reply.is_success:
            return self.refused(reply)
        body = members(reply)
        job_id, word = id_of(body, "task_id"), body.get("status")
        if word is not None:
            return self._job(body, word)
        if job_id is None and "error" in body:
            return self.judge(*error_of(body), creating=True)
        return VideoJob(status=SUBMITTED, id=job_id)

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("task", params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> VideoJob:
        """Read the reply to the query."""
        body = members(reply)
        word = body.get("status")
        if word is None and "error" in body:
            return self.judge(*error_of(body), creating=False)
        return self._job(body, word)

    def cancel_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the cancel, which is below ``/api/v1`` and not below ``/v1`` like the rest."""
        home = self.base_url.removesuffix("/v1")
        place = path("api", "v1", "task", params.external_task_id, "cancel")
        return Call("POST", home + place, accept=(400, 403, 409))

    def read_cancel(self, reply: Reply, params: QueryParams, context: QueryContext) -> CancelResult:
        """Read the reply to the cancel; without a word in it the next query says what became of the job."""
        body = members_if_any(reply)
        if not reply.is_success:
            code, message = error_of(body)
            return CancelResult.refused(f"the vendor does not stop the job: {code or reply.status} {message}")
        word = text_of(body, "status")
        return CancelResult.accepted() if word is None else self.read_stopped(word)

    def _job(self, body: Mapping[str, Any], word: object) -> VideoJob:
        status, output = self.status_of(word), body.get("output")
        code, message = error_of(body)
        reason = text_of(body, "message", "error_message") or text_of(output, "error", "message")
        return VideoJob(
            status=status,
            id=id_of(body, "task_id"),
            word=str(word),
            code=code or "failed",
            message=shortened(reason or message),
            videos=videos_of(_urls(output), cover_url=text_of(output, "cover_url", "poster_url")),
            metadata={
                name: value
                for name in ("price", "currency", "created_at", "started_at", "completed_at")
                if isinstance(value := body.get(name), str | int | float)
            },
        )


def _upload(said: Mapping[str, Any], image: str, video: str) -> Call:
    """Return the submit of a video that an image takes part in: both are fetched and sent on."""
    parts: dict[str, Parts] = {name: form_parts(value) for name, value in said.items()}
    parts["ref_image"] = FromUrl(image, filename="ref_image", content_type=_BYTES)
    parts["drive_video"] = FromUrl(video, filename="drive_video", content_type=_BYTES)
    return Call(
        "POST",
        path("async", "videos", "image-video-to-video"),
        multipart=parts,
        timeout=timedelta(seconds=300),
        accept=REFUSALS,
    )


def _urls(value: object) -> Iterator[object]:
    """Return what may be a link in an output, wherever the model has put it."""
    if isinstance(value, list):
        for one in value:
            yield from _urls(one)
    elif isinstance(value, Mapping):
        yield from (within(value, name) for name in ("file_url", "video_url", "url"))
        for name in ("videos", "data", "output"):
            yield from _urls(value.get(name))
    else:
        yield value
