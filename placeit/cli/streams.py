"""Repair standard streams, so that no result is lost because a stream is closed, full or without a reader."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

__all__ = ["drop_stdout", "mend_streams", "messages_only"]


class _Messages(io.RawIOBase):
    """Standard error that drops text it cannot write, since the failure could not be reported anywhere."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(2, rest) :]
        return len(data)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(2)

    def fileno(self) -> int:
        return 2


def mend_streams() -> None:
    """Open closed standard streams, so that no other file gets their numbers, and let no message fail a command.

    Reading or writing an opened stream fails as before, since a result that has no reader is an error.
    """
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Messages()), encoding=encoding, errors="backslashreplace", line_buffering=True, write_through=True
    )


def drop_stdout() -> None:
    """Discard text that is still buffered for standard output, which Python would otherwise report when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def messages_only() -> None:
    """Send text that libraries write to standard output while the process ends to standard error."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    drop_stdout()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()  # discards the rest of a result that could not be written, which is no message
    os.dup2(2, 1)
