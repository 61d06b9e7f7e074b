"""Signal handlers that run at random moments."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def alarm(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have timers of ``ITIMER_REAL`` call a handler. Afterwards none rings but the one that was set before, pytest's own."""
    timer, previous = signal.getitimer(signal.ITIMER_REAL), signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, *timer)
