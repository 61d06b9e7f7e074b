"""Read the JSON that placeit has written, by the types of the fields of dataclasses.

A dataclass describes the content of a file. :func:`record` reads it, and names the field whose value is not of its type. A
field may have these types: ``str``, ``bool``, ``int``, ``float`` (any finite number), ``Any``, ``Literal``, other dataclasses,
``tuple``, ``Mapping`` from text, unions of these with each other and None, and ``Annotated[..., Within(low, high)]``.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from placeit.core.errors import FileError
from placeit.core.files import read_text

__all__ = ["RecordError", "Within", "check_shape", "contents", "parsed", "plain", "read_json", "record"]

T = TypeVar("T")


class RecordError(ValueError):
    """An error that names a field with an invalid value.

    Attributes:
        field: path of the field, such as ``graph.ops[1].kind``; empty for the value as a whole.
        what: what is wrong with it, such as ``must be text``.
    """

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"'{field}' {what}" if field else f"it {what}")
        self.field, self.what = field, what

    def inside(self, outer: str) -> RecordError:
        """Return this error with the path of the field prefixed by the name of the field that contains it."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return RecordError(f"{outer}{dot}{self.field}", self.what)


@dataclass(frozen=True)
class Within:
    """Bounds of a number, both of them included."""

    low: float
    high: float


def record(kind: Callable[..., T], value: Any, *, strict: bool = False) -> T:
    """Return a value of JSON types as an instance of a dataclass, or of another type that a field may have.

    Args:
        kind: the type.
        value: the value, as :func:`parsed` returns it.
        strict: whether fields that the dataclass does not have, and missing fields that have a default, are errors. Otherwise
            they are ignored, and have their default.

    Raises:
        RecordError: the value is not of the type.
    """
    found: T = _reader(kind, strict)(value)
    return found


def plain(value: Any) -> Any:
    """Convert dataclasses and tuples to JSON types, as :func:`record` reads them."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


def check_shape(field: str, value: Sequence[Any], *shape: int) -> None:
    """Check that nested lists have a shape. Raises RecordError, which names the field."""
    if len(value) != shape[0]:
        raise RecordError(field, f"must have {shape[0]} items")
    for i, item in enumerate(value if len(shape) > 1 else ()):
        check_shape(f"{field}[{i}]", item, *shape[1:])


def parsed(text: str | bytes, *, finite: bool = False) -> Any:
    """Parse JSON; with ``finite``, refuse NaN and Infinity, which Python's ``json`` accepts though they are no JSON.

    Raises:
        ValueError: it is not valid JSON, is nested too deep, or has an object with a key twice, which ``json`` accepts.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse if finite else None)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def contents(path: Path) -> Any:
    """Read a JSON file, with ``.gz`` a compressed one. Raises FileError if it cannot be read or is not JSON."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return parsed(read_text(path, cast("BinaryIO", stream)))
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (EOFError, zlib.error, ValueError) as error:
        raise FileError(f"{path} is not valid JSON: {error}.") from error


def read_json(path: Path, format_name: str, versions: Sequence[int] = (1,)) -> dict[str, Any]:
    """Read a JSON object of a supported version whose "format", if stated, is ``format_name``. Raises FileError."""
    data = contents(path)
    if not isinstance(data, dict) or data.get("format", format_name) != format_name:
        raise FileError(f"{path} is not a {format_name} file.")
    if data.get("version", 1) not in versions:
        *others, last = map(str, versions)
        known = f"{', '.join(others)} and {last}" if others else last
        raise FileError(f"{path} has version {data['version']!r}; this placeit reads version {known} of {format_name}.")
    return data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key '{key}' occurs twice")
        found[key] = value
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


@functools.cache
def _reader(kind: Any, strict: bool) -> Callable[[Any], Any]:
    """Return a function that reads a value of a type. The function raises RecordError."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return functools.partial(_read_within, _reader(args[0], strict), *args[1:])
    if origin in (Union, types.UnionType):
        readers = [_reader(arg, strict) for arg in args if arg is not type(None)]
        return functools.partial(_read_union, type(None) in args, readers)
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        by_name = {field.name: _reader(hints[field.name], strict) for field in fields(kind)}
        needed = {field.name for field in fields(kind) if strict or field.default is field.default_factory is MISSING}
        return functools.partial(_read_fields, kind, by_name, needed, strict)
    if origin is tuple:
        items = [_reader(arg, strict) for arg in args if arg is not Ellipsis]
        return functools.partial(_read_list, None if args[-1] is Ellipsis else len(args), items)
    if origin is Literal:
        return functools.partial(_read_choice, args)
    if origin in (Mapping, dict):
        return functools.partial(_read_mapping, _reader(args[1], strict))
    return {Any: lambda value: value, float: _read_float, int: _read_int}.get(kind, functools.partial(_read_plain, kind))


def _read_within(read: Callable[[Any], Any], bounds: Within, value: Any) -> Any:
    found = read(value)
    if not bounds.low <= found <= bounds.high:
        raise RecordError("", f"must be between {bounds.low:g} and {bounds.high:g}")
    return found


def _read_union(nullable: bool, readers: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    if nullable and value is None:
        return None
    if len(readers) == 1:
        return readers[0](value)
    expected = []
    for read in readers:
        try:
            return read(value)
        except RecordError as error:
            expected.append(error.what.removeprefix("must be "))
    # sorted, as int | str and str | int share a cached reader
    raise RecordError("", f"must be {' or '.join(sorted(expected))}")


def _read_fields(kind: Any, readers: Mapping[str, Callable[[Any], Any]], needed: set[str], strict: bool, value: Any) -> Any:
    if not isinstance(value, dict):
        raise RecordError("", "must be an object")
    for name in () if value.keys() == readers.keys() else (*readers, *value):
        if name in needed and name not in value:
            raise RecordError(name, "is missing")
        if strict and name not in readers:
            raise RecordError(name, "is not known")
    found = {}
    for name, read in readers.items():
        if name in value:
            try:
                found[name] = read(value[name])
            except RecordError as error:
                raise error.inside(name) from None
    return kind(**found)


def _read_list(length: int | None, readers: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    if not isinstance(value, list):
        raise RecordError("", "must be a list")
    if length is not None and len(value) != length:
        raise RecordError("", f"must have {length} items")
    last, found = len(readers) - 1, []
    for i, item in enumerate(value):
        try:
            found.append(readers[min(i, last)](item))
        except RecordError as error:
            raise error.inside(f"[{i}]") from None
    return tuple(found)


def _read_choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise RecordError("", f"must be one of {', '.join(map(str, choices))}")
    return value


def _read_mapping(read: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, dict):
        raise RecordError("", "must be an object")
    found = {}
    for name, item in value.items():
        try:
            found[name] = read(item)
        except RecordError as error:
            raise error.inside(name) from None
    return found


def _read_float(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an integer may have hundreds of digits
            number = math.inf
        if math.isfinite(number):
            return number
    raise RecordError("", "must be a finite number")


def _read_int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RecordError("", "must be a whole number")
    return value


def _read_plain(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise RecordError("", "must be text" if kind is str else "must be true or false")
    return value
