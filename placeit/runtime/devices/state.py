"""Protocols of instances of segments with state; see :mod:`placeit.runtime.devices.base`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

__all__ = ["OTHER_FORM", "Fetched", "KeepsState", "MayBePaged", "Pages", "ReadsTexts", "fetched"]

OTHER_FORM = "Caches in blocks and states of other forms are not converted to each other."
"""Why a segment cannot take over a state."""


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


@runtime_checkable
class ReadsTexts(Protocol):
    """An instance that computes tokens of several texts in one run, including texts of other instances of its program."""

    def read_texts(self, parts: Sequence[tuple[Any, NDArray[Any], int]], beams: NDArray[Any]) -> None:
        """Set what the next runs compute.

        Args:
            parts: for each instance (None for this one), attention mask of its texts with earlier tokens, ``[texts, tokens]``,
                and number of new tokens of each text.
            beams: ``int[texts]``, the text of this instance that each row continues; empty if ``parts`` has other instances.
        """


@runtime_checkable
class MayBePaged(Protocol):
    """A segment that may be part of a decoder whose caches can be kept in blocks."""

    def paged(self) -> Any | None:
        """Return an ``openvino.Model`` with inputs for texts and blocks; None if the segment has no caches in blocks."""


@runtime_checkable
class Pages(Protocol):
    """A device that may keep caches in blocks."""

    @property
    def pages(self) -> bool:
        """True if it does, provided that all devices do and the model allows it."""
