"""Sequences of requests whose state is on an Intel GPU and on a core: decoders with growing caches, whole and cut apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.decoder import TINY, Decoder, write_decoder
from examples.generate_text import generate, halves, inputs_of, shapes, uncut
from placeit.core.placement import Placement
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.open_models import TWO
from tests.stateful_models import SIZE, Caches, caches

PROMPTS, TOKENS = [[3, 1, 4, 1, 5, 9], [200, 7, 77, 1, 2, 3]], 8
STYLES = {"rms normalization, two heads share a cache": TINY, "layer normalization": replace(TINY, style="gpt2", kv_heads=4)}


def placed(session: Session) -> Placement:
    """Half of the layers on each of two devices, or all on one."""
    if len(session.cluster.devices) > 1:
        return halves(session)
    everything = session.placement(np.zeros(len(session.grouping.groups), np.int64))
    return replace(everything, segments=np.zeros(len(everything.op_names), np.int32))


@pytest.mark.parametrize("decoder", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("file", ["decoder.xml", "decoder.onnx"])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_tokens_are_those_of_the_uncut_model(
    tmp_path: Path, gpu: str, decoder: Decoder, file: str, cut: bool, compiled_once: None
) -> None:
    path = write_decoder(decoder, tmp_path / file)
    names = inputs_of(path)
    sizes = shapes(names, len(PROMPTS[0]), TOKENS, "text")
    with (
        Session(path, [TWO[0], gpu] if cut else [gpu], inputs=Inputs(shapes=sizes), cache=None) as session,
        session.serve(placed(session)) as server,
        ThreadPoolExecutor(2) as threads,
    ):
        steps = [server.sequence().run for _ in PROMPTS]
        found = [*threads.map(lambda step, prompt: generate(step, names, prompt, TOKENS)[0], steps, PROMPTS)]
        expected = [generate(uncut(session.model.ov_model), names, prompt, TOKENS)[0] for prompt in PROMPTS]
    assert found == expected


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_growing_states_of_sequences_are_their_own_fork_and_begin_again(
    tmp_path: Path, gpu: str, cut: bool, compiled_once: None
) -> None:
    path, rng, devices = caches(tmp_path / "caches.xml", layers=2), np.random.default_rng(0), [TWO[0], gpu] if cut else [gpu]
    with (
        Session(path, devices, inputs=Inputs(shapes={"x": (1, "1..16@4", SIZE)}), cache=None) as session,
        session.serve(placed(session)) as server,
        server.sequence() as one,
        server.sequence() as other,
    ):
        running = {one: Caches(2), other: Caches(2)}

        def step(rows: int) -> None:
            for sequence, model in running.items():
                x = rng.standard_normal((1, rows, SIZE)).astype(np.float32)
                np.testing.assert_allclose(sequence.run({"x": x})["y"], model.run(x), rtol=1e-3, atol=1e-4)

        for rows in (5, 1, 1, 7):
            step(rows)
        running[one.fork()] = deepcopy(running[one])
        for rows in (1, 3, 1):
            step(rows)
        other.reset()
        running[other] = Caches(2)
        for rows in (2, 1):
            step(rows)
