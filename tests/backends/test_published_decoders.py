"""Decoders in the forms in which exporters publish them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from examples.decoder import TINY, build_decoder, write_decoder
from placeit import Inputs, Session
from placeit.backends import load
from placeit.core.errors import ModelError, UsageError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from tests.text_steps import generate

openvino = import_openvino()

OPEN = {"input_ids": (1, "1..16@8/1"), "attention_mask": (1, "1..64@8/9"), "position_ids": (1, "1..16@8/1")}
PROMPT, STEPS = [3, 1, 4, 1, 5], 12


def in_parts(session, parts=2):
    part = np.arange(len(session.grouping.groups)) * parts // len(session.grouping.groups)
    return replace(session.placement(part % 2), segments=part[session.grouping.group_of].astype(np.int32))


def test_a_half_precision_ir_whose_states_begin_with_an_op_each_is_cut(tmp_path):
    """optimum-intel's IRs in float16 have a ``Broadcast`` for each variable, of the batch size of ``input_ids``."""
    ops, model = openvino.opset13, build_decoder(TINY, weights="float16", beam_idx=True)
    ids = next(port for port in model.get_parameters() if port.get_friendly_name() == "input_ids")
    batch = ops.gather(ops.shape_of(ids), ops.constant([0]), ops.constant(0))
    shape = ops.concat([batch, *(ops.constant([size]) for size in (TINY.groups, 0, TINY.head))], 0)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ReadValue":
            begin = ops.broadcast(ops.convert(ops.constant(np.float16(0)), "f32"), shape)
            node.input(0).replace_source_output(begin.output(0))
    model.validate_nodes_and_infer_types()
    openvino.save_model(model, tmp_path / "decoder.xml", compress_to_fp16=False)
    request = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    beams = {"beam_idx": np.zeros(1, np.int32)}
    wanted, _ = generate(lambda inputs: {"logits": request.infer(inputs | beams)["logits"]}, PROMPT, STEPS)
    inputs = Inputs(shapes=OPEN | {"beam_idx": (1,)})
    with (
        Session(tmp_path / "decoder.xml", "CPU@0,CPU@1", inputs=inputs, cache=None) as session,
        session.sequence(in_parts(session)) as sequence,
    ):
        assert generate(lambda inputs: sequence.run(inputs | beams), PROMPT, STEPS)[0] == wanted


def grouped_query(path, heads=4, kept=2, head=8, words=32):
    """Write a layer as onnxruntime-genai's builder does, which leaves the size of a head in its caches open."""
    rng = np.random.default_rng(0)

    def weights(*sizes):
        return rng.standard_normal(sizes).astype(np.float32)

    constants = {"table": weights(words, (heads + 2 * kept) * head), "w": weights(heads * head, words)}
    constants |= {"axis": np.array([1]), "one": np.array([1]), "first": np.array(1)}
    past, present = ([f"{name}.0.{part}" for part in ("key", "value")] for name in ("past_key_values", "present"))
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["qkv"]),
        helper.make_node("ReduceSum", ["attention_mask", "axis"], ["seen"], keepdims=1),
        helper.make_node("Sub", ["seen", "one"], ["before"]),
        helper.make_node("Cast", ["before"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["length"]),
        helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["qkv", "", "", *past, "seqlens_k", "total"],
            ["seen_by_all", *present],
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=kept,
        ),
        helper.make_node("MatMul", ["seen_by_all", "w"], ["logits"]),
    ]
    whole, number = TensorProto.INT64, TensorProto.FLOAT
    cache = ["batch", kept, "past", "kv_cache_dim"]
    inputs = [("input_ids", whole, ["batch", "new"]), ("attention_mask", whole, ["batch", "all"])]
    inputs += [(name, number, cache) for name in past]
    outputs = [("logits", number, ["batch", "new", words]), *((name, number, cache) for name in present)]
    graph = helper.make_graph(
        nodes,
        "grouped",
        *([helper.make_tensor_value_info(*value) for value in values] for values in (inputs, outputs)),
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path, dict.fromkeys(past, np.zeros((1, kept, 0, head), np.float32)), dict(zip(past, present, strict=True))


def test_the_size_of_a_head_is_known_from_the_attention_that_reads_a_cache(tmp_path):
    path, caches, following = grouped_query(tmp_path / "model.onnx")
    request = openvino_core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()

    def whole(inputs):
        found = request.infer(named(inputs) | caches)
        caches.update((name, np.array(found[other])) for name, other in following.items())
        return {"logits": np.array(found["logits"])}

    wanted, _ = generate(whole, PROMPT, STEPS)
    shapes = {name: OPEN[name] for name in ("input_ids", "attention_mask")}
    cases = (Inputs(shapes=shapes), "CPU@0,CPU@1"), (Inputs(context=64), "CPU@0,CPU@1"), (Inputs(context=64), "ort:CPU@0,CPU@1")
    for sizes, devices in cases:
        with Session(path, devices, inputs=sizes, cache=None) as session:
            assert [state.shape for state in session.model.states] == [(1, 2, 0, 8)] * 2
            with session.sequence(in_parts(session)) as sequence:
                assert generate(lambda inputs: sequence.run(named(inputs)), PROMPT, STEPS)[0] == wanted


def named(inputs):
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


@pytest.fixture
def folder(tmp_path):
    """A folder as hubs have them: a model beside the files of its tokenizer."""
    write_decoder(TINY, tmp_path / "openvino_model.xml", beam_idx=True)
    for name in ("config.json", "tokenizer.json", "openvino_tokenizer.xml"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_context_stands_for_the_shapes_of_all_inputs_of_a_model_in_a_folder(folder):
    with Session(folder, "CPU@0", inputs=Inputs(context=64, shapes={"beam_idx": (1,)}), cache=None) as session:
        assert session.model.path == folder / "openvino_model.xml"
        found = {spec.name: spec.sizes(session.model.times) for spec in session.model.inputs}
    assert found["input_ids"] == found["position_ids"] == [1, "1..64@32/1x32"]
    assert found["attention_mask"] == [1, "1..64@32/33x32"]
    assert found["beam_idx"] == [1]


def test_a_context_of_more_tokens_than_learned_positions_is_refused(tmp_path):
    decoder = replace(TINY, style="gpt2", positions=64)
    for path in (write_decoder(decoder, tmp_path / "decoder.xml"), write_decoder(decoder, tmp_path / "decoder.onnx")):
        assert load(path, context=64).inputs
        with pytest.raises(UsageError, match="knows 64 positions, and texts may have 65 tokens: give at most --context 64"):
            load(path, context=65)
    with pytest.raises(UsageError, match="at most 2147483647; got 2147483648"):
        load(path, context=1 << 31)


def test_a_decoder_with_open_sizes_asks_for_its_context(folder):
    with pytest.raises(ModelError, match=r"give the tokens of the longest text, as in `--context 1024`"):
        load(folder)


def test_a_context_is_refused_where_it_says_nothing(tmp_path, folder):
    write_decoder(TINY, tmp_path / "decoder.onnx")
    with pytest.raises(UsageError, match="is not a decoder, which has state and takes tokens"):
        load(tmp_path / "decoder.onnx", context=64, state="none")
    with pytest.raises(UsageError, match="A context has at least 2 tokens"):
        load(folder, context=1)


def by_name(model, name):
    return next(node for node in model.get_ordered_ops() if node.get_friendly_name() == name)


def with_open_heads(model):
    """Leave the number of heads of keys and values to be computed, as exporters of PyTorch do."""
    ops = openvino.opset13
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Reshape" and [*node.input_value(1).get_node().data] == [0, 0, TINY.groups, TINY.head]:
            node.input(1).replace_source_output(ops.constant([0, 0, -1, TINY.head]).output(0))
        elif node.get_friendly_name().startswith("past_key_values"):
            node.set_partial_shape(openvino.PartialShape([-1, -1, -1, TINY.head]))


def with_window(model, window=6):
    """Have each token see the last tokens alone, as Mistral's models do."""
    ops, mask = openvino.opset13, by_name(model, "mask")
    new, all_ = (
        ops.gather(ops.shape_of(by_name(model, name)), ops.constant(1), ops.constant(0))
        for name in ("input_ids", "attention_mask")
    )
    first, one = ops.constant(np.int64(0)), ops.constant(np.int64(1))
    rows = ops.unsqueeze(ops.range(ops.subtract(all_, new), all_, one, "i64"), ops.constant(1))
    near = ops.greater(ops.range(first, all_, one, "i64"), ops.subtract(rows, ops.constant(np.int64(window))))
    mask.input(0).replace_source_output(ops.logical_and(mask.input_value(0), near).output(0))


def with_experts(model, experts=4, chosen=2):
    """Have the tokens of each layer choose experts, each of which computes the tokens that chose it, as Mixtral's models do."""
    ops, rng, wide = openvino.opset13, np.random.default_rng(0), TINY.hidden

    def linear(x, *sizes):
        return ops.matmul(x, ops.constant(rng.standard_normal(sizes).astype(np.float32) / 4), False, True)

    def pick(x, number, axis=0):
        return ops.gather(x, ops.constant(number), ops.constant(axis))

    for layer in range(TINY.layers):
        sum_, normed = (by_name(model, f"layers.{layer}.feed_forward.{name}") for name in ("sum", "norm"))
        flat = ops.reshape(normed, ops.constant([-1, TINY.width]), False)
        best = ops.topk(linear(flat, experts, TINY.width), ops.constant(np.int64(chosen)), 1, "max", "value", "i64")
        shares, hot = ops.softmax(best.output(0), 1), (ops.constant(np.int64(number)) for number in (1, 0))
        who = ops.one_hot(best.output(1), ops.constant(np.int64(experts)), *hot, 2)
        total = ops.multiply(flat, ops.constant(np.float32(0)))
        for number in range(experts):
            found = ops.non_zero(pick(who, number, 2), "i64")
            tokens = pick(found, 0)
            share = ops.unsqueeze(ops.gather_nd(shares, ops.transpose(found, ops.constant([1, 0]))), ops.constant(1))
            inner = ops.swish(linear(ops.gather(flat, tokens, ops.constant(0)), wide, TINY.width))
            made = ops.multiply(linear(inner, TINY.width, wide), share)
            total = ops.scatter_nd_update(
                total, ops.unsqueeze(tokens, ops.constant(1)), ops.add(made, ops.gather(total, tokens, ops.constant(0)))
            )
        sum_.input(1).replace_source_output(ops.reshape(total, ops.shape_of(normed), False).output(0))


@pytest.mark.parametrize("change", [with_open_heads, with_window, with_experts])
def test_decoders_of_other_families_generate_the_tokens_of_plain_openvino_on_two_devices(change, tmp_path):
    model = build_decoder(TINY, cache="inputs")
    model.set_rt_info("f32", ["runtime_options", "KV_CACHE_PRECISION"])
    change(model)
    model.validate_nodes_and_infer_types()
    openvino.save_model(model, tmp_path / "decoder.xml", compress_to_fp16=False)
    request = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    past = {name: np.zeros((1, TINY.groups, 0, TINY.head), np.float32) for name, _ in TINY.caches}

    def plain(inputs):
        found = request.infer(inputs | past)
        past.update((name, np.array(found[following])) for name, following in TINY.caches)
        return {"logits": np.array(found["logits"])}

    wanted = generate(plain, PROMPT, STEPS)[0]
    with Session(tmp_path / "decoder.xml", "CPU@0,CPU@1", inputs=Inputs(context=64), cache=None) as session:
        for parts in (2, 9):
            with session.sequence(in_parts(session, parts)) as sequence:
                assert generate(sequence.run, PROMPT, STEPS)[0] == wanted
