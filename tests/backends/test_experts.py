"""Decoders whose layers have experts, as exporters of PyTorch write Mixtral's: each computes the tokens that chose it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from examples.decoder import TINY, write_decoder
from placeit import Inputs, Session
from placeit.core.telemetry import import_onnxruntime, import_openvino
from tests.open_models import TWO
from tests.text_steps import generate, with_caches

openvino = import_openvino()

EXPERTS, WIDTH, WIDE = 4, TINY.width, TINY.hidden
PROMPT, STEPS = [3, 1, 4, 1, 5], 12
_LAYER = """
    size = Shape (x)
    texts = Gather (size, zero)
    new = Gather (size, one)
    width = Gather (size, two)
    wide = Unsqueeze (width, axis_0)
    to_flat = Concat <axis=0> (rest, wide)
    flat = Reshape (x, to_flat)
    scores = MatMul (flat, gate)
    all_shares = Softmax <axis=1> (scores)
    best, chosen = TopK <axis=1> (all_shares, axis_2)
    sum = ReduceSum <keepdims=1> (best, axis_1)
    shares = Div (best, sum)
    hot = OneHot (chosen, experts, ends)
    by_expert = Transpose <perm=[2, 1, 0]> (hot)
    rows = Mul (texts, new)
    all_rows = Unsqueeze (rows, axis_0)
    to_zeros = Concat <axis=0> (all_rows, wide)
    total_0 = ConstantOfShape <value = float[1] {{0}}> (to_zeros)
    {experts}
    y = Reshape (total_4, size)
"""
_EXPERT = """
    mask_{0} = Gather (by_expert, number_{0})
    found_{0} = NonZero (mask_{0})
    rank_{0}, token_{0} = Split <axis=0> (found_{0}, halves)
    tokens_{0} = Squeeze (token_{0}, axis_0)
    taken_{0} = Gather (flat, tokens_{0})
    in_{0} = MatMul (taken_{0}, in_weight_{0})
    gated_{0} = Sigmoid (in_{0})
    inner_{0} = Mul (in_{0}, gated_{0})
    out_{0} = MatMul (inner_{0}, out_weight_{0})
    pairs_{0} = Concat <axis=0> (token_{0}, rank_{0})
    places_{0} = Transpose <perm=[1, 0]> (pairs_{0})
    share_{0} = GatherND (shares, places_{0})
    column_{0} = Unsqueeze (share_{0}, axis_1)
    made_{0} = Mul (out_{0}, column_{0})
    made_size_{0} = Shape (made_{0})
    index_{0} = Unsqueeze (tokens_{0}, axis_1)
    indices_{0} = Expand (index_{0}, made_size_{0})
    total_size_{0} = Shape (total_{0})
    zeros_{0} = ConstantOfShape <value = float[1] {{0}}> (total_size_{0})
    added_{0} = ScatterElements <axis=0, reduction="add"> (zeros_{0}, indices_{0}, made_{0})
    total_{1} = Add (total_{0}, added_{0})
"""


def weights(layer: int) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(layer)
    for name, value in (("zero", 0), ("one", 1), ("two", 2), ("experts", EXPERTS), ("rest", [-1]), ("halves", [1, 1])):
        yield name, np.array(value)
    for number in range(EXPERTS):
        yield f"number_{number}", np.array(number)
        yield f"axis_{number}", np.array([number])
        yield f"in_weight_{number}", rng.standard_normal((WIDTH, WIDE)).astype(np.float32) / 4
        yield f"out_weight_{number}", rng.standard_normal((WIDE, WIDTH)).astype(np.float32) / 4
    yield "ends", np.array([0, 1])
    yield "gate", rng.standard_normal((WIDTH, EXPERTS)).astype(np.float32)


def with_experts(graph: onnx.GraphProto) -> None:
    """Replace the feed-forward networks by experts."""
    body = _LAYER.format(experts="".join(_EXPERT.format(number, number + 1) for number in range(EXPERTS)))
    text = f'<ir_version: 8, opset_import: ["": 20]> g (float[b, t, {WIDTH}] x) => (float[] y) {{ {body} }}'
    for layer in range(TINY.layers):
        prefix = f"layers.{layer}.experts."
        nodes = onnx.parser.parse_model(text).graph.node
        for node in nodes:
            for names in (node.input, node.output):
                names[:] = [prefix + name if name != "x" else f"layers.{layer}.feed_forward.norm" for name in names]
            node.name = node.output[0]
        last = next(i for i, node in enumerate(graph.node) if node.name == f"layers.{layer}.feed_forward.sum")
        graph.node[last].input[1] = prefix + "y"
        for place, node in enumerate(nodes):
            graph.node.insert(last + place, node)
        graph.initializer.extend(numpy_helper.from_array(value, prefix + name) for name, value in weights(layer))


def with_computed_shapes(graph: onnx.GraphProto) -> None:
    """Have the heads of queries, keys and values get their sizes from the sizes of another tensor."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes, norm = list(graph.node), ""
    graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    for place in reversed(range(len(nodes))):
        node = nodes[place]
        to = constants.get(node.input[1], np.empty(0)) if node.op_type == "Reshape" else np.empty(0)
        if to.shape != (4,) or not np.array_equal(to[:2], [0, 0]):
            continue
        norm = next(other.name for other in reversed(nodes[:place]) if other.name.endswith("attention.norm"))
        made = [onnx.helper.make_node("Shape", [norm], [f"{node.name}.size"])]
        for axis in (0, 1):
            number, one = f"{node.name}.axis.{axis}", f"{node.name}.{axis}"
            graph.initializer.append(numpy_helper.from_array(np.array(axis), number))
            made.append(onnx.helper.make_node("Gather", [f"{node.name}.size", number], [one]))
            made.append(onnx.helper.make_node("Unsqueeze", [one, "first"], [f"{one}.row"]))
        graph.initializer.append(numpy_helper.from_array(to[2:], f"{node.name}.heads"))
        ends = [f"{node.name}.0.row", f"{node.name}.1.row", f"{node.name}.heads"]
        made.append(onnx.helper.make_node("Concat", ends, [f"{node.name}.to"], axis=0))
        graph.node[place].input[1] = f"{node.name}.to"
        for more, other in enumerate(made):
            other.name = other.output[0]
            graph.node.insert(place + more, other)


def written(path: Path, *changes: Callable[[onnx.GraphProto], None]) -> Path:
    proto = onnx.load(write_decoder(TINY, path))
    for change in changes:
        change(proto.graph)
    onnx.save(proto, path)
    return path


def tokens(path: Path) -> list[int]:
    """Return the text that ONNX Runtime generates from the file."""
    session = import_onnxruntime().InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    run = with_caches(TINY, lambda inputs: dict(zip(names, session.run(None, inputs), strict=True)))
    return generate(run, PROMPT, STEPS)[0]


def check(path: Path, devices: list[str], wanted: list[int]) -> None:
    """Place each expert on another device than the one before, and compare the text."""
    with Session(path, devices, inputs=Inputs(context=64), cache=None) as session:
        of = np.zeros(len(session.grouping.groups), np.int64)
        experts: dict[int, set[tuple[str, str]]] = {}
        for op, name in enumerate(session.model.graph.names):
            found = re.search(r"layers\.(\d)\.experts\.(?:in|out)_(\d)$", name)
            if found:
                group = int(session.grouping.group_of[op])
                experts.setdefault(group, set()).add((found[1], found[2]))
                of[group] = int(found[2]) % 2
        if experts:
            assert [len(each) for each in experts.values()] == [1] * (TINY.layers * EXPERTS)
        else:
            of[len(of) // 2 :] = 1
        segments = np.cumsum(np.diff(of, prepend=of[:1]) != 0)[session.grouping.group_of].astype(np.int32)
        with session.sequence(replace(session.placement(of), segments=segments)) as sequence:
            assert generate(sequence.run, PROMPT, STEPS)[0] == wanted


CLUSTERS = [TWO, [f"ort:{device}" for device in TWO], [f"ort:{TWO[0]}", TWO[1]]]


@pytest.mark.two_cores
@pytest.mark.parametrize("devices", CLUSTERS, ids=["openvino", "ort", "both"])
def test_experts_of_a_decoder_are_placed_one_by_one(devices: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", with_experts, with_computed_shapes)
    check(path, devices, tokens(path))


@pytest.mark.two_cores
def test_experts_of_a_decoder_as_ir_are_placed_one_by_one(tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", with_experts)
    model = openvino.convert_model(path)
    model.set_rt_info("f32", ["runtime_options", "KV_CACHE_PRECISION"])
    openvino.save_model(model, tmp_path / "openvino_model.xml", compress_to_fp16=False)
    check(tmp_path / "openvino_model.xml", TWO, tokens(path))


@pytest.mark.two_cores
@pytest.mark.parametrize("devices", CLUSTERS[1:], ids=["ort", "both"])
def test_onnx_runtime_runs_decoders_whose_reshapes_read_sizes_of_other_tensors(devices: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "model.onnx", with_computed_shapes)
    check(path, devices, tokens(path))


@pytest.mark.two_cores
def test_a_placement_without_onnx_runtime_fits_a_cluster_with_it(tmp_path: Path) -> None:
    path, both = written(tmp_path / "model.onnx", with_computed_shapes), CLUSTERS[2]
    with Session(path, TWO, inputs=Inputs(context=64), cache=None) as session:
        graph = session.model.graph
    for wanted in (graph.hash, graph.structure):
        with Session(path, both, inputs=Inputs(context=64), cache=None, graph=wanted) as session:
            assert session.model.graph.hash == graph.hash
