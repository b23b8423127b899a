"""G8, live: whatever a vendor, a transport or a person does, secrets stand in the vendor's calls only.

Each vendor runs on this machine and says back all that it was sent, where it can and where it should not.
What the house wrote, logged, raised, showed and printed meanwhile is then searched for the secrets.
"""

import base64
import logging
import os
import pickle
import secrets
import time
import traceback
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from click.testing import CliRunner
from tests.core.descriptions import described

import coatcheck
from coatcheck import TaskStatus, codec, hookimpl
from coatcheck.accounts import Accounts, masked, masked_json
from coatcheck.cli import main
from coatcheck.config import Config
from coatcheck.descriptor.value import JsonRequest
from coatcheck.embedded import Local
from coatcheck.errors import CallbackRefusedError, CoatcheckError
from coatcheck.handler import TaskHandler
from coatcheck.http import Call, Reply
from coatcheck.manager import Manager, error_of
from coatcheck.model import Account, QueryContext, QueryParams, QueryResult, SubmitContext, SubmitResult, Task
from coatcheck.plugins import load_plugins
from coatcheck.registry import Registry
from coatcheck.sandbox import Answer, Mounts, Request, Server
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.vendor import JobRequest, JobResult, Vendor, VendorHandler
from coatcheck.testing.vendor_matrix import PATIENCE, QUICK
from coatcheck.transport import RequestsTransport, Urllib3Transport
from coatcheck.transport.outgoing import prepare
from coatcheck.transport.over_aiohttp import AiohttpTransport
from coatcheck.worker import Worker, WorkerSettings
from coatcheck_ocr import plugin as ocr
from coatcheck_ocr.model import OcrRequest
from coatcheck_video import plugin as video
from coatcheck_video.callbacks import replicate
from coatcheck_video.model import VideoRequest

#: The account of somebody who mistyped a key.
WRONG = "mistyped"
#: What vendors say, to which their echo is added: in refusals, in failures and in results.
SAID = (
    *(b"as scripted", b"cannot read", b"cannot work on", b"unknown key", b"will not make", b"video.mp4"),
    *(b"A sandbox read this.", b"HELLO"),
)
#: Paths of what stands for a storage service.
STORAGE = ("files", "storage")
VENDORS: Any = (*ocr.VENDORS, *video.VENDORS)
SANDBOXES = {handler.key: place for handler, place in VENDORS}
HANDLERS = {handler.key: handler for handler, _ in VENDORS}


@attrs.frozen
class Secret:
    """A secret, made so that what is left of it is found in whatever form: cut off, quoted, in base64."""

    head: str = attrs.field(factory=lambda: secrets.token_hex(10))
    tail: str = attrs.field(factory=lambda: secrets.token_hex(10))
    before: str = ""
    between: str = "+/"
    after: str = "~="

    @property
    def text(self) -> str:
        """The secret."""
        return f"{self.before}{self.head}{self.between}{self.tail}{self.after}"

    @property
    def traces(self) -> list[bytes]:
        """What is looked for, in lower case."""
        encoded = [
            # At each of the three places that it may have in a longer text, without what touches neighbours.
            encode(b"\0" * shift + self.text.encode())[4:-4]
            for shift in range(3)
            for encode in (base64.b64encode, base64.urlsafe_b64encode)
        ]
        return [self.head[:12].encode(), self.tail[-12:].encode(), *(one.lower() for one in encoded)]


@attrs.frozen(kw_only=True)
class Case:
    """One vendor, and what it is special in."""

    key: str
    parts: Mapping[str, Secret] = attrs.field(factory=lambda: {"secret": Secret()})
    #: The part that the vendor knows a customer by.
    known_by: str = "secret"
    #: Parts that are never sent as they are.
    unsent: frozenset[str] = frozenset()
    path: str = ""
    document: str = "{elsewhere}/documents/{name}"
    #: What a request for a video says beside its prompt.
    details: Mapping[str, Any] = attrs.field(factory=dict)
    #: Whether the echo may stand in a text that it finds: not where offsets into that text come with it.
    echoes_text: bool = True
    #: Whether a wrong key is noticed.
    refuses: bool = True
    #: Whether anything is fetched from, or redirected to, another origin.
    leaves_home: bool = True
    transport: Callable[[], Any] = RequestsTransport

    def handler(self, url: str) -> Any:
        """Return the handler for the vendor at ``url``."""
        if self.key == "test:vendor":
            return VendorHandler(url, signs=True, poll=QUICK)
        if self.key == "test:declared":
            return described(
                base_url=url,
                poll={
                    "first": "10ms",
                    "start": "10ms",
                    "cap": "10ms",
                    "error_start": "20ms",
                    "error_cap": "100ms",
                    "jitter": 0,
                },
                key=self.key,
            )
        made = HANDLERS[self.key](f"{url}{self.path}", poll=QUICK)
        if made.has_lookup:
            # A lookup waits for as long as a step may take.
            made.call_limit = timedelta(seconds=3)
        return made

    def vendor(self) -> Callable[[Request], Answer]:
        """Return the vendor, which knows one customer."""
        tokens = [self.parts[self.known_by].text] if self.refuses else None
        if self.key not in SANDBOXES:
            return Vendor(tokens=tokens)
        module, _, name = SANDBOXES[self.key].partition(":")
        made: Callable[[Request], Answer] = getattr(import_module(module), name)(tokens=tokens)
        return made

    def request(self, elsewhere: str, name: str, script: Mapping[str, Any]) -> Any:
        """Return a request whose job goes by a script."""
        if self.key == "test:vendor":
            return JobRequest.of("hello", **script)
        if self.key == "test:declared":
            return JsonRequest({"text": "hello", "script": dict(script)})
        told = ",".join(
            f"{key}={'+'.join(value) if isinstance(value, list) else value}" for key, value in script.items()
        )
        if self.key.startswith("video:"):
            return VideoRequest(prompt=f"{name}~{told}", **self.details)
        return OcrRequest(url=self.document.format(elsewhere=elsewhere, name=f"{name}~{told}.pdf"))


def keys(*names: str, **special: Secret) -> dict[str, Secret]:
    """Return the parts of an account."""
    return {**{name: Secret() for name in names}, **special}


CASES = {
    "vendor": lambda: Case(key="test:vendor"),
    "vendor over urllib3": lambda: Case(key="test:vendor", transport=Urllib3Transport),
    "vendor over aiohttp": lambda: Case(key="test:vendor", transport=AiohttpTransport),
    "declared": lambda: Case(key="test:declared"),
    "gitee": lambda: Case(key="ocr:gitee", path="/v1"),
    "baidu, one key": lambda: Case(key="ocr:baidu", parts=keys(secret=Secret(before="bce-v3/"))),
    "baidu, a pair": lambda: Case(key="ocr:baidu", parts=keys("secret", "secret_key"), known_by="secret_key"),
    "mineru": lambda: Case(key="ocr:mineru", path="/api/v4"),
    "mineru-agent": lambda: Case(
        key="ocr:mineru-agent", path="/api/v1/agent", refuses=False, unsent=frozenset({"secret"})
    ),
    "mineru-local": lambda: Case(key="ocr:mineru-local"),
    "mineru-local-v3": lambda: Case(key="ocr:mineru-local-v3", refuses=False, unsent=frozenset({"secret"})),
    "paddleocr": lambda: Case(key="ocr:paddleocr"),
    "azure-di": lambda: Case(key="ocr:azure-di", echoes_text=False),
    "azure-di, entra": lambda: Case(
        key="ocr:azure-di", parts=keys("entra_token"), known_by="entra_token", echoes_text=False
    ),
    "docling": lambda: Case(key="ocr:docling"),
    "textract": lambda: Case(
        key="ocr:textract",
        parts=keys("secret_key", "session_token", access_key=Secret(between="+")),
        known_by="access_key",
        unsent=frozenset({"secret_key"}),
        document="s3://invented-bucket/{name}",
        leaves_home=False,
    ),
    "aliyun-wan": lambda: Case(key="video:aliyun-wan", path="/api/v1", parts=keys("secret", "workspace")),
    "aliyun-happyhorse": lambda: Case(
        key="video:aliyun-happyhorse", path="/api/v1", parts=keys("secret", "workspace")
    ),
    "volcengine": lambda: Case(key="video:volcengine", path="/api/v3"),
    "gitee videos": lambda: Case(key="video:gitee", path="/v1"),
    "kling, a pair": lambda: Case(
        key="video:kling",
        parts=keys("access_key", "secret_key"),
        known_by="access_key",
        # Both stand in a signed token, which is a secret too.
        unsent=frozenset({"access_key", "secret_key"}),
    ),
    "runway": lambda: Case(
        key="video:runway", details={"model": "veo3.1", "aspect_ratio": "1280:720", "duration": 4}
    ),
    "replicate": lambda: Case(
        key="video:replicate",
        parts=keys("secret", webhook_secret=Secret(before="whsec_", after="==")),
        unsent=frozenset({"webhook_secret"}),
        details={"model": "acme/dream"},
    ),
    "fal, one key": lambda: Case(key="video:fal", details={"model": "acme/dream"}),
    "fal, a pair": lambda: Case(
        key="video:fal", parts=keys("key_id", "key_secret"), refuses=False, details={"model": "acme/dream"}
    ),
}


class Echo:
    """A vendor that says back what it was sent: in all that it says, and in whole pages where told to."""

    def __init__(self, case: Case, elsewhere: str, told: list[Secret]) -> None:
        self.app = case.vendor()
        self.said = SAID if case.echoes_text else SAID[:-2]
        self.elsewhere = elsewhere
        self.seen: list[bytes] = []
        #: How the next calls are answered, other than downloads.
        self.pages: deque[int] = deque()
        self.told = told
        #: Where the vendor is reached.
        self.home = ""

    def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        sent = _all_of(request)
        self.seen.append(sent)
        texts = [one.text for one in self.told if one.text.encode() in sent]
        echo = " ".join(f"{text} {quote(text, safe='')}" for text in texts)
        is_download = request.path.strip("/").split("/")[0] in STORAGE
        if self.pages and not is_download:
            status = self.pages.popleft()
            page = f"<html>{echo}\n{' '.join(request.headers.values())}</html>" * 40
            shown = request.header("authorization") or echo
            headers = {"X-Echo": shown, "Set-Cookie": f"key={''.join(texts)}", "WWW-Authenticate": shown}
            if status == 302:
                headers["Location"] = f"{self.elsewhere}/documents/away"
            return Answer(status, page.encode(), headers=headers)
        answer = self.app(request)
        body = answer.body.replace(b'"heated"', f'"heated {echo}"'.encode())
        for said in self.said:
            body = body.replace(said, said + b" " + echo.encode())
        # Results lie on another host, as those of most vendors do.
        for name in STORAGE:
            there = f"{self.elsewhere}/{self.home.rpartition('/')[2]}/{name}/"
            body = body.replace(f"{self.home}/{name}/".encode(), there.encode())
        return attrs.evolve(answer, body=body)


class Elsewhere:
    """Another origin: documents, and what stands for storage services. No secret may arrive here."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.app: Callable[[Request], Answer] = Mounts({})

    def __call__(self, request: Request) -> Answer:
        """Answer one request."""
        self.seen.append(_all_of(request))
        return self.app(request)


def _all_of(request: Request) -> bytes:
    return b"\n".join(
        [request.path.encode(), repr((dict(request.query), dict(request.headers))).encode(), request.body]
    )


class Breaking:
    """A transport that can break, and then tells all that it was about to send."""

    def __init__(self, inner: Any, notes: "Notes") -> None:
        self.inner = inner
        self.notes = notes
        self.breaks = 0
        if hasattr(inner, "perform_async"):
            self.perform_async = self._perform_async
            self.leave = inner.leave

    def perform(self, call: Call, account: Account) -> Reply:
        """Perform a call, or break."""
        self._look(call, account)
        reply: Reply = self.inner.perform(call, account)
        self.notes.add("reply", reply)
        return reply

    async def _perform_async(self, call: Call, account: Account) -> Reply:
        self._look(call, account)
        reply: Reply = await self.inner.perform_async(call, account)
        self.notes.add("reply", reply)
        return reply

    def _look(self, call: Call, account: Account) -> None:
        self.notes.add("call", call, account)
        if self.breaks and call.sign is not None:
            self.breaks -= 1
            outgoing = prepare(call)
            self.notes.add("outgoing", outgoing)
            cause = ValueError(f"cannot write {outgoing.headers}")
            raise RuntimeError(f"lost {outgoing.headers} for {outgoing.url}") from cause

    def close(self) -> None:
        """Close the transport behind."""
        self.inner.close()


class Notes:
    """All that the house said to anybody."""

    coatcheck_api = 1

    def __init__(self) -> None:
        self.found: list[tuple[str, bytes]] = []

    def add(self, label: str, *values: object) -> None:
        """Note what values look like to people."""
        for value in values:
            shown = value if isinstance(value, bytes) else f"{value}\n{value!r}".encode()
            self.found.append((label, shown))

    def add_error(self, label: str, error: BaseException) -> None:
        """Note an exception with all its fields, and as a traceback shows it."""
        self.add(label, error, pickle.dumps(error), "".join(traceback.format_exception(error)))

    @hookimpl
    def coatcheck_task_changed(self, change: Any) -> None:
        """Note an event."""
        self.add("event", change)


@attrs.frozen
class House:
    """A worker, a manager and a store in a file, for one vendor that echoes."""

    case: Case
    local: Local
    echo: Echo
    elsewhere: Elsewhere
    transport: Breaking
    notes: Notes
    url: str
    told: list[Secret]
    config: Path

    def start(self, name: str, script: Mapping[str, Any] | None = None, **options: Any) -> Task:
        """Submit a task."""
        return self.local.submit(self.case.request(self.url, name, script or {"polls": 1}), **options)

    def end(self, task: Task) -> Task:
        """Wait for a task's end and note it."""
        ended = self.local.wait(task.id, PATIENCE)
        self.notes.add("task", ended, ended.result, ended.error)
        if ended.status is not TaskStatus.SUCCEEDED:
            self.notes.add_error("task error", error_of(ended))
        return ended

    def run(self, name: str, script: Mapping[str, Any] | None = None, **options: Any) -> Task:
        """Submit a task and wait for its end."""
        return self.end(self.start(name, script, **options))


def leaks(notes: Notes, told: Iterable[Secret]) -> list[str]:
    """Return where a secret is found, with what stands around it."""
    traces = [trace for secret in told for trace in secret.traces]
    found = []
    for label, content in notes.found:
        lower = content.lower()
        for trace in traces:
            at = lower.find(trace)
            if at >= 0:
                found.append(f"{label}: …{content[max(0, at - 150) : at + 60]!r}")
    return found


@contextmanager
def living(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """Serve the vendor, configure its account in a file, and run a house for it."""
    wrong = {
        part: attrs.evolve(secret, head=secrets.token_hex(10), tail=secrets.token_hex(10))
        for part, secret in case.parts.items()
    }
    told = [*case.parts.values(), *wrong.values()]
    notes, elsewhere = Notes(), Elsewhere()
    with Server(elsewhere) as away, Server(Mounts({})) as server:
        echo = Echo(case, away.url, told)
        echo.home = Mounts.url(server.url, case.key)
        server.app = Mounts({case.key: echo})
        elsewhere.app = Mounts({case.key: echo.app})
        handler = case.handler(echo.home)
        handler.allowed_hosts = (*handler.allowed_hosts, away.url)
        path = _configure(folder, {handler.account: case.parts, WRONG: wrong}, monkeypatch)
        config = Config.load(path)
        accounts = Accounts(config.accounts)
        registry = Registry()
        others = [point.name for point in entry_points(group="coatcheck")]
        plugins = load_plugins(registry, disabled=others, extra=[notes])
        registry.add_handler(handler)
        transport = Breaking(case.transport(), notes)
        store = SqliteStore(str(folder / "tasks.db"))
        parts: dict[str, Any] = {"accounts": accounts, "transport": transport, "plugins": plugins}
        settings = WorkerSettings(grace=timedelta(seconds=1), threads=4, health_port=0)
        manager = Manager(store, registry, **parts)
        worker = Worker(store, registry, settings=settings, **parts)
        account = accounts.get(handler.account)
        times: dict[str, Any] = {"now": store.now(), "account": account, "transport": transport}
        context = SubmitContext(task_id="t", idempotency_key="k", **times)
        asking = QueryContext(task_id="t", created_at=store.now(), deadline_at=store.now(), **times)
        with Local(manager, worker, owned=[store, transport]) as local:
            yield House(case, local, echo, elsewhere, transport, notes, away.url, told, path)
            notes.add("object", local, manager, worker, store, registry, plugins, transport.inner)
            notes.add("object", config, accounts, account, context, asking, handler, settings)
            notes.add("health", worker.health())
            with urllib.request.urlopen(f"http://127.0.0.1:{worker.health_port}/health") as page:
                notes.add("health page", page.read())
            _note_files(folder, notes)
    _note_files(folder, notes)


def _configure(
    folder: Path, accounts: Mapping[str, Mapping[str, Secret]], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Write settings that say where the secrets are: in files, and in the environment."""
    for name in list(os.environ):
        if name.startswith("COATCHECK_"):
            monkeypatch.delenv(name)
    lines = [f'store = "sqlite:///{folder / "tasks.db"}"']
    for name, parts in accounts.items():
        lines.append(f'[accounts."{name}"]')
        for number, (part, secret) in enumerate(parts.items()):
            variable = f"TEST_{name}_{part}".upper().replace("-", "_")
            if number % 2:
                (folder / variable).write_text(secret.text)
                lines.append(f'{part} = "file:{folder / variable}"')
            else:
                monkeypatch.setenv(variable, secret.text)
                lines.append(f'{part} = "env:{variable}"')
    path = folder / "coatcheck.toml"
    path.write_text("\n".join(lines))
    return path


def _note_files(folder: Path, notes: Notes) -> None:
    files = list(folder.glob("tasks.db*"))
    assert files
    for file in files:
        notes.add(file.name, file.read_bytes())


def _command(house: House, *arguments: str) -> None:
    result = CliRunner().invoke(main, [*arguments, "--config", str(house.config)])
    assert result.exit_code in (0, 1), result.output
    house.notes.add(f"coatcheck {arguments[0]}", result.stdout, result.stderr)


def _call_back(house: House, task: Task) -> None:
    """Send what a vendor would, signed where it signs, and what others would; note what is answered."""
    job = task.external_task_id
    body = codec.dumps({"id": job, "request_id": job, "task_id": job, "data": {"task_id": job}})
    now = house.local.store.now()
    signed = [
        {"authorization": " ".join(secret.text for secret in house.told)},
        *(
            replicate.sign(secret.text, "msg-1", now, body)
            for secret in house.told
            if secret.before == "whsec_"
        ),
    ]
    refused = 0
    for headers in signed:
        try:
            house.notes.add(
                "callback", house.local.manager.receive_callback(task.id, body=body, headers=headers)
            )
        except CallbackRefusedError as error:
            refused += 1
            house.notes.add_error("callback", error)
    assert refused == {"video:replicate": 2, "video:fal": 1}.get(house.case.key, 0)


def _note_logs(notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    notes.add("log", caplog.text)
    for record in caplog.records:
        notes.add("log record", vars(record))


@pytest.mark.parametrize("name", CASES)
def test_no_secret_of_a_vendor_is_found_anywhere_but_in_its_own_calls(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Success, failure, echoing pages, a broken transport, a wrong key, a redirect: G8 holds."""
    case = CASES[name]()
    monkeypatch.setattr("coatcheck.http.vendor._warned", set())
    with caplog.at_level(logging.DEBUG), living(case, tmp_path, monkeypatch) as house:
        house.echo.pages.append(400)
        refused = house.run("page")
        assert refused.status is TaskStatus.FAILED
        assert refused.error is not None
        assert "***" in refused.error.message or case.unsent, "the page was not echoed into the error"

        good = house.run("good")
        assert good.status is TaskStatus.SUCCEEDED
        if hasattr(HANDLERS.get(case.key), "read_callback"):
            _call_back(house, good)
        assert house.run("bad", {"end": "failed"}).status is TaskStatus.FAILED
        lost = []
        for status in (500, 200):
            house.echo.pages.append(status)
            lost.append(house.start(f"lost-{status}"))
            while house.echo.pages:
                time.sleep(0.005)
        assert all(house.end(task).status.is_end for task in lost)

        asked = house.start("asked", {"seconds": 0.4, "words": ["heated"] * 60})
        while house.local.manager.get(asked.id).query_count == 0:
            time.sleep(0.005)
        house.echo.pages.extend((200, 500, 403, 302))
        house.transport.breaks = 1
        assert house.end(asked).status is TaskStatus.SUCCEEDED
        assert not house.echo.pages

        house.transport.breaks = 1
        assert house.run("broken").status.is_end
        assert not house.transport.breaks

        house.echo.pages.append(500)
        with pytest.raises(CoatcheckError) as caught:
            house.local.manager.refresh(good.id)
        house.notes.add_error("refresh", caught.value)
        house.echo.pages.clear()

        wrong = house.run("wrong", account=WRONG)
        if case.refuses:
            assert wrong.error is not None
            assert (wrong.status, wrong.error.code) == (TaskStatus.FAILED, "account_refused")

        for task in (refused, good, wrong):
            for extra in ((), ("--json",)):
                _command(house, "show", task.id, *extra)
                _command(house, "wait", task.id, *extra)
        for extra in ((), ("--json",)):
            for command in ("list", "handlers", "plugins"):
                _command(house, command, *extra)
        house.notes.add("page of tasks", house.local.manager.list())
    _note_logs(house.notes, caplog)

    if case.key in HANDLERS:
        assert "unknown status 'heated" in caplog.text
    arrived = b"\n".join(house.echo.seen)
    for part, secret in case.parts.items():
        if part not in case.unsent:
            assert secret.text.encode() in arrived, f"the vendor never saw {part}"
    labels = {label for label, _ in house.notes.found}
    assert labels >= {"event", "tasks.db", "tasks.db-wal", "log", "task", "refresh", "call", "health page"}
    assert not leaks(house.notes, house.told)

    # And none went to anybody else.
    assert bool(house.elsewhere.seen) == case.leaves_home
    house.notes.found[:] = [("another origin", request) for request in house.elsewhere.seen]
    assert not leaks(house.notes, house.told)


class Careless(TaskHandler[JobRequest]):
    """A handler without HTTP, that tells its secret to everybody."""

    key = "test:careless"
    poll = QUICK

    def __init__(self) -> None:
        self.queries = 0

    def submit(self, params: JobRequest, context: SubmitContext) -> SubmitResult:
        """Submit, or fail and tell."""
        secret = context.account.secret()
        if params.text == "lost":
            raise OSError(f"no route for {secret}, {quote(secret)} and {secret[:30]}…")
        return SubmitResult.submitted(QueryParams(secret if params.text == "id" else "job-1"))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Fail and tell at first, succeed and tell then, and fail and tell for ever after."""
        secret = context.account.secret()
        self.queries += 1
        if self.queries != 2:
            raise ValueError(f"{secret!r} was refused") from KeyError(secret)
        return QueryResult.succeeded(JobResult(secret), provider_status=secret)


def test_a_handler_that_tells_its_secret_to_everybody_is_not_written_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a handler raises or returns is cleaned on its way to the record and to whoever refreshes (G8)."""
    told, notes = Secret(), Notes()
    with (
        caplog.at_level(logging.DEBUG),
        coatcheck.local(
            tmp_path / "tasks.db",
            plugins=False,
            handlers=[Careless()],
            accounts={"default": {"secret": lambda: told.text}},
        ) as local,
    ):
        tasks = [local.submit(JobRequest.of(text)) for text in ("good", "lost", "id")]
        ended = [local.wait(task.id, PATIENCE) for task in tasks]
        assert [task.status for task in ended] == [
            TaskStatus.SUCCEEDED,
            TaskStatus.SUBMIT_UNKNOWN,
            TaskStatus.SUBMIT_UNKNOWN,
        ]
        notes.add("task", *ended)
        with pytest.raises(ValueError, match=r"'\*\*\*' was refused") as caught:
            local.manager.refresh(tasks[0].id)
        notes.add_error("refresh", caught.value)
        _note_files(tmp_path, notes)
    _note_logs(notes, caplog)
    assert ended[0].result == JobResult("***")
    assert not leaks(notes, [told])


@pytest.mark.parametrize("secret", ["k-0123456789/+=~", "k-01\\23'45\"6789", "k-01 23\u00e4\u4e2d45"])
def test_a_secret_is_found_in_whatever_form_it_stands(secret: str) -> None:
    """Plain, in a URL, in a repr, in JSON, or at the end of a text that was cut: it is masked."""
    forms = [
        secret,
        quote(secret, safe=""),
        quote(secret),
        repr(secret),
        codec.dumps({"key": secret}).decode(),
    ]
    for text in (*forms, *(form[:-4] + "…" for form in forms)):
        cleaned = masked(f"before {text} after", [secret])
        assert "***" in cleaned
        assert "k-01" not in cleaned
        assert cleaned.startswith("before ")
        assert cleaned.endswith(" after")
    value = {"link": f"https://files.example/a?key={quote(secret, safe='')}", "text": secret}
    assert codec.loads(masked_json(codec.dumps(value), [secret])) == {
        "link": "https://files.example/a?key=***",
        "text": "***",
    }


def test_a_short_secret_leaves_texts_readable() -> None:
    """Three letters are in every other word."""
    assert masked("the task failed…", ["ask"]) == "the task failed…"
