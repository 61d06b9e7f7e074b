"""Check whether the weights of a model's ops and groups fit into the memory of the devices that can run them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Cluster
from placeit.core.errors import InfeasibleError
from placeit.core.graph import OpGraph
from placeit.core.units import about_bytes
from placeit.core.weights import held_bytes
from placeit.planning.coarsen import Grouping

__all__ = ["check_room", "of_one_op", "too_little"]

_SMALLER = "Add a device or memory, or use a smaller model."


def check_room(grouping: Grouping, able: NDArray[np.bool_], cluster: Cluster) -> None:
    """Check, before any placement is tried, whether weights can fit at all.

    Args:
        grouping: the model's ops in groups.
        able: ``bool[V, D]``, which ops may be on which devices.
        cluster: the devices.

    Raises:
        InfeasibleError: all weights exceed the memory of all devices, the weights of ops that may be on one device only
            exceed its memory, or the weights of an op or a group fit on no device; the message names the op.
    """
    graph = grouping.graph
    names, memory = cluster.names, np.array([device.memory_bytes for device in cluster.devices])
    weights, total = graph.param_bytes, float(graph.bytes_once.sum())
    if total <= memory.min():
        return
    why, advice = of_one_op(graph.names, weights, able, names, memory), _SMALLER
    if not why and total <= memory.sum():
        if (crowded := _crowded(graph, able, memory)) is not None:
            device, ops = crowded
            op = int(ops[weights[ops].argmax()])
            why = (
                f"; the weights of the {len(ops)} ops that can only be on {names[device]} take "
                f"{about_bytes(_held(graph, ops))} (the largest is '{graph.names[op]}' with "
                f"{about_bytes(float(weights[op]))})"
            )
        elif (group := _too_large(grouping, able, memory)) is not None:
            members = np.flatnonzero(grouping.group_of == group)
            op = int(members[weights[members].argmax()])
            why = (
                f"; the weights of the {len(members)} ops that are placed together with '{graph.names[op]}' take "
                f"{about_bytes(_held(graph, members))}, and fit on no device that can run them all"
            )
            advice = "Add a device or memory, or allow more groups."
        else:
            return
    raise InfeasibleError(too_little(graph.bytes_once, names, memory, why, advice))


def too_little(
    weights: NDArray[np.float64], names: Sequence[str], memory: NDArray[np.float64], why: str, advice: str = _SMALLER
) -> str:
    """Return the message that says that weights do not fit; ``why`` is appended to it."""
    held = ", ".join(f"{name} {about_bytes(capacity)}" for name, capacity in zip(names, memory.tolist(), strict=True))
    return (
        f"No placement was found in which the weights fit: they take {about_bytes(float(weights.sum()))} in all, and the "
        f"devices may hold {held}{why}. {advice}"
    )


def of_one_op(
    ops: Sequence[str],
    weights: NDArray[np.float64],
    able: NDArray[np.bool_],
    names: Sequence[str],
    memory: NDArray[np.float64],
) -> str:
    """Return the part of a message about an op that fits on no device that can run it; empty if there is no such op."""
    op = _heaviest_unfit(weights, able, memory)
    if op is None:
        return ""
    return (
        f"; the weights of '{ops[op]}' alone, {about_bytes(float(weights[op]))}, fit on no device that can run it "
        f"({', '.join(names[d] for d in np.flatnonzero(able[op]).tolist())})"
    )


def _heaviest_unfit(weights: NDArray[np.float64], able: NDArray[np.bool_], memory: NDArray[np.float64]) -> int | None:
    """Return the heaviest op or group whose weights fit on none of the devices that can run it; None if all fit."""
    unfit = np.flatnonzero(able.any(axis=1) & ~(able & (weights[:, None] <= memory)).any(axis=1))
    return int(unfit[weights[unfit].argmax()]) if len(unfit) else None


def _crowded(graph: OpGraph, able: NDArray[np.bool_], memory: NDArray[np.float64]) -> tuple[int, NDArray[np.intp]] | None:
    """Return a device too small for the ops that can run on no other device, and these ops; None if every device has room."""
    single = able.sum(axis=1) == 1
    for device, capacity in enumerate(memory.tolist()):
        ops = np.flatnonzero(single & able[:, device])
        if _held(graph, ops) > capacity:
            return device, ops
    return None


def _held(graph: OpGraph, ops: NDArray[np.intp]) -> float:
    """Return the bytes of the weights that some ops read, each once."""
    place = np.zeros((1, len(graph)), np.intp)
    place[0, ops] = 1
    return float(held_bytes(graph.bytes_once, graph.shared, place, 2)[0, 1])


def _too_large(grouping: Grouping, able: NDArray[np.bool_], memory: NDArray[np.float64]) -> int | None:
    """Return the largest group that some devices can run but none of them can hold; None if there is no such group."""
    groups = np.ones((len(grouping.groups), len(memory)), bool)
    np.logical_and.at(groups, grouping.group_of, able)
    return _heaviest_unfit(grouping.groups.param_bytes, groups, memory)
