"""Segments as files and back, in each format: OpenVINO IR, ONNX, and the graph and weights of a PyTorch module."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from placeit.backends.base import Format
from placeit.backends.onnx_external import OnnxFile
from placeit.backends.openvino.ir import write_ir
from placeit.core.errors import DeviceError, ModelError
from placeit.core.files import temporary_folder
from placeit.devices.openvino import explaining, openvino_core

__all__ = ["Encoded", "Names", "Part", "decode", "encode"]

_MIN_PIECE_BYTES = 1 << 12
"""Size of the smallest weight that is sent as a separate piece."""
_DATA = re.compile(r'<data\b[^>]*\boffset="(\d+)"[^>]*\bsize="(\d+)"')

Names = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of the inputs and of the outputs, in the order of the segment."""


class Part(NamedTuple):
    """A part of a file.

    Attributes:
        data: its bytes; empty if it is a piece of weights.
        piece: SHA-256 of the piece of weights; empty if the bytes are in ``data``.
    """

    data: bytes = b""
    piece: str = ""


class Encoded(NamedTuple):
    """A segment as files.

    Attributes:
        files: the parts of each file.
        pieces: pieces of weights, by SHA-256.
        names: names of inputs and outputs, if its runtime finds them by name; None if it finds them by position.
        variables: names of the variables that hold its state.
    """

    files: tuple[tuple[Part, ...], ...]
    pieces: dict[str, bytes]
    names: Names | None = None
    variables: tuple[str, ...] = ()


def encode(form: Format, program: Any, inputs: int | None = None) -> Encoded:
    """Return a segment, which :meth:`placeit.backends.base.Model.segment` made, as files.

    Args:
        form: its format.
        program: the segment.
        inputs: number of its inputs; further inputs of an ONNX model are states. None if it has no states.

    Raises:
        DeviceError: it is too large for its format.
        FileError: there is no room for temporary files.
    """
    match form:
        case "openvino":
            return _from_openvino(program)
        case "onnx":
            return _from_onnx(program, inputs)
        case "torch":
            return _from_torch(program)


def decode(form: Format, files: Sequence[bytes], names: Names | None, keys: Sequence[str]) -> Any:
    """Return a segment in the form that a runtime compiles.

    Args:
        form: its format.
        files: its files.
        names: as in :class:`Encoded`.
        keys: for each file the SHA-256 of the only piece that it is made of; empty for files of several parts.

    Raises:
        DeviceError: the runtime of this process does not read it.
    """
    match form:
        case "openvino":
            with explaining("OpenVINO cannot read it"):
                return openvino_core().read_model(files[0], files[1])
        case "onnx":
            import onnx

            return onnx.ModelProto.FromString(files[0]) if names is None else OnnxFile(files[0], *names)
        case "torch":
            from placeit.backends.torch.portable import from_files

            return from_files(files, keys)


def _from_openvino(model: Any) -> Encoded:
    # names of OpenVINO's states lack this suffix
    variables = tuple(variable.info.variable_id.partition("/id=")[0] for variable in model.get_variables())
    with temporary_folder() as folder:
        write_ir(model, folder / "segment.xml")
        text, data = (folder / "segment.xml").read_bytes(), (folder / "segment.bin").read_bytes()
    weights = [(int(match[1]), int(match[1]) + int(match[2])) for match in _DATA.finditer(text.decode())]
    pieces: dict[str, bytes] = {}
    return Encoded(((Part(text),), _split(data, weights, pieces)), pieces, variables=variables)


def _from_onnx(program: Any, inputs: int | None) -> Encoded:
    from placeit.backends.bundle.programs import self_contained

    try:
        proto, names = self_contained(program, "A model")
    except ModelError as error:
        raise DeviceError(str(error)) from error
    data, weights, at = proto.SerializeToString(), [], 0
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) >= _MIN_PIECE_BYTES and (found := data.find(tensor.raw_data, at)) >= 0:
            at = found + len(tensor.raw_data)
            weights.append((found, at))
    pieces: dict[str, bytes] = {}
    states = () if inputs is None else names[0][inputs:]
    return Encoded((_split(data, weights, pieces),), pieces, names if isinstance(program, OnnxFile) else None, states)


def _from_torch(module: Any) -> Encoded:
    from placeit.backends.torch.portable import to_files
    from placeit.backends.torch.state import state_updates

    pieces: dict[str, bytes] = {}
    graph, *weights = to_files(module)
    files = ((Part(graph),), *(_split(data, [(0, len(data))], pieces) for data in weights))
    return Encoded(files, pieces, variables=tuple(state_updates(module)))


def _split(data: bytes, weights: Sequence[tuple[int, int]], pieces: dict[str, bytes]) -> tuple[Part, ...]:
    """Split a file into parts at the ends of large weights; parts of at least 4 KiB are added to ``pieces``."""
    cuts = {0, len(data), *(end for one in weights if one[1] - one[0] >= _MIN_PIECE_BYTES for end in one)}
    parts = []
    for begin, end in itertools.pairwise(sorted(cut for cut in cuts if cut <= len(data))):
        part = data[begin:end]
        if len(part) < _MIN_PIECE_BYTES:
            parts.append(Part(part))
        else:
            name = hashlib.sha256(part).hexdigest()
            pieces[name] = part
            parts.append(Part(piece=name))
    return tuple(parts)
