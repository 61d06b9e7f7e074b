"""Networks for text and speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "PAST",
    "DeepSpeech",
    "Encoder",
    "Experts",
    "LlamaDecoder",
    "StreamingGru",
    "TiedEncoder",
    "WhisperDecoder",
    "cached",
    "features",
    "frames",
    "spectrogram",
    "spoken",
    "tokens",
]

_WORDS = 2000


def tokens(length: int = 32) -> Mapping[str, Tensor]:
    """Make random numbers of words."""
    return {"ids": torch.randint(_WORDS, (1, length))}


class Encoder(nn.Module):
    """Embeddings, post-norm encoder layers with a mask of padding, and a pooled output."""

    def __init__(self, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, width), nn.Embedding(64, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(depth)
        )
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for layer in self.layers:
            x = layer(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


class TiedEncoder(nn.Module):
    """One layer used several times, and the embedding used again as the classifier: Lan et al., 2020 (ALBERT)."""

    def __init__(self, width: int = 256, times: int = 6) -> None:
        super().__init__()
        self.words, self.times = nn.Embedding(_WORDS, width), times
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for _ in range(self.times):
            x = self.layer(x)
        return x @ self.words.weight.T


class _RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate by positions (rotary position embedding; Su et al., 2021)."""
    size = x.shape[-1]
    angles = positions[:, None, :, None].float() / 10000.0 ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class LlamaDecoder(nn.Module):
    """One token of a decoder with its cache as inputs and outputs: Touvron et al., 2023, with grouped queries."""

    WIDTH, DEPTH, HEADS, CACHED, EACH = 256, 4, 4, 2, 64

    class Block(nn.Module):
        def __init__(self, width: int, heads: int, cached: int, each: int) -> None:
            super().__init__()
            self.heads, self.cached, self.each = heads, cached, each
            self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.key, self.value = (nn.Linear(width, cached * each, bias=False) for _ in range(2))
            self.norm, self.norm_2 = _RootMeanSquare(width), _RootMeanSquare(width)
            self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
            self.down = nn.Linear(3 * width, width, bias=False)

        def forward(self, x: Tensor, positions: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
            batch, length, _ = x.shape
            y = self.norm(x)
            query = self.query(y).view(batch, length, self.heads, self.each).transpose(1, 2)
            key, value = (
                made(y).view(batch, length, self.cached, self.each).transpose(1, 2) for made in (self.key, self.value)
            )
            keys, values = torch.cat([keys, _rotated(key, positions)], 2), torch.cat([values, value], 2)
            each = [
                one[:, :, None].expand(-1, -1, self.heads // self.cached, -1, -1).reshape(batch, self.heads, -1, self.each)
                for one in (keys, values)
            ]
            y = functional.scaled_dot_product_attention(_rotated(query, positions), *each, attn_mask=mask)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
            y = self.norm_2(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y)), keys, values

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, self.WIDTH)
        self.blocks = nn.ModuleList(self.Block(self.WIDTH, self.HEADS, self.CACHED, self.EACH) for _ in range(self.DEPTH))
        self.norm, self.head = _RootMeanSquare(self.WIDTH), nn.Linear(self.WIDTH, _WORDS, bias=False)

    def forward(self, ids: Tensor, positions: Tensor, attention_mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x, mask, present = self.words(ids), attention_mask[:, None, None, :].to(torch.bool), []
        for block, keys, values in zip(self.blocks, past[::2], past[1::2], strict=True):
            x, *made = block(x, positions, mask, keys, values)
            present += made
        return self.head(self.norm(x)), *present


PAST = tuple(f"past_{block}_{what}" for block in range(LlamaDecoder.DEPTH) for what in ("key", "value"))
"""Names of the cached inputs of :class:`LlamaDecoder`, in their order."""


def cached(past: int = 32) -> Mapping[str, Tensor]:
    """Make the inputs of :class:`LlamaDecoder`: a token, its position, and a cache of the tokens before it."""
    of = LlamaDecoder
    shape = (1, of.CACHED, past, of.EACH)
    kept = {name: torch.randn(shape) for name in PAST}
    mask = torch.ones(1, past + 1, dtype=torch.int64)
    return {"ids": torch.randint(_WORDS, (1, 1)), "positions": torch.full((1, 1), past), "attention_mask": mask, **kept}


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=i != 1) for i in range(4))

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, of: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self._split(self.query(x)), self._split(self.key(of)), self._split(self.value(of))
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        made = functional.scaled_dot_product_attention(query, key, value)
        return self.out(made.transpose(1, 2).reshape(x.shape)), key, value


class WhisperDecoder(nn.Module):
    """A step of a decoder that looks at encoded audio: Radford et al., 2023. Caches are stacked, and the embedding is tied."""

    WIDTH, DEPTH, HEADS = 192, 3, 3

    def __init__(self) -> None:
        super().__init__()
        width, depth, heads = self.WIDTH, self.DEPTH, self.HEADS
        self.words, self.places = nn.Embedding(_WORDS, width), nn.Embedding(64, width)
        self.own = nn.ModuleList(_Attention(width, heads) for _ in range(depth))
        self.cross = nn.ModuleList(_Attention(width, heads) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.wide = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, token: Tensor, position: Tensor, audio: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        x = self.words(token) + self.places(position)
        new_keys, new_values = [], []
        for i, (own, cross, wide) in enumerate(zip(self.own, self.cross, self.wide, strict=True)):
            y = self.norms[2 * i](x)
            y, key, value = own(y, y, (keys[i], values[i]))
            new_keys.append(key)
            new_values.append(value)
            x = x + y
            x = x + cross(self.norms[2 * i + 1](x), audio)[0]
            x = x + wide(x)
        return self.norms[-1](x) @ self.words.weight.T, torch.stack(new_keys), torch.stack(new_values)


def spoken(past: int = 8) -> Mapping[str, Tensor]:
    """Make the inputs of :class:`WhisperDecoder`."""
    of = WhisperDecoder
    shape = (of.DEPTH, 1, of.HEADS, past, of.WIDTH // of.HEADS)
    audio = torch.randn(1, 50, of.WIDTH)
    given = {"token": torch.randint(_WORDS, (1, 1)), "position": torch.tensor([[past]]), "audio": audio}
    return given | {"keys": torch.randn(shape), "values": torch.randn(shape)}


class Experts(nn.Module):
    """Layers in which a router chooses two of several experts for each token: Shazeer et al., 2017.

    Args:
        sparse: compute each expert only for its tokens, whose number varies; else for all tokens, weighted.
    """

    WIDTH = 128

    class Layer(nn.Module):
        def __init__(self, width: int, sparse: bool, count: int = 4) -> None:
            super().__init__()
            self.sparse, self.router = sparse, nn.Linear(width, count, bias=False)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(count)
            )

        def forward(self, x: Tensor) -> Tensor:
            scores = self.router(x).softmax(-1)
            weights, chosen = scores.topk(2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
            if not self.sparse:
                gates = torch.zeros_like(scores).scatter(-1, chosen, weights)
                return x + sum(gates[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
            made = x
            for i, expert in enumerate(self.experts):
                token, slot = torch.where(chosen == i)
                made = made.index_add(0, token, expert(x[token]) * weights[token, slot, None])
            return made

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(self.WIDTH, sparse) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(self.WIDTH) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            tokens = layer(norm(tokens))
        return tokens


def features(count: int = 32) -> Mapping[str, Tensor]:
    """Make the input of :class:`Experts`."""
    return {"tokens": torch.randn(count, Experts.WIDTH)}


class DeepSpeech(nn.Module):
    """Convolutions over a spectrogram and a bidirectional LSTM: Amodei et al., 2016, smaller."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 16, (11, 11), (2, 2), 5), nn.BatchNorm2d(16), nn.Hardtanh(0, 20))
        self.second = nn.Sequential(nn.Conv2d(16, 16, (11, 11), (2, 1), 5), nn.BatchNorm2d(16), nn.Hardtanh(0, 20))
        self.recurrent = nn.LSTM(16 * 20, width, 2, batch_first=True, bidirectional=True)
        self.letters = nn.Linear(2 * width, 29)

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.second(self.first(spectrogram))
        x, _ = self.recurrent(x.flatten(1, 2).transpose(1, 2))
        return self.letters(x).log_softmax(-1)


def spectrogram() -> Mapping[str, Tensor]:
    return {"spectrogram": torch.randn(1, 1, 80, 100)}


class StreamingGru(nn.Module):
    """Frames as they come, with the state of a GRU as input and output."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.conv = nn.Conv1d(40, width, 3, padding=1)
        self.recurrent, self.head = nn.GRU(width, width, 2, batch_first=True), nn.Linear(width, 200)

    def forward(self, frames: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        made, state = self.recurrent(functional.relu(self.conv(frames)).transpose(1, 2), state)
        return self.head(made), state


def frames(count: int = 16) -> Callable[[], Mapping[str, Tensor]]:
    """Make the inputs of :class:`StreamingGru`."""
    return lambda: {"frames": torch.randn(1, 40, count), "state": torch.randn(2, 1, 128)}
