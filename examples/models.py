"""ResNet-50, Inception-V3 and BERT-base, built from their published architectures with random weights.

Ops, shapes, bytes and times do not depend on the values of weights, with one exception: model converters remove batch
normalisations, layer normalisations and biases with their initial values, so those are random too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from placeit.core.errors import ModelError
from placeit.core.files import replacing

__all__ = [
    "MODELS",
    "BertBase",
    "InceptionV3",
    "ResNet50",
    "build_model",
    "calibrate",
    "example_inputs",
    "export_model",
    "randomise",
    "write_onnx",
]


class _ConvNorm(nn.Module):
    """Convolution without bias, batch normalisation and, by default, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        *,
        eps: float = 1e-5,
        relu: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=eps)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return functional.relu(x) if self.relu else x


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the stride is on the 3x3 one ("v1.5")."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = _ConvNorm(inputs, width, 1)
        self.conv = _ConvNorm(width, width, 3, stride, 1)
        self.expand = _ConvNorm(width, outputs, 1, relu=False)
        project = stride != 1 or inputs != outputs
        self.shortcut = _ConvNorm(inputs, outputs, 1, stride, relu=False) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.expand(self.conv(self.reduce(x))) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet-50 for 224 x 224 images: ``float32[N, 3, 224, 224] -> float32[N, 1000]``.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2016, Table 1. Differs from the paper: a stage's
    stride is on its 3x3 convolution, as in all published weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = _ConvNorm(3, 64, 7, 2, 3)
        blocks: list[nn.Module] = []
        inputs = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(_Bottleneck(inputs, width, stride if i == 0 else 1))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """Return class scores."""
        x = functional.max_pool2d(self.stem(image), 3, 2, 1)
        x = functional.adaptive_avg_pool2d(self.blocks(x), 1)
        scores: Tensor = self.classifier(torch.flatten(x, 1))
        return scores


def _conv(
    inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, padding: int | tuple[int, int] = 0
) -> nn.Module:
    return _ConvNorm(inputs, outputs, kernel, stride, padding, eps=1e-3)


def _pool(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, 3, 1, 1)


class _InceptionA(nn.Module):
    def __init__(self, inputs: int, pool_features: int) -> None:
        super().__init__()
        self.one = _conv(inputs, 64, 1)
        self.five = nn.Sequential(_conv(inputs, 48, 1), _conv(48, 64, 5, padding=2))
        self.deep = nn.Sequential(_conv(inputs, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, padding=1))
        self.pool = _conv(inputs, pool_features, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.five(x), self.deep(x), self.pool(_pool(x))], 1)


class _ReductionA(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.three = _conv(inputs, 384, 3, 2)
        self.deep = nn.Sequential(_conv(inputs, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.three(x), self.deep(x), functional.max_pool2d(x, 3, 2)], 1)


class _InceptionB(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.one = _conv(inputs, 192, 1)
        self.seven = nn.Sequential(
            _conv(inputs, width, 1), _conv(width, width, (1, 7), padding=(0, 3)), _conv(width, 192, (7, 1), padding=(3, 0))
        )
        self.deep = nn.Sequential(
            _conv(inputs, width, 1),
            _conv(width, width, (7, 1), padding=(3, 0)),
            _conv(width, width, (1, 7), padding=(0, 3)),
            _conv(width, width, (7, 1), padding=(3, 0)),
            _conv(width, 192, (1, 7), padding=(0, 3)),
        )
        self.pool = _conv(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.seven(x), self.deep(x), self.pool(_pool(x))], 1)


class _ReductionB(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.three = nn.Sequential(_conv(inputs, 192, 1), _conv(192, 320, 3, 2))
        self.seven = nn.Sequential(
            _conv(inputs, 192, 1),
            _conv(192, 192, (1, 7), padding=(0, 3)),
            _conv(192, 192, (7, 1), padding=(3, 0)),
            _conv(192, 192, 3, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.three(x), self.seven(x), functional.max_pool2d(x, 3, 2)], 1)


class _InceptionC(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one = _conv(inputs, 320, 1)
        self.three = _conv(inputs, 384, 1)
        self.three_a = _conv(384, 384, (1, 3), padding=(0, 1))
        self.three_b = _conv(384, 384, (3, 1), padding=(1, 0))
        self.deep = nn.Sequential(_conv(inputs, 448, 1), _conv(448, 384, 3, padding=1))
        self.deep_a = _conv(384, 384, (1, 3), padding=(0, 1))
        self.deep_b = _conv(384, 384, (3, 1), padding=(1, 0))
        self.pool = _conv(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        three, deep = self.three(x), self.deep(x)
        wide = torch.cat([self.three_a(three), self.three_b(three)], 1)
        deep = torch.cat([self.deep_a(deep), self.deep_b(deep)], 1)
        return torch.cat([self.one(x), wide, deep, self.pool(_pool(x))], 1)


class InceptionV3(nn.Module):
    """Inception-V3 for 299 x 299 images: ``float32[N, 3, 299, 299] -> float32[N, 1000]``, auxiliary head left out.

    Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016, in the form of its published
    PyTorch weights, which begin by re-scaling images normalised for ImageNet to the range the network was trained on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(3, 32, 3, 2), _conv(32, 32, 3), _conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2),
            _conv(64, 80, 1), _conv(80, 192, 3), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.blocks = nn.Sequential(
            _InceptionA(192, 32), _InceptionA(256, 64), _InceptionA(288, 64), _ReductionA(288),
            _InceptionB(768, 128), _InceptionB(768, 160), _InceptionB(768, 160), _InceptionB(768, 192), _ReductionB(768),
            _InceptionC(1280), _InceptionC(2048),
        )  # fmt: skip
        self.classifier = nn.Linear(2048, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """Return class scores."""
        channels = [
            torch.unsqueeze(image[:, c], 1) * (std / 0.5) + (mean - 0.5) / 0.5
            for c, (mean, std) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225)))
        ]
        x = self.blocks(self.stem(torch.cat(channels, 1)))
        scores: Tensor = self.classifier(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))
        return scores


_HIDDEN, _HEADS, _LAYERS, _VOCABULARY, _POSITIONS = 768, 12, 12, 30522, 512
_NORM_EPS = 1e-12


class _BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(_HIDDEN, _HIDDEN)
        self.key = nn.Linear(_HIDDEN, _HIDDEN)
        self.value = nn.Linear(_HIDDEN, _HIDDEN)
        self.output = nn.Linear(_HIDDEN, _HIDDEN)
        self.attention_norm = nn.LayerNorm(_HIDDEN, eps=_NORM_EPS)
        self.widen = nn.Linear(_HIDDEN, 4 * _HIDDEN)
        self.narrow = nn.Linear(4 * _HIDDEN, _HIDDEN)
        self.norm = nn.LayerNorm(_HIDDEN, eps=_NORM_EPS)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), _HEADS, _HIDDEN // _HEADS).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(_HIDDEN // _HEADS) + mask
        context = torch.matmul(torch.softmax(scores, -1), value).permute(0, 2, 1, 3).contiguous()
        context = context.view(context.size(0), context.size(1), _HIDDEN)
        x = self.attention_norm(self.output(context) + x)
        normalized: Tensor = self.norm(self.narrow(functional.gelu(self.widen(x))) + x)
        return normalized


class BertBase(nn.Module):
    """BERT-base, uncased: three ``int64[N, S]`` to ``float32[N, S, 768]`` (all tokens) and ``float32[N, 768]`` (pooled).

    Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019; 12 layers, width 768, 12 heads.
    """

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_VOCABULARY, _HIDDEN)
        self.position = nn.Embedding(_POSITIONS, _HIDDEN)
        self.types = nn.Embedding(2, _HIDDEN)
        self.norm = nn.LayerNorm(_HIDDEN, eps=_NORM_EPS)
        self.layers = nn.ModuleList(_BertLayer() for _ in range(_LAYERS))
        self.pooler = nn.Linear(_HIDDEN, _HIDDEN)
        self.register_buffer("positions", torch.arange(_POSITIONS).unsqueeze(0), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the last hidden state and the pooled output; without token types, all tokens have the first type."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        x = self.words(input_ids) + self.types(token_type_ids) + self.position(self.positions[:, : input_ids.size(1)])
        x = self.norm(x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


@dataclass(frozen=True)
class _Recipe:
    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], dict[str, Tensor]]
    outputs: tuple[str, ...]


def _image(size: int) -> Callable[[int, int], dict[str, Tensor]]:
    return lambda batch, _: {"image": torch.randn(batch, 3, size, size)}


def _tokens(batch: int, seq: int) -> dict[str, Tensor]:
    shape = (batch, seq)
    return {
        "input_ids": torch.randint(_VOCABULARY, shape),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "token_type_ids": torch.zeros(shape, dtype=torch.int64),
    }


MODELS: Mapping[str, _Recipe] = {
    "resnet50": _Recipe(ResNet50, _image(224), ("scores",)),
    "inception_v3": _Recipe(InceptionV3, _image(299), ("scores",)),
    "bert_base": _Recipe(BertBase, _tokens, ("last_hidden_state", "pooler_output")),
}
"""The models of :func:`build_model` and :func:`export_model`, by name."""


def _recipe(name: str) -> _Recipe:
    if name not in MODELS:
        raise ModelError(f"There is no built-in model '{name}'; there are {', '.join(MODELS)}.")
    return MODELS[name]


def randomise(module: nn.Module) -> None:
    """Initialise all weights randomly, so that activations keep their scale and no bias or scale is an identity."""
    for part in module.modules():
        weight = getattr(part, "weight", None)
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, 0.0, 0.5)
        elif isinstance(weight, Tensor) and weight.dim() > 1:
            nn.init.normal_(weight, 0.0, 1.0 / math.sqrt(weight[0].numel()))
        elif isinstance(weight, Tensor):
            nn.init.uniform_(weight, 0.8, 1.2)
        for name, value in part.named_parameters(recurse=False):
            if "bias" in name:
                nn.init.uniform_(value, -0.1, 0.1)


def calibrate(module: nn.Module, inputs: Iterable[Any]) -> None:
    """Set the running statistics of every batch normalisation to the statistics of one batch, as training would."""
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    if norms:
        for norm in norms:
            norm.momentum = 1.0
        module.train()(*inputs)


def build_model(name: str, *, seed: int = 0) -> nn.Module:
    """Build a model in evaluation mode with weights drawn from ``seed``.

    The caller's random state does not change.

    Args:
        name: a key of :data:`MODELS`.
        seed: seed of the weights.

    Raises:
        ModelError: there is no such model.
    """
    recipe = _recipe(name)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = recipe.build()
        randomise(model)
        calibrate(model, recipe.inputs(1, 1).values())
    return model.eval()


def example_inputs(name: str, *, batch: int = 1, seq: int = 128) -> dict[str, Tensor]:
    """Return random inputs of a model, by name.

    Args:
        name: a key of :data:`MODELS`.
        batch: images or sentences.
        seq: tokens in a sentence; only for ``bert_base``.

    Raises:
        ModelError: there is no such model.
    """
    return _recipe(name).inputs(batch, seq)


def export_model(name: str, path: str | Path, *, batch: int = 1, seq: int = 128, seed: int = 0, dynamic: bool = False) -> Path:
    """Write a model as ONNX (opset 17) and return its path.

    Args:
        name: a key of :data:`MODELS`.
        path: file to write.
        batch: images or sentences in one inference.
        seq: tokens in a sentence; only for ``bert_base``.
        seed: seed of the weights.
        dynamic: leave the batch dimension open in the file.

    Raises:
        ModelError: there is no such model.
        FileError: the file cannot be written.
    """
    recipe = _recipe(name)
    model, inputs = build_model(name, seed=seed), example_inputs(name, batch=batch, seq=seq)
    axes = {tensor: {0: "batch"} for tensor in (*inputs, *recipe.outputs)} if dynamic else None
    return write_onnx(model, path, inputs, recipe.outputs, axes=axes)


def write_onnx(
    module: nn.Module,
    path: str | Path,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    *,
    axes: Mapping[str, Mapping[int, str]] | None = None,
) -> Path:
    """Write a module as ONNX (opset 17) and return the path.

    Args:
        module: a module in evaluation mode.
        path: file to write.
        inputs: example arguments in order, by their names in the file.
        outputs: names of the outputs.
        axes: names of dynamic dimensions, by their index, by the name of the input or output.

    Raises:
        FileError: the file cannot be written.
    """
    path = Path(path)
    with replacing(path) as temporary, warnings.catch_warnings():
        # the papers count the ops of the older exporter, which warns that it is deprecated
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.onnx")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*legacy TorchScript-based ONNX export.*")
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            str(temporary),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    return path
