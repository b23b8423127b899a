"""Settings: ``coatcheck.toml``, ``COATCHECK_*`` variables and explicit options become one checked ``Config``.

Everything is checked when it is loaded, so that a bad value fails at start and not at run. Nothing here opens
a store, loads a plugin or looks up a secret; and nothing else in the house reads the file or these variables,
those of accounts excepted.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import platformdirs
from attrs import field, frozen

from coatcheck.errors import ConfigError, UnknownNameError, ValidationError, closest
from coatcheck.model import EMPTY, LONGEST, Limit, Rate, Side, check_duration, check_name, check_whole

#: The file that is read from the working folder when neither an option nor ``COATCHECK_CONFIG`` names one.
FILE = "coatcheck.toml"
PREFIX = "COATCHECK_"

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+")
_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_RATE = re.compile(r"(\d+)\s*/\s*(\S+)")


@contextmanager
def config_errors(where: str) -> Iterator[None]:
    """Turn a refused value into a ``ConfigError`` that says where the value stands."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise ValidationError(f"{name}: {error}", name) from error


def parse_duration(value: object, name: str = "a duration") -> timedelta:
    """Return the duration that ``value`` names: ``"30s"``, ``"1h30m"``, ``"500ms"``, or a number of seconds.

    Args:
        value: a text of numbers with the units ms, s, m, h and d, or a number of seconds from 0.
        name: what it is for, in the message.

    Raises:
        ValidationError: anything else, or more than ten years.
    """
    found: timedelta | None = None
    try:
        if isinstance(value, timedelta):
            found = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found = timedelta(seconds=value)
        elif isinstance(value, str) and _DURATION.fullmatch(value.strip()):
            pieces = _PIECE.findall(value)
            found = sum((float(number) * _UNITS[unit] for number, unit in pieces), timedelta())
    except (OverflowError, ValueError):  # too large for a timedelta, or not a number at all
        found = None
    if found is None or not timedelta() <= found <= LONGEST:
        raise ValidationError(
            f"{name} must be a duration like '30s', '5m' or '1h30m', or a number of seconds, up to "
            f"{LONGEST.days} days; found {value!r}",
            name,
        )
    return found


def parse_rate(value: object, name: str = "a rate") -> Rate:
    """Return the rate that a text like ``"10/s"`` or ``"600/5m"`` names.

    Raises:
        ValidationError: the text has another form, or the count or the window is out of range.
    """
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValidationError(
            f"{name} must be a text like '10/s', '100/m' or '600/5m', found {value!r}", name
        )
    count, window = match.groups()
    with _named(name):
        return Rate(int(count), parse_duration(f"1{window}" if window in _UNITS else window))


# How each value is read. A reader gets the value and its path, and raises ValidationError or ConfigError.
_Reader = Callable[[Any, str], Any]


def _positive(value: object, path: str) -> timedelta:
    found = parse_duration(value, path)
    check_duration(found, path)
    return found


def _whole(low: int, high: int) -> _Reader:
    def read(value: Any, path: str) -> int:
        check_whole(value, path, low, high)
        return int(value)

    return read


def _name(value: Any, path: str) -> str:
    check_name(value, path)
    return str(value)


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise ValidationError(f"{path} must be true or false, found {value!r}", path)
    return value


def _names(value: object, path: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValidationError(f'{path} must be a list of names, like ["a", "b"], found {value!r}', path)
    return tuple(_name(item, f"{path}[{index}]") for index, item in enumerate(value))


def _numbers(value: object, path: str) -> Mapping[str, int]:
    if not isinstance(value, Mapping):
        raise ValidationError(f"{path} must be a table of names and whole numbers, found {value!r}", path)
    for name, number in value.items():
        check_name(name, path)
        check_whole(number, f"{path}.{name}", 1, 1_000_000)
    return MappingProxyType(dict(value))


@frozen(kw_only=True)
class WorkerConfig:
    """The table ``[worker]``; ``None`` leaves a value to the worker's own default."""

    lease: timedelta | None = None
    grace: timedelta | None = None
    threads: int | None = None
    async_calls: int | None = None
    room: int | None = None
    health_port: int | None = None
    per_provider: Mapping[str, int] | None = None


@frozen(kw_only=True)
class PluginConfig:
    """The table ``[plugins]``."""

    #: Entry point or distribution names that are not loaded.
    disabled: tuple[str, ...] = ()
    #: Whether a broken plugin keeps the program from starting.
    strict: bool = False


@frozen(kw_only=True)
class SelectorConfig:
    """A selector's registered name and options: ``selector = "name"`` or the table ``[selector]``."""

    name: str
    options: Mapping[str, Any] = EMPTY


def default_store() -> str:
    """Return the URL of the store that is used when nothing names one: a file in the user's data folder."""
    return f"sqlite:///{platformdirs.user_data_path('coatcheck') / 'coatcheck.db'}"


@frozen(kw_only=True)
class Config:
    """All settings of a process, checked."""

    #: The store's URL.
    store: str
    #: Separates everything in a store from other namespaces.
    namespace: str = "default"
    #: How much waiting makes up for one step of priority; ``None``: priority is strict.
    ageing: timedelta | None = None
    #: The registered name of what performs HTTP calls; ``None`` leaves it to the default.
    transport: str | None = None
    selector: SelectorConfig | None = None
    worker: WorkerConfig = WorkerConfig()
    plugins: PluginConfig = PluginConfig()
    #: Account name to part name to source; ``Accounts`` checks and reads them.
    accounts: Mapping[str, Mapping[str, Any]] = field(default=EMPTY, repr=False)
    limits: tuple[Limit, ...] = ()
    #: Descriptions of handlers, as they stand in the file; ``coatcheck.descriptor`` checks and reads them.
    handlers: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    #: The file that was read, if any.
    path: Path | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> "Config":
        """Read the settings: overrides win over the environment, that over the file, that over defaults.

        Reads files, changes nothing; may be repeated.

        Args:
            path: the file; by default the one that ``COATCHECK_CONFIG`` names, else ``coatcheck.toml`` in the
                working folder if there is one.
            environ: the environment; the process's own by default.
            overrides: ``store``, ``namespace``, ``ageing``, ``transport``, ``selector``, ``worker_lease`` and
                so on: the variables' names in lower case without the prefix. ``None`` means "not given".

        Raises:
            ConfigError: a file cannot be read, or a value is not allowed.
            UnknownNameError: a key, a variable or an override has no such name.
        """
        environ = os.environ if environ is None else environ
        file = _find(path, environ)
        table = {} if file is None else _parse(file)
        _overlay(table, _from_environment(environ))
        _overlay(table, _from_overrides(overrides))
        table.setdefault("store", default_store())
        with config_errors(str(file or "settings")):
            return cls(**_read(_TOP, table, "$"), path=file)


#: Each setting that has a variable and an override: its path in the file.
_FLAT: Mapping[str, tuple[str, ...]] = {
    "store": ("store",),
    "namespace": ("namespace",),
    "ageing": ("ageing",),
    "transport": ("transport",),
    "selector": ("selector",),
    "worker_lease": ("worker", "lease"),
    "worker_grace": ("worker", "grace"),
    "worker_threads": ("worker", "threads"),
    "worker_async_calls": ("worker", "async_calls"),
    "worker_room": ("worker", "room"),
    "worker_health_port": ("worker", "health_port"),
    "plugins_disabled": ("plugins", "disabled"),
    "plugins_strict": ("plugins", "strict"),
}
_VARIABLES = {PREFIX + name.upper(): name for name in _FLAT}
_OTHERS = (f"{PREFIX}CONFIG",)
#: How alike an unknown variable must be to a known one to count as misspelt; others belong to somebody else.
_MISSPELT = 0.85


#: Settings whose variables hold a whole number, or a number of seconds where no unit follows.
_COUNTS = ("worker_threads", "worker_async_calls", "worker_room", "worker_health_port")
_DURATIONS = ("worker_lease", "worker_grace", "ageing")


def _find(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    named = path or environ.get(f"{PREFIX}CONFIG")
    if named:
        return Path(named)
    here = Path(FILE)
    return here if here.is_file() else None


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; check its path and rights") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _overlay(table: dict[str, Any], values: Iterable[tuple[tuple[str, ...], Any]]) -> None:
    """Put ``values`` over what the file says."""
    for path, value in values:
        *outer, last = path
        inner = table
        for name in outer:
            below = inner.setdefault(name, {})
            if not isinstance(below, dict):
                raise ConfigError(f"$.{name} must be a table [{name}], found {below!r}")
            inner = below
        inner[last] = value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for variable, text in environ.items():
        name = _VARIABLES.get(variable)
        if name is not None:
            # A variable that is set but blank means "not given", as a shell's VAR= does.
            if text:
                yield _FLAT[name], _typed(name, variable, text)
        elif variable.startswith(PREFIX) and variable not in _OTHERS and _is_misspelt(variable):
            raise UnknownNameError.of("variable", variable, _VARIABLES)


def _is_misspelt(variable: str) -> bool:
    return bool(difflib.get_close_matches(variable, _VARIABLES, n=1, cutoff=_MISSPELT))


def _typed(name: str, variable: str, text: str) -> Any:
    """Return what a variable's text would be in the file."""
    if name in _COUNTS:
        if not re.fullmatch(r"[+-]?\d+", text.strip()):
            raise ConfigError(f"{variable} must be a whole number, found {text!r}")
        return int(text)
    if name in _DURATIONS and re.fullmatch(r"[+-]?\d+(\.\d+)?", text.strip()):
        return float(text)
    if name == "plugins_disabled":
        return [item.strip() for item in text.split(",") if item.strip()]
    if name == "plugins_strict":
        words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False}
        flag = words.get(text.strip().lower(), False if text.strip().lower() == "off" else None)
        if flag is None:
            raise ConfigError(f"{variable} must be true or false, found {text!r}")
        return flag
    return text


def _from_overrides(overrides: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in overrides.items():
        if name not in _FLAT:
            raise UnknownNameError.of("setting", name, _FLAT)
        if value is not None:
            yield _FLAT[name], value


def _read(readers: Mapping[str, _Reader], table: object, path: str) -> dict[str, Any]:
    """Read every value of a table; keys that no reader has are refused with the closest one."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path} must be a table [{path.removeprefix('$.')}], found {table!r}")
    _refuse_unknown(table, readers, path)
    return {key: readers[key](value, f"{path}.{key}") for key, value in table.items()}


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            raise UnknownNameError(
                f"unknown key {path}.{key}{closest(key, known)} (known: {', '.join(sorted(known))})",
                "key",
                key,
                tuple(sorted(known)),
            )


def _selector(value: object, path: str) -> SelectorConfig:
    if isinstance(value, Mapping):
        options = dict(value)
        if "name" not in options:
            raise ConfigError(f'{path} needs a name, like name = "round_robin"; found {sorted(options)}')
        return SelectorConfig(name=_name(options.pop("name"), f"{path}.name"), options=options)
    return SelectorConfig(name=_name(value, path))


def _accounts(value: object, path: str) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path} must be a table of tables like [accounts.gitee]")
    return MappingProxyType(dict(value))


def _handlers(value: object, path: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise ConfigError(f"{path} must be a list of tables [[handlers]], found a {type(value).__name__}")
    return tuple(value)


_LIMIT_KEYS = ("provider", "account", "tenant", "side", "rate", "live")


def _limits(value: object, path: str) -> tuple[Limit, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{path} must be a list of tables [[limits]], found {value!r}")
    found: list[Limit] = []
    for index, item in enumerate(value):
        limit = _limit(item, f"{path}[{index}]")
        if any(limit.subject == other.subject for other in found):
            raise ConfigError(f"{path}[{index}] limits the same as an earlier entry; keep one of them")
        found.append(limit)
    return tuple(found)


def _limit(item: object, path: str) -> Limit:
    if not isinstance(item, Mapping):
        raise ConfigError(f"{path} must be a table, found {item!r}")
    _refuse_unknown(item, _LIMIT_KEYS, path)
    values = dict(item)
    if ("rate" in values) == ("live" in values):
        raise ConfigError(f'{path} needs either rate, like rate = "10/s", or live, like live = 5')
    if "rate" in values:
        values["rate"] = parse_rate(values["rate"], f"{path}.rate")
    if "side" in values and values["side"] not in set(Side):
        raise ConfigError(f"{path}.side must be 'submit' or 'query', found {values['side']!r}")
    with config_errors(path):
        return Limit(**values)


_WORKER: Mapping[str, _Reader] = {
    "lease": _positive,
    "grace": parse_duration,
    "threads": _whole(1, 10_000),
    "async_calls": _whole(1, 100_000),
    "room": _whole(1, 1_000_000),
    "health_port": _whole(0, 65_535),
    "per_provider": _numbers,
}
_PLUGINS: Mapping[str, _Reader] = {"disabled": _names, "strict": _flag}
_TOP: Mapping[str, _Reader] = {
    "store": _name,
    "namespace": _name,
    "ageing": _positive,
    "transport": _name,
    "selector": _selector,
    "worker": lambda value, path: WorkerConfig(**_read(_WORKER, value, path)),
    "plugins": lambda value, path: PluginConfig(**_read(_PLUGINS, value, path)),
    "accounts": _accounts,
    "limits": _limits,
    "handlers": _handlers,
}
