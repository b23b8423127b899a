"""What a process that runs nothing but a worker is set to."""

import gc
import sys

from coatcheck.worker import own_process


def test_the_interpreter_is_set_up_and_set_back() -> None:
    """Turns are short and what is loaded is left out of collections, until the worker ends."""
    before, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    with own_process():
        assert sys.getswitchinterval() < before
        assert gc.get_freeze_count() > frozen
    assert (sys.getswitchinterval(), gc.get_freeze_count()) == (before, 0)
