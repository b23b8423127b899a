"""What one worker process is set to; only data and its validation."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

import attrs
from attrs import field, frozen

from coatcheck.config import WorkerConfig, config_errors
from coatcheck.errors import ConfigError
from coatcheck.model import EMPTY, check_duration, check_name, check_whole

#: A shorter lease would run out while the store answers.
SHORTEST_LEASE = timedelta(milliseconds=100)


def _mapping(value: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(value))


@frozen(kw_only=True)
class WorkerSettings:
    """How one worker process works; every field has a default.

    Args:
        lease: how long a claim lasts without renewal; dead workers' tasks go on elsewhere within two of it.
        grace: how long steps under way may take after a stop; zero cuts them off at once.
        threads: how many calls of sync handlers run at the same time.
        async_calls: how many calls of async handlers run at the same time, per provider.
        room: how many steps are held at most, running and fetched ahead.
        per_provider: how many calls of one provider run at the same time; three quarters of the threads for
            those that are not named, so that a vendor that hangs never takes them all.
        health_port: answers ``GET /health`` on this port of the local machine; 0 takes a free one, ``None``
            none.

    Raises:
        ConfigError: a value is out of its range.
    """

    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=30)
    threads: int = 32
    async_calls: int = 256
    room: int = 512
    per_provider: Mapping[str, int] = field(default=EMPTY, converter=_mapping)
    health_port: int | None = None

    def __attrs_post_init__(self) -> None:
        with config_errors("worker settings"):
            check_duration(self.lease, "lease")
            check_duration(self.grace, "grace", zero=True)
            check_whole(self.threads, "threads", 1, 10_000)
            check_whole(self.async_calls, "async_calls", 1, 100_000)
            check_whole(self.room, "room", 1, 1_000_000)
            for provider, bound in self.per_provider.items():
                check_name(provider, "a provider's name in per_provider")
                check_whole(bound, f"per_provider[{provider!r}]", 1, 1_000_000)
            if self.health_port is not None:
                check_whole(self.health_port, "health_port", 0, 65_535)
        if self.lease < SHORTEST_LEASE:
            raise ConfigError(
                f"worker settings: lease must be at least {SHORTEST_LEASE.total_seconds()} s, "
                f"found {self.lease}; it is renewed each third of it, and the store needs time to answer"
            )

    @classmethod
    def of(cls, config: WorkerConfig) -> "WorkerSettings":
        """Return the settings of a configuration's ``[worker]`` table; what it leaves out has the default."""
        given = attrs.asdict(config, recurse=False)
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def default_bound(self) -> int:
        """How many calls of a provider that is not named run at the same time."""
        return max(1, self.threads * 3 // 4)
