"""Texts generated greedily, one token after the other, by anything that runs a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.decoder import Decoder

Arrays = dict[str, NDArray[Any]]


def feed(tokens: Sequence[int], past: int) -> Arrays:
    """Return the inputs of a decoder for tokens that follow ``past`` others."""
    end = past + len(tokens)
    return {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, end), np.int64),
        "position_ids": np.arange(past, end, dtype=np.int64)[None],
    }


def generate(
    run: Callable[[Arrays], Mapping[str, Any]], prompt: Sequence[int], steps: int
) -> tuple[list[int], NDArray[np.float32]]:
    """Generate a text; return its tokens, and the logits of each, float32[steps, vocabulary].

    Args:
        run: takes the inputs of a decoder and returns its outputs, by name; it keeps the caches.
        prompt: the first tokens.
        steps: how many tokens to generate.
    """
    tokens, past = list(prompt), 0
    found: list[int] = []
    logits: list[NDArray[np.float32]] = []
    for _ in range(steps):
        last = np.array(run(feed(tokens, past))["logits"][0, -1])
        past += len(tokens)
        tokens = [int(last.argmax())]
        found += tokens
        logits.append(last)
    return found, np.array(logits)


def with_caches(decoder: Decoder, run: Callable[[Arrays], Mapping[str, Any]]) -> Callable[[Arrays], Mapping[str, Any]]:
    """Make a decoder whose caches are inputs and outputs one that keeps them."""
    caches = {taken: np.zeros((1, decoder.groups, 0, decoder.head), np.float32) for taken, _ in decoder.caches}

    def keeping(inputs: Arrays) -> Mapping[str, Any]:
        outputs = run({**inputs, **caches})
        caches.update((taken, np.array(outputs[given])) for taken, given in decoder.caches)
        return outputs

    return keeping
