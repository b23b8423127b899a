"""The protocol of Ark; see ``coatcheck_video.volcengine`` for where its facts come from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck import codec
from coatcheck.http import Call
from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_video.sandbox import media

_CODES = {
    400: "InvalidParameter",
    401: "AuthenticationError",
    403: "AccountOverdueError",
    404: "InvalidEndpointOrModel.NotFound",
    429: "RateLimitExceeded.EndpointRPMExceeded",
}
_FIELDS = frozenset({
    "model", "content", "resolution", "ratio", "duration", "frames", "seed", "watermark", "camera_fixed",
    "generate_audio", "return_last_frame", "service_tier", "execution_expires_after", "callback_url",
    "safety_identifier", "draft", "priority", "output_format", "tools", "omni_reference_task_type",
})  # fmt: skip
_FRAMES = frozenset({"first_frame", "last_frame", None})
_ROLES: Mapping[str, frozenset[str | None]] = {
    "text": frozenset({None}),
    "image_url": _FRAMES | {"reference_image"},
    "video_url": frozenset({"reference_video"}),
    "audio_url": frozenset({"reference_audio"}),
}


class VolcengineSandbox(VendorSandbox):
    """Answers like Ark. A job goes as its text says, or the URL of its first medium."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "queued",
        "running": "running",
        "succeeded": "succeeded",
        "failed": "failed",
        "canceled": "cancelled",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the handler here."""
        return {"COATCHECK_VIDEO_VOLCENGINE_URL": f"{url}/api/v3", "ARK_API_KEY": "sandbox-key"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "api", "v3", "contents", "generations", "tasks"):
                return self._submit(request)
            case ("GET", "api", "v3", "contents", "generations", "tasks", job_id):
                return self.query(
                    request, job_id, lambda job: Answer.json(_shown(request, job, self.word(job)))
                )
            case ("DELETE", "api", "v3", "contents", "generations", "tasks", job_id):
                return self._delete(request, job_id)
            case ("GET", "files", job_id, _):
                return self.file(request, job_id, lambda _: media.video())
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        error = {"code": _CODES.get(status, f"E{status}"), "message": "as scripted", "param": "", "type": "E"}
        return Answer.json({"error": error}, status, headers=headers)

    def callback(self, job: Job, url: str) -> Call:
        """Tell of any state, with the job as a query shows it and no signature."""
        headers = {"Content-Type": "application/json"}
        body = codec.dumps(_shown(None, job, self.word(job)))
        return Call("POST", url, headers=headers, body=body)

    def _submit(self, request: Request) -> Answer:
        said = request.json()
        content = said.get("content") or []
        roles = {item.get("role") for item in content if item.get("type") != "text"}
        is_known = all(item.get("role") in _ROLES.get(item.get("type"), ()) for item in content)
        is_mixed = bool(roles & _FRAMES) and bool(roles - _FRAMES)
        if not said.get("model") or not content or not is_known or is_mixed or set(said) - _FIELDS:
            return self.refuse(400)
        return self.submit(request, _name(content), lambda job: Answer.json({"id": job.id}), **said)

    def _delete(self, request: Request, job_id: str) -> Answer:
        job = self.jobs.get(job_id)
        if job is None or job.state == "queued":
            return self.cancel(
                request,
                job_id,
                lambda job: self.refuse(400) if job.script.cancel == "refused" else Answer.json({}),
            )

        def delete() -> Answer:
            if job.state in ("running", "canceled"):
                return self.refuse(400)
            del self.jobs[job_id]
            return Answer.json({})

        return self._act("cancel", request, job.script, job_id, delete)


def _name(content: list[dict[str, Any]]) -> str:
    texts = [item["text"] for item in content if item["type"] == "text"]
    return str(next(iter(texts), None) or content[0][content[0]["type"]]["url"])


def _shown(request: Request | None, job: Job, word: str) -> dict[str, Any]:
    """Show a job; a callback has no request to say where the files are."""
    seconds = job.facts.get("duration", 5)
    shown = {"id": job.id, "model": job.facts["model"], "status": word, "error": None}
    if job.state == "failed":
        code = "OutputVideoSensitiveContentDetected"
        shown["error"] = {"code": code, "message": f"will not make {job.name}"}
    elif job.state == "succeeded":
        place = public_url(request) if request is not None else "https://tos.example"
        shown["content"] = {"video_url": f"{place}/files/{job.id}/video.mp4"}
        # Numbers as texts, as seen there.
        shown["usage"] = {"completion_tokens": "108900", "total_tokens": "108900"}
        shown |= {"duration": str(seconds), "resolution": job.facts.get("resolution", "720p"), "seed": 7}
    return shown
