"""Small PyTorch modules that several folders of tests share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from placeit.backends.torch.model import TorchModel, load
from placeit.serving.sequence import Sequence

X = torch.arange(6.0).reshape(2, 3)


class ConvNet(nn.Module):
    """Branches of convolutions and pooling, one of them split in two, with batch norm, in-place ops and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(8, 8, 1)
        self.right = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(24, 5)
        for buffer in (self.norm.running_mean, self.norm.running_var):
            nn.init.uniform_(buffer, 0.5, 1.5)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        value = F.relu(self.norm(self.stem(image)), inplace=True)
        first, second = self.left(value).chunk(2, dim=1)
        pooled = F.avg_pool2d(value, 3, 1, 1)
        value = torch.cat([first.sigmoid_(), second.mul(2), F.relu(self.right(pooled)), pooled], 1)
        return {"scores": self.head(self.drop(value.mean((2, 3)))), "features": value}


class Transformer(nn.Module):
    """Token and position embeddings, causal self-attention, and a choice of the best tokens."""

    def __init__(self, width: int = 16, tokens: int = 20) -> None:
        super().__init__()
        self.table = nn.Embedding(tokens, width)
        self.places = nn.Embedding(32, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor, scale: float = 1.0) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        length = ids.shape[1]
        value = self.table(ids) * scale + self.places(torch.arange(length, device=ids.device))
        mask = torch.full((length, length), float("-inf")).triu(1)
        for layer in self.layers:
            value = layer(value, src_mask=mask)
        logits = self.norm(value) @ self.table.weight.t()
        best = logits.topk(3)
        return logits, (best.values, best.indices)


class Calling(nn.Module):
    """A module of one function, with buffers to work on."""

    def __init__(self, function: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor, *others: Any) -> Any:
        return self.function(self, x, *others)


def remembering() -> Calling:
    """Make a module with state of three types, none of which is zero at first."""

    def remember(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = module.last[:1].clone()  # a part of the state that is replaced
        module.seen += 1
        module.short += x.to(torch.bfloat16)
        result = x * module.seen + module.short.float()
        module.last.copy_(x)  # the input itself, whose memory the next request writes to
        return result.relu(), before

    seen, short = torch.ones((), dtype=torch.int64), torch.full((2, 3), 2, dtype=torch.bfloat16)
    return Calling(remember, seen=seen, short=short, last=torch.full((2, 3), 3.0))


def check_remembering(sequence: Sequence) -> None:
    """Check the outputs of a new sequence of :func:`remembering`, of its fork, and after a reset."""
    inputs = [np.full((2, 3), value, np.float32) for value in (1, 2, 3, 4)]
    found = [sequence.run({"x": x}) for x in inputs[:2]]
    with sequence.fork() as fork:
        found += [fork.run({"x": x}) for x in inputs[2:]]
    again = sequence.run({"x": inputs[2]})
    sequence.reset()
    first = sequence.run({"x": inputs[0]})
    module = remembering()
    with torch.no_grad():
        expected = [module(torch.from_numpy(x)) for x in inputs]
    for one, (value, before) in zip((*found, again, first), (*expected, expected[2], expected[0]), strict=True):
        np.testing.assert_array_equal(one["output.0"], value)
        np.testing.assert_array_equal(one["output.1"], before)


@functools.cache
def conv_net() -> tuple[ConvNet, TorchModel]:
    """Return a convolutional network and its model."""
    torch.manual_seed(0)
    module = ConvNet()
    return module, load(module, (torch.randn(1, 3, 8, 8),))


@functools.cache
def transformer() -> tuple[Transformer, TorchModel]:
    """Return a transformer and its model."""
    torch.manual_seed(1)
    module = Transformer()
    return module, load(module, (torch.randint(20, (2, 6)), 0.5))


def calling(function: Callable[..., Any], *others: Any, **buffers: torch.Tensor) -> TorchModel:
    """Return the model of a module that calls a function with X and other arguments."""
    return load(Calling(function, **buffers), (X, *others), name="small")
