"""Parts cut out of a model, run one after the other, give what the whole model gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.backends.openvino.segment import channels_last_tensors, extract
from placeit.core.graph import OpGraph
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import coarsen
from tests.small_models import inception_like

ops = ov.opset13
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def crossing(graph: OpGraph, part_of: NDArray[np.int32], part: int) -> tuple[list[int], list[int]]:
    ends = part_of[graph.edges]
    entering = graph.edge_tensor[(ends[:, 1] == part) & (ends[:, 0] != part)]
    leaving = graph.edge_tensor[(ends[:, 0] == part) & (ends[:, 1] != part)]
    return np.unique(entering).tolist(), np.unique(leaving).tolist()


def run_in_parts(
    model: OpenVinoModel, part_of: NDArray[np.int32], channels_last: frozenset[int]
) -> dict[str, NDArray[np.float32]]:
    """Compile and run parts in order; tensors between them stay as the parts made them."""
    graph, core = model.graph, openvino_core()
    inputs = model.random_inputs()
    held: dict[int, NDArray[np.float32]] = {}
    answers: dict[str, NDArray[np.float32]] = {}
    name_of = {spec.op: spec.name for spec in (*model.inputs, *model.outputs)}
    for part in range(int(part_of.max()) + 1):
        members = np.flatnonzero(part_of == part).tolist()
        entering, leaving = crossing(graph, part_of, part)
        piece = extract(model.ov_model, model.view, graph, members, entering, leaving, channels_last)
        given = [held[t] for t in entering]
        given += [inputs[name_of[graph.names[v]]] for v in members if graph.kinds[v] == "Parameter"]
        values = core.compile_model(piece, "CPU", F32)(given)
        results = [np.array(values[i]) for i in range(len(piece.outputs))]
        held |= dict(zip(leaving, results, strict=False))
        ends = [name_of[graph.names[v]] for v in members if graph.kinds[v] == "Result"]
        answers |= dict(zip(ends, results[len(leaving) :], strict=True))
    return answers


def whole(model: OpenVinoModel) -> dict[str, NDArray[np.float32]]:
    inputs = model.random_inputs()
    values = openvino_core().compile_model(model.ov_model, "CPU", F32)([inputs[spec.name] for spec in model.inputs])
    return {spec.name: np.array(values[i]) for i, spec in enumerate(model.outputs)}


@settings(max_examples=15)
@given(st.lists(st.integers(0, 45), max_size=6), st.booleans())
def test_cutting_anywhere_in_topological_order_changes_no_output(cuts: list[int], images_last: bool) -> None:
    model = inception_like()
    part_of = np.searchsorted(sorted(set(cuts)), np.arange(len(model.graph)), side="right").astype(np.int32)
    part_of = np.unique(part_of, return_inverse=True)[1].astype(np.int32)
    channels_last = channels_last_tensors(model.graph) if images_last else frozenset()
    answers = run_in_parts(model, part_of, channels_last)
    for name, expected in whole(model).items():
        np.testing.assert_allclose(answers[name], expected, rtol=1e-4, atol=1e-4)


def test_every_group_alone_gives_the_outputs_of_the_whole() -> None:
    model = inception_like(1)
    answers = run_in_parts(model, coarsen(model.graph).group_of, channels_last_tensors(model.graph))
    for name, expected in whole(model).items():
        np.testing.assert_allclose(answers[name], expected, rtol=1e-4, atol=1e-4)


def test_the_model_that_is_cut_is_not_changed() -> None:
    model = inception_like()
    before = [
        (node.get_friendly_name(), [i.get_node().get_friendly_name() for i in node.input_values()])
        for node in model.ov_model.get_ordered_ops()
    ]
    run_in_parts(model, coarsen(model.graph).group_of, channels_last_tensors(model.graph))
    after = [
        (node.get_friendly_name(), [i.get_node().get_friendly_name() for i in node.input_values()])
        for node in model.ov_model.get_ordered_ops()
    ]
    assert before == after


def test_images_are_what_convolutions_make_and_what_is_made_of_that_element_by_element() -> None:
    model = inception_like()
    graph = model.graph
    last = channels_last_tensors(graph)
    kinds = {graph.kinds[graph.tensor_op[t]] for t in last}
    assert {"Convolution", "Relu", "Concat", "AvgPool"} <= kinds
    assert not kinds & {"Parameter", "ReduceMean", "MatMul"}


def test_sums_of_images_and_what_only_they_read_stay_plain() -> None:
    model = inception_like()
    graph = model.graph
    last = channels_last_tensors(graph)
    total = next(v for v, kind in enumerate(graph.kinds) if kind == "Add")
    read = {int(t): int(u) for (u, v), t in zip(graph.edges, graph.edge_tensor, strict=True) if v == total}
    assert not any(graph.tensor_op[t] == total for t in last)
    # the branch with the convolution is read by the sum alone; the other one goes into that convolution as well
    assert {graph.kinds[u] for t, u in read.items() if t not in last} == {"Relu"}
    assert {graph.kinds[u] for t, u in read.items() if t in last} == {"Concat"}


def test_a_concatenation_alone_needs_no_transpose_between_images() -> None:
    model = inception_like()
    graph = model.graph
    concat = next(v for v, kind in enumerate(graph.kinds) if kind == "Concat")
    part_of = np.where(np.arange(len(graph)) == concat, 1, 0).astype(np.int32)
    entering, leaving = crossing(graph, part_of, 1)
    piece = extract(model.ov_model, model.view, graph, [concat], entering, leaving, channels_last_tensors(graph))
    kinds = [node.get_type_name() for node in piece.get_ops()]
    assert "Concat" in kinds
    assert "Transpose" not in kinds


def test_a_tensor_that_a_part_only_hands_on_can_enter_and_leave_it() -> None:
    x = ops.parameter([2, 3], ov.Type.f32, name="x")
    doubled = ops.add(x, x)
    model = describe(ov.Model([ops.result(doubled), ops.result(ops.tanh(doubled))], [x], "m"), Path("m"))
    part_of = np.arange(len(model.graph), dtype=np.int32)
    answers = run_in_parts(model, part_of, frozenset())
    for name, expected in whole(model).items():
        np.testing.assert_allclose(answers[name], expected, rtol=1e-6)
    assert len(answers) == 2


@pytest.mark.parametrize("dtype", [ov.Type.i64, ov.Type.boolean])
def test_integers_and_booleans_cross_a_border_unchanged(dtype: ov.Type) -> None:
    x = ops.parameter([4], ov.Type.i64, name="x")
    middle = ops.add(x, ops.constant(np.array([1], np.int64)))
    value = middle if dtype == ov.Type.i64 else ops.greater(middle, ops.constant(np.array([1], np.int64)))
    model = describe(ov.Model([ops.result(ops.convert(value, "f32"))], [x], "m"), Path("m"))
    answers = run_in_parts(model, np.arange(len(model.graph), dtype=np.int32), frozenset())
    assert len(answers) == 1
    for name, expected in whole(model).items():
        np.testing.assert_array_equal(answers[name], expected)
