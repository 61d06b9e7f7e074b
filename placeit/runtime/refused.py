"""What compilers refuse: segments that then run op by op, and ops, which are added to the error of a device."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from placeit.core.errors import DeviceError, LostError

__all__ = ["MayBeRefused", "about", "naming_ops"]

_INTRODUCED = re.compile(r"(?:[Oo]peration:?|[Nn]ode|[Oo]p|[Nn]ame:|[Ii]d:)\s+['\"]?([^\s'\",]+)")
_TOKEN = re.compile(r"[^\s'\",()=]+")


@runtime_checkable
class MayBeRefused(Protocol):
    """A program of a device that runs segments op by op if its compiler refuses them."""

    @property
    def refused(self) -> str:
        """Why the compiler refused the segment; empty if it is compiled."""
        ...


@contextlib.contextmanager
def naming_ops(ops: Sequence[str], *, whole: bool) -> Iterator[None]:
    """Add to a DeviceError of the block, which compiles a segment, the ops that it is about (:attr:`DeviceError.ops`).

    Args:
        ops: names of the segment's ops, in topological order.
        whole: whether the segment is the whole model. Then the error is about ops only if its message names them.
    """
    try:
        yield
    except DeviceError as error:
        if error.ops or isinstance(error, LostError):
            raise
        named = _named(str(error), ops)
        if named or whole:
            error.ops = named
            raise
        failure = type(error)(f"{str(error).rstrip('.')}. The segment has {about(ops)}.")
        failure.ops = tuple(ops)
        raise failure from error.__cause__


def about(ops: Sequence[str]) -> str:
    """Return words for the ops of a segment, which are in topological order."""
    return f"the op '{ops[0]}'" if len(ops) == 1 else f"the {len(ops)} ops '{ops[0]}' to '{ops[-1]}'"


def _named(message: str, ops: Sequence[str]) -> tuple[str, ...]:
    """Find names of ops in a message. A name that could be a word counts only where the message introduces a name."""
    introduced = {word.rstrip(".:;") for word in _INTRODUCED.findall(message)}
    tokens = {word.rstrip(".:;") for word in _TOKEN.findall(message)}
    for word in tokens:  # OpenVINO's plugin for GPUs calls a ReLU relu:NAME, and a name may have colons, too
        introduced.update(word[place + 1 :] for place, letter in enumerate(word) if letter == ":")
    return tuple(name for name in ops if name in introduced or (name in tokens and not name.isalpha()))
