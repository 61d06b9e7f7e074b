"""Decoders with random weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from examples.decoder import TINY, Decoder, build_decoder, write_decoder
from placeit.core.errors import UsageError
from placeit.core.telemetry import import_onnxruntime, import_openvino
from placeit.devices.openvino import openvino_core
from tests.text_steps import generate, with_caches

openvino = import_openvino()

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
STYLES = {"llama": TINY, "gpt2": replace(TINY, style="gpt2", kv_heads=None)}
PROMPT = [1, 2, 3, 4]


def compiled(model):
    return openvino_core().compile_model(model, "CPU", EXACT)


def runs(model):
    """Return what runs a model in one request, whose state it keeps."""
    request = compiled(model).create_infer_request()

    def run(inputs):
        answer = request.infer(inputs)
        return {name: answer[name] for output in answer for name in output.get_names()}

    return run


@pytest.mark.parametrize("style", STYLES)
def test_all_forms_of_a_decoder_generate_the_same_text(style, tmp_path):
    decoder = STYLES[style]
    tokens, logits = generate(runs(build_decoder(decoder)), PROMPT, 32)
    session = import_onnxruntime().InferenceSession(write_decoder(decoder, tmp_path / "decoder.onnx"))
    names = [output.name for output in session.get_outputs()]
    ir = write_decoder(decoder, tmp_path / "decoder.xml", cache="inputs")
    for run in (lambda inputs: dict(zip(names, session.run(names, inputs), strict=True)), runs(ir)):
        again, close = generate(with_caches(decoder, run), PROMPT, 32)
        assert again == tokens
        np.testing.assert_allclose(close, logits, atol=1e-5)
    assert len(set(tokens)) > 8  # a text, and not one token again and again


@pytest.mark.parametrize("style", STYLES)
def test_openvino_fuses_the_attention_of_a_stateful_decoder_with_its_caches(style):
    nodes = compiled(build_decoder(STYLES[style])).get_runtime_model().get_ordered_ops()
    kinds = Counter(node.get_rt_info()["layerType"].astype(str) for node in nodes)
    assert (kinds["ScaledDotProductAttention"], kinds["MemoryInput"], kinds["MemoryOutput"]) == (2, 4, 4)
    assert kinds["Softmax"] == 0
    assert style == "gpt2" or (kinds["RoPE"], kinds["RMS"]) == (4, 5)


def test_a_decoder_has_the_inputs_and_outputs_that_exporters_give_it():
    model = build_decoder(TINY, beam_idx=True)
    assert [port.any_name for port in model.inputs] == ["input_ids", "attention_mask", "position_ids", "beam_idx"]
    assert [port.any_name for port in model.outputs] == ["logits"]
    explicit = build_decoder(TINY, cache="inputs")
    assert [port.any_name for port in explicit.inputs][3:5] == ["past_key_values.0.key", "past_key_values.0.value"]
    assert [port.any_name for port in explicit.outputs][:2] == ["logits", "present.0.key"]


@pytest.mark.parametrize(
    ("weights", "kinds", "error"), [("float16", {"f16"}, 0.02), ("int8", {"u8"}, 0.05), ("int4", {"u4", "u8"}, 0.3)]
)
def test_compressed_weights_stay_so_and_change_little(weights, kinds, error, tmp_path):
    wide = replace(TINY, hidden=256, vocabulary=512)
    path = write_decoder(wide, tmp_path / "compressed.xml", weights=weights)
    model = openvino_core().read_model(path)
    large = [
        node for node in model.get_ops() if node.get_type_name() == "Constant" and np.prod(node.get_output_shape(0)) >= 1024
    ]
    assert {node.get_output_element_type(0).get_type_name() for node in large} == kinds
    _, logits = generate(runs(build_decoder(wide)), PROMPT, 1)
    _, close = generate(runs(model), PROMPT, 1)
    assert 0 < np.abs(close - logits).std() < error * logits.std()


def test_a_seed_makes_the_same_decoder_again():
    one, again, other = (generate(runs(build_decoder(TINY, seed=seed)), PROMPT, 4)[0] for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("sizes", [{"heads": 3}, {"kv_heads": 3}, {"layers": 0}, {"width": 12}])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(UsageError, match="no such decoder"):
        Decoder(**{"width": 32, "heads": 4, **sizes})


def test_onnx_has_no_state(tmp_path):
    with pytest.raises(UsageError, match="write IR"):
        write_decoder(TINY, tmp_path / "decoder.onnx", cache="state")
