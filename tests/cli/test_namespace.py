"""Commands about the whole: plugins, handlers, limits, pauses, stats, prune, settings and faults."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.cli.test_tasks import TYPE, submitted, work

from coatcheck.cli import BUILT_IN, main
from coatcheck.errors import StoreUnavailableError
from coatcheck.plugins import load_plugins
from coatcheck.stores.sqlite import SqliteStore


def test_plugins_lists_what_is_installed(run: Run) -> None:
    """Name, package, version and state, also as JSON."""
    assert "builtin" in run("plugins").out
    entries = run("plugins", "--json").json["plugins"]
    assert {"name": "builtin", "status": "loaded"}.items() <= entries[0].items()


def test_disabled_plugins_are_shown_and_not_loaded(run: Run) -> None:
    """The settings name them; their handlers are gone."""
    Path("coatcheck.toml").write_text('[plugins]\ndisabled = ["ocr", "video"]', "utf-8")
    states = {one["name"]: one["status"] for one in run("plugins", "--json").json["plugins"]}
    assert (states["ocr"], states["video"]) == ("disabled", "disabled")
    assert {one["key"] for one in run("handlers", "--json").json["handlers"]} == {"acme:job"}


def test_handlers_lists_keys_and_request_fields(run: Run) -> None:
    """What can be submitted can be found out."""
    out = run("handlers").out
    assert "acme:job" in out
    assert "name size extra" in out
    (found,) = [one for one in run("handlers", "--json").json["handlers"] if one["key"] == "acme:job"]
    assert (found["request"], found["fields"], found["cancel"]) == (TYPE, ["name", "size", "extra"], True)


def test_commands_of_plugins_run_and_their_faults_stay_theirs(run: Run) -> None:
    """A plugin's command works like ours; one that breaks is one message, not a traceback."""
    assert run("hello").out == "hello from a plugin\n"
    broken = run("broken")
    assert broken.code == 70
    assert "ZeroDivisionError: bad\\x1b[31m luck" in broken.err
    answer = run("--help")
    assert answer.code == 0
    assert all(name in answer.out for name in (*BUILT_IN, "hello", "broken"))
    assert "command 'show' of plugin 'Plugin' is left out: it is taken by coatcheck" in answer.err
    assert "command 'nonsense' of plugin 'Plugin' is left out: it is no click.Command" in answer.err
    nonsense = run("nonsense")
    assert nonsense.code == 2
    assert "must be a click.Command" in nonsense.err


def test_unknown_command_is_refused_with_the_closest_one(run: Run) -> None:
    """Built-in names and those of plugins are known."""
    assert "did you mean 'show'" in run("shwo").err
    assert "did you mean 'hello'" in run("helo").err
    assert run("shwo").code == 2


def test_help_works_where_the_settings_do_not(run: Run) -> None:
    """Whoever has broken the settings needs help most."""
    Path("coatcheck.toml").write_text("stroe = 1", "utf-8")
    answer = run("--help")
    assert answer.code == 0
    assert "commands of plugins are not listed" in answer.err
    refused = run("stats")
    assert refused.code == 2
    assert "$.stroe; did you mean 'store'" in refused.err


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_command_explains_itself_and_takes_json(run: Run, name: str) -> None:
    """``--help`` works everywhere, and so does ``--json``."""
    answer = run(name, "--help")
    assert answer.code == 0
    command: Any = main.get_command(main.make_context("coatcheck", ["--help"], resilient_parsing=True), name)
    leaves = list(command.commands.values()) if hasattr(command, "commands") else [command]
    for leaf in leaves:
        assert "--json" in [option for param in leaf.params for option in param.opts], leaf.name
        assert leaf.help


def test_limits_are_set_listed_lifted_and_applied(run: Run) -> None:
    """One command per thing, live for all workers."""
    assert run("limits", "set", "--provider", "acme:job", "--side", "submit", "--rate", "10/s").code == 0
    assert run("limits", "set", "--account", "*", "--live", "5").code == 0
    listed = run("limits", "list").out
    assert "provider 'acme:job' submit" in listed
    assert "10/1s" in listed
    Path("coatcheck.toml").write_text(
        '[[limits]]\nprovider = "acme:job"\nside = "submit"\nrate = "20/m"', "utf-8"
    )
    assert "20/1m" in run("limits", "apply").out
    assert run("limits", "set", "--account", "*", "--off").code == 0
    limits = run("limits", "list", "--json").json["limits"]
    rates = [limit["rate"] for limit in limits if limit["provider"] == "acme:job"]
    assert rates == [{"count": 20, "per": 60.0}]
    assert [limit["live"] for limit in limits if limit["account"] == "*"] in ([], [None])


def test_applying_no_limits_says_so(run: Run) -> None:
    """Nothing was changed, and nobody thinks that something was."""
    assert "nothing was changed" in run("limits", "apply").out
    assert run("limits", "apply", "--json").json == {"limits": []}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--provider", "a", "--side", "submit"),
        ("--provider", "a", "--side", "submit", "--rate", "10/s", "--live", "5"),
        ("--provider", "a", "--side", "submit", "--rate", "0/s"),
        ("--provider", "a", "--side", "submit", "--rate", "-1/s"),
        ("--provider", "a", "--side", "submit", "--rate", "10"),
        ("--provider", "a", "--side", "both", "--rate", "10/s"),
        ("--provider", "a", "--rate", "10/s"),
        ("--account", "a", "--live", "0"),
        ("--account", "a", "--live", "-1"),
        ("--account", "a", "--live", "many"),
        ("--account", "a", "--live", "1000000000000"),
        ("--live", "5"),
    ],
)
def test_senseless_limits_are_refused(run: Run, arguments: tuple[str, ...]) -> None:
    """Zero, negative and half limits are usage errors; nothing is set (F52)."""
    answer = run("limits", "set", *arguments)
    assert answer.code == 2
    assert run("limits", "list", "--json").json["limits"] == []


@pytest.mark.parametrize("kind", ["provider", "account", "tenant"])
def test_pause_and_unpause(run: Run, kind: str) -> None:
    """Who paused and why is told to whoever asks why a task waits."""
    names = {"provider": "acme:job", "account": "default", "tenant": "t"}
    task_id = submitted(run, "--tenant", "t")
    assert run(kind, "pause", names[kind], "--reason", "maintenance", "--by", "ann").code == 0
    assert run(kind, "pause", names[kind]).code == 2
    work(run)
    shown = run("show", task_id, "--json").json
    assert (shown["task"]["status"], shown["waiting"]["reason"]) == ("pending_submit", "paused")
    listed = run("limits", "list").out
    assert "maintenance" in listed
    assert "ann" in listed
    assert "goes on" in run(kind, "unpause", names[kind]).out
    assert "was not paused" in run(kind, "unpause", names[kind]).out
    work(run, 2)
    assert run("wait", task_id, "--timeout", "0").code == 0


def test_stats_and_prune(run: Run) -> None:
    """A look at the store, and its size kept in check."""
    submitted(run)
    work(run, 2)
    submitted(run)
    out = run("stats").out
    assert "succeeded" in out
    assert "acme:job" in out
    assert run("stats", "--json").json["by_status"]["pending_submit"] == 1
    assert run("prune").code == 2
    assert run("prune", "--older-than", "30d").out == "0 deleted\n"
    assert run("prune", "--older-than", "0", "--status", "failed", "--json").json == {"deleted": 0}
    assert run("prune", "--older-than", "0").out == "1 deleted\n"
    assert run("prune", "--older-than", "0", "--status", "running").code == 2


def test_settings_have_one_order(run: Run) -> None:
    """Option beats variable beats file."""
    Path("coatcheck.toml").write_text('store = "sqlite:///file.db"\nnamespace = "from_file"', "utf-8")
    assert "sqlite:///tasks.db" in run("stats").out
    assert "from_file" in run("stats").out
    assert "sqlite:///option.db" in run("stats", "--store", "sqlite:///option.db").out
    assert "sqlite:///option.db" in run("--store", "sqlite:///option.db", "stats").out
    assert "other" in run("stats", "--namespace", "other").out
    Path("second.toml").write_text('namespace = "second"', "utf-8")
    assert "second" in run("stats", "--config", "second.toml").out


@pytest.mark.parametrize("url", ["nope", "postgres://x", "sqlite://x", "sqlite:////proc/none/x.db"])
def test_store_that_cannot_be_used_is_one_message(run: Run, url: str) -> None:
    """A wrong URL is a setting to repair."""
    answer = run("stats", "--store", url)
    assert answer.code in (2, 4)
    assert answer.err.startswith("Error: ")


def test_store_that_does_not_answer_is_exit_code_four(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts tell a store that is away from a mistake of theirs."""

    def stats(_: SqliteStore) -> None:
        raise StoreUnavailableError("the store does not answer")

    monkeypatch.setattr(SqliteStore, "stats", stats)
    answer = run("stats")
    assert (answer.code, answer.err) == (4, "Error: the store does not answer\n")


def test_fault_of_ours_is_one_message_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback unless it is asked for."""

    def stats(_: SqliteStore) -> None:
        raise AttributeError("oops")

    monkeypatch.setattr(SqliteStore, "stats", stats)
    answer = run("stats")
    assert answer.code == 70
    assert "AttributeError: oops" in answer.err


def test_interrupt_is_exit_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C says that nothing was lost."""

    def stats(_: SqliteStore) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SqliteStore, "stats", stats)
    answer = run("stats")
    assert answer.code == 130
    assert "what was stored goes on" in answer.err


def test_worker_refuses_to_sit_there_uselessly(run: Run) -> None:
    """A private memory or no handlers at all: said at the start."""
    assert run("worker", "--once", "--store", "memory://").code == 2
    assert run("worker", "--once", "--lease", "0").code == 2
    assert run("worker", "--once", "--threads", "0").code == 2


def test_worker_says_what_it_did(run: Run) -> None:
    """One round tells how many steps it wrote; its log goes to standard error."""
    submitted(run)
    assert run("worker", "--once", "--json").json == {"steps": 1}
    assert run("worker", "--once").out.endswith(" steps\n")


def test_worker_without_handlers_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could do nothing, so it does not sit there."""
    monkeypatch.setattr("coatcheck.cli.app.load_plugins", load_plugins)
    monkeypatch.setenv("COATCHECK_PLUGINS_DISABLED", "ocr,video,redis")
    answer = run("worker")
    assert answer.code == 2
    assert "no handlers are installed here" in answer.err
    assert "no handlers" in run("handlers").err


def test_pauses_are_json_for_programs(run: Run) -> None:
    """What was and what is."""
    run("provider", "pause", "a", "--reason", "r")
    answer = run("provider", "unpause", "a", "--json")
    assert answer.json == {"provider": "a", "is_paused": False, "was_paused": True}


def test_worker_writes_configured_limits_where_there_are_none(run: Run) -> None:
    """A restart does not undo what an operator set meanwhile."""
    Path("coatcheck.toml").write_text('[[limits]]\naccount = "default"\nlive = 5', "utf-8")

    def live() -> list[int]:
        limits = run("limits", "list", "--json").json["limits"]
        return [limit["live"] for limit in limits if limit["account"] == "default"]

    work(run)
    assert live() == [5]
    run("limits", "set", "--account", "default", "--live", "7")
    work(run)
    assert live() == [7]
