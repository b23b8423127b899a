"""The store's clock: a wall time that was read once, carried on by a monotonic clock that counts sleep.

A wall clock that jumps moves nothing. The anchor is kept in the file, so that every process counts from the
same one; after a reboot a new anchor is taken.
"""

import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from attrs import frozen


def counted_micros() -> int:
    """Return a monotonic time that goes on while the machine sleeps."""
    # macOS counts sleep in CLOCK_MONOTONIC, Linux only in CLOCK_BOOTTIME.
    clock = time.CLOCK_MONOTONIC if sys.platform == "darwin" else time.CLOCK_BOOTTIME
    return time.clock_gettime_ns(clock) // 1000


@cache
def boot_id() -> str:
    """Return what tells one boot of this machine from another."""
    if sys.platform == "darwin":
        found = subprocess.run(  # a fixed command, no input of anybody's
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout.strip()
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@frozen
class Anchor:
    """A wall time and the monotonic time at which it was read, both in microseconds."""

    wall: int
    counted: int
    boot: str

    @classmethod
    def take(cls, not_before: int = 0) -> "Anchor":
        """Read both clocks now; the wall time is never before ``not_before``."""
        return cls(max(time.time_ns() // 1000, not_before), counted_micros(), boot_id())

    def now(self) -> int:
        """Return the time in microseconds since the epoch."""
        return self.wall + counted_micros() - self.counted
