"""Prepare the placement of a bundle on the devices of this machine, and check its outputs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from placeit.backends.bundle.manifest import Manifest
from placeit.core.cluster import Link
from placeit.core.errors import ExecutionError, PlacementError
from placeit.core.placement import Placement
from placeit.measuring.check import OutputDifference
from placeit.planning.segments import Costs
from placeit.workbench.opened import Workbench
from placeit.workbench.prepared import Prepared

__all__ = ["check_samples", "prepare_bundle", "renamed"]


def prepare_bundle(session: Workbench, placement: Placement, manifest: Manifest, names: Mapping[str, str]) -> list[Prepared]:
    """Prepare the placement of a bundle and its replicas, with the costs that were measured where it was built.

    Args:
        session: the model of the bundle on the devices of this machine.
        placement: of the bundle's parts on these devices.
        manifest: of the bundle.
        names: names of these devices, by the names in the bundle.

    Raises:
        PlacementError: a device has not enough memory for its segments.
    """
    for one in placement.every:
        session.divide(one, by_segments=True)
    session.take(_costs(manifest, session, names))
    try:
        return [Prepared.of(session, one) for one in placement.every]
    except PlacementError as error:
        path = session.model.path
        raise PlacementError(f"{path} cannot run here: {error} To run it on other devices, see --rematch.") from error


def check_samples(placements: Sequence[Prepared]) -> OutputDifference:
    """Run the samples of a bundle on all replicas, and return the difference from the outputs of the uncut model.

    Raises:
        ExecutionError: the outputs differ by more than the tolerance, or a device failed.
    """
    session, worst = placements[0].home, OutputDifference(0.0, 0.0)
    check = session.reference.output_check()
    for one in placements:
        with one.home.executor(one.plan) as executor:
            worst = worst.worse(check(executor))
    why = worst.wrong(session.tolerance)
    if why is not None:
        raise ExecutionError(f"{session.model.path} does not compute here what it should: {why}")
    return worst


def renamed(placement: Placement, names: Mapping[str, str]) -> Placement:
    """Return a placement with its devices renamed."""
    devices = tuple(names[name] for name in placement.device_names)
    return replace(
        placement, device_names=devices, replicas=tuple(replace(one, device_names=devices) for one in placement.replicas)
    )


def _costs(manifest: Manifest, session: Workbench, names: Mapping[str, str]) -> Costs:
    """Return the costs of the parts, as measured when the bundle was built, or zero costs if nothing was measured.

    A part can run only on the device that the bundle has it on.
    """
    graph, group_of = manifest.graph, session.grouping.group_of
    column = {name: d for d, name in enumerate(session.cluster.names)}
    core = np.full((len(graph), len(column)), np.inf)
    for one in manifest.placement.every:
        for name, device in one.as_dict().items():
            core[graph.index[name], column[names[device]]] = 0.0
    for v, row in enumerate(manifest.seconds or ()):
        for needed, seconds in zip(manifest.devices, row, strict=True):
            if seconds is not None:
                core[v, column[names[needed.name]]] = seconds
    of_groups = np.zeros((len(session.grouping.groups), len(column)))
    np.add.at(of_groups, group_of, core)
    known = {(names[a], names[b]): Link(bandwidth, latency) for a, b, latency, bandwidth in manifest.links}
    cluster = replace(session.cluster, links={**known, **session.cluster.links})
    host = np.zeros(len(column) + 1)
    for needed, seconds in zip(manifest.devices, manifest.host, strict=False):
        host[column[names[needed.name]]] = seconds
    host[-1] = manifest.host[-1] if manifest.host else 0.0
    return replace(Costs.zero(len(of_groups), cluster), core=of_groups, host=host, shared=manifest.seconds is None)
