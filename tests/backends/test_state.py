"""Caches that are inputs and outputs of a model become its state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from examples.decoder import TINY, write_decoder
from placeit import Session
from placeit.backends import load
from placeit.backends.openvino.state import expose_growing_states
from placeit.core.errors import ModelError, UsageError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.workbench.options import Inputs
from tests.stateful_models import SIZE, Caches, caches, totals
from tests.text_steps import generate, with_caches

openvino = import_openvino()

F, I64 = TensorProto.FLOAT, TensorProto.INT64
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
OPEN = {"input_ids": [1, "1..16@8/4"], "attention_mask": [1, "1..64@8/12"], "position_ids": [1, "1..16@8/4"]}


def names(specs):
    return [spec.name for spec in specs]


def runs(model):
    request = openvino_core().compile_model(model, "CPU", EXACT).create_infer_request()

    def run(inputs):
        answer = request.infer(inputs)
        return {name: np.array(answer[output]) for output in answer for name in output.get_names()}

    return run


@pytest.fixture
def joining(onnx_file):
    """Write a model that joins what it has seen with what is new, and adds up all of it."""

    def write(past, present, *, shape=(1, 2, None, 4), kinds=(F, F), given=None):
        nodes = [
            helper.make_node("Cast", [past], ["seen"], to=F),
            helper.make_node("Concat", ["seen", "x"], ["joined"], axis=2),
            helper.make_node("Cast", ["joined"], [present], to=kinds[1]),
            helper.make_node("ReduceSum", ["joined"], ["y"], keepdims=0),
        ]
        inputs = [("x", F, [1, 2, 1, 4]), (past, kinds[0], list(shape))]
        return onnx_file(nodes, inputs, [("y", F, []), (present, kinds[1], list(given or shape))])

    return write


@pytest.fixture
def recurrent(onnx_file):
    nodes = [helper.make_node("Add", ["h", "x"], ["h_next"]), helper.make_node("Neg", ["h_next"], ["y"])]
    sizes = [("x", F, [1, 4]), ("h", F, [None, 4]), ("other", I64, [1, 4])]
    nodes.append(helper.make_node("Identity", ["other"], ["same"]))
    return onnx_file(nodes, sizes, [("y", F, [1, 4]), ("h_next", F, [1, 4]), ("same", I64, [1, 4])])


@pytest.mark.parametrize("file", ["decoder.xml", "decoder.onnx", "products.xml"])
def test_the_caches_of_a_decoder_become_state(file, tmp_path):
    path = write_decoder(TINY, tmp_path / file.replace("products.xml", "decoder.onnx"), cache="inputs")
    if file == "products.xml":  # an IR whose attention is two products and a softmax
        openvino.save_model(openvino_core().read_model(path), tmp_path / file, compress_to_fp16=False)
        path = tmp_path / file
    model = load(path, input_shapes=OPEN)
    assert model.graph.hash == load(path, input_shapes=OPEN).graph.hash
    assert names(model.inputs) == ["input_ids", "attention_mask", "position_ids"]
    assert names(model.outputs) == ["logits"]
    assert names(model.states) == [past for past, _ in TINY.caches]
    whole = model.ov_model.clone()
    whole.reshape({name: openvino.PartialShape([1, -1]) for name in OPEN})
    explicit = openvino_core().read_model(path)
    text, logits = generate(with_caches(TINY, runs(explicit)), [3, 1, 4, 1, 5], 32)
    again, close = generate(runs(whole), [3, 1, 4, 1, 5], 32)
    assert again == text
    np.testing.assert_allclose(close, logits, atol=1e-5)
    kinds = [node.get_rt_info()["layerType"].astype(str) for node in compiled(whole).get_runtime_model().get_ops()]
    assert kinds.count("ScaledDotProductAttention") == TINY.layers


@pytest.mark.parametrize(("new", "seen", "lengths"), [("4/1", "4/5", [0, 4]), ("4/1/2", "4/5/7", [0, 4, 5]), ("4", "4", [0])])
def test_the_typical_state_is_what_the_requests_before_leave(tmp_path, new, seen, lengths):
    model = load(write_decoder(TINY, tmp_path / "decoder.xml"), input_shapes=sizes(new, seen))
    assert [shape[2] for shape in model.states[0].shapes or [model.states[0].shape]] == lengths


@pytest.mark.parametrize(("new", "seen"), [("1", "9"), ("4/1", "4/64"), ("4/1", "5/9"), ("4/4", "4/4")])
def test_typical_sizes_in_the_middle_of_a_text_are_refused(tmp_path, new, seen):
    path = write_decoder(TINY, tmp_path / "decoder.xml")
    with pytest.raises(UsageError, match=r"give typical sizes for the requests before it as well"):
        load(path, input_shapes=sizes(new, seen))


def sizes(new, seen):
    return {"input_ids": [1, f"1..16@{new}"], "attention_mask": [1, f"1..64@{seen}"], "position_ids": [1, f"1..16@{new}"]}


def test_a_decoder_is_measured_after_a_prompt(tmp_path):
    path = write_decoder(TINY, tmp_path / "decoder.onnx")
    with Session(path, "CPU@0", inputs=Inputs(shapes=sizes("8x0/1", "8/9")), cache=None) as session:
        placement = session.placement(np.zeros(len(session.grouping.groups), np.int32))
        report = session.run(replace(placement, segments=np.zeros(len(session.model.graph), np.int32)), runs=2, warmup=1)
    assert report.failed is None


def compiled(model):
    return openvino_core().compile_model(model, "CPU", EXACT)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.0.decoder.value", "present.0.decoder.value"),
        ("past_key_values.0.key", "present_key_values.0.key"),
        ("past_key_0", "present_key_0"),
        ("past_value_self_0", "present_value_self_0"),
        ("cache_params.past.conv.0", "cache_params.present.conv.0"),
        ("past_key_0_in", "past_key_0_out"),
    ],
)
def test_caches_are_known_by_the_names_that_exporters_give_them(joining, past, present):
    model = load(joining(past, present))
    assert (names(model.inputs), names(model.outputs), names(model.states)) == (["x"], ["y"], [past])
    assert model.states[0].shape[:2] == (1, 2)
    run = runs(model.ov_model)
    ones = np.ones((1, 2, 1, 4), np.float32)
    assert [float(run({"x": ones})["y"]) for _ in range(3)] == [8, 16, 24]


@pytest.mark.parametrize("order", [("y", "all", "present"), ("present", "all", "y")])
def test_a_cache_may_be_another_output_as_well(onnx_file, order):
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=2),
        helper.make_node("Identity", ["present"], ["all"]),
        helper.make_node("ReduceSum", ["present"], ["y"], keepdims=0),
    ]
    shapes = [("x", F, [1, 2, 1, 4]), ("past", F, [1, 2, None, 4])]
    path = onnx_file(nodes, shapes, [(name, F, [] if name == "y" else [1, 2, None, 4]) for name in order])
    model = load(path)
    assert (names(model.inputs), sorted(names(model.outputs)), names(model.states)) == (["x"], ["all", "y"], ["past"])
    run, ones = runs(model.ov_model), np.ones((1, 2, 1, 4), np.float32)
    assert [run({"x": ones})["all"].shape for _ in range(3)] == [(1, 2, length, 4) for length in (1, 2, 3)]


@pytest.mark.parametrize("change", [{"kinds": (F, I64)}, {"given": (1, 2, 5, 4), "shape": (1, 2, 4, 4)}])
def test_what_only_sounds_like_a_cache_stays_an_input(joining, change):
    model = load(joining("past", "present", **change), input_shapes={"past": [1, 2, 4, 4]})
    assert (names(model.inputs), names(model.outputs), model.states) == (["x", "past"], ["y", "present"], ())


def test_a_cache_stays_an_input_where_told_so(joining):
    path = joining("past", "present")
    for options in ({"state": "none"}, {}):
        model = load(path, input_shapes={"past": [1, 2, 4, 4]}, **options)
        assert (names(model.inputs), names(model.outputs), model.states) == (["x", "past"], ["y", "present"], ())
    with pytest.raises(ModelError, match="'past' has the open shape"):
        load(path, state="none")


def test_any_input_is_kept_as_state_where_told_so(recurrent):
    model = load(recurrent, state={"h": "h_next"})
    assert (names(model.inputs), names(model.outputs)) == (["x", "other"], ["y", "same"])
    assert [(spec.name, spec.shape, spec.limits) for spec in model.states] == [("h", (1, 4), None)]
    run, inputs = runs(model.ov_model), {"x": np.full((1, 4), 2, np.float32), "other": np.ones((1, 4), np.int64)}
    assert [run(inputs)["y"].tolist() for _ in range(2)] == [[[-2] * 4], [[-4] * 4]]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"k": "h_next"}, "no input 'k'"),
        ({"h": "next"}, "no output 'next'"),
        ({"h": "h_next", "x": "h_next"}, "'h_next' cannot be the state of 'h' and 'x' at once"),
        ({"other": "h_next"}, r"'other' is i64 \[1,4\] and the output 'h_next' f32 \[1,4\]"),
    ],
)
def test_what_cannot_be_state_is_said(recurrent, state, words):
    with pytest.raises(UsageError, match=words):
        load(recurrent, state=state)


def test_a_state_cannot_grow_from_one_fixed_size_to_another(joining):
    with pytest.raises(UsageError, match="export the model with an open size"):
        load(joining("past", "present", shape=(1, 2, 4, 4), given=(1, 2, 5, 4)), state={"past": "present"})


def test_only_files_that_openvino_reads_take_state():
    with pytest.raises(UsageError, match="ONNX files and OpenVINO IR"):
        load("chain-mm", state={"a": "b"})


def test_growing_states_are_exposed_as_inputs_and_outputs_and_others_stay(tmp_path):
    model = openvino_core().read_model(caches(tmp_path / "caches.xml", layers=2))
    made, initial = expose_growing_states(model)
    assert initial.keys() == {"cache0", "cache1"}
    assert len(model.get_variables()) == 2
    assert not made.get_variables()
    request = openvino_core().compile_model(made, "CPU", EXACT).create_infer_request()
    wanted, states = Caches(2), [*initial.values()]
    for rows in (3, 1, 2):
        x = np.random.default_rng(rows).standard_normal((1, rows, SIZE)).astype(np.float32)
        found = request.infer([x, *states])
        np.testing.assert_allclose(found[0], wanted.run(x), rtol=1e-4, atol=1e-5)
        states = [np.array(found[1]), np.array(found[2])]
    fixed = totals(2).ov_model
    same, none = expose_growing_states(fixed)
    assert not none
    assert len(same.get_variables()) == 2
