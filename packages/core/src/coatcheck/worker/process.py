"""The interpreter's settings for a process that runs a worker and little else."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: A collection comes after so many new objects (Python's own number is 700): a few hundred steps make that.
_ALLOCATIONS = 20_000


@contextmanager
def own_process() -> Iterator[None]:
    """Set the interpreter up for work under load; everything is as before at the end of the block.

    ``coatcheck worker`` does so; a program of your own that is nothing but a worker may, around ``run``, once
    its handlers are loaded. It holds for the whole process.

    Garbage is collected less often, and not among what is loaded by now: looking through all modules and all
    steps under way again and again costs more than a tenth of the worker's time.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
