"""From ``[[handlers]]`` in the settings to tasks that end: file, manager, worker and command line."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

import coatcheck
from coatcheck import Descriptor, JsonRequest, JsonResult
from coatcheck.cli import main
from coatcheck.config import Config
from coatcheck.descriptor import add_declared
from coatcheck.embedded import Local
from coatcheck.errors import ConfigError, DuplicateNameError, TaskFailedError, UnknownNameError
from coatcheck.manager import Manager
from coatcheck.model import TaskStatus
from coatcheck.registry import Registry
from coatcheck.testing.vendor import LocalVendor
from coatcheck.worker import Worker

SETTINGS = """
store = "sqlite:///{folder}/tasks.db"

[accounts.shop]
secret = "env:SHOP_KEY"

[[handlers]]
key = "test:declared"
base_url = "{url}"
account = "shop"
resubmit = "idempotent"
auth = {{ Authorization = "Bearer {{secret}}" }}
words = {{ submitted = ["queued"], succeeded = ["succeeded"], failed = ["failed"] }}
failure = {{ code = "error.code", message = "error.message" }}
result = {{ value = "output" }}
usage = {{ pages = "usage.pages" }}
poll = {{ first = "10ms", start = "10ms", cap = "10ms", error_start = "50ms" }}

[handlers.submit]
path = "/jobs"
headers = {{ Idempotency-Key = "{{idempotency_key}}" }}
json = {{ text = "{{request.data.text}}", script = "{{request.data.script?}}" }}
id = "id"

[handlers.query]
path = "/jobs/{{external_task_id}}"
status = "status"
progress = "progress"
query_after = "poll_after"

[[handlers]]
key = "test:second"
base_url = "{url}/v2"
words = {{ succeeded = ["succeeded"], failed = ["failed"] }}
submit = {{ path = "/jobs", json = "{{request.data}}", id = "id" }}
query = {{ path = "/jobs/{{external_task_id}}", status = "status" }}
"""


@pytest.fixture
def vendor() -> Iterator[LocalVendor]:
    """Serve the local vendor."""
    with LocalVendor(tokens=["k-1"]) as served:
        yield served


@pytest.fixture
def file(tmp_path: Path, vendor: LocalVendor, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a settings file that describes two handlers for the vendor."""
    monkeypatch.setenv("SHOP_KEY", "k-1")
    path = tmp_path / "coatcheck.toml"
    path.write_text(SETTINGS.format(folder=tmp_path, url=vendor.url), "utf-8")
    return path


def test_manager_and_worker_of_settings_run_tasks_of_a_described_vendor(
    file: Path, vendor: LocalVendor
) -> None:
    """No line of Python says anything about the vendor, and its tasks go the whole way."""
    manager = Manager.from_config(Config.load(file, environ={}))
    assert manager.registry.names("handler")["test:declared"] == str(file)
    scripts = {
        "a": {"queued": 1, "polls": 2},
        "b": {"end": "failed", "poll_after": 0.01},
        "c": {"on_submit": ["reset", "html"], "on_query": ["500", "html", "429"]},
    }
    worker = Worker(manager.store, manager.registry, accounts=manager.accounts, transport=manager.transport)
    with Local(manager, worker) as house:
        submitted = [
            house.submit(JsonRequest({"text": text, "script": script}), handler_key="test:declared")
            for text, script in scripts.items()
        ]
        tasks = [house.wait(task.id, 30) for task in submitted]
    assert [task.status for task in tasks] == [TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.SUCCEEDED]
    assert [task.result for task in tasks] == [JsonResult({"text": "A"}), None, JsonResult({"text": "C"})]
    assert tasks[0].usage == {"pages": 1}
    assert tasks[1].error is not None
    assert tasks[1].error.code == "bad_input"
    # The lost reply was followed by a submit with the same key, which the vendor knew.
    assert vendor.created == {"a": 1, "b": 1, "c": 1}


def test_description_in_python_needs_no_settings(vendor: LocalVendor) -> None:
    """What a file holds can be passed as a mapping, to a notebook's ``local()``."""
    table = {
        "key": "test:declared",
        "base_url": vendor.url,
        "account": "shop",
        "auth": {"Authorization": "Bearer {secret}"},
        "poll": {"first": 0.01, "start": 0.01, "error_start": 0.01},
        "submit": {"path": "/jobs", "json": {"text": "{request.text}"}, "id": "id"},
        "query": {"path": "/jobs/{external_task_id}", "status": "status"},
        "words": {"succeeded": ["succeeded"], "failed": ["failed"]},
        "request": "test.job",
        "result": {"type": "test.result", "value": "output"},
    }
    from coatcheck.testing.vendor import JobRequest, JobResult

    handler = Descriptor.of(table).handler()
    accounts = {"shop": {"secret": lambda: "k-1"}}
    with coatcheck.local(handlers=[handler], plugins=False, accounts=accounts) as house:
        assert house.run(JobRequest("a"), timeout=20) == JobResult("A")
        vendor.fault("query", "404", "404", "404")
        with pytest.raises(TaskFailedError, match="404"):
            house.run(JobRequest("b"), timeout=20)


def test_command_line_knows_the_described_handlers(file: Path) -> None:
    """``handlers`` lists them, ``submit`` reaches them, ``worker`` runs them, ``show`` shows the result."""

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(main, [*arguments, "--json", "--config", str(file)])
        assert done.exit_code == 0, done.output
        return orjson.loads(done.stdout)

    (found,) = [one for one in run("handlers")["handlers"] if one["key"] == "test:declared"]
    assert (found["request"], found["fields"], found["by"]) == ("json.request", ["data"], str(file))
    request = 'data={"text": "a", "script": {"polls": 0}}'
    task = run("submit", "json.request", request, "--handler", "test:declared")
    until = time.monotonic() + 30
    while run("show", task["id"])["task"]["status"] != "succeeded":
        assert time.monotonic() < until
        run("worker", "--once", "--quiet")
    assert run("show", task["id"])["task"]["result"]["data"] == {"text": "A"}


def test_wrong_description_stops_the_start_and_says_where(file: Path) -> None:
    """A process with half of its handlers would leave tasks waiting; it does not start at all."""
    text = file.read_text("utf-8")
    for wrong, right, message in (
        ("akount =", "account =", r"unknown key \$\.handlers\[0\]\.akount; did you mean 'account'\?"),
        ('id = "id."\n\n', 'id = "id"\n\n', r"test:declared: submit\.id must be a JMESPath expression"),
        ('key = "test:declared"', 'key = "test:second"', "registered twice"),
    ):
        file.write_text(text.replace(right, wrong, 1), "utf-8")
        with pytest.raises(ConfigError, match=message):
            Manager.from_config(Config.load(file, environ={}))


@pytest.mark.parametrize("text", ["handlers = 3", 'handlers = ["a"]', "[handlers]\nkey = 'x'"])
def test_handlers_are_a_list_of_tables(tmp_path: Path, text: str) -> None:
    """The file's own form is checked when it is read."""
    path = tmp_path / "coatcheck.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"\$\.handlers(\[0\])? must be a (list|table), found"):
        Config.load(path, environ={})


def test_registering_the_same_description_again_changes_nothing(file: Path) -> None:
    """Managers may share a registry; another description of the same key is refused."""
    registry, tables = Registry(), Config.load(file, environ={}).handlers
    add_declared(registry, tables)
    before = registry.handler("test:declared").handler
    add_declared(registry, tables)
    assert registry.handler("test:declared").handler is before
    with pytest.raises(DuplicateNameError, match="test:declared"):
        add_declared(registry, [{**tables[0], "account": "other"}])


def test_types_of_plugins_that_are_missing_are_named(file: Path) -> None:
    """A description that needs a plugin's type says so at start."""
    tables = [{**Config.load(file, environ={}).handlers[0], "request": "ocr.nothing"}]
    with pytest.raises(UnknownNameError, match="Is its plugin installed"):
        add_declared(Registry(), tables)
