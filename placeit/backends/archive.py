"""Read and write NumPy archives (``.npz``). Archives that are read are not trusted."""

from __future__ import annotations

import contextlib
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import TensorSpec
from placeit.backends.checking import check_inputs
from placeit.core.errors import FileError
from placeit.core.files import check_regular, replacing

__all__ = ["read_shapes", "read_tensors", "write_tensors"]

_MAX_HEADER_BYTES = 1 << 16
_MAX_ITEM_BYTES = 16
_DAMAGED = (
    *(ValueError, TypeError, LookupError, EOFError, RuntimeError, SyntaxError, MemoryError),
    *(zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, zipfile.BadZipFile),
)
"""Errors that reading a damaged archive raises; NumPy parses the headers of arrays as Python."""


def read_tensors(path: Path, wanted: Mapping[str, TensorSpec]) -> dict[str, NDArray[np.generic]]:
    """Read the inputs of a model from a NumPy archive (``.npz``); nothing is unpickled.

    All headers are read and checked before any data, since a small archive can expand to, or promise, any number of bytes.

    Args:
        path: the archive.
        wanted: the model's inputs, by name.

    Raises:
        FileError: the file cannot be read, or is not such an archive.
        UsageError: an array is missing or unknown, or has another shape or type.
    """
    # not numpy.load, which leaves a file open that is not an archive
    with _archive_errors(path), zipfile.ZipFile(path) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            if members.setdefault(member.filename.removesuffix(".npy"), member) is not member:
                raise ValueError(f"it holds two arrays '{member.filename.removesuffix('.npy')}'")
        found = {name: _header_of(archive, member, wanted.get(name)) for name, member in members.items()}
        check_inputs(found, wanted)
        arrays: dict[str, NDArray[np.generic]] = {}
        for name, member in members.items():
            with archive.open(member) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
        return arrays


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of the arrays in a NumPy archive, by name. Arrays that promise more data than they hold are left out.

    Raises:
        FileError: the file cannot be read, or is not such an archive.
    """
    with _archive_errors(path), zipfile.ZipFile(path) as archive:
        headers = ((member, *_read_header(archive, member)) for member in archive.infolist())
        return {
            member.filename.removesuffix(".npy"): shape
            for member, shape, dtype in headers
            if math.prod(shape) * dtype.itemsize <= member.file_size
        }


@contextlib.contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    """Turn errors while a NumPy archive is read into a FileError."""
    check_regular(path)
    try:
        yield
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except _DAMAGED as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise FileError(f"{path} is not a NumPy archive (.npz) of plain arrays: {reason}.") from error


def _header_of(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, spec: TensorSpec | None
) -> tuple[tuple[int, ...], np.dtype[np.generic] | None]:
    """Return shape and type of an array; its size in bytes and None if it is not an input or is too large for it."""
    largest = 0 if spec is None else math.prod(spec.shape if spec.limits is None else (high for _, high in spec.limits))
    if spec is None or member.file_size > _MAX_HEADER_BYTES + _MAX_ITEM_BYTES * largest:
        return (member.file_size,), None
    return _read_header(archive, member)


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        try:
            shape, _, dtype = read(stream)
        except ValueError as error:  # whose message may quote the header as a Python object
            raise ValueError(f"the head of '{member.filename}' is damaged") from error
    if dtype.hasobject:
        raise ValueError("it holds pickled objects")
    return shape, dtype


def write_tensors(path: Path, tensors: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays as a NumPy archive, in one step. Raises FileError."""
    # not numpy.savez, which accepts no array named 'file'
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(tensor), allow_pickle=False)
