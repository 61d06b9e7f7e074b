"""ONNX files that OpenVINO has read, for clusters in which ONNX Runtime drives devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Format, Model
from placeit.backends.onnx.joined import JoinedModel, join
from placeit.backends.onnx.last_logits import keep_last_logits
from placeit.backends.onnx.reading import read_onnx
from placeit.backends.onnx.whole import FromOnnxFile
from placeit.backends.onnx_file import read_plain
from placeit.backends.openvino.inputs import Sizes
from placeit.backends.openvino.last_logits import LAST
from placeit.backends.openvino.model import OpenVinoModel
from placeit.backends.openvino.weights import without_weights
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ModelError
from placeit.devices.kinds import kind_of
from placeit.devices.onnxruntime import has_onnxruntime

__all__ = ["OnnxModel", "for_onnxruntime", "with_onnx"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class OnnxModel(FromOnnxFile, JoinedModel):
    """An ONNX file that OpenVINO has read, with segments also as ONNX models.

    Attributes:
        alone: whether ONNX Runtime drives all devices. Then segments are ONNX models only, and ``ov_model`` must not be run:
            its weights have no values and take no memory.
    """

    alone: bool = False

    @property
    def formats(self) -> frozenset[Format]:
        """The format of ONNX, and the format of OpenVINO unless the model is for ONNX Runtime alone."""
        return frozenset({"onnx"}) if self.alone else super().formats

    def segment(self, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:
        """Cut a part out; see :meth:`placeit.backends.base.Model.segment`."""
        if form not in self.formats:
            raise DeviceError(f"{self.path} was opened for ONNX Runtime alone: open the file again for other devices.")
        return super().segment(form, ops, enter, leave)

    def prepared(self, cluster: Cluster, graph: str = "") -> Model:
        """Return the model for a cluster in which ONNX Runtime drives devices. Raises DeviceError."""
        takes = any("onnx" in kind_of(device).formats for device in cluster.devices)
        return for_onnxruntime(self, cluster, graph) if takes and not self.alone else self

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        """Return a function that runs the whole model in ONNX Runtime, since OpenVINO's integers have 32 bits only.

        OpenVINO runs a model with state, and one that ONNX Runtime cannot run, unless the model :attr:`rounds` or is for ONNX
        Runtime alone.

        Raises:
            DeviceError: neither runtime can run it.
        """
        if not self.states:
            try:
                return self.of_file().reference(device, precision)
            except DeviceError:  # such as names that nodes share, which the model in memory does not have
                if self.parts.covers and not self.alone:
                    with contextlib.suppress(DeviceError):
                        return JoinedModel.reference(self, device, precision)
                if self.rounds and has_onnxruntime() and not self.alone:
                    raise
        return (JoinedModel if self.alone else OpenVinoModel).reference(self, device, precision)


def with_onnx(model: OpenVinoModel) -> OnnxModel:
    """Return a model that OpenVINO has read from an ONNX file with the file read again, for ONNX Runtime.

    Raises:
        DeviceError: the file cannot be read any more.
    """
    if isinstance(model, OnnxModel):
        return model
    try:
        proto = read_plain(model.path, in_place=True)
    except (OSError, ModelError) as error:
        raise DeviceError(f"ONNX Runtime cannot be given {model.path}, which OpenVINO reads: {error}") from error
    if LAST in model.graph.index:
        keep_last_logits(proto)
    return join(OnnxModel, model, proto)


def for_onnxruntime(model: OpenVinoModel, cluster: Cluster, graph: str = "") -> Model:
    """Return a model that OpenVINO has read from an ONNX file, for a cluster in which ONNX Runtime drives devices.

    The ONNX file may have no tensor at a border of OpenVINO's graph. Then, for a model with open sizes or state, ops of the
    graph also read the tensors that they read in the ONNX file only, unless OpenVINO's graph is wanted. For other models, if
    ONNX Runtime drives all devices, the result has an op for each node of the file; on a single device, the model is run whole
    unless another graph is wanted.

    Args:
        model: the model.
        cluster: the devices.
        graph: hash of the wanted task graph; empty for any.

    Raises:
        DeviceError: the file cannot be read any more.
    """
    joined = with_onnx(model)
    wants_graph = graph in (model.graph.structure, model.graph.hash)
    varies = model.has_open_sizes or bool(model.states)
    if varies and not joined.parts.covers and not wants_graph:
        parts = joined.parts.reading_all()
        joined = replace(joined, parts=parts, graph=parts.graph)
    formats = [{*kind_of(device).formats} for device in cluster.devices]
    if all(taken == {"onnx"} for taken in formats):
        joined = replace(joined, alone=True, ov_model=without_weights(joined.ov_model))
    if joined.parts.covers or any("onnx" not in taken for taken in formats):
        return joined
    if len(cluster) == 1 and (wants_graph or not graph) and not model.states:
        return replace(joined.whole_file("onnx"), together=(model.graph.names,))
    if varies:  # a graph of the file's nodes is for one size, and without state
        return joined
    with contextlib.suppress(ModelError):
        alone = read_onnx(model.path, Sizes({spec.name: spec.shape for spec in model.inputs}))
        return alone if model.given is None else alone.with_inputs(model.given)
    return joined
