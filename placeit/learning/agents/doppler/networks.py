"""DOPPLER's network: a message-passing encoder of ops, and a head for each of the two policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from placeit.learning.agents.doppler.episodes import DEVICE_INPUTS, Policy
from placeit.learning.agents.doppler.features import path_sums
from placeit.learning.agents.doppler.graph import OP_INPUTS, Graph

__all__ = ["Encoded", "Network", "Progress"]


class Progress(NamedTuple):
    """State of episodes, for messages that are passed at each step.

    Attributes:
        ops: ``float32[N, V, 2]``, whether an op is placed, and its estimated finish time in multiples of the graph's unit.
        edges: ``float32[N, E, 1]``, whether both ends are placed, on different devices.
    """

    ops: Tensor
    edges: Tensor


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded ops of a problem, as the policies read them; ``N`` is 1 without progress.

    Attributes:
        select: ``float32[N, V]``, logits of SEL.
        node: ``float32[N, V, W]``, term that an op adds to PLC's first layer while its device is chosen.
        placed: ``float32[N, V, W]``, term that a placed op adds to PLC's first layer for its device.
    """

    select: Tensor
    node: Tensor
    placed: Tensor


class Network(nn.Module):
    """The two policies of DOPPLER, SEL and PLC (section 5.2).

    ``H`` is an op's embedding by message passing over in- and out-edges, and ``Z`` an embedding of the op's features. SEL's
    logit of an op is a two-layer network of ``[H, sum of H along the b-path, sum of H along the t-path, Z]``. PLC's logit of a
    device is a two-layer network of ``[H of the op, sum of H of the ops placed there, Y, Z of the op]``, where ``Y`` is an
    embedding of the device's features. The first layer is linear in each of these parts, so parts that do not change during an
    episode are computed once.

    Differs from the paper, which leaves open the form of messages and the widths: messages along edges and against edges have
    separate weights; sums along paths are divided by the number of ops on the longest path, and sums over placed ops by the
    number of ops per device.

    Args:
        width: width of all hidden layers.
        rounds: number of rounds of message passing.
        progress: whether messages carry the progress of an episode.
    """

    def __init__(self, width: int, rounds: int, *, progress: bool = False) -> None:
        super().__init__()
        inputs, edge_inputs = (OP_INPUTS + 2, 2) if progress else (OP_INPUTS, 1)
        self.embed = nn.Linear(inputs, width)
        self.along = nn.ModuleList(nn.Linear(2 * width + edge_inputs, width) for _ in range(rounds))
        self.against = nn.ModuleList(nn.Linear(2 * width + edge_inputs, width) for _ in range(rounds))
        self.update = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(rounds))
        self.own = nn.Sequential(nn.Linear(OP_INPUTS, width), nn.LeakyReLU(), nn.Linear(width, width))
        self.selected = nn.Sequential(nn.Linear(4 * width, width), nn.LeakyReLU(), nn.Linear(width, 1))
        self.device = nn.Sequential(nn.Linear(DEVICE_INPUTS, width), nn.LeakyReLU(), nn.Linear(width, width, bias=False))
        self.of_node = nn.Linear(2 * width, width)
        self.of_placed = nn.Linear(width, width, bias=False)
        self.to_logit = nn.Sequential(nn.LeakyReLU(), nn.Linear(width, 1))

    def encode(self, graph: Graph, progress: Progress | None = None) -> Encoded:
        """Encode the ops by message passing: once for an episode, or for each of the ``N`` states in ``progress``."""
        ops, edges = graph.ops[None], graph.edges[None]
        if progress is not None:
            states = len(progress.ops)
            ops = torch.cat([ops.expand(states, -1, -1), progress.ops], dim=2)
            edges = torch.cat([edges.expand(states, -1, -1), progress.edges], dim=2)
        hidden = self.embed(ops)
        degree_in = torch.bincount(graph.head, minlength=hidden.shape[1]).clamp(min=1)[:, None]
        degree_out = torch.bincount(graph.tail, minlength=hidden.shape[1]).clamp(min=1)[:, None]
        for along, against, update in zip(self.along, self.against, self.update, strict=True):
            tail, head = hidden[:, graph.tail], hidden[:, graph.head]
            forward = nn.functional.leaky_relu(along(torch.cat([tail, head, edges], dim=2)))
            back = nn.functional.leaky_relu(against(torch.cat([head, tail, edges], dim=2)))
            arrived = torch.zeros_like(hidden).index_add(1, graph.head, forward) / degree_in
            returned = torch.zeros_like(hidden).index_add(1, graph.tail, back) / degree_out
            hidden = hidden + nn.functional.leaky_relu(update(torch.cat([hidden, arrived, returned], dim=2)))
        own = self.own(graph.ops).expand_as(hidden)
        paths = [path_sums(hidden, path) / path.longest for path in (graph.to_entry, graph.to_exit)]
        select = self.selected(torch.cat([hidden, *paths, own], dim=2))[..., 0]
        share = graph.problem.devices / hidden.shape[1]
        return Encoded(select, self.of_node(torch.cat([hidden, own], dim=2)), self.of_placed(hidden) * share)

    def place(self, node: Tensor, placed: Tensor, features: Tensor) -> Tensor:
        """Return logits of devices, ``float32[..., D]``.

        Args:
            node: ``float32[..., W]``, :attr:`Encoded.node` of the op.
            placed: ``float32[..., D, W]``, sums of :attr:`Encoded.placed` over the ops on each device.
            features: ``float32[..., D, F]``, features of the devices, as compiled episodes write them.
        """
        logits: Tensor = self.to_logit(node[..., None, :] + placed + self.device(features))[..., 0]
        return logits

    def compiled(self, encoded: Encoded, on: NDArray[np.float32]) -> Policy:
        """Return both policies for compiled code, which updates ``on``, ``float32[R, D, W]``, in place."""
        into, bias, onward = self.device.parameters()
        weights, last_bias = self.to_logit.parameters()
        arrays = (encoded.select, encoded.node, encoded.placed, into.T, bias, onward.T, torch.cat([weights[0], last_bias]))
        select, node, placed, *layers = (tensor.detach().contiguous().numpy() for tensor in arrays)
        return Policy(select, node, placed, on, *layers)
