"""Published models of convolutions and LSTMs in both directions, with random weights: CRNN, and the encoder of Tacotron 2.

The two directions of a layer are two LSTMs here, one of which reads backwards. As one op they could only run on one device.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

__all__ = ["BIDIRECTIONAL", "export_bidirectional"]


class _BothWays(nn.Module):
    """An LSTM in each direction: ``float32[T, N, inputs] -> float32[T, N, 2 * units]``."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.forwards, self.backwards = nn.LSTM(inputs, units), nn.LSTM(inputs, units)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.forwards(x)[0], self.backwards(x.flip(0))[0].flip(0)], 2)


class Crnn(nn.Module):
    """CRNN for words of text: ``float32[N, 1, 32, 100] -> float32[24, N, 37]``.

    Source: Shi et al., "An End-to-End Trainable Neural Network for Image-based Sequence Recognition", 2015, Table 1.
    """

    def __init__(self) -> None:
        super().__init__()

        def conv(inputs: int, outputs: int, kernel: int = 3, padding: int = 1, *, norm: bool = False) -> list[nn.Module]:
            layers = [nn.Conv2d(inputs, outputs, kernel, 1, padding), *([nn.BatchNorm2d(outputs)] if norm else []), nn.ReLU()]
            return cast("list[nn.Module]", layers)

        self.convolutions = nn.Sequential(
            *conv(1, 64),
            nn.MaxPool2d(2),
            *conv(64, 128),
            nn.MaxPool2d(2),
            *conv(128, 256),
            *conv(256, 256),
            nn.MaxPool2d((2, 1)),
            *conv(256, 512, norm=True),
            *conv(512, 512, norm=True),
            nn.MaxPool2d((2, 1)),
            *conv(512, 512, 2, 0),
        )
        self.recurrent = nn.Sequential(_BothWays(512, 256), nn.Linear(512, 256), _BothWays(256, 256), nn.Linear(512, 37))

    def forward(self, image: Tensor) -> Tensor:
        return cast("Tensor", self.recurrent(self.convolutions(image).squeeze(2).permute(2, 0, 1)))


class TacotronEncoder(nn.Module):
    """The encoder of Tacotron 2: ``int64[N, T] -> float32[T, N, 512]``.

    Source: Shen et al., "Natural TTS Synthesis by Conditioning WaveNet on Mel Spectrogram Predictions", 2018, section 2.2.
    """

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(148, 512)
        layers = [(nn.Conv1d(512, 512, 5, 1, 2), nn.BatchNorm1d(512), nn.ReLU()) for _ in range(3)]
        self.convolutions = nn.Sequential(*(part for layer in layers for part in layer))
        self.recurrent = _BothWays(512, 256)

    def forward(self, text: Tensor) -> Tensor:
        return cast("Tensor", self.recurrent(self.convolutions(self.characters(text).transpose(1, 2)).permute(2, 0, 1)))


BIDIRECTIONAL = ("crnn", "tacotron2_encoder")
"""Models that :func:`export_bidirectional` knows: one word of text, and a sentence of 100 characters."""


def export_bidirectional(name: str, path: Path) -> None:
    """Write a model as ONNX, its weights drawn from a fixed seed."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model: nn.Module = Crnn() if name == "crnn" else TacotronEncoder()
        values = torch.randn(1, 1, 32, 100) if name == "crnn" else torch.randint(148, (1, 100))
        for norm in model.modules():  # a norm with its initial values would be folded away
            if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.uniform_(norm.weight, 0.8, 1.2)
                nn.init.uniform_(norm.bias, -0.1, 0.1)
                norm.momentum = 1.0
        model.train()(values)
        torch.onnx.export(model.eval(), (values,), str(path), opset_version=17, dynamo=False)
