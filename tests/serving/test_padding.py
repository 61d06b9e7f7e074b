"""Requests of different lengths are joined by padding where a mask hides it, and each gets what it would get alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.backends.base import TensorSpec
from placeit.serving.padding import Padding
from tests.serving.test_batching import CORE, WIDTH, Shapes, busy, saved, serving

SHAPES: Shapes = {"ids": ("1..8@1", "1..64@16"), "attention_mask": ("1..8@1", "1..64@16")}
MASKED = "hidden = Mul (x, by_token) count = ReduceSum (by_token, one)"
MEAN = "hidden = Identity (x) kept = Mul (by_token, zero) ones = Add (kept, unit) count = ReduceSum (ones, one)"
"""As a model that takes the mean of all positions, whatever its mask."""


def encoder(folder: Path, body: str) -> Path:
    """Write a model that adds the mean of the tokens of a text to each of them."""
    return saved(
        folder,
        f"(int64[n, m] ids, float[n, m] attention_mask) => (float[n, m, {WIDTH}] tokens, float[n, {WIDTH}] pooled)",
        f"""
            x = Gather (table, ids)
            by_token = Unsqueeze (attention_mask, two)
            {body}
            total = ReduceSum (hidden, one)
            mean = Div (total, count)
            tokens = Add (x, mean)
            pooled = Squeeze (mean, one)
        """,
        table=np.random.default_rng(0).standard_normal((50, WIDTH)).astype(np.float32) + 1,
        one=np.array([1]),
        two=np.array([2]),
        zero=np.float32(0),
        unit=np.float32(1),
    )


def text(length: int, seed: int) -> dict[str, NDArray[Any]]:
    ids = np.random.default_rng(seed).integers(0, 50, (1, length))
    return {"ids": ids, "attention_mask": np.ones((1, length), np.float32)}


@pytest.mark.parametrize(("body", "runs"), [(MASKED, {3: 1, 2: 1, 1: 1}), (MEAN, {2: 1, 1: 4})], ids=["masked", "mean of all"])
def test_texts_of_nearly_equal_lengths_are_joined_if_the_mask_hides_the_padding(
    tmp_path: Path, body: str, runs: dict[int, int]
) -> None:
    with serving(encoder(tmp_path, body), CORE, SHAPES, 8) as server:
        assert (server.batches[0].padding is not None) == (body == MASKED)
        given = [text(length, seed) for seed, length in enumerate((10, 9, 11, 10, 12))]
        alone = [server.submit(one).result(60) for one in given]
        before = server.stats().batches
        with busy(server, text(40, 9)):
            answers = [server.submit(one) for one in given]
        for answer, expected in zip(answers, alone, strict=True):
            for name, value in expected.items():
                assert answer.result(60)[name].shape == value.shape
                np.testing.assert_allclose(answer.result(60)[name], value, rtol=1e-4, atol=1e-5)
        made = {size: count - before.get(size, 0) for size, count in server.stats().batches.items()}
        assert made == runs


def spec(name: str, *limits: tuple[int, int]) -> TensorSpec:
    return TensorSpec(name, name, tuple(low for low, _ in limits), "float32", limits)


def test_shapes_say_which_models_may_be_padded_and_by_how_much() -> None:
    batch, length, fixed = (1, 8), (2, 64), (4, 4)
    ids, mask = spec("ids", batch, length), spec("attention_mask", batch, length)
    tokens, pooled = spec("tokens", batch, length, fixed), spec("pooled", batch, fixed)
    padding = Padding.of([ids, mask], [tokens, pooled])
    assert padding == Padding(frozenset({"tokens"}), 2)
    assert Padding.of([ids, spec("types", batch, length)], [tokens]) is None  # without a mask
    assert Padding.of([ids, mask, spec("x", batch, fixed)], [tokens]) is None
    assert Padding.of([ids, mask], [spec("scores", batch, length, length)]) is None
    assert Padding.of([ids, mask], [spec("other", batch, (2, 32))]) is None
    for length in range(1, 300):
        same = [other for other in range(1, 600) if padding.like(text(other, 0)) == padding.like(text(length, 0))]
        assert length in same
        assert max(same) <= 1.25 * min(same)
    assert padding.like({"ids": np.ones((1, 3)), "attention_mask": np.ones((1, 4))}) is None
