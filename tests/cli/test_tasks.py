"""Commands about one task: submit, show, wait, list, and the moves."""

import threading
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
from tests.cli.conftest import Run
from tests.core.manager_house import Job, Outcome, Vendor, build

from coatcheck.errors import JobNotFoundError
from coatcheck.model import QueryParams, QueryResult, SubmitResult
from coatcheck.stores.sqlite import SqliteStore

TYPE = "test.manager.job"


def submitted(run: Run, *arguments: str) -> str:
    """Return the id of a new task."""
    answer = run("submit", TYPE, *arguments)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def work(run: Run, rounds: int = 1) -> None:
    """Let a worker do some rounds."""
    for _ in range(rounds):
        assert run("worker", "--once", "--quiet").code == 0


# Submit.


def test_submit_prints_the_id_and_nothing_else(run: Run) -> None:
    """The output is what a script passes on."""
    task_id = submitted(run, "name=x", "size=5")
    task = run("show", task_id, "--json").json["task"]
    assert (task["id"], task["status"], task["handler_key"]) == (task_id, "pending_submit", "acme:job")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["name=x", "size=5"], ("x", 5, None)),
        (["name=5", "extra=5"], ("5", None, "5")),
        (['{"name": "x", "size": 5}'], ("x", 5, None)),
        (['{"name": "x", "size": 5}', "size=6"], ("x", 6, None)),
        (['extra={"a": [1]}'], ("a", None, '{"a": [1]}')),
        (['{"extra": {"a": [1]}}'], ("a", None, {"a": [1]})),
        (["@request.json"], ("from file", 7, None)),
        (["name=a=b"], ("a=b", None, None)),
    ],
)
def test_fields_are_read_as_their_types(
    run: Run, vendor: Vendor, words: list[str], expected: tuple[object, ...]
) -> None:
    """Texts stay texts, numbers become numbers, and JSON is JSON."""
    Path("request.json").write_text('{"name": "from file", "size": 7}', "utf-8")
    seen: list[object] = []

    def submit(params: Job, context: object) -> SubmitResult:
        seen.append((params.name, params.size, params.extra))
        return SubmitResult.succeeded("ok")

    vars(vendor)["submit"] = submit
    submitted(run, *words)
    work(run)
    assert seen == [expected]


def test_request_may_come_from_standard_input(run: Run) -> None:
    """``-`` reads a pipe."""
    assert run("submit", TYPE, "-", input='{"name": "x"}').code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nmae=x"], "did you mean 'name'"),
        (['{"nmae": "x"}'], "did you mean 'name'"),
        (["size=many"], "size"),
        (['{"size": "5"}'], "size"),
        (["{"], "is not JSON"),
        (["@missing.json"], "cannot be read"),
        (["@list.json"], "must hold a JSON object"),
        (["what"], "expected name=value"),
        (["scan.pdf"], "is a local file"),
        (["name=refused"], "may not be 'refused'"),
        (["--deadline", "0"], "deadline must be"),
        (["--deadline", "soon"], "must be a duration"),
        (["--priority", "2000"], "priority must be"),
        (["--run-at", "2030-01-01T00:00"], "no time zone"),
        (["--run-at", "tomorrow"], "expected a time"),
        (["--metadata", "novalue"], "name=value"),
        (["--handler", "acme:jbo"], "did you mean 'acme:job'"),
        (["--tenant", "a\nb"], "tenant must be"),
        (["--dedline", "5"], "--deadline"),
    ],
)
def test_bad_input_is_refused_with_the_fix_and_stores_nothing(
    run: Run, words: list[str], message: str
) -> None:
    """One clear message, exit code 2, no task."""
    Path("list.json").write_text("[1]", "utf-8")
    Path("scan.pdf").write_text("x", "utf-8")
    answer = run("submit", TYPE, *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert run("list", "--json").json["items"] == []


def test_unknown_type_is_refused_with_the_closest_name(run: Run) -> None:
    """Types go by their registered names."""
    answer = run("submit", "test.manager.jbo")
    assert answer.code == 2
    assert "did you mean 'test.manager.job'" in answer.err


def test_options_reach_the_task(run: Run) -> None:
    """What the options say is in the record."""
    task_id = submitted(
        run,
        *("--account", "second", "--tenant", "t", "--priority", "-5", "--delay", "1h", "--deadline", "2h"),
        *("--metadata", "order=5", "--metadata", "who=me", "--dedupe-key", "k", "--cancel-on-deadline"),
    )
    shown = run("show", task_id, "--json").json
    task = shown["task"]
    assert (task["account"], task["tenant"], task["priority"]) == ("second", "t", -5)
    assert (task["deadline"], task["metadata"]) == (7200.0, {"order": 5, "who": "me"})
    assert (task["dedupe_key"], task["cancel_on_deadline"]) == ("k", True)
    assert shown["waiting"]["reason"] == "not_due"


def test_replay_prints_the_first_tasks_id_and_says_so(run: Run) -> None:
    """A script gets the id that it wants, a person the reason."""
    first = submitted(run, "--dedupe-key", "k")
    answer = run("submit", TYPE, "--dedupe-key", "k")
    assert (answer.code, answer.out.strip()) == (0, first)
    assert "used before" in answer.err
    conflict = run("submit", TYPE, "name=other", "--dedupe-key", "k")
    assert conflict.code == 2
    assert first in conflict.err


def test_submit_into_a_private_memory_is_refused(run: Run) -> None:
    """The task would be gone when the command ends (F109)."""
    answer = run("submit", TYPE, "--store", "memory://")
    assert answer.code == 2
    assert "would be gone" in answer.err


# Waiting.


def test_submit_and_wait_prints_the_result(run: Run, vendor: Vendor) -> None:
    """Progress goes to standard error, the result to standard output."""
    vendor.query_answer = QueryResult.succeeded(Outcome("hello"))
    done = threading.Event()

    def worker() -> None:
        store = SqliteStore("tasks.db")
        house = build(vendor, store=store)
        while not done.wait(0.02):
            house.work()
        store.close()

    thread = threading.Thread(target=worker)
    thread.start()
    answer = run("submit", TYPE, "--wait", "30")
    done.set()
    thread.join()
    assert (answer.code, orjson.loads(answer.out)) == (0, {"text": "hello"})
    assert "succeeded" in answer.err
    assert "pending_submit" in answer.err


def test_patience_that_ends_is_no_failure_of_the_task(run: Run) -> None:
    """The pending task and the command that goes on waiting are printed; the exit code says so."""
    answer = run("submit", TYPE, "--wait", "0.2", "--store", "sqlite:///other.db")
    assert answer.code == 3
    task_id = answer.out.split()[0]
    assert f"coatcheck wait {task_id} --store=sqlite:///other.db" in answer.out
    assert "no worker with handler 'acme:job'" in answer.err
    again = run("wait", task_id, "--timeout", "0", "--store", "sqlite:///other.db")
    assert again.code == 3


def test_wait_says_at_once_when_no_worker_has_the_handler(run: Run) -> None:
    """The reason comes before the patience ends."""
    task_id = submitted(run)
    answer = run("wait", task_id, "--timeout", "0.1")
    assert "waits: no worker with handler 'acme:job' was seen" in answer.err


def test_wait_prints_the_result_of_an_ended_task(run: Run) -> None:
    """Waiting for what has ended is reading it."""
    task_id = submitted(run)
    work(run, 2)
    answer = run("wait", task_id)
    assert (answer.code, orjson.loads(answer.out)) == (0, {"text": "done"})
    task = run("wait", task_id, "--json").json
    assert (task["status"], task["result"], task["external_task_id"]) == (
        "succeeded",
        {"text": "done"},
        "job-1",
    )


def test_task_that_ended_badly_is_exit_code_one(run: Run, vendor: Vendor) -> None:
    """Code, message and ids go to standard error."""
    vendor.query_answer = QueryResult.failed("bad_scan", "cannot read")
    task_id = submitted(run)
    work(run, 2)
    answer = run("wait", task_id)
    assert (answer.code, answer.out) == (1, "")
    assert "bad_scan: cannot read" in answer.err
    assert "job-1" in answer.err
    assert run("wait", task_id, "--json").code == 1


# Show and list.


def test_show_prints_state_reason_and_result(run: Run, vendor: Vendor) -> None:
    """What a person wants to know about a task is on one screen."""
    task_id = submitted(run)
    shown = run("show", task_id)
    assert shown.code == 0
    assert "pending_submit" in shown.out
    assert "no_handler: no worker with handler 'acme:job'" in shown.out
    vendor.query_answer = QueryResult.running(42, provider_status="BUSY")
    work(run, 2)
    shown = run("show", task_id)
    assert "42 %" in shown.out
    assert "BUSY" in shown.out
    vendor.query_answer = QueryResult.succeeded("the text\nof two lines")
    work(run)
    assert run("show", task_id).out.endswith("the text\nof two lines\n")
    assert run("show", task_id, "--result").out == "the text\nof two lines\n"
    assert run("show", task_id, "--result", "--json").json == "the text\nof two lines"


def test_missing_and_foreign_tasks_are_exit_code_two(run: Run) -> None:
    """The two look the same."""
    task_id = submitted(run, "--tenant", "a")
    for arguments in (("show", "nope"), ("show", task_id, "--tenant", "b"), ("wait", "nope")):
        answer = run(*arguments)
        assert (answer.code, answer.out) == (2, "")
        assert "no task" in answer.err
    assert run("show", task_id, "--tenant", "a").code == 0


def test_errors_are_json_for_programs(run: Run) -> None:
    """With ``--json`` the error is one line of JSON on standard error."""
    answer = run("show", "nope", "--json")
    assert (answer.code, answer.out) == (2, "")
    error = orjson.loads(answer.err)
    assert error["error"] == "TaskNotFoundError"
    assert "no task 'nope'" in error["message"]


def test_list_shows_one_task_a_line_and_pages(run: Run) -> None:
    """Newest first, filtered, page by page."""
    ids = [submitted(run, "--tenant", tenant) for tenant in ("a", "a", "b")]
    lines = run("list").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ids[::-1]
    assert "pending_submit" in lines[1]
    assert len(run("list", "--tenant", "a", "--json").json["items"]) == 2
    page = run("list", "--limit", "2")
    assert len(page.out.splitlines()) == 3
    cursor = page.err.split("--cursor ")[1].strip()
    assert run("list", "--limit", "2", "--cursor", cursor, "--json").json["items"][0]["id"] == ids[0]
    assert run("list", "--status", "failed").out.split() == [
        "id",
        "status",
        "handler",
        "tenant",
        "age",
        "detail",
    ]


@pytest.mark.parametrize(
    "arguments", [("--limit", "0"), ("--status", "done"), ("--cursor", "x"), ("--limit", "many")]
)
def test_list_refuses_bad_filters(run: Run, arguments: tuple[str, ...]) -> None:
    """A filter that means nothing is an error, not an empty list."""
    assert run("list", *arguments).code == 2


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b1m [bold]x[/bold] \u202egnp.exe"


@pytest.mark.parametrize("command", [("list",), ("show",), ("wait",), ("list", "--json"), ("show", "--json")])
def test_vendor_text_cannot_drive_the_terminal(run: Run, vendor: Vendor, command: tuple[str, ...]) -> None:
    """Control characters are shown as escapes, and markup is text."""
    vendor.query_answer = QueryResult.failed("bad", HOSTILE, provider_status=HOSTILE)
    task_id = submitted(run)
    work(run, 2)
    name, *options = command
    answer = run(name, *([] if name == "list" else [task_id]), *options)
    text = answer.out + answer.err
    assert "red" in text
    assert "[bold]x[/bold]" in text
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_result_texts_are_escaped_but_keep_their_lines(run: Run, vendor: Vendor) -> None:
    """A recognised document may hold anything."""
    vendor.query_answer = QueryResult.succeeded("line 1\nline 2\x1b[2J")
    task_id = submitted(run)
    work(run, 2)
    assert run("wait", task_id).out == "line 1\nline 2\\x1b[2J\n"


# Moves.


def test_cancel_pending_and_running(run: Run, vendor: Vendor) -> None:
    """A pending task ends at once; a running one when the vendor says so."""
    pending = submitted(run)
    assert run("cancel", pending).out == f"{pending} canceled\n"
    vendor.query_answer = QueryResult.running(5)
    running = submitted(run)
    work(run)
    answer = run("cancel", running)
    assert answer.code == 0
    assert "a worker asks the vendor next" in answer.err
    work(run)
    assert run("show", running, "--json").json["task"]["status"] == "canceled"


def test_retry_and_resume(run: Run, vendor: Vendor) -> None:
    """An operator gives a failed task a second life; a refused move says what is allowed."""
    vendor.query_answer = QueryResult.failed("bad", "bad")
    task_id = submitted(run)
    refused = run("retry", task_id)
    assert refused.code == 2
    assert "allowed from FAILED" in refused.err
    work(run, 2)
    assert run("resume", task_id).code == 2
    assert run("retry", task_id, "--json").json["generation"] == 2


def test_resolve_an_unknown_submit(run: Run, vendor: Vendor) -> None:
    """The operator's name and reason are kept with the task."""
    vendor.submit_answer = ValueError("reset")
    task_id = submitted(run)
    work(run)
    assert run("wait", task_id).code == 1
    assert run("resolve", task_id, "--to", "submitted", "--reason", "r").code == 2
    assert run("resolve", task_id, "--to", "failed", "--reason", "r", "--param", "a=b").code == 2
    assert run("resolve", task_id, "--to", "submitted", "--reason", "r", "--external-id", " ").code == 2
    arguments = (
        "--to",
        "submitted",
        "--external-id",
        "job-9",
        "--param",
        "region=eu",
        "--reason",
        "seen",
        "--by",
        "ann",
    )
    task = run("resolve", task_id, *arguments, "--json").json
    assert task["status"] == "submitted"
    assert task["query_params"] == {"external_task_id": "job-9", "provider_params": {"region": "eu"}}
    assert task["notes"] == ["resolved to submitted by ann: seen"]


def test_refresh_asks_the_vendor_now(run: Run, vendor: Vendor) -> None:
    """No worker is needed to look."""
    vendor.submit_answer = SubmitResult.running(QueryParams("job-1"))
    task_id = submitted(run)
    work(run)
    assert run("refresh", task_id).out == f"{task_id} succeeded\n"


def test_refresh_of_an_ended_task_says_what_it_did(run: Run, vendor: Vendor) -> None:
    """A result is fetched again or found to be gone; after another end nobody is asked (F80)."""
    vendor.query_answer = QueryResult.succeeded(Outcome("link"), expires_after=timedelta(hours=1))
    task_id = submitted(run)
    work(run, 2)
    again = run("refresh", task_id)
    assert (again.code, again.out) == (0, f"{task_id} succeeded\n")
    assert "the result was fetched again, good until 20" in again.err
    vendor.query_answer = JobNotFoundError("no such job")
    assert "the result is gone, what was stored is kept" in run("refresh", task_id).err
    assert run("refresh", task_id, "--json").json["result_gone"] is True
    vendor.submit_answer = SubmitResult.succeeded(Outcome("at once"))
    at_once_id = submitted(run)
    work(run)
    assert "there is no job to ask about" in run("refresh", at_once_id).err
    vendor.submit_answer = SubmitResult.running(QueryParams("job-1"))
    vendor.query_answer = QueryResult.failed("bad_prompt", "no")
    failed_id = submitted(run)
    work(run, 2)
    asked = len(vendor.queries)
    assert "nobody was asked; see: coatcheck retry" in run("refresh", failed_id).err
    assert len(vendor.queries) == asked


def test_make_due(run: Run) -> None:
    """A task that waits for its time need not."""
    task_id = submitted(run, "--delay", "1h")
    assert run("make-due", task_id).code == 0
    work(run, 2)
    assert run("wait", task_id, "--timeout", "0").code == 0
