"""Parts of large spaces on all cores of this machine, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from meshwright.interruptions import end_with
from meshwright.search.parts import threads
from meshwright.search.tasks import Part, PricingTask, do_task, run_here


def run_on_cores(tasks: Sequence[PricingTask[Part]]) -> Iterator[tuple[int, Part]]:
    """Do tasks in as many processes as there are cores; a `tasks.Runner`.

    In this process where there is one core or one task, or where processes cannot be forked safely.

    Args:
        tasks: the parts.
    """
    workers = min(threads(), len(tasks))
    # JAX keeps threads that Python does not count.
    alone = threading.active_count() == 1 and "jax" not in sys.modules
    forkable = "fork" in multiprocessing.get_all_start_methods() and alone
    if workers < 2 or not forkable:
        yield from run_here(tasks)
        return
    from concurrent.futures import ProcessPoolExecutor

    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("fork"), initializer=_begin, initargs=(os.getpid(),)
    )
    try:
        running = [pool.submit(do_task, task) for task in tasks]
        for place, one in enumerate(running):
            yield place, one.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int) -> None:
    """An interruption is for the process that waits; it ends the others in order, or they end when it is gone.

    Each holds the others' pipes open, so none would see that the process they work for was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(parent)
