"""The way of a model's inputs from where they arrive, and of its outputs back, as a part of the simulated problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ClusterError
from placeit.core.problem import Problem
from placeit.simulator.arrivals import SimulatedReplica

__all__ = ["arriving", "node_of", "resolved"]

_FREE = Link(np.inf, 0.0)


def resolved(at: str, cluster: Cluster) -> str:
    """Return the device at which requests arrive, by its name or the name of a node, whose first device that is.

    Raises:
        ClusterError: the cluster has neither such a device nor a device of such a node.
    """
    for device in cluster.devices:
        if at in (device.name, node_of(device)):
            return device.name
    raise ClusterError(
        f"'arrives_at' is '{at}', which is neither one of the devices that the model may use nor a node of one of them: name "
        f"one of {', '.join(cluster.names)}, or let the model use that device."
    )


def arriving(replica: SimulatedReplica, at: str, cluster: Cluster, sent: float, answered: float) -> SimulatedReplica:
    """Return a replica whose requests also go from a device to the first segments, and back from the last ones.

    Segments without predecessors get equal parts of the inputs, and the outputs are equal parts of the segments without
    successors. What arrives at a device for all models takes turns on the links, beside transfers between segments. It does not
    wait for the device itself, which is here a further device, without work.

    Args:
        replica: the replica.
        at: name of the device.
        cluster: has the links. A device outside of it, such as the whole CPU, is reached like one of the same node.
        sent: bytes of a request's inputs.
        answered: bytes of its outputs.
    """
    of, count, d = replica.problem, len(replica.problem), replica.problem.devices
    bandwidth, latency = (np.pad(matrix, (0, 1)) for matrix in (of.bandwidth, of.latency))
    bandwidth[d, d] = np.inf
    for k, name in enumerate(of.device_names):
        there, back = _links(at, name, cluster)
        bandwidth[d, k], latency[d, k] = there.bandwidth, there.latency
        bandwidth[k, d], latency[k, d] = back.bandwidth, back.latency
    compute = np.pad(of.compute, ((0, 2), (0, 1)), constant_values=np.inf)
    compute[count:, d] = 0.0
    first, last = (np.flatnonzero(np.bincount(of.edges[:, side], minlength=count) == 0) for side in (1, 0))
    into = np.stack([np.full(len(first), count), first], axis=1)
    out = np.stack([last, np.full(len(last), count + 1)], axis=1)
    more, tensors = len(into) + len(out), int(of.edge_tensor.max(initial=-1)) + 1
    # the factor on the replica's times is for the model's work, which these bytes are not
    sizes = [np.full(len(into), sent / len(into) / replica.scale), np.full(len(out), answered / len(out) / replica.scale)]
    used = np.unique(replica.placement)
    problem = Problem.from_arrays(
        compute,
        np.concatenate([of.edges, into, out]),
        np.concatenate([of.edge_bytes, *sizes]),
        bandwidth,
        latency,
        edge_tensor=np.concatenate([of.edge_tensor, tensors + np.arange(more)]),
        cut=np.pad(of.cut, ((0, more), (0, 1))),
        conflicts=np.pad(of.conflicts, (0, 1)),
        host=np.full(d + 2, of.host[used[0] if len(used) == 1 else -1]),
        device_names=(*of.device_names, f"arrivals at {at}"),
    )
    return replace(replica, problem=problem, placement=np.append(replica.placement, [d, d]).astype(np.int32))


def _links(at: str, name: str, cluster: Cluster) -> tuple[Link, Link]:
    """Return the links to a device from where requests arrive, and back."""
    if name not in cluster.names:
        name = next((one.name for one in cluster.devices if node_of(one) == name.rpartition("/")[0]), at)
    return cluster.links.get((at, name), _FREE), cluster.links.get((name, at), _FREE)


def node_of(device: Device) -> str:
    """Return the name of the node of a device; empty for this machine."""
    return device.name.rpartition("/")[0] if device.address is None else device.where.node
