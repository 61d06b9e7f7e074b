"""The standard streams of a command's process, made such that one that is closed, full or without a reader costs no result."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

__all__ = ["drop_stdout", "mend_streams", "messages_only"]


class _Messages(io.RawIOBase):
    """Standard error: what cannot be written there is dropped, as there is nobody to tell."""

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
    """Open standard streams that are closed, so that no other file gets their numbers, and let no message fail a command.

    What was closed is opened such that reading or writing fails as before: a result that nobody gets is an error.
    """
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Messages()), encoding=encoding, errors="backslashreplace", line_buffering=True, write_through=True
    )


def drop_stdout() -> None:
    """Let what is still buffered for standard output go nowhere, or Python would complain about it when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def messages_only() -> None:
    """Send to standard error what libraries still write to standard output when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    drop_stdout()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()  # what nobody took is no message
    os.dup2(2, 1)
