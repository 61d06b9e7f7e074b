"""Networks of the stream allocation: an encoder of graphs, and a decoder that writes a placement."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placeit.learning.agents.attention import AttentionDecoder, State, encode_both_ways

__all__ = ["Encoded", "Graphs", "Network"]

_HOPS = 2  # steps of the graph encoder, K in the paper


@dataclass(frozen=True, eq=False)
class Graphs:
    """Padded graphs with their ops in the order in which they are placed.

    Attributes:
        features: ``[P, V, F]``.
        upstream: ``[P, V, V]``; row ``v`` holds the weights of the mean over the ops directly upstream of ``v``.
        downstream: ``[P, V, V]``; row ``v`` holds the weights of the mean over the ops directly downstream of ``v``.
        absent: ``bool[P, V]``, True for padding.
        lengths: ``int64[P]``, number of ops.
    """

    features: Tensor
    upstream: Tensor
    downstream: Tensor
    absent: Tensor
    lengths: Tensor


@dataclass(frozen=True, eq=False)
class Encoded:
    """Inputs of the decoder.

    Attributes:
        ops: ``[R, V, H]``, encoded ops.
        state: first state.
        upstream: ``[R, V, V]``, as in :class:`Graphs`.
        absent: ``bool[R, V]``, True for padding.
    """

    ops: Tensor
    state: State
    upstream: Tensor
    absent: Tensor

    def rows(self, at: Tensor) -> Encoded:
        """Select rows by number; a number may occur several times."""
        return Encoded(self.ops[at], (self.state[0][:, at], self.state[1][:, at]), self.upstream[at], self.absent[at])


class Network(AttentionDecoder):
    """Encoder and decoder (section 3).

    The graph encoder computes an embedding of the ops upstream of each op and an embedding of the ops downstream, and
    concatenates the two. Each of its two steps uses the mean over the neighbours (Eq. 1), with weights that both directions
    share. A linear layer and the maximum over the ops give the embedding of the graph, from which the decoder starts. Without a
    graph encoder, a bidirectional LSTM reads the ops, as in HDP.

    Args:
        inputs: number of features of an op.
        devices: number of outputs.
        width: width of embeddings and of the decoder; even.
        graph: whether the encoder is the graph encoder (F1 of Table 1).
        upstream: whether the decoder reads the mean embedding of the devices of the ops upstream (F2).
    """

    def __init__(self, inputs: int, devices: int, width: int, *, graph: bool, upstream: bool) -> None:
        half = width // 2
        super().__init__(width + half if upstream else width, devices, width)
        self._graph, self._upstream = graph, upstream
        if graph:
            sizes = [inputs] + [half] * (_HOPS - 1)
            self.gather = nn.ModuleList([nn.Linear(size, half) for size in sizes])
            self.update = nn.ModuleList([nn.Linear(size + half, half) for size in sizes])
            self.whole = nn.Linear(width, width)
        else:
            self.encoder = nn.LSTM(inputs, half, bidirectional=True, batch_first=True)

    def encode(self, graphs: Graphs) -> Encoded:
        """Return the decoder's inputs for each graph."""
        if self._graph:
            embeddings = []
            for weights in (graphs.upstream, graphs.downstream):
                embedding = graphs.features
                for gather, update in zip(self.gather, self.update, strict=True):
                    neighbours = weights @ torch.tanh(gather(embedding))
                    embedding = torch.tanh(update(torch.cat([embedding, neighbours], dim=2)))
                embeddings.append(embedding)
            ops = torch.cat(embeddings, dim=2).masked_fill(graphs.absent[..., None], 0.0)
            graph = self.whole(ops).masked_fill(graphs.absent[..., None], -torch.inf).amax(dim=1)[None]
            return Encoded(ops, (torch.tanh(graph), graph), graphs.upstream, graphs.absent)
        ops, state = encode_both_ways(self.encoder, graphs.features, graphs.lengths)
        return Encoded(ops, state, graphs.upstream, graphs.absent)

    def step(self, encoded: Encoded, t: int, chosen: Tensor, state: State) -> tuple[Tensor, State]:
        """Return ``[R, D]`` logits of step ``t`` and the state after it; ``chosen`` holds the devices of earlier steps."""
        current = encoded.ops[:, t : t + 1]
        if self._upstream:
            current = torch.cat([current, encoded.upstream[:, t : t + 1, :t] @ self.device(chosen[:, :t])], dim=2)
        previous = chosen[:, t - 1 : t] if t else torch.full_like(chosen[:, :1], self.logits.out_features)
        logits, state = self.decode(current, encoded.ops, encoded.absent, previous, state)
        return logits[:, 0], state

    def steps(self, encoded: Encoded, chosen: Tensor) -> Tensor:
        """Return ``[R, V, D]`` logits of all steps, given the chosen devices ``int64[R, V]``."""
        current = encoded.ops
        if self._upstream:
            current = torch.cat([current, encoded.upstream @ self.device(chosen)], dim=2)
        previous = torch.cat([torch.full_like(chosen[:, :1], self.logits.out_features), chosen[:, :-1]], dim=1)
        return self.decode(current, encoded.ops, encoded.absent, previous, encoded.state)[0]
