"""Files that commands read and write, checked before any work is done for them."""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from placeit.errors import FileError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["check_outputs", "read_tensors", "write_tensors"]


_PROBE = 4096


def check_outputs(*outputs: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Check that files can be written, before hours are spent on what is to be in them; None is a file not asked for.

    Raises:
        FileError: a folder is missing or read-only, the disk is full, or the path is that of a folder.
        UsageError: the file is also read, or is to be written twice.
    """
    taken = [path.resolve() for path in inputs if path is not None]
    for path in outputs:
        if path is None:
            continue
        if path.resolve() in taken:
            raise UsageError(f"{path} is named twice: what is written there would replace what is read or written before.")
        taken.append(path.resolve())
        if path.is_dir():
            raise FileError(f"Cannot write {path}: it is a folder; name a file in it.")
        try:
            with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent) as probe:
                probe.write(bytes(_PROBE))  # an empty file fits on a full disk
                probe.flush()
        except OSError as error:
            raise FileError(f"Cannot write {path}: {error.strerror or error}. Choose another place for it.") from error


def read_tensors(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read the arrays of a NumPy archive (``.npz``), by name. Raises FileError; nothing is unpickled."""
    try:
        # not numpy.load, which leaves the file open when it is no archive
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _read(archive, name) for name in archive.namelist()}
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise FileError(f"{path} is not a NumPy archive (.npz) of plain arrays: {str(error).rstrip('.')}.") from error


def _read(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    import numpy as np

    with archive.open(name) as stream:
        array: NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def write_tensors(path: Path, tensors: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays as a NumPy archive, in one step. Raises FileError."""
    import numpy as np

    from placeit.files import replacing

    # not numpy.savez, which takes no array named 'file'
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(tensor), allow_pickle=False)
