"""Read starting placements of a search, fit them to the session, and enter them as candidates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, PlacementError, UsageError
from placeit.core.placement import Placement
from placeit.devices.clusterfile import discover
from placeit.devices.plain import all_here, compiled_twins
from placeit.optimizer.candidate_state import Failed, Proposed
from placeit.optimizer.candidates import OtherDevices
from placeit.optimizer.replicas import enter_given
from placeit.optimizer.search import Search
from placeit.optimizer.whole_models import alone_on
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.drivers import drive
from placeit.simulator.objectives.base import Objective
from placeit.workbench import Workbench

__all__ = ["Start", "begin_with", "divide_for", "elsewhere", "fitted", "on_eager_devices", "read_starts"]

Start = Placement | str | Path
"""A placement, or the file of one."""


def read_starts(start: Start | Sequence[Start] | None) -> dict[str, Placement]:
    """Return starting placements by the names that they have as candidates; read the ones that are files.

    Raises:
        FileError, PlacementError: a file cannot be read, or is not a placement; names the file.
    """
    starts = [] if start is None else [start] if isinstance(start, Placement | str | Path) else start
    found: dict[str, Placement] = {}
    for number, one in enumerate(starts, 1):
        if isinstance(one, Placement):
            found["start" if len(starts) == 1 else f"start {number}"] = one
        else:
            found[f"start {one}"] = Placement.load(one)
    return found


def elsewhere(session: Workbench, starts: Mapping[str, Placement]) -> dict[str, Device]:
    """Find the starts that are whole models on CPU cores but on no device of the session; return their devices by name.

    Such a start is usually the answer of an earlier search: a plain device, or the throughput mode. A start whose device does
    not exist on this machine is left to :func:`fitted`, which reports it.

    Raises:
        PlacementError: one belongs to another model, breaks a pin, or has more weights than its cores may hold; names it.
    """
    found: dict[str, Device] = {}
    for name, placement in starts.items():
        device = _other_cores(session, placement)
        if device is None:
            continue
        with _naming(name):
            if session.pins:
                raise PlacementError(f"It is on {device.name}, and pins assign ops to {', '.join(session.cluster.names)}.")
            home = session.alone(device)
            groups = home.placing.groups_of(placement)
            Segmenter(home.grouping, Costs.zero(len(groups), home.cluster)).problem().check(groups)
        found[name] = device
    return found


def _other_cores(session: Workbench, placement: Placement) -> Device | None:
    """Return the device of a placement on CPU cores that are no device of the session; None for other placements."""
    names = set(placement.as_dict().values())
    if len(names) > 1 or placement.replicas or not names.isdisjoint(session.cluster.names):
        return None
    for cluster in session.setup.elsewhere:
        if len(cluster) == 1 and cluster.names[0] in names:
            return cluster.devices[0]
    try:
        (found,) = drive(discover(sorted(names), precision=session.precision), session.model).devices
    except (DeviceError, UsageError):
        return None
    if not found.core_set or found.where.node:
        return None
    sharing = [device for device in session.cluster.devices if device.core_set and device.where.shares(found.where)]
    return replace(found, memory_bytes=min(device.memory_bytes for device in (found, *sharing)))


def on_eager_devices(session: Workbench, placement: Placement) -> Placement:
    """Move a placement from compiled twins of the session's devices to the devices themselves; return others unchanged.

    Such a placement is usually the answer of an earlier search, which compiles the segments of its best split.
    """
    known, others = session.cluster.names, compiled_twins(session.cluster)
    eager = {name: of for twins in others for name, of in zip(twins.names, known, strict=True)}
    if not set(placement.device_names) <= eager.keys():
        return placement
    replicas = [replace(one, device_names=tuple(eager[name] for name in one.device_names)) for one in placement.every]
    return replace(replicas[0], replicas=tuple(replicas[1:]))


def divide_for(session: Workbench, starts: Mapping[str, Placement]) -> None:
    """Split the groups that placements divide. Raises PlacementError, which names the placement, if one does not fit."""
    for name, placement in starts.items():
        with _naming(name):
            for one in placement.every:
                session.divide(one)


def fitted(session: Workbench, starts: Mapping[str, Placement], objective: Objective) -> dict[str, list[NDArray[np.int32]]]:
    """Return the device of each group, ``int32[G]``, in each replica of each placement, by the placement's name.

    Raises:
        PlacementError: a placement belongs to another model or to other devices, breaks a pin or a limit, or has replicas
            although the objective is not for many requests; names the placement.
    """
    groups: dict[str, list[NDArray[np.int32]]] = {}
    for name, placement in starts.items():
        with _naming(name):
            if placement.replicas and not objective.steady:
                raise PlacementError(
                    f"It has replicas, which serve many requests at a time, and the objective is {objective.name}: give it to "
                    "a search for throughput."
                )
            problem = session.segmenter.problem()
            groups[name] = [problem.check(session.placing.groups_of(one)) for one in placement.every]
    return groups


def begin_with(search: Search, given: Mapping[str, list[NDArray[np.int32]]], others: Mapping[str, Device]) -> None:
    """Enter the starting placements of a search; each becomes a candidate unless it is one already.

    Args:
        search: the search; single devices and plain devices are entered already.
        given: as :func:`fitted` returns them.
        others: as :func:`elsewhere` returns them. A start on cores that no device of the cluster has cannot be chosen.
    """
    search.begin_with({name: groups[0] for name, groups in given.items() if len(groups) == 1})
    for name, groups in given.items():
        if len(groups) > 1:
            enter_given(search, name, groups)
    cluster = search.session.cluster
    own_cores = {core for device in cluster.devices for core in device.cores}
    for name, device in others.items():
        homes = {home.session.cluster.names: known for known, home in search.homes.items() if search.known[known].may_be_chosen}
        known = homes.get((device.name,))
        if known is None:
            home = search.session.alone(device)
            inside = all_here(cluster) and own_cores.issuperset(device.cores)
            why = None if inside else f"It is on {device.name}, which is not among the devices {', '.join(cluster.names)}."
            busy = np.array([float(not own_cores.isdisjoint(device.cores) and bool(one.cores)) for one in cluster.devices])
            state = Proposed() if why is None else Failed(why)
            known = search.enter(replace(alone_on(home, search.free_name(name)), state=state), OtherDevices(home, busy)).name
        search.update_facts(known, given=True)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except PlacementError as error:
        raise PlacementError(f"The search cannot start from '{name.removeprefix('start ')}': {error}") from error
