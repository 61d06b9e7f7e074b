"""Decoders cut between their layers: each segment keeps only its layers' caches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from examples.decoder import TINY, build_decoder, write_decoder
from examples.generate_text import step_inputs
from placeit import Session
from placeit.backends import load
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import LARGEST, coarsen
from placeit.workbench.options import Inputs
from tests.text_steps import generate

openvino = import_openvino()

OPEN = {"input_ids": [1, "1..16@9/1"], "attention_mask": [1, "1..128@9/10"], "position_ids": [1, "1..16@9/1"]}
FUSED = ("ScaledDotProductAttention", "MemoryInput", "MemoryOutput", "RoPE", "RMS", "FullyConnected")
FILES = {
    "llama.xml": (TINY, {}),
    "gpt2.xml": (replace(TINY, style="gpt2"), {"beam_idx": True}),
    "int4.xml": (replace(TINY, hidden=128), {"weights": "int4"}),
    "inputs.onnx": (TINY, {}),
}


@pytest.fixture(scope="module", params=FILES)
def decoder(request, tmp_path_factory):
    """A decoder, and the groups of its ops."""
    sizes, options = FILES[request.param]
    path = write_decoder(sizes, tmp_path_factory.mktemp("decoder") / request.param, **options)
    shapes = OPEN | ({"beam_idx": [1]} if "beam_idx" in options else {})
    model = load(path, input_shapes=shapes)
    grouping = coarsen(model.graph, keep_together=model.together, pairs=model.pairs, largest=LARGEST)
    return model, [list(grouping.members(g)) for g in range(len(grouping.groups))]


def compiled(model):
    return openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def layers(program):
    return Counter(node.get_rt_info()["layerType"].astype(str) for node in program.get_runtime_model().get_ops())


def cut(model, parts):
    """Cut ops in topological order into parts; return the compiled segments."""
    graph = model.graph
    edges = [(u, v, t) for (u, v), t in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True)]
    programs = []
    for part in parts:
        inside = {graph.index[name] for name in part}
        enter = sorted({t for u, v, t in edges if v in inside and u not in inside})
        leave = sorted({t for u, v, t in edges if u in inside and v not in inside})
        programs.append(compiled(model.segment("openvino", sorted(inside), enter, leave)))
    return programs


def one_after_the_other(model, programs):
    """Return what runs segments of a model with a request for each, which keeps its state."""
    requests = [program.create_infer_request() for program in programs]

    def run(inputs):
        known = {"beam_idx": np.zeros(1, np.int32), **inputs}
        for program, request in zip(programs, requests, strict=True):
            names = [port.get_node().get_friendly_name().removeprefix("enters ") for port in program.inputs]
            answer = request.infer([known[name] for name in names])
            for i, port in enumerate(program.outputs):
                known[port.get_node().get_friendly_name().removeprefix("leaves ")] = np.array(answer[i])
        return {"logits": known[model.outputs[0].op]}

    return run


def test_the_state_of_each_layer_is_a_group_with_its_attention(decoder):
    model, groups = decoder
    kinds = [Counter(model.graph.kinds[model.graph.index[name]] for name in group) for group in groups]
    stateful = [found for found in kinds if found["ReadValue"] or found["Assign"]]
    assert [(found["ReadValue"], found["Assign"], found["ScaledDotProductAttention"]) for found in stateful] == [(2, 2, 1)] * 2
    assert len(groups) < 18 * TINY.layers


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_decoder_in_two_segments_generates_the_text_of_the_whole(decoder, share):
    model, groups = decoder
    at = round(share * len(groups))
    programs = cut(model, [list(chain(*groups[:at])), list(chain(*groups[at:]))])
    whole = compiled(model.ov_model)
    text, logits = generate(one_after_the_other(model, [whole]), [3, 1, 4, 1, 5], 64)
    again, same = generate(one_after_the_other(model, programs), [3, 1, 4, 1, 5], 64)
    assert again == text
    np.testing.assert_array_equal(same, logits)
    fused = sum(map(layers, programs), Counter())
    assert {kind: fused[kind] for kind in FUSED} == {kind: layers(whole)[kind] for kind in FUSED}


def test_properties_that_a_model_asks_for_reach_its_segments(tmp_path):
    """Here, caches in float32, where OpenVINO's CPU plugin has them in 8 bits by default."""
    model = build_decoder(TINY)
    model.set_rt_info("f32", ["runtime_options", "KV_CACHE_PRECISION"])
    openvino.serialize(model, str(tmp_path / "exact.xml"), str(tmp_path / "exact.bin"))
    steps = [step_inputs([*OPEN], [*range(9)], 0), step_inputs([*OPEN], [9], 9)]
    whole = [
        openvino_core().compile_model(one, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        for one in (model, build_decoder(TINY))
    ]
    with Session(tmp_path / "exact.xml", "CPU", inputs=Inputs(shapes=OPEN), cache=None) as session:
        groups = np.arange(len(session.grouping.groups))
        placement = session.placement(np.zeros(len(groups), np.int64))
        halves = (groups * 2 // len(groups))[session.grouping.group_of].astype(np.int32)
        with session.sequence(replace(placement, segments=halves)) as sequence:
            for inputs in steps:
                found = sequence.run(inputs)["logits"]
                exact, coarse = (request.infer(inputs)["logits"] for request in whole)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)
    assert np.abs(coarse - exact).max() > 1e-3


def test_two_texts_begin_in_one_request_where_the_batch_is_open(tmp_path):
    path = write_decoder(replace(TINY, style="gpt2"), tmp_path / "beams.xml", beam_idx=True)
    model = load(path, context=32)
    grouping = coarsen(model.graph, keep_together=model.together, pairs=model.pairs, largest=LARGEST)
    groups = [list(grouping.members(g)) for g in range(len(grouping.groups))]
    at = len(groups) // 2
    parts = [list(chain(*groups[:at])), list(chain(*groups[at:]))]
    plain = openvino_core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    runs = [one_after_the_other(model, programs) for programs in ([compiled(model.ov_model)], cut(model, parts))]
    for tokens, past in (([[3, 1, 4], [1, 5, 9]], 0), ([[2], [6]], 3)):
        count = len(tokens[0])
        inputs = {
            "input_ids": np.array(tokens),
            "attention_mask": np.ones((2, past + count), np.int64),
            "position_ids": np.tile(np.arange(past, past + count), (2, 1)),
            "beam_idx": np.arange(2, dtype=np.int32),
        }
        expected = np.array(plain.infer(inputs)["logits"])[:, -1]
        for run in runs:
            np.testing.assert_allclose(run(inputs)["logits"][:, -1], expected, rtol=0, atol=1e-4)
