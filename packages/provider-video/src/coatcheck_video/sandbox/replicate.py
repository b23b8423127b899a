"""The protocol of Replicate; see ``coatcheck_video.replicate`` for where its facts come from."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from coatcheck import codec
from coatcheck.http import Call
from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox
from coatcheck_video.callbacks.replicate import sign
from coatcheck_video.sandbox import media

#: What callbacks are signed with.
SIGNING_SECRET = "whsec_c2FuZGJveC1zaWduaW5nLWtleQ=="  # noqa: S105  # a made-up one
_TITLES = {401: "Unauthenticated", 404: "Not found", 422: "Input validation failed", 429: "Too many requests"}


class ReplicateSandbox(VendorSandbox):
    """Answers like Replicate. A job goes as its prompt says, or the first URL among its inputs."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "starting",
        "running": "processing",
        "succeeded": "succeeded",
        "failed": "failed",
        "canceled": "canceled",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the handler here."""
        return {
            "COATCHECK_VIDEO_REPLICATE_URL": url,
            "REPLICATE_API_TOKEN": "sandbox-key",
            "REPLICATE_WEBHOOK_SECRET": SIGNING_SECRET,
        }

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "models" | "deployments", _, _, "predictions"):
                return self._submit(request)
            case ("POST", "v1", "predictions"):
                return self._submit(request, "version")
            case ("GET", "v1", "predictions", job_id):
                return self.query(request, job_id, lambda job: self._show(request, job))
            case ("POST", "v1", "predictions", job_id, "cancel"):
                return self.cancel(request, job_id, lambda job: self._show(request, job))
            case ("GET", "files", job_id, _):
                return self.file(request, job_id, lambda _: media.video())
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        title = _TITLES.get(status, "Refused")
        return Answer.json(
            {"type": "about:blank", "title": title, "status": status, "detail": f"{title}, as scripted"},
            status,
            headers=headers,
        )

    def full(self) -> Answer:
        """Return a throttle that says in words how long it lasts."""
        return Answer.json({"detail": "Request was throttled. Your rate limit resets in ~0.1s."}, 429)

    def callback(self, job: Job, url: str) -> Call | None:
        """Tell of an end."""
        if not job.is_end:
            return None
        body = codec.dumps(self._prediction(job, None))
        headers = sign(SIGNING_SECRET, f"msg-{job.id}", datetime.now(UTC), body)
        return Call("POST", url, body=body, headers={"Content-Type": "application/json", **headers})

    def remove(self) -> None:
        """Remove what all jobs made, as the vendor does after an hour; the jobs are still there."""
        with self._lock:
            for job in self.jobs.values():
                job.facts = {**job.facts, "data_removed": True}

    def _submit(self, request: Request, *needed: str) -> Answer:
        said = request.json()
        given = said.get("input")
        if not isinstance(given, dict) or any(not said.get(name) for name in needed):
            return self.refuse(422)
        urls = (value for value in given.values() if isinstance(value, str) and "://" in value)
        name = given.get("prompt") or next(urls, "")
        shown = {"input": given, "callback_url": said.get("webhook")}
        return self.submit(request, name, lambda job: self._created(request, job), **shown)

    def _created(self, request: Request, job: Job) -> Answer:
        """Show a new job; only who waits for its end can see it here."""
        if job.is_end and not (request.header("prefer") or "").startswith("wait"):
            return Answer.json({**self._prediction(job, None), "status": self.words["queued"]}, 201)
        return Answer.json(self._prediction(job, self.link(request, job, "video.mp4")), 201)

    def _show(self, request: Request, job: Job) -> Answer:
        return Answer.json(self._prediction(job, self.link(request, job, "video.mp4")))

    def _prediction(self, job: Job, url: str | None) -> dict[str, Any]:
        is_removed = job.facts.get("data_removed", False)
        shown: dict[str, Any] = {
            "id": job.id,
            "model": "sandbox/model",
            "version": "v1",
            "status": self.word(job),
            "input": {} if is_removed else job.facts["input"],
            "output": None,
            "error": None,
            "logs": "" if job.progress is None else f"\r {job.progress:g}%|#####     | 5/10",
            "metrics": {},
            "data_removed": is_removed,
            "created_at": "2026-01-02T03:04:05Z",
        }
        if job.state == "failed":
            shown["error"] = f"will not make {job.name} (E005)"
        elif job.state == "succeeded":
            shown["metrics"] = {"predict_time": 4.2, "total_time": 5.5}
            shown["output"] = None if is_removed else url
        return shown
