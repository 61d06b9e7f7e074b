"""Compiled message passing against Equation 1 of GiPH, with PyTorch's own gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from placeit.learning.agents.giph.gpnet import GpNets
from placeit.learning.agents.giph.message_passing import pass_by_level
from placeit.learning.agents.giph.passing import EdgeOrder
from placeit.placers.feasibility import random_placements
from placeit.testing.problems import random_problem

FORWARD, BACKWARD = False, True


def nets() -> GpNets:
    rng = np.random.default_rng(3)
    problems = [random_problem(ops, devices, seed=ops) for ops, devices in ((9, 3), (14, 2), (1, 1))]
    made = GpNets(problems)
    for b, problem in enumerate(problems):
        made.set(b, random_placements(problem, 1, rng)[0])
    return made


def order_of(graph: GpNets, direction: bool) -> EdgeOrder:
    if direction == FORWARD:
        return EdgeOrder(graph.src, graph.dst, graph.forward, graph.node_bounds, graph.forward_bounds, descending=False)
    return EdgeOrder(graph.dst, graph.src, graph.backward, graph.node_bounds, graph.backward_bounds, descending=True)


def drawn(graph: GpNets, *, width: int = 3, hidden: int = 7, seed: int = 0) -> list[Tensor]:
    """Node features, edge terms and layers, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    layers = [(hidden, width), (hidden,), (width, hidden), (width,)]
    shapes = [(len(graph.op), width), (len(graph.src), hidden), *layers]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def by_definition(graph: GpNets, direction: bool, x: Tensor, edges: Tensor, *layers: Tensor) -> Tensor:
    """Equation 1, node by node, each after all that send to it."""
    node_weight, node_bias, weight, bias = layers
    src, dst = (graph.src, graph.dst) if direction == FORWARD else (graph.dst, graph.src)
    embedding: dict[int, Tensor] = {}
    rows = range(len(x)) if direction == FORWARD else reversed(range(len(x)))
    for u in rows:
        messages = [torch.relu(node_weight @ embedding[int(src[m])] + node_bias + edges[m]) for m in np.flatnonzero(dst == u)]
        embedding[u] = x[u]
        if messages:
            embedding[u] = x[u] + torch.relu(weight @ torch.stack(messages).mean(dim=0) + bias)
    return torch.stack([embedding[u] for u in range(len(x))])


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_embeddings_and_gradients_are_those_of_the_equation(direction: bool) -> None:
    graph = nets()
    tensors = drawn(graph)
    weights = torch.randn(len(graph.op), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, expected = pass_by_level(*tensors, order_of(graph, direction)), by_definition(graph, direction, *tensors)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad((out * weights).sum(), tensors) for out in (found, expected)]
    for mine, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_numerical_gradients_agree(direction: bool) -> None:
    graph = GpNets([random_problem(6, 2, seed=2)])
    graph.set(0, np.where(graph.problems[0].feasible[:, 0], 0, 1).astype(np.int32))
    tensors = drawn(graph)
    assert torch.autograd.gradcheck(lambda *inputs: pass_by_level(*inputs, order_of(graph, direction)), tensors)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_messages_go_with_the_edges_or_truly_against_them(direction: bool) -> None:
    graph = nets()
    tensors = [tensor.detach().abs() for tensor in drawn(graph)]  # all positive: no ReLU stops a message
    src, dst = (graph.src, graph.dst) if direction == FORWARD else (graph.dst, graph.src)
    changed = int(src[len(src) // 2])
    before = pass_by_level(*tensors, order_of(graph, direction))
    tensors[0][changed] += 10.0
    after = pass_by_level(*tensors, order_of(graph, direction))
    reached = {changed}
    for _ in range(len(graph.op)):
        reached |= set(dst[np.isin(src, list(reached))].tolist())
    assert set(np.flatnonzero((before != after).any(dim=1).numpy()).tolist()) == reached
    assert len(reached) > 1


def test_a_graph_without_edges_keeps_its_features() -> None:
    graph = GpNets([random_problem(1, 3, seed=0)])
    graph.set(0, np.array([int(np.flatnonzero(graph.problems[0].feasible[0])[0])], np.int32))
    tensors = drawn(graph)
    torch.testing.assert_close(pass_by_level(*tensors, order_of(graph, FORWARD)), tensors[0])
