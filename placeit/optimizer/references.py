"""References: OpenVINO's own ways to run a model on several devices, which race beside the answer but cannot be chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placeit.backends.base import ConvertsOps, Model
from placeit.core.cluster import Device
from placeit.core.problem import Problem
from placeit.devices.kinds import driven_by_openvino
from placeit.devices.openvino import target_name
from placeit.devices.own_modes import own_modes
from placeit.devices.plain import all_here, plain_devices
from placeit.measuring.incumbent import compared
from placeit.optimizer.candidate_state import Proposed, Skipped
from placeit.optimizer.candidates import Beside, Candidate, OtherDevices, known_value
from placeit.optimizer.races import Races
from placeit.optimizer.whole_models import MODE, alone_on

__all__ = ["REFERENCE", "enter_references", "references_beside"]

REFERENCE = "reference"
"""Placer name of references."""


def enter_references(races: Races, problem: Problem) -> list[Candidate]:
    """Enter the references on the session's devices, unless they are entered already; return the ones that are worth a run.

    There are no references with pins, which OpenVINO does not support; for a PyTorch model, of which OpenVINO gets only
    segments; if a device or a link is emulated, described or on another node; for objectives that are not measured directly;
    and for latency on one device. A device takes part if its memory, within its limit, holds all weights.

    Args:
        races: the races to enter them in. Single devices must be entered already: they tell which device is the fastest.
        problem: the problem of placing the session's groups.
    """
    if all(one.reference is None for one in races.known.values()):
        for candidate, alone in _references(races, problem):
            races.enter(candidate, alone)
    references = (one for one in races.known.values() if one.reference is not None and one.reference.same is None)
    return [one for one in references if one.failed is None]


def references_beside(races: Races, chosen: Candidate) -> list[Beside]:
    """Return all references, with their times over the answer's."""
    beside = {} if chosen.race is None else races.races[chosen.race].measured
    return [
        Beside(one, None if one.failed else compared(beside.get(one.name), beside.get(chosen.name)))
        for one in races.known.values()
        if one.reference is not None
    ]


def _references(races: Races, problem: Problem) -> list[tuple[Candidate, OtherDevices]]:
    session, steady = races.session, races.objective.steady
    converted = isinstance(session.model, ConvertsOps)
    if session.pins or converted or not races.objective.is_measured or not all_here(session.cluster):
        return []
    devices, whole = _hardware(races, problem)
    single = _has_batch_of_one(session.model)
    if len(devices) < 2 and not (steady and (single or _worth_alone(races, devices))):
        return []
    proposed = {one.placer for one in races.candidates}
    found: list[tuple[Candidate, OtherDevices]] = []
    for mode in own_modes(devices, whole, steady=steady, single=single):
        if mode.target == "CPU" and (MODE in proposed or not _worth_alone(races, devices)):  # it is a candidate already
            continue
        home = session.alone(Device(mode.target))
        state = Proposed() if mode.same is None else Skipped(mode.same)
        candidate = replace(alone_on(home, mode.name, placer=REFERENCE), reference=mode, state=state)
        found.append((candidate, OtherDevices(home, np.zeros(len(session.cluster)))))
    return found


def _has_batch_of_one(model: Model) -> bool:
    """Return whether the first size of every input and output is 1, and no state lasts from one request to the next."""
    ends = [*model.inputs, *model.outputs]
    return not model.stateful and all(spec.limits is None and spec.shape[:1] == (1,) for spec in ends)


def _worth_alone(races: Races, devices: Sequence[Device]) -> bool:
    """Return whether references on a single device are worth a run: if it is not a core set, or not in the cluster."""
    return any(not device.core_set or device.name not in races.session.cluster.names for device in devices)


def _hardware(races: Races, problem: Problem) -> tuple[list[Device], list[Device]]:
    """Return OpenVINO's devices of different hardware that hold the model, the fastest first; and the ones that run all ops.

    All core sets together are the CPU. A device that cannot run all ops comes first: others run the remaining ops.
    """
    cluster, weights = races.session.cluster, float(problem.param_bytes.sum())
    openvino_devices = [d for d, device in enumerate(cluster.devices) if driven_by_openvino(device)]
    members: dict[str, list[int]] = {}
    for d in openvino_devices:
        members.setdefault(target_name(cluster.devices[d]), []).append(d)
    whole: list[Device] = []
    found: list[tuple[bool, float, Device]] = []
    for target, numbers in members.items():
        device = max((cluster.devices[d] for d in numbers), key=lambda one: len(one.cores))
        if device.core_set:
            device = next((one for one in plain_devices(cluster) if driven_by_openvino(one)), device)
        if weights > device.memory_bytes or not problem.feasible[:, numbers].any():
            continue
        runs_all = bool(problem.feasible[:, numbers].all())
        if runs_all:
            whole.append(device)
        found.append((runs_all, min(_alone(races, target), default=math.inf), device))
    return [device for _, _, device in sorted(found, key=lambda one: one[:2])], whole


def _alone(races: Races, target: str) -> list[float]:
    """Return the known objectives of the single devices that are a given hardware, or a part of it."""
    devices = [
        (one, races.home(one.name).cluster.devices[int(one.groups[0])])
        for one in races.candidates
        if one.placer == "single" and one.failed is None
    ]
    return [known_value(one) for one, device in devices if driven_by_openvino(device) and target_name(device) == target]
