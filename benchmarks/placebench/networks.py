"""Networks of published architectures that no other benchmark needs, at the sizes that papers state or nearby ones."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._architectures.language import Experts, LlamaDecoder, WhisperDecoder

__all__ = [
    "DiffusionTransformer",
    "Dlrm",
    "GraphNet",
    "HighResolution",
    "Llama",
    "Mamba",
    "NasNet",
    "StackedLstm",
    "Translator",
    "TreeLstm",
    "Vocoder",
    "WaveNet",
    "Whisper",
    "gpt",
    "mixture",
    "sparse_transformer",
]


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    made = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outputs), nn.ReLU())


def _layer(width: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)


class NasNet(nn.Module):
    """Cells of five pairs of separable convolutions and pools, each of which reads the two cells before it."""

    class Cell(nn.Module):
        def __init__(self, before: int, last: int, width: int, stride: int, shrunk: bool) -> None:
            super().__init__()
            self.before, self.last = _conv(before, width, 1, 2 if shrunk else 1), _conv(last, width, 1)
            deep = lambda kernel: nn.Sequential(*(_conv(width, width, kernel, stride, width), _conv(width, width, 1)))  # noqa: E731
            self.convs = nn.ModuleList(deep(kernel) for kernel in (5, 3, 7, 5, 3, 3))
            self.stride = stride

        def forward(self, before: Tensor, last: Tensor) -> Tensor:
            a, b = self.before(before), self.last(last)
            pool = functional.avg_pool2d(b, 3, self.stride, 1)
            made = [self.convs[0](a) + self.convs[1](b), self.convs[2](a) + pool, self.convs[3](b) + self.convs[4](b)]
            return torch.cat([*made, self.convs[5](b) + pool], 1)

    def __init__(self, width: int = 64, repeats: int = 3) -> None:
        super().__init__()
        self.stem, cells = _conv(3, 32, 3, 2), []
        before, last, shrunk = 32, 32, False
        for stage in range(3):
            for i in range(repeats):
                stride = 2 if i == 0 else 1
                cells.append(self.Cell(before, last, width << stage, stride, shrunk))
                before, last, shrunk = last, 4 * (width << stage), stride == 2
        self.cells, self.head = nn.ModuleList(cells), nn.Linear(last, 1000)

    def forward(self, image: Tensor) -> Tensor:
        before = last = self.stem(image)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.head(last.mean((2, 3)))


class HighResolution(nn.Module):
    """Branches at four resolutions that exchange what they have computed after each block: Wang et al., 2020 (HRNet)."""

    def __init__(self, width: int = 48, exchanges: int = 3) -> None:
        super().__init__()
        sizes = [width << i for i in range(4)]
        self.stem = nn.Sequential(_conv(3, 64, 3, 2), _conv(64, width, 3, 2))
        self.down = nn.ModuleList(_conv(a, b, 3, 2) for a, b in itertools.pairwise(sizes))
        self.blocks = nn.ModuleList(nn.Sequential(*(_conv(w, w) for _ in range(4))) for _ in range(exchanges) for w in sizes)
        self.mixed = nn.ModuleList(_conv(a, b, 1) for _ in range(exchanges) for a in sizes for b in sizes)
        self.head = _conv(sum(sizes), 64, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels = [self.stem(image)]
        for down in self.down:
            levels.append(down(levels[-1]))
        for n in range(len(self.blocks) // 4):
            made = [self.blocks[4 * n + i](x) for i, x in enumerate(levels)]
            size = [x.shape[-2:] for x in made]
            moved = [
                [functional.adaptive_avg_pool2d(self.mixed[16 * n + 4 * i + j](x), size[j]) if i < j else
                 functional.interpolate(self.mixed[16 * n + 4 * i + j](x), size[j]) for j in range(4)]
                for i, x in enumerate(made)
            ]  # fmt: skip
            levels = [sum(moved[i][j] for i in range(4)) for j in range(4)]
        return self.head(torch.cat([functional.interpolate(x, levels[0].shape[-2:]) for x in levels], 1))


def gpt(width: int = 1024, depth: int = 24, heads: int = 16) -> nn.Module:
    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50257, width)
            self.layers = nn.ModuleList(_layer(width, heads) for _ in range(depth))

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x, src_mask=mask)
            return x @ self.words.weight.T

    return Gpt()


class Translator(nn.Module):
    """An encoder and a decoder that attends to it: Vaswani et al., 2017."""

    def __init__(self, width: int = 1024, depth: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(32000, width)
        self.both = nn.Transformer(width, 16, depth, depth, 4 * width, 0.0, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.both(self.words(source), self.words(target)) @ self.words.weight.T


def mixture(width: int, depth: int, count: int) -> nn.Module:
    """Return layers of experts, all of which are computed."""
    return nn.Sequential(*(nn.Sequential(nn.LayerNorm(width), Experts.Layer(width, False, count)) for _ in range(depth)))


def sparse_transformer(width: int = 1024, depth: int = 6, count: int = 8) -> nn.Module:
    """Return attention and experts in turn: Fedus et al., 2022 (Switch)."""
    one = lambda: (_layer(width, 16), nn.Flatten(0, 1), Experts.Layer(width, False, count), nn.Unflatten(0, (1, -1)))  # noqa: E731
    return nn.Sequential(*(part for _ in range(depth) for part in one()))


class DiffusionTransformer(nn.Module):
    """Encoder layers whose norms depend on the time step: Peebles and Xie, 2023 (DiT)."""

    def __init__(self, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.patches, self.time = nn.Conv2d(4, width, 2, 2), nn.Linear(256, width)
        self.layers = nn.ModuleList(_layer(width, 12) for _ in range(depth))
        self.shifts = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.out = nn.Linear(width, 32)

    def forward(self, sample: Tensor, time: Tensor) -> Tensor:
        x, t = self.patches(sample).flatten(2).transpose(1, 2), functional.silu(self.time(time))[:, None]
        for layer, shift in zip(self.layers, self.shifts, strict=True):
            scale, add = shift(t).chunk(2, -1)
            x = layer(x * (1 + scale) + add)
        return self.out(x)


class Whisper(WhisperDecoder):
    WIDTH, DEPTH, HEADS = 768, 12, 12


class WaveNet(nn.Module):
    """Dilated convolutions with gates, whose outputs are summed: van den Oord et al., 2016."""

    def __init__(self, width: int = 128, depth: int = 20) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 256, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, 1, 1 << i % 10, 1 << i % 10) for i in range(depth))
        self.out, self.skip = (nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth)) for _ in range(2))

    def forward(self, sound: Tensor) -> Tensor:
        x, total = self.first(sound), 0.0
        for gated, out, skip in zip(self.gated, self.out, self.skip, strict=True):
            a, b = gated(x).chunk(2, 1)
            made = torch.tanh(a) * torch.sigmoid(b)
            x, total = x + out(made), total + skip(made)
        return self.last(functional.relu(total))


class Vocoder(nn.Module):
    """Transposed convolutions, each with three parallel stacks of dilated ones: Kong et al., 2020 (HiFi-GAN)."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first, sizes = nn.Conv1d(80, width, 7, padding=3), [width >> i for i in range(5)]
        self.grow = nn.ModuleList(
            nn.ConvTranspose1d(a, b, 2 * s, s, s // 2) for a, b, s in zip(sizes, sizes[1:], (8, 8, 2, 2), strict=False)
        )
        self.stacks = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.LeakyReLU(), nn.Conv1d(w, w, k, 1, d * (k // 2), d)) for d in (1, 3, 5)))
            for w in sizes[1:] for k in (3, 7, 11)
        )  # fmt: skip
        self.last = nn.Conv1d(sizes[-1], 1, 7, padding=3)

    def forward(self, spectrum: Tensor) -> Tensor:
        x = self.first(spectrum)
        for i, grow in enumerate(self.grow):
            x = grow(functional.leaky_relu(x))
            x = sum(x + stack(x) for stack in self.stacks[3 * i : 3 * i + 3])
        return torch.tanh(self.last(x))


class GraphNet(nn.Module):
    """Message passing over edges of several relations, which are computed side by side, with attention if wanted.

    Sources: Kipf and Welling, 2017 (GCN: one relation); Velickovic et al., 2018 (GAT); Schlichtkrull et al., 2018 (R-GCN).
    """

    def __init__(self, width: int, depth: int, relations: int = 1, attention: bool = False) -> None:
        super().__init__()
        self.depth, self.relations, self.attention = depth, relations, attention
        self.weights = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth * relations))
        self.scores = nn.ModuleList(nn.Linear(2 * width, 1) for _ in range(depth * relations if attention else 0))
        self.same = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        for i in range(self.depth):
            total = self.same[i](x)
            for r, (source, target) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
                y = self.weights[i * self.relations + r](x)
                sent = y[source]
                if self.attention:
                    sent = sent * self.scores[i * self.relations + r](torch.cat([sent, y[target]], -1)).sigmoid()
                total = total + torch.zeros_like(x).index_add(0, target, sent)
            x = functional.relu(total)
        return x


class _Cell(nn.Module):
    """A step of an LSTM: Hochreiter and Schmidhuber, 1997."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 4 * width)

    def forward(self, x: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c, d = self.gates(torch.cat([x, state], -1)).chunk(4, -1)
        cell = a.sigmoid() * cell + b.sigmoid() * c.tanh()
        return d.sigmoid() * cell.tanh(), cell


class StackedLstm(nn.Module):
    """Unrolled layers, also with attention to the outputs of the first half of the steps: Wu et al., 2016 (GNMT)."""

    def __init__(self, width: int = 1024, layers: int = 4, attention: bool = False) -> None:
        super().__init__()
        self.cells, self.attention = nn.ModuleList(_Cell(width) for _ in range(layers)), attention
        self.head = nn.Linear(width, 32000)

    def forward(self, steps: Tensor) -> Tensor:
        outputs, kept = [], [(torch.zeros_like(steps[0]),) * 2] * len(self.cells)
        for t, x in enumerate(steps):
            if self.attention and t >= len(steps) // 2:
                seen = torch.stack(outputs[: len(steps) // 2], 1)
                x = x + ((seen @ x[:, :, None]).softmax(1) * seen).sum(1)
            for i, cell in enumerate(self.cells):
                kept[i] = cell(x, *kept[i])
                x = kept[i][0]
            outputs.append(x)
        return torch.stack([self.head(x) for x in outputs])


class TreeLstm(nn.Module):
    """A cell that joins two subtrees, from the leaves of a full binary tree to its root: Tai et al., 2015."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.cell = _Cell(width)

    def forward(self, leaves: Tensor) -> Tensor:
        nodes = [(leaf, leaf) for leaf in leaves]
        while len(nodes) > 1:
            nodes = [self.cell(a[0], b[0], a[1] + b[1]) for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
        return nodes[0][0]


class Llama(LlamaDecoder):
    WIDTH, DEPTH, HEADS, CACHED, EACH = 2048, 4, 32, 8, 64


class Mamba(nn.Module):
    """A token of a state space model with its states as inputs and outputs: Gu and Dao, 2023."""

    def __init__(self, width: int = 1024, depth: int = 8, states: int = 16) -> None:
        super().__init__()
        self.enter = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(depth))
        self.select = nn.ModuleList(nn.Linear(2 * width, 2 * states + 2 * width) for _ in range(depth))
        self.leave = nn.ModuleList(nn.Linear(2 * width, width, bias=False) for _ in range(depth))
        self.split = (states, states, 2 * width)

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        made = []
        for enter, select, leave, state in zip(self.enter, self.select, self.leave, states, strict=True):
            y, gate = enter(x).chunk(2, -1)
            b, c, step = select(functional.silu(y)).split(self.split, -1)
            step = functional.softplus(step)[:, :, None]
            made.append(state * torch.exp(-step) + step * b[:, None] * y[:, :, None])
            x = x + leave((made[-1] @ c[:, :, None])[:, :, 0] * functional.silu(gate))
        return x, *made


class Dlrm(nn.Module):
    """Embeddings of many features, their products, and two networks: Naumov et al., 2019."""

    def __init__(self, features: int = 26, width: int = 64, rows: int = 100_000) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(features))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width))
        pairs = (features + 1) ** 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense: Tensor, *ids: Tensor) -> Tensor:
        x = self.bottom(dense)
        each = torch.stack([x, *(table(one) for table, one in zip(self.tables, ids, strict=True))], 1)
        return self.top(torch.cat([x, (each @ each.transpose(1, 2)).flatten(1)], -1))
