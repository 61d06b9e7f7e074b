"""HSDAG's network: an encoder of ops by graph convolution, scores of edges, and devices of groups."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, relu

from placeit.core.extras import import_extra
from placeit.learning.agents.hsdag.features import WIDTH

__all__ = ["Network"]


class Network(nn.Module):
    """Two layers each for features, graph convolution (``GCNConv`` of PyTorch Geometric, Eq. 6), edges and devices (Table 6).

    Differs from the paper: an edge's score is a function of the embeddings of its producer and its consumer, and of their
    product. Eq. 7 has only the product, by which an edge and its reverse have the same score. The inputs of convolutions are
    normalised, since the update of Z by groups adds to them in each step.

    Args:
        width: width of all hidden layers.
        devices: number of outputs for a group.
        symmetric: whether messages go along edges and against them, and an edge's score depends on the product only (Eq. 7), as
            in the public code.

    Raises:
        UsageError: PyTorch Geometric is not installed.
    """

    def __init__(self, width: int, devices: int, *, symmetric: bool = False) -> None:
        super().__init__()
        self.symmetric = symmetric
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # its import uses TorchScript
            geometric = import_extra("The agent 'hsdag'", "learn", "torch_geometric.nn")
        self.transform = nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Linear(width, width))
        self.norm = nn.ModuleList(geometric.GraphNorm(width) for _ in range(3))
        self.convolve = nn.ModuleList(geometric.GCNConv(width, width) for _ in range(2))
        self.edge = nn.Sequential(nn.Linear(width if symmetric else 3 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.device = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, devices))

    def encode(self, features: Tensor, update: Tensor, edges: Tensor, problem: Tensor) -> Tensor:
        """Return Z, ``float32[V, W]``.

        Args:
            features: ``float32[V, WIDTH]``.
            update: ``float32[V, W]``, term from earlier steps of the episode.
            edges: ``int64[E, 2]``, the edges along which messages go, from producer to consumer.
            problem: ``int64[V]``, the problem to which an op belongs.
        """
        if self.symmetric:
            edges = torch.cat([edges, edges.flip(1)])
        hidden: Tensor = self.norm[0](self.transform(features) + update, problem)
        for convolve, norm in zip(self.convolve, self.norm[1:], strict=True):
            hidden = relu(norm(convolve(hidden, edges.T), problem))
        return hidden

    def log_scores(self, embedding: Tensor, edges: Tensor) -> Tensor:
        """Return the logarithms of edge scores, ``float32[E]``, for ``float32[V, W]`` embeddings and ``int64[E, 2]`` edges."""
        producer, consumer = embedding[edges[:, 0]], embedding[edges[:, 1]]
        ends = [] if self.symmetric else [producer, consumer]
        return logsigmoid(self.edge(torch.cat([*ends, producer * consumer], dim=1))[:, 0])

    def devices(self, pooled: Tensor) -> Tensor:
        """Return logits of devices for groups: ``float32[G, W]`` to ``float32[G, D]``."""
        logits: Tensor = self.device(pooled)
        return logits
