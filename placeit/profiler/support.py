"""Ask the runtimes of devices which ops and groups they can run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.core.cluster import Cluster
from placeit.core.errors import DeviceError, HangsError, InfeasibleError, NoRoomError
from placeit.planning.coarsen import Grouping
from placeit.planning.placing import Placing
from placeit.runtime.devices.kinds import device_kind

__all__ = [
    "divided_by_support",
    "refused_ops",
    "refuses_ops",
    "supported",
    "supported_ops",
    "warn_of_refused",
    "without_refused",
]

_log = logging.getLogger("placeit")


def supported_ops(model: Model, cluster: Cluster) -> NDArray[np.bool_]:
    """Ask each device's runtime which ops it can run: ``bool[V, D]``.

    Raises:
        InfeasibleError: some op can run on no device.
        DeviceError: a runtime does not answer.
    """
    graph = model.graph
    can = np.ones((len(graph), len(cluster)), bool)
    if model.placed:  # the runtimes were asked when the model was placed
        return can
    answers: dict[tuple[str, str, str], Collection[str]] = {}
    for d, device in enumerate(cluster.devices):
        hardware = device.kind, device.where.node, device.where.hardware
        if hardware not in answers:
            answers[hardware] = device_kind(device).supported(model, device)
        can[:, d] = [name in answers[hardware] and (device.name, name) not in model.refused for name in graph.names]
    nowhere = np.flatnonzero(~can.any(axis=1))
    if len(nowhere):
        v = int(nowhere[0])
        raise InfeasibleError(
            f"None of the devices {', '.join(cluster.names)} supports op '{graph.names[v]}' ({graph.kinds[v]}): "
            f"{_advice(cluster)}."
        )
    return can


def supported(model: Model, grouping: Grouping, cluster: Cluster) -> NDArray[np.bool_]:
    """Ask each device's runtime which groups it can run: ``bool[G, D]``.

    Raises:
        InfeasibleError: some op, or some group as a whole, can run on no device.
        DeviceError: a runtime does not answer.
    """
    can = supported_ops(model, cluster)
    groups = np.ones((len(grouping.groups), len(cluster)), bool)
    np.logical_and.at(groups, grouping.group_of, can)
    nowhere = np.flatnonzero(~groups.any(axis=1))
    if len(nowhere):
        members = np.flatnonzero(grouping.group_of == int(nowhere[0]))
        names = grouping.graph.names
        lacking = [names[int(members[~can[members, d]][0])] for d in range(len(cluster))]
        each = ", ".join(f"{device} not '{op}'" for device, op in zip(cluster.names, lacking, strict=True))
        raise InfeasibleError(
            f"The {len(members)} ops that are placed together with '{lacking[0]}' are supported by no device: {each}. Allow "
            f"more groups, or {_advice(cluster)}."
        )
    return groups


def divided_by_support(placing: Placing, model: Model, cluster: Cluster) -> Placing:
    """Return the groups, split so that all ops of a group run on the same real devices.

    Raises:
        InfeasibleError: some op can run on no device.
        DeviceError: a runtime does not answer.
    """
    if len({(device.kind, device.where.hardware) for device in cluster.devices}) < 2:
        return placing
    _, kinds = np.unique(supported_ops(model, cluster), axis=0, return_inverse=True)
    return placing.divided_by(kinds.astype(np.int32).ravel())


def without_refused(model: Model, cluster: Cluster, error: DeviceError) -> Model:
    """Mark the ops that a device failed to compile, so that they are placed on other devices only, and log a warning.

    Raises:
        DeviceError: ``error``, if it names no such ops, or if no other device supports them.
    """
    fresh = {(error.device, op) for op in refused_ops(model, error) if op in model.graph.index} - model.refused
    if not fresh:
        raise error
    refusing = replace(model, refused=model.refused | fresh)
    try:
        supported_ops(refusing, cluster)
    except InfeasibleError:
        raise error from error.__cause__
    warn_of_refused(error, cluster)
    return refusing


def refuses_ops(error: BaseException) -> bool:
    """Return whether a device failed to compile some ops, for another reason than a lack of memory."""
    if isinstance(error, HangsError):
        return True
    return isinstance(error, DeviceError) and bool(error.device and error.ops) and not isinstance(error, NoRoomError)


def refused_ops(model: Model, error: DeviceError) -> Sequence[str]:
    """Return the ops that a device failed to compile: all ops of the model if its compiler hangs."""
    return model.graph.names if isinstance(error, HangsError) else error.ops


def warn_of_refused(error: DeviceError, cluster: Cluster) -> None:
    """Log a warning that ops that a device failed to compile (:func:`refuses_ops`) are placed on other devices."""
    others = ", ".join(name for name in cluster.names if name != error.device)
    _log.warning("%s. It is placed on %s only.", str(error).rstrip("."), others)


def _advice(cluster: Cluster) -> str:
    if any(device.cores and "onnx" not in device_kind(device).formats for device in cluster.devices):
        return "compute it in another way, or in another type, or add a device that supports it"
    return "add a device that supports it, such as CPU"
