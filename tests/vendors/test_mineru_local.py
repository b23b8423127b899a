"""``ocr:mineru-local`` against the real server of the package mineru, run here without models or network."""

import io
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

import coatcheck
from coatcheck import Task, TaskStatus
from coatcheck.embedded import Local
from coatcheck.errors import JobNotFoundError
from coatcheck.model import QueryParams
from coatcheck.policy import PollPolicy
from coatcheck.sandbox import Answer, Request, Server
from coatcheck.testing.contexts import query_context
from coatcheck.transport import RequestsTransport
from coatcheck_ocr.mineru_local import MinerULocalHandler, MinerULocalOptions
from coatcheck_ocr.model import OcrRequest

pytestmark = [pytest.mark.vendors, pytest.mark.timeout(300)]

KEY = "key-of-the-real-server"
PATIENCE = timedelta(seconds=90)
SAMPLES = Path(__file__).parents[2] / "packages/provider-ocr/src/coatcheck_ocr/samples"
TEXT = MinerULocalOptions(ocr_mode="txt")


def html() -> bytes:
    """Return a page with a heading, a paragraph and a table."""
    return (
        b"<html><body><h1>Delivery note</h1><p>Seven <b>green</b> chairs</p>"
        b"<table><tr><td>chairs</td><td>7</td></tr></table></body></html>"
    )


def docx() -> bytes:
    """Return a text document with two paragraphs."""
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    paragraphs = "".join(
        f"<w:p><w:r><w:t>{line}</w:t></w:r></w:p>" for line in ("Letter of Monday", "Two yellow lamps")
    )
    files = {
        "[Content_Types].xml": (
            f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            '<Default Extension="xml" ContentType="application/xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{kind}"/></Types>'
        ),
        "_rels/.rels": (
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
            f'Type="{office}/officeDocument" Target="word/document.xml"/></Relationships>'
        ),
        "word/document.xml": (
            f'<w:document xmlns:w="{word}"><w:body>{paragraphs}<w:sectPr/></w:body></w:document>'
        ),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{content}')
    return buffer.getvalue()


def pdf() -> bytes:
    """Return two pages with a line of text each."""
    contents = [
        b"BT /F1 24 Tf 72 700 Td (Three blue tables stand here) Tj ET",
        b"BT /F1 24 Tf 72 700 Td (Nine red doors on page two) Tj ET",
    ]
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[4 0 R 6 0 R]/Count 2>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
    for content in contents:
        objects.append(b"%s/Contents %d 0 R>>" % (page, len(objects) + 2))
        objects.append(b"<</Length %d>>\nstream\n%s\nendstream" % (len(content), content))
    whole, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, start=1):
        places.append(len(whole))
        whole += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return (
        whole
        + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n"
        % (
            len(objects) + 1,
            table,
            len(objects) + 1,
            len(whole),
        )
    )


def documents(request: Request) -> Answer:
    """Serve what the tests submit."""
    made: dict[str, Callable[[], bytes]] = {
        "/a.html": html,
        "/a.docx": docx,
        "/a.pdf": pdf,
        "/junk.pdf": lambda: b"no document at all",
    }
    if request.path == "/scan.pdf":
        return Answer(200, (SAMPLES / "report.pdf").read_bytes())
    make = made.get(request.path)
    return Answer(404) if make is None else Answer(200, make())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the server and return its address."""
    command = shutil.which("mineru-api", path=str(Path(sys.executable).parent))
    if command is None:
        if os.environ.get("NOX_CURRENT_SESSION") == "vendors":
            pytest.fail("mineru-api is not installed")
        pytest.skip("mineru-api is not installed; run nox -s vendors")
    folder = tmp_path_factory.mktemp("mineru")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "tier": "flash",
        "host": "127.0.0.1",
        "port": port,
        "upload-dir": folder / "uploads",
        "api-key": KEY,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, *words, "--allow-http-source"], stdout=log, stderr=log, env=environment, cwd=folder
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + 120
            while not is_up(url):
                said = (folder / "log").read_text()
                assert process.poll() is None, f"the server ended: {said}"
                assert time.monotonic() < until, f"the server did not start: {said}"
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def is_up(url: str) -> bool:
    """Whether the server answers."""
    call = urllib.request.Request(f"{url}/v1/health", headers={"Authorization": f"Bearer {KEY}"})
    try:
        with urllib.request.urlopen(call, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@attrs.frozen
class Place:
    """A house whose worker talks to the server, and where its documents are."""

    house: Local
    handler: MinerULocalHandler
    documents: str

    def submit(self, name: str, **changes: Any) -> Task:
        """Submit a document."""
        return self.house.submit(OcrRequest(url=f"{self.documents}/{name}", **{"model": "flash", **changes}))

    def run(self, name: str, **changes: Any) -> Task:
        """Submit a document and wait for the end of its task."""
        return self.house.wait(self.submit(name, **changes).id, PATIENCE)

    def read(self, name: str, **changes: Any) -> str:
        """Submit a document and return its text."""
        found = self.house.result(self.submit(name, **changes).id, PATIENCE)
        assert isinstance(found.markdown, str)
        return found.markdown


@pytest.fixture
def place(server: str, tmp_path: Path) -> Iterator[Place]:
    """Return a house for the server."""
    with Server(documents) as files:
        handler = MinerULocalHandler(server, poll=PollPolicy.exponential(timedelta(seconds=0.1)))
        handler.allowed_hosts = (files.url,)
        with coatcheck.local(
            tmp_path / "tasks.db",
            plugins=False,
            handlers=[handler],
            accounts={handler.account: {"secret": lambda: KEY}},
        ) as house:
            yield Place(house, handler, files.url)


def test_html_is_read(place: Place) -> None:
    """A page becomes markdown, through upload, queue, second call and archive."""
    text = place.read("a.html")
    assert "# Delivery note" in text
    assert "Seven **green** chairs" in text


def test_docx_is_read(place: Place) -> None:
    """A text document becomes markdown."""
    text = place.read("a.docx")
    assert "Letter of Monday" in text
    assert "Two yellow lamps" in text


def test_pdf_with_text_is_read(place: Place) -> None:
    """All pages of it."""
    text = place.read("a.pdf", options=TEXT)
    assert "Three blue tables" in text
    assert "Nine red doors" in text


def test_pages_are_chosen(place: Place) -> None:
    """Counted from 1, as the server does."""
    text = place.read("a.pdf", options=TEXT, pages="2")
    assert "Nine red doors" in text
    assert "Three blue tables" not in text


def test_the_server_fetches_what_it_is_told(place: Place) -> None:
    """The JSON form of the submit, with the document left to the server."""
    assert "# Delivery note" in place.read("a.html", options=MinerULocalOptions(server_fetches=True))


def test_a_scan_keeps_its_images_in_the_archive(place: Place) -> None:
    """The text has relative links, and the store is not filled with images."""
    text = place.read("scan.pdf", options=TEXT)
    assert "](images/" in text
    assert len(text) < 10_000


def test_further_files_are_linked(place: Place) -> None:
    """What was asked for beside the archive stays at the server, and can be fetched there with the key."""
    task = place.run("a.html", options=MinerULocalOptions(output_formats=("structured_content",)))
    links = {file.type: file.url for file in task.result.resources}
    call = urllib.request.Request(links["structured_content"], headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(call, timeout=30) as answer:
        assert b"Delivery note" in answer.read()


def test_a_document_that_is_none_fails_with_the_servers_reason(place: Place) -> None:
    """The code and the words are the server's."""
    task = place.run("junk.pdf", options=TEXT)
    assert task.error is not None
    assert (task.status, task.error.code) == (TaskStatus.FAILED, "parse_failed")


def test_a_tier_that_is_not_there_is_told_at_once(place: Place) -> None:
    """A PDF needs a tier, and this server has one only, which must be named."""
    task = place.run("a.pdf", model=None)
    assert task.error is not None
    assert (task.status, task.error.code) == (TaskStatus.FAILED, "quality_tier_unavailable")


def test_an_option_that_the_server_refuses_fails_the_task(place: Place) -> None:
    """A field of ``extra`` that the server does not know is refused by it."""
    task = place.run("a.html", options=MinerULocalOptions(extra={"not_a_field": 1}))
    assert task.error is not None
    assert (task.status, "not_a_field" in task.error.message) == (TaskStatus.FAILED, True)


def test_a_job_in_the_queue_is_stopped(place: Place) -> None:
    """The server works on one job at a time; the one behind it is cancelled there."""
    first = place.submit("scan.pdf", options=TEXT)
    second = place.submit("a.html")
    until = time.monotonic() + 60
    while not (found := place.house.manager.get(second.id)).external_task_id:
        assert time.monotonic() < until
        assert not found.status.is_end
        time.sleep(0.005)
    place.house.manager.cancel(second.id)
    assert place.house.wait(second.id, PATIENCE).status is TaskStatus.CANCELED
    assert place.house.wait(first.id, PATIENCE).status is TaskStatus.SUCCEEDED


def test_an_unknown_job_is_not_found(place: Place) -> None:
    """What a restart of the server leaves behind."""
    transport = RequestsTransport()
    try:
        context = attrs.evolve(
            query_context(transport), account=place.house.manager.accounts.get(place.handler.account)
        )
        with pytest.raises(JobNotFoundError):
            place.handler.query(QueryParams("job_0000"), context)
    finally:
        transport.close()


def test_a_wrong_key_is_told(server: str, tmp_path: Path) -> None:
    """The task fails with a code that is about the account."""
    handler = MinerULocalHandler(server)
    with (
        Server(documents) as files,
        coatcheck.local(
            tmp_path / "tasks.db",
            plugins=False,
            handlers=[handler],
            accounts={handler.account: {"secret": lambda: "wrong"}},
        ) as house,
    ):
        handler.allowed_hosts = (files.url,)
        task = house.wait(house.submit(OcrRequest(url=f"{files.url}/a.html")).id, PATIENCE)
    assert task.error is not None
    assert task.error.code == "account_refused"
