"""The decoders of :mod:`examples.decoder` in PyTorch, with layers that accelerate loads from disk when they run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from examples.decoder import Decoder

__all__ = ["TorchText"]

_LINEAR = ("attention.query", "attention.key", "attention.value", "attention.output")
_GATED = ("feed_forward.in", "feed_forward.gate", "feed_forward.out")


class _Weights:
    """The weights of an ONNX file, by the names given by its writer, or by the ops that use them."""

    def __init__(self, path: Path) -> None:
        graph = onnx.load(path).graph
        self._found = {made.name: made for made in graph.initializer}
        self._nodes = {node.name: node for node in graph.node}

    def __call__(self, name: str) -> nn.Parameter:
        return nn.Parameter(torch.from_numpy(onnx.numpy_helper.to_array(self._found[name]).copy()), requires_grad=False)

    def norm(self, name: str) -> nn.RMSNorm:
        scale = self(self._nodes[name].input[1])
        made = nn.RMSNorm(len(scale), eps=1e-5)
        made.weight = scale
        return made

    def linear(self, name: str) -> nn.Linear:
        weight = self(f"{name}.weight")
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        made.weight = weight
        return made


class _Layer(nn.Module):
    def __init__(self, name: str, weights: _Weights, heads: int, groups: int) -> None:
        super().__init__()
        self._heads, self._groups = heads, groups
        self.before, self.between = (weights.norm(f"{name}.{what}.norm") for what in ("attention", "feed_forward"))
        self.query, self.key, self.value, self.out = (weights.linear(f"{name}.{what}") for what in _LINEAR)
        self.inner, self.gate, self.outer = (weights.linear(f"{name}.{what}") for what in _GATED)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None) -> Any:
        normed = self.before(x)
        query = _rotated(_heads(self.query(normed), self._heads), cos, sin)
        key, value = _rotated(_heads(self.key(normed), self._groups), cos, sin), _heads(self.value(normed), self._groups)
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.outer(functional.silu(self.gate(normed)) * self.inner(normed)), (key, value)


def _heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class _Decoder(nn.Module):
    def __init__(self, decoder: Decoder, path: Path) -> None:
        super().__init__()
        weights = _Weights(path)
        self._powers = torch.tensor(10000.0) ** (-torch.arange(0, decoder.head, 2) / decoder.head)
        self.embedding = nn.Embedding.from_pretrained(weights("embedding.weight"))
        self.layers = nn.ModuleList(
            _Layer(f"layers.{number}", weights, decoder.heads, decoder.groups) for number in range(decoder.layers)
        )
        self.norm = weights.norm("norm")

    def forward(self, ids: Tensor, positions: Tensor, pasts: Sequence[Any]) -> tuple[Tensor, list[Any]]:
        x, presents = self.embedding(ids), []
        angle = (positions[0, :, None] * self._powers).repeat(1, 2)
        for layer, past in zip(self.layers, pasts, strict=True):
            x, present = layer(x, angle.cos(), angle.sin(), past)
            presents.append(present)
        return functional.linear(self.norm(x[:, -1]), self.embedding.weight), presents


class TorchText:
    """A decoder in PyTorch, for texts whose prompts are read at once.

    Args:
        decoder: its architecture, in the style of Llama.
        path: its ONNX file.
        share: share of the weights that may be in memory; None for all, without accelerate.
        stack: removes the other weights from the disk.
    """

    def __init__(self, decoder: Decoder, path: Path, share: float | None, stack: ExitStack) -> None:
        self._module: Any = _Decoder(decoder, path).eval()
        self._layers = decoder.layers
        if share is not None:
            from accelerate import dispatch_model

            folder = stack.enter_context(tempfile.TemporaryDirectory())
            places = _device_map(self._module, share * sum(p.nbytes for p in self._module.parameters()))
            self._module = dispatch_model(self._module, places, main_device="cpu", offload_dir=folder)
        self.reset()

    def reset(self) -> None:
        self._pasts: list[Any] = [None] * self._layers

    @torch.inference_mode()
    def step(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.generic]:
        """Return the logits of the last token."""
        given = [torch.from_numpy(inputs[name]) for name in ("input_ids", "position_ids")]
        logits, self._pasts = self._module(*given, self._pasts)
        found: NDArray[np.generic] = logits[0].numpy()
        return found


def _device_map(module: Any, most: float) -> dict[str, str]:
    """Put embedding, norm, and as many layers as fit into memory; the other layers, at least one, are on disk."""
    left = most - module.embedding.weight.nbytes
    size = sum(parameter.nbytes for parameter in module.layers[0].parameters())
    inside = min(len(module.layers) - 1, max(0, int(left // size)))
    places = {f"layers.{number}": "cpu" if number < inside else "disk" for number in range(len(module.layers))}
    return {"embedding": "cpu", "norm": "cpu", **places}
