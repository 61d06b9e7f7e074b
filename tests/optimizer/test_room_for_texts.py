"""Searches that leave room for the states of a decoder's texts beside its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.decoder import TINY, write_decoder
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import InfeasibleError, UsageError
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized
from placeit.profiler.cache import Cache
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.session import Session
from placeit.workbench.options import Constraints, Inputs
from tests.steady import optimize

COLUMN = TINY.layers * 2 * TINY.groups * TINY.head * 4  # bytes of a token's state
BOARDS = Cluster(
    tuple(Device(name, kind="described", flops_per_s=1e9, bytes_per_s=1e12) for name in ("a", "b")),
    {pair: Link(1e6, 1e-3, "described") for pair in (("a", "b"), ("b", "a"))},
)
CAPS = dict.fromkeys(("a", "b"), 800e3)
HALF = 4096 * COLUMN / TINY.layers  # bytes of a layer's states of 4,096 tokens: one fits on a device, two do not


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    return write_decoder(TINY, tmp_path / "decoder.xml")


def found(path: Path, cache: Cache, context: int, texts: int = 1, caps: Mapping[str, float] = CAPS) -> Optimized:
    return optimize(
        path,
        BOARDS,
        candidates=Candidates(placers=("heft",)),
        budget=2,
        cache=cache,
        inputs=Inputs(context=context),
        constraints=Constraints(memory=caps, texts=texts),
    )


@pytest.mark.parametrize(("context", "texts", "devices"), [(512, 1, 1), (512, 8, 2), (4096, 1, 2)])
def test_a_decoder_is_divided_where_the_states_of_its_texts_do_not_fit_on_one_device(
    decoder: Path, cache: Cache, context: int, texts: int, devices: int
) -> None:
    assert HALF < CAPS["a"] * 0.9 < 2 * HALF
    assert len(set(found(decoder, cache, context, texts).placement.as_dict().values())) == devices


def test_a_context_that_fits_nowhere_is_refused_before_anything_is_compiled_with_the_longest_that_fits(
    decoder: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenVinoDevice, "compile", None)

    def refused(context: int, devices: Any = BOARDS, caps: Mapping[str, float] = CAPS) -> int:
        constraints, inputs = Constraints(memory=caps, texts=8), Inputs(context=context)
        with pytest.raises(InfeasibleError, match=f"8 texts of {context} tokens.*shorter --context, fewer --texts") as error:
            optimize(decoder, devices, budget=2, cache=cache, inputs=inputs, constraints=constraints)
        return int(re.findall(r"at most (\d+) tokens fit", str(error.value))[0])

    longest = refused(50_000)
    assert refused(longest + 1) == longest
    assert found(decoder, cache, longest, 8).placement is not None
    assert refused(2048, "CPU@0", {"CPU@0": 1e6}) < 512
    with pytest.raises(InfeasibleError, match=r"the weights fit: they take"):
        found(decoder, cache, 64, 1, dict.fromkeys(("a", "b"), 1e3))


def test_the_room_for_states_counts_in_problems_and_not_in_the_identity_of_the_graph(decoder: Path) -> None:
    one, eight = (
        Session(decoder, BOARDS, inputs=Inputs(context=512), constraints=Constraints(texts=texts), cache=None)
        for texts in (1, 8)
    )
    with one, eight:
        sums = [session.profile() and session.problem().param_bytes.sum() for session in (one, eight)]
        assert sums[1] - sums[0] == pytest.approx(7 * 512 * COLUMN / 0.9)
        graphs = [session.grouping.graph for session in (one, eight)]
        assert graphs[0].hash == graphs[1].hash
        assert np.array_equal(one.grouping.group_of, eight.grouping.group_of)  # there is memory enough


def test_texts_are_of_decoders_alone(decoder: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a decoder that is placed with --context"):
        Session(decoder, BOARDS, inputs=Inputs(batch=1, shapes=SHAPES), constraints=Constraints(texts=2), cache=None)
    with pytest.raises(UsageError, match="room for 0 texts"):
        Session(decoder, BOARDS, inputs=Inputs(context=64), constraints=Constraints(texts=0), cache=None)


SHAPES = {"input_ids": (1, 4), "attention_mask": (1, 4), "position_ids": (1, 4)}
