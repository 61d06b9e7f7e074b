"""Decoders compute the logits of the last token of a step alone, unless all are asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from examples.decoder import TINY, build_decoder, write_decoder
from placeit import Inputs, Session
from placeit.backends import load
from placeit.backends.onnx.last_logits import keep_last_logits
from placeit.core.telemetry import import_openvino
from tests.text_steps import feed

openvino = import_openvino()

OPEN = {"input_ids": (1, "1..16@8/1"), "attention_mask": (1, "1..64@8/9"), "position_ids": (1, "1..16@8/1")}


def capped(path):
    """Write a decoder whose logits have a bias, and are capped softly and in float16 at last."""
    ops, model = openvino.opset13, build_decoder(TINY)
    result = model.get_results()[0]
    biased = ops.add(ops.constant(np.full((1, 1, TINY.vocabulary), 0.5, np.float32)), result.input_value(0))
    half = ops.convert(ops.multiply(ops.tanh(biased), ops.constant(np.float32(30))), "f16")
    result.input_value(0).set_names(set())
    result.input(0).replace_source_output(half.output(0))
    half.output(0).set_names({"logits"})
    model.validate_nodes_and_infer_types()
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


def normalised(path):
    """Write a decoder whose logits no product makes."""
    ops, model = openvino.opset13, build_decoder(TINY)
    result = model.get_results()[0]
    made = ops.log_softmax(result.input_value(0), 2)
    result.input_value(0).set_names(set())
    result.input(0).replace_source_output(made.output(0))
    made.output(0).set_names({"logits"})
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


def adapted(path):
    """Write a decoder with a LoRA adapter beside the product that makes the logits."""
    ops, model = openvino.opset13, build_decoder(TINY)
    result, rng = model.get_results()[0], np.random.default_rng(0)
    tokens = result.input_value(0).get_node().input_value(0)
    for rows, columns in ((TINY.width, 4), (4, TINY.vocabulary)):
        weights = rng.standard_normal((rows, columns)).astype(np.float32)
        tokens = ops.matmul(tokens, ops.constant(weights), transpose_a=False, transpose_b=False)
    made = ops.add(result.input_value(0), tokens)
    result.input_value(0).set_names(set())
    result.input(0).replace_source_output(made.output(0))
    made.output(0).set_names({"logits"})
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


@pytest.mark.parametrize("make", [lambda path: write_decoder(TINY, path), capped, normalised, adapted])
def test_the_logits_of_the_last_token_are_the_ones_among_all(make, tmp_path):
    path = make(tmp_path / "decoder.xml")
    last, every = (load(path, input_shapes=OPEN, logits=which) for which in ("last", "all"))
    assert [model.outputs[0].name for model in (last, every)] == ["logits", "logits"]
    assert last.outputs[0].sizes() == [1, 1, TINY.vocabulary]
    found, wanted = (model.reference(None, "f32")(feed([3, 1, 4, 1, 5], 0))["logits"] for model in (last, every))
    assert wanted.shape == (1, 5, TINY.vocabulary)
    np.testing.assert_allclose(found, wanted[:, -1:], atol=1e-3)
    if make not in (normalised, adapted):  # the product has one token
        product = next(node for node in last.ov_model.get_ops() if node.get_friendly_name() == "logits")
        assert product.get_output_shape(0)[1] == 1


@pytest.mark.parametrize("devices", ["CPU@0", "CPU@0,ort:CPU@1"])
def test_segments_of_both_runtimes_compute_them_for_the_last_token(devices, tmp_path):
    path = write_decoder(TINY, tmp_path / "decoder.onnx")
    wanted = load(path, input_shapes=OPEN, logits="all").reference(None, "f32")(feed([3, 1, 4, 1, 5], 0))["logits"]
    with Session(path, devices, inputs=Inputs(shapes=OPEN), cache=None) as session:
        groups = np.arange(len(session.grouping.groups)) * len(session.cluster.devices) // len(session.grouping.groups)
        placed = session.placement(groups)
        with session.sequence(replace(placed, segments=groups[session.grouping.group_of].astype(np.int32))) as sequence:
            found = sequence.run(feed([3, 1, 4, 1, 5], 0))["logits"]
    assert found.shape == (1, 1, TINY.vocabulary)
    np.testing.assert_allclose(found, wanted[:, -1:], atol=0.01)


def test_models_without_state_keep_all_their_logits(tmp_path):
    path = write_decoder(TINY, tmp_path / "decoder.onnx")
    shapes = {"input_ids": (1, 4), "attention_mask": (1, 9), "position_ids": (1, 4)}
    shapes |= {taken: (1, TINY.groups, 5, TINY.head) for taken, _ in TINY.caches}
    assert load(path, input_shapes=shapes, state="none").outputs[0].shape == (1, 4, TINY.vocabulary)


HEADS = {  # ops that make logits of x, float[1, n, 4], and the tensor of which the last token is selected
    "product": ("logits = MatMul (x, w)", "x"),
    "scaled": ("half = Constant <value = float {0.5}> () all = MatMul (x, w) logits = Mul (half, all)", "x"),
    "turned weights": ("v = Transpose <perm = [1, 0]> (w) logits = MatMul (x, v)", "x"),
    "adapter": ("a = MatMul (x, w) b = MatMul (x, u) logits = Add (a, b)", "logits/all"),
    "gate": ("a = MatMul (x, w) g = Tanh (a) logits = Mul (a, g)", "logits/all"),
    "weights first": ("logits = MatMul (w, x)", "logits/all"),
    "shares": ("a = MatMul (x, w) logits = Tanh (a) other = Softmax <axis = 2> (logits)", "logits/all"),
    "bare": ("other = MatMul (x, w) logits = Tanh (other)", "logits/all"),
}


@pytest.mark.parametrize("head", HEADS)
def test_onnx_runtime_selects_the_last_token_before_a_product_that_makes_the_logits_alone(head):
    nodes, selected = HEADS[head]
    more = ", float[1, n, 4] other" if "other" in nodes else ""
    size = "4" if head == "weights first" else "n"
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        head (float[1, {size}, 4] x) => (float[1, m, 4] logits{more}) {{ {nodes} }}"""
    )
    rng = np.random.default_rng(0)
    for name in ("w", "u"):
        weights = rng.standard_normal((4, 4)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    values = {"x": rng.standard_normal((1, 4, 4)).astype(np.float32)}
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, values)
    keep_last_logits(proto)
    found = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, values)
    np.testing.assert_allclose(found[0], wanted[0][:, -1:], atol=1e-6)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert [node.input[0] for node in proto.graph.node if node.op_type == "Gather"] == [selected]
