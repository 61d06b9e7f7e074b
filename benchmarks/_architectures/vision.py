"""Networks for images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MobileNet", "UNet", "VisionTransformer", "image", "noise", "vgg"]


def image(size: int, batch: int = 1) -> Callable[[], Mapping[str, Tensor]]:
    """Return a function that makes images of ``size`` times ``size`` pixels."""
    return lambda: {"image": torch.randn(batch, 3, size, size)}


def vgg() -> nn.Module:
    """Chain convolutions and pooling, with a wide classifier, as in Simonyan and Zisserman, 2015, with fewer layers."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in (32, 64, 128, 256):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        inputs = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 36, 1024), nn.ReLU(), nn.Linear(1024, 100))


class MobileNet(nn.Module):
    """Inverted residuals with depthwise convolutions, squeeze-and-excitation and hard swish: Howard et al., 2019, less deep."""

    class Block(nn.Module):
        def __init__(self, inputs: int, wide: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.widen = nn.Sequential(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
            self.depth = nn.Sequential(
                nn.Conv2d(wide, wide, 5, stride, 2, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
            )
            self.squeeze = nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(wide, wide // 4, 1),
                nn.ReLU(),
                nn.Conv2d(wide // 4, wide, 1),
                nn.Hardsigmoid(),
            )
            self.narrow = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
            self.same = stride == 1 and inputs == outputs

        def forward(self, x: Tensor) -> Tensor:
            made = self.depth(self.widen(x))
            made = self.narrow(made * self.squeeze(made))
            return x + made if self.same else made

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        sizes = ((16, 64, 24, 2), (24, 96, 24, 1), (24, 96, 40, 2), (40, 160, 40, 1), (40, 160, 80, 2), (80, 320, 80, 1))
        self.blocks = nn.Sequential(*(self.Block(*size) for size in sizes))
        self.classifier = nn.Linear(80, 100)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.blocks(self.stem(image)).mean((2, 3)))


class VisionTransformer(nn.Module):
    """Patches, a class token and pre-norm encoder layers: Dosovitskiy et al., 2021. For images of 96 x 96."""

    def __init__(self, width: int = 192, depth: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 37, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, 3, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.encoder(x))[:, 0])


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm_2, self.conv_2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        made = self.conv(functional.silu(self.norm(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.conv_2(functional.silu(self.norm_2(made))) + self.shortcut(x)


class _CrossAttention(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.query, self.rest, self.out = nn.Linear(width, width), nn.Linear(context, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch, width, high, wide = x.shape
        key, value = self.rest(context).chunk(2, -1)
        query, key, value = (
            each.view(batch, -1, 4, width // 4).transpose(1, 2)
            for each in (self.query(self.norm(x).flatten(2).transpose(1, 2)), key, value)
        )
        made = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, high * wide, width)
        return x + self.out(made).transpose(1, 2).reshape(batch, width, high, wide)


class UNet(nn.Module):
    """A step of a diffusion: residual blocks with skips, time embedding and cross-attention (Rombach et al., 2022)."""

    def __init__(self, width: int = 32, context: int = 64) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down_1, self.down_2 = _Residual(width, width, time), _Residual(width, 2 * width, time)
        self.shrink = nn.Conv2d(width, width, 3, 2, 1)
        self.attention = _CrossAttention(2 * width, context)
        self.middle = _Residual(2 * width, 2 * width, time)
        self.up_2, self.up_1 = _Residual(4 * width, width, time), _Residual(2 * width, width, time)
        self.last = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        steps = torch.exp(-math.log(1e4) * torch.arange(self.width // 2) / (self.width // 2))
        angles = timestep.float()[:, None] * steps[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = self.down_1(self.first(sample), time)
        second = self.attention(self.down_2(self.shrink(first), time), context)
        x = self.up_2(torch.cat([self.middle(second, time), second], 1), time)
        x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.last(self.up_1(torch.cat([x, first], 1), time))


def noise() -> Mapping[str, Tensor]:
    return {"sample": torch.randn(1, 4, 32, 32), "timestep": torch.tensor([500]), "context": torch.randn(1, 16, 64)}
