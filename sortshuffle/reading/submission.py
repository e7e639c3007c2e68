"""`submit_once`: gives work to threads that may refuse it, and still do it later.

`ThreadPoolExecutor.submit` queues the work, and then starts a thread if it needs one. If the system has no
thread left, it raises. But a thread of the pool that becomes free still takes the work, or has begun it
already. So either the work or its refusal counts, whichever comes first.

Used by the `ReadScheduler` for its runs, and by the service's loop for work in the background.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor


def submit_once(threads: Executor, work: Callable[[], None], refused: Callable[[Exception], None]) -> None:
    """Have one of ``threads`` call ``work``. If they refuse it before it has begun, call ``refused`` here
    with their error; the work is not done then."""
    first = threading.Lock()  # taken by the work or by its refusal, and never released

    def begin() -> None:
        if first.acquire(blocking=False):
            work()

    try:
        threads.submit(begin)
    except Exception as error:  # no thread can be started, or the threads were shut down
        if first.acquire(blocking=False):
            refused(error)
