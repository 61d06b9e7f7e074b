"""Files of PyTorch programs to which pickles of placed modules refer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from placeit.backends.digest import file_stamp
from placeit.backends.torch.archive import UntrustedError, screen
from placeit.backends.torch.model import TorchModel, load
from placeit.backends.torch.tracing import as_model_error
from placeit.core.errors import FileError, UsageError
from placeit.core.files import cache_folder, check_regular, own_folder, temporary_folder

__all__ = ["read_stored", "stored"]


def stored(model: TorchModel) -> tuple[str, str]:
    """Return the path and the SHA-256 of a file with a model's program and weights.

    It is the file that the model was read from, if that has not changed since, or else ``programs/SHA-256.pt2`` in placeit's
    cache folder, which is written if it does not exist. Files there are never deleted.

    Raises:
        UsageError: reading the file could execute code (:func:`placeit.backends.torch.archive.screen`), or the model takes
            arguments of registered types, which have other names when the file is read.
        FileError: the file cannot be read or written.
        ModelError: PyTorch cannot write the program.
    """
    for kind in _container_types(model.program.call_spec.in_spec):
        if kind not in (tuple, list, dict, None):
            raise _refused(
                model, f"it takes a {kind.__name__}, and programs in files take tensors, lists, tuples and dictionaries"
            )
    try:
        if model.file is not None and file_stamp(model.path) == model.file:
            screen(model.path)
            return str(model.path.absolute()), _digest(model.path)
        folder = cache_folder() / "programs"
        os.close(own_folder(folder))
        with temporary_folder(folder) as draft:
            written = draft / "program.pt2"
            with as_model_error(f"Cannot write the program of {model.path}"):
                torch.export.save(model.program, written)
            screen(written)
            digest = _digest(written)
            return str(written.replace(folder.absolute() / f"{digest}.pt2")), digest
    except UntrustedError as error:
        raise _refused(model, f"reading its program could execute code: {error}") from error


def _refused(model: TorchModel, why: str) -> UsageError:
    return UsageError(
        f"The placed {model.path} cannot be pickled, because {why}. Write its placement (found.save('p.json')), and run the "
        "original module with it."
    )


def _container_types(spec: pytree.TreeSpec) -> Iterator[Any]:
    yield spec.type
    for child in spec.children():
        yield from _container_types(child)


def read_stored(path: str, digest: str, shapes: Mapping[str, Sequence[int | str]]) -> TorchModel:
    """Return the model of a file that :func:`stored` named.

    Args:
        path: of the file.
        digest: SHA-256 of the file.
        shapes: sizes of the inputs, by name; ranges stay open.

    Raises:
        FileError: the file is missing or has changed.
        ModelError: it is no program, or reading it could execute code.
    """
    file = Path(path)
    if _digest(file) != digest:
        raise FileError(f"{file} has changed since a placed module that refers to it was pickled: pickle the module again.")
    is_open = any(isinstance(size, str) for shape in shapes.values() for size in shape)
    return load(file, input_shapes=shapes if is_open else None)


def _digest(path: Path) -> str:
    check_regular(path)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise FileError(
            f"Cannot read {path}, the program of a pickled placed module: {error.strerror or error}. Restore the file, or "
            "pickle the module again."
        ) from error
