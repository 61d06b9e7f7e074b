"""Protocols of instances of segments with state; see :mod:`placeit.runtime.devices.base`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

__all__ = ["Fetched", "KeepsState", "fetched"]


@runtime_checkable
class Fetched(Protocol):
    """The value of a variable that is stored outside this process."""

    def fetch(self) -> Any:
        """Fetch the value as an ``openvino.Tensor``."""


def fetched(value: Any) -> Any:
    """Return the value of a variable in this process."""
    return value.fetch() if isinstance(value, Fetched) else value


@runtime_checkable
class KeepsState(Protocol):
    """An instance whose runs can continue from the state that the last run left. It must not run during these calls."""

    def keep_state(self, *, keep: bool) -> None:
        """Choose whether later runs continue from the current state, or each start from the initial one (the default)."""

    def reset_state(self) -> None:
        """Return to the initial state."""

    def states(self) -> Mapping[str, Any]:
        """Return copies of the values of its variables, by name, for other instances of segments of the same model.

        Each value is an ``openvino.Tensor``, or is :class:`Fetched` if it is not in this process.
        """

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Set its variables to values from ``states``, which may have variables of other segments, too. Raises DeviceError."""

    def state_bytes(self) -> int:
        """Return the size of its state in bytes. This may take as long as copying the state."""
