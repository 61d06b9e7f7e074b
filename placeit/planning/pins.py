"""Pins: ops that the user assigns to a device, whatever a search finds."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import InfeasibleError, PlacementError, UsageError
from placeit.core.graph import OpGraph
from placeit.core.nearest import nearest
from placeit.planning.coarsen import Grouping
from placeit.planning.merging import Merger
from placeit.planning.segments import Costs

__all__ = ["divided", "group_devices", "held", "matches", "parse_pins", "pinned_ops"]

_MAX_SUGGESTIONS = 3  # op names in a message


def parse_pins(texts: Sequence[str]) -> dict[str, str]:
    """Read ``PATTERN=DEVICE`` for each text, such as ``conv1*=CPU@0``; a pattern may contain ``=``. Raises UsageError."""
    pins: dict[str, str] = {}
    for text in texts:
        pattern, _, device = (part.strip() for part in text.rpartition("="))
        if not pattern or not device:
            raise UsageError(f"Cannot read --pin '{text}'; write PATTERN=DEVICE, such as 'conv1*=CPU@0'.")
        if pins.setdefault(pattern, device) != device:
            raise UsageError(f"--pin gives '{pattern}' two devices, {pins[pattern]} and {device}; an op runs on one.")
    return pins


def matches(pattern: str, op: str) -> bool:
    """Return whether a pin's pattern matches an op: as its name, or as a case-sensitive glob (``*``, ``?``, ``[abc]``)."""
    return op == pattern or fnmatch.fnmatchcase(op, pattern)


def pinned_ops(pins: Mapping[str, str], ops: Sequence[str], devices: Sequence[str]) -> NDArray[np.int32]:
    """Return the device that each op is pinned to.

    Args:
        pins: device by pattern (:func:`matches`).
        ops: names of all ops.
        devices: names of the devices.

    Returns:
        ``int32[V]``, the device of each op; -1 for an op that is not pinned.

    Raises:
        UsageError: a device does not exist, a pattern matches no op, or an op is given two devices.
    """
    found = np.full(len(ops), -1, np.int32)
    by: dict[int, str] = {}
    for pattern, device in pins.items():
        if device not in devices:
            raise UsageError(
                f"The pin '{pattern}={device}' names an unknown device; the devices are {', '.join(devices)}"
                f"{nearest(device, devices)}."
            )
        matching = [v for v, name in enumerate(ops) if matches(pattern, name)]
        if not matching:
            raise UsageError(f"The pin '{pattern}={device}' matches no op{_suggestion(pattern, ops)}.")
        d = devices.index(device)
        for v in matching:
            if found[v] not in (-1, d):
                raise UsageError(f"Op '{ops[v]}' is pinned twice: '{by[v]}={devices[found[v]]}' and '{pattern}={device}'.")
            found[v], by[v] = d, pattern
    return found


def _suggestion(pattern: str, ops: Sequence[str]) -> str:
    """Return the end of a message that suggests ops with names similar to a pattern, or else the first ops."""
    word, count = pattern.strip("*?").lower(), _MAX_SUGGESTIONS
    close = [name for name in ops if word and word in name.lower()][:count]
    close = close or difflib.get_close_matches(pattern.strip("*?"), ops, count, 0.5) or list(ops[:count])
    return f"; there are ops such as {', '.join(map(repr, close))} (`placeit inspect MODEL --groups` lists all)"


def divided(grouping: Grouping, devices: NDArray[np.int32], together: Sequence[Sequence[str]] = ()) -> Grouping:
    """Return a grouping in which groups whose ops are assigned to different devices are split; other groups stay as they are.

    Ops of a split group stay together if edges between ops on one device join them, unless that would close a cycle of groups.
    An op without an assigned device stays with an op that it reads from, or else with one that reads from it.

    Args:
        grouping: the groups.
        devices: ``int32[V]``, the device that each op is to be on; -1 for any device.
        together: sets of ops that need one device.

    Raises:
        PlacementError: ops that need one device, or ops between them, are assigned to several.
    """
    graph, group_of = grouping.graph, grouping.group_of
    assigned = np.flatnonzero(devices >= 0)
    pairs = np.unique(np.column_stack([group_of[assigned], devices[assigned]]), axis=0)
    counts = np.bincount(pairs[:, 0], minlength=len(grouping.groups))
    if (counts <= 1).all():
        return grouping
    merger = Merger(graph)
    for group in np.flatnonzero(counts <= 1).tolist():
        merger.join_convex(np.flatnonzero(group_of == group).tolist())
    for names in together:
        merger.join_convex(graph.index[name] for name in names)
    parts: dict[int, list[int]] = {}  # ops that are in one group already, by its number
    for v in range(len(graph)):
        parts.setdefault(merger.find(v), []).append(v)
    wanted: dict[int, int] = {}
    for part, ops in parts.items():
        found = {int(devices[v]): v for v in reversed(ops) if devices[v] >= 0}
        if len(found) > 1:
            first, second = (graph.names[v] for v in sorted(found.values())[:2])
            raise PlacementError(_inseparable(graph, ops, first, second, together))
        wanted[part] = next(iter(found), -1)
    inside = sorted((u, v) for u, v in graph.edges.tolist() if group_of[u] == group_of[v])
    for u, v in (*inside, *sorted(((v, u) for u, v in inside), reverse=True)):  # along the edges, then against them
        near, far = merger.find(u), merger.find(v)
        if wanted[far] == -1:
            wanted[far] = wanted[near]
    for u, v in inside:
        above, below = merger.find(u), merger.find(v)
        if above != below and wanted[above] == wanted[below]:
            merger.join(above, below)
    return Grouping.of(graph, merger.owner())


def _inseparable(graph: OpGraph, part: Sequence[int], first: str, second: str, together: Sequence[Sequence[str]]) -> str:
    """Return the message that says why two ops cannot be on different devices."""
    inside = {graph.names[v] for v in part}
    sets = [names for names in together if inside.issuperset(names)]
    shared = next((names for names in sets if first in names and second in names), sets[0])
    if first in shared and second in shared:
        which = f"Ops '{first}' and '{second}'"
        wanted = "they are wanted on several"
    else:
        which = f"Ops '{shared[0]}' and '{shared[-1]}'"
        wanted = f"'{first}' and '{second}', which are among them or lie between them, are wanted on several"
    return (
        f"{which} run on one device, because they share state or a tensor whose size depends on the data, or are one op to a "
        f"runtime; {wanted}."
    )


def group_devices(grouping: Grouping, devices: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return each group's device, ``int32[G]``, -1 for any, from the device of each op, ``int32[V]``."""
    wanted = np.full(len(grouping.groups), -1, np.int32)
    np.maximum.at(wanted, grouping.group_of, devices)
    return wanted


def held(costs: Costs, grouping: Grouping, devices: NDArray[np.int32]) -> Costs:
    """Return costs that let a group run only on the device that it is assigned to.

    Args:
        costs: of all groups on all devices.
        grouping: the groups; each has ops for at most one device, as :func:`divided` makes them.
        devices: ``int32[V]``, the device that each op is to be on; -1 for any device.

    Raises:
        InfeasibleError: a device cannot run a group that is assigned to it.
    """
    wanted = group_devices(grouping, devices)
    assigned = np.flatnonzero(wanted >= 0)
    names = costs.cluster.names
    unable = assigned[np.isinf(costs.core[assigned, wanted[assigned]])]
    if len(unable):
        group = int(unable[0])
        op = next(v for v in np.flatnonzero(grouping.group_of == group).tolist() if devices[v] >= 0)
        raise InfeasibleError(
            f"Op '{grouping.graph.names[op]}' is pinned to {names[wanted[group]]}, which cannot run it, or not all of the "
            f"{np.count_nonzero(grouping.group_of == group)} ops that are placed together with it: pin it elsewhere, or allow "
            "more groups."
        )
    core = costs.core.copy()
    core[assigned] = np.inf
    core[assigned, wanted[assigned]] = costs.core[assigned, wanted[assigned]]
    return replace(costs, core=core)
