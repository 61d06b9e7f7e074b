"""Tensors of the protocol: types, and values as bytes, as JSON and as fields of protobuf messages."""

from __future__ import annotations

import itertools
import json
import math
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import TensorSpec
from placeit.core.sizes import fits
from placeit.serve.refusal import RefusedError, invalid

__all__ = [
    "DATATYPES",
    "Array",
    "check_size",
    "datatype_of",
    "of_bytes",
    "of_contents",
    "of_json",
    "ranges",
    "sent_as",
    "sized",
    "taken",
    "to_bytes",
    "to_json",
    "whole_number",
]

DATATYPES: Final = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
"""The protocol's names of types, by NumPy's names."""

_BF16: Final = "bfloat16"  # upper halves of float32
_SENT: Final = DATATYPES | {_BF16: "BF16"}  # types of tensors that clients send
_OF_DTYPES: Final[dict[Any, str]] = {np.dtype(np.object_): "BYTES"} | {np.dtype(name): said for name, said in DATATYPES.items()}

_FIELDS: Final = {
    "bool": "bool_contents",
    **dict.fromkeys(("int8", "int16", "int32"), "int_contents"),
    **dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents"),
    "int64": "int64_contents",
    "uint64": "uint64_contents",
    "float32": "fp32_contents",
    "float64": "fp64_contents",
}
_KINDS: Final[dict[str, set[type]]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
_WORDS: Final[dict[type, str]] = {
    bool: "true or false",
    int: "numbers",
    float: "fractions",
    str: "text",
    list: "lists of different depths",
}
_LITTLE: Final = sys.byteorder == "little"
_PIECE: Final = 1 << 14  # values that are converted at a time; other threads can run in between

Array = NDArray[np.generic]


def sent_as(spec: TensorSpec, datatype: str) -> str:
    """Return NumPy's name of the type of a sent tensor: the model's type, or BF16 for FP32. Raises RefusedError."""
    wanted = DATATYPES[spec.dtype]
    if datatype == "BF16" and spec.dtype == "float32":
        return _BF16
    if datatype != wanted:
        unknown = "" if datatype in DATATYPES.values() else ", a type that no model has here"
        advice = " Turn texts into numbers, such as tokens, before you send them." if datatype == "BYTES" else ""
        raise invalid(f"The input '{spec.name}' is sent as {datatype}{unknown}; the model takes {wanted}.{advice}")
    return spec.dtype


def datatype_of(value: Array) -> str:
    """Return the protocol's name of the type of an output."""
    return _OF_DTYPES[value.dtype]


def whole_number(value: object) -> int | None:
    """Return a value that is a whole number of at least 0; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def taken(spec: TensorSpec) -> str:
    """Return the shapes of an input that a model takes, for messages."""
    return f"[{', '.join(str(low) if low == high else f'{low}..{high}' for low, high in ranges(spec))}]"


def ranges(spec: TensorSpec) -> list[tuple[int, int]]:
    """Return the least and the greatest size of each dimension of a tensor."""
    return [*(spec.limits or zip(spec.shape, spec.shape, strict=True))]


def sized(spec: TensorSpec, size: int) -> TensorSpec:
    """Return the spec of an input with its open size computed from its number of bytes. Raises RefusedError."""
    if spec.limits is None:
        return spec
    fixed = [low for low, high in spec.limits if low == high]
    if len(fixed) < len(spec.shape) - 1:
        raise invalid(f"The input '{spec.name}' has several open sizes, {taken(spec)}: send its shape in JSON.")
    length, more = divmod(size, math.prod(fixed) * np.dtype(spec.dtype).itemsize or 1)
    shape = tuple(low if low == high else length for low, high in spec.limits)
    if more or not fits(shape, spec.shape, spec.limits):
        raise invalid(f"The input '{spec.name}' has {size} bytes; the model takes {DATATYPES[spec.dtype]} {taken(spec)}.")
    return replace(spec, shape=shape, limits=None)


def check_size(spec: TensorSpec, size: int) -> None:
    """Raise RefusedError if the number of sent bytes does not fit the shape and type."""
    wanted = math.prod(spec.shape) * (2 if spec.dtype == _BF16 else np.dtype(spec.dtype).itemsize)
    if size != wanted:
        raise invalid(f"The input '{spec.name}' has {size} bytes; {_SENT[spec.dtype]} {list(spec.shape)} takes {wanted}.")


def of_bytes(data: bytes | memoryview, spec: TensorSpec) -> Array:
    """View little-endian bytes as a tensor; BF16 is copied to float32. Raises RefusedError."""
    check_size(spec, len(data))
    if spec.dtype == _BF16:
        upper = np.frombuffer(data, "<u2").reshape(spec.shape).astype(np.uint32)
        return (upper << 16).view(np.float32)
    dtype = np.dtype(spec.dtype)
    if dtype == np.bool_ and (np.frombuffer(data, np.uint8) > 1).any():
        raise invalid(f"The input '{spec.name}' has bytes other than 0 and 1; it is BOOL.")
    return np.frombuffer(data, dtype if _LITTLE else dtype.newbyteorder("<")).reshape(spec.shape)


def to_bytes(value: Array) -> memoryview:
    """Return the values of a tensor as little-endian bytes, without a copy if they are contiguous; texts with their lengths."""
    if value.dtype == np.object_:
        return memoryview(b"".join(struct.pack("<I", len(one)) + one for one in value.reshape(-1).tolist()))
    plain = np.ascontiguousarray(value, value.dtype if _LITTLE else value.dtype.newbyteorder("<"))
    return plain.reshape(-1).view(np.uint8).data


def of_json(data: Any, spec: TensorSpec) -> Array:
    """Convert a JSON list, flat or nested like the shape, to a tensor. Raises RefusedError."""
    if spec.dtype == _BF16:
        raise invalid(f"The input '{spec.name}' is BF16: send it in binary form, or as FP32.")
    found = _filled(_flat(data, spec), spec)
    if found.dtype.kind == "f" and not np.isfinite(found).all():  # JSON has no infinity, so a number was too large
        raise _too_large(spec)
    return found


def _flat(data: Any, spec: TensorSpec) -> list[Any]:
    """Return the values of a list, flat or nested like the tensor's shape, as a flat list. Raises RefusedError."""
    if not isinstance(data, list):
        raise invalid(f"The 'data' of the input '{spec.name}' is not a list of values.")
    values, sizes = data, [len(data)]
    while values and isinstance(values[0], list):
        lengths = {len(row) if isinstance(row, list) else -1 for row in values}
        if len(lengths) > 1:
            raise invalid(f"The 'data' of the input '{spec.name}' has lists of different lengths.")
        sizes += lengths
        values = list(itertools.chain.from_iterable(values))
    if len(values) != math.prod(spec.shape) or (len(sizes) > 1 and tuple(sizes) != spec.shape):
        has = f"{len(values)} values" if len(sizes) == 1 else f"lists of the shape {sizes}"
        raise invalid(f"The 'data' of the input '{spec.name}' has {has}; {_takes(spec)}.")
    return values


def _takes(spec: TensorSpec) -> str:
    return f"its shape {list(spec.shape)} takes {math.prod(spec.shape)}"


def _filled(values: Sequence[Any], spec: TensorSpec) -> Array:
    """Convert a flat list of values to a tensor, in pieces between which other threads can run. Raises RefusedError."""
    found = np.empty(len(values), spec.dtype)
    for at in range(0, len(values), _PIECE):
        piece = values[at : at + _PIECE]
        wrong: set[type] = set(map(type, piece)) - _KINDS[found.dtype.kind]
        if wrong:
            said = ", ".join(sorted(_WORDS.get(kind, "null or objects") for kind in wrong))
            raise invalid(f"The input '{spec.name}' has values that are {said}; it is {DATATYPES[spec.dtype]}.")
        if not _fits(piece, found[at : at + len(piece)]):
            raise _too_large(spec)
    return found.reshape(spec.shape)


def _too_large(spec: TensorSpec) -> RefusedError:
    return invalid(f"The input '{spec.name}' has values that {DATATYPES[spec.dtype]} cannot hold.")


def _fits(values: Sequence[Any], found: Array) -> bool:
    """Write values into an array of their kind of type; return whether the type can hold them."""
    if found.dtype.kind in "iu":
        limits = np.iinfo(found.dtype)  # type: ignore[type-var]
        if min(values) < limits.min or max(values) > limits.max:
            return False
    try:
        with np.errstate(over="ignore"):
            found[:] = np.array(values, np.float64 if found.dtype.kind == "f" else found.dtype)
    except OverflowError:  # an integer that is larger than any float
        return False
    return True


def of_contents(contents: Any, spec: TensorSpec) -> Array:
    """Convert the typed values of an ``InferTensorContents`` to a tensor. Raises RefusedError."""
    wanted = _FIELDS.get(spec.dtype)
    if wanted is None:
        raise invalid(f"The input '{spec.name}' is {_SENT[spec.dtype]}, which has no typed contents: send it raw.")
    if any(field.name != wanted for field, _ in contents.ListFields()):
        raise invalid(f"The input '{spec.name}' is {DATATYPES[spec.dtype]}: its values belong in '{wanted}' alone.")
    values = getattr(contents, wanted)
    if len(values) != math.prod(spec.shape):
        raise invalid(f"The input '{spec.name}' has {len(values)} values; {_takes(spec)}.")
    return _filled(values, spec)


def to_json(name: str, value: Array) -> Iterator[str]:
    """Yield a tensor's values as a JSON list, in pieces between which other threads can run. Raises RefusedError."""
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise invalid(
            f"The output '{name}' has values that are not finite, for which JSON has no numbers: ask for it in binary form "
            "(the parameter 'binary_data' of the output, or 'binary_data_output' of the request)."
        )
    flat = value.reshape(-1)
    yield "["
    for at in range(0, len(flat), _PIECE):
        piece = flat[at : at + _PIECE].tolist()
        text = json.dumps([one.decode() for one in piece] if flat.dtype == np.object_ else piece)
        yield ("," if at else "") + text[1:-1]
    yield "]"
