"""Segments as files and back, in each format: OpenVINO IR, ONNX, and the graph and weights of a PyTorch module."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from placeit.backends.base import Format
from placeit.backends.onnx_external import OnnxFile
from placeit.backends.openvino.ir import write_ir
from placeit.core.errors import DeviceError, ModelError
from placeit.core.files import temporary_folder
from placeit.devices.openvino import explaining, openvino_core
from placeit.runtime.devices.base import BufferSpec

__all__ = ["Package", "Part", "encode"]

_MIN_PIECE_BYTES = 1 << 12
"""Size of the smallest weight that is sent as a separate piece."""
_DATA = re.compile(r'<data\b[^>]*\boffset="(\d+)"[^>]*\bsize="(\d+)"')


class Part(NamedTuple):
    """A part of a file.

    Attributes:
        data: its bytes; empty if it is a piece of weights.
        piece: SHA-256 of the piece of weights; empty if the bytes are in ``data``.
    """

    data: bytes = b""
    piece: str = ""


@dataclass(frozen=True)
class Package:
    """A segment or another program, as files without large weights.

    Attributes:
        form: format of the program.
        files: the parts of each file.
        names: names of the inputs and of the outputs, if the runtime finds them by name; None if it finds them by position.
        variables: names of the variables that hold the state.
        inputs: inputs of the segment; empty for any other program.
        outputs: outputs of the segment; empty for any other program.
    """

    form: Format
    files: tuple[tuple[Part, ...], ...]
    names: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    variables: tuple[str, ...] = ()
    inputs: tuple[BufferSpec, ...] = ()
    outputs: tuple[BufferSpec, ...] = ()

    @property
    def pieces(self) -> tuple[str, ...]:
        """SHA-256 of the pieces that its weights are made of, in order."""
        return tuple(part.piece for file in self.files for part in file if part.piece)

    @property
    def identity(self) -> str:
        """SHA-256 of its content."""
        return hashlib.sha256(repr((self.form, self.files, self.names)).encode()).hexdigest()

    def program(self, pieces: Mapping[str, bytes]) -> Any:
        """Return the program in its format, with ``pieces`` of its weights. Raises DeviceError if it cannot be read."""
        files = [b"".join(pieces[part.piece] if part.piece else part.data for part in file) for file in self.files]
        match self.form:
            case "openvino":
                with explaining("OpenVINO cannot read it"):
                    return openvino_core().read_model(files[0], files[1])
            case "onnx":
                import onnx

                return onnx.ModelProto.FromString(files[0]) if self.names is None else OnnxFile(files[0], *self.names)
            case "torch":
                from placeit.backends.torch.portable import from_files

                return from_files(files, [file[0].piece if len(file) == 1 else "" for file in self.files])


def encode(form: Format, program: Any, inputs: int | None = None) -> tuple[Package, dict[str, bytes]]:
    """Pack a program; return the package, and the pieces of its weights by SHA-256.

    Args:
        form: format of the program.
        program: a segment as :meth:`placeit.backends.base.Model.segment` returns it, or another program.
        inputs: number of inputs of the segment; further inputs of an ONNX model are states. None if it has no states.

    Raises:
        DeviceError: the program is too large for its format.
        FileError: there is no room for temporary files.
    """
    match form:
        case "openvino":
            return _from_openvino(program)
        case "onnx":
            return _from_onnx(program, inputs)
        case "torch":
            return _from_torch(program)


def _from_openvino(model: Any) -> tuple[Package, dict[str, bytes]]:
    # names of OpenVINO's states lack this suffix
    variables = tuple(variable.info.variable_id.partition("/id=")[0] for variable in model.get_variables())
    with temporary_folder() as folder:
        write_ir(model, folder / "segment.xml")
        text, data = (folder / "segment.xml").read_bytes(), (folder / "segment.bin").read_bytes()
    weights = [(int(match[1]), int(match[1]) + int(match[2])) for match in _DATA.finditer(text.decode())]
    pieces: dict[str, bytes] = {}
    return Package("openvino", ((Part(text),), _split(data, weights, pieces)), variables=variables), pieces


def _from_onnx(program: Any, inputs: int | None) -> tuple[Package, dict[str, bytes]]:
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
    return Package("onnx", (_split(data, weights, pieces),), names if isinstance(program, OnnxFile) else None, states), pieces


def _from_torch(module: Any) -> tuple[Package, dict[str, bytes]]:
    from placeit.backends.torch.portable import to_files
    from placeit.backends.torch.state import state_updates

    pieces: dict[str, bytes] = {}
    graph, *weights = to_files(module)
    files = ((Part(graph),), *(_split(data, [(0, len(data))], pieces) for data in weights))
    return Package("torch", files, variables=tuple(state_updates(module))), pieces


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
