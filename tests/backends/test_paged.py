"""Which decoders keep their caches in blocks, and that segments of them compute what the uncut model computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.decoder import TINY, build_decoder
from placeit import Inputs, Session
from placeit.backends.openvino.reader import load
from placeit.core.errors import StateLostError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.workbench.serving import move
from tests.small_texts import served
from tests.text_steps import feed, generate

openvino = import_openvino()
ops = openvino.opset13

BEAMS = {"beam_idx": np.zeros(1, np.int32)}
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def by_name(model: Any, name: str) -> Any:
    return next(node for node in model.get_ordered_ops() if node.get_friendly_name() == name)


def insert(node: Any, make: Callable[[Any], Any]) -> None:
    """Have the readers of a node read what a function makes of it."""
    readers = node.output(0).get_target_inputs()
    made = make(node)
    for reader in readers:
        reader.replace_source_output(made.output(0))


def of_columns(model: Any, make: Callable[[Any], Any]) -> Any:
    """Return what a function makes of the numbers of the columns of the attention mask, ``float32[1, 1, 1, columns]``."""
    length = ops.gather(ops.shape_of(by_name(model, "attention_mask")), ops.constant(1), ops.constant(0))
    columns = ops.range(ops.constant(np.int64(0)), length, ops.constant(np.int64(1)), "f32")
    return make(ops.unsqueeze(columns, ops.constant([0, 1, 2])))


def with_slopes(model: Any) -> None:
    """Add a slope to the scores, as ALiBi does."""
    insert(by_name(model, "mask"), lambda mask: ops.add(mask, of_columns(model, lambda x: ops.multiply(x, np.float32(0.01)))))


def with_a_window(model: Any) -> None:
    """Hide all tokens but the last ones."""
    far = by_name(model, "position_ids")

    def hidden(columns: Any) -> Any:
        places = ops.unsqueeze(ops.convert(far, "f32"), ops.constant([1, 3]))
        old = ops.less(columns, ops.subtract(places, np.float32(20)))
        return ops.select(old, np.float32(-3e38), np.float32(0))

    insert(by_name(model, "mask"), lambda mask: ops.minimum(mask, of_columns(model, hidden)))


def with_places_of_the_mask(model: Any) -> None:
    """Compute positions from the attention mask, and not from their input."""
    mask = by_name(model, "attention_mask")
    summed = ops.subtract(ops.cum_sum(mask, ops.constant(1)), ops.constant(np.int64(1)))
    tokens = ops.gather(ops.shape_of(by_name(model, "input_ids")), ops.constant([1]), ops.constant(0))
    first = ops.multiply(tokens, ops.constant([-1]))
    last = ops.slice(summed, first, ops.constant([1 << 30]), ops.constant([1]), ops.constant([1]))
    insert(by_name(model, "position_ids"), lambda _: last)


def with_a_mask_of_the_state(model: Any) -> None:
    """Give the mask the length of keys in the state and new ones, as optimum-intel's models do."""
    read = next(node for node in model.get_ordered_ops() if node.get_type_name() == "ReadValue")

    def cut(mask: Any) -> Any:
        past, new = (
            ops.gather(ops.shape_of(node), ops.constant([axis]), ops.constant(0))
            for node, axis in ((read, 2), (by_name(model, "input_ids"), 1))
        )
        return ops.slice(mask, ops.constant([0]), ops.add(past, new), ops.constant([1]), ops.constant([3]))

    insert(by_name(model, "mask"), cut)


def with_scales_in_half_precision(model: Any) -> None:
    """Give attentions a scale that is stored in half precision, as optimum-intel's models have it."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            scale = ops.convert(ops.constant(np.float16(0.3)), "f32")
            ends = [*(node.input_value(index) for index in range(4)), scale.output(0)]
            insert(node, lambda _, ends=ends: ops.scaled_dot_product_attention(*ends))


def with_heads_of_the_first_layer(model: Any) -> None:
    """Compute the number of heads from the size of embeddings, as PyTorch's ``view(*shape)`` does."""
    width = ops.gather(ops.shape_of(by_name(model, "embedding")), ops.constant([2]), ops.constant(0))
    for node in model.get_ordered_ops():
        sizes = node.input_value(1).get_node() if node.get_type_name() == "Reshape" else None
        if sizes is not None and sizes.get_type_name() == "Constant" and [*sizes.data[:2]] == [0, 0] and len(sizes.data) == 4:
            heads = ops.divide(width, ops.constant([TINY.width // int(sizes.data[2])]))
            shape = ops.concat([ops.constant([0, 0]), heads, ops.constant(sizes.data[3:])], 0)
            node.input(1).replace_source_output(shape.output(0))


def write(folder: Path, change: Callable[[Any], object], **architecture: Any) -> Path:
    model = build_decoder(replace(TINY, **architecture), beam_idx=True)
    change(model)
    model.validate_nodes_and_infer_types()
    openvino.save_model(model, folder / "decoder.xml", compress_to_fp16=False)
    return folder / "decoder.xml"


@pytest.mark.parametrize("change", [with_slopes, with_a_window, with_places_of_the_mask])
def test_a_decoder_whose_masks_say_more_keeps_caches_of_another_form(change: Callable[[Any], object], tmp_path: Path) -> None:
    assert load(write(tmp_path, change), context=64).paging is None


def test_a_decoder_of_one_text_keeps_caches_of_another_form(tmp_path: Path) -> None:
    path = write(tmp_path, id)
    assert load(path, context=64).paging is not None
    assert load(path, context=64, batch=1).paging is None


@pytest.mark.two_cores
@pytest.mark.parametrize(
    ("change", "architecture"),
    [
        (id, {}),
        (id, {"style": "gpt2"}),
        (id, {"kv_heads": None}),
        (with_a_mask_of_the_state, {}),
        (with_scales_in_half_precision, {}),
        (with_heads_of_the_first_layer, {}),
    ],
)
def test_texts_of_several_blocks_have_the_tokens_of_the_uncut_model(
    change: Callable[[Any], object], architecture: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path, change, **architecture)
    request = openvino_core().compile_model(path, "CPU", EXACT).create_infer_request()
    prompt = [token % 250 for token in range(7, 37)]
    wanted, logits = generate(lambda inputs: {"logits": request.infer(inputs | BEAMS)["logits"]}, prompt, 8)
    for devices in ("CPU@0", "CPU@0,CPU@1"):
        with served(path, devices) as (session, server), server.sequence() as sequence:
            assert session.model.paging is not None
            found, ours = generate(lambda inputs, run=sequence.run: run(inputs | BEAMS), prompt, 8)
            assert found == wanted
            np.testing.assert_allclose(ours, logits, atol=1e-4)
            sequence.reset()
            chunks = [feed(prompt[at : at + 7], at) | BEAMS for at in range(0, 30, 7)]
            answers = [sequence.submit(chunk) for chunk in chunks]
            np.testing.assert_allclose(answers[-1].result(60)["logits"][0, -1], logits[0], atol=1e-4)


@pytest.mark.two_cores
def test_texts_are_computed_anew_or_lost_when_a_server_moves_to_or_from_throughput_mode(tmp_path: Path) -> None:
    """Throughput mode keeps states of another form."""
    prompt = [*range(7, 17)]
    with served(write(tmp_path, id), "CPU@0,CPU@1") as (session, server):
        mode = next(cluster for cluster in session.setup.elsewhere if cluster.names[0].startswith("throughput:"))
        whole = session.alone(mode).placement(np.zeros(len(session.grouping.groups), np.int32))
        one = np.zeros(len(session.model.graph), np.int32)
        here = session.placement(np.zeros(len(session.grouping.groups), np.int32))
        for placement in (replace(whole, segments=one), replace(here, segments=one)):
            with server.sequence() as lost, server.sequence(recompute=True) as kept:
                for sequence in (lost, kept):
                    sequence.run(feed(prompt, 0) | BEAMS)
                move(session, server, placement, in_flight=None)
                with pytest.raises(StateLostError, match="another placement: Caches in blocks and states"):
                    lost.run(feed([1], len(prompt)) | BEAMS)
                lost.reset()
                wanted = lost.run(feed([*prompt, 1], 0) | BEAMS)["logits"][0, -1]
                found = kept.run(feed([1], len(prompt)) | BEAMS)["logits"][0, -1]
                np.testing.assert_allclose(found, wanted, atol=0.1)  # throughput mode keeps 8 bits


def test_a_placement_for_several_texts_is_measured_and_its_outputs_are_right(tmp_path: Path) -> None:
    """Also if the model asks for caches in float16, as optimum-intel's models do."""

    def half(model: Any) -> None:
        model.set_rt_info("f16", ["runtime_options", "KV_CACHE_PRECISION"])

    with Session(write(tmp_path, half), "CPU@0", inputs=Inputs(context=64), cache=None) as session:
        placement = session.placement(np.zeros(len(session.grouping.groups), np.int32))
        report = session.run(replace(placement, segments=np.zeros(len(session.model.graph), np.int32)), runs=2)
        assert report.failed is None
        assert report.output_error.max_rel < 1e-4


_READ = """
import resource, sys
from pathlib import Path
from placeit.backends.openvino.reader import load
peaks = []
for context in (16, 400_000):
    load(Path(sys.argv[1]), context=context)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""


def test_reading_a_decoder_takes_no_memory_for_the_states_of_its_longest_text(tmp_path: Path) -> None:
    model = build_decoder(replace(TINY, width=256, vocabulary=16), beam_idx=True)  # 2 KB of states for each token
    openvino.save_model(model, tmp_path / "decoder.xml")
    done = subprocess.run([sys.executable, "-c", _READ, tmp_path / "decoder.xml"], check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) < 300_000  # KB
