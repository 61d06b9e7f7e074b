"""Options of a model: the ways to place it that a joint placement chooses from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placeit import backends
from placeit.backends.archive import read_shapes, read_tensors
from placeit.backends.openvino.inputs import OpenSizesError
from placeit.core.cluster import Cluster
from placeit.core.errors import ClusterError, DeviceError, FileError, ModelError, PlacementError, ProblemError, UsageError
from placeit.core.placement import Placement, Serving
from placeit.core.weights import held_bytes
from placeit.optimizer.candidates import Candidate
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized
from placeit.planning.in_flight import in_service
from placeit.planning.segments import Plan
from placeit.profiler.costs import Progress
from placeit.runtime.devices.base import BufferSpec
from placeit.session import Session
from placeit.simulator.arrivals import SimulatedReplica
from placeit.simulator.simulate import simulate
from placeit.workload.arriving import arriving, resolved
from placeit.workload.entries import Entry

__all__ = ["Option", "naming", "open_entry", "options_of"]

_SPLITS = 2  # best splits that are options beside the answer of the model's own search
_RUNS = 12  # runs by which a given placement is timed


@dataclass(frozen=True, eq=False)
class Option:
    """A way to place a model.

    Attributes:
        name: unique among the options of the model.
        placement: with its segments, and with the settings of its server.
        replicas: its plans for the simulator, by measured times as far as there are some.
        host: seconds of a request besides the work of devices and links.
        way: seconds of ``replicas`` for inputs from where they arrive, and for outputs back there, without other requests.
        held: bytes of weights by device.
        plain: whether it is the model on the whole CPU, as its runtime uses it without placeit.
    """

    name: str
    placement: Placement
    replicas: tuple[SimulatedReplica, ...]
    host: float
    held: Mapping[str, float]
    plain: bool = False
    way: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of a request on the fastest replica, alone."""
        return min(one.scale * float(simulate(one.problem, one.placement)[0]) for one in self.replicas)


@contextlib.contextmanager
def naming(entry: Entry) -> Iterator[None]:
    """Name the model of the workload in errors that are raised in the block."""
    try:
        yield
    except OpenSizesError as error:
        sizes = ", ".join(f"{name}: [{', '.join(map(str, shape))}]" for name, shape in error.guess.items())
        raise ModelError(
            f"The model '{entry.name}' of the workload has inputs with open sizes: give them as its 'input_shapes' in the file"
            + (f", such as {{{sizes}}}." if sizes else ".")
        ) from error
    except (ClusterError, DeviceError, FileError, ModelError, PlacementError, ProblemError, UsageError) as error:
        raise type(error)(f"The model '{entry.name}' of the workload: {error}") from error


def open_entry(entry: Entry, cluster: Cluster, now: Path | None = None, **session: Any) -> Session:
    """Open a session of a model of a workload, with its inputs, and in the groups of its placement if that is given.

    Args:
        entry: the model.
        now: file of the placement that serves it now; None if it is not served.
        cluster: the devices, of which it uses its own (:attr:`Entry.devices`).
        session: options of :class:`placeit.Session`.
    """
    placed = entry.placement or now
    given = None if placed is None else Placement.load(placed)
    shapes: dict[str, Any] = dict(entry.shapes)
    if given is not None and given.conditions is not None and entry.model.suffix.lower() in (".onnx", ".xml"):
        shapes = {name: shape for name, shape in given.conditions.shapes.items() if shape and 0 not in shape}
    samples = {} if entry.inputs is None else read_shapes(entry.inputs)
    model = backends.load(entry.model, input_shapes=shapes or None, sample_shapes=samples)
    if entry.inputs is not None:
        model = model.with_inputs(read_tensors(entry.inputs, model.settable))
    cluster = cluster.only(entry.devices) if entry.devices else cluster
    if entry.arrives_at is not None:
        resolved(entry.arrives_at, cluster)
    opened = Session(model, cluster, graph="" if given is None else given.graph_hash, **session)
    if given is not None and opened.home_of(given) is opened:
        for one in given.every:
            opened.divide(one, by_segments=given.segments is not None)
    return opened


def options_of(
    session: Session, entry: Entry, budget: float, seed: int, progress: Progress | None, now: Path | None = None
) -> tuple[list[Option], int | None]:
    """Return the options of a model, and the number of the one that serves now, None if it is not served.

    The first option is what a search for this model alone answers.

    They are the single devices, the single devices as replicas that each serve whole requests, the whole CPU as its runtime
    uses it by itself, and the best splits. A model with a given placement has that as its only option.

    Args:
        session: the model on the devices.
        entry: what it has to serve.
        budget: seconds of the search.
        seed: of the search.
        progress: told the current activity, and how far it is.
        now: file of the placement that serves it now; None if it is not served.
    """
    if entry.placement is not None:
        kept = _given(session, entry.placement, budget, progress)
        serves = now is not None and kept.placement.runs_like(Placement.load(now))
        return [_arriving(session, entry, kept)], 0 if serves else None
    found = session.optimize("latency", budget=budget, seed=seed, candidates=Candidates(), progress=progress)
    if found.interrupted:  # the other models would still be searched for and measured
        raise KeyboardInterrupt
    able = [one for one in found.candidates if one.failed is None and one.may_be_chosen and one.not_run is None]
    singles = sorted((one for one in able if one.placer == "single" and not one.plain), key=_time)
    splits = sorted((one for one in able if len(_used(one)) > 1), key=_time)[:_SPLITS]
    plain = [one for one in able if one.plain and one.measured is not None]
    chosen = {one.name: _option(session, found, [one]) for one in (found.chosen, *singles, *splits, *plain)}
    apart = [one for one in singles if session.cluster.names.index(_used(one)[0]) in session.cluster.apart()]
    for count in range(2, len(apart) + 1):
        together = _option(session, found, apart[:count])
        chosen[together.name] = together
    every, number = list(chosen.values()), None
    if now is not None:
        served = Placement.load(now)
        number = next((k for k, one in enumerate(every) if one.placement.runs_like(served)), len(every))
        every += [] if number < len(every) else [_given(session, now, budget, progress)]
    return [_arriving(session, entry, one) for one in every], number


def _arriving(session: Session, entry: Entry, option: Option) -> Option:
    """Return an option with the way of inputs from where they arrive, and of outputs back there."""
    if entry.arrives_at is None:
        return option
    costs, _ = session.planned_with
    cluster = session.cluster if costs is None else costs.cluster
    sent = sum(value.nbytes for value in session.model.sample_inputs().values())
    answered = sum(BufferSpec(spec.shape, spec.dtype).nbytes for spec in session.model.outputs)
    at = resolved(entry.arrives_at, cluster)
    further = replace(option, replicas=tuple(arriving(one, at, cluster, sent, answered) for one in option.replicas))
    return replace(further, way=max(0.0, further.seconds - option.seconds))


def _time(candidate: Candidate) -> float:
    measured = candidate.measured
    return (candidate.simulated_s or 0.0) if measured is None else measured.median


def _used(candidate: Candidate) -> list[str]:
    return [name for name, ops in candidate.placement.counts().items() if ops]


def _option(session: Session, found: Optimized, replicas: Sequence[Candidate]) -> Option:
    """Return an option of a search's candidates, each of which serves whole requests."""
    first, *others = (replace(one.placement, conditions=found.conditions) for one in replicas)
    plans = [(one.plan, None if one.measured is None else one.measured.median) for one in replicas]
    names = " + ".join(one.name for one in replicas)
    return _of(session, names, replace(first, replicas=tuple(others)), plans, plain=replicas[0].plain)


def _given(session: Session, path: Path, budget: float, progress: Progress | None) -> Option:
    """Return the option of a placement that is given, timed by a few runs if devices are real."""
    placement = Placement.load(path)
    home = session.home_of(placement)
    if home is session:  # of other devices, only whole models are timed
        home.profile(budget_s=budget, progress=progress)
    plans = []
    for one in placement.every:
        alone = replace(one, replicas=(), conditions=placement.conditions)
        real = session.cluster.executable
        plans.append((home.plan_of(alone), session.run(alone, runs=_RUNS).latency.median if real else None))
    return _of(session, path.name, replace(placement, result=None), plans, plain=home is not session)


def _of(
    session: Session, name: str, placement: Placement, plans: Sequence[tuple[Plan, float | None]], *, plain: bool
) -> Option:
    depth = max(in_service(plan) for plan, _ in plans)
    if placement.serving is not None:
        depth = placement.serving.in_flight
    replicas = [_replica(plan, measured, depth) for plan, measured in plans]
    first = plans[0][0]
    used = np.unique(first.placement)
    host = float(first.problem.host[used[0] if len(used) == 1 else -1])
    groups = session.grouping.groups
    held: dict[str, float] = {}
    for plan, _ in plans:
        names = plan.problem.device_names
        each = held_bytes(groups.held_once, groups.shared, plan.group_devices[None], len(names))[0]
        held |= {name: float(size) for name, size in zip(names, each, strict=True) if size}
    serving = placement.serving or Serving(depth)
    return Option(name, replace(placement, serving=serving), tuple(replicas), replicas[0].scale * host, held, plain)


def _replica(plan: Plan, measured: float | None, in_flight: int) -> SimulatedReplica:
    """Return a plan for the simulator; a plan without times, as of a plain device, as one op of the measured time."""
    simulated = plan.schedule.makespan
    if simulated > 0:
        return SimulatedReplica(plan.problem, plan.placement, in_flight, 1.0 if measured is None else measured / simulated)
    return SimulatedReplica.whole(measured or 0.0, plan.problem.device_names[plan.placement[0]], in_flight)
