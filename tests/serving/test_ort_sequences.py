"""Sequences whose states ONNX Runtime keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from examples.decoder import TINY, write_decoder
from examples.generate_text import generate, inputs_of, shapes, uncut
from placeit.backends import load
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.narrowing import narrowed
from placeit.devices.host import allowed_cores
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.open_models import divided
from tests.stateful_models import SIZE, Caches

ONE, OTHER = (f"CPU@{core}" for core in (allowed_cores()[0], allowed_cores()[-1]))
PROMPT, TOKENS, LAYERS = [3, 1, 4, 1, 5, 9], 6, 2

pytestmark = pytest.mark.two_cores


def test_states_grow_on_each_device_and_move_to_openvino(tmp_path: Path) -> None:
    path, rng = onnx_caches(tmp_path / "caches.onnx"), np.random.default_rng(0)
    sizes = Inputs(shapes={"x": (1, "1..16@4", SIZE)})
    states = {}
    for devices in ([f"ort:{ONE}", f"ort:{OTHER}"], [f"ort:{ONE}", OTHER], [ONE, OTHER], [f"ort:{ONE}"]):
        with (
            Session(path, devices, inputs=sizes, cache=None) as session,
            session.serve(divided(session, len(devices))) as server,
            server.sequence() as sequence,
        ):
            slot, model = sequence.line.slot, Caches(LAYERS)
            assert slot is not None
            if states:
                slot.set_states(states)
                model.rows = [np.array(states[f"past_{layer}"].data) for layer in range(LAYERS)]
            for rows in (5, 1, 1, 3):
                x = rng.standard_normal((1, rows, SIZE)).astype(np.float32)
                np.testing.assert_allclose(sequence.run({"x": x})["y"], model.run(x), rtol=1e-4, atol=1e-4)
            assert sequence.state_bytes == model.state_bytes
            states = slot.states()


def onnx_caches(path: Path) -> Path:
    """Write :class:`Caches` as an ONNX file, whose caches are inputs and outputs."""
    layers, takes, gives, nodes = range(LAYERS), "", "", ""
    for k in layers:
        takes += f", float[1, past, {SIZE}] past_{k}"
        gives += f", float[1, all, {SIZE}] present_{k}"
        nodes += f"""
        present_{k} = Concat <axis=1> (past_{k}, x_{k})
        mean_{k} = ReduceMean <axes=[1]> (present_{k})
        sum_{k} = Add (x_{k}, mean_{k})
        mixed_{k} = MatMul (sum_{k}, w_{k})
        x_{k + 1} = Tanh (mixed_{k})"""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    caches (float[1, n, {SIZE}] x_0{takes}) => (float[1, n, {SIZE}] x_{LAYERS}{gives}) {{ {nodes} }}"""
    model = onnx.parser.parse_model(text.replace("x_0", "x").replace(f"x_{LAYERS}", "y"))
    rng = np.random.default_rng(0)
    for k in layers:
        weights = rng.standard_normal((SIZE, SIZE)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, f"w_{k}"))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("first", [ONE, f"ort:{ONE}"])
def test_a_decoder_generates_the_tokens_of_the_uncut_model(first: str, tmp_path: Path) -> None:
    path = write_decoder(TINY, tmp_path / "decoder.onnx")
    names = inputs_of(path)
    sizes = Inputs(shapes=shapes(names, len(PROMPT), TOKENS, "text"))
    with (
        Session(path, [first, f"ort:{OTHER}"], inputs=sizes, cache=None) as session,
        session.serve(divided(session, 2)) as server,
        server.sequence() as sequence,
    ):
        found = generate(sequence.run, names, PROMPT, TOKENS)[0]
        assert session.run(divided(session, 2), runs=1).failed is None
    model = load(path, input_shapes=sizes.shapes)
    assert found == generate(uncut(narrowed(OpenVinoModel, model).ov_model), names, PROMPT, TOKENS)[0]
