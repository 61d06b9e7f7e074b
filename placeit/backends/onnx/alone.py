"""ONNX files for clusters in which ONNX Runtime drives all devices, without OpenVINO's copy of the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Format, fields_of
from placeit.backends.onnx.joined import JoinedModel
from placeit.backends.onnx.whole import FromOnnxFile
from placeit.backends.openvino.weights import without_weights
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError

__all__ = ["OnnxAlone", "for_onnx_alone"]


@dataclass(frozen=True, eq=False, kw_only=True)
class OnnxAlone(FromOnnxFile, JoinedModel):
    """An ONNX file with the task graph of OpenVINO's model, and segments as ONNX models only.

    The weights of ``ov_model`` have no values and take no memory: it is used for shapes, and must not be run.
    """

    @property
    def formats(self) -> frozenset[Format]:
        """The format of ONNX only."""
        return frozenset({"onnx"})

    def segment(self, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:
        """Cut a part out as an ONNX model; see :meth:`placeit.backends.base.Model.segment`."""
        if form != "onnx":
            raise DeviceError(f"{self.path} was opened for ONNX Runtime alone: open the file again for other devices.")
        return self.parts.cut(ops, enter, leave)

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        """Return a function that runs the whole model in ONNX Runtime. Raises DeviceError."""
        if not self.states:
            with contextlib.suppress(DeviceError):  # such as names that nodes share, which the model in memory does not have
                return self.of_file().reference(device, precision)
        return JoinedModel.reference(self, device, precision)


def for_onnx_alone(model: JoinedModel) -> OnnxAlone:
    """Return a model for ONNX Runtime alone, without OpenVINO's copy of the weights."""
    return OnnxAlone(**fields_of(model) | {"ov_model": without_weights(model.ov_model)})
