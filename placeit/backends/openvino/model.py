"""Models that OpenVINO reads, with their task graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends import base
from placeit.backends.base import Arrays, TensorSpec
from placeit.backends.checking import numpy_can_hold
from placeit.backends.openvino.alike import function_digest, weight_readers
from placeit.backends.openvino.flops import bounded_shape
from placeit.backends.openvino.graph import (
    build_graph,
    dtype_name,
    inseparable_ops,
    is_named,
    name_nodes,
    single_reader_ops,
    upper_bound_ops,
)
from placeit.backends.openvino.paged import Paging
from placeit.backends.openvino.quantized import quantized_pairs, rounding_steps
from placeit.backends.openvino.segment import channels_last_tensors, extract
from placeit.backends.openvino.sized import Points, Sized, Typical
from placeit.backends.openvino.values import allowed_values
from placeit.backends.openvino.view import View, exact_view, fused_copy, inseparable, match
from placeit.backends.openvino.weights import distinct, read_by_ops
from placeit.backends.values import draw, draw_any
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ModelError, UsageError
from placeit.core.graph import OpGraph
from placeit.core.sizes import LARGEST, Limits
from placeit.core.telemetry import import_openvino
from placeit.core.weights import weights_of
from placeit.devices.kinds import driven_by_openvino, kind_of

__all__ = ["OpenVinoModel", "describe", "describe_fused", "relu_chain", "tensor_name"]

openvino = import_openvino()

# The first use of this table of types fills it, without the GIL. Two threads that use it first at the same time, for example to
# compile segments, deadlock (OpenVINO 2026.4). So it is filled here.
openvino.Type.i64.to_dtype()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class OpenVinoModel(base.Model):
    """A model file that OpenVINO reads, with its task graph.

    Attributes:
        ov_model: the ``openvino.Model`` as OpenVINO itself reads it, with unique friendly names, and inputs that are static or
            have bounds. It runs whole, and segments are cut out of it.
        view: the nodes of ``ov_model`` for the ops and tensors of ``graph``.
        points: typical sizes of the open dimensions of ``ov_model``.
        mapped: whether the weights are mapped into memory from an ONNX file, until devices are known.
    """

    ov_model: Any
    view: View
    points: Points = Points()
    mapped: bool = False

    @cached_property
    def channels_last(self) -> frozenset[int]:
        """Tensors of the graph that should cross a segment's border in channels-last layout."""
        return channels_last_tensors(self.graph)

    def statistics(self) -> dict[str, int | float]:
        """Count ops, edges, operations and parameters of the model.

        Returns:
            ``ops`` and ``edges`` of the task graph; ``layers`` and ``layer_edges`` of the model as it was read, with every
            constant and its conversions, as in the HSDAG paper (Table 1; it counts a model with weights in float16, where each
            is a constant and a conversion); ``flops`` of one inference; ``parameters`` (floating-point or quantised weights)
            and ``parameter_bytes`` of all constants, each counted once.
        """
        nodes = self.ov_model.get_ops()
        weights = distinct(self.ov_model)
        return {
            "ops": len(self.graph),
            "edges": len(self.graph.edges),
            "layers": len(nodes),
            "layer_edges": sum(node.get_input_size() for node in nodes),
            "flops": float(self.graph.flops.sum()),
            "parameters": sum(math.prod(node.get_output_shape(0)) for node in weights if _is_weight(node)),
            "parameter_bytes": sum(node.get_byte_size() for node in weights),
        }

    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Draw inputs that are valid for the model, by input name.

        Inputs whose values an op restricts (rows of a table, positions along an axis, axes, lengths of sequences) are uniform
        over the allowed values. Of the others, floating-point inputs are standard normal; 8-bit integers, such as pixels, are
        uniform; other integers are ones, which is right for an attention mask; booleans are true.
        """
        return self._drawn(self._sized[0], np.random.default_rng(seed))

    def sample_requests(self, seed: int = 0) -> Sequence[base.Sample]:
        """Return the requests for measurements: random inputs of each typical size, or the given inputs."""
        if self.given is not None:
            return super().sample_requests(seed)
        drawn = (self._drawn(point, np.random.default_rng(seed)) for point in self._sized)
        return [base.Sample(inputs, share) for inputs, share in zip(drawn, self.points.shares, strict=True)]

    def inputs_at(self, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Draw inputs of given shapes; see :meth:`placeit.backends.base.Model.inputs_at`."""
        point = Typical(tuple(tuple(shapes[spec.name]) if spec.name in shapes else None for spec in self.inputs))
        try:
            return self._drawn(Sized(self.ov_model, point), np.random.default_rng(seed))
        except ModelError as error:
            raise UsageError(str(error)) from error

    @cached_property
    def _sized(self) -> list[Sized]:
        """Nodes of the model with their shapes at each typical size."""
        return Sized.all(self.ov_model, self.points)

    def _drawn(self, sized: Sized, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        nodes = [sized.node(node.get_friendly_name()) for node in self.ov_model.get_parameters()]
        drawn: dict[str, NDArray[Any]] = {}
        for spec, node in zip(self.inputs, nodes, strict=True):
            shape, allowed = tuple(node.get_output_shape(0)), allowed_values(node)
            drawn[spec.name] = draw_any(rng, shape, spec.dtype) if allowed is None else draw(rng, allowed, shape, spec.dtype)
        return drawn

    def contradiction(self, shapes: Sequence[Sequence[int]]) -> str | None:
        """Infer all shapes; see :meth:`placeit.backends.base.Model.contradiction`.

        With state, the inputs may have other sizes in each step of a sequence, and the length of the state is unknown here. So
        shapes of a model with state are accepted at once if they have the same pattern of equal sizes, and of sizes of 1, as
        earlier shapes that did not contradict each other.
        """
        has_state, sizes = bool(self.ov_model.get_sinks()), [size for shape in shapes for size in shape]
        pattern = tuple(0 if size == 1 else 1 + sizes.index(size) for size in sizes)
        if has_state and pattern in self._accepted_patterns:
            return None
        try:
            Sized(self.ov_model, Typical(tuple(map(tuple, shapes)), None if has_state else 0))
        except ModelError as error:
            return str(error).rpartition(": ")[2]
        self._accepted_patterns.add(pattern)
        return None

    @cached_property
    def _accepted_patterns(self) -> set[tuple[int, ...]]:
        return set()

    @property
    def formats(self) -> frozenset[base.Format]:
        """The format of OpenVINO only."""
        return frozenset({"openvino"})

    def segment(self, form: base.Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:  # noqa: ARG002
        """Cut a part out as an ``openvino.Model``; see :meth:`placeit.backends.base.Model.segment`."""
        return extract(self.ov_model, self.view, self.graph, ops, enter, leave, self.channels_last)

    @cached_property
    def _weight_readers(self) -> tuple[frozenset[int], frozenset[int]]:
        return weight_readers(self.ov_model, self.graph, self.view)

    def function(self, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> str | None:
        """Return a digest of a part's function; see :meth:`placeit.backends.base.Model.function`.

        None for parts whose ops share no weight, or that have an op with an exclusive weight.
        """
        shared, exclusive = self._weight_readers
        if shared.isdisjoint(ops) or not exclusive.isdisjoint(ops):
            return None
        return function_digest(self.segment("openvino", ops, enter, leave))

    def prepared(self, cluster: Cluster, graph: str = "") -> base.Model:  # noqa: ARG002
        """Return the model itself. Raises DeviceError if ONNX Runtime, which reads other files, drives one of the devices."""
        if not any("onnx" in kind_of(device).formats for device in cluster.devices):
            return self
        raise DeviceError(
            f"ONNX Runtime runs ONNX models, and {self.path} is not an ONNX model: choose devices that OpenVINO drives, or "
            "start from the ONNX file of the model."
        )

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        """Return a function that runs the whole model, compiled with OpenVINO. Raises DeviceError."""
        from placeit.devices.openvino import compile_model, explaining

        target = device if device is not None and driven_by_openvino(device) else Device("CPU", address=Address("CPU"))
        compiled = compile_model(self.ov_model, target, precision)

        def run(inputs: Arrays) -> dict[str, NDArray[np.generic]]:
            with explaining(f"The model cannot be run whole on {target.name}"):
                # a new request starts from the model's initial state, as every request of an executor does
                answer = compiled.create_infer_request().infer([inputs[spec.name] for spec in self.inputs])
            return {spec.name: np.array(answer[i]) for i, spec in enumerate(self.outputs)}

        return run

    def chain(self, elements: int, hops: int) -> OpenVinoModel:
        """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
        return relu_chain(elements, hops)


def relu_chain(elements: int, hops: int) -> OpenVinoModel:
    """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
    ops = openvino.opset13
    parameter = ops.parameter([1, elements], openvino.Type.f32, name="in")
    value = parameter.output(0)
    for hop in range(hops):
        value = ops.relu(value, name=f"hop {hop}").output(0)
    model = openvino.Model([ops.result(value, name="out")], [parameter], "chain")
    return replace(describe(model, Path("chain")), uniform=True)


_OF_TEXTS = {"input_ids", "attention_mask", "position_ids"}  # inputs of a decoder that steps several texts


def describe(model: Any, path: Path, points: Points = Points()) -> OpenVinoModel:
    """Return the model of an ``openvino.Model`` with unique friendly names, with an op for each node.

    Raises:
        ModelError: a tensor's type or size cannot be handled, or typical sizes do not fit the model.
    """
    sized = Sized.all(model, points)
    graph = build_graph(model, path, sized, shares=points.shares)
    return _described(model, model, path, graph, exact_view(graph), sized, points)


def describe_fused(model: Any, path: Path, points: Points = Points()) -> OpenVinoModel:
    """Return the model of an ``openvino.Model``, with one op for all nodes that OpenVINO fuses.

    A model with state, or one that OpenVINO's converter has written with all fusions done, has an op for each node.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        path: the file that it came from.
        points: typical sizes of its open dimensions.

    Raises:
        ModelError: a tensor's type or size cannot be handled, or typical sizes do not fit the model.
    """
    if model.get_sinks() or model.has_rt_info("conversion_parameters"):
        return describe(model, path, points)
    try:
        copy = fused_copy(model)
    except RuntimeError as error:
        if "std::bad_alloc" in str(error):  # compiling the model would fail as well
            raise
        return describe(model, path, points)  # a fusion failed; OpenVINO runs models without it
    names = {node.get_friendly_name() for node in model.get_ops()}
    name_nodes(copy.model, lambda node: is_named(node) and node.get_friendly_name() in names)
    stand_ins = {node.get_friendly_name() for node in copy.weights}
    whole, fused = Sized(model, points.typical[0]), Sized.all(copy.model, points)
    graph = build_graph(copy.model, path, fused, shares=points.shares, stand_ins=stand_ins)
    view = match(model, whole, copy, fused[0], graph)
    return _described(model, copy.model, path, graph, view, fused, points, inseparable(model, graph, view), stand_ins)


def _described(
    model: Any,
    viewed: Any,
    path: Path,
    graph: OpGraph,
    view: View,
    sized: Sequence[Sized],
    points: Points,
    together: tuple[tuple[str, ...], ...] = (),
    stand_ins: Collection[str] = (),
) -> OpenVinoModel:
    read, shared = weights_of(read_by_ops(model, graph, view))
    graph = replace(graph, param_bytes=read, shared=shared)
    inputs = tuple(_spec(mine, theirs, sized) for mine, theirs in zip(model.inputs, viewed.inputs, strict=False))
    outputs = tuple(_spec(mine, theirs, sized) for mine, theirs in zip(model.outputs, viewed.outputs, strict=True))
    for what, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if not numpy_can_hold(spec.dtype):
                raise ModelError(
                    f"{path}: {what} '{spec.name}' has type {spec.dtype}, which NumPy arrays cannot hold: convert it to "
                    "another type inside the model."
                )
    reads = {node.get_variable_id(): node for node in viewed.get_ops() if node.get_type_name() == "ReadValue"}
    written = [(name, reads[name]) for name in (node.get_variable_id() for node in viewed.get_sinks()) if name in reads]
    states = tuple(_tensor(name, read, read.get_output_partial_shape(0), sized) for name, read in written)
    bounded = upper_bound_ops(viewed, sized[0], graph.index)
    limits = _open_tensors(model, view, bounded, graph) if points.typical[0].open or model.get_sinks() else {}
    several = {spec.name for spec in inputs if spec.limits is not None and spec.limits[0] > (1, 1)}
    paging = Paging.of(model) if several >= _OF_TEXTS else None
    return OpenVinoModel(
        path=path,
        graph=graph,
        ov_model=model,
        view=view,
        inputs=inputs,
        outputs=outputs,
        states=states,
        limits=limits,
        points=points,
        times=points.times,
        bounded=bounded,
        together=(*inseparable_ops(viewed, graph, bounded), *together, *(() if paging is None else paging.together)),
        paging=paging,
        pairs=(*quantized_pairs(viewed, graph), *(single_reader_ops(graph, bounded) if states else ())),
        rounding=rounding_steps(viewed, graph, stand_ins),
    )


def _spec(port: Any, viewed: Any, sized: Sequence[Sized]) -> TensorSpec:
    return _tensor(tensor_name(port, port.get_node()), viewed.get_node(), port.get_partial_shape(), sized)


def _tensor(name: str, node: Any, open_shape: Any, sized: Sequence[Sized]) -> TensorSpec:
    """Return the spec of the first output of a node.

    Args:
        name: its name for callers.
        node: a node of the model from which the graph was built.
        open_shape: its shape, with open sizes.
        sized: the model's nodes at each typical size.
    """
    op = node.get_friendly_name()
    partial = [point.shape(op, 0) for point in sized]
    # the graph was built, so all have bounds
    shapes = [shape for shape in map(bounded_shape, partial) if shape is not None]
    # a size that depends on the data has the same bound in all runs, unless the bound follows from an open size
    limits = _limits(open_shape) if partial[0].is_static or partial[0] != open_shape else None
    dtype = dtype_name(node.get_output_element_type(0))
    return TensorSpec(name, op, shapes[0], dtype, limits, tuple(shapes) if limits is not None and len(shapes) > 1 else ())


def _limits(partial: Any) -> Limits | None:
    """Return the least and largest sizes of an open shape; None for a static one."""
    if partial.is_static:
        return None
    return tuple((size.get_min_length(), size.get_max_length() if size.get_max_length() >= 0 else LARGEST) for size in partial)


def _open_tensors(model: Any, view: View, bounded: Collection[str], graph: OpGraph) -> dict[int, Limits]:
    """Return the limits of the graph's tensors with open sizes, except for sizes that depend on the data."""
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    found: dict[int, Limits] = {}
    for tensor, holders in enumerate(view.holders):
        if holders and graph.names[int(graph.tensor_op[tensor])] not in bounded:
            name, port = holders[0]
            limits = _limits(nodes[name].get_output_partial_shape(port))
            if limits is not None:
                found[tensor] = limits
    return found


def tensor_name(port: Any, node: Any) -> str:
    """Return the name of an input or output for callers: its node's name if the tensor has it, else the tensor's first name."""
    names = port.get_names()
    friendly = node.get_friendly_name()
    return str(friendly if friendly in names or not names else min(names))


def _is_weight(constant: Any) -> bool:
    kind = constant.get_element_type()
    return bool(kind.is_real() or kind.bitwidth <= 8)
