"""The protocol of Runway; see ``coatcheck_video.runway`` for where its facts come from."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox
from coatcheck_video.runway import API_VERSION
from coatcheck_video.sandbox import media

_PLACES = ("text_to_video", "image_to_video", "video_to_video")


class RunwaySandbox(VendorSandbox):
    """Answers like Runway. A job goes as its prompt says, or the URL of its first medium."""

    words: ClassVar[Mapping[str, str]] = {
        # The word that catches who takes it for an error.
        "queued": "THROTTLED",
        "running": "RUNNING",
        "succeeded": "SUCCEEDED",
        "failed": "FAILED",
        "canceled": "CANCELLED",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the handler here."""
        return {"COATCHECK_VIDEO_RUNWAY_URL": url, "RUNWAYML_API_SECRET": "sandbox-key"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("GET", "files", job_id, _):
                return self.file(request, job_id, lambda _: media.video())
            case _ if request.header("x-runway-version") != API_VERSION:
                return self.refuse(400)
            case ("POST", "v1", place) if place in _PLACES:
                return self._submit(request)
            case ("GET", "v1", "tasks", job_id):
                return self.query(request, job_id, lambda job: self._show(request, job))
            case ("DELETE", "v1", "tasks", job_id):
                return self.cancel(request, job_id, self._delete)
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        issue = {"path": ["promptText"], "message": "as scripted"}
        return Answer.json({"error": f"{status}, as scripted", "issues": [issue]}, status, headers=headers)

    def _submit(self, request: Request) -> Answer:
        said = request.json()
        if not said.get("model"):
            return self.refuse(400)
        name = said.get("promptText") or next(_urls(said), "")
        return self.submit(request, name, _created)

    def _delete(self, job: Job) -> Answer:
        """Forget a job, whether it has been stopped now or had ended before."""
        job.facts = {"is_deleted": True}
        return Answer(204)

    def _show(self, request: Request, job: Job) -> Answer:
        if job.facts.get("is_deleted"):
            return self.refuse(404)
        shown: dict[str, Any] = {
            "id": job.id,
            "status": self.word(job),
            "createdAt": "2026-01-02T03:04:05.000Z",
        }
        if not job.is_end:
            shown["estimatedCost"] = {"credits": 25}
            if job.state == "running":
                shown["progress"] = (job.progress or 0) / 100
            return Answer.json(shown)
        shown["cost"] = {"credits": 25 if job.state == "succeeded" else 0}
        if job.state == "succeeded":
            shown["output"] = [self.link(request, job, "video.mp4")]
        elif job.state == "failed":
            shown |= {"failure": f"will not make {job.name}", "failureCode": "SAFETY.INPUT.TEXT"}
        return Answer.json(shown)


def _created(job: Job) -> Answer:
    return Answer.json({"id": job.id, "estimatedCost": {"credits": 25}})


def _urls(value: Any) -> Iterator[str]:
    """Return the URLs in a body, in their order."""
    if isinstance(value, str) and "://" in value:
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _urls(one)
