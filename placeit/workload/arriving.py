"""Add the transfer of inputs from the device where they arrive, and of outputs back to it, to a simulated problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ClusterError
from placeit.core.problem import Problem
from placeit.simulator.arrivals import SimulatedReplica

__all__ = ["arrival_device", "node_of", "with_arrivals"]

_FREE = Link(np.inf, 0.0)


def arrival_device(at: str, cluster: Cluster) -> str:
    """Return the name of the device at which requests arrive.

    Args:
        at: name of the device, or of a node, which stands for its first device.
        cluster: the devices that the model may use.

    Raises:
        ClusterError: the cluster has no such device, and no device of such a node.
    """
    for device in cluster.devices:
        if at in (device.name, node_of(device)):
            return device.name
    raise ClusterError(
        f"'arrives_at' is '{at}', which is neither one of the devices that the model may use nor a node of one of them: name "
        f"one of {', '.join(cluster.names)}, or let the model use that device."
    )


def with_arrivals(
    replica: SimulatedReplica, at: str, cluster: Cluster, input_bytes: float, output_bytes: float
) -> SimulatedReplica:
    """Return a replica whose inputs are sent from a device to its first segments, and its outputs from its last ones back.

    Segments without predecessors receive equal parts of the inputs, and segments without successors make equal parts of the
    outputs. Inputs of all models share the links with transfers between segments. They do not wait for the device where they
    arrive: the returned problem has one more device, which computes nothing, in its place.

    Args:
        replica: the replica.
        at: name of the device where inputs arrive.
        cluster: has the links. A device outside of it, such as the whole CPU, is reached by the links of a device of its node.
        input_bytes: bytes of a request's inputs.
        output_bytes: bytes of its outputs.
    """
    before, count, d = replica.problem, len(replica.problem), replica.problem.devices
    bandwidth, latency = (np.pad(matrix, (0, 1)) for matrix in (before.bandwidth, before.latency))
    bandwidth[d, d] = np.inf
    for k, name in enumerate(before.device_names):
        there, back = _links(at, name, cluster)
        bandwidth[d, k], latency[d, k] = there.bandwidth, there.latency
        bandwidth[k, d], latency[k, d] = back.bandwidth, back.latency
    compute = np.pad(before.compute, ((0, 2), (0, 1)), constant_values=np.inf)
    compute[count:, d] = 0.0
    first, last = (np.flatnonzero(np.bincount(before.edges[:, side], minlength=count) == 0) for side in (1, 0))
    into = np.stack([np.full(len(first), count), first], axis=1)
    out = np.stack([last, np.full(len(last), count + 1)], axis=1)
    added, tensors = len(into) + len(out), int(before.edge_tensor.max(initial=-1)) + 1
    # all times of the replica are multiplied by its scale, which holds for the model's work only
    sizes = [np.full(len(ends), size / len(ends) / replica.scale) for ends, size in ((into, input_bytes), (out, output_bytes))]
    used = np.unique(replica.placement)
    problem = Problem.from_arrays(
        compute,
        np.concatenate([before.edges, into, out]),
        np.concatenate([before.edge_bytes, *sizes]),
        bandwidth,
        latency,
        edge_tensor=np.concatenate([before.edge_tensor, tensors + np.arange(added)]),
        cut=np.pad(before.cut, ((0, added), (0, 1))),
        conflicts=np.pad(before.conflicts, (0, 1)),
        host=np.full(d + 2, before.host[used[0] if len(used) == 1 else -1]),
        device_names=(*before.device_names, f"arrivals at {at}"),
    )
    return replace(replica, problem=problem, placement=np.append(replica.placement, [d, d]).astype(np.int32))


def _links(at: str, name: str, cluster: Cluster) -> tuple[Link, Link]:
    """Return the link to a device from the one where requests arrive, and the link back."""
    if name not in cluster.names:
        name = next((one.name for one in cluster.devices if node_of(one) == name.rpartition("/")[0]), at)
    return cluster.links.get((at, name), _FREE), cluster.links.get((name, at), _FREE)


def node_of(device: Device) -> str:
    """Return the name of the node that a device is on; empty for this machine."""
    return device.name.rpartition("/")[0] if device.address is None else device.where.node
