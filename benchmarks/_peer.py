"""What every contestant of ``peers`` says to it. Imports nothing of ours, which peers do not have."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def _spent() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@contextmanager
def measured() -> Iterator[None]:
    """Say that all tasks are stored, wait until the server was looked at, and say what CPU the block took."""
    print("ready", flush=True)
    sys.stdin.readline()
    began = _spent()
    yield
    print(_spent() - began, flush=True)
