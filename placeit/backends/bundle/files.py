"""The files of a bundle: uncompressed members of an archive, or files in a folder, which are mapped into memory.

Nothing is unpacked. The archive, or each file of a folder, is copied to a temporary file without a name, which is then mapped.
So changes of the bundle's files do not affect running models, and pages of weights can be dropped and read again from the copy.
Where the file system shares blocks between files (Btrfs, XFS), the copy takes neither time nor space. The directory of an
archive is checked before any member is used (:class:`BundleFiles`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.backends.digest import file_stamp
from placeit.backends.folder import is_folder, model_in
from placeit.core.errors import FileError

__all__ = ["SUFFIX", "WEIGHTS", "BundleFiles", "Digest", "digest_of", "is_bundle", "stamp", "write_archive"]

SUFFIX = ".placeit"
WEIGHTS = ".bin"
"""Suffix of files that contain numbers only, so that reading a damaged one does no harm."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9]+)?(/[a-z0-9][a-z0-9_-]*(\.[a-z0-9]+)?)*", re.ASCII)
_ALIGNMENT = 64  # bytes to which the data of members are aligned, for OpenVINO and vector instructions
_LOCAL = struct.Struct("<4s5H3I2H")  # the header before the data of a member
_EXTRA = struct.Struct("<2H")  # kind and size of the padding
_PADDING = 0x5050
_ZIP64_BYTES = 20  # bytes that zipfile adds to the header of a member of more than 2 GB
_DAMAGED = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, struct.error),
    *(ValueError, LookupError, EOFError, RuntimeError, OverflowError, MemoryError),
)
"""Errors that reading the directory of a damaged archive raises."""


@dataclass(frozen=True)
class Digest:
    """Size and SHA-256 of a file."""

    bytes: int
    sha256: str


def is_bundle(path: str | Path) -> bool:
    """Return whether a path can only name a bundle: it ends in ``.placeit``, or is a folder without a model to place."""
    path = Path(path)
    return path.suffix.lower() == SUFFIX or (is_folder(path) and model_in(path) is None)


def digest_of(path: Path) -> Digest:
    """Return the digest of a file's content. Raises OSError."""
    with path.open("rb") as stream:
        return Digest(path.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())


def write_archive(folder: Path, names: Iterable[str], path: Path) -> None:
    """Write files of a folder into an archive, uncompressed and aligned, so that they can be mapped into memory.

    Args:
        folder: folder of the files.
        names: names of the files, relative to the folder.
        path: the archive, which is overwritten.

    Raises:
        OSError: there is no room.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            info = zipfile.ZipInfo(name)  # without a time, so that equal content makes equal archives
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.file_size = (folder / name).stat().st_size
            zip64 = info.file_size * 1.05 > zipfile.ZIP64_LIMIT  # the rule of zipfile
            start = archive.start_dir + _LOCAL.size + len(name) + _EXTRA.size + (_ZIP64_BYTES if zip64 else 0)
            padding = -start % _ALIGNMENT
            info.extra = _EXTRA.pack(_PADDING, padding) + bytes(padding)
            with (folder / name).open("rb") as source, archive.open(info, "w") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


class BundleFiles:
    """The files of a bundle, mapped into memory.

    The members of an archive must have unique, relative names without ``..``, and must be no links. They must be uncompressed,
    so that they take no more memory than the archive, lie within it, and not overlap.

    Args:
        path: an archive or a folder.

    Attributes:
        path: path of the bundle.

    Raises:
        FileError: it does not exist, cannot be read, or is not a bundle; the message says why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}  # offset and size of each member in the archive
        self._mapped: dict[str, NDArray[np.uint8]] = {}
        self._pending: list[Future[None]] = []  # comparisons of weights
        self._archive: NDArray[np.uint8] | None = None
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                return
            if not stat.S_ISREG(mode):
                raise self.wrong("it is neither a file nor a folder")
            archive = _copied(path)
            self._archive = _view(archive)
            self._read_directory(archive, self._archive)
        except OSError as error:
            raise FileError(f"Cannot read the bundle {path}: {error.strerror or error}.") from error

    @property
    def folder(self) -> bool:
        """True if it is a folder."""
        return self._archive is None

    @property
    def names(self) -> frozenset[str]:
        """Names of the members of an archive."""
        return frozenset(self._places)

    def wrong(self, why: str) -> FileError:
        """Return the error that says why the bundle cannot be used."""
        return FileError(f"{self.path} is not a bundle that can be used: {why}.")

    def read(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a file, mapped into memory that lives as long as this object: ``uint8[N]``.

        Raises:
            FileError: the file does not exist, is a link, or cannot be read.
        """
        mapped = self._mapped.get(name)
        return self._mapped.setdefault(name, self._map(name)) if mapped is None else mapped  # several threads may read the file

    def _map(self, name: str) -> NDArray[np.uint8]:
        if not _NAME.fullmatch(name):
            raise self.wrong(f"it names the file '{name}'")
        if self._archive is None:
            try:
                return _view(_copied(self.path / name, within=self.path))
            except OSError as error:
                raise self.wrong(f"its file {name} cannot be read: {error.strerror or error}") from error
        if name not in self._places:
            raise self.wrong(f"it lacks the file {name}")
        offset, size = self._places[name]
        data = self._archive[offset : offset + size]
        return data if offset % _ALIGNMENT == 0 else data.copy()  # in a repacked archive

    def check(self, wanted: Mapping[str, Digest]) -> None:
        """Compare all files with their sizes and digests. Weights are compared in the background (:meth:`wait`).

        Args:
            wanted: the digest of each file except the manifest, by name.

        Raises:
            FileError: a file is missing, has changed, or is not listed.
        """
        unknown = self.names - wanted.keys() - {"bundle.json"}
        if unknown:
            raise self.wrong(f"it holds the file {min(unknown)}, which its list of files does not name")

        def changed(name: str) -> FileError:
            return self.wrong(f"its file {name} was changed or damaged after it was built. Copy it again, or build it anew")

        def check(name: str) -> None:
            if hashlib.sha256(self.read(name).data).hexdigest() != wanted[name].sha256:
                raise changed(name)

        for name, digest in wanted.items():
            if len(self.read(name)) != digest.bytes:
                raise changed(name)

        pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "placeit digests")
        checks = {name: pool.submit(check, name) for name in sorted(wanted, key=lambda name: -wanted[name].bytes)}
        pool.shutdown(wait=False)
        self._pending = [future for name, future in checks.items() if name.endswith(WEIGHTS)]
        try:
            for name, future in checks.items():
                if not name.endswith(WEIGHTS):
                    future.result()
        except BaseException:
            wait(self._pending)
            raise

    def wait(self) -> None:
        """Wait until the weights have been compared; results computed before may be wrong. Raises FileError."""
        wait(self._pending)
        for future in self._pending:
            future.result()

    def _read_directory(self, file: mmap.mmap | None, data: NDArray[np.uint8]) -> None:
        try:
            with zipfile.ZipFile(file or io.BytesIO()) as archive:  # type: ignore[arg-type] # the maps have what it calls
                members = archive.infolist()
        except _DAMAGED as error:
            if data[:4].tobytes() == b"PK\x03\x04":
                raise self.wrong("it is cut short or damaged. Copy it again, or build it anew") from error
            raise self.wrong("it is another kind of file. A bundle is what 'placeit build' writes") from error
        for member in members:
            name = member.filename
            if name.endswith("/") and not member.file_size:
                continue  # a folder entry, which has no content
            kind = stat.S_IFMT(member.external_attr >> 16)
            if not _NAME.fullmatch(name) or kind not in (0, stat.S_IFREG):
                raise self.wrong(f"its member {name!r} is a link, or has a name that no file of a bundle has")
            if name in self._places:
                raise self.wrong(f"it holds the file {name} twice")
            if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 or member.compress_size != member.file_size:
                raise self.wrong(
                    f"its member {name} is compressed or encrypted, and members of a bundle are not. Pack it with `zip -0`"
                )
            self._places[name] = self._place(member, data)
        end = 0
        for offset, size in sorted(self._places.values()):
            if offset < end:
                raise self.wrong("its members overlap")
            end = offset + size

    def _place(self, member: zipfile.ZipInfo, data: NDArray[np.uint8]) -> tuple[int, int]:
        """Return offset and size of the data of a member, after a comparison with its local header."""
        start = member.header_offset
        header = data[start : start + _LOCAL.size].tobytes() if start >= 0 else b""
        with contextlib.suppress(struct.error):
            signature, *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
            offset = start + _LOCAL.size + name_bytes + extra_bytes
            name = data[start + _LOCAL.size : start + _LOCAL.size + name_bytes].tobytes()
            if signature == b"PK\x03\x04" and name == member.filename.encode() and offset + member.file_size <= len(data):
                return offset, member.file_size
        raise self.wrong(f"its member {member.filename} does not lie where its list of members says. Copy it again")


def stamp(path: Path) -> tuple[int, ...] | None:
    """Return numbers that change when an archive, or the manifest of a folder, is replaced or written to; None without it."""
    return file_stamp(path / "bundle.json" if path.is_dir() else path)


def _view(data: mmap.mmap | None) -> NDArray[np.uint8]:
    """Return mapped memory as an array; an empty one for None."""
    return np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _copied(path: Path, within: Path | None = None) -> mmap.mmap | None:
    """Copy a regular file, and map the copy into memory. Returns None for an empty file.

    Args:
        path: the file.
        within: folder that must contain it, without a link; None for any folder.

    Raises:
        OSError: it cannot be read, is not a regular file, or is outside of the folder.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if within is not None else 0))
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a regular file")
        if within is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(within)):
            raise OSError("it lies outside of the bundle")
        if not found.st_size:
            return None
        for folder in (path.parent, None):  # None: the folder of temporary files
            # errors: the folder cannot be written to, is full, or the file has become empty
            with contextlib.suppress(OSError, ValueError), tempfile.TemporaryFile(dir=folder) as copy:
                stream.seek(0)
                with contextlib.suppress(OSError):  # not supported between these file systems
                    while os.copy_file_range(handle, copy.fileno(), 1 << 30):
                        pass
                shutil.copyfileobj(stream, copy, 1 << 20)  # the rest
                copy.flush()
                # private and writable, since OpenVINO accepts no read-only memory; it is never written
                return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_COPY)
        stream.seek(0)
        memory = mmap.mmap(-1, found.st_size)
        stream.readinto(memory)
        return memory
