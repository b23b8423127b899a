"""The vendor's protocol, spoken on this machine: for development and tests. No picture is drawn."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck.sandbox import Answer, Job, Request, VendorSandbox


class ThumbnailSandbox(VendorSandbox):
    """Speaks as the vendor does; how a job goes may be said by the picture's name."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "waiting",
        "running": "drawing",
        "succeeded": "done",
        "failed": "failed",
        "canceled": "canceled",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the handler here."""
        return {"COATCHECK_THUMBNAIL_URL": f"{url}/v1", "COATCHECK_ACCOUNT_THUMBNAIL": "sandbox-key"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "thumbnails"):
                return self._submit(request)
            case ("GET", "v1", "thumbnails", job_id):
                return self.query(request, job_id, self._show)
            case ("DELETE", "v1", "thumbnails", job_id):
                return self.cancel(request, job_id, self._show_cancel)
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] | None = None) -> Answer:
        """Return an error."""
        return Answer.json({"reason": {"code": f"e{status}", "text": "no"}}, status, headers=headers or {})

    def _submit(self, request: Request) -> Answer:
        wanted, key = request.json(), request.header("idempotency-key")
        for job in self.jobs.values():
            if job.facts["key"] == key:
                return self.result(request, job.id, self._show)
        return self.submit(request, wanted["url"], self._show, width=wanted["width"], key=key)

    def _show(self, job: Job) -> Answer:
        shown: dict[str, Any] = {"id": job.id, "state": self.word(job)}
        if job.state == "running":
            shown["percent"] = job.progress
        elif job.state == "failed":
            shown["reason"] = {"code": "no_picture", "text": f"cannot draw {job.name}"}
        elif job.state == "succeeded":
            width = job.facts["width"]
            url = f"https://files.thumbnails.example/{job.id}.png"
            shown["image"] = {"url": url, "width": width, "height": width * 3 // 4}
        return Answer.json(shown)

    def _show_cancel(self, job: Job) -> Answer:
        if job.state == "canceled" or job.is_stopping:
            return self._show(job)
        return self.refuse(409)
