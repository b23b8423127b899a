"""The Lua scripts: files of this package, put together with the parts that they use.

A file says in its first comment which parts it uses (``-- use: base lanes``) and which keys it touches
(``-- keys: meta tasks``). A script gets the keys of all its parts, under their names in the table ``K``, and
declares them all, so that it runs in a cluster. Nothing here talks to a server.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files

from attrs import field, frozen

_USE = re.compile(r"^-- use: (.+)$", re.MULTILINE)
_KEYS = re.compile(r"^-- keys: (.+)$", re.MULTILINE)


@frozen
class Script:
    """One script, as it is sent to a server."""

    name: str
    text: str = field(repr=False)
    #: What ``EVALSHA`` knows it by.
    sha: str
    #: The names of the keys that it declares, in the order in which it expects them.
    keys: tuple[str, ...]


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")


def _parts(name: str, found: dict[str, str]) -> None:
    """Collect a file and, before it, all that it uses."""
    text = _read(name)
    used = _USE.search(text)
    for part in used[1].split() if used else ():
        if part not in found:
            _parts(part, found)
    found[name] = text


@cache
def script(name: str) -> Script:
    """Return the script with this name; read once."""
    found: dict[str, str] = {}
    _parts(name, found)
    keys = tuple(
        dict.fromkeys(key for text in found.values() for line in _KEYS.findall(text) for key in line.split())
    )
    table = ", ".join(f"{key} = KEYS[{number}]" for number, key in enumerate(keys, 1))
    text = "\n".join([f"local K = {{{table}}}", *(_code(part) for part in found.values())])
    # The name of a script for its server, no secret.
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, keys)


def _code(text: str) -> str:
    """Leave out comments and blank lines, which a server would keep in memory."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))
