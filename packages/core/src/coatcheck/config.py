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

import attrs
import platformdirs
from attrs import field, frozen
from cattrs import BaseValidationError, Converter, ForbiddenExtraKeysError, override, transform_error
from cattrs.gen import make_dict_structure_fn

from coatcheck.codec.strict import Key, origin_of, strict
from coatcheck.codec.walk import a
from coatcheck.errors import ConfigError, UnknownNameError, ValidationError, closest
from coatcheck.model import EMPTY, LONGEST, Limit, Rate, check_duration, check_name, check_whole

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


def shown_url(url: str) -> str:
    """Return a store's URL as it may be shown: without user, password and options."""
    scheme, separator, place = url.partition("://")
    if not separator:
        return url
    place, _, options = place.partition("?")
    if not place.startswith("/"):
        if "@" in options and "@" not in place:
            # A password with a bare question mark: what stands before it is secret too.
            place = "…"
        place = place.rpartition("@")[2]
    return f"{scheme}://{place}"


@frozen(kw_only=True)
class Config:
    """All settings of a process, checked."""

    #: The store's URL; it may hold a password, which ``shown_url`` leaves out.
    store: str = field(repr=lambda url: repr(shown_url(url)))
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
    limits: tuple[Limit, ...] = field(default=())
    #: Descriptions of handlers, as they stand in the file; ``coatcheck.descriptor`` checks and reads them.
    handlers: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    #: The file that was read, if any.
    path: Path | None = None

    @limits.validator
    def _check_limits(self, _: object, limits: tuple[Limit, ...]) -> None:
        for index, limit in enumerate(limits):
            if limit.rate is None and limit.live is None:
                needed = 'needs either rate, like rate = "10/s", or live, like live = 5'
                raise ValidationError(f"limits[{index}] {needed}", "limits")
            if any(limit.subject == other.subject for other in limits[:index]):
                same = "limits the same as an earlier entry; keep one of them"
                raise ValidationError(f"limits[{index}] {same}", "limits")

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
        try:
            config: Config = _FILES.structure(table, cls)
        except BaseValidationError as error:
            variables = {
                name: variable
                for variable, name in _VARIABLES.items()
                if environ.get(variable) and overrides.get(name) is None
            }
            raise _refusal(error, str(file or "settings"), variables) from None
        return attrs.evolve(config, path=file)


#: Each setting that has a variable and an override: its path in the file, and its type.
_FLAT: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "_".join((*table, one.name)): ((*table, one.name), one.type)
    for table, cls in (((), Config), (("worker",), WorkerConfig), (("plugins",), PluginConfig))
    for one in attrs.fields(cls)
    if one.name not in {"worker", "plugins", "per_provider", "accounts", "limits", "handlers", "path"}
}
_VARIABLES = {PREFIX + name.upper(): name for name in _FLAT}
_OTHERS = (f"{PREFIX}CONFIG",)
#: How alike an unknown variable must be to a known one to count as misspelt; others belong to somebody else.
_MISSPELT = 0.85


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
    for (*outer, last), value in values:
        inner = table.setdefault(outer[0], {}) if outer else table
        if isinstance(inner, dict):  # else it is refused when it is read
            inner[last] = value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for variable, text in environ.items():
        name = _VARIABLES.get(variable)
        if name is not None:
            # A variable that is set but blank means "not given", as a shell's VAR= does.
            if text:
                path, kind = _FLAT[name]
                yield path, _TEXTS.structure(text.strip(), kind)
        elif variable.startswith(PREFIX) and variable not in _OTHERS and _is_misspelt(variable):
            raise UnknownNameError.of("variable", variable, _VARIABLES)


def _is_misspelt(variable: str) -> bool:
    return bool(difflib.get_close_matches(variable, _VARIABLES, n=1, cutoff=_MISSPELT))


def _from_overrides(overrides: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in overrides.items():
        if name not in _FLAT:
            raise UnknownNameError.of("setting", name, _FLAT)
        if value is not None:
            yield _FLAT[name][0], value


def _refusal(error: Exception, where: str, variables: Mapping[str, str]) -> ConfigError:
    """Say all that is wrong; ``variables`` are those that values came from, by the setting's name."""
    unknown: list[tuple[str, tuple[str, ...]]] = []

    def say(leaf: BaseException, _: object) -> str:
        if not isinstance(leaf, ForbiddenExtraKeysError):
            return f"{'' if str(leaf).startswith(' ') else ': '}{leaf}"
        known = tuple(sorted(one.name for one in attrs.fields(leaf.cl) if one.name != "path"))
        key = min(leaf.extra_fields)
        unknown.append((key, known))
        return f".{key}{closest(key, known)} (known: {', '.join(known)})"

    lines = []
    for line in transform_error(error, format_exception=say):
        text, _, path = line.rpartition(" @ ")
        variable = variables.get(path.removeprefix("$.").replace(".", "_"))
        kind = "unknown key " if text.startswith(".") else ""
        lines.append((variable or f"{where}: {kind}{path}") + text)
    message = "; ".join(lines)
    return UnknownNameError(message, "key", *unknown[0]) if unknown else ConfigError(message)


# How values are read. cattrs knows where each of them stands: what a hook says goes on after the path.


def _name(value: Any, _: object = str) -> str:
    check_name(value, "")
    return str(value)


def _flag(value: Any, _: object) -> bool:
    if not isinstance(value, bool):
        raise ValidationError(f" must be true or false, found {value!r}")
    return value


def _positive(value: Any, _: object) -> timedelta:
    found = parse_duration(value, "")
    check_duration(found, "")
    return found


def _whole(low: int, high: int) -> Callable[[Any, Any], int]:
    def hook(value: Any, _: Any) -> int:
        check_whole(value, "", low, high)
        return int(value)

    return hook


def _selector(value: Any, _: object) -> SelectorConfig:
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    if "name" not in options:
        raise ValidationError(f' needs a name, like name = "round_robin"; found {sorted(options)}')
    return SelectorConfig(name=_name(options.pop("name")), options=options)


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValidationError(f" must be a list, found {value!r}")
    return value


def _table(value: Any) -> Any:
    if not isinstance(value, Mapping):  # the value is not shown: it may be a secret
        raise ValidationError(f" must be a table, found {a(type(value))}")
    return value


def _files() -> Converter:
    """Return what reads the content of a file."""
    converter = strict(
        {
            str: _name,
            Key: _name,
            bool: _flag,
            int: _whole(1, 1_000_000),
            timedelta: _positive,
            Rate: lambda value, _: parse_rate(value, ""),
            SelectorConfig: _selector,
        },
        in_list=lambda take, value: take(_list(value)),
        in_dict=lambda take, value: MappingProxyType(take(_table(value))),
    )
    special: Any = {
        "path": override(omit=True),  # it stands in no file
        "grace": override(struct_hook=lambda value, _: parse_duration(value, "")),  # it may be zero
        "threads": override(struct_hook=_whole(1, 10_000)),
        "async_calls": override(struct_hook=_whole(1, 100_000)),
        "health_port": override(struct_hook=_whole(0, 65_535)),
        "tenant": override(struct_hook=lambda value, _: value),  # it may be blank; a limit looks at it
    }

    def table(cls: Any) -> Callable[[Any, Any], Any]:
        read = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True, **special)
        return lambda value, _: read(_table(value))

    converter.register_structure_hook_factory(attrs.has, table)
    return converter


def _variables() -> Converter:
    """Return what makes of a variable's text what it would be in a file, or leaves it to be refused there."""
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    whole, number = re.compile(r"[+-]?\d+"), re.compile(r"[+-]?\d+(\.\d+)?")
    converter = Converter()
    converter.register_structure_hook(bool, lambda text, _: words.get(text.lower(), text))
    converter.register_structure_hook(int, lambda text, _: int(text) if whole.fullmatch(text) else text)
    converter.register_structure_hook(
        timedelta, lambda text, _: float(text) if number.fullmatch(text) else text
    )
    converter.register_structure_hook(SelectorConfig, lambda text, _: text)
    converter.register_structure_hook_func(
        lambda kind: origin_of(kind) is tuple,
        lambda text, _: [item.strip() for item in text.split(",") if item.strip()],
    )
    return converter


_FILES = _files()
_TEXTS = _variables()
