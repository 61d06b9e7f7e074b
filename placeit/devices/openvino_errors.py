"""Turn error messages of OpenVINO and its plugins into errors of one paragraph."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from placeit.core.errors import DeviceError, NoRoomError

__all__ = ["explaining", "failure", "what_openvino_says"]

_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
"""C++ exceptions, as the bindings translate them."""

_THROWN = re.compile(r"(?:Caught exception: )?Exception from [^\n]*?:\d+:[ \t]*")
_CHECK = re.compile(r"Check '[^\n]*' failed at [^\n]*?:\d+:[ \t]*")

_OUT_OF_MEMORY = re.compile(
    r"CL_OUT_OF_RESOURCES|CL_OUT_OF_HOST_MEMORY|CL_MEM_OBJECT_ALLOCATION_FAILURE|error code: -[456]\b"  # OpenCL: GPUs
    r"|Exceeded max size of memory (?:object )?allocation|out of GPU resources"
    r"|ZE_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY"  # Level Zero: NPUs
    r"|bad_alloc"
)


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Convert exceptions of OpenVINO to a DeviceError that says ``what`` failed; a NoRoomError if memory was short."""
    try:
        yield
    except _FAILURES as error:
        raise failure(what, error) from error


def failure(what: str, error: BaseException) -> DeviceError:
    """Return the error that says ``what`` failed, and why: a NoRoomError if OpenVINO ran out of memory."""
    message = what_openvino_says(error)
    kind = NoRoomError if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(message) else DeviceError
    return kind(f"{what}: {message}")


def what_openvino_says(error: BaseException) -> str:
    """Return OpenVINO's message as one line, without the places in OpenVINO's sources that the exception came through.

    A failed check without a message is kept, since no other reason is known.
    """
    text = _THROWN.sub("", str(error))
    lines = [" ".join(line.split()) for line in _CHECK.sub("", text).splitlines()]
    if not any(lines):
        lines = [" ".join(line.split()).rstrip(":") for line in text.splitlines()]
    message = ""
    for line in filter(None, lines):
        continues = not message or message.endswith((".", ":", ",", ";", "!", "?")) or line[0].islower()
        message = f"{message}{' ' if continues else '. '}{line}".lstrip()
    return message or type(error).__name__
