"""Ctrl-C in the process of a command: it takes effect within a second, in any state, and never shows a traceback.

A KeyboardInterrupt reaches a program only between two instructions of the main thread. It does not arrive while that thread
waits for a library, and it is lost in a finalizer or an import. So a watchdog thread sends a lost interrupt again, and ends the
process if the command does not end in time. While an extension module is being loaded the exception is deferred, since some
modules crash if it is raised then. Before the process of a command ends by Ctrl-C, SIGTERM or SIGHUP (closed terminal), things
that it must not leave behind (processes, temporary files) are removed. Programs that use placeit as a library keep their own
signal handlers.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any

__all__ = ["INTERRUPTED", "at_end", "disarm_watchdog", "ended_by", "guarded", "was_interrupted"]

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as in shells."""

_TIMEOUT_S = 0.8  # seconds after Ctrl-C in which a command that has nothing to save must end
_POLL_S = 0.02  # seconds between two checks of the watchdog
_REPEAT_S = 1.0  # seconds after Ctrl-C in which another one is taken for a repetition; a later one ends the process
_SHOW_CURSOR = b"\x1b[?25h"
_TERMINATING = (signal.SIGTERM, signal.SIGHUP)
_cleanups: dict[object, Callable[[], object]] = {}


class _Guard:
    """State of the handling of Ctrl-C in this process.

    Attributes:
        raises: whether Ctrl-C raises a KeyboardInterrupt; otherwise it ends the process.
        at: time of the first Ctrl-C, by ``time.monotonic()``; None before.
        swallowed: whether the exception was raised where it is lost.
        loading: number of extension modules that the main thread is loading, nested.
        disarmed: whether the watchdog lets the command take its time, since it has reached its results or its error message.
        over: whether the command has ended, and only the interpreter has still to end.
    """

    def __init__(self) -> None:
        self.raises = self.swallowed = self.disarmed = self.over = False
        self.at: float | None = None
        self.loading, self._deferred = 0, False
        self._ending = threading.Lock()
        self._reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_sigint)
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)  # runs last: no handler after finalization
        for number in _TERMINATING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, lambda number, _: self.end(128 + number))
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook, threading.excepthook = self._unraisable, self._thread_failed
        for name in ("create_module", "exec_module"):
            setattr(ExtensionFileLoader, name, self._deferring(getattr(ExtensionFileLoader, name)))
        threading.Thread(target=self._watch, name="placeit ctrl-c", daemon=True).start()

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        now = time.monotonic()
        first = self.at is None
        self.at = now if self.at is None else self.at
        if not self.raises or now - self.at > _REPEAT_S:
            self.end()
        if first and self.loading:
            self._deferred = True
        elif first:
            raise KeyboardInterrupt

    def _deferring(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a loader of extension modules so that Ctrl-C is deferred until it has returned, if the main thread runs it."""

        @functools.wraps(load)
        def loads(*args: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return load(*args)
            self.loading += 1
            try:
                return load(*args)
            finally:
                self.loading -= 1
                if self._deferred and not self.loading:
                    self._deferred = False
                    raise KeyboardInterrupt

        return loads

    def _watch(self) -> None:
        """Run the watchdog thread: wait for a signal, then repeat lost interrupts and end the process in time."""
        while (number := os.read(self._reading, 1)[0]) != signal.SIGINT:
            if number in _TERMINATING:
                self.end(128 + number)
        begin = time.monotonic()
        while True:
            time.sleep(_POLL_S)
            if self.swallowed and not self.disarmed:
                self.swallowed, self.at = False, None
                _thread.interrupt_main()
            if (self.over or not self.disarmed) and time.monotonic() - begin > _TIMEOUT_S:
                self.end()

    def _unraisable(self, what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            self.swallowed = True
        elif self.at is None:
            self._hooks[0](what)

    def _thread_failed(self, what: Any) -> None:
        if self.at is None:
            self._hooks[1](what)

    def end(self, code: int = INTERRUPTED) -> None:
        """Print that the process was interrupted, unless the watchdog is disarmed, call the registered cleanups, and exit."""
        if self._ending.acquire(blocking=False):
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # a handler would call ``end`` again, and deadlock
            with contextlib.suppress(OSError):
                if os.isatty(2):
                    os.write(2, _SHOW_CURSOR)
                if not self.disarmed:
                    os.write(2, b"interrupted\n" if code == INTERRUPTED else b"terminated\n")
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                for stream in (1, 2):  # libraries would print errors about resources taken from them
                    os.dup2(nowhere, stream)
            for cleanup in reversed([*_cleanups.values()]):
                with contextlib.suppress(Exception):
                    cleanup()
            os._exit(code)
        while True:  # the thread that got the lock ends the process
            time.sleep(_POLL_S)


_guard: _Guard | None = None


def guarded(run: Callable[[], object]) -> None:
    """Run a command that ends with SystemExit, guarded by a watchdog for Ctrl-C, then end the process.

    A process that was started to ignore Ctrl-C continues to do so. If the process has another handler for Ctrl-C, the command
    runs without the watchdog.
    """
    global _guard
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler):
        run()
        return
    guard = _guard = _Guard()
    code: object = 0
    try:
        guard.raises = True
        try:
            run()
        finally:
            guard.raises = False
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    if guard.at is not None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        guard.end()
    guard.disarmed = guard.over = True
    sys.exit(code)  # type: ignore[arg-type]


def was_interrupted() -> bool:
    """Return whether a guarded process has received Ctrl-C."""
    return _guard is not None and _guard.at is not None


def disarm_watchdog() -> None:
    """Let the command take its time from now on: an interrupt, if any, was handled, and only results remain to be saved."""
    if _guard is not None:
        _guard.disarmed = True


def at_end(cleanup: Callable[[], object]) -> Callable[[], object]:
    """Register a function to call if Ctrl-C or a signal ends the process of a command, in any state.

    Args:
        cleanup: the function. It must be quick, and harmless if there is nothing to clean up; any thread may call it.

    Returns:
        A function that cancels the registration.
    """
    key = object()
    _cleanups[key] = cleanup
    return functools.partial(_cleanups.pop, key, None)


@contextlib.contextmanager
def ended_by(stop: Callable[[], object]) -> Iterator[None]:
    """Call a function at the first Ctrl-C, SIGTERM or SIGHUP in the block; the previous handlers get any further signal.

    Args:
        stop: the function, called on the main thread; it may open a :class:`placeit.core.threads.Gate`.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_TERMINATING)}
    handlers = {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}
    wakeup = signal.set_wakeup_fd(-1)

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        restore()
        stop()

    for number in handlers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
