"""The form of outputs that a client asks for: tensors, classes, or shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from placeit.serve.refusal import invalid
from placeit.serve.shared_memory import Part, Regions
from placeit.serve.tensors import Array, to_bytes, whole_number

__all__ = ["Wanted", "priority_of", "timeout_of", "work"]

_CLASSES: Final = 10_000  # most classes of an output, as each becomes a text
_LONGEST_US: Final = 1 << 62  # longest time-out in microseconds, which a float can hold


@dataclass(frozen=True)
class Wanted:
    """An output that a client wants.

    Attributes:
        name: of the output.
        binary: whether to return it as bytes.
        classes: number of largest values to return, as text; 0 for the tensor itself.
        part: where to write it in shared memory; None to send it.
    """

    name: str
    binary: bool = True
    classes: int = 0
    part: Part | None = None

    @property
    def is_sent(self) -> bool:
        """True if it is returned as bytes behind the JSON."""
        return self.binary and self.part is None

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, object], *, binary: bool = True) -> Wanted:
        """Read the parameters of an output. Raises RefusedError."""
        classes, binary_data = whole_number(parameters.get("classification", 0)), parameters.get("binary_data", binary)
        if classes is None or classes > _CLASSES:
            raise invalid(f"The parameter 'classification' has to be a whole number of classes, and at most {_CLASSES}.")
        if not isinstance(binary_data, bool):
            raise invalid("'binary_data' has to be true or false in this request.")
        return cls(name, binary_data, classes, Part.of(parameters))

    def of_value(self, value: Array) -> Array:
        """Return an output, or its classes."""
        return _classes(value, self.classes) if self.classes else value

    def stored(self, value: Array, regions: Regions) -> dict[str, Any] | None:
        """Write an output to its part of shared memory, and return its parameters; None if it is sent instead.

        Raises:
            RefusedError: the region does not exist, or is too small.
        """
        return None if self.part is None else regions.store(self.name, to_bytes(value), self.part).to_dict()


def work(wanted: Iterable[Wanted], outputs: Mapping[str, Array]) -> dict[str, int]:
    """Return how many bytes of outputs become text or are written to shared memory, and how many are copied.

    They are the arguments ``size`` and ``copied`` of :meth:`placeit.serve.service.Service.by_size`.
    """
    found = {"size": 0, "copied": 0}
    for one in wanted:
        value = outputs[one.name]
        if one.classes > 0 or not one.is_sent:
            found["size"] += value.nbytes
        elif not value.flags.c_contiguous:
            found["copied"] += value.nbytes
    return found


def _classes(value: Array, most: int) -> Array:
    """Return the largest values of a tensor, the largest first, each as the text ``VALUE:INDEX`` as Triton writes it."""
    flat = value.reshape(-1)
    if flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    last = (len(flat) - 1 - np.argsort(flat[::-1], kind="stable"))[::-1][:most]  # of equal values, the first comes first
    form = "{:f}:{}" if flat.dtype.kind == "f" else "{}:{}"
    return np.array([form.format(flat[at], at).encode() for at in last.tolist()], np.object_)


def priority_of(parameters: Mapping[str, object]) -> int:
    """Return the parameter ``priority`` of a request, 0 if it has none. Raises RefusedError if it is not a whole number."""
    given = whole_number(parameters.get("priority", 0))
    if given is None:
        raise invalid("The parameter 'priority' has to be a whole number of at least 0.")
    return given


def timeout_of(parameters: Mapping[str, object]) -> float | None:
    """Return the parameter ``timeout`` of a request in seconds; None if there is no limit. Raises RefusedError."""
    given = whole_number(parameters.get("timeout", 0))
    if given is None:
        raise invalid("The parameter 'timeout' has to be a whole number of microseconds, and at least 0.")
    return min(given, _LONGEST_US) / 1e6 or None
