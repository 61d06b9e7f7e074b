"""Read files, and write them in one step, so that no file is ever half-written."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from placeit.core.errors import FileError
from placeit.core.interrupts import at_end

__all__ = [
    "cache_folder",
    "check_regular",
    "check_writable",
    "complete_lines",
    "own_descriptor",
    "own_folder",
    "read_text",
    "replacing",
    "replacing_both",
    "temporary_folder",
    "user_folder",
    "write_text",
]

_PROBE_BYTES = 4096  # written to find out whether the disk is full
_CHUNK_BYTES = 1 << 20  # read at a time
_MAX_LINKS = 40  # symbolic links that a path may lead through, as in Linux
_MAX_SUFFIX = 16  # characters of a suffix that the temporary file has as well
_MAX_TEXT_BYTES = 1 << 29


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; the file replaces ``path`` if the block succeeds, and is deleted otherwise.

    A regular file is replaced in one step, and keeps its mode and owner; links are followed. A file that cannot be replaced is
    overwritten in place: a pipe, a character device, a file with several names (hard links), one in a folder where no files can
    be created, and the file that is this process's standard output.

    Args:
        path: the file, which need not exist yet.
        sync: whether to wait until the disk has stored the file, so that not even a loss of power leaves half a file.

    Raises:
        FileError: the folder is missing or read-only, the disk is full, or the path names a folder or a disk.
    """
    with _in_place_of([path], sync) as (temporary,):
        yield temporary


@contextlib.contextmanager
def replacing_both(path: Path, other: Path) -> Iterator[tuple[Path, Path]]:
    """Replace two files that belong together as :func:`replacing` does; neither is moved before both are written."""
    with _in_place_of([path, other], True) as (first, second):
        yield first, second


@contextlib.contextmanager
def _in_place_of(paths: list[Path], sync: bool) -> Iterator[list[Path]]:
    drafts: list[_Draft] = []
    touched = False
    try:
        for path in paths:
            drafts.append(_Draft(path))
            drafts[-1].make()
        yield [draft.temporary for draft in drafts]
        for draft in drafts:
            draft.finish(sync)
        for draft in drafts:
            touched |= draft.in_place
            draft.publish(sync)
    except OSError as error:
        left = "What was written there is incomplete." if touched else "Nothing was written there."
        raise FileError(f"Cannot write {paths[0]}: {error.strerror or error}. {left}") from error
    finally:
        for draft in drafts:
            draft.discard()


class _Draft:
    """A temporary file whose content will be moved to a path.

    Attributes:
        temporary: the file.
        in_place: whether its content is copied into the existing file, instead of moving the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, own_descriptor(path)
        self._existing: os.stat_result | None = None
        with contextlib.suppress(FileNotFoundError):
            self._existing = path.stat()
        self._target = Path(os.path.realpath(path))
        self.in_place = self._descriptor is not None
        if self._existing is not None and self._descriptor is None:
            self._check(self._existing)
        folder = Path(tempfile.gettempdir()) if self.in_place else self._target.parent
        suffix = path.suffix if len(path.suffix) <= _MAX_SUFFIX else ""
        self.temporary = folder / f".placeit-{secrets.token_hex(8)}{suffix}"
        self._unregister = at_end(self._unlink)

    def make(self) -> None:
        """Make the temporary file, with the system's default mode if the path is new, else for its owner only."""
        new = self._existing is None and not self.in_place
        os.close(os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if new else 0o600))

    def discard(self) -> None:
        """Delete the temporary file, if it is still there."""
        self._unlink()
        self._unregister()

    def _unlink(self) -> None:
        if self.temporary.exists():  # a read-only disk refuses to unlink a file that does not exist, too
            self.temporary.unlink(missing_ok=True)

    def _check(self, existing: os.stat_result) -> None:
        """Raise OSError if the existing file cannot be written; decide whether it is overwritten in place."""
        kind = stat.S_IFMT(existing.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file in it")
        if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFCHR):
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe nor a character device")
        if not os.access(self._path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        foreign = existing.st_uid != os.geteuid() and os.geteuid() != 0  # a new file would be another user's
        self.in_place = kind != stat.S_IFREG or existing.st_nlink > 1 or foreign or not os.access(self._target.parent, os.W_OK)

    def finish(self, sync: bool) -> None:
        """Give the temporary file the mode and owner of the file that it replaces; with ``sync``, wait until it is on disk."""
        if self.in_place:
            return
        with self.temporary.open("rb") as file:
            if (old := self._existing) is not None:
                new = os.fstat(file.fileno())
                if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                    with contextlib.suppress(PermissionError):
                        os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
            if sync:
                os.fsync(file.fileno())

    def publish(self, sync: bool) -> None:
        """Move or copy the content to the path."""
        if not self.in_place:
            try:
                self.temporary.replace(self._target)
            except OSError as error:
                if error.errno != errno.EBUSY:  # a mounted file, as in a container, cannot be replaced
                    raise
                self.in_place = True
            else:
                if sync:
                    _sync_folder(self._target.parent)
                return
        self._overwrite()

    def _overwrite(self) -> None:
        """Copy the content into the existing file, pipe or device."""
        if self._descriptor is None:
            handle = os.open(self._path, os.O_WRONLY)  # for a pipe, this waits for a reader
        else:
            handle = os.dup(self._descriptor)
        with self.temporary.open("rb") as source, os.fdopen(handle, "wb") as sink:
            regular = self._descriptor is None and stat.S_ISREG(os.fstat(handle).st_mode)
            size = os.fstat(source.fileno()).st_size
            if regular and size:
                os.posix_fallocate(handle, 0, size)  # without room this fails, and the old content stays
            shutil.copyfileobj(source, sink)
            sink.flush()
            if regular:
                os.ftruncate(handle, size)
                os.fsync(handle)


def own_descriptor(path: Path) -> int | None:
    """Return the file descriptor of this process that a path such as ``/dev/stdout`` or ``/dev/fd/3`` names; else None.

    If a file were opened again by such a name, writing would start at its beginning and overwrite earlier output. A path of the
    file that standard output is redirected to counts as a name of standard output, too.
    """
    link, descriptors = path, os.path.realpath("/proc/self/fd")
    with contextlib.suppress(OSError):
        for _ in range(_MAX_LINKS):
            if link.name.isdecimal() and os.path.realpath(link.parent) == descriptors:
                return int(link.name)
            link = link.parent / link.readlink()
    with contextlib.suppress(OSError):
        found, out = path.stat(), os.fstat(1)
        if stat.S_ISREG(out.st_mode) and (found.st_dev, found.st_ino) == (out.st_dev, out.st_ino):
            return 1
    return None


def check_writable(path: Path) -> None:
    """Check that a file can be written and that the disk is not full, without changing the file.

    Raises:
        FileError: the folder is missing or read-only, the disk is full, or the path names a folder or a disk.
    """
    with contextlib.ExitStack() as stack:
        try:
            draft = _Draft(path)
            stack.callback(draft.discard)
            draft.make()
            draft.temporary.write_bytes(bytes(_PROBE_BYTES))  # an empty file would fit on a full disk
        except OSError as error:
            raise FileError(f"Cannot write {path}: {error.strerror or error}. Choose another path.") from error


def check_regular(path: Path) -> None:
    """Check that a path is not a device or a pipe, which may be endless or can be read only once. Raises FileError."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # the code that reads it reports the error
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise FileError(f"Cannot read {path}: it is not a regular file. Copy its content to one.")


def write_text(path: Path, text: str, *, sync: bool = True) -> None:
    """Write a text file in one step; see :func:`replacing`. Raises FileError."""
    with replacing(path, sync=sync) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems do not support it
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_text(path: Path, stream: BinaryIO | None = None) -> str:
    """Read a text file of at most 512 MiB, or an open ``stream`` that ``path`` names in messages. Raises FileError."""
    try:
        data = bytearray()
        with path.open("rb") if stream is None else contextlib.nullcontext(stream) as opened:
            while chunk := opened.read(_CHUNK_BYTES):  # a device may have no end
                data += chunk
                if len(data) > _MAX_TEXT_BYTES:
                    raise FileError(f"Cannot read {path}: it is larger than {_MAX_TEXT_BYTES >> 20} MiB, and no such file is.")
        return data.decode()
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"Cannot read {path}: it is not a text file ({error.reason} at byte {error.start}).") from error


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that is written by appending; an incomplete last line is cut off. Raises FileError."""
    try:
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            with path.open("r+b") as stream:
                stream.truncate(end)
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    return data[:end].split(b"\n")[:-1]


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for temporary files, and delete it with its content at the end. Raises FileError if it cannot be made.

    Args:
        parent: folder in which to make it, under a hidden name; None for the system's folder of temporary files.
    """
    name = f"placeit-{secrets.token_hex(8)}"
    folder = Path(tempfile.gettempdir(), name) if parent is None else parent / f".{name}"
    delete = functools.partial(shutil.rmtree, folder, ignore_errors=True)
    unregister = at_end(delete)
    try:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            how = "Set TMPDIR to another one." if parent is None else "Choose another path."
            raise FileError(f"Cannot make the folder {folder}: {error.strerror or error}. {how}") from error
        yield folder
    finally:
        delete()
        unregister()


def own_folder(folder: Path, *, group: bool = False) -> int:
    """Open a folder to which no other user can write, and return its descriptor; a missing folder is made.

    Operations by the descriptor happen in that folder, even if its path leads elsewhere later.

    Args:
        folder: path of the folder.
        group: whether its group may write there.

    Raises:
        FileError: the path is a link or no folder, the folder belongs to another user, other users may write to it, or it
            cannot be made or opened.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        reason = "it is a link, or no folder" if error.errno in (errno.ENOTDIR, errno.ELOOP) else error.strerror or str(error)
        raise FileError(f"The folder {folder} cannot be used: {reason}. Remove it, or choose another place.") from error
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or status.st_mode & (0o002 if group else 0o022):
            raise FileError(
                f"The folder {folder} cannot be used: it belongs to another user, or others may write there. Remove it, or "
                "choose another place."
            )
    except BaseException:
        os.close(handle)
        raise
    return handle


def user_folder(path: str) -> Path:
    """Replace a leading ``~`` of a path by the home folder. Raises FileError if the user has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileError(f"{path} is in a home folder, and this user has none: set HOME.") from error


def cache_folder() -> Path:
    """Return the folder of the cost cache: ``$PLACEIT_CACHE``, ``$XDG_CACHE_HOME/placeit`` or ``~/.cache/placeit``.

    The first of these that is set is used. Raises FileError if it is in a home folder, and the user has none.
    """
    if own := os.environ.get("PLACEIT_CACHE"):
        return user_folder(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification says to ignore relative paths
    return (Path(shared) if Path(shared).is_absolute() else user_folder("~/.cache")) / "placeit"
