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
from placeit.workload.arriving import arrival_device, node_of, with_arrivals
from placeit.workload.entries import Entry

__all__ = ["Option", "naming", "open_entry", "options_of"]

_MAX_SPLITS = 2  # splits that are options beside the answer of the model's own search
_RUNS = 12  # runs that time a given placement


@dataclass(frozen=True, eq=False)
class Option:
    """A way to place a model.

    Attributes:
        name: unique among the options of the model.
        placement: with its segments, and with the settings of its server.
        replicas: its plans for the simulator, scaled to measured times where something was measured.
        host: seconds of a request besides the work of devices and links.
        weight_bytes: bytes of weights by device.
        plain: whether it is the model on the whole CPU, as its runtime uses it without placeit.
        here: whether all its devices are on this machine, whose cores also do the work of clients and servers.
        transfer_s: seconds that inputs take from the device where they arrive, and outputs back to it, in ``replicas`` without
            other requests.
    """

    name: str
    placement: Placement
    replicas: tuple[SimulatedReplica, ...]
    host: float
    weight_bytes: Mapping[str, float]
    plain: bool = False
    here: bool = True
    transfer_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of a request on the fastest replica, without other requests."""
        return min(one.scale * float(simulate(one.problem, one.placement)[0]) for one in self.replicas)


@contextlib.contextmanager
def naming(entry: Entry) -> Iterator[None]:
    """Return a context that adds the model's name to the errors raised in it."""
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
    """Open a session of a model of a workload, with its inputs, and with groups that its placement can be run in.

    Args:
        entry: the model.
        cluster: the devices; the model uses the ones in :attr:`Entry.devices`.
        now: file of the placement that serves it now; None if it is not served.
        session: options of :class:`placeit.Session`.
    """
    path = entry.placement or now
    placement = None if path is None else Placement.load(path)
    shapes: dict[str, Any] = dict(entry.shapes)
    if placement is not None and placement.conditions is not None and entry.model.suffix.lower() in (".onnx", ".xml"):
        shapes = {name: shape for name, shape in placement.conditions.shapes.items() if shape and 0 not in shape}
    samples = {} if entry.inputs is None else read_shapes(entry.inputs)
    model = backends.load(entry.model, input_shapes=shapes or None, sample_shapes=samples)
    if entry.inputs is not None:
        model = model.with_inputs(read_tensors(entry.inputs, model.settable))
    cluster = cluster.only(entry.devices) if entry.devices else cluster
    if entry.arrives_at is not None:
        arrival_device(entry.arrives_at, cluster)
    opened = Session(model, cluster, graph="" if placement is None else placement.graph_hash, **session)
    if placement is not None and opened.home_of(placement) is opened:
        for one in placement.every:
            opened.divide(one, by_segments=placement.segments is not None)
    return opened


def options_of(
    session: Session, entry: Entry, budget: float, seed: int, progress: Progress | None, now: Path | None = None
) -> tuple[list[Option], int | None]:
    """Return the options of a model, and the index of the one that serves now, None if it is not served.

    The first option is the answer of a search for this model alone. The others are the single devices, the single devices as
    replicas that each serve whole requests, the whole CPU as its runtime uses it without placeit, and the best splits. A model
    with a given placement has that as its only option.

    Args:
        session: the model on the devices.
        entry: what it has to serve.
        budget: seconds of the search.
        seed: seed of the search.
        progress: called with the current step and the share of it that is done.
        now: file of the placement that serves it now; None if it is not served.
    """
    if entry.placement is not None:
        given = _given(session, entry.placement, budget, progress)
        serves = now is not None and given.placement.runs_like(Placement.load(now))
        return [_arriving(session, entry, given)], 0 if serves else None
    found = session.optimize("latency", budget=budget, seed=seed, candidates=Candidates(), progress=progress)
    if found.interrupted:  # the other models would still be searched for and measured
        raise KeyboardInterrupt
    able = [one for one in found.candidates if one.failed is None and one.may_be_chosen and one.not_run is None]
    singles = sorted((one for one in able if one.placer == "single" and not one.plain), key=_time)
    splits = sorted((one for one in able if len(one.placement.used) > 1), key=_time)[:_MAX_SPLITS]
    plain = [one for one in able if one.plain and one.measured is not None]
    chosen = {one.name: _option(session, found, [one]) for one in (found.chosen, *singles, *splits, *plain)}
    apart = [one for one in singles if session.cluster.names.index(one.placement.used[0]) in session.cluster.apart()]
    for count in range(2, len(apart) + 1):
        together = _option(session, found, apart[:count])
        chosen[together.name] = together
    options, index = list(chosen.values()), None
    if now is not None:
        served = Placement.load(now)
        index = next((k for k, one in enumerate(options) if one.placement.runs_like(served)), len(options))
        options += [] if index < len(options) else [_given(session, now, budget, progress)]
    return [_arriving(session, entry, one) for one in options], index


def _arriving(session: Session, entry: Entry, option: Option) -> Option:
    """Return an option with the transfer of inputs from the device where they arrive, and of outputs back to it."""
    if entry.arrives_at is None:
        return option
    costs, _ = session.planned_with
    cluster = session.cluster if costs is None else costs.cluster
    inputs = sum(value.nbytes for value in session.model.sample_inputs().values())
    outputs = sum(BufferSpec(spec.shape, spec.dtype).nbytes for spec in session.model.outputs)
    at = arrival_device(entry.arrives_at, cluster)
    sent = replace(option, replicas=tuple(with_arrivals(one, at, cluster, inputs, outputs) for one in option.replicas))
    return replace(sent, transfer_s=max(0.0, sent.seconds - option.seconds))


def _time(candidate: Candidate) -> float:
    measured = candidate.measured
    return (candidate.simulated_s or 0.0) if measured is None else measured.median


def _option(session: Session, found: Optimized, replicas: Sequence[Candidate]) -> Option:
    """Return the option that serves whole requests by each of some candidates of a search."""
    first, *others = (replace(one.placement, conditions=found.conditions) for one in replicas)
    plans = [(one.plan, None if one.measured is None else one.measured.median) for one in replicas]
    names = " + ".join(one.name for one in replicas)
    return _planned(session, names, replace(first, replicas=tuple(others)), plans, plain=replicas[0].plain)


def _given(session: Session, path: Path, budget: float, progress: Progress | None) -> Option:
    """Return the option of a given placement, timed by a few runs if the devices can execute it."""
    placement = Placement.load(path)
    home = session.home_of(placement)
    if home is session:  # of other devices, only whole models are timed
        home.profile(budget_s=budget, progress=progress)
    plans = []
    for one in placement.every:
        alone = replace(one, replicas=(), conditions=placement.conditions)
        real = session.cluster.executable
        plans.append((home.plan_of(alone), session.run(alone, runs=_RUNS).latency.median if real else None))
    return _planned(session, path.name, replace(placement, result=None), plans, plain=home is not session)


def _planned(
    session: Session, name: str, placement: Placement, plans: Sequence[tuple[Plan, float | None]], *, plain: bool
) -> Option:
    """Return the option of a placement, by the plan and the measured seconds of each replica."""
    serving = placement.serving or Serving()
    in_flight = serving.in_flight or max(in_service(plan) for plan, _ in plans)
    placement = replace(placement, serving=replace(serving, in_flight=in_flight))
    home = session.home_of(placement)
    shared = not home.cluster.executable or home.runtime.pool.is_shared
    replicas = tuple(replace(_replica(plan, measured, in_flight), shared=shared) for plan, measured in plans)
    first, groups = plans[0][0], session.grouping.groups
    used = np.unique(first.placement)
    host = replicas[0].scale * float(first.problem.host[used[0] if len(used) == 1 else -1])
    weights: dict[str, float] = {}
    for plan, _ in plans:
        names = plan.problem.device_names
        held = held_bytes(groups.held_once, groups.shared, plan.group_devices[None], len(names))[0]
        weights |= {name: float(size) for name, size in zip(names, held, strict=True) if size}
    on = {name for one in placement.every for name in one.used}
    here = not any(node_of(device) for device in home.cluster.devices if device.name in on)
    return Option(name, placement, replicas, host, weights, plain, here)


def _replica(plan: Plan, measured: float | None, in_flight: int) -> SimulatedReplica:
    """Return a plan for the simulator; one without times, such as a plain device's, becomes an op of the measured time."""
    simulated = plan.schedule.makespan
    if simulated > 0:
        return SimulatedReplica(plan.problem, plan.placement, in_flight, 1.0 if measured is None else measured / simulated)
    return SimulatedReplica.whole(measured or 0.0, plan.problem.device_names[plan.placement[0]], in_flight)
