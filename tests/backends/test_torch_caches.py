"""Caches of registered types as arguments and results of PyTorch modules."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from placeit.backends.torch.model import TorchModel
from placeit.core.errors import ModelError
from placeit.core.narrowing import narrowed
from placeit.devices.host import allowed_cores
from placeit.session import Session
from tests.bundled import placed

DEVICES = f"torch:CPU@{allowed_cores()[0]},torch:CPU@{allowed_cores()[-1]}"


class Cache:
    """Joins what it is given to what it has, which is empty at first, as a ``DynamicCache`` does."""

    def __init__(self, *keys: torch.Tensor) -> None:
        self.keys = [torch.cat([torch.tensor([]), key]) for key in keys]


class Layers(nn.Module):
    def forward(self, x: torch.Tensor, past: Cache) -> dict[str, Any]:
        keys = [torch.cat([key, x * (place + 1)]) for place, key in enumerate(past.keys)]
        return {"y": torch.stack([key.sum() for key in keys]), "present": Cache(*keys)}


@pytest.fixture
def registered() -> Iterator[None]:
    pytree.register_pytree_node(
        Cache,
        lambda cache: ([cache.keys], ["key_cache"]),
        lambda children, _: Cache(*children[0]),
        serialized_type_name="tests.Cache",
        flatten_with_keys_fn=lambda cache: ([(pytree.MappingKey("key_cache"), cache.keys)], ["key_cache"]),
    )
    yield
    pytree._deregister_pytree_node(Cache)


@pytest.mark.usefixtures("registered")
def test_tensors_in_a_cache_are_inputs_and_outputs_named_by_position() -> None:
    past, x = Cache(torch.ones(2), torch.ones(2)), torch.arange(3.0)
    with Session(Layers(), DEVICES, example=(x, past)) as session:
        assert [spec.name for spec in session.model.inputs] == ["x", "past_key_cache_0", "past_key_cache_1"]
        assert [spec.name for spec in session.model.outputs] == ["y", "present.key_cache.0", "present.key_cache.1"]
        assert session.run(placed(session), runs=1).output_error.max_rel == 0


def test_a_cache_of_a_type_that_is_not_registered_is_refused_with_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"input type .*Cache'>: take .* register it .*register_dynamic_cache_export_support"):
        Session(Layers(), DEVICES, example=(torch.ones(1), Cache(torch.ones(2))))


def test_a_decoder_of_transformers_takes_and_returns_its_dynamic_cache() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    executorch = pytest.importorskip("transformers.integrations.executorch", reason="needs a newer package transformers")
    executorch.register_dynamic_cache_export_support()
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
    )
    decoder = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        past = decoder(torch.tensor([[3, 4, 5]]), use_cache=True)
    cache = past[list(past)[-1]]
    name = next(one for one in ("cache", "past_key_values") if one in inspect.signature(decoder.forward).parameters)
    call = {"input_ids": torch.tensor([[7]]), name: cache, "use_cache": True}
    with Session(decoder, DEVICES, kwargs=call) as session:
        model = narrowed(TorchModel, session.model)
        assert f"{name}_key_cache_1" in {spec.name for spec in model.inputs}
        assert session.run(placed(session), runs=1).output_error.max_rel < 1e-5
        made = model.called(model.reference(None, "f32"))(**call)
    with torch.no_grad():
        wanted = decoder(**{**call, name: copy.deepcopy(cache)})
    torch.testing.assert_close(made.logits, wanted.logits)
    torch.testing.assert_close(made[list(made)[-1]].layers[1].keys, wanted[list(wanted)[-1]].layers[1].keys)
