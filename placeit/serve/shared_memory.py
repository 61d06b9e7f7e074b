"""Regions of shared memory of this machine, for tensors that are not sent: Triton's extension for system shared memory.

Regions are read and written like files, and never mapped: a client that shrinks a mapped region would kill the server.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from placeit.backends.base import TensorSpec
from placeit.serve.refusal import RefusedError, Status, invalid
from placeit.serve.tensors import Array, check_size, of_bytes, whole_number

__all__ = ["Part", "Regions"]

_FOLDER: Final = Path("/dev/shm")  # noqa: S108 (where Linux keeps what shm_open opens)
_MOST: Final = 256  # regions, as each keeps a file open
_LONGEST: Final = 255  # characters of the name of a region


@dataclass(frozen=True)
class Part:
    """The part of a region that a tensor takes.

    Attributes:
        region: name of the region.
        offset: first byte of the tensor in the region.
        size: bytes of the tensor in the region.
    """

    region: str
    offset: int
    size: int

    @classmethod
    def of(cls, parameters: Mapping[str, object]) -> Part | None:
        """Return the part that the parameters of a tensor name; None if they name none. Raises RefusedError."""
        region = parameters.get("shared_memory_region")
        if region is None:
            return None
        offset, size = _size(parameters.get("shared_memory_offset", 0)), _size(parameters.get("shared_memory_byte_size"))
        if not isinstance(region, str) or offset is None or size is None:
            raise invalid(
                "A tensor in shared memory needs the text 'shared_memory_region', and whole numbers for "
                "'shared_memory_byte_size' and 'shared_memory_offset'."
            )
        return cls(region, offset, size)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters of a tensor in this part."""
        found = {"shared_memory_region": self.region, "shared_memory_byte_size": self.size}
        return found | ({"shared_memory_offset": self.offset} if self.offset else {})


def _size(value: object) -> int | None:
    found = whole_number(value)
    return found if found is not None and found < 1 << 63 else None


@dataclass(frozen=True)
class _Region:
    key: str
    offset: int
    size: int
    file: int  # descriptor


class Regions:
    """The regions that clients have registered. Its methods may be called on any thread.

    Args:
        allowed: whether clients may register regions.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._known: dict[str, _Region] = {}
        self._lock = threading.Lock()

    def register(self, name: object, key: object, offset: object, size: object) -> None:
        """Open a region.

        Args:
            name: name by which requests call it.
            key: name of the object of shared memory, as ``shm_open`` takes it.
            offset: first byte of the region in that object.
            size: bytes of the region.

        Raises:
            RefusedError: it cannot be opened, is smaller, is registered already, or there are too many.
        """
        if not self._allowed:
            raise RefusedError(
                Status.FORBIDDEN, "This server shares no memory with its clients: start it with --shared-memory."
            )
        first, length = _size(offset), _size(size)
        if not (isinstance(name, str) and isinstance(key, str)) or first is None or length is None:
            raise invalid("A region needs the text 'key', and whole numbers for 'byte_size' and 'offset'.")
        file = key.lstrip("/")
        if not file or file in (".", "..") or "/" in file or "\0" in file:
            raise invalid(f"'{key}' does not name an object of shared memory: give its name, as in '/name'.")
        if len(name) > _LONGEST:
            raise invalid(f"The name of a region has at most {_LONGEST} characters.")
        try:
            opened = os.open(_FOLDER / file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, UnicodeEncodeError) as error:
            raise invalid(f"The shared memory '{key}' cannot be opened: {getattr(error, 'strerror', error)}.") from error
        found = os.fstat(opened)
        with self._lock:
            why = None
            if not stat.S_ISREG(found.st_mode) or found.st_size < first + length:
                why = f"The shared memory '{key}' has {found.st_size} bytes, and not {first + length}."
            elif name in self._known:
                why = f"The region '{name}' is registered already: unregister it first."
            elif len(self._known) >= _MOST:
                why = f"{_MOST} regions are registered: unregister some."
            if why is None:
                self._known[name] = _Region(key, first, length, opened)
                return
        os.close(opened)
        raise invalid(why)

    def unregister(self, name: str = "") -> None:
        """Close a region if it exists, or all regions without a name."""
        with self._lock:
            for one in [name] if name else [*self._known]:
                region = self._known.pop(one, None)
                if region is not None:
                    os.close(region.file)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return the names, keys, offsets and sizes of a region, or of all. Raises RefusedError if it is not registered."""
        with self._lock:
            if name and name not in self._known:
                raise _unknown(name)
            chosen = {name: self._known[name]} if name else self._known
            return [
                {"name": one, "key": region.key, "offset": region.offset, "byte_size": region.size}
                for one, region in chosen.items()
            ]

    def tensors(self, wanted: Iterable[tuple[TensorSpec, Part]]) -> dict[str, Array]:
        """Read inputs out of their parts of regions. Raises RefusedError."""
        return {spec.name: self.tensor(spec, part) for spec, part in wanted}

    def tensor(self, spec: TensorSpec, part: Part) -> Array:
        """Read an input out of its part of a region. Raises RefusedError."""
        check_size(spec, part.size)
        data = np.empty(part.size, np.uint8).data
        with self._opened(part) as (file, at):
            done = 0
            while done < part.size:
                count = os.preadv(file, [data[done:]], at + done)
                if not count:
                    raise invalid(f"The region '{part.region}' has become smaller.")
                done += count
        return of_bytes(data, spec)

    def store(self, name: str, data: memoryview, part: Part) -> Part:
        """Write an output to its part of a region, and return the part that it takes. Raises RefusedError."""
        if len(data) > part.size:
            raise invalid(f"The output '{name}' has {len(data)} bytes; there are {part.size} for it in '{part.region}'.")
        with self._opened(part) as (file, at):
            if os.fstat(file).st_size < at + len(data):  # to write would make it larger
                raise invalid(f"The region '{part.region}' has become smaller.")
            done = 0
            while done < len(data):
                done += os.pwrite(file, data[done:], at + done)
        return Part(part.region, part.offset, len(data))

    @contextlib.contextmanager
    def _opened(self, part: Part) -> Iterator[tuple[int, int]]:
        """Return a descriptor that stays open in the context, and where the part begins. Raises RefusedError."""
        with self._lock:
            region = self._known.get(part.region)
            if region is None:
                raise _unknown(part.region)
            if part.offset + part.size > region.size:
                raise invalid(f"The region '{part.region}' has {region.size} bytes, and not {part.offset + part.size}.")
            file = os.dup(region.file)
        try:
            yield file, region.offset + part.offset
        finally:
            os.close(file)


def _unknown(name: str) -> RefusedError:
    return RefusedError(Status.UNKNOWN, f"There is no region '{name}': register it first.")
