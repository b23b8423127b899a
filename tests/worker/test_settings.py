"""What a worker can be set to."""

from datetime import timedelta
from typing import Any

import pytest

from coatcheck.config import WorkerConfig
from coatcheck.errors import ConfigError
from coatcheck.worker import WorkerSettings


def test_the_defaults_are_those_of_the_design() -> None:
    """A lease of 30 s and a grace of 30 s, and a hanging provider leaves threads to the others."""
    settings = WorkerSettings()
    assert (settings.lease, settings.grace) == (timedelta(seconds=30), timedelta(seconds=30))
    assert settings.default_bound < settings.threads


def test_what_a_configuration_leaves_out_has_the_default() -> None:
    """The table [worker] of a file overrides only what it names."""
    settings = WorkerSettings.of(WorkerConfig(threads=4, per_provider={"ocr:local": 2}))
    assert settings == WorkerSettings(threads=4, per_provider={"ocr:local": 2})
    assert WorkerSettings.of(WorkerConfig()) == WorkerSettings()


@pytest.mark.parametrize(
    "changes",
    [
        {"lease": timedelta()},
        {"lease": timedelta(milliseconds=10)},
        {"lease": 30},
        {"lease": None},
        {"grace": timedelta(seconds=-1)},
        {"threads": 0},
        {"threads": True},
        {"threads": "4"},
        {"room": -1},
        {"async_calls": 1e12},
        {"per_provider": {"": 1}},
        {"per_provider": {"a": 0}},
        {"health_port": 70_000},
    ],
)
def test_values_out_of_their_range_are_refused_when_the_settings_are_made(changes: dict[str, Any]) -> None:
    """Bad values fail at construction, not at run (F52)."""
    with pytest.raises(ConfigError, match=next(iter(changes))):
        WorkerSettings(**changes)
