"""Small PyTorch modules that several folders of tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)


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
