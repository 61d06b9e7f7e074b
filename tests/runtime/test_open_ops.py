"""Ops with outputs of fixed sizes beside open ones, or of sizes that follow from values, cut off, at several sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from placeit.core.telemetry import import_onnxruntime
from placeit.session import Session
from placeit.workbench.options import Constraints, Inputs
from tests.open_models import TWO, Arrays, assert_close, at_one_size, divided

WIDTH = 4
SIZES = (5, 2, 12)  # the typical one; shorter; longer
RECURRENT = "turned = Transpose <perm=[1, 0, 2]> (h)\n"
WEIGHTS = {"LSTM": 4, "GRU": 3, "RNN": 1}
LENGTH = """
    size = Shape (h)
    length = Gather (size, one)
"""
BODIES = {
    **{
        kind: f"{RECURRENT} a, b = {kind} <hidden_size={WIDTH}> (turned, w{kind}, r{kind})"
        for kind in WEIGHTS
    },
    "LSTM_both_ways": f"{RECURRENT} a, b, c = LSTM <hidden_size={WIDTH}, direction=\"bidirectional\"> (turned, wboth, rboth)",
    "TopK": "a, b = TopK <axis=1> (h, two)",
    "TopK_half": LENGTH + "half = Div (length, two) most = Max (half, one) a, b = TopK <axis=1> (h, most)",
    "NonZero": "positive = Greater (h, zero_f) where = NonZero (positive) found = Cast <to=1> (where)"
    " a = ReduceSum <keepdims=1> (found, one) b = Shape (where)",
    "Loop": LENGTH + """
        times = Squeeze (length)
        a, b = Loop (times, yes, start) <body = step (int64 i, bool go, float[1, 4] held)
            => (bool goes, float[1, 4] next, float[1, 4] seen)
            { at = Unsqueeze (i, zero) here = Gather <axis=1> (h, at) flat = Squeeze (here, zero) next = Add (held, flat)
              seen = Tanh (next) goes = Identity (go) }>
    """,
    "Scan": "rows = Squeeze (h, zero) a, b = Scan <num_scan_inputs=1, body = step (float[4] held, float[4] row)"
    " => (float[4] next, float[4] seen) { next = Add (held, row) seen = Tanh (next) }> (start_row, rows)",
    "If": LENGTH + """
        long = Greater (length, four)
        chosen = Squeeze (long)
        a = If (chosen) <then_branch = yes () => (float[1, t, 4] p) { p = Relu (h) },
                         else_branch = no () => (float[1, t, 4] q) { q = Neg (h) }>
    """,
    "If_of_ranks": """
        size = Shape (h)
        texts = Gather (size, zero)
        single = Equal (texts, one)
        chosen = Squeeze (single)
        a = If (chosen) <then_branch = yes () => (float[t, 4] p) { p = Squeeze (h, zero) },
                         else_branch = no () => (float[1, t, 4] q) { q = Identity (h) }>
    """,
    "Resize_scales": 'image = Unsqueeze (h, zero) a = Resize <mode="linear"> (image, , scales)',
    "Resize_fixed": 'image = Unsqueeze (h, zero) a = Resize <mode="nearest"> (image, , , fixed)',
    "Reshape_zero": "a = Reshape (h, zeros_two)",
    "Reshape_rest": "a = Reshape (h, rest_four) b = Reshape (a, one_rest)",
    "Reshape_computed": LENGTH + "to = Concat <axis=0> (length, two, two) a = Reshape (h, to)",
    "Expand": "size = Shape (h) a = Expand (row, size)",
    "Tile": LENGTH + "times = Concat <axis=0> (length, one) a = Tile (row, times)",
    "Range": LENGTH + "end = Squeeze (length) a = Range (zero_s, end, one_s) b = Shape (a)",
    "OneHot": "most = ArgMax <axis=2, keepdims=0> (h) a = OneHot (most, depth, ends)",
    "OneHot_of_length": LENGTH + "last = Sub (length, one) a = OneHot (last, length, ends)",
    "ConstantOfShape": "size = Shape (h) a = ConstantOfShape <value = float[1] {2}> (size)",
    "Split_features": "a, b = Split <axis=2> (h, one_three)",
    "Split_length": LENGTH + "less = Sub (length, one) parts = Concat <axis=0> (one, less) a, b = Split <axis=1> (h, parts)",
    "Gather_last": LENGTH + "last = Sub (length, one) a = Gather <axis=1> (h, last)",
    "Gather_fixed": "a = Gather <axis=1> (h, places)",
    "GatherElements": "most = ArgMax <axis=1, keepdims=1> (h) a = GatherElements <axis=1> (h, most)",
    "GatherND": "a = GatherND (h, pairs)",
    "ScatterND": "a = ScatterND (h, pairs, two_rows)",
    "ScatterElements": "most = ArgMax <axis=1, keepdims=1> (h) a = ScatterElements <axis=1> (h, most, unit_row)",
    "RoiAlign": "image = Unsqueeze (h, zero) a = RoiAlign <output_height=2, output_width=2> (image, boxes, which)",
    "NonMaxSuppression": "scores = Transpose <perm=[0, 2, 1]> (h) square = Abs (h) boxed = Add (square, h)"
    " found = NonMaxSuppression (boxed, scores, two_s) made = Cast <to=1> (found) a = ReduceMax <keepdims=1, axes=[0]> (made)",
    "Slice_computed": LENGTH + "less = Sub (length, one) a = Slice (h, zero, less, one)",
    "Slice_last": "a = Slice (h, minus_one, many, one)",
    "Slice_first": "a = Slice (h, zero, two, one)",
    "Slice_steps": "a = Slice (h, zero, many, one, two)",
    "Pad": "a = Pad (h, pads)",
    "Pad_to_twelve": LENGTH + "lacking = Sub (twelve, length) at = Concat <axis=0> (zero, zero, zero, zero, lacking, zero)"
    " a = Pad (h, at)",
    "Concat_fixed": "a = Concat <axis=1> (three_rows, h)",
    "Cache": "b = Concat <axis=1> (three_rows, h) a = Slice (b, minus_two, many, one)",
    "Shape_chain": LENGTH + "flat = Mul (length, four) to = Concat <axis=0> (one, flat) a = Reshape (h, to) b = Shape (a)",
    "Size": "count = Size (h) a = Unsqueeze (count, zero)",
    "ReduceMax": "a = ReduceMax <axes=[1], keepdims=1> (h) b = Sub (h, a)",
    "ReduceMean": "a = ReduceMean <axes=[1], keepdims=0> (h)",
    "ArgMax": "a = ArgMax <axis=1> (h)",
    "GlobalAveragePool": "turned = Transpose <perm=[0, 2, 1]> (h) a = GlobalAveragePool (turned)",
    "MatMul_square": "turned = Transpose <perm=[0, 2, 1]> (h) a = MatMul (h, turned) b = MatMul (turned, h)",
    "Softmax": "a = Softmax <axis=1> (h)",
    "CumSum": "a = CumSum (h, one_s)",
    "Trilu": "turned = Transpose <perm=[0, 2, 1]> (h) square = MatMul (h, turned) a = Trilu (square)",
    "EyeLike": "rows = Squeeze (h, zero) a = EyeLike (rows)",
    "Einsum": 'a = Einsum <equation="bti,btj->bij"> (h, h)',
    "ReverseSequence": LENGTH + "a = ReverseSequence <batch_axis=0, time_axis=1> (h, length)",
    "Where": "positive = Greater (h, zero_f) a = Where (positive, h, row)",
    "SpaceToDepth": "image = Unsqueeze (h, zero) wide = Tile (image, doubled) a = SpaceToDepth <blocksize=2> (wide)",
    "Unique": "a, at = Unique (h) b = Shape (h)",
}  # fmt: skip
CONSTANTS = {
    **{f"w{kind}": np.random.default_rng(1).standard_normal((1, n * WIDTH, WIDTH)) / 2 for kind, n in WEIGHTS.items()},
    **{f"r{kind}": np.random.default_rng(2).standard_normal((1, n * WIDTH, WIDTH)) / 2 for kind, n in WEIGHTS.items()},
    "wboth": np.random.default_rng(3).standard_normal((2, 4 * WIDTH, WIDTH)) / 2,
    "rboth": np.random.default_rng(4).standard_normal((2, 4 * WIDTH, WIDTH)) / 2,
    "weight": np.random.default_rng(5).standard_normal((WIDTH, WIDTH)),
    "zero": [0], "one": [1], "two": [2], "four": [4], "twelve": [12], "minus_one": [-1], "minus_two": [-2],
    "many": [1 << 40], "zero_s": 0, "one_s": 1, "two_s": 2, "depth": 5, "yes": True, "zero_f": 0.0,
    "start": [[0.0] * 4], "start_row": [0.0] * 4, "row": [[1.0, 2.0, 3.0, 4.0]], "unit_row": [[[1.0] * 4]],
    "three_rows": np.ones((1, 3, 4)), "two_rows": np.ones((2, 4)), "scales": [1.0, 1.0, 2.0, 1.0], "fixed": [1, 1, 6, 4],
    "zeros_two": [0, 0, 2, 2], "rest_four": [-1, 4], "one_rest": [1, -1], "one_three": [1, 3], "places": [0, 1, 1],
    "pairs": [[0, 0], [0, 1]], "boxes": [[0.0, 0.0, 3.0, 1.0]], "which": [0], "pads": [0, 1, 0, 0, 2, 0],
    "doubled": [1, 1, 2, 1], "ends": [0.0, 1.0],
}  # fmt: skip


def written(name: str, folder: Path) -> Path:
    """Write an op between a product and a sum; outputs are its outputs ``a``, ``b`` and ``c``, and what is before it."""
    body = BODIES[name]
    made = [each for each in "abc" if f"{each} =" in body or f"{each}," in body]
    ends = "\n".join(f"y{each} = Add ({each}, {each})" for each in made)
    outputs = ", ".join(f"float[] y{each}" for each in made)
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[1, t, {WIDTH}] x) => ({outputs}, float[] y) {{
        before = MatMul (x, weight)
        h = Tanh (before)
        {body}
        {ends}
        y = Relu (h)
    }}"""
    model = onnx.parser.parse_model(text)
    read = {each for node in model.graph.node for each in node.input}
    read |= {each for node in model.graph.node for part in node.attribute for inner in part.g.node for each in inner.input}
    for constant, value in CONSTANTS.items():
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        if constant in read:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, constant))
    for output in model.graph.output:
        output.type.Clear()
    model = onnx.shape_inference.infer_shapes(model)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.two_cores
@pytest.mark.parametrize("runtime", ["", "ort:"], ids=["openvino", "onnxruntime"])
@pytest.mark.parametrize("name", BODIES)
def test_an_op_computes_the_same_at_every_size_wherever_its_model_is_cut(name: str, runtime: str, tmp_path: Path) -> None:
    path, rng = written(name, tmp_path), np.random.default_rng(0)
    plain = _onnxruntime(path) if runtime else functools.partial(at_one_size, path)
    given = Inputs(shapes={"x": (1, f"2..12@{SIZES[0]}", WIDTH)})
    devices = [runtime + device for device in TWO]
    with Session(path, devices, inputs=given, constraints=Constraints(max_groups=100), cache=None) as session:
        everywhere = divided(session, len(session.grouping.groups))
        with session.executor(session.plan_of(everywhere)) as executor:
            for size in SIZES:
                inputs: Arrays = {"x": rng.standard_normal((1, size, WIDTH)).astype(np.float32)}
                assert_close(executor.run(inputs), plain(inputs))


def _onnxruntime(path: Path) -> Callable[[Arrays], Arrays]:
    plain = import_onnxruntime().InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in plain.get_outputs()]
    return lambda inputs: dict(zip(names, plain.run(names, inputs), strict=True))
