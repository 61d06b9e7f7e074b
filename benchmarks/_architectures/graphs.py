"""Small ONNX graphs that exporters and other tools write, with structures that networks in PyTorch do not have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from benchmarks._architectures.sample import Make, Sample
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core

__all__ = [
    "branch",
    "contrib",
    "contrib_own",
    "external_weights",
    "intermediate",
    "loop",
    "many_ends",
    "named",
    "old",
    "scan",
    "tree_ensemble",
]

_WIDTH = 64
_CONTRIB, _TREES = "com.microsoft", "ai.onnx.ml"


class _Weights:
    """Draws initializers."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self.made: list[TensorProto] = []

    def __call__(self, *shape: int, scale: float | None = None) -> str:
        scale = 1 / np.sqrt(shape[0]) if scale is None else scale
        return self.constant((self._random.standard_normal(shape) * scale).astype(np.float32))

    def constant(self, value: NDArray[np.generic]) -> str:
        name = f"weight_{len(self.made)}"
        self.made.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _dense(x: str, y: str, weights: _Weights, inputs: int = _WIDTH, outputs: int = _WIDTH) -> list[NodeProto]:
    """Return a linear layer and its activation."""
    linear = f"{y} linear"
    return [
        helper.make_node("Gemm", [x, weights(inputs, outputs), weights(outputs, scale=0.1)], [linear], name=linear),
        helper.make_node("Tanh", [linear], [y], name=y),
    ]


def _save(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int] | None],
    weights: Sequence[TensorProto],
    *,
    opset: int = 17,
    ir: int = 8,
    domains: Mapping[str, int] | None = None,
    external: bool = False,
) -> Path:
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends.items()]
        for ends in (inputs, outputs)
    ]
    if ir < 4:  # there, every value is an input, too
        values[0] += [helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in weights]
    graph = helper.make_graph(nodes, "graph", *values, weights)
    known = {"": opset, **(domains or {})}
    model = helper.make_model(graph, ir_version=ir, opset_imports=[helper.make_opsetid(*each) for each in known.items()])
    onnx.save(model, path, save_as_external_data=external, location="weights, all of them.bin", size_threshold=0)
    return path


def branch(folder: Path) -> Sample:
    """Make an ``If`` on a condition that depends on values, with layers in both branches, and layers around it."""
    weights = _Weights()
    bodies = []
    for number in range(2):
        nodes = _dense("x", f"then {number}", weights)
        output = helper.make_tensor_value_info(f"then {number}", TensorProto.FLOAT, [1, _WIDTH])
        bodies.append(helper.make_graph(nodes, f"branch {number}", [], [output]))
    nodes = [
        *_dense("input", "x", weights),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", weights.constant(np.float32(0))], ["positive"]),
        helper.make_node("If", ["positive"], ["chosen"], then_branch=bodies[0], else_branch=bodies[1]),
        *_dense("chosen", "output", weights),
    ]
    return Sample(_save(folder / "model.onnx", nodes, {"input": [1, _WIDTH]}, {"output": [1, _WIDTH]}, weights.made))


def loop(folder: Path) -> Sample:
    """Make a ``Loop`` of a fixed number of turns with a carried value, and one of scanned outputs."""
    weights = _Weights()
    kernel = weights(_WIDTH, _WIDTH)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["carried", kernel], ["product"]),
            helper.make_node("Tanh", ["product"], ["next"]),
            helper.make_node("Identity", ["next"], ["seen"]),
            helper.make_node("Identity", ["going"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, [1, _WIDTH]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [1, _WIDTH]),
            helper.make_tensor_value_info("seen", TensorProto.FLOAT, [1, _WIDTH]),
        ],
    )
    turns, go = weights.constant(np.int64(5)), weights.constant(np.bool_(True))
    nodes = [
        *_dense("input", "x", weights),
        helper.make_node("Loop", [turns, go, "x"], ["last", "history"], body=body, name="loop"),
        *_dense("last", "output", weights),
    ]
    ends = {"output": [1, _WIDTH], "history": [5, 1, _WIDTH]}
    return Sample(_save(folder / "model.onnx", nodes, {"input": [1, _WIDTH]}, ends, weights.made))


def scan(folder: Path) -> Sample:
    """Make a ``Scan``, a recurrent cell over a sequence, as tools for speech write it."""
    weights = _Weights()
    kernel, again = weights(_WIDTH, _WIDTH), weights(_WIDTH, _WIDTH)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["frame", kernel], ["in"]),
            helper.make_node("MatMul", ["state", again], ["back"]),
            helper.make_node("Add", ["in", "back"], ["both"]),
            helper.make_node("Tanh", ["both"], ["new"]),
            helper.make_node("Identity", ["new"], ["told"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _WIDTH]) for name in ("state", "frame")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _WIDTH]) for name in ("new", "told")],
    )
    nodes = [
        helper.make_node("Scan", ["start", "frames"], ["end", "told all"], body=body, num_scan_inputs=1, name="scan"),
        *_dense("end", "output", weights),
        helper.make_node("Sigmoid", ["told all"], ["sequence"]),
    ]
    ends = {"output": [1, _WIDTH], "sequence": [8, 1, _WIDTH]}
    return Sample(_save(folder / "model.onnx", nodes, {"start": [1, _WIDTH], "frames": [8, 1, _WIDTH]}, ends, weights.made))


def tree_ensemble(folder: Path) -> Sample:
    """Make boosted trees behind a scaler, as scikit-learn's converters write them (``ai.onnx.ml``)."""
    random, features, depth, trees = np.random.default_rng(0), 16, 4, 20
    inner, total = 2**depth - 1, 2 ** (depth + 1) - 1
    columns: dict[str, list[float | str]] = {}

    def add(**values: float | str) -> None:
        for name, value in values.items():
            columns.setdefault(name, []).append(value)

    for tree in range(trees):
        for node in range(total):
            add(
                nodes_treeids=tree,
                nodes_nodeids=node,
                nodes_featureids=int(random.integers(features)),
                nodes_values=float(np.float32(random.normal())),
                nodes_modes="BRANCH_LEQ" if node < inner else "LEAF",
                nodes_truenodeids=2 * node + 1 if node < inner else 0,
                nodes_falsenodeids=2 * node + 2 if node < inner else 0,
            )
            if node >= inner:
                add(target_treeids=tree, target_nodeids=node, target_ids=0, target_weights=float(np.float32(random.normal())))
    nodes = [
        helper.make_node(
            "Scaler", ["features"], ["scaled"], domain=_TREES, offset=[0.1] * features, scale=[0.9] * features, name="scaler"
        ),
        helper.make_node("TreeEnsembleRegressor", ["scaled"], ["score"], domain=_TREES, n_targets=1, name="trees", **columns),
    ]
    path = _save(folder / "model.onnx", nodes, {"features": [8, features]}, {"score": [8, 1]}, [], domains={_TREES: 3})
    return Sample(path, inputs={"features": random.standard_normal((8, features)).astype(np.float32)})


def contrib(folder: Path) -> Sample:
    """Make fused ops that belong to ONNX Runtime (``com.microsoft``), as its optimizer for transformers writes them."""
    weights = _Weights()
    nodes, x = [], "input"
    for number in range(3):
        names = [f"{what} {number}" for what in ("query", "attended", "norm", "wide", "gelu", "narrow", "block")]
        query, attended, norm, wide, gelu, narrow, block = names
        scale, bias, biases = weights(_WIDTH, scale=1.0), weights(_WIDTH, scale=0.1), weights(4 * _WIDTH, scale=0.1)
        nodes += [
            helper.make_node("MatMul", [x, weights(_WIDTH, _WIDTH)], [query], name=query),
            helper.make_node("FusedMatMul", [query, weights(_WIDTH, _WIDTH)], [attended], domain=_CONTRIB, transB=1, alpha=0.5),
            helper.make_node("SkipLayerNormalization", [attended, x, scale, bias], [norm], domain=_CONTRIB, epsilon=1e-5),
            helper.make_node("MatMul", [norm, weights(_WIDTH, 4 * _WIDTH)], [wide], name=wide),
            helper.make_node("BiasGelu", [wide, biases], [gelu], domain=_CONTRIB),
            helper.make_node("MatMul", [gelu, weights(4 * _WIDTH, _WIDTH)], [narrow], name=narrow),
            helper.make_node("Add", [narrow, norm], [block], name=block),
        ]
        x = block
    shape = [1, 16, _WIDTH]
    path = _save(folder / "model.onnx", nodes, {"input": shape}, {x: shape}, weights.made, domains={_CONTRIB: 1})
    return Sample(path, inputs={"input": np.random.default_rng(1).standard_normal(shape).astype(np.float32)})


def contrib_own(folder: Path) -> Sample:
    """Make distances to known points, with an op that only ONNX Runtime has."""
    weights = _Weights()
    nodes = [
        *_dense("input", "embedded", weights),
        helper.make_node("CDist", ["embedded", weights(32, _WIDTH)], ["distances"], domain=_CONTRIB, metric="euclidean"),
        helper.make_node("Neg", ["distances"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["output"]),
    ]
    shape = [8, _WIDTH]
    path = _save(folder / "model.onnx", nodes, {"input": shape}, {"output": [8, 32]}, weights.made, domains={_CONTRIB: 1})
    return Sample(path, inputs={"input": np.random.default_rng(1).standard_normal(shape).astype(np.float32)})


def many_ends(folder: Path) -> Sample:
    """Make several inputs and outputs: an input that is an output, an input read twice, an output that other ops read."""
    weights = _Weights()
    nodes = [
        *_dense("a", "left", weights),
        *_dense("b", "right", weights),
        helper.make_node("Add", ["left", "right"], ["sum"]),
        *_dense("sum", "first", weights),
        *_dense("first", "second", weights),
        helper.make_node("Identity", ["c"], ["handed on"]),
        helper.make_node("Mul", ["second", "c"], ["third"]),
    ]
    shape = [4, _WIDTH]
    ends = dict.fromkeys(("first", "second", "third", "handed on"), shape)
    return Sample(_save(folder / "model.onnx", nodes, dict.fromkeys("abc", shape), ends, weights.made))


def _chain(path: Path, names: Sequence[str], *, ir: int = 8, opset: int = 17, external: bool = False) -> Path:
    """Write consecutive linear layers whose values have the given names."""
    weights = _Weights()
    nodes = [node for x, y in itertools.pairwise(names) for node in _dense(x, y, weights)]
    shape = [4, _WIDTH]
    return _save(path, nodes, {names[0]: shape}, {names[-1]: shape}, weights.made, ir=ir, opset=opset, external=external)


def named(file: str, *names: str) -> Make:
    """Return a function that writes a chain of layers to a file of a given name, with given names of its values."""
    return lambda folder: Sample(_chain(folder / file, names))


def old(folder: Path) -> Sample:
    """Make IR version 3 and opset 9, where every weight is an input as well."""
    return Sample(_chain(folder / "model.onnx", ["input", *map(str, range(4)), "output"], ir=3, opset=9))


def external_weights(folder: Path) -> Sample:
    """Make a model with its weights in a separate file."""
    return Sample(_chain(folder / "model.onnx", ["input", *map(str, range(4)), "output"], external=True))


def intermediate(make: Make, *, half: bool = False) -> Make:
    """Return a function that writes a model as OpenVINO's IR; with ``half``, with weights in float16."""

    def saved(folder: Path) -> Sample:
        openvino = import_openvino()
        sample, path = make(folder), folder / "model.xml"
        openvino.save_model(openvino_core().read_model(sample.path), path, compress_to_fp16=half)
        return Sample(path, sample.shapes, sample.inputs)

    return saved
