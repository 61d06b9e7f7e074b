"""Read ONNX files as models whose task graph has an op for each node of the file."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from placeit.backends.base import TensorSpec
from placeit.backends.checking import numpy_can_hold
from placeit.backends.onnx.digest import onnx_digest
from placeit.backends.onnx.flops import node_flops
from placeit.backends.onnx.model import OnnxFileModel, draw_input
from placeit.backends.onnx.parts import KNOWN_VERSION, OnnxParts, drop_repeated_names, fix_shape, reads
from placeit.backends.onnx.sessions import open_whole, ort_dtype
from placeit.backends.onnx.tensors import dtype_of, own_bytes, sizes_of, tensor_bytes, width_of
from placeit.backends.onnx_external import read_proto
from placeit.backends.openvino.inputs import OpenSizesError, Sizes, resolve_shapes, with_suggestion
from placeit.core.errors import ModelError
from placeit.core.graph import OpGraph, topological_order
from placeit.core.telemetry import import_openvino
from placeit.core.weights import weights_of
from placeit.devices.onnxruntime import ort_failures, ort_reason

__all__ = ["read_onnx"]

openvino = import_openvino()

_RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
_MAX_CASES = 8  # most combinations of integers that inputs are compared with
_SAMPLES = 2  # runs on random inputs to find sizes that the file does not state


def read_onnx(path: Path, sizes: Sizes, why: str = "") -> OnnxFileModel:
    """Read an ONNX file with ONNX Runtime, for ONNX Runtime alone.

    Args:
        path: the file.
        sizes: sizes of its inputs that the user gives.
        why: why OpenVINO cannot run it, as a sentence; empty if it may be able to.

    Raises:
        UsageError: a sample does not fit an input with open sizes.
        ModelError: ONNX Runtime cannot run it, a size is left open, or an input or output is not a tensor of numbers.
        DeviceError: ONNX Runtime is not installed.
    """
    try:
        proto = read_proto(path, in_place=True)
    except (OSError, ValueError, DecodeError, onnx.checker.ValidationError) as error:
        raise ModelError(f"Cannot read a model from {path}: {str(error).rstrip('.')}.") from error
    constants = {tensor.name for tensor in proto.graph.initializer}
    constants |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
    inputs = [value for value in proto.graph.input if value.name not in constants]
    for value in inputs:
        _check_type(path, value)
    partial = {value.name: _partial_shape(value) for value in inputs}
    _replace_zip_maps(proto.graph)
    try:
        wanted = resolve_shapes(path, partial, sizes)
    except OpenSizesError as error:
        known = error.known
        raise with_suggestion(error, lambda shapes: _check_sizes(path, proto, {**known, **shapes}), str) from None
    if wanted.typical:
        name = next(iter(wanted.typical))
        message = f"{path}: the sizes of input '{name}' cannot stay open: {why}. Give one size for each."
        raise OpenSizesError(message, {}, partial, advised=True)
    return _Reading(path, proto, wanted.partial).model(why)


def _check_sizes(path: Path, proto: onnx.ModelProto, wanted: Mapping[str, Any]) -> None:
    """Raise ModelError unless a model can be read with these sizes of its inputs."""
    tried = onnx.ModelProto()
    tried.CopyFrom(proto)
    shapes = {name: openvino.PartialShape(list(shape)) if isinstance(shape, tuple) else shape for name, shape in wanted.items()}
    _Reading(path, tried, shapes).model("")


def _check_type(path: Path, value: onnx.ValueInfoProto) -> None:
    """Raise ModelError unless an input is a tensor that NumPy can hold."""
    if value.type.WhichOneof("value") != "tensor_type":
        kind = (value.type.WhichOneof("value") or "unknown").removesuffix("_type")
        raise ModelError(f"{path}: the input '{value.name}' is a {kind}, and only tensors of numbers can be passed.")
    kind = dtype_of(value.type.tensor_type.elem_type)
    if not numpy_can_hold(kind):
        raise ModelError(
            f"{path}: input '{value.name}' has type {kind}, which NumPy arrays of numbers cannot hold: convert it to another "
            "type inside the model."
        )


def _partial_shape(value: onnx.ValueInfoProto) -> Any:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return openvino.PartialShape.dynamic()
    return openvino.PartialShape([size or -1 for size in sizes_of(value)])


def _replace_zip_maps(graph: onnx.GraphProto) -> None:
    """Replace each output that is a sequence of dictionaries by its tensor, with a row per dictionary and a column per key."""
    outputs = {value.name: value for value in graph.output}
    for node in graph.node:
        if node.op_type == "ZipMap" and node.domain == "ai.onnx.ml" and node.output[0] in outputs:
            outputs[node.output[0]].CopyFrom(onnx.ValueInfoProto(name=node.output[0]))
            node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))


class _Reading:
    """Builds the task graph of an ONNX file.

    Args:
        path: the file, for messages.
        proto: its model; it is changed.
        shapes: static shapes of its inputs, by name.
    """

    def __init__(self, path: Path, proto: onnx.ModelProto, shapes: Mapping[str, Any]) -> None:
        self._path, self._proto = path, proto
        graph = proto.graph
        drop_repeated_names(graph)
        proto.ir_version = min(proto.ir_version, KNOWN_VERSION)
        self._constant = {tensor.name: tensor_bytes(tensor) for tensor in graph.initializer}
        self._constant |= {tensor.values.name: tensor_bytes(tensor.values) for tensor in graph.sparse_initializer}
        self._inputs = [value for value in graph.input if value.name not in self._constant]
        self._as_in_file = [copy.deepcopy(value) for value in self._inputs]
        for value in self._inputs:
            if value.name in shapes:
                sizes = [int(size.get_length()) for size in shapes[value.name]]
                value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, sizes))
        self._content = onnx_digest(proto)
        self._unsized = False  # whether the inputs keep the open sizes of the file
        self._cases = _cases(graph, {value.name for value in self._inputs})
        self._case = self._cases[0]
        self._types: dict[str, str] = {}  # type of each value, NumPy spelling; 'sequence' and so on if not a tensor
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._open: set[str] = set()  # tensors whose size depends on the data, or is unknown before a run

    def model(self, why: str) -> OnnxFileModel:
        """Return the model. Raises ModelError."""
        graph = self._proto.graph
        self._infer()
        for node in graph.node:
            if not set(node.input) & self._open:
                fix_shape(node, self._shapes)
        for value in graph.output:
            kind = self._types[value.name]
            if not numpy_can_hold(kind):
                raise ModelError(
                    f"{self._path}: output '{value.name}' has type {kind}, which NumPy arrays of numbers cannot hold: remove "
                    "it, or convert it inside the model."
                )
        inputs = tuple(self._spec(value.name, value.name) for value in self._inputs)
        input_names = {spec.name for spec in inputs}
        nodes = [graph.node[number] for number in self._live()]
        names = _unique([node.name or f"{node.op_type}_{number}" for number, node in enumerate(nodes, 1)], input_names)
        results = _unique([f"{value.name}/result" for value in graph.output], {*input_names, *names})
        outputs = tuple(self._spec(value.name, op) for value, op in zip(graph.output, results, strict=True))
        task_graph, tensors, bounded = self._graph(inputs, nodes, names, outputs)
        tensor_names = ((t, {name}) for t, name in enumerate(tensors))
        parts = OnnxParts(self._proto, task_graph, outputs, bounded, tensor_names, unsized=self._unsized)
        return OnnxFileModel(
            path=self._path,
            graph=task_graph,
            inputs=inputs,
            outputs=outputs,
            bounded=bounded,
            together=parts.together(),
            proto=self._proto,
            parts=parts,
            why=why,
            cases=self._case,
        )

    def _spec(self, name: str, op: str) -> TensorSpec:
        return TensorSpec(name, op, self._shapes[name], self._types[name])

    def _infer(self) -> None:
        """Get types and shapes of all tensors from ONNX Runtime, and run the model to find sizes that this leaves open."""
        graph = self._proto.graph
        outputs = {value.name for value in graph.output}
        inner = [name for node in graph.node for name in node.output if name and name not in outputs]
        for value in self._inputs:
            self._types[value.name] = dtype_of(value.type.tensor_type.elem_type)
            self._shapes[value.name] = tuple(size or 0 for size in sizes_of(value))
        inferred: Mapping[str, tuple[int, ...]] | None = None

        def opened() -> Any:
            """Open the model with all tensors as outputs."""
            whole = onnx.ModelProto()
            whole.CopyFrom(self._proto)
            whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
            return open_whole(whole, optimize=False)

        try:
            try:
                session = opened()
            except ort_failures():
                if self._as_in_file == self._inputs:
                    raise
                # a branch that is never taken may not fit these sizes; with open sizes, it is not checked
                inferred, self._unsized = _inferred_shapes(self._proto), True
                for value, in_file in zip(self._inputs, self._as_in_file, strict=True):
                    value.CopyFrom(in_file)
                session = opened()
        except ort_failures() as error:
            reason = ort_reason(error).rstrip(".")
            raise ModelError(f"Cannot read a model from {self._path}: ONNX Runtime says: {reason}.") from error
        unknown: list[str] = []
        for value in session.get_outputs():
            name, kind, shape = value.name, value.type, value.shape
            is_tensor = kind.startswith("tensor")
            known = is_tensor and shape and all(isinstance(size, int) and size >= 0 for size in shape)
            self._types[name] = ort_dtype(kind)
            self._shapes[name] = tuple(shape) if known else ()
            if not is_tensor:
                self._open.add(name)
            elif not known:  # also a scalar, for which ONNX Runtime states no shape
                unknown.append(name)
        self._run(session, unknown, inferred)

    def _run(self, session: Any, unknown: Sequence[str], inferred: Mapping[str, tuple[int, ...]] | None) -> None:
        """Find the shapes of tensors by running the model.

        Args:
            session: the model with all tensors as outputs.
            unknown: names of the tensors.
            inferred: shapes that follow from the rules of ONNX; None if they have not been inferred yet.
        """
        if not unknown:
            return
        for seed in range(_SAMPLES):
            try:
                values = self._sampled(session, unknown, seed) if seed else self._first(session, unknown)
            except ort_failures():  # the sizes of the first run are enough
                break
            for name, value in zip(unknown, values, strict=True):
                if isinstance(value, np.ndarray) and (not seed or value.size > math.prod(self._shapes[name])):
                    self._shapes[name] = value.shape
        # sizes that the rules of ONNX do not determine may depend on the data
        inferred = _inferred_shapes(self._proto) if inferred is None else inferred
        self._open |= {name for name in unknown if inferred.get(name) != self._shapes[name]}

    def _first(self, session: Any, unknown: Sequence[str]) -> list[Any]:
        """Run on random inputs in the first case that the model accepts, and keep it. Raises ModelError without one."""
        failures: list[Exception] = []
        for case in self._cases:
            self._case = case
            try:
                return self._sampled(session, unknown, 0)
            except ort_failures() as error:
                failures.append(error)
        raise ModelError(
            f"Cannot read a model from {self._path}: ONNX Runtime does not run it on random inputs, which would show the sizes "
            f"that it does not say: {ort_reason(failures[-1])}"
        ) from failures[-1]

    def _sampled(self, session: Any, unknown: Sequence[str], seed: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        specs = (TensorSpec(value.name, "", self._shapes[value.name], self._types[value.name]) for value in self._inputs)
        values: list[Any] = session.run(list(unknown), {spec.name: draw_input(rng, spec, self._case) for spec in specs})
        return values

    def _live(self) -> list[int]:
        """Return the numbers of the nodes that affect an output and are not constant, in topological order."""
        graph = self._proto.graph
        producer = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
        read = [reads(node) for node in graph.node]
        needed: set[int] = set()
        stack = [value.name for value in graph.output]
        while stack:
            number = producer.get(stack.pop())
            if number is not None and number not in needed:
                needed.add(number)
                stack += read[number]
        edges = [(producer[name], number) for number in sorted(needed) for name in read[number] if name in producer]
        order = topological_order(np.array(edges, np.int32).reshape(-1, 2), len(graph.node))
        if order is None:
            raise ModelError(f"{self._path}: its nodes wait for each other in a circle: it is damaged.")
        live: list[int] = []
        for number in order.tolist():
            node = graph.node[number]
            if number not in needed:
                continue
            if node.op_type in _RANDOM or not read[number] <= self._constant.keys():
                live.append(number)
            else:  # computed from constants only: part of the ops that read it
                size = sum(self._constant[name] for name in read[number]) + own_bytes(node)
                self._constant |= {name: size for name in node.output if name}
        return live

    def _graph(
        self,
        inputs: Sequence[TensorSpec],
        nodes: Sequence[onnx.NodeProto],
        names: Sequence[str],
        outputs: Sequence[TensorSpec],
    ) -> tuple[OpGraph, list[str], tuple[str, ...]]:
        """Return the task graph, the names of its tensors, and the ops whose output sizes depend on the data."""
        tensors: list[str] = [spec.name for spec in inputs]
        tensor_op, tensor_port = [*range(len(inputs))], [0] * len(inputs)
        number = {name: t for t, name in enumerate(tensors)}
        edges: list[tuple[int, int]] = []
        edge_tensor: list[int] = []
        flops, weights = [0.0] * len(inputs), list[dict[Hashable, float]]([{}] * len(inputs))
        bounded: list[str] = []

        def read(v: int, sources: Iterable[str]) -> None:
            for name in sources:
                if name in number:
                    edges.append((tensor_op[number[name]], v))
                    edge_tensor.append(number[name])

        for v, (node, name) in enumerate(zip(nodes, names, strict=True), len(inputs)):
            sources = sorted(reads(node))
            read(v, sources)
            flops.append(node_flops(node, self._shapes))
            read_here: dict[Hashable, float] = {
                source: float(self._constant[source]) for source in sources if source in self._constant
            }
            weights.append({**read_here, v: float(own_bytes(node))})
            for port, output in enumerate(node.output):
                if output:
                    number[output] = len(tensors)
                    tensors.append(output)
                    tensor_op.append(v)
                    tensor_port.append(port)
            if self._open & set(node.output):
                bounded.append(name)
        first = len(inputs) + len(nodes)
        for v, spec in enumerate(outputs, first):
            read(v, [spec.name])
        kinds = [*["Parameter"] * len(inputs), *(node.op_type for node in nodes), *["Result"] * len(outputs)]
        param_bytes, shared = weights_of([*weights, *({} for _ in outputs)])
        shapes, dtypes = [self._shapes[name] for name in tensors], [self._types[name] for name in tensors]
        graph = OpGraph(
            names=(*(spec.op for spec in inputs), *names, *(spec.op for spec in outputs)),
            kinds=tuple(kinds),
            flops=np.array([*flops, *[0.0] * len(outputs)]),
            param_bytes=param_bytes,
            tensor_op=np.array(tensor_op, np.int32),
            tensor_port=np.array(tensor_port, np.int32),
            tensor_bytes=np.array([float(math.ceil(math.prod(s) * width_of(d))) for s, d in zip(shapes, dtypes, strict=True)]),
            tensor_shapes=tuple(shapes),
            tensor_dtypes=tuple(dtypes),
            edges=np.array(edges, np.int32).reshape(-1, 2),
            edge_tensor=np.array(edge_tensor, np.int32),
            content=self._content,
            shared=shared,
        )
        return graph.verify(), tensors, tuple(bounded)


def _unique(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return unique names, with numbers after names that repeat or are in ``taken``."""
    used, found, originals = set(taken), [], set(names)
    for name in names:
        new, count = name, 1
        while new in used or (new != name and new in originals):
            count += 1
            new = f"{name}_{count}"
        used.add(new)
        found.append(new)
    return found


def _cases(graph: onnx.GraphProto, inputs: Collection[str]) -> list[Mapping[str, int]]:
    """Return combinations of values for the inputs that are compared with integers; if none is, one empty combination."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {
        node.output[0]: attribute.t for node in graph.node if node.op_type == "Constant" for attribute in node.attribute
        if attribute.name == "value"
    }  # fmt: skip
    found: dict[str, list[int]] = {}
    for node in graph.node:
        for name, other in ((node.input[0], node.input[1]), (node.input[1], node.input[0])) if node.op_type == "Equal" else ():
            if name in inputs and other in constants and math.prod(constants[other].dims) == 1:
                value = numpy_helper.to_array(constants[other]).item()
                if isinstance(value, int):
                    found.setdefault(name, []).append(value)
    combinations = itertools.islice(itertools.product(*found.values()), _MAX_CASES)
    return [dict(zip(found, values, strict=True)) for values in combinations]


def _inferred_shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the static shapes that ONNX's shape inference finds, by tensor name."""
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        sizes = [size for size in sizes_of(value) if size is not None]
        if value.type.tensor_type.HasField("shape") and len(sizes) == len(value.type.tensor_type.shape.dim):
            found[value.name] = tuple(sizes)
    return found
