"""What a process that runs nothing but a worker is set to."""

import gc
import sys

from coatcheck.worker import own_process


def test_the_interpreter_is_set_up_and_set_back() -> None:
    """Turns are short and collections rare and small, until the worker ends."""
    before = (sys.getswitchinterval(), gc.get_threshold(), gc.get_freeze_count())
    with own_process():
        assert sys.getswitchinterval() < before[0]
        assert gc.get_threshold()[0] > before[1][0]
        assert gc.get_freeze_count() > before[2]
    assert (sys.getswitchinterval(), gc.get_threshold(), gc.get_freeze_count()) == before
