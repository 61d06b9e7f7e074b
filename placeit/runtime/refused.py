"""Ops in errors of compilers, and programs that run op by op because a compiler refused their segments."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from placeit.core.errors import DeviceError, LostError

__all__ = ["MayBeRefused", "describe_ops", "naming_ops"]

_INTRODUCED = re.compile(r"(?:[Oo]peration:?|[Nn]ode|[Oo]p|[Nn]ame:|[Ii]d:)\s+['\"]?([^\s'\",]+)")
_TOKEN = re.compile(r"[^\s'\",()=]+")


@runtime_checkable
class MayBeRefused(Protocol):
    """A program that runs op by op if the device's compiler refuses its segment."""

    @property
    def refused(self) -> str:
        """Reason why the compiler refused the segment; empty if the segment is compiled."""
        ...


@contextlib.contextmanager
def naming_ops(ops: Sequence[str], *, whole: bool) -> Iterator[None]:
    """Set :attr:`DeviceError.ops` of an error that is raised in the block, which compiles a segment.

    Args:
        ops: names of the segment's ops, in topological order.
        whole: whether the segment is the whole model. Then an error has no ops unless its message names them.
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
        failure = type(error)(f"{str(error).rstrip('.')}. The segment has {describe_ops(ops)}.")
        failure.ops = tuple(ops)
        raise failure from error.__cause__


def describe_ops(ops: Sequence[str]) -> str:
    """Describe the ops of a segment, given in topological order, for a message."""
    return f"the op '{ops[0]}'" if len(ops) == 1 else f"the {len(ops)} ops '{ops[0]}' to '{ops[-1]}'"


def _named(message: str, ops: Sequence[str]) -> tuple[str, ...]:
    """Return the ops that a message names. A name that could be a word counts only where the message introduces a name."""
    introduced = {word.rstrip(".:;") for word in _INTRODUCED.findall(message)}
    tokens = {word.rstrip(".:;") for word in _TOKEN.findall(message)}
    for word in tokens:  # OpenVINO's plugin for GPUs calls a ReLU relu:NAME, and a name may have colons, too
        introduced.update(word[i + 1 :] for i, letter in enumerate(word) if letter == ":")
    return tuple(name for name in ops if name in introduced or (name in tokens and not name.isalpha()))
