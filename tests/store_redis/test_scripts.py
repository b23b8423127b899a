"""The Lua scripts as files: what they declare, and what may not be in them."""

from importlib.resources import files

import pytest
from tests.store_redis.servers import RedisServer

from coatcheck_redis.scripts import script

#: Files that others use; the rest are scripts.
PARTS = {"base", "lanes", "limits", "notify", "workers"}
FOLDER = files("coatcheck_redis") / "lua"
SCRIPTS = sorted({path.name.removesuffix(".lua") for path in FOLDER.iterdir()} - PARTS)


def test_a_namespace_has_a_fixed_set_of_keys() -> None:
    """However many tasks there are, all live in two dozen keys, so a call can declare all it touches."""
    keys = {key for name in SCRIPTS for key in script(name).keys}
    assert len(keys) <= 24
    assert all(key.isalpha() for key in keys)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_reads_json(name: str) -> None:
    """Records are opaque to the store: only columns of its own are looked into."""
    assert "json" not in script(name).text


@pytest.mark.parametrize("name", SCRIPTS)
def test_keys_come_from_declarations_only(name: str) -> None:
    """A script builds no key of its own: each call of Redis names one that was declared."""
    text = script(name).text
    assert text.count("KEYS[") == len(script(name).keys)
    assert all(f"{key} = KEYS[" in text for key in script(name).keys)


def test_both_servers_know_a_script_by_the_same_name(redis6: RedisServer, redis7: RedisServer) -> None:
    """Every script compiles on the oldest and on today's server, under the name that ``EVALSHA`` uses."""
    for server in (redis6, redis7):
        with server.client() as client:
            for name in SCRIPTS:
                found = client.script_load(script(name).text)
                assert (found.decode() if isinstance(found, bytes) else found) == script(name).sha, name


def test_a_script_that_is_none_is_missing() -> None:
    """A name without a file is a mistake of ours, found at once."""
    with pytest.raises(FileNotFoundError):
        script("nothing")
