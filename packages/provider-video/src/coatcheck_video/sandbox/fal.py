"""The protocol of fal's queue; see ``coatcheck_video.fal`` for where its facts come from."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar

from coatcheck import codec
from coatcheck.http import Call
from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_video.callbacks.fal import JWKS_VARIABLE, FalSigner
from coatcheck_video.sandbox import media

_JWKS = (".well-known", "jwks.json")


class FalSandbox(VendorSandbox):
    """Answers like fal. A job goes as its prompt says, or the first URL among its inputs."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "IN_QUEUE",
        "running": "IN_PROGRESS",
        "succeeded": "COMPLETED",
        "failed": "COMPLETED",
        "canceled": "COMPLETED",
    }

    @cached_property
    def signer(self) -> FalSigner:
        """What signs the callbacks; needs ``coatcheck-video[fal]``."""
        return FalSigner()

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead the handler here."""
        return {
            "COATCHECK_VIDEO_FAL_URL": url,
            "FAL_KEY": "sandbox-id:sandbox-secret",
            JWKS_VARIABLE: f"{url}/{'/'.join(_JWKS)}",
        }

    def answer(self, request: Request) -> Answer:
        """Answer one request. What follows the first two parts of a model's path belongs to the submit."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("GET", *place) if tuple(place) == _JWKS:
                return Answer.json(self.signer.jwks())
            case ("GET", "files", job_id, _):
                return self.file(request, job_id, lambda _: media.video())
            case ("GET", _, _, "requests", job_id, "status"):
                return self.query(request, job_id, self._status)
            case ("GET", _, _, "requests", job_id):
                return self.result(request, job_id, lambda job: self._result(request, job))
            case ("PUT", _, _, "requests", job_id, "cancel"):
                return self._cancel(request, job_id)
            case ("POST", owner, alias, *_):
                return self._submit(request, f"{owner}/{alias}")
        return self.refuse(404)

    def token_of(self, request: Request) -> str | None:
        """Return the key of a request."""
        scheme, _, token = (request.header("authorization") or "").partition(" ")
        return token or None if scheme.lower() == "key" else None

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        return Answer.json({"detail": f"{status}, as scripted"}, status, headers=headers)

    def callback(self, job: Job, url: str) -> Call | None:
        """Tell of an end."""
        if not job.is_end:
            return None
        is_good = job.state == "succeeded"
        shown: dict[str, Any] = {
            "request_id": job.id,
            "gateway_request_id": job.id,
            "status": "OK" if is_good else "ERROR",
            "payload": {} if is_good else None,
            "error": None if is_good else "as scripted",
        }
        body = codec.dumps(shown)
        headers = self.signer.sign(job.id, "sandbox-user", datetime.now(UTC), body)
        return Call("POST", url, body=body, headers={"Content-Type": "application/json", **headers})

    def _submit(self, request: Request, app: str) -> Answer:
        given = request.json()
        if not isinstance(given, dict):
            return self.refuse(422)
        urls = (value for value in given.values() if isinstance(value, str) and "://" in value)
        name = given.get("prompt") or next(urls, "")
        shown = {"app": app, "callback_url": request.query.get("fal_webhook")}
        return self.submit(request, name, lambda job: self._created(request, job), **shown)

    def _created(self, request: Request, job: Job) -> Answer:
        place = f"{public_url(request)}/{job.facts['app']}/requests/{job.id}"
        shown = {
            "request_id": job.id,
            "gateway_request_id": job.id,
            "status_url": f"{place}/status",
            "response_url": place,
            "cancel_url": f"{place}/cancel",
            "status": self.words["queued"],
            "queue_position": 0,
        }
        return Answer.json(shown)

    def _cancel(self, request: Request, job_id: str) -> Answer:
        """Take the wish; a job whose script refuses it is finished all the same."""
        job = self.jobs.get(job_id)
        is_over = job is not None and job.is_end
        answer = {"status": "ALREADY_COMPLETED" if is_over else "CANCELLATION_REQUESTED"}
        return self.cancel(request, job_id, lambda _: Answer.json(answer, 400 if is_over else 202))

    def _status(self, job: Job) -> Answer:
        shown: dict[str, Any] = {"request_id": job.id, "status": self.word(job)}
        match job.state:
            case "queued":
                shown["queue_position"] = 1
            case "canceled":
                shown |= {"error": "Request was cancelled", "error_type": "client_cancelled"}
            case "succeeded" | "failed":
                shown["metrics"] = {"inference_time": 4.2}
        return Answer.json(shown, 200 if job.is_end else 202)

    def _result(self, request: Request, job: Job) -> Answer:
        if job.state == "failed":
            problem = {
                "loc": ["body", "prompt"],
                "msg": f"will not make {job.name}",
                "type": "content_policy_violation",
            }
            return Answer.json({"detail": [problem]}, 422, headers={"X-Fal-Retryable": "false"})
        if job.state != "succeeded":
            return Answer.json({"detail": "Request is still in progress"}, 400)
        url = self.link(request, job, "video.mp4")
        video = {
            "url": url,
            "content_type": "video/mp4",
            "file_name": "video.mp4",
            "file_size": len(media.MP4),
        }
        return Answer.json({"video": video, "seed": 1})
