"""Candidates on devices outside the cluster, such as the whole CPU, and splits with compiled segments."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import IsCalled
from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.errors import DeviceError, ExecutionError
from placeit.core.problem import Problem
from placeit.devices.host import free_bytes
from placeit.devices.kinds import driven_by_openvino, kind_of
from placeit.devices.plain import compiled_devices, compiled_twins, in_throughput_mode
from placeit.measuring.measure import FAILURES
from placeit.optimizer.candidates import Candidate, OtherDevices, value_of
from placeit.optimizer.ledger import COMPILING
from placeit.optimizer.races import Races, too_late
from placeit.planning.segments import Costs, Segmenter
from placeit.workbench import Workbench

__all__ = [
    "MODE",
    "alone_on",
    "compiles_splits",
    "enter_compiled",
    "enter_twins",
    "in_other_precision",
    "plain_candidates",
    "throughput_mode",
]

MODE = "throughput mode"
"""Placer name of OpenVINO's throughput mode."""
_BEHIND = 1.5  # times the best single device, from which on a split, or a runtime for its segments, is not tried
_COPIES = 2  # copies of the weights that must fit into free memory before another runtime opens the model whole
_log = logging.getLogger("placeit")


def plain_candidates(session: Workbench, problem: Problem, room: float) -> list[tuple[Candidate, OtherDevices]]:
    """Return the plain devices of a cluster that can run the model whole, as candidates; empty if the session has pins.

    Plain ONNX Runtime is left out if it cannot compile the model in ``room`` seconds.
    """
    devices, busy = session.cluster.devices, _busy(session)
    found: list[tuple[Candidate, OtherDevices]] = []
    for plain in () if session.pins else session.setup.plain_devices:
        like = [d for d, device in enumerate(devices) if device.core_set and device.kind == plain.kind]
        able = plain.plain or problem.feasible[:, like].all()  # a whole file needs no cuts
        if able and problem.param_bytes.sum() <= plain.memory_bytes:
            name = f"plain {plain.name}" if plain.name in session.cluster.names else plain.name
            home = session.alone(plain)
            if plain.plain and (why := _refusal(home, problem, room)[0]):
                _log.info("Plain ONNX Runtime is not a candidate: %s", why)
                continue
            found.append((alone_on(home, name, plain=True), OtherDevices(home, busy)))
    return found


def throughput_mode(session: Workbench, problem: Problem) -> tuple[Candidate, OtherDevices] | None:
    """Return the CPU in OpenVINO's throughput mode, which divides the session's cores among streams, as a candidate.

    None if the session has pins, or if the cores cannot run all ops or may not hold all weights.
    """
    device = None if session.pins else in_throughput_mode(session.cluster)
    if device is None or problem.param_bytes.sum() > device.memory_bytes:
        return None
    like = [d for d, one in enumerate(session.cluster.devices) if one.core_set and driven_by_openvino(one)]
    if not problem.feasible[:, like].all():
        return None
    home = session.alone(device)
    candidate = alone_on(home, f"{replace(device.where, runtime='')} in {MODE}", placer=MODE)
    return candidate, OtherDevices(home, np.zeros(len(session.cluster)))


def enter_compiled(races: Races, problem: Problem, room: float) -> None:
    """Enter devices that compile the model whole, which may take ``room`` seconds; none with pins, open sizes or state."""
    session, deadline = races.session, clock.now() + room
    for device in compiled_devices(session.cluster) if _is_compilable(session) else ():
        eager = [d for d, one in enumerate(session.cluster.devices) if one.core_set and one.kind != device.kind]
        if not problem.feasible[:, eager].all() or problem.param_bytes.sum() > device.memory_bytes:
            continue
        home, kind, room = session.alone(device), kind_of(device), deadline - clock.now()
        if not home.model.formats.intersection(kind.formats):
            continue
        why, late = ("", False) if kind.compiles else _refusal(home, problem, room)
        if why and not late:
            _log.info("%s is not a candidate: %s", device.name, why)
            continue
        candidate = alone_on(home, device.name, plain=True)
        races.enter(candidate, OtherDevices(home, _busy(session)))
        if late:
            races.skip(candidate.name, why, late=True)
        else:
            _skip_late(races, candidate, home, room)


def enter_twins(races: Races, split: Candidate, room: float) -> list[Candidate]:
    """Enter a split with its segments compiled on the same cores, and return the candidates that can run.

    There is one for Inductor, and one for each other runtime that was measured to run the whole model in less than 1.5 times
    the least time. Empty if another split has twins, where nothing compiles (:func:`enter_compiled`), or for a split that is
    far behind the eager single devices.

    Args:
        races: the races.
        split: the split.
        room: seconds that compiling may take.
    """
    session, known, deadline = races.session, races.known.values(), clock.now() + room
    if not compiles_splits(session) or not races.is_placed(split) or any(one.twin is not None for one in known):
        return []
    singles = [one for one in known if one.placer == "single" and one.measured is not None]
    alike = [value_of(one) for one in singles if races.is_placed(one)]
    if not split.given and value_of(split) > _BEHIND * min(alike, default=math.inf):
        return []
    wholes = {
        races.homes[one.name].session.cluster.devices[0].kind: value_of(one) for one in singles if one.name in races.homes
    }
    best, found = min(map(value_of, singles), default=math.inf), list[Candidate | None]()
    for twins in compiled_twins(session.cluster):
        other = next(new for new, old in zip(twins.devices, session.cluster.devices, strict=True) if new != old)
        kind = kind_of(other)
        if kind.compiles or wholes.get(other.kind, math.inf) < _BEHIND * best:
            name = f"{split.name}, compiled" if kind.compiles else f"{split.name} in {kind.label}"
            found.append(_enter_twin(races, split, twins, name, deadline))
    return [one for one in found if one is not None]


def _enter_twin(races: Races, split: Candidate, twins: Cluster, name: str, deadline: float) -> Candidate | None:
    """Enter a split on the devices of another cluster; None if it cannot run there, or not in time."""
    home, room = races.session.alone(twins), deadline - clock.now()
    plan = replace(split.plan, problem=replace(split.plan.problem, device_names=twins.names))
    twin = Candidate(name, split.placer, plan, home.placing, None, None, twin=split.name, start=split.name)
    races.enter(twin, OtherDevices(home, np.eye(len(twins))))
    if not _skip_late(races, twin, home, room):
        return None
    try:
        with races.ledger.on(COMPILING), home.compiling.until(deadline), home.executor(plan) as executor:
            refused = executor.refused
    except FAILURES as error:
        races.fail(name, error)
        return None
    if len(refused) == len(plan.programs):
        races.skip(name, "no segment can be compiled")
        return None
    return races.known[name]


def compiles_splits(session: Workbench) -> bool:
    """Return whether splits that run eagerly may race with their segments compiled, so that eager costs bound none."""
    return _is_compilable(session) and bool(compiled_twins(session.cluster))


def _is_compilable(session: Workbench) -> bool:
    model = session.model
    fixed = not session.pins and not model.stateful and all(spec.limits is None for spec in model.inputs)
    return fixed and isinstance(model, IsCalled)  # tensor programs have no module to compile


def _skip_late(races: Races, candidate: Candidate, home: Workbench, room: float) -> bool:
    """Skip a candidate that takes longer to compile than there is time; return whether it may run."""
    if (takes := home.runtime.compiler.expected_s(candidate.plans)) > room:
        races.skip(candidate.name, too_late(takes, room), late=True)
    return takes <= room


def _busy(session: Workbench) -> NDArray[np.float64]:
    """Return ``float64[D]``: 1 for each device of the cluster that is a core set, so that no core counts twice; else 0."""
    apart = session.cluster.apart()
    return np.array([float(device.core_set and d in apart) for d, device in enumerate(session.cluster.devices)])


def _refusal(home: Workbench, problem: Problem, room: float) -> tuple[str, bool]:
    """Return why a runtime cannot open the model whole (empty if it can), and whether only ``room``, in seconds, is too short.

    The compiled program is kept for the races.
    """
    if free_bytes() < _COPIES * float(problem.param_bytes.sum()):
        return "there is no memory for another copy of the weights.", False
    candidate = alone_on(home, "")
    if (takes := home.runtime.compiler.expected_s(candidate.plans)) > room:
        return too_late(takes, room), True
    try:
        with home.compiling.until(clock.now() + room):
            home.executor(candidate.plan).close()
    except (DeviceError, ExecutionError) as error:
        return str(error), isinstance(error, ExecutionError)
    return "", False


def in_other_precision(
    session: Workbench, singles: Sequence[Candidate], homes: Mapping[str, OtherDevices]
) -> tuple[list[tuple[Candidate, OtherDevices]], list[str]]:
    """Return candidates in another precision: the plain devices, or every single device if there are no plain ones.

    Args:
        session: a session in the requested precision.
        singles: whole models on single devices.
        homes: for each of them that is on no device of the cluster, by name: the session that runs it.

    Returns:
        The candidates to measure in addition, and a sentence for each device that has no other precision.
    """
    others: list[tuple[Candidate, OtherDevices]] = []
    missing: list[str] = []
    singles = [one for one in singles if one.name not in homes or not homes[one.name].is_onnxruntime]
    for single in [one for one in singles if one.plain] or singles:
        home, d = homes.get(single.name), int(single.groups[0])
        device = (session if home is None else home.session).cluster.devices[d]
        kind = kind_of(device)
        precision = kind.other_precision(device, session.precision)
        if precision is None:
            missing.append(f"{single.name} {'is only described' if device.described else kind.one_precision}")
            continue
        other_session = session.alone(device, precision=precision)
        other = alone_on(other_session, f"{single.name} in {precision}", placer="precision", of=single.name)
        others.append((other, OtherDevices(other_session, np.eye(len(session.cluster))[d] if home is None else home.busy)))
    return others, missing


def alone_on(session: Workbench, name: str, *, placer: str = "single", plain: bool = False, of: str | None = None) -> Candidate:
    """Return a candidate that is the whole model on the only device of a session, where nothing was profiled."""
    groups = np.zeros(len(session.grouping.groups), np.int32)
    plan = Segmenter(session.grouping, Costs.zero(len(groups), session.cluster)).plan(groups)
    return Candidate(name, placer, plan, session.placing, None, None, plain=plain, of=of)
