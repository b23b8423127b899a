"""Plugins: each is loaded alone, completely or not at all; none stops its host or the others (F84, G10)."""

import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from coatcheck import (
    PluginError,
    Registry,
    RequestError,
    SubmitOptions,
    Task,
    TaskStatus,
    UnknownNameError,
    hookimpl,
    hookspecs,
    load_plugins,
)
from coatcheck.codec import registered_types, unregister
from coatcheck.model import TaskChange
from coatcheck.plugins import PluginInfo, Plugins, PluginStatus

#: The real plugins of this workspace, which these tests leave alone.
REAL = ("coatcheck-ocr", "coatcheck-video", "coatcheck-redis")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
GOOD = """
    from attrs import frozen
    from coatcheck import QueryResult, SubmitResult, TaskHandler, hookimpl, persistent

    coatcheck_api = 1

    @persistent("{name}.request")
    @frozen
    class Request:
        url: str

    class Handler(TaskHandler[Request]):
        key = "{name}:x"
        def submit(self, params, context):
            return SubmitResult.failed("no", "no")
        def query(self, params, context):
            return QueryResult.running()

    @hookimpl
    def coatcheck_register_handlers(registry):
        registry.add_handler(Handler())
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return what installs a distribution with a plugin: a module, its metadata and its entry point."""
    types, modules = dict(registered_types()), set(sys.modules)

    def make(
        name: str, code: str = GOOD, *, entry: str | None = None, distribution: str = "", version: str = "1.2"
    ) -> None:
        distribution = distribution or f"dist-{name}"
        site = tmp_path / name
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(textwrap.dedent(code).replace("{name}", name))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[coatcheck]\n{entry or name} = {name}\n")
        monkeypatch.syspath_prepend(str(site))

    yield make
    for name in set(registered_types()) - set(types):
        unregister(name)
    for name in set(sys.modules) - modules:
        if name.startswith("acme_"):
            del sys.modules[name]


def load(registry: Registry | None = None, **options: Any) -> tuple[Registry, Plugins, dict[str, PluginInfo]]:
    """Load all plugins but the real ones; return the registry, the plugins and the report by name."""
    registry = Registry() if registry is None else registry
    plugins = load_plugins(registry, disabled=(*REAL, *options.pop("disabled", ())), **options)
    return registry, plugins, {info.name: info for info in plugins.report}


BROKEN = {
    "acme_import": ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
    "acme_syntax": ("def", "SyntaxError"),
    "acme_exit": ("raise SystemExit('bye')", "SystemExit: bye"),
    "acme_raise": ("raise ValueError('a') from KeyError('b')", "ValueError: a, caused by KeyError: 'b'"),
    "acme_base": ("raise BaseException('odd')", "BaseException: odd"),
    "acme_no_api": ("x = 1", "no coatcheck_api; write coatcheck_api = 1"),
    "acme_foreign_api": ("coatcheck_api = 2", "coatcheck_api is 2, this coatcheck serves 1"),
    "acme_misspelt": (
        """
        from coatcheck import hookimpl
        coatcheck_api = 1
        @hookimpl
        def coatcheck_register_handler(registry): ...
        """,
        "no hook coatcheck_register_handler; did you mean 'coatcheck_register_handlers'?",
    ),
    "acme_unmarked": (
        """
        coatcheck_api = 1
        def coatcheck_register_handlers(registry): ...
        """,
        "write @coatcheck.hookimpl above it",
    ),
    "acme_arguments": (
        """
        from coatcheck import hookimpl
        coatcheck_api = 1
        @hookimpl
        def coatcheck_register_handlers(regstry): ...
        """,
        "PluginValidationError",
    ),
    "acme_half": (
        GOOD
        + """
    @hookimpl
    def coatcheck_register_selectors(registry):
        registry.add_selector("half", lambda: None)
        raise RuntimeError("after half of it")
    """,
        "RuntimeError: after half of it",
    ),
    "acme_exit_in_hook": (
        GOOD
        + """
    @hookimpl
    def coatcheck_register_stores(registry):
        raise SystemExit
    """,
        "SystemExit",
    ),
    "acme_duplicate": (
        GOOD
        + """
    @hookimpl
    def coatcheck_register_selectors(registry):
        registry.add_selector("round_robin", lambda: None)
    """,
        "DuplicateNameError: selector 'round_robin' is registered twice: by",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_leaves_host_and_others_up_and_is_reported(install: Install, name: str) -> None:
    """Whatever is wrong, nothing of the plugin stays, the others work, the report has package and cause."""
    code, cause = BROKEN[name]
    install("acme_aaa")
    install(name, code)
    install("acme_zzz")
    registry, plugins, report = load()
    info = report[name]
    assert (info.status, info.distribution, info.version) == (PluginStatus.FAILED, f"dist-{name}", "1.2")
    assert cause in info.error
    assert "\n" not in info.error
    assert plugins.report.failed == (info,)
    assert list(registry.handlers) == ["acme_aaa:x", "acme_zzz:x"]
    assert "half" not in registry.names("selector")
    assert f"{name}.request" not in registered_types()
    assert report["acme_aaa"].status is report["acme_zzz"].status is PluginStatus.LOADED
    with pytest.raises(
        UnknownNameError, match=f"plugin '{name}' from dist-{name} 1.2, which could not be loaded"
    ):
        registry.handler(f"{name}:x")


def test_strict_refuses_to_start_and_names_all_faults(install: Install) -> None:
    """One start shows everything that has to be repaired."""
    install("acme_good")
    for name in ("acme_import", "acme_exit", "acme_half"):
        install(name, BROKEN[name][0])
    with pytest.raises(PluginError) as caught:
        load(strict=True)
    text = str(caught.value)
    assert text.startswith("3 plugin(s) could not be loaded")
    for name in ("acme_import", "acme_exit", "acme_half"):
        assert f"plugin {name!r} from dist-{name} 1.2: " in text
    assert "bye" in text
    assert "acme_good" not in text


def test_strict_is_content_with_good_plugins(install: Install) -> None:
    """Strictness is about faults only."""
    install("acme_good")
    registry, plugins, _ = load(strict=True)
    assert plugins.report.failed == ()
    assert "acme_good:x" in registry.handlers


def test_an_interrupt_is_not_swallowed(install: Install) -> None:
    """Ctrl-C during a slow import stops the program, as everywhere."""
    install("acme_interrupt", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load()


def test_two_plugins_of_one_name_are_not_both_loaded(install: Install) -> None:
    """The second is reported, with its package; names of plugins are how they are disabled."""
    install("acme_one", entry="twin")
    install("acme_two", entry="twin")
    _, plugins, _ = load()
    assert [(info.status, info.distribution) for info in plugins.report if info.name == "twin"] == [
        (PluginStatus.LOADED, "dist-acme_one"),
        (PluginStatus.FAILED, "dist-acme_two"),
    ]
    assert "plugin 'twin' is registered twice" in plugins.report.failed[0].error


@pytest.mark.parametrize("name", ["acme_off", "dist-acme_off", "Dist_Acme.off"])
def test_the_code_of_a_disabled_plugin_is_not_touched(install: Install, name: str) -> None:
    """A plugin is disabled by its own or its distribution's name, before its module is imported."""
    install("acme_off", "raise SystemExit")
    registry, plugins, report = load(disabled=[name])
    assert report["acme_off"].status is PluginStatus.DISABLED
    assert plugins.report.failed == ()
    assert "acme_off" not in sys.modules
    with pytest.raises(UnknownNameError, match="which is disabled"):
        registry.handler("acme_off:x")


def test_a_disabled_name_that_matches_nothing_is_warned_about(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """A slip in the name would leave the plugin on; a machine without it is no error, though."""
    install("acme_off")
    load(disabled=["acme_of"])
    assert "plugin 'acme_of' is disabled but not installed; did you mean 'acme_off'?" in caplog.text


def test_a_failure_is_logged_once_with_its_cause(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    """Who does not look at the report sees it in the log."""
    install("acme_exit", BROKEN["acme_exit"][0])
    load()
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in records] == [
        "plugin 'acme_exit' from dist-acme_exit 1.2 could not be loaded: SystemExit: bye"
    ]


def test_core_comes_through_the_same_door_and_first(install: Install) -> None:
    """The report lists core's own plugin like any other; the rest is loaded in the order of names."""
    install("acme_b")
    install("acme_a")
    registry, plugins, report = load()
    names = [info.name for info in plugins.report if info.status is PluginStatus.LOADED]
    assert names == ["builtin", "acme_a", "acme_b"]
    assert registry.names("store") == dict.fromkeys(["memory", "sqlite"], "plugin 'builtin' from coatcheck")
    made = {"aiohttp": "AiohttpTransport", "requests": "RequestsTransport", "urllib3": "Urllib3Transport"}
    assert registry.names("transport") == dict.fromkeys(made, "plugin 'builtin' from coatcheck")
    for name, expected in made.items():
        transport = registry.transport(name)
        transport.close()
        assert type(transport).__name__ == expected
    assert report["acme_a"].distribution == "dist-acme_a"


def test_each_registry_gets_its_own_plugins(install: Install) -> None:
    """There is no global manager: a second registry in the same process is loaded like the first."""
    install("acme_a")
    for _ in range(2):
        registry, _, report = load()
        assert report["acme_a"].status is PluginStatus.LOADED
        assert "acme_a:x" in registry.handlers


def test_modules_of_the_application_are_loaded_like_plugins() -> None:
    """An application's own hooks need no package, and are held to the same rules."""
    hooks, broken = ModuleType("mine"), ModuleType("broken")
    vars(hooks)["coatcheck_api"] = 1
    vars(broken)["coatcheck_api"] = 3
    _, _, report = load(extra=[hooks, broken])
    assert report["mine"].status is PluginStatus.LOADED
    assert "coatcheck_api is 3" in report["broken"].error
    assert str(report["mine"]) == "plugin 'mine'"


def test_a_class_in_place_of_an_instance_is_explained() -> None:
    """Hooks of a class would be called without self."""
    _, _, report = load(extra=[Observer])
    assert report["Observer"].error.endswith("found the class Observer; have you forgotten the ()?")


# Hooks.


class Observer:
    """Hears of changes; fails when it is told to."""

    coatcheck_api = 1

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self.__name__ = name
        self.heard: list[TaskChange] = []
        self.failure = failure

    @hookimpl
    def coatcheck_task_changed(self, change: TaskChange) -> None:
        """Hear."""
        self.heard.append(change)
        if self.failure is not None:
            raise self.failure


class Doorkeeper:
    """Answers each submit with what it was made with."""

    coatcheck_api = 1

    def __init__(self, name: str, answer: Any) -> None:
        self.__name__ = name
        self.answer = answer

    @hookimpl
    def coatcheck_admit(self, request: Any) -> Any:
        """Have a say; takes fewer arguments than the spec."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def a_task(**changes: Any) -> Task:
    """A new task; whatever is not given has a plain value."""
    values: dict[str, Any] = {
        "id": "t1",
        "status": TaskStatus.PENDING_SUBMIT,
        "handler_key": "h",
        "provider_key": "h",
        "account": "default",
        "tenant": "x",
        "created_at": NOW,
        "scheduled_at": NOW,
        "deadline_at": NOW,
        "updated_at": NOW,
    }
    return Task(**{**values, **changes})


def test_observers_hear_of_new_tasks_statuses_and_generations_and_of_nothing_else() -> None:
    """A commit that only moves progress is no change."""
    observer = Observer("observer")
    _, plugins, _ = load(extra=[observer])
    new = a_task()
    running = new.evolve(status=TaskStatus.RUNNING, updated_at=NOW + timedelta(seconds=1))
    plugins.task_changed(None, new)
    plugins.task_changed(new, running)
    plugins.task_changed(running, running.evolve(progress=5.0))
    plugins.task_changed(running, running.evolve(generation=2))
    assert [(c.from_status, c.to_status, c.generation) for c in observer.heard] == [
        (None, TaskStatus.PENDING_SUBMIT, 1),
        (TaskStatus.PENDING_SUBMIT, TaskStatus.RUNNING, 1),
        (TaskStatus.RUNNING, TaskStatus.RUNNING, 2),
    ]
    change = observer.heard[1]
    assert (change.task_id, change.tenant, change.handler_key, change.at) == (
        "t1",
        "x",
        "h",
        running.updated_at,
    )


def test_without_observers_a_change_costs_nothing() -> None:
    """Most processes have none; their commits do not even describe the change."""
    nothing: Any = object()
    _, plugins, _ = load()
    plugins.task_changed(nothing, nothing)


def test_a_failing_observer_stops_neither_the_commit_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its failure is logged with its name, and not at every commit (F96)."""
    first, failing, last = Observer("first"), Observer("failing", ValueError("no")), Observer("last")
    _, plugins, _ = load(extra=[first, failing, last])
    for _ in range(50):
        plugins.task_changed(None, a_task())
    assert [len(observer.heard) for observer in (first, failing, last)] == [50, 50, 50]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "plugin 'failing' failed in coatcheck_task_changed; the task is not affected"
    ]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([], 5),
        ([None], 5),
        ([timedelta(seconds=3)], 5),
        ([timedelta(seconds=9), None, timedelta(seconds=7)], 9),
    ],
)
def test_the_longest_delay_that_was_asked_for_counts(answers: list[Any], expected: int) -> None:
    """Plugins can make a submit later, never earlier than its options say."""
    extra = [Doorkeeper(f"door{number}", answer) for number, answer in enumerate(answers)]
    _, plugins, _ = load(extra=extra)
    assert plugins.admit(object(), SubmitOptions(delay=timedelta(seconds=5))) == timedelta(seconds=expected)


def test_a_refusal_reaches_the_submitter_as_it_is() -> None:
    """The plugin's own words and type are what the caller sees."""
    refusal = RequestError("over budget")
    _, plugins, _ = load(extra=[Doorkeeper("door", refusal)])
    with pytest.raises(RequestError) as caught:
        plugins.admit(object(), SubmitOptions())
    assert caught.value is refusal


@pytest.mark.parametrize("answer", [ValueError("boom"), 5, True, "1s"])
def test_a_doorkeeper_that_fails_refuses_the_request(answer: Any) -> None:
    """A guard that cannot say yes has not said yes; the error names the plugin."""
    _, plugins, _ = load(extra=[Doorkeeper("door", answer)])
    with pytest.raises(PluginError, match=r"'door'.*nothing was stored") as caught:
        plugins.admit(object(), SubmitOptions())
    assert caught.value.plugin == "door"


def test_every_hook_is_documented_and_called_by_its_own_arguments() -> None:
    """Specs are the only description that plugin authors get."""
    specs = {name: value for name, value in vars(hookspecs).items() if name.startswith("coatcheck_")}
    assert set(specs) == {
        "coatcheck_admit",
        "coatcheck_register_commands",
        "coatcheck_register_handlers",
        "coatcheck_register_sandboxes",
        "coatcheck_register_selectors",
        "coatcheck_register_stores",
        "coatcheck_register_transports",
        "coatcheck_task_changed",
    }
    assert all(spec.__doc__ for spec in specs.values())


def test_every_registering_hook_of_a_plugin_is_called_with_the_registry() -> None:
    """One plugin may register everything that there is."""
    called = []

    class Everything:
        coatcheck_api = 1
        __name__ = "everything"

        @hookimpl
        def coatcheck_register_commands(self, registry: Registry) -> None:
            called.append(("commands", registry))

        @hookimpl
        def coatcheck_register_handlers(self, registry: Registry) -> None:
            called.append(("handlers", registry))

        @hookimpl
        def coatcheck_register_selectors(self, registry: Registry) -> None:
            called.append(("selectors", registry))

        @hookimpl
        def coatcheck_register_stores(self, registry: Registry) -> None:
            called.append(("stores", registry))

        @hookimpl
        def coatcheck_register_transports(self, registry: Registry) -> None:
            called.append(("transports", registry))

    registry, _, _ = load(extra=[Everything()])
    kinds = ["commands", "handlers", "selectors", "stores", "transports"]
    assert sorted(called, key=lambda call: call[0]) == [(kind, registry) for kind in kinds]
