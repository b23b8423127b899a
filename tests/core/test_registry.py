"""The registry: unique names, exact types, helpful refusals; a failed registration leaves nothing behind."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import click
import pytest
from attrs import frozen

from coatcheck import (
    ConfigError,
    DuplicateNameError,
    QueryContext,
    QueryParams,
    QueryResult,
    Registry,
    StoreConfigError,
    SubmitContext,
    SubmitResult,
    TaskHandler,
    UnknownNameError,
    ValidationError,
    persistent,
)
from coatcheck.codec import registered_types, unregister
from coatcheck.plugins.builtin import coatcheck_register_selectors, coatcheck_register_stores
from coatcheck.selector import SelectorContext, round_robin


@persistent("registry.request")
@frozen
class Request:
    """A request."""

    url: str = ""


@persistent("registry.special")
@frozen
class Special(Request):
    """A subclass with a name of its own."""


@frozen
class Unregistered:
    """An attrs class without a name."""


class Handler(TaskHandler[Request]):
    """Does nothing."""

    key = "registry:one"

    def __init__(self, key: str = "registry:one") -> None:
        self.key = key

    def submit(self, params: Request, context: SubmitContext) -> SubmitResult:
        """Submit nothing."""
        return SubmitResult.submitted(QueryParams("1"))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """See nothing."""
        return QueryResult.running()


class SpecialHandler(Handler):
    """Accepts the subclass only."""

    params_type: ClassVar[Any] = Special


def no_store(url: str, *, namespace: str) -> Any:
    """Open nothing."""


@pytest.fixture
def registry() -> Registry:
    """A registry with core's own selectors and stores."""
    registry = Registry()
    coatcheck_register_selectors(registry)
    coatcheck_register_stores(registry)
    return registry


@pytest.fixture
def fresh_types() -> Iterator[None]:
    """Take types that a test registers off the allow-list again."""
    before = set(registered_types())
    yield
    for name in set(registered_types()) - before:
        unregister(name)


def test_a_registry_says_what_it_holds(registry: Registry) -> None:
    """Its repr is a summary, for logs and notebooks."""
    registry.add_handler(Handler())
    assert repr(registry) == "<Registry: 1 handler, 5 selector, 2 store, 0 transport, 0 command, 0 sandbox>"


# Handlers.


def test_a_handler_is_found_by_its_key_and_by_exactly_its_type(registry: Registry) -> None:
    """Routing looks at the type itself: a subclass is another type, in both directions."""
    one, two = Handler("b:two"), Handler("a:one")
    special = SpecialHandler("c:special")
    for handler in (one, two, special):
        assert registry.add_handler(handler).handler is handler
    assert registry.handler("b:two").handler is one
    assert [found.key for found in registry.handlers_for(Request)] == ["a:one", "b:two"]
    assert [found.key for found in registry.handlers_for(Special)] == ["c:special"]
    assert registry.handlers_for(object) == ()
    assert list(registry.handlers) == ["a:one", "b:two", "c:special"]


def test_the_view_of_handlers_is_read_only(registry: Registry) -> None:
    """Nothing is registered behind the registry's back."""
    view: Any = registry.handlers
    with pytest.raises(TypeError):
        view["x"] = 1


def test_an_unknown_key_gets_the_closest_one_and_where_it_could_come_from(registry: Registry) -> None:
    """A slip is corrected by reading the message."""
    registry.add_handler(Handler("ocr:gitee"))
    with pytest.raises(UnknownNameError) as caught:
        registry.handler("ocr:gitea")
    assert "did you mean 'ocr:gitee'" in str(caught.value)
    assert "coatcheck plugins" in str(caught.value)
    assert (caught.value.kind, caught.value.name, caught.value.known) == (
        "handler",
        "ocr:gitea",
        ("ocr:gitee",),
    )


def test_an_unknown_key_of_a_plugin_that_failed_says_so(registry: Registry) -> None:
    """The cause is nearer than the general hint."""
    registry.note_missing("ocr", "It may come with plugin 'ocr', which is disabled.")
    with pytest.raises(UnknownNameError, match=r"which is disabled\.$"):
        registry.handler("ocr:gitee")
    with pytest.raises(UnknownNameError, match="See `coatcheck plugins`"):
        registry.handler("video:x")


def test_two_handlers_cannot_share_a_key_and_both_sides_are_named(registry: Registry) -> None:
    """The first one stays; the message says who came first and who second."""
    first = registry.add_handler(Handler(), by="plugin a")
    with pytest.raises(DuplicateNameError, match="'plugin a' and by 'plugin b'"):
        registry.add_handler(Handler(), by="plugin b")
    with pytest.raises(DuplicateNameError, match="'plugin a' and by 'application'"):
        registry.add_handler(Handler())
    assert registry.handler("registry:one") is first
    assert registry.names("handler") == {"registry:one": "plugin a"}


def test_a_handler_of_an_unregistered_type_is_refused_with_decorator_and_override(registry: Registry) -> None:
    """What cannot be stored is found at registration and not at the first submit."""

    class Lost(Handler):
        params_type: ClassVar[Any] = Unregistered

    with pytest.raises(ConfigError) as caught:
        registry.add_handler(Lost())
    assert "Lost accepts Unregistered" in str(caught.value)
    assert '@persistent("' in str(caught.value)
    assert "params_type = … in Lost" in str(caught.value)
    assert registry.handlers == {}


def test_a_handler_of_a_type_with_an_unresolvable_field_is_refused(
    registry: Registry, fresh_types: None
) -> None:
    """A name that never appears cannot be looked at later than here."""

    @persistent("registry.unresolved")
    @frozen
    class Unresolved:
        other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821  # nobody defines it

    class Lost(Handler):
        params_type: ClassVar[Any] = Unresolved

    with pytest.raises(ConfigError, match="Nowhere"):
        registry.add_handler(Lost())


@pytest.mark.parametrize("handler", [Handler, object(), None, "registry:one"])
def test_what_is_no_handler_instance_is_refused(registry: Registry, handler: object) -> None:
    """A class in place of an instance is the usual slip."""
    with pytest.raises(ConfigError, match="expected a"):
        registry.add_handler(handler)


# Selectors, stores, transports, commands.


def test_the_five_selectors_are_there_and_make_selectors(registry: Registry) -> None:
    """A configuration file names a selector and its options."""
    assert list(registry.names("selector")) == [
        "consistent_hash",
        "least_active",
        "random",
        "round_robin",
        "weighted",
    ]
    context = SelectorContext(request=Request(), candidates=[Handler("a"), Handler("b")])
    chosen = [registry.selector("weighted", weights={"a": 2, "b": 1}).select(context).key for _ in range(3)]
    assert set(chosen) == {"a"}  # each call makes a new selector, whose first turn is the heaviest's
    assert registry.selector("round_robin").select(context).key == "a"
    assert registry.selector("random").select(context).key in {"a", "b"}
    assert registry.selector("least_active", counts={"a": 2, "b": 1}).select(context).key == "b"


def test_a_consistent_hash_reads_its_key_from_a_named_place(registry: Registry) -> None:
    """In a file a function cannot be written, so a dotted path names what the key is read from."""
    candidates = [Handler(f"h{number}") for number in range(20)]

    def choice(path: Any, url: str) -> str:
        context = SelectorContext(request=Request(url), candidates=candidates)
        return registry.selector("consistent_hash", key_of=path).select(context).key

    by_function = {url: choice(lambda context: context.request.url, url) for url in "abcdefgh"}
    assert {url: choice("request.url", url) for url in "abcdefgh"} == by_function
    assert len(set(by_function.values())) > 1
    with pytest.raises(ConfigError, match="finds no 'ulr'"):
        choice("request.ulr", "a")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wieghted", {}, "unknown selector 'wieghted'; did you mean 'weighted'"),
        ("weighted", {"wieghts": {}}, "option of selector 'weighted' 'wieghts'; did you mean 'weights'"),
        ("weighted", {}, "missing a required argument: 'weights'"),
        ("round_robin", {"x": 1}, "option of selector 'round_robin' 'x' .known: none"),
    ],
)
def test_a_wrong_name_or_option_is_refused_with_the_right_one(
    registry: Registry, name: str, options: dict[str, Any], message: str
) -> None:
    """Configuration slips fail at start with the closest name."""
    with pytest.raises(ConfigError, match=message):
        registry.selector(name, **options)


def test_a_store_is_opened_by_its_url(registry: Registry, tmp_path: Any) -> None:
    """Scheme, path, namespace and options reach the store."""
    store = registry.open_store(f"sqlite:///{tmp_path}/a b%20c.db", namespace="ns")
    assert (store.kind, store.namespace, store.is_shared) == ("sqlite", "ns", True)
    store.close()
    assert (tmp_path / "a b%20c.db").exists()
    memory = registry.open_store("MEMORY://")
    assert (memory.kind, memory.namespace, memory.is_shared) == ("memory", "default", False)
    memory.close()


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("sqlit:///x", UnknownNameError, "did you mean 'sqlite'"),
        ("tasks.db", StoreConfigError, "must begin with one of memory://, sqlite://"),
        ("", StoreConfigError, "must begin with"),
        (None, StoreConfigError, "must begin with"),
        ("sqlite://", StoreConfigError, "sqlite:///file.db"),
        ("sqlite:///", StoreConfigError, "sqlite:///file.db"),
        ("sqlite://tasks.db", StoreConfigError, "sqlite:///file.db"),
        ("memory://name", StoreConfigError, "memory has no name"),
    ],
)
def test_a_url_that_names_no_store_is_refused(
    registry: Registry, url: Any, error: type[ConfigError], message: str
) -> None:
    """The message shows the form of a right one."""
    with pytest.raises(error, match=message):
        registry.open_store(url)


def test_a_password_in_a_url_is_not_shown(registry: Registry) -> None:
    """A URL that cannot be read may still hold a secret (G8)."""
    for url in ("redis:/user:hunter2@host", "nowhere://user:hunter2@host/0"):
        with pytest.raises(ConfigError) as caught:
            registry.open_store(url)
        assert "hunter2" not in str(caught.value) + repr(caught.value)


def test_unknown_options_of_a_store_are_refused(registry: Registry) -> None:
    """An option that the store does not know would otherwise be lost."""
    with pytest.raises(UnknownNameError, match="did you mean 'ageing'"):
        registry.open_store("memory://", aging=None)


def test_transports_and_commands_are_found_by_name(registry: Registry) -> None:
    """What plugins add is made, or handed out, under its own name."""
    registry.add_transport("fast", lambda timeout=1: ("fast", timeout))
    assert registry.transport("fast", timeout=2) == ("fast", 2)
    registry.add_transport("any", dict)
    assert registry.transport("any", whatever=1) == {"whatever": 1}
    command = click.Command("demo")
    registry.add_command(command)
    assert registry.commands == {"demo": command}
    with pytest.raises(DuplicateNameError, match="command 'demo'"):
        registry.add_command(click.Command("demo"))
    with pytest.raises(ValidationError, match="a command's name"):
        registry.add_command(click.Command(None))


@pytest.mark.parametrize("kind", ["selector", "store", "transport"])
def test_factories_are_functions_with_unique_printable_names(registry: Registry, kind: str) -> None:
    """All kinds of factories go through the same checks."""
    add = getattr(registry, f"add_{kind}")
    add("mine", round_robin)
    with pytest.raises(DuplicateNameError, match=f"{kind} 'mine'"):
        add("mine", round_robin)
    with pytest.raises(ConfigError, match="needs a function"):
        add("other", "not a function")
    with pytest.raises(ValidationError, match="name must be"):
        add(" ", round_robin)


# Taking back.


def test_a_failed_block_leaves_nothing_behind(registry: Registry, fresh_types: None) -> None:
    """Names of every kind and types of the failing module are gone; what was there before stays."""
    kept = registry.add_handler(Handler("kept"))
    before = {
        kind: dict(registry.names(kind)) for kind in ("handler", "selector", "store", "transport", "command")
    }

    def register_all() -> None:
        registry.add_handler(Handler("half"))
        registry.add_selector("half", round_robin)
        registry.add_store("half", no_store)
        registry.add_transport("half", round_robin)
        registry.add_command(click.Command("half"))
        persistent("registry.half")(frozen(type("Half", (), {"__module__": "half_plugin"})))
        raise SystemExit(3)

    with pytest.raises(SystemExit), registry.registering("plugin half", "half_plugin"):
        register_all()
    assert {kind: dict(registry.names(kind)) for kind in before} == before
    assert registry.handler("kept") is kept
    assert "registry.half" not in registered_types()
    registry.add_handler(Handler("half"))  # the name is free again, and the application's
    assert registry.names("handler")["half"] == "application"


def test_types_of_a_shared_module_outlive_the_plugin_that_failed(
    registry: Registry, fresh_types: None
) -> None:
    """Another plugin may have imported the same module, which will not register its types again."""

    def register() -> None:
        persistent("registry.shared")(frozen(type("Shared", (), {"__module__": "registry_shared"})))
        raise SystemExit

    sys.modules["registry_shared"] = ModuleType("registry_shared")
    try:
        with pytest.raises(SystemExit), registry.registering("plugin half", "half_plugin"):
            register()
        assert "registry.shared" in registered_types()
    finally:
        del sys.modules["registry_shared"]


def test_a_block_names_who_registers(registry: Registry) -> None:
    """Plugins do not say who they are: the loader does."""
    with registry.registering("plugin a"):
        registry.add_handler(Handler("a"))
        with registry.registering("plugin b"):
            registry.add_handler(Handler("b"))
        registry.add_handler(Handler("a2"))
    registry.add_handler(Handler("c"))
    assert registry.names("handler") == {
        "a": "plugin a",
        "a2": "plugin a",
        "b": "plugin b",
        "c": "application",
    }
