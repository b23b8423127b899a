"""What a process that runs nothing but a worker is set to."""

import gc

from coatcheck.worker import own_process


def test_the_interpreter_is_set_up_and_set_back() -> None:
    """Collections are rare and small until the worker ends."""
    before = (gc.get_threshold(), gc.get_freeze_count())
    with own_process():
        assert gc.get_threshold()[0] > before[0][0]
        assert gc.get_freeze_count() > before[1]
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
