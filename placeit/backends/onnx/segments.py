"""ONNX files that OpenVINO has read, for clusters in which ONNX Runtime drives devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Model
from placeit.backends.onnx.alone import for_onnx_alone
from placeit.backends.onnx.joined import JoinedModel, join
from placeit.backends.onnx.last_logits import keep_last_logits
from placeit.backends.onnx.reading import read_onnx
from placeit.backends.onnx.whole import FromOnnxFile
from placeit.backends.onnx_file import read_plain
from placeit.backends.openvino.inputs import Sizes
from placeit.backends.openvino.last_logits import LAST
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ModelError
from placeit.devices.kinds import kind_of
from placeit.devices.onnxruntime import has_onnxruntime

__all__ = ["OnnxModel", "for_onnxruntime", "with_onnx"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class OnnxModel(FromOnnxFile, JoinedModel):
    """An ONNX file read by OpenVINO, with segments also as ONNX models."""

    def prepared(self, cluster: Cluster, graph: str = "") -> Model:
        """Return the model for a cluster in which ONNX Runtime drives devices. Raises DeviceError."""
        takes = any("onnx" in kind_of(device).formats for device in cluster.devices)
        return for_onnxruntime(self, cluster, graph) if takes else self

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        """Return a function that runs the whole model in ONNX Runtime, since OpenVINO's integers have 32 bits only.

        If ONNX Runtime cannot run it, or it has state, OpenVINO does, unless operators on quantised numbers are not the same
        there.

        Raises:
            DeviceError: neither runtime can run it.
        """
        if self.states:
            return OpenVinoModel.reference(self, device, precision)
        try:
            return self.of_file().reference(device, precision)
        except DeviceError:  # of the unchanged file; the model in memory has no repeated names, for example
            if self.parts.covers:
                with contextlib.suppress(DeviceError):
                    return JoinedModel.reference(self, device, precision)
            if self.rounds and has_onnxruntime():
                raise
            return OpenVinoModel.reference(self, device, precision)


def with_onnx(model: OpenVinoModel) -> OnnxModel:
    """Return a model with its ONNX file read again, for ONNX Runtime.

    Raises:
        DeviceError: the model does not come from an ONNX file, or the file does not exist any more.
    """
    if isinstance(model, OnnxModel):
        return model
    if model.path.suffix.lower() != ".onnx":
        raise DeviceError(
            f"ONNX Runtime runs ONNX models, and {model.path} is not an ONNX model: choose devices that OpenVINO "
            "drives, or start from the ONNX file of the model."
        )
    try:
        proto = read_plain(model.path, in_place=True)
    except (OSError, ModelError) as error:
        raise DeviceError(f"ONNX Runtime cannot be given {model.path}, which OpenVINO reads: {error}") from error
    if LAST in model.graph.index:
        keep_last_logits(proto)
    return join(OnnxModel, model, proto)


def for_onnxruntime(model: OpenVinoModel, cluster: Cluster, graph: str = "") -> Model:
    """Return a model that OpenVINO has read, for a cluster in which ONNX Runtime drives devices.

    With open sizes or state, the ops of OpenVINO's graph also read what they read in the ONNX file only, unless OpenVINO's
    graph is wanted. Else, if ONNX Runtime drives all devices, and the ONNX file has no tensors at some borders of OpenVINO's
    graph, the result has the file's own graph. On a single device the model is run whole, unless another graph is wanted.

    Raises:
        DeviceError: the model does not come from an ONNX file, or the file does not exist any more.
    """
    joined: JoinedModel = with_onnx(model)
    own = graph in (model.graph.structure, model.graph.hash)
    if (model.has_open_sizes or model.states) and not joined.parts.covers and not own:
        parts = joined.parts.reading_all()
        joined = replace(joined, parts=parts, graph=parts.graph)
    if all({*kind_of(device).formats} == {"onnx"} for device in cluster.devices):
        joined = for_onnx_alone(joined)
    if joined.parts.covers or any("onnx" not in kind_of(device).formats for device in cluster.devices):
        return joined
    if len(cluster) == 1 and (own or not graph) and not model.states:
        return replace(joined.whole_file("onnx"), together=(model.graph.names,))
    if model.has_open_sizes or model.states:  # the file's own graph is for one size, and without state
        return joined
    with contextlib.suppress(ModelError):
        alone = read_onnx(model.path, Sizes({spec.name: spec.shape for spec in model.inputs}))
        return alone if model.given is None else alone.with_inputs(model.given)
    return joined
