"""Read ONNX models without their weights, which stay in files: a serialised model has at most 2 GB, and copies take memory."""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeit.core.errors import FileError
from placeit.core.files import temporary_folder
from placeit.core.protobuf import LENGTH_DELIMITED, field_head, message_fields

if TYPE_CHECKING:
    import onnx

__all__ = ["OnnxFile", "folder_of", "front_end_source", "note_folder", "read_proto", "session_source"]

_FOLDER = "placeit.folder"  # metadata key for the folder of a model's weights
_INITIALIZERS, _RAW_DATA = (7, 5), 9  # field numbers of a model's graph and its initializers, and of a tensor's bytes
_MAX_READ = 1 << 16  # most bytes of a weight that is read: sizes and axes, whose values matter


@dataclass(frozen=True)
class OnnxFile:
    """A whole ONNX file as a segment for ONNX Runtime.

    Attributes:
        model: path of the file, or its content.
        inputs: names of its inputs, in the order of the segment's inputs.
        outputs: names of its outputs, in the order of the segment's outputs.
    """

    model: str | bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def ByteSize(self) -> int:  # noqa: N802 (the name in onnx.ModelProto)
        """Return the size of the model in bytes."""
        return len(self.model) if isinstance(self.model, bytes) else Path(self.model).stat().st_size


def read_proto(path: Path, *, in_place: bool = False) -> onnx.ModelProto:
    """Read an ONNX file without the large weights that are in other files.

    Args:
        path: the file.
        in_place: whether large weights that are in the file itself stay there as well. The model then refers to the file.

    Raises:
        OSError, ValueError, DecodeError, ValidationError: under the conditions of ``onnx.load``.
    """
    import onnx
    from onnx.external_data_helper import load_external_data_for_model, uses_external_data

    model = _without_weights(path) if in_place and not path.is_symlink() else onnx.load(path, load_external_data=False)
    external = filter(uses_external_data, model.graph.initializer)
    large = [tensor for tensor in external if int(_location_of(tensor).get("length", _MAX_READ + 1)) > _MAX_READ]
    for tensor in large:
        if Path(_location_of(tensor).get("location", "/")).is_absolute():
            raise ValueError(f"the weight '{tensor.name}' is in no file beside {path.name}")
        tensor.data_location = onnx.TensorProto.DEFAULT
    folder = _without_links(model.graph, os.path.realpath(path.parent))
    load_external_data_for_model(model, folder)
    for tensor in large:
        tensor.data_location = onnx.TensorProto.EXTERNAL
    note_folder(model, folder)
    return model


def _without_links(graph: onnx.GraphProto, folder: str) -> str:
    """Replace names of links to weights by names of their targets, since readers refuse links.

    Args:
        graph: the graph; it is changed.
        folder: folder of the model, to which names of files are relative.

    Returns:
        The folder to which the names are relative now.
    """
    tensors = [tensor for tensor in _tensors(graph) if "location" in _location_of(tensor)]
    real = {name: os.path.realpath(Path(folder, name)) for name in {_location_of(tensor)["location"] for tensor in tensors}}
    outside = any(Path(name).is_absolute() or ".." in Path(name).parts for name in real)  # readers refuse such names
    if outside or all(file == str(Path(folder, name)) for name, file in real.items()):
        return folder
    common = os.path.commonpath([str(Path(file).parent) for file in real.values()])
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = os.path.relpath(real[entry.value], common)
    return common


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants of a graph and of the bodies of its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for body in (attribute.g, *attribute.graphs):
                yield from _tensors(body)


def _without_weights(path: Path) -> onnx.ModelProto:
    """Read an ONNX file whose large weights stay in the file, as external data of the model."""
    import onnx

    numbers = itertools.count()  # of initializers
    weights: dict[int, tuple[int, int]] = {}  # offset and size in bytes, by number of the initializer
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:

        def without_data(begin: int, end: int, descend: tuple[int, ...]) -> bytes:
            """Return a message without the large weights in it; ``descend`` are the field numbers that lead to initializers."""
            fields, at, tensor = [], begin, -1 if descend else next(numbers)
            for number, kind, start, stop in message_fields(data, begin, end):
                delimited = kind == LENGTH_DELIMITED
                if delimited and descend and number == descend[0]:
                    inner = without_data(start, stop, descend[1:])
                    fields += [field_head(number, len(inner)), inner]
                elif delimited and not descend and number == _RAW_DATA and stop - start > _MAX_READ:
                    weights[tensor] = start, stop - start
                else:
                    fields.append(data[at:stop])
                at = stop
            return b"".join([*fields, data[at:end]])

        model: onnx.ModelProto = onnx.ModelProto.FromString(without_data(0, len(data), _INITIALIZERS))
    for tensor, (offset, size) in weights.items():
        weight = model.graph.initializer[tensor]
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", path.name), ("offset", str(offset)), ("length", str(size))):
            weight.external_data.add(key=key, value=value)
    return model


def note_folder(model: onnx.ModelProto, folder: str | None) -> None:
    """Record the folder of a model's weights in the model, if some of them are in files."""
    from onnx.external_data_helper import uses_external_data

    if folder is not None and any(map(uses_external_data, model.graph.initializer)):
        model.metadata_props.add(key=_FOLDER, value=folder)


def folder_of(model: onnx.ModelProto) -> str | None:
    """Return the folder of a model's weights; None if all of them are in the model."""
    return next((entry.value for entry in model.metadata_props if entry.key == _FOLDER), None)


def session_source(model: str | bytes | onnx.ModelProto, options: Any) -> str | bytes:
    """Return the path or content from which ONNX Runtime opens a model.

    Args:
        model: path of a file, a serialised model, or a model whose weights may be in files.
        options: session options; the location of weights is added to them.
    """
    if isinstance(model, str):
        return model
    # a serialised model may come from anywhere: it must not make ONNX Runtime read files of this machine
    folder = os.devnull if isinstance(model, bytes) else folder_of(model)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return model if isinstance(model, bytes) else bytes(model.SerializeToString())


@contextlib.contextmanager
def front_end_source(model: onnx.ModelProto, *, links: bool = False) -> Iterator[str | io.BytesIO]:
    """Yield a model for OpenVINO: its bytes or, if weights are in files, its path in a temporary folder with these files.

    Args:
        model: the model.
        links: whether a file of weights that cannot be linked is an error; else it is copied.

    Raises:
        FileError: there is no room for temporary files, or a file cannot be linked.
    """
    folder = folder_of(model)
    if folder is None:
        yield io.BytesIO(model.SerializeToString())
        return
    names = {_location_of(tensor)["location"] for tensor in model.graph.initializer if tensor.external_data}
    with temporary_folder() as temporary:
        copy = temporary / f"{secrets.token_hex(8)}.onnx"
        try:
            copy.write_bytes(model.SerializeToString())
            for name in names:
                _link_or_copy(Path(folder, name), temporary / name, links=links)
        except OSError as error:
            raise FileError(
                f"Cannot copy weights to {temporary}: {error.strerror or error}. Set TMPDIR to a folder with more room."
            ) from error
        yield str(copy)


def _link_or_copy(file: Path, target: Path, *, links: bool) -> None:
    """Make a hard link to a file, or copy it. A symbolic link would not do: OpenVINO reads only inside of a model's folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(os.path.realpath(file), target)
    except OSError:  # another file system, or another user's file
        if links:
            raise
        shutil.copyfile(file, target)


def _location_of(tensor: onnx.TensorProto) -> dict[str, str]:
    """Return where the external data of a tensor is: ``location``, ``offset`` and ``length``."""
    return {entry.key: entry.value for entry in tensor.external_data}
