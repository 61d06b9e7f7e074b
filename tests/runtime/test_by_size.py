"""Segments with open sizes that have a program for each size."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from placeit.runtime.devices.base import SegmentSource
from placeit.runtime.devices.by_size import MAX_PROGRAMS, BySize
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.open_models import LENGTHS, OPEN, TWO, Arrays, assert_close, at_one_size, attention, convolutions, divided, values

ops = ov.opset13


@pytest.fixture(params=["all", "every other"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Compile some segments of the CPU by size, and count which."""
    original, counted, places = OpenVinoDevice.compile, Counter[str](), itertools.count()

    def at_size(device: OpenVinoDevice, segment: SegmentSource) -> Any:
        counted[segment.identity] += 1
        return original(device, segment)

    def by_size(device: OpenVinoDevice, segment: SegmentSource) -> Any:
        made = BySize(segment, partial(at_size, device))
        if made.at_typical_sizes().is_open or (request.param != "all" and next(places) % 2):
            return original(device, segment)
        return made

    monkeypatch.setattr(OpenVinoDevice, "compile", by_size)
    return counted


def test_every_size_is_computed_beside_segments_with_one_program(tmp_path: Path, compiled: Counter[tuple[object, ...]]) -> None:
    path = attention(tmp_path)
    with ExitStack() as stack:
        session = stack.enter_context(Session(path, TWO[0], inputs=Inputs(shapes=OPEN), cache=None))
        server = stack.enter_context(session.serve(divided(session, 2), in_flight=2))
        asked = [values(length, seed) for seed, length in enumerate(LENGTHS * 2)]
        answers = [server.submit(inputs) for inputs in asked]
        for inputs, answer in zip(asked, answers, strict=True):
            assert_close(answer.result(60), at_one_size(path, inputs))
        assert len(compiled) >= len({*LENGTHS})
        assert {*compiled.values()} == {1}
        for length in (*range(1, MAX_PROGRAMS + 2), 1):  # for which no program is kept any more
            inputs = values(length)
            assert_close(server.submit(inputs).result(60), at_one_size(path, inputs))
        assert max(compiled.values()) == 2


def test_images_have_their_channels_last_at_each_size(tmp_path: Path, compiled: Counter[tuple[object, ...]]) -> None:
    rng, path = np.random.default_rng(0), convolutions(tmp_path)
    with Session(path, TWO[0], inputs=Inputs(shapes={"image": (1, 3, "8..64@16", "8..64@16")}), cache=None) as session:
        assert session.model.channels_last
        with session.executor(session.plan_of(divided(session, 3))) as executor:
            for height, width in ((16, 16), (8, 64), (31, 9), (16, 16)):
                inputs: Arrays = {"image": rng.standard_normal((1, 3, height, width)).astype(np.float32)}
                assert_close(executor.run(inputs), at_one_size(path, inputs))
            assert session.reference.check(executor).max_rel < 1e-4
