"""Model formats: from a file to a task graph, and from parts of the graph to segments that devices can run.

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

from placeit.backends.folder import NAMES, in_folder
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
    """Return the function that makes each tensor program, by the program's name.

    An entry point of the group ``placeit.programs`` points to a function that takes the program's name with its options
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
        path: the file; a folder with it, as hubs have them (``openvino_model.xml`` beside files of a tokenizer); a PyTorch
            module or exported program; or the name of a tensor program (:func:`programs`), with options: ``chain-mm:shards=4``.
        example: positional arguments for a call of a PyTorch module, or a single tensor; they fix its sizes,
            except for ranges in ``input_shapes``.
        kwargs: keyword arguments for the same call.
        sample_shapes: shapes of the inputs that the model is to run on, by name. They are used for sizes that an ONNX file or
            an IR leaves open and that no option gives.
        state: outputs of an ONNX file or an IR that become the state of inputs, by input; ``"none"`` for no such state.
        logits: whether an ONNX file or an IR with state that takes tokens computes the logits of the last token of a step, or
            of all of them.
        context: tokens of the longest text of such a model, which stand for the shapes of all its inputs.
        options: passed to the backend; see :func:`placeit.backends.openvino.reader.load`.

    Raises:
        ModelError: no backend reads such files, or the file holds no model that its backend can read.
        FileError: the file is missing or cannot be read.
        UsageError: a tensor program does not have an option, or is given sizes of inputs; or state, or arguments of a call, are
            given for another format.
    """
    known = suffixes()
    called = {} if example is None and kwargs is None else {"example": example, "kwargs": kwargs}
    if not isinstance(path, str | Path):
        if "torch" not in sys.modules:
            raise UsageError(f"A {type(path).__name__} is no model: give the path of a file, or a PyTorch module.")
        options = {name: value for name, value in options.items() if value}
        exported: Model = load_entry("backend", known, ".pt2")(path, **called, **options)
        return exported
    path = in_folder(Path(path)) if Path(path).is_dir() else path
    suffix = Path(path).suffix
    if called and suffix.lower() != ".pt2":
        raise UsageError(f"{path}: 'example' and 'kwargs' are arguments of PyTorch modules: give 'inputs' for other models.")
    own = suffix.lower() in known and known[suffix.lower()].value in _BUILT_IN_FILES
    name = str(path).partition(":")[0]
    made = {} if suffix.lower() in known else programs()
    if suffix.lower() not in known and name not in made:
        if Path(path).is_dir():
            raise ModelError(f"{path} is a folder without a model: give a file, or a folder with {', '.join(NAMES)}.")
        raise _unknown(path, known, made)
    if state not in (None, "none") and not own:
        raise UsageError(f"{path}: only of ONNX files and OpenVINO IR can inputs be kept as state.")
    if context is not None and not own:
        raise UsageError(f"{path}: only for decoders in ONNX files and OpenVINO IR can a context stand for sizes.")
    if name in made:
        return _program(made, name, str(path), **options)
    if own:
        options |= {"sample_shapes": sample_shapes, "state": state, "logits": logits, "context": context}
    options |= called
    model: Model = load_entry("backend", known, suffix.lower())(path, **options)
    return model


def check_path(path: Path) -> None:
    """Check that a path names a model that a backend may read: a file, a folder with one, or a tensor program.

    Raises:
        FileError: the file does not exist.
        ModelError: no backend reads files with its suffix.
    """
    path = in_folder(path)
    known, made = suffixes(), programs()
    if path.suffix.lower() not in known and str(path).partition(":")[0] not in made:
        raise _unknown(path, known, made)
    if path.suffix.lower() in known and not path.exists():
        raise FileError(f"Cannot read {path}: {os.strerror(errno.ENOENT)}.")


def _unknown(path: str | Path, known: Collection[str], made: Collection[str]) -> ModelError:
    """Return the error for a path whose suffix no backend reads, given all suffixes and the names of all programs."""
    suffix, hint = Path(path).suffix, ""
    listed = ", ".join(sorted(known))
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
    elif not suffix and made:
        close = nearest(str(path).partition(":")[0], made)
        hint = f" Tensor programs go by name: {', '.join(sorted(made))}, with options as in chain-mm:shards=4{close}."
        if not Path(path).exists():
            return ModelError(f"{path}: there is no such file or folder; files of models are {listed}.{hint}")
    return ModelError(f"{path}: no backend reads '{suffix}' files; the known ones are {listed}.{hint}")


def _program(
    made: Mapping[str, EntryPoint], name: str, text: str, input_shapes: Any = None, batch: int | None = None, **_: Any
) -> Model:
    model: Model = load_entry("tensor program", made, name)(text)
    if input_shapes or batch is not None:
        raise UsageError(
            f"{text}: the sizes of a tensor program are among its options, as in chain-mm:size=512, not of inputs."
        )
    return model


def files_of(path: str | Path) -> list[Path]:
    """Return the files of a model: the named file, and the files of its weights, whether or not they exist.

    For a plug-in's format this is the named file only; for a tensor program the list is empty. For a damaged file, only the
    file itself is returned; :func:`load` reports the damage.
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
