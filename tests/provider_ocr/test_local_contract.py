"""``ocr:local`` keeps the contract of handlers; its vendor is the spool, set up state by state."""

import shutil
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from tests.provider_ocr.conftest import Sleepers

from coatcheck import QueryParams
from coatcheck.testing.handler_contract import HandlerContract
from coatcheck_ocr.local.handler import LocalOcrHandler
from coatcheck_ocr.local.spool import Folder, JobState, JobStatus, Spool
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.samples import load_samples

Situation = Callable[[], QueryParams | None]


class TestLocalOcrHandler(HandlerContract):
    """The rules of handlers, over jobs that are only states in a folder."""

    @pytest.fixture
    def handler(self, spool: Spool, monkeypatch: pytest.MonkeyPatch) -> LocalOcrHandler:
        """A handler whose jobs are started as sleepers."""
        monkeypatch.setattr("coatcheck_ocr.local.handler.open_spool", lambda _path: spool)
        return LocalOcrHandler(spool.path)

    @pytest.fixture
    def params(self) -> OcrRequest:
        """A document that this machine can read."""
        return load_samples()[0].request

    @pytest.fixture
    def recordings(self, spool: Spool, sleepers: Sleepers, params: OcrRequest) -> dict[str, Situation]:
        """The states that a job can be found in."""

        def job(**changes: Any) -> Callable[[], QueryParams]:
            def arrange() -> QueryParams:
                folder = spool.folder(spool.submit("job-1", params))
                folder.write_result(OcrResponse(markdown="# text", usage={"page": 1}))
                folder.write_state(attrs.evolve(JobState(attempt=1), **changes))
                return QueryParams(folder.name, spool=str(spool.path))

            return arrange

        def lost() -> QueryParams:
            gone = job()()
            shutil.rmtree(Folder(spool.path / gone.external_task_id).path)
            return gone

        return {
            "accepted": lambda: None,
            "running": job(status=JobStatus.RUNNING, page=1, pages=3),
            "succeeded": job(status=JobStatus.SUCCEEDED),
            "failed": job(status=JobStatus.FAILED, code="broken_document", message="page 1 cannot be read"),
            "query_lost": lost,
            "cancel_refused": job(status=JobStatus.SUCCEEDED),
            "cancel_done": job(status=JobStatus.CANCELED),
        }
