"""Turn error messages of OpenVINO and its plugins into errors of one paragraph."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from placeit.core.errors import DeviceError, NoRoomError

__all__ = ["explaining", "failure", "is_no_room", "what_openvino_says"]

_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
"""C++ exceptions, as the bindings translate them."""

_THROWN = re.compile(r"(?:Caught exception: )?Exception from [^\n]*?:\d+:[ \t]*")
_CHECK = re.compile(r"Check '[^\n]*' failed at [^\n]*?:\d+:[ \t]*")

_NO_ROOM = re.compile(
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
    said = what_openvino_says(error)
    kind = NoRoomError if isinstance(error, MemoryError) or is_no_room(said) else DeviceError
    return kind(f"{what}: {said}")


def is_no_room(said: str) -> bool:
    """Return whether a message of OpenVINO, or of a driver that it passes on, means that memory was short."""
    return _NO_ROOM.search(said) is not None


def what_openvino_says(error: BaseException) -> str:
    """Return OpenVINO's message as one line, without the places in OpenVINO's sources that the exception came through.

    A failed check without a message is kept, since no other reason is known.
    """
    text = _THROWN.sub("", str(error))
    lines = [" ".join(line.split()) for line in _CHECK.sub("", text).splitlines()]
    if not any(lines):
        lines = [" ".join(line.split()).rstrip(":") for line in text.splitlines()]
    said = ""
    for line in filter(None, lines):
        goes_on = not said or said.endswith((".", ":", ",", ";", "!", "?")) or line[0].islower()
        said = f"{said}{' ' if goes_on else '. '}{line}".lstrip()
    return said or type(error).__name__
