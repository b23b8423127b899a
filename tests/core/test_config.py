"""Settings: where they come from, which one wins, and that bad ones fail at load with the fix."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.config import Config, WorkerConfig, parse_duration, parse_rate, shown_url
from coatcheck.errors import ConfigError, UnknownNameError, ValidationError
from coatcheck.model import LONGEST, Limit, Rate, Side

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return what writes a ``coatcheck.toml`` into the working folder, an empty one."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = tmp_path / "coatcheck.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def test_without_file_and_variables_the_store_lies_in_the_users_data_folder(write: Write) -> None:
    """Everything has a default, and the default store is durable."""
    config = Config.load(environ={})
    assert config.store.startswith("sqlite:///")
    assert config.store.endswith("coatcheck/coatcheck.db")
    assert (config.namespace, config.ageing, config.path) == ("default", None, None)


def test_file_in_the_working_folder_is_read(write: Write) -> None:
    """A project keeps its settings beside its code; parent folders are not searched."""
    path = write(
        """
        store = "sqlite:///tmp/a.db"
        namespace = "shop"
        ageing = "10m"
        selector = "round_robin"

        [worker]
        lease = "45s"
        threads = 4
        grace = 0
        per_provider = { "ocr:gitee" = 2 }

        [plugins]
        disabled = ["acme"]
        strict = true

        [accounts.gitee]
        secret = "env:GITEE_KEY"

        [[limits]]
        provider = "ocr:gitee"
        side = "submit"
        rate = "10/s"

        [[limits]]
        account = "*"
        live = 5
        """
    )
    config = Config.load(environ={})
    assert (config.store, config.namespace, config.ageing) == (
        "sqlite:///tmp/a.db",
        "shop",
        timedelta(minutes=10),
    )
    assert (config.worker.lease, config.worker.threads, config.worker.grace) == (
        timedelta(seconds=45),
        4,
        timedelta(),
    )
    assert config.worker.per_provider == {"ocr:gitee": 2}
    assert config.selector is not None
    assert config.selector.name == "round_robin"
    assert (config.plugins.disabled, config.plugins.strict) == (("acme",), True)
    assert config.accounts == {"gitee": {"secret": "env:GITEE_KEY"}}
    assert config.limits == (
        Limit(provider="ocr:gitee", side=Side.SUBMIT, rate=Rate(10)),
        Limit(account="*", live=5),
    )
    assert config.path is not None
    assert config.path.resolve() == path.resolve()


def test_selector_table_holds_the_selectors_options(write: Write) -> None:
    """Weights belong to the selector that uses them."""
    write('[selector]\nname = "weighted"\nweights = { a = 3, b = 1 }')
    selector = Config.load(environ={}).selector
    assert selector is not None
    assert (selector.name, selector.options) == ("weighted", {"weights": {"a": 3, "b": 1}})


def test_override_beats_environment_beats_file_beats_default(write: Write) -> None:
    """One order of precedence for every setting."""
    write('namespace = "file"\n[worker]\nthreads = 1')
    environ = {"COATCHECK_NAMESPACE": "environment", "COATCHECK_WORKER_THREADS": "2"}
    assert Config.load(environ={}).namespace == "file"
    assert Config.load(environ=environ).namespace == "environment"
    assert Config.load(environ=environ, namespace="option").namespace == "option"
    assert Config.load(environ=environ, namespace=None).namespace == "environment"
    assert Config.load(environ={}).worker.threads == 1
    assert Config.load(environ=environ).worker.threads == 2
    assert Config.load(environ=environ, worker_threads=3).worker.threads == 3


def test_every_variable_is_read_as_its_type(write: Write) -> None:
    """Texts of the environment become the same values as in the file."""
    environ = {
        "COATCHECK_STORE": "memory://",
        "COATCHECK_AGEING": "90",
        "COATCHECK_TRANSPORT": "requests",
        "COATCHECK_SELECTOR": "random",
        "COATCHECK_WORKER_LEASE": "1m",
        "COATCHECK_WORKER_GRACE": "0.5",
        "COATCHECK_WORKER_ROOM": "7",
        "COATCHECK_WORKER_ASYNC_CALLS": "8",
        "COATCHECK_WORKER_HEALTH_PORT": "0",
        "COATCHECK_PLUGINS_DISABLED": "a, b",
        "COATCHECK_PLUGINS_STRICT": "yes",
        "COATCHECK_NAMESPACE": "",
        "COATCHECK_OCR_SPOOL": "/somebody/elses",
        "COATCHECK_ACCOUNT_GITEE": "k",
    }
    config = Config.load(environ=environ)
    assert (config.store, config.ageing, config.transport) == ("memory://", timedelta(seconds=90), "requests")
    assert config.selector is not None
    assert config.selector.name == "random"
    assert config.worker.lease == timedelta(minutes=1)
    assert config.worker.grace == timedelta(seconds=0.5)
    assert (config.worker.room, config.worker.async_calls, config.worker.health_port) == (7, 8, 0)
    assert (config.plugins.disabled, config.plugins.strict) == (("a", "b"), True)
    assert config.namespace == "default"


def test_file_may_be_named_by_argument_or_variable(write: Write, tmp_path: Path) -> None:
    """An argument wins over ``COATCHECK_CONFIG``, and that over the working folder."""
    write('namespace = "here"')
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(f'namespace = "{name}"', "utf-8")
    environ = {"COATCHECK_CONFIG": str(tmp_path / "one.toml")}
    assert Config.load(environ=environ).namespace == "one"
    assert Config.load(tmp_path / "two.toml", environ=environ).namespace == "two"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('stroe = "memory://"', r"\$\.stroe; did you mean 'store'"),
        ("[worker]\nlesae = 5", r"\$\.worker\.lesae; did you mean 'lease'"),
        ("[plugins]\ndisable = []", r"\$\.plugins\.disable; did you mean 'disabled'"),
        ('[[limits]]\nprovder = "a"', r"\$\.limits\[0\]\.provder; did you mean 'provider'"),
        ("[wroker]", r"\$\.wroker; did you mean 'worker'"),
    ],
)
def test_unknown_keys_are_refused_with_path_and_closest_name(write: Write, text: str, message: str) -> None:
    """A misspelt key is an error: left alone it would be a setting that silently does nothing."""
    write(text)
    with pytest.raises(UnknownNameError, match=message):
        Config.load(environ={})


def test_misspelt_variable_is_refused_and_a_foreign_one_is_not(write: Write) -> None:
    """``COATCHECK_STOER`` is a slip; a variable of a plugin is its own business."""
    with pytest.raises(UnknownNameError, match="did you mean 'COATCHECK_STORE'"):
        Config.load(environ={"COATCHECK_STOER": "memory://"})
    Config.load(environ={"COATCHECK_ACME_REGION": "x"})


def test_every_setting_of_the_worker_can_be_configured() -> None:
    """The table ``[worker]`` has a key for each of the worker's settings, and no other."""
    from coatcheck.worker.settings import WorkerSettings

    assert {a.name for a in attrs.fields(WorkerConfig)} == {a.name for a in attrs.fields(WorkerSettings)}


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("COATCHECK_WORKER_THREADS", "4.5"),
        ("COATCHECK_WORKER_THREADS", "many"),
        ("COATCHECK_WORKER_LEASE", "-5"),
        ("COATCHECK_PLUGINS_STRICT", "maybe"),
        ("COATCHECK_AGEING", "0"),
    ],
)
def test_bad_variables_fail_at_load(write: Write, variable: str, text: str) -> None:
    """What the environment says is checked like the file."""
    with pytest.raises(ConfigError, match="must be"):
        Config.load(environ={variable: text})


def test_a_message_names_the_variable_that_a_bad_value_came_from(write: Write) -> None:
    """Whoever set a variable does not look for it in a file."""
    environ = {"COATCHECK_WORKER_THREADS": "many"}
    with pytest.raises(ConfigError, match=r"^COATCHECK_WORKER_THREADS must be a whole number .*'many'"):
        Config.load(environ=environ, worker_room=None, worker_threads=None)
    with pytest.raises(ConfigError, match=r"^settings: \$\.worker\.threads must be a whole number"):
        Config.load(environ=environ, worker_threads=0)


def test_all_that_is_wrong_is_said_at_once(write: Write) -> None:
    """A file is not repaired one start at a time."""
    write('namespace = 5\nstroe = "memory://"\n[worker]\nthreads = 0')
    with pytest.raises(UnknownNameError) as caught:
        Config.load(environ={})
    assert (caught.value.kind, caught.value.name) == ("key", "stroe")
    for place in ("$.namespace must be a text", "unknown key $.stroe", "$.worker.threads must be a whole"):
        assert place in str(caught.value)


def test_unknown_override_is_refused() -> None:
    """Options of a program are checked like keys of the file."""
    with pytest.raises(UnknownNameError, match="did you mean 'namespace'"):
        Config.load(environ={}, namspace="x")


#: Zero is a grace (none at all) and nothing else; None has no spelling in TOML and means "not given" in an
#: override.
BAD_DURATIONS = [-1, "-5s", "5", "5 parsecs", "", 1e12, True, float("nan"), float("inf"), [5]]


@pytest.mark.parametrize("name", ["ageing", "worker_lease", "worker_grace"])
@pytest.mark.parametrize("value", BAD_DURATIONS)
def test_bad_durations_fail_at_load(write: Write, name: str, value: Any) -> None:
    """A duration that makes no sense never reaches a worker."""
    with pytest.raises(ConfigError, match=r"must be a (positive )?(duration|timedelta)"):
        Config.load(environ={}, **{name: value})


@pytest.mark.parametrize("name", ["ageing", "worker_lease"])
def test_zero_is_no_duration_where_it_has_no_meaning(write: Write, name: str) -> None:
    """Zero does not mean "none" or "default"; it is refused."""
    zero: Any = 0
    with pytest.raises(ConfigError, match="must be a positive timedelta"):
        Config.load(environ={}, **{name: zero})
    assert Config.load(environ={}, worker_grace=0).worker.grace == timedelta()


@pytest.mark.parametrize("name", ["worker_threads", "worker_room"])
@pytest.mark.parametrize("value", [0, -1, "5", 1e12, 10**12, True, 2.0])
def test_bad_counts_fail_at_load(write: Write, name: str, value: Any) -> None:
    """Counts are whole numbers from 1 with an upper bound, in the type that they have."""
    with pytest.raises(ConfigError, match="must be a whole number from 1"):
        Config.load(environ={}, **{name: value})


@pytest.mark.parametrize(
    "limit",
    [
        'provider = "a"\nside = "submit"\nrate = "0/s"',
        'provider = "a"\nside = "submit"\nrate = "-1/s"',
        'provider = "a"\nside = "submit"\nrate = 5',
        'provider = "a"\nside = "submit"\nrate = "5"',
        'provider = "a"\nside = "submit"\nrate = "5/0s"',
        'provider = "a"\nside = "submit"\nrate = "5/1e12s"',
        'provider = "a"\nside = "submit"\nrate = "1000000000000/s"',
        'provider = "a"\nside = "both"\nrate = "5/s"',
        'provider = "a"\nrate = "5/s"',
        'provider = "a"\nside = "submit"',
        'provider = "a"\nlive = 5',
        'account = "a"\nlive = 0',
        'account = "a"\nlive = -1',
        'account = "a"\nlive = "5"',
        'account = "a"\nlive = 1000000000000',
        'account = "a"\nlive = true',
        'account = "a"\ntenant = "b"\nlive = 5',
        'account = ""\nlive = 5',
        'side = "submit"\nrate = "5/s"',
    ],
)
def test_bad_limits_fail_at_load_and_name_their_place(write: Write, limit: str) -> None:
    """Zero, negative, absent, quoted and huge limits are refused with the entry that holds them."""
    write(f"[[limits]]\n{limit}")
    with pytest.raises(ConfigError, match=r"limits\[0\]"):
        Config.load(environ={})


def test_two_limits_of_one_subject_are_refused(write: Write) -> None:
    """Which of the two would hold is not left to chance."""
    write('[[limits]]\naccount = "a"\nlive = 5\n[[limits]]\naccount = "a"\nlive = 6')
    with pytest.raises(ConfigError, match="limits the same as an earlier entry"):
        Config.load(environ={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("store = [", "is not TOML"),
        ("store = 5", r"\$\.store must be a text"),
        ('store = ""', r"\$\.store must be a text"),
        ("worker = 5", r"\$\.worker must be a table"),
        ('plugins = { disabled = "a" }', r"\$\.plugins\.disabled must be a list"),
        ('plugins = { strict = "yes" }', r"\$\.plugins\.strict must be true or false"),
        ("selector = { weights = {} }", r"\$\.selector needs a name"),
        ("limits = 5", r"\$\.limits must be a list"),
        ("accounts = 5", r"\$\.accounts must be a table"),
        ("worker = { per_provider = { a = 0 } }", r"per_provider\['a'\] must be a whole number"),
    ],
)
def test_values_of_the_wrong_type_are_refused_with_their_path(write: Write, text: str, message: str) -> None:
    """The message leads to the line."""
    write(text)
    with pytest.raises(ConfigError, match=message):
        Config.load(environ={})


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A file that was asked for and is not there is an error, not the default."""
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.load(tmp_path / "missing.toml", environ={})
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.load(environ={"COATCHECK_CONFIG": str(tmp_path / "missing.toml")})


def test_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """A file that is not UTF-8 gets a message, not a traceback."""
    path = tmp_path / "a.toml"
    path.write_bytes('namespace = "\u00e4"'.encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        Config.load(path, environ={})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("2d", 172_800),
        (5, 5),
        (0.25, 0.25),
        (0, 0),
    ],
)
def test_durations_have_units_or_are_seconds(text: Any, seconds: float) -> None:
    """One spelling of durations for the file, the environment and the command line."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none()))
def test_parse_duration_returns_a_sane_duration_or_refuses(value: object) -> None:
    """No input leads to another exception or to a duration out of range."""
    try:
        found = parse_duration(value)
    except ValidationError:
        return
    assert timedelta() <= found <= LONGEST


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/s", Rate(10)),
        ("10 / m", Rate(10, timedelta(minutes=1))),
        ("600/5m", Rate(600, timedelta(minutes=5))),
    ],
)
def test_rates_are_a_count_per_window(text: str, rate: Rate) -> None:
    """``10/s`` reads as people write it."""
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ['accounts = "sk-live"', 'accounts = { gitee = "sk-live" }'])
def test_a_secret_in_the_wrong_place_is_not_shown(write: Write, text: str) -> None:
    """Whoever writes the secret itself gets a message that can be passed on (G8)."""
    write(text)
    with pytest.raises(ConfigError, match=r"\$\.accounts.* must be a table") as caught:
        Config.load(environ={})
    assert "sk-live" not in str(caught.value)


def test_accounts_are_hidden_in_the_repr(write: Write) -> None:
    """Whatever stands in the accounts is not shown when a config is printed or logged."""
    write('[accounts.gitee]\nsecret = "sk-live-012345"')
    assert "sk-live" not in repr(Config.load(environ={}))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:s3cret@host:6379/0?timeout=3", "redis://host:6379/0"),
        ("redis+sentinel://:s3cret@one,two/main?sentinel_password=s3cret", "redis+sentinel://one,two/main"),
        ("redis+sentinel://one/main?sentinel_password=s3@cret", "redis+sentinel://…"),
        ("redis://me:s3cret?s3cret@host/0", "redis://…"),
        ("redis://me:s3cret@s3cret@host/0", "redis://host/0"),
        ("unix:///run/redis@1.sock?db=1", "unix:///run/redis@1.sock"),
        ("sqlite:///a@b/tasks.db", "sqlite:///a@b/tasks.db"),
        ("memory://", "memory://"),
        ("nothing", "nothing"),
    ],
)
def test_the_password_of_a_store_is_not_shown(url: str, shown: str) -> None:
    """A URL is shown without what is secret in it, and so is a config (G8)."""
    assert shown_url(url) == shown
    assert f"store={shown!r}" in repr(Config(store=url))
    assert "s3cret" not in repr(Config(store=url))
