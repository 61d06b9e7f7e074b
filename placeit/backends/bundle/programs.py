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

__all__ = ["Program", "write_program"]

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
    cut = model.segment(form, *part)
    if isinstance(cut, OnnxFile):
        proto, names = read_proto(Path(str(cut.model))), (cut.inputs, cut.outputs)
    else:
        proto = cut
        names = tuple(value.name for value in proto.graph.input), tuple(value.name for value in proto.graph.output)
    (folder / f"{stem}.onnx").write_bytes(_with_weights(proto, model.path).SerializeToString())
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


def _with_weights(proto: Any, path: Path) -> Any:
    """Return an ONNX model with its weights from files included. Raises ModelError if it is too large then."""
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
            f"A segment of {path} for ONNX Runtime has {whole.ByteSize() / 1e9:.1f} GB, and a serialised ONNX model has "
            "2 GB at most: place it on devices that OpenVINO drives, or on more devices."
        )
    return whole
