"""The protocol of Gitee AI's videos; see ``coatcheck_video.gitee`` for where its facts come from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_video.sandbox import media

#: What each path wants to be told, and which of it names the job.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "generations": ("prompt", "model"),
    "image-to-video": ("prompt", "model", "image_url"),
    "audio-video-to-video": ("ref_video", "model", "ref_audio"),
}
_UPLOADED = ("model", "ref_image", "drive_video")
_CREATED = 1_767_000_000_000


class GiteeSandbox(VendorSandbox):
    """Answers like Gitee AI. A job goes as its prompt says, or the URL of its video; uploads go as ever."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "waiting",
        "running": "in_progress",
        "succeeded": "success",
        "failed": "failure",
        "canceled": "cancelled",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the handler here."""
        return {"COATCHECK_VIDEO_GITEE_URL": f"{url}/v1", "GITEE_AI_API_KEY": "sandbox-key"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "async", "videos", "image-video-to-video"):
                return self._submit_files(request)
            case ("POST", "v1", "async", "videos", kind) if kind in _NEEDED:
                return self._submit(request, _NEEDED[kind])
            case ("GET", "v1", "task", job_id) | ("GET", "api", "v1", "task", job_id):
                return self.query(request, job_id, lambda job: self._show(request, job))
            case ("POST", "api", "v1", "task", job_id, "cancel"):
                return self._cancel(request, job_id)
            case ("GET", "files", job_id, _):
                return self.file(request, job_id, lambda _: media.video())
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        error = {"code": f"E{status}", "type": "sandbox", "message": "as scripted"}
        return Answer.json({"error": error}, status, headers=headers)

    def _submit(self, request: Request, needed: tuple[str, ...]) -> Answer:
        said = request.json()
        if not all(said.get(name) for name in needed):
            return self.refuse(400)
        return self.submit(request, said[needed[0]], lambda job: self._show(request, job), **said)

    def _submit_files(self, request: Request) -> Answer:
        parts = request.parts()
        if not all(name in parts and parts[name].content for name in _UPLOADED):
            return self.refuse(400)
        return self.submit(request, "upload", lambda job: self._show(request, job))

    def _cancel(self, request: Request, job_id: str) -> Answer:
        def show(job: Job) -> Answer:
            return self.refuse(400) if job.script.cancel == "refused" else self._show(request, job)

        return self.cancel(request, job_id, show)

    def _show(self, request: Request, job: Job) -> Answer:
        home = f"{public_url(request)}/api/v1/task/{job.id}"
        shown: dict[str, Any] = {
            "task_id": job.id,
            "status": self.word(job),
            "created_at": _CREATED,
            "urls": {"get": home, "cancel": f"{home}/cancel"},
        }
        if job.state == "failed":
            shown["output"] = {"error": f"will not make {job.name}"}
        elif job.state == "succeeded":
            place = f"{public_url(request)}/files/{job.id}/video.mp4"
            shown |= {
                "output": {"file_url": place},
                "completed_at": _CREATED,
                "price": 0.5,
                "currency": "CNY",
            }
        return Answer.json(shown)
