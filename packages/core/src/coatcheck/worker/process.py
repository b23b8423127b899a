"""The interpreter's settings for a process that runs a worker and little else."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_process() -> Iterator[None]:
    """Set the interpreter up for work under load; everything is as before at the end of the block.

    Threads take turns every millisecond: with Python's 5 ms each of the many short waits in the store would
    cost the main loop a turn of that length, and the next polls would come late. What is loaded by now is
    left out of garbage collection: looking through all modules again and again while hundreds of steps come
    and go costs a tenth of the worker's time.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)
