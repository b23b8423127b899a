"""``ocr:textract`` against moto's server, which knows the protocol and reads nothing."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import coatcheck
from coatcheck import TaskStatus
from coatcheck.embedded import Local
from coatcheck.errors import JobNotFoundError
from coatcheck.model import QueryParams
from coatcheck.policy import PollPolicy
from coatcheck.testing.contexts import query_context
from coatcheck.transport import RequestsTransport
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.textract import TextractHandler, TextractOptions

pytestmark = [pytest.mark.vendors, pytest.mark.timeout(300)]

PATIENCE = timedelta(seconds=60)
QUICK = PollPolicy.exponential(timedelta(seconds=0.1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the server and return its address."""
    command = shutil.which("moto_server", path=str(Path(sys.executable).parent))
    if command is None:
        if os.environ.get("NOX_CURRENT_SESSION") == "vendors":
            pytest.fail("moto_server is not installed")
        pytest.skip("moto_server is not installed; run nox -s vendors")
    folder = tmp_path_factory.mktemp("moto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log, cwd=folder
        )
        try:
            until = time.monotonic() + 120
            while not is_up(port):
                said = (folder / "log").read_text()
                assert process.poll() is None, f"the server ended: {said}"
                assert time.monotonic() < until, f"the server did not start: {said}"
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def is_up(port: int) -> bool:
    """Whether the server takes connections."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture
def house(server: str, tmp_path: Path) -> Iterator[Local]:
    """Return a house whose worker talks to the server."""
    handler = TextractHandler(server, region="eu-west-1", poll=QUICK)
    keys = {"access_key": lambda: "AKINVENTED", "secret_key": lambda: "invented-secret"}
    with coatcheck.local(
        tmp_path / "tasks.db", plugins=False, handlers=[handler], accounts={handler.account: keys}
    ) as local:
        yield local


@pytest.mark.parametrize(
    ("options", "api"),
    [(TextractOptions(), "text"), (TextractOptions(features=("TABLES", "LAYOUT")), "analysis")],
    ids=["text", "analysis"],
)
def test_a_document_goes_from_submit_to_result(house: Local, options: TextractOptions, api: str) -> None:
    """By both interfaces; the server finds nothing on any document, and counts pages by no number."""
    task = house.submit(OcrRequest(url="s3://invented-bucket/a.pdf", options=options))
    ended = house.wait(task.id, PATIENCE)
    assert (ended.status, ended.error) == (TaskStatus.SUCCEEDED, None)
    assert (ended.provider_status, ended.query_count) == ("SUCCEEDED", 1)
    assert ended.query_params is not None
    assert ended.query_params["api"] == api
    assert isinstance(ended.result, OcrResponse)
    assert ended.result.markdown == ""


def test_a_job_that_the_server_does_not_know_is_not_found(server: str) -> None:
    """The vendor says so with 400 and a code, and that is no failure of the job."""
    transport = RequestsTransport()
    try:
        handler = TextractHandler(server, region="eu-west-1")
        for api in ("text", "analysis"):
            params = QueryParams("no-such-job", base_url=server, region="eu-west-1", api=api)
            with pytest.raises(JobNotFoundError, match="InvalidJobIdException"):
                handler.query(params, query_context(transport))
    finally:
        transport.close()
