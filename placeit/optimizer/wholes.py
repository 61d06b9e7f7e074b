"""Candidates that are whole models on one device: plain devices, compiling ones, and devices in another precision."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import IsCalled
from placeit.core.errors import DeviceError, ExecutionError
from placeit.core.problem import Problem
from placeit.devices.host import free_bytes
from placeit.devices.kinds import kind_of
from placeit.optimizer.candidates import Alone, Candidate
from placeit.optimizer.races import Races, too_late
from placeit.planning.segments import Costs, Segmenter
from placeit.workbench import Workbench

__all__ = ["alone_on", "enter_compiled", "in_other_precision", "plain_candidates"]

_COPIES = 2  # copies of the weights that free memory must hold before plain ONNX Runtime is opened
_log = logging.getLogger("placeit")


def plain_candidates(session: Workbench, problem: Problem) -> list[tuple[Candidate, Alone]]:
    """Return the plain devices of a cluster that can run the model whole, as candidates; empty if the session has pins."""
    devices, busy = session.cluster.devices, _busy(session)
    found: list[tuple[Candidate, Alone]] = []
    for plain in () if session.pins else session.setup.plain_devices:
        like = [d for d, device in enumerate(devices) if device.core_set and device.kind == plain.kind]
        able = plain.plain or problem.feasible[:, like].all()  # a whole file needs no cuts
        if able and problem.param_bytes.sum() <= plain.memory_bytes:
            name = f"plain {plain.name}" if plain.name in session.cluster.names else plain.name
            home = session.alone(plain)
            if plain.plain and free_bytes() < _COPIES * float(problem.param_bytes.sum()):
                _log.info("Plain ONNX Runtime is not a candidate: there is no memory for another copy of the weights.")
                continue
            if plain.plain and (why := _refusal(home)) is not None:
                _log.info("Plain ONNX Runtime is not a candidate: %s", why)
                continue
            found.append((alone_on(home, name, plain=True), Alone(home, busy)))
    return found


def enter_compiled(races: Races, problem: Problem, room: float) -> None:
    """Enter devices that compile the model whole, which may take ``room`` seconds; none with pins, open sizes or state."""
    session, model = races.session, races.session.model
    unable = session.pins or model.stateful or any(spec.limits is not None for spec in model.inputs)
    unable = unable or not isinstance(model, IsCalled)  # tensor programs have no module to compile
    for device in () if unable else session.setup.compiled_devices:
        eager = [d for d, one in enumerate(session.cluster.devices) if one.core_set and one.kind == kind_of(device).compiles]
        if problem.feasible[:, eager].all() and problem.param_bytes.sum() <= device.memory_bytes:
            home = session.alone(device)
            candidate = alone_on(home, device.name, plain=True)
            races.enter(candidate, Alone(home, _busy(session)))
            if (takes := home.runtime.compiler.takes([candidate.plan])) > room:
                races.skip(candidate.name, too_late(takes, room), late=True)


def _busy(session: Workbench) -> NDArray[np.float64]:
    """Return ``float64[D]``: 1 for each device of the cluster that is a core set, so that no core counts twice; else 0."""
    apart = session.cluster.apart()
    return np.array([float(device.core_set and d in apart) for d, device in enumerate(session.cluster.devices)])


def _refusal(home: Workbench) -> str | None:
    """Return why a plain device's runtime cannot open the model; None if it can. The compiled program is kept for the races."""
    try:
        home.executor(alone_on(home, "").plan).close()
    except (DeviceError, ExecutionError) as error:
        return str(error)
    return None


def in_other_precision(
    session: Workbench, singles: Sequence[Candidate], homes: Mapping[str, Alone]
) -> tuple[list[tuple[Candidate, Alone]], list[str]]:
    """Return candidates in another precision: the plain devices, or every single device if there are no plain ones.

    Args:
        session: a session in the requested precision.
        singles: whole models on single devices.
        homes: for each of them that is on no device of the cluster, by name: the session that runs it.

    Returns:
        The candidates to measure in addition, and a sentence for each device that has no other precision.
    """
    others: list[tuple[Candidate, Alone]] = []
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
        there = session.alone(device, precision=precision)
        other = alone_on(there, f"{single.name} in {precision}", placer="precision", of=single.name)
        others.append((other, Alone(there, np.eye(len(session.cluster))[d] if home is None else home.busy)))
    return others, missing


def alone_on(session: Workbench, name: str, *, placer: str = "single", plain: bool = False, of: str | None = None) -> Candidate:
    """Return a candidate that is the whole model on the only device of a session, where nothing was profiled."""
    groups = np.zeros(len(session.grouping.groups), np.int32)
    plan = Segmenter(session.grouping, Costs.zero(len(groups), session.cluster)).plan(groups)
    return Candidate(name, placer, plan, session.placing, None, None, plain=plain, of=of)
