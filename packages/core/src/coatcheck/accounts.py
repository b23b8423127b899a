"""Where credentials come from: the environment, files and functions, looked up at each call.

An account is a name with one or more parts (``secret``, ``access_key``, …). Only the name is ever stored;
nothing here keeps, prints or logs a value, so a rotated secret reaches running tasks at their next call and
another account's secret is never tried instead. What takes secrets out of texts is here too (G8).
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from coatcheck import codec
from coatcheck.config import config_errors
from coatcheck.errors import CoatcheckError, ConfigError, UnknownNameError
from coatcheck.model import EMPTY, Account, check_name

#: What the environment variable of an account begins with.
PREFIX = "COATCHECK_ACCOUNT_"
#: Where one part comes from: ``"env:VARIABLE"``, ``"file:/absolute/path"``, or a function that returns it.
Source = str | Callable[[], str]
#: Shorter texts are no secrets worth hiding, and masking them would make messages unreadable.
_SHORTEST_SECRET = 4
_MASK = "***"

_ENVIRONMENT_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Accounts:
    """All accounts that this process can use.

    A part is looked up in this order: the environment variable ``COATCHECK_ACCOUNT_<NAME>__<PART>`` (for the
    part ``secret`` also ``COATCHECK_ACCOUNT_<NAME>``), then the table. The variable's name is the account's
    in upper case; accounts whose names hold anything but lower-case letters, digits and single underscores
    are found in the table only, so that two accounts never share a variable. Safe to use from any thread and
    after fork.

    Args:
        table: account name to part name to source; a secret store of another maker is reached through
            a function as source.
        environ: the environment; the process's own by default, read at each call.

    Raises:
        ConfigError: a source is neither ``env:``, ``file:`` nor a function; above all when it is the secret
            itself.
    """

    def __init__(
        self,
        table: Mapping[str, Mapping[str, Source]] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._environ: Mapping[str, str] = os.environ if environ is None else environ
        self._table: dict[str, dict[str, Source]] = {}
        for name, parts in (table or {}).items():
            with config_errors("accounts"):
                check_name(name, "an account's name")
            if not isinstance(parts, Mapping):
                # The value is not shown: it may well be the secret.
                raise ConfigError(
                    f'account {name!r} must be a table of parts, like secret = "env:VARIABLE"; '
                    f"found a {type(parts).__name__}"
                )
            self._table[name] = {part: _checked(name, part, source) for part, source in parts.items()}

    def __repr__(self) -> str:
        return f"<Accounts {', '.join(self.names) or 'none'}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are known now, sorted; those of the environment in lower case."""
        found = set(self._table) | {
            variable.removeprefix(PREFIX).partition("__")[0].lower()
            for variable, value in self._environ.items()
            if variable.startswith(PREFIX) and value
        }
        return tuple(sorted(found))

    def get(self, name: str, customary: Mapping[str, tuple[str, ...]] = EMPTY) -> Account:
        """Return an account whose parts are looked up when they are asked for.

        Nothing is looked up here: a handler that needs no credentials may use any name, for its limits.
        ``Account.secret`` raises an ``UnknownNameError`` of kind "account" when nothing is configured under
        the name, or when the part is missing or cannot be read here.

        Args:
            name: the account's name.
            customary: part name to environment variables in which users of the vendor have it anyway, the
                first that is set counts. They are read only while nothing at all is configured under the
                name, so that no identity is put together from two places.
        """
        return Account(name, lambda part: self._lookup(name, part, customary))

    def _lookup(self, name: str, part: str, customary: Mapping[str, tuple[str, ...]]) -> str:
        for variable in _variables(name, part):
            value = self._environ.get(variable)
            if value:
                return value
        source = self._table.get(name, {}).get(part)
        if source is None and name not in self.names:
            variables = customary.get(part, ())
            for variable in variables:
                if value := self._environ.get(variable):
                    return value
            raise UnknownNameError.of("account", name, self.names, _fix(name, part, variables))
        if source is None:
            listed = ", ".join(sorted(self._table.get(name, ()))) or "none"
            raise UnknownNameError(
                f"account {name!r} has no {part!r} here (parts in settings: {listed}). {_fix(name, part)}",
                "account",
                name,
                self.names,
            )
        try:
            value = self._read(source)
        except (OSError, UnicodeDecodeError) as error:
            # An OSError names the path, never the content; a decoding error would show the content, so only
            # its class is told.
            reason = f"{error.strerror}" if isinstance(error, OSError) else "it is not text"
            raise UnknownNameError(
                f"account {name!r}: {part!r} cannot be read from {source}: {reason}",
                "account",
                name,
                self.names,
            ) from None
        if not isinstance(value, str) or not value:
            where = source if isinstance(source, str) else "its function"
            raise UnknownNameError(
                f"account {name!r}: {part!r} comes from {where}, which is not set or blank here; set it",
                "account",
                name,
                self.names,
            )
        return value

    def _read(self, source: Source) -> str | None:
        if not isinstance(source, str):
            return source()
        kind, _, place = source.partition(":")
        if kind == "env":
            return self._environ.get(place)
        return Path(place).expanduser().read_text("utf-8").strip()


def _variables(name: str, part: str) -> tuple[str, ...]:
    """Return the variables that may hold a part; none where two names could meet in one variable."""
    if not _ENVIRONMENT_NAME.fullmatch(name):
        return ()
    full = f"{PREFIX}{name}__{part}".upper()
    return (full, f"{PREFIX}{name}".upper()) if part == "secret" else (full,)


def _fix(name: str, part: str, customary: tuple[str, ...] = ()) -> str:
    variables = (*customary[:1], *_variables(name, part)[-1:])
    in_file = f'[accounts.{_key(name)}] {part} = "env:VARIABLE" (or "file:/path")'
    return (
        f"Set {' or '.join(variables)}, or write {in_file} in coatcheck.toml"
        if variables
        else f"Write {in_file} in coatcheck.toml"
    )


def _key(name: str) -> str:
    """Return ``name`` as TOML wants it in a table's heading."""
    return (
        name
        if re.fullmatch(r"[A-Za-z0-9_-]+", name)
        else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )


def _checked(name: str, part: str, source: object) -> Source:
    """Refuse whatever is not a source; a value that may be the secret itself is not shown."""
    where = f"account {name!r}: {part!r}"
    if callable(source):
        return source
    if isinstance(source, str):
        kind, _, place = source.partition(":")
        if kind == "env" and _VARIABLE.fullmatch(place):
            return source
        if kind == "file" and Path(place).expanduser().is_absolute():
            return source
    # The value is not shown in any of these: it may well be the secret.
    raise ConfigError(
        f"{where} must say where the value is, as env:VARIABLE, file:/absolute/path or file:~/path; found a "
        f"{type(source).__name__} that says nothing of the kind (secrets do not belong in configuration)"
    )


def part_of(account: Account, part: str) -> str | None:
    """Return a part that an account may lack; ``None`` where it does."""
    try:
        return account.secret(part) or None
    except UnknownNameError:
        return None


def key_of(account: Account) -> str | None:
    """Return the key for a server that may need none; ``None`` where nothing at all is configured.

    Raises:
        UnknownNameError: the account is there, and its key is missing or cannot be read.
    """
    try:
        return account.secret()
    except UnknownNameError as error:
        if error.name in error.known:
            raise
        return None


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text without secrets: plain, quoted for a URL, escaped, or cut off before an ellipsis."""
    for secret in secrets:
        if len(text) < len(secret) and "…" not in text:
            continue
        for form in _forms(secret):
            text = text.replace(form, _MASK)
            if "…" in text:
                # Excerpts are cut before anybody knows what they hold.
                for length in range(len(form) - 1, _SHORTEST_SECRET - 1, -1):
                    text = text.replace(f"{form[:length]}…", f"{_MASK}…")
    return text


def masked_json(data: bytes, secrets: Iterable[str]) -> bytes:
    """Return JSON bytes without secrets, plain or quoted for a URL."""
    for secret in secrets:
        for form in _forms(secret):
            data = data.replace(_inside_json(form), _MASK.encode())
    return data


def mask_error(error: BaseException, secrets: Iterable[str]) -> None:
    """Take secrets out of an exception and of those behind it, in place: tracebacks print them all."""
    secrets = tuple(secrets)
    seen: list[BaseException] = []
    behind: list[BaseException | None] = [error]
    while behind:
        found = behind.pop()
        if found is None or any(found is other for other in seen):
            continue
        seen.append(found)
        behind += [found.__cause__, found.__context__]
        found.args = tuple(masked(arg, secrets) if isinstance(arg, str) else arg for arg in found.args)
        if isinstance(found, CoatcheckError):
            for name, value in vars(found).items():
                if isinstance(value, str):
                    setattr(found, name, masked(value, secrets))


def _forms(secret: str) -> Iterable[str]:
    """Return how a secret may stand in a text: as it is, in a URL, in a ``repr``, in JSON."""
    if len(secret) < _SHORTEST_SECRET:
        return ()
    quoted = (quote(secret, safe="", errors="replace"), quote(secret, errors="replace"))
    return dict.fromkeys((secret, *quoted, repr(secret)[1:-1], _inside_json(secret).decode()))


def _inside_json(text: str) -> bytes:
    """Return ``text`` as it stands between the quotes of a JSON text."""
    return codec.dumps(text.encode(errors="replace").decode())[1:-1]
