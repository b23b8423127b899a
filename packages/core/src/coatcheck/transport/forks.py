"""How often this process is the child of a fork: connections of its parent are not for it."""

import os

_count = 0


def _forked() -> None:
    global _count  # noqa: PLW0603  # what the hook is for
    _count += 1


os.register_at_fork(after_in_child=_forked)


def forks() -> int:
    """Return a number that changes with each fork, in the child; quicker than asking for the process id."""
    return _count
