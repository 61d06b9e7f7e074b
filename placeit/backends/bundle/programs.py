"""Write segments of models into a bundle, as OpenVINO and ONNX Runtime read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placeit.backends.base import Format, Model
from placeit.backends.onnx_external import OnnxFile, folder_of, read_proto
from placeit.backends.openvino.ir import write_ir
from placeit.core.errors import ModelError

__all__ = ["Program", "self_contained", "write_program"]

_MOST_ONNX = 2_000_000_000  # most bytes of a serialised ONNX model


@dataclass(frozen=True)
class Program:
    """A segment as files of a bundle.

    Attributes:
        files: names of the files.
        names: names of inputs and outputs in the program, if its runtime finds them by name; else empty.
    """

    files: tuple[str, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def write_program(
    model: Model, form: Format, part: tuple[Sequence[int], Sequence[int], Sequence[int]], folder: Path, stem: str
) -> Program:
    """Cut a segment out of a model and write it to files.

    Args:
        model: the model.
        form: ``openvino`` or ``onnx``. Segments of PyTorch models are converted to ``openvino``.
        part: ops, tensors that enter and tensors that leave, as for :meth:`placeit.backends.base.Model.segment`.
        folder: folder of the bundle.
        stem: beginning of the names of the files.

    Raises:
        DeviceError: this part cannot be cut out in this format.
        ModelError: it cannot be written.
        FileError: there is no room.
    """
    (folder / stem).parent.mkdir(exist_ok=True)
    if form == "openvino":
        write_ir(_for_openvino(model, part), folder / f"{stem}.xml")
        return Program((f"{stem}.xml", f"{stem}.bin"))
    proto, names = self_contained(model.segment(form, *part), f"A segment of {model.path}")
    (folder / f"{stem}.onnx").write_bytes(proto.SerializeToString())
    return Program((f"{stem}.onnx",), names)


def _for_openvino(model: Model, part: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> Any:
    if "openvino" in model.formats:
        return model.segment("openvino", *part)
    from placeit.backends.torch.export import segment_for_openvino
    from placeit.backends.torch.model import TorchModel

    if not isinstance(model, TorchModel):
        raise ModelError(
            f"Segments of {model.path} cannot be in a bundle: write it as ONNX or OpenVINO IR (`placeit export`), optimize and "
            "build that."
        )
    return segment_for_openvino(model, *part)


def self_contained(cut: Any, what: str) -> tuple[Any, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return a segment for ONNX Runtime as an ONNX model that includes its weights, and the names of its inputs and outputs.

    Args:
        cut: the segment, as :meth:`placeit.backends.base.Model.segment` returns it.
        what: its name in the error.

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
    from onnx import ModelProto
    from onnx.external_data_helper import load_external_data_for_model

    whole = ModelProto()
    whole.CopyFrom(proto)
    where = folder_of(proto)
    if where is not None:
        load_external_data_for_model(whole, where)
        del whole.metadata_props[:]
    if whole.ByteSize() > _MOST_ONNX:
        raise ModelError(
            f"{what} for ONNX Runtime has {whole.ByteSize() / 1e9:.1f} GB, and a serialised ONNX model has "
            "2 GB at most: place it on devices that OpenVINO drives, or on more devices."
        )
    return whole
