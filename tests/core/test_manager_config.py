"""``Manager.from_config``: the way from settings to a manager, for web processes and commands."""

import logging
from pathlib import Path

import pytest
from tests.core.manager_house import Job, Vendor

from coatcheck.config import Config
from coatcheck.errors import ConfigError, PluginError, StoreUnavailableError, UnknownNameError
from coatcheck.manager import Manager
from coatcheck.plugins import Plugins
from coatcheck.registry import Registry


def load(tmp_path: Path, text: str = "") -> Config:
    """Return settings with a store in a file."""
    file = tmp_path / "coatcheck.toml"
    file.write_text(f'store = "sqlite:///{tmp_path}/tasks.db"\n{text}', "utf-8")
    return Config.load(file, environ={})


def registry(*keys: str) -> Registry:
    """Return a registry with one handler per key."""
    made = Registry()
    for key in keys:
        made.add_handler(Vendor(key))
    return made


def test_manager_of_settings_submits_and_closes_what_it_opened(tmp_path: Path) -> None:
    """One call is enough for a web process; the end of the block closes the store."""
    with Manager.from_config(load(tmp_path, 'namespace = "shop"'), registry=registry("a")) as manager:
        task = manager.submit(Job())
        assert manager.store.namespace == "shop"
        assert manager.plugins is not None
        assert "builtin" in [info.name for info in manager.plugins.report]
    with pytest.raises(StoreUnavailableError):
        manager.get(task.id)
    manager.close()
    with Manager.from_config(load(tmp_path, 'namespace = "shop"'), registry=registry("a")) as again:
        assert again.get(task.id).status == "pending_submit"


def test_selector_and_accounts_come_from_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file says is used, not only checked."""
    monkeypatch.setenv("A_KEY", "k-1")
    text = 'selector = "round_robin"\n[accounts.acme]\nsecret = "env:A_KEY"'
    with Manager.from_config(load(tmp_path, text), registry=registry("a", "b")) as manager:
        assert [manager.submit(Job()).handler_key for _ in range(3)] == ["a", "b", "a"]
        assert manager.accounts.get("acme").secret() == "k-1"


def test_weights_of_a_selector_come_from_its_table(tmp_path: Path) -> None:
    """A selector's options stand beside its name."""
    text = '[selector]\nname = "weighted"\nweights = { a = 3, b = 1 }'
    with Manager.from_config(load(tmp_path, text), registry=registry("a", "b")) as manager:
        keys = sorted(manager.submit(Job()).handler_key for _ in range(4))
        assert keys == ["a", "a", "a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('selector = "round_robbin"', "did you mean 'round_robin'"),
        ('[selector]\nname = "weighted"\nwieghts = { a = 1 }', "did you mean 'weights'"),
        ('transport = "reqests"', "did you mean 'requests'"),
    ],
)
def test_misspelt_names_fail_at_the_start(tmp_path: Path, text: str, message: str) -> None:
    """A name that nobody registered is an error of the settings."""
    with pytest.raises(UnknownNameError, match=message):
        Manager.from_config(load(tmp_path, text), registry=registry("a"))


def test_secret_in_the_settings_fails_at_the_start_and_is_not_shown(tmp_path: Path) -> None:
    """The file says where a secret is, never the secret."""
    with pytest.raises(ConfigError, match="env:VARIABLE") as caught:
        Manager.from_config(load(tmp_path, '[accounts.acme]\nsecret = "sk-live-1"'), registry=registry("a"))
    assert "sk-live-1" not in str(caught.value)


def test_private_memory_is_said_to_be_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two processes with a memory each find half of the tasks, so the start warns (F109)."""
    config = Config.load(environ={}, store="memory://")
    with caplog.at_level(logging.WARNING), Manager.from_config(config, registry=registry("a")):
        pass
    assert "seen by its own process only" in caplog.text


def test_strict_settings_refuse_a_broken_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``strict`` turns a reported fault into a refusal to start."""

    def broken(registry: Registry, *, disabled: tuple[str, ...], strict: bool) -> Plugins:
        assert (disabled, strict) == (("acme",), True)
        raise PluginError("broken")

    monkeypatch.setattr("coatcheck.manager.load_plugins", broken)
    with pytest.raises(PluginError):
        Manager.from_config(load(tmp_path, '[plugins]\ndisabled = ["acme"]\nstrict = true'))
