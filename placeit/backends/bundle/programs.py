"""Write segments into a bundle, in the formats that OpenVINO, ONNX Runtime and PyTorch read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placeit.backends.base import Format, Model
from placeit.backends.bundle.files import WEIGHTS
from placeit.backends.onnx_external import OnnxFile, folder_of, read_proto
from placeit.backends.openvino.ir import write_ir
from placeit.core.errors import ModelError

__all__ = ["Program", "SegmentFiles", "self_contained"]

_WEIGHTS = f"segments/weights{WEIGHTS}"
_ALIGNMENT = 64  # bytes to which weights are aligned in a file, as OpenVINO does
_CONSTANT = re.compile(rb'(type="Const"[^>]*>\s*<data\b[^>]*?\boffset=")(\d{1,19})(" size=")(\d{1,19})"')
"""Offset and size of a constant's value in the file of weights."""
_MAX_ONNX_BYTES = 2_000_000_000  # most bytes of a serialised ONNX model


@dataclass(frozen=True)
class Program:
    """A segment as files of a bundle.

    Attributes:
        files: names of the files.
        names: names of inputs and outputs in the program, if its runtime finds them by name; else empty.
    """

    files: tuple[str, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


class SegmentFiles:
    """Writes the files of a bundle's segments. Segments for OpenVINO share a file, which has equal weights once.

    Args:
        folder: folder of the bundle.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0  # segments written
        self._offsets: dict[bytes, int] = {}  # of weights in the shared file, by their digests
        (folder / "segments").mkdir()

    def write(self, model: Model, form: Format, part: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> Program:
        """Cut a segment out of a model and write it.

        Args:
            model: the model.
            form: format of the segment. Segments of PyTorch models may be converted to ``openvino``.
            part: ops, tensors that enter and tensors that leave, as for :meth:`placeit.backends.base.Model.segment`.

        Raises:
            DeviceError: this part cannot be cut out in this format.
            ModelError: it cannot be written.
            FileError: there is no room.
        """
        stem, self._count = f"segments/{self._count}", self._count + 1
        if form == "openvino":
            xml = self._folder / f"{stem}.xml"
            write_ir(_for_openvino(model, part), xml)
            self._share_weights(xml)
            return Program((f"{stem}.xml", _WEIGHTS))
        cut = model.segment(form, *part)
        if form == "torch":
            from placeit.backends.torch.bundled import write_segment

            write_segment(cut, self._folder / f"{stem}.pt2", model.path)
            return Program((f"{stem}.pt2",))
        proto, names = self_contained(cut, f"A segment of {model.path}")
        (self._folder / f"{stem}.onnx").write_bytes(proto.SerializeToString())
        return Program((f"{stem}.onnx",), names)

    def _share_weights(self, xml: Path) -> None:
        """Move the weights of an IR to the file that all segments share. Raises OSError."""
        own = xml.with_suffix(WEIGHTS)
        data = np.memmap(own, np.uint8, "r") if own.stat().st_size else np.empty(0, np.uint8)
        with (self._folder / _WEIGHTS).open("ab") as shared:

            def moved(found: re.Match[bytes]) -> bytes:
                start, size = int(found[2]), int(found[4])
                value = data[start : start + size]
                offset = self._offsets.get(key := hashlib.sha256(value.data).digest())
                if offset is None:
                    shared.write(bytes(-shared.tell() % _ALIGNMENT))
                    offset = self._offsets[key] = shared.tell()
                    shared.write(value.data)
                return b'%b%d%b%d"' % (found[1], offset, found[3], size)

            xml.write_bytes(_CONSTANT.sub(moved, xml.read_bytes()))
        own.unlink()


def _for_openvino(model: Model, part: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> Any:
    if "openvino" in model.formats:
        return model.segment("openvino", *part)
    from placeit.backends.torch.export import converted_segment
    from placeit.backends.torch.model import TorchModel

    if not isinstance(model, TorchModel):
        raise ModelError(
            f"Segments of {model.path} cannot be in a bundle: write it as ONNX or OpenVINO IR (`placeit export`), optimize and "
            "build that."
        )
    return converted_segment(model, "openvino", *part)


def self_contained(cut: Any, what: str) -> tuple[Any, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return a segment for ONNX Runtime as an ONNX model that contains its weights, and the names of its inputs and outputs.

    Args:
        cut: the segment, as :meth:`placeit.backends.base.Model.segment` returns it.
        what: its name in the message of an error.

    Raises:
        ModelError: it is too large for an ONNX model.
    """
    from onnx import ModelProto

    if isinstance(cut, OnnxFile):
        proto = ModelProto.FromString(cut.model) if isinstance(cut.model, bytes) else read_proto(Path(cut.model))
        return _with_weights(proto, what), (cut.inputs, cut.outputs)
    names = tuple(value.name for value in cut.graph.input), tuple(value.name for value in cut.graph.output)
    return _with_weights(cut, what), names


def _with_weights(proto: Any, what: str) -> Any:
    """Return a copy of an ONNX model that contains its weights."""
    from onnx import ModelProto
    from onnx.external_data_helper import load_external_data_for_model

    whole = ModelProto()
    whole.CopyFrom(proto)
    folder = folder_of(proto)
    if folder is not None:
        load_external_data_for_model(whole, folder)
        del whole.metadata_props[:]
    if whole.ByteSize() > _MAX_ONNX_BYTES:
        raise ModelError(
            f"{what} for ONNX Runtime has {whole.ByteSize() / 1e9:.1f} GB, and a serialised ONNX model has "
            "2 GB at most: place it on devices that OpenVINO drives, or on more devices."
        )
    return whole
