"""Model formats: read a file as a task graph, and cut parts of the graph into segments that devices can run.

May import ``planning``, ``simulator``, ``devices`` and ``core``. Read :mod:`~placeit.backends.base` first,
then the folder of a format.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from placeit.backends.folder import NAMES, in_folder, is_folder
from placeit.core.errors import FileError, ModelError, UsageError
from placeit.core.nearest import nearest
from placeit.core.registry import entry_table, load_entry

if TYPE_CHECKING:
    import torch

    from placeit.backends.base import Model

__all__ = ["Module", "check_path", "files_of", "load", "programs", "suffixes"]

Module: TypeAlias = "torch.nn.Module | torch.export.ExportedProgram"
"""A PyTorch module or an exported program."""

_GROUP = "placeit.backends"
_BUILT_IN = {
    "onnx": "placeit.backends.onnx.load:load",
    "xml": "placeit.backends.openvino.reader:load",
    "pt2": "placeit.backends.torch.model:load [torch]",
}
_BUILT_IN_FILES = (_BUILT_IN["onnx"], _BUILT_IN["xml"])
_PROGRAMS = "placeit.programs"
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin")


def suffixes() -> dict[str, EntryPoint]:
    """Return the loader of each file suffix (``.onnx``): built-in loaders, and loaders of installed plug-ins.

    A plug-in names a suffix without its dot in the entry-point group ``placeit.backends`` and points to a function like
    :func:`placeit.backends.openvino.reader.load`.

    Raises:
        UsageError: two packages claim one suffix.
    """
    return {f".{name}": point for name, point in entry_table("backend", _GROUP, _BUILT_IN).items()}


def programs() -> dict[str, EntryPoint]:
    """Return the functions that make tensor programs, by the program's name.

    An entry point of the group ``placeit.programs`` points to a function. It takes the program's name with its options
    (``chain-mm:shards=4``) and returns a :class:`~placeit.backends.base.Model`.

    Raises:
        UsageError: two packages use the same name.
    """
    return entry_table("tensor program", _PROGRAMS, {})


def load(
    path: str | Path | Module,
    *,
    example: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    sample_shapes: Mapping[str, Sequence[int]] | None = None,
    state: Mapping[str, str] | Literal["none"] | None = None,
    logits: Literal["last", "all"] = "last",
    context: int | None = None,
    **options: Any,
) -> Model:
    """Read a model file with the backend for its suffix, export a PyTorch module, or make a tensor program by name.

    Args:
        path: the file; a folder that contains it, as on model hubs (``openvino_model.xml`` beside files of a tokenizer); a
            PyTorch module or exported program; or the name of a tensor program (:func:`programs`), with options, such as
            ``chain-mm:shards=4``.
        example: positional arguments for a call of a PyTorch module, or a single tensor. They fix the sizes of its inputs,
            except for ranges in ``input_shapes``.
        kwargs: keyword arguments for the same call.
        sample_shapes: shapes of the inputs that the model is to run on, by name. They are used for sizes that an ONNX file or
            an IR leaves open and that no option gives.
        state: outputs of an ONNX file or an IR that hold the next value of an input, by input: each pair becomes state of the
            model. ``"none"`` for no such state.
        logits: tokens of a step for which a decoder with state, in an ONNX file or an IR, computes logits.
        context: number of tokens of the longest text of such a decoder. It determines the shapes of all its inputs.
        options: passed to the backend; see :func:`placeit.backends.openvino.reader.load`.

    Raises:
        ModelError: no backend reads such files, or the file holds no model that its backend can read.
        FileError: the file is missing or cannot be read.
        UsageError: a tensor program does not have an option, or is given sizes of inputs; or ``state``, ``context`` or
            arguments of a call are given for a format that does not take them.
    """
    loaders = suffixes()
    call = {} if example is None and kwargs is None else {"example": example, "kwargs": kwargs}
    if isinstance(path, str | Path):
        path = in_folder(Path(path)) if is_folder(path) else path
        label, suffix, name = str(path), Path(path).suffix.lower(), str(path).partition(":")[0]
    elif "torch" in sys.modules:
        label, suffix, name = type(path).__name__, ".pt2", ""
    else:
        raise UsageError(f"A {type(path).__name__} is no model: give the path of a file, or a PyTorch module.")
    if call and suffix != ".pt2":
        raise UsageError(f"{label}: 'example' and 'kwargs' are arguments of PyTorch modules: give 'inputs' for other models.")
    built_in = suffix in loaders and loaders[suffix].value in _BUILT_IN_FILES
    makers = {} if suffix in loaders else programs()
    if suffix not in loaders and name not in makers:
        if is_folder(label):
            raise ModelError(f"{label} is a folder without a model: give a file, or a folder with {', '.join(NAMES)}.")
        raise _unknown(label, loaders, makers)
    if state not in (None, "none") and not built_in:
        raise UsageError(f"{label}: only of ONNX files and OpenVINO IR can inputs be kept as state.")
    if context is not None and not built_in:
        raise UsageError(f"{label}: only for decoders in ONNX files and OpenVINO IR can a context stand for sizes.")
    if name in makers:
        program: Model = load_entry("tensor program", makers, name)(label)
        if options.get("input_shapes") or options.get("batch") is not None:
            raise UsageError(
                f"{label}: the sizes of a tensor program are among its options, as in chain-mm:size=512, not of inputs."
            )
        return program
    if built_in:
        options |= {"sample_shapes": sample_shapes, "state": state, "logits": logits, "context": context}
    model: Model = load_entry("backend", loaders, suffix)(path, **call, **options)
    return model


def check_path(path: Path) -> None:
    """Check that a path names a model that a backend may read: a file, a folder with one, or a tensor program.

    Raises:
        FileError: the file does not exist.
        ModelError: no backend reads files with its suffix.
    """
    path = in_folder(path)
    loaders, makers = suffixes(), programs()
    if path.suffix.lower() not in loaders and str(path).partition(":")[0] not in makers:
        raise _unknown(path, loaders, makers)
    if path.suffix.lower() in loaders and not path.exists():
        raise FileError(f"Cannot read {path}: {os.strerror(errno.ENOENT)}.")


def _unknown(path: str | Path, loaders: Collection[str], makers: Collection[str]) -> ModelError:
    """Return the error for a path whose suffix is not in ``loaders`` and whose name is not in ``makers``."""
    suffix, hint = Path(path).suffix, ""
    listed = ", ".join(sorted(loaders))
    if suffix.lower() == ".gguf":
        return ModelError(
            f"{path} is a GGUF file, which OpenVINO does not read: export the model that it was made from with `optimum-cli "
            "export openvino --model NAME FOLDER --weight-format int4` (pip install 'optimum-intel[openvino]'), and give the "
            "folder."
        )
    if suffix.lower() in _WEIGHTS:
        hint = (
            " Such files hold weights and no program: load them into their module and write that with "
            "torch.export.save(torch.export.export(module, inputs), 'model.pt2')."
        )
    elif suffix.lower() == ".placeit":
        hint = " This is a bundle, whose model is placed already: `placeit run` takes it, and placeit.load in Python."
    elif not suffix and makers:
        close = nearest(str(path).partition(":")[0], makers)
        hint = f" Tensor programs go by name: {', '.join(sorted(makers))}, with options as in chain-mm:shards=4{close}."
        if not os.path.exists(path):  # noqa: PTH110 (Path.exists raises for some names)
            return ModelError(f"{path}: there is no such file or folder; files of models are {listed}.{hint}")
    return ModelError(f"{path}: no backend reads '{suffix}' files; the known ones are {listed}.{hint}")


def files_of(path: str | Path) -> list[Path]:
    """Return the files of a model: the model file, and the files of its weights, whether or not they exist.

    The list has only the model file for a plug-in's format and for a damaged file, whose damage :func:`load` reports. It is
    empty for a tensor program.
    """
    name, path = str(path).partition(":")[0], in_folder(Path(path))
    match path.suffix.lower():
        case ".xml":
            return [path, path.with_suffix(".bin")]
        case ".onnx":
            from placeit.backends.onnx_file import external_files

            return [path, *external_files(path)]
        case _:
            return [] if name in programs() else [path]
