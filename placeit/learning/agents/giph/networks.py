"""Networks that score the nodes of gpNets: GiPH and its variants (GiPH, section 4.2.2 and Appendix B.6)."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn

from placeit.learning.agents.giph.features import FEATURES, features
from placeit.learning.agents.giph.gpnet import GpNets
from placeit.learning.agents.giph.message_passing import pass_by_level
from placeit.learning.agents.giph.passing import EdgeOrder, orders

__all__ = ["Encoder", "GraphTensors", "Scorer"]

Encoder = Literal["levels", "steps", "no-edges", "sage", "none"]
"""Ways in which nodes exchange information: level by level (GiPH), in k steps (GiPH-k), level by level without edge features
(GiPH-NE), in three GraphSAGE layers in one direction (GraphSAGE-NE), or not at all (GiPH-NE-Pol).

Differs from Table 5: GiPH-NE has the node transform of GiPH, while the paper's passes the 8 features themselves. The h3 of
GiPH-k is a layer on top of that transform, from which its messages start, too, while the paper's h3 is the transform."""

_HIDDEN = 16


class GraphTensors:
    """A batch of gpNets as tensors, copied from their current state.

    Args:
        nets: the graphs.
        name: name of the features that the network reads, a key of :data:`placeit.learning.agents.giph.features.FEATURES`.
        edge_means: whether to append the mean features of its out-edges to each node, for networks that do not read edges.
    """

    def __init__(self, nets: GpNets, name: str, *, edge_means: bool) -> None:
        self.nodes, self.edges = map(torch.from_numpy, features(nets, name))
        self.orders = orders(nets)
        self.src, self.dst = torch.from_numpy(self.orders[0].src), torch.from_numpy(self.orders[0].dst)
        if edge_means:
            self.nodes = torch.cat([self.nodes, _mean(self.edges, self.src, len(self.nodes))], dim=1)


class Scorer(nn.Module):
    """Scores each node, which is an op on a candidate device.

    The network consists of a two-layer transform of node features, an encoder in both directions with separate weights, and a
    multi-layer perceptron with one output on the two concatenated embeddings (GiPH, Tables 4 and 5). Activations are ReLU
    (section 5).

    Args:
        encoder: how nodes exchange information.
        features: name of the features used.
        dim: width of an embedding in one direction; 5 in the paper.
        steps: message passing steps of the encoder ``steps``.
    """

    def __init__(self, encoder: Encoder, *, features: str, dim: int, steps: int) -> None:
        super().__init__()
        self.encoder, self.features, self.steps = encoder, features, steps
        self.edge_means = encoder in ("no-edges", "sage", "none")
        of_node, of_edge = FEATURES[features]
        width = of_node + of_edge if self.edge_means else of_node
        self.directions = nn.ModuleList()
        if encoder == "none":
            embedded = width
        elif encoder == "sage":
            sizes = [width, _HIDDEN, _HIDDEN, 2 * dim]
            self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
            self.neighbours = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
            embedded = 2 * dim
        else:
            self.transform = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim))
            edges = 0 if self.edge_means else of_edge
            for _ in range(2):
                self.directions.append(_Direction(dim, edges, again=encoder == "steps"))
            embedded = 2 * dim
        self.score = nn.Sequential(nn.Linear(embedded, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))

    def forward(self, nets: GpNets) -> Tensor:
        """Return ``float32[N]``, one score for each node."""
        graph = GraphTensors(nets, self.features, edge_means=self.edge_means)
        if self.encoder == "none":
            embedding = graph.nodes
        elif self.encoder == "sage":
            embedding = self._sage(graph)
        else:
            x = self.transform(graph.nodes)
            embedding = torch.cat([self._embed(graph, x, direction) for direction in (0, 1)], dim=1)
        scores: Tensor = self.score(embedding)
        return scores.squeeze(1)

    def _embed(self, graph: GraphTensors, x: Tensor, direction: int) -> Tensor:
        """Pass messages along the edges (``direction`` 0) or against them (1)."""
        layers = cast(_Direction, self.directions[direction])
        if self.encoder == "steps":
            src, dst = (graph.dst, graph.src) if direction else (graph.src, graph.dst)
            return layers.in_steps(x, src, dst, graph.edges, self.steps)
        return layers.by_level(x, graph.edges, graph.orders[direction])

    def _sage(self, graph: GraphTensors) -> Tensor:
        x = graph.nodes
        for own, neighbours in zip(self.own, self.neighbours, strict=True):
            x = torch.relu(own(x) + neighbours(_mean(x[graph.src], graph.dst, len(x))))
        return x


class _Direction(nn.Module):
    """Message passing in one direction: h1 is the message function, h2 the aggregation function (Equations 1 and 4).

    h1 is a linear layer over [embedding, edge features] and a ReLU. The linear layer is split into two terms, of which the
    first is computed once for each node. h2 is a linear layer and a ReLU. Messages are averaged (GiPH, section 5).
    """

    def __init__(self, dim: int, edges: int, *, again: bool) -> None:
        super().__init__()
        width = dim + edges
        self.of_node = nn.Linear(dim, width)
        self.of_edge = nn.Linear(edges, width, bias=False) if edges else None
        self.aggregate = nn.Linear(width, dim)
        self.skip = nn.Linear(dim, dim) if again else nn.Identity()

    def by_level(self, x: Tensor, edges: Tensor, order: EdgeOrder) -> Tensor:
        """Pass messages level by level; a level's messages depend on the embeddings of earlier levels (Equation 1)."""
        width = self.of_node.out_features
        terms = self.of_edge(edges) if self.of_edge is not None else x.new_zeros(len(edges), width)
        layers = (self.of_node.weight, self.of_node.bias, self.aggregate.weight, self.aggregate.bias)
        return pass_by_level(x, terms, *layers, order)

    def in_steps(self, x: Tensor, src: Tensor, dst: Tensor, edges: Tensor, steps: int) -> Tensor:
        """Pass messages to all nodes at once, ``steps`` times (Equation 4)."""
        static = self.of_edge(edges) if self.of_edge is not None else x.new_zeros(1)
        skip = torch.relu(self.skip(x))
        embedding = x
        for _ in range(steps):
            messages = torch.relu(self.of_node(embedding)[src] + static)
            embedding = torch.relu(self.aggregate(_mean(messages, dst, len(x)))) + skip
        return embedding


def _mean(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Return ``[size, F]``: the mean of the values with each index; zero for an index without values."""
    total = values.new_zeros(size, values.shape[1])
    count = torch.bincount(index, minlength=size).clamp_(min=1).to(torch.float32)
    return total.index_add_(0, index, values) / count[:, None]
