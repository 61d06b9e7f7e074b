"""Unrolled recurrent cells of the kind that ENAS finds, as graphs of grouped operators (GiPH, section 5.2 and Appendix B.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from placeit.core.errors import UsageError
from placeit.learning.workloads.device_networks import DeviceNetwork, DeviceNetworkParameters, random_device_network
from placeit.learning.workloads.task_graphs import TaskGraph

__all__ = [
    "Activation",
    "RecurrentCell",
    "group_operators",
    "grouped_graph",
    "random_recurrent_cell",
    "recurrent_network",
    "unrolled_graph",
]

Activation: TypeAlias = Literal["tanh", "relu", "sigmoid", "identity"]

NODES = 9  # of a cell
HIDDEN = 1000  # size of the state and of the embedding
HARDWARE_TYPES = 5
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class RecurrentCell:
    """A cell of a recurrent network (Pham et al. 2018, section 2.1).

    Node 0 reads the step's input and the state of the step before; every other node reads one earlier node. A node computes
    ``c * f(x W) + (1 - c) * x`` with the gate ``c = sigmoid(x V)``. The new state is the average of the loose ends, the nodes
    that no other node reads.

    Attributes:
        inputs: for each node but the first, the earlier node that it reads.
        activations: for each node, its f.
    """

    inputs: tuple[int, ...]
    activations: tuple[Activation, ...]

    @property
    def loose_ends(self) -> tuple[int, ...]:
        """Nodes that no other node reads."""
        return tuple(sorted(set(range(len(self.activations))) - set(self.inputs)))


def random_recurrent_cell(rng: np.random.Generator, *, nodes: int = NODES) -> RecurrentCell:
    """Draw a cell design: for each node an earlier node and an activation, uniformly.

    Differs from the paper, whose ten designs are the result of an unpublished search. A design with one loose end is drawn
    again: it is a chain, whose nodes cannot run in parallel.

    Args:
        rng: random generator.
        nodes: number of nodes, at least 3; the default makes graphs as large as the paper's.

    Raises:
        UsageError: fewer than 3 nodes.
    """
    if nodes < 3:
        raise UsageError(f"A recurrent cell of {nodes} nodes is a chain; ask for at least 3.")
    names: tuple[Activation, ...] = get_args(Activation)
    while True:
        cell = RecurrentCell(
            inputs=tuple(int(rng.integers(node)) for node in range(1, nodes)),
            activations=tuple(names[i] for i in rng.integers(len(names), size=nodes).tolist()),
        )
        if len(cell.loose_ends) > 1:
            return cell


def unrolled_graph(cell: RecurrentCell, *, steps: int, batch: int, hidden: int = HIDDEN) -> TaskGraph:
    """Return the operators of an unrolled cell: in each step, one operator per node, and an average.

    With 9 nodes and 20 to 30 steps, there are 200 to 300 operators, as in the paper. The lookup of a word's embedding, which
    computes nothing, is part of the first node. Compute is in floating-point operations: a node multiplies its input, ``[batch,
    hidden]`` (twice as wide for the first node), by two matrices, and then computes sigmoid, activation, difference and highway
    element by element, at one operation each, and none for the identity. Each edge carries ``[batch, hidden]`` in single
    precision. All operators require the same hardware. The kind of a node is its activation.

    Args:
        cell: the cell.
        steps: number of steps for which the cell is unrolled.
        batch: number of sequences.
        hidden: size of state and embedding; 1000 in ENAS on Penn Treebank.

    Raises:
        UsageError: a size is not positive.
    """
    for what, size in (("steps", steps), ("batch", batch), ("hidden", hidden)):
        if size < 1:
            raise UsageError(f"'{what}' of an unrolled recurrent cell is {size}; it must be at least 1.")
    nodes, elements = len(cell.activations), batch * hidden
    average, width = nodes, nodes + 1
    flops = [
        # two products of one multiplication and one addition each; gate, 1 - c, two multiplications and an addition
        2.0 * 2 * elements * (2 * hidden if node == 0 else hidden) + elements * (5 + (activation != "identity"))
        for node, activation in enumerate(cell.activations)
    ]
    flops.append(float(elements * len(cell.loose_ends)))
    inside = [(source, node) for node, source in enumerate(cell.inputs, 1)] + [(end, average) for end in cell.loose_ends]
    edges = [(step * width + u, step * width + v) for step in range(steps) for u, v in inside]
    edges += [((step - 1) * width + average, step * width) for step in range(1, steps)]
    edges.sort()
    return TaskGraph(
        compute=np.tile(flops, steps),
        edges=np.array(edges, np.int32),
        edge_bytes=np.full(len(edges), float(_FLOAT_BYTES * elements)),
        requires=np.zeros(steps * width, np.int32),
        names=tuple(
            f"step{step}/{name}" for step in range(steps) for name in (*(f"node{node}" for node in range(nodes)), "average")
        ),
        kinds=(*cell.activations, "average") * steps,
        output_shapes=((batch, hidden),) * (steps * width),
    )


def group_operators(graph: TaskGraph, groups: int = 40) -> TaskGraph:
    """Merge operators into groups: repeatedly, the cheapest operator with a single predecessor into that predecessor.

    This is the grouping of GiPH, section 5.2. Costs of merged operators are added, and so are the bytes of edges between the
    same two groups. A group has the name of its first operator, and the kind and the output shape of its most expensive
    operator. In a tie, the first operator is merged.

    Args:
        graph: the operators; only operators that require the same hardware are merged.
        groups: number of groups; a graph that is no larger is returned unchanged.

    Raises:
        UsageError: ``groups`` is less than one, or no operator with a single predecessor of the same hardware is left.
    """
    if groups < 1:
        raise UsageError(f"Operators cannot be merged into {groups} groups; ask for at least 1.")
    size = len(graph)
    cost, heaviest = graph.compute.copy(), np.arange(size)
    alive, mergeable = np.ones(size, bool), np.ones(size, bool)
    linked = np.zeros((size, size), bool)
    carried = np.zeros((size, size))
    linked[graph.edges[:, 0], graph.edges[:, 1]] = True
    np.add.at(carried, (graph.edges[:, 0], graph.edges[:, 1]), graph.edge_bytes)
    incoming = linked.sum(axis=0)
    left = size
    while left > groups:
        child = int(np.argmin(np.where(mergeable & (incoming == 1), cost, np.inf)))
        if not (mergeable[child] and incoming[child] == 1):
            raise UsageError(
                f"The operators can be merged into {left} groups but not into {groups}: none is left that has a single "
                "predecessor with the same hardware."
            )
        mergeable[child] = False
        parent = int(linked[:, child].argmax())
        if graph.requires[child] != graph.requires[parent]:
            continue  # nor later, since the parent is only merged into operators with its own requirement
        cost[parent] += cost[child]
        heaviest[parent] = max(heaviest[parent], heaviest[child], key=graph.compute.__getitem__)
        incoming -= linked[parent] & linked[child]
        linked[parent] |= linked[child]
        carried[parent] += carried[child]
        linked[child] = False
        linked[parent, child] = False
        alive[child] = False
        left -= 1
    kept = np.flatnonzero(alive)
    edges = np.argwhere(linked[np.ix_(kept, kept)]).astype(np.int32)
    return TaskGraph(
        compute=cost[kept],
        edges=edges,
        edge_bytes=carried[kept[edges[:, 0]], kept[edges[:, 1]]],
        requires=graph.requires[kept],
        names=tuple(graph.names[v] for v in kept.tolist()),
        kinds=tuple(graph.kinds[v] for v in heaviest[kept].tolist()) if graph.kinds else (),
        output_shapes=tuple(graph.output_shapes[v] for v in heaviest[kept].tolist()) if graph.output_shapes else (),
    )


def grouped_graph(cell: RecurrentCell, steps: int, batch: int, rng: np.random.Generator, *, groups: int = 40) -> TaskGraph:
    """Unroll a cell and merge its operators into groups, each of which requires a type of hardware that is drawn."""
    graph = group_operators(unrolled_graph(cell, steps=steps, batch=batch), groups)
    return replace(graph, requires=rng.integers(HARDWARE_TYPES, size=len(graph)).astype(np.int32))


def recurrent_network(rng: np.random.Generator) -> DeviceNetwork:
    """Draw the network of 8 devices that recurrent graphs are placed on.

    The paper gives no other details. Here devices compute 1e12 floating-point operations per second and links move 1e9 bytes
    per second, on average and up to 60 % more or less, with delays of 0.1 ms on average: a node takes about as long as the
    transfer of its result. Each device has each of five types of hardware with probability 1/2. If every device could run every
    group, these graphs, which are nearly chains, would be fastest on the fastest device alone.
    """
    parameters = DeviceNetworkParameters(
        devices=8,
        mean_speed=1e12,
        mean_bandwidth=1e9,
        mean_delay=1e-4,
        speed_heterogeneity=0.6,
        bandwidth_heterogeneity=0.6,
        hardware_types=HARDWARE_TYPES,
        support=0.5,
    )
    return random_device_network(parameters, rng)
