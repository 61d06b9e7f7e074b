"""Decoders with random weights and tokenizers, in folders as model hubs have them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from examples.decoder import TINY, build_decoder
from placeit import Constraints, Inputs, Session
from placeit.core.errors import ExecutionError
from placeit.core.telemetry import import_openvino
from placeit.serving.server import Server
from placeit.text.sampling import Sampler, Sampling

CONTEXT = 64
END = 0
"""The token that ends a text; other tokens are the bytes of a text in UTF-8, in the order of the tokenizer's alphabet."""
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'clown' %}{{ raise_exception('no clowns') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_folder(folder: Path, *, bytes_known: int = 256, exact: bool = False, seed: int = 0) -> Path:
    """Write a decoder of two layers that knows 256 tokens, and a tokenizer that knows the first bytes of them.

    If it is ``exact``, its caches have all bits, so that the steps in which a prompt comes do not change what follows.
    """
    model = build_decoder(replace(TINY, vocabulary=256), beam_idx=True, seed=seed)
    if exact:
        model.set_rt_info("f32", ["runtime_options", "KV_CACHE_PRECISION"])
    import_openvino().save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:bytes_known]
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    return folder


@contextmanager
def served(
    model: Path,
    devices: str = "CPU@0",
    *,
    batch: int | None = None,
    state_memory: float | None = None,
    context: int = CONTEXT,
    memory: Mapping[str, float] = {},
    logits: Literal["last", "all"] = "last",
) -> Iterator[tuple[Session, Server]]:
    """Serve the decoder of a folder or a file, in as many parts as there are devices."""
    inputs = Inputs(context=context, batch=batch, logits=logits)
    with Session(model, devices, inputs=inputs, constraints=Constraints(memory=memory), cache=None) as session:
        groups, parts = len(session.grouping.groups), len(session.cluster.devices)
        part = np.arange(groups) * parts // groups
        segments = part[session.grouping.group_of].astype(np.int32)
        placement = replace(session.placement(part), segments=segments)
        with session.serve(placement, state_memory=state_memory) as server:
            yield session, server


def failing_sampler(*, seed: int, after: int) -> type[Sampler]:
    """Return a class of samplers, of which the one with a seed fails after some tokens."""

    class Failing(Sampler):
        def __init__(self, sampling: Sampling) -> None:
            super().__init__(sampling)
            self._left = after if sampling.seed == seed else math.inf

        def choose(self, logits: NDArray[Any]) -> int:
            self._left -= 1
            if self._left < 0:
                raise ExecutionError("put in")
            return super().choose(logits)

    return Failing
