"""Place all models of a workload together, and decide by measuring."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.errors import WorkloadError
from placeit.core.jsonable import jsonable_dict
from placeit.core.units import about_bytes, milliseconds, parse_duration
from placeit.devices.clusterfile import discover
from placeit.optimizer.options import Budget
from placeit.profiler.cache import Cache
from placeit.profiler.costs import Progress
from placeit.runtime.device_pool import shared_devices
from placeit.serving.latency import LatencyLimit, OperatingPoint
from placeit.session import Session
from placeit.workbench.options import Constraints, Policy
from placeit.workload.arriving import node_of
from placeit.workload.choosing import Choice, Predictor, choose, largest_factor, longer_limits, rank, use
from placeit.workload.entries import Workload
from placeit.workload.interference import Interference, Place, pairs_by_load
from placeit.workload.measuring import measured, slowdowns
from placeit.workload.options import Option, naming, open_entry, options_of

__all__ = ["PlacedWorkload", "Together", "optimize_workload"]

_SEARCH = 0.5  # share of the budget for the searches of the models
_PAIRS = 0.1  # share of the budget for measuring how models slow each other
_CHOICE = 0.1  # share of the budget for the choice of an option for each model
_MODELS = 64  # of a workload that is placed by measuring
_JOINT, _ALONE, _PLAIN, _NOW = "joint", "each alone", "plain", "now"


@dataclass(frozen=True, eq=False)
class Together:
    """A way to place all models of a workload.

    Attributes:
        name: ``joint`` for the answer of the joint search; ``each alone`` if each model is where a search for it alone puts it;
            ``plain`` if each model uses the whole CPU as it does without placeit; ``now`` for the plan that serves now. Several
            names if these are the same.
        options: of each model.
        predicted: simulated latencies of each model, with the whole workload.
        measured: latencies of each model in the same mix; None if nothing was measured.
        moves: the models that it moves from where they serve now.
    """

    name: str
    options: tuple[Option, ...]
    predicted: tuple[OperatingPoint, ...]
    measured: tuple[OperatingPoint, ...] | None = None
    moves: tuple[str, ...] = ()

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """The measured latencies, or else the predicted ones."""
        return self.predicted if self.measured is None else self.measured

    @property
    def kept(self) -> bool:
        """True if all limits are kept, and all servers keep up."""
        return all(point.kept for point in self.points)


@dataclass(frozen=True, eq=False)
class PlacedWorkload:
    """The result of :func:`optimize_workload`.

    Attributes:
        workload: the workload.
        every: the ways that were compared, the best first.
        chosen: the best one that keeps all limits; None if none does.
        factor: the largest factor on all rates at which the joint placement keeps all limits, by prediction; 8 at most.
        too_tight: for models without an option that keeps the limit even for a single request: the least that it would take,
            seconds, by name.
        longer: limits, by model, with which the joint placement would keep all limits, by prediction; empty if it keeps them
            anyway, or longer ones do not help.
        turns: turns in which each way was measured; 0 if nothing was.
        cluster: the devices.
        interrupted: whether Ctrl-C ended the measurement early.
        start: the plan that serves now; None without one.
        interference: how models on different devices slow each other.
    """

    workload: Workload
    every: tuple[Together, ...]
    chosen: Together | None
    factor: float
    too_tight: dict[str, float]
    longer: dict[str, LatencyLimit]
    turns: int
    cluster: Cluster
    interrupted: bool
    start: Workload | None = None
    interference: Interference = field(default_factory=Interference)

    def __repr__(self) -> str:
        return f"<PlacedWorkload of {len(self.workload)} models on {', '.join(self.cluster.names)}: {self.reason}>"

    @property
    def reason(self) -> str:
        """Why this way was chosen, or what does not fit, in a sentence."""
        how = "measured" if self.turns else "predicted"
        if self.chosen is not None:
            least = rank(self.workload, self.chosen.points)[2]
            others = [one.name for one in self.every if one.kept and one is not self.chosen]
            beside = f"; so does {', '.join(others)}" if others else ""
            return f"it keeps all limits ({how}), with a weighted latency of {milliseconds(least)}{beside}"
        best = self.every[0]
        broken = [
            f"{entry.name}: p{entry.limited.percentile} is {milliseconds(entry.limited.at(point))}"
            for entry, point in zip(self.workload, best.points, strict=True)
            if not point.kept
        ]
        nearest = [f"at {self.factor:.2f} times the rates"] if self.factor > 0 else []
        nearest += ["with " + " and ".join(f"{name}: {limit}" for name, limit in self.longer.items())] if self.longer else []
        remedy = f"all limits would be kept {', or '.join(nearest)}" if nearest else "lower rates do not help"
        if self.too_tight:
            slow = ", ".join(f"{name} takes {milliseconds(seconds)} at least" for name, seconds in self.too_tight.items())
            return f"no placement keeps the limits: {slow}, alone and without other requests; {remedy} (predicted)"
        found = f"no placement that was found keeps all limits; {best.name}, the best ({how}): {'; '.join(broken)}"
        return f"{found}; {remedy} (predicted)"

    @property
    def best(self) -> Together:
        """The chosen way, or the best one that does not keep the limits."""
        return self.every[0] if self.chosen is None else self.chosen

    def save(self, path: str | Path) -> None:
        """Write the workload with its placements, which ``placeit serve`` takes, and the placements beside it.

        Raises:
            FileError: a file cannot be written.
        """
        files = self.workload.placements(Path(path))
        for file, option in zip(files, self.best.options, strict=True):
            option.placement.save(file)
        entries = (replace(entry, placement=file) for entry, file in zip(self.workload, files, strict=True))
        replace(self.workload, entries=tuple(entries), slowdowns=self.interference.pairs).save(Path(path))

    def error(self, way: Together, model: int) -> float | None:
        """Return the error of the predicted percentile of a model, as a share of the measured one; None if not measured."""
        if way.measured is None:
            return None
        limit = self.workload.entries[model].limited
        return limit.at(way.predicted[model]) / limit.at(way.measured[model]) - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""

        def row(way: Together, model: int) -> dict[str, Any]:
            entry, option = self.workload.entries[model], way.options[model]
            return {
                "name": entry.name,
                "placement": option.name,
                "devices": option.placement.counts(),
                "replicas": len(option.placement.every),
                "limit": None if entry.limit is None else str(entry.limit),
                "predicted": way.predicted[model].to_dict(),
                "measured": None if way.measured is None else way.measured[model].to_dict(),
                "error": self.error(way, model),
            }

        return jsonable_dict(
            {
                "workload": None if self.workload.path is None else str(self.workload.path),
                "chosen": None if self.chosen is None else self.chosen.name,
                "reason": self.reason,
                "largest_factor": self.factor,
                "longer_limits": {name: str(limit) for name, limit in self.longer.items()},
                "turns": self.turns,
                "ways": [
                    {
                        "name": way.name,
                        "kept": way.kept,
                        "moves": way.moves,
                        "models": [row(way, k) for k in range(len(self.workload))],
                    }
                    for way in self.every
                ],
                "interference": {
                    "error": self.interference.error,
                    "pairs": [pair._asdict() for pair in self.interference.pairs],
                },
                "emulated": self.cluster.emulated_names,
                "interrupted": self.interrupted,
            }
        )


def optimize_workload(
    workload: Workload | str | Path,
    devices: str | Sequence[str] | Path | Cluster | None = None,
    *,
    budget: float | str = 60.0,
    seed: int = 0,
    start: Workload | str | Path | None = None,
    measure: bool = True,
    progress: Progress | None = None,
    precision: str = "f32",
    constraints: Constraints = Constraints(),
    cache: Cache | Literal["default"] | None = "default",
    policy: Policy = Policy(),
) -> PlacedWorkload:
    """Find placements of all models of a workload together, by measuring.

    Half of the budget is for a search for each model (:func:`placeit.optimize`). Its answer, the single devices, single devices
    as replicas, and the best splits are the options of the model. A choice of an option for each model is valued by simulating
    the whole workload on shared devices: it has to keep all limits, and then have the least weighted latency. The simulation
    takes into account how models on different devices of a machine slow each other
    (:class:`placeit.workload.interference.Interference`). That is measured in a tenth of the budget, or else known from the
    file of the workload, or from ``start``. The search among choices takes at most another tenth. The best choice is then
    measured by requests to all models at once, against each model where a search for it alone puts it, and against each model
    on the whole CPU as its runtime uses that by itself. The measurement decides.

    Args:
        workload: the workload, or the path of its file.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        budget: seconds, or a text such as ``2m``.
        seed: of the searches and the arrivals.
        start: the placed workload that serves now, or its file: it is measured as well, and a model moves only if that keeps
            more limits, or saves 5 % of the weighted latency for each model that moves. If it is the file of the workload
            itself, its placements are not kept, but where to start from. None if nothing serves.
        measure: whether to measure the mix; if not, as while something else uses the devices, the prediction decides.
        progress: told the current activity, and how far it is.
        precision: inference precision of every device.
        constraints: rules for the placements of each model; the memory of a device holds for the sum of all models.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        policy: guards against measurements that mislead.

    Returns:
        The result. With a described device in the cluster nothing is measured, and the prediction decides.

    Raises:
        WorkloadError: the file is wrong, there are more than 64 models, or their weights do not fit on the devices together.
        PlaceitError: an error of :func:`placeit.optimize` for a model, which it names.
        KeyboardInterrupt: Ctrl-C before every way had had its first turn; afterwards it ends the measurement.
    """
    workload = Workload.of(workload)
    before = None if start is None else Workload.of(start).placed()
    if before is not None and before.path is not None and before.path == workload.path:
        workload = replace(workload, entries=tuple(replace(entry, placement=None) for entry in workload))
    served = {} if before is None else {entry.name: entry.placement for entry in before}
    if len(workload) > _MODELS:
        raise WorkloadError(f"{_MODELS} models at most are placed by measuring; the workload has {len(workload)}. Divide it.")
    seconds = Budget(parse_duration(budget) if isinstance(budget, str) else budget).seconds
    begin, cluster = clock.now(), discover(devices, precision=precision)
    told: dict[str, Any] = {"precision": precision, "constraints": constraints, "cache": cache, "policy": policy}
    with contextlib.ExitStack() as stack:
        stack.enter_context(shared_devices())
        sessions: list[Session] = []
        for entry in workload:
            with naming(entry):
                sessions.append(stack.enter_context(open_entry(entry, cluster, served.get(entry.name), **told)))
        options, now = [], []
        for entry, session in zip(workload, sessions, strict=True):
            with naming(entry):
                each = _SEARCH * seconds / len(workload)
                own, number = options_of(session, entry, each, seed, progress, served.get(entry.name))
            options.append(own)
            now.append(number)
        every_device = _devices(sessions)
        conflicts = _conflicts(every_device)
        memory = {device.name: device.memory_bytes for device in every_device.devices}
        until = clock.now() + _PAIRS * seconds if cluster.executable and measure else 0.0
        slowdown = _interference(sessions, workload, options, every_device, conflicts, until, progress)
        if not slowdown.pairs:
            names = {entry.name for entry in workload}
            known = workload.slowdowns or (() if before is None else before.slowdowns)
            slowdown = replace(slowdown, pairs=tuple(pair for pair in known if names.issuperset(pair.models)))
        predict = Predictor(
            workload, options, memory, conflicts, seed, now if served else None, slowdown if slowdown.pairs else None
        )
        ways = _ways(predict, clock.now() + _CHOICE * seconds)
        joint = next(iter(ways.values()))
        _check_fits(predict, joint)
        points: dict[str, tuple[OperatingPoint, ...]] = {}
        turns, interrupted = 0, False
        if cluster.executable and measure:
            until = begin + seconds
            points, turns, interrupted = measured(sessions, workload, options, ways, until=until, seed=seed, progress=progress)
        every = [
            Together(name, tuple(predict.chosen(choice)), predict(choice), points.get(name), tuple(predict.moves(choice)))
            for name, choice in ways.items()
        ]
        every.sort(key=lambda one: rank(workload, one.points, len(one.moves)))
        return PlacedWorkload(
            workload,
            tuple(every),
            every[0] if every[0].kept else None,
            largest_factor(predict, joint),
            _too_tight(workload, options),
            longer_limits(predict, joint),
            turns,
            cluster,
            interrupted,
            before,
            slowdown,
        )


def _ways(predict: Predictor, until: float) -> dict[str, Choice]:
    """Return the choices to compare, by name, the joint one first; without others that do not fit, and each once."""
    alone: Choice = (0,) * len(predict.options)
    now = tuple(number or 0 for number in predict.now or alone)
    ways = {_JOINT: choose(predict, [alone, now], until), _ALONE: alone}
    if predict.now is not None:
        ways[_NOW] = now
    # a model that may only use one device has no other plain way than that
    plain = [
        next((k for k, one in enumerate(own) if one.plain), 0 if len(entry.devices) == 1 else None)
        for own, entry in zip(predict.options, predict.workload, strict=True)
    ]
    whole = tuple(k for k in plain if k is not None)
    if len(whole) == len(plain):
        ways[_PLAIN] = whole
    names: dict[Choice, list[str]] = {}
    for name, choice in ways.items():
        if name == _JOINT or not predict.overfull(choice):
            names.setdefault(choice, []).append(name)
    return {", ".join(several): choice for choice, several in names.items()}


def _interference(
    sessions: Sequence[Session],
    workload: Workload,
    options: Sequence[Sequence[Option]],
    cluster: Cluster,
    conflicts: Collection[tuple[str, str]],
    until: float,
    progress: Progress | None,
) -> Interference:
    """Measure how models slow each other on the single devices that run them whole."""
    single: dict[Place, Option] = {}
    busy: dict[Place, float] = {}
    traffic: dict[Place, float] = {}
    for entry, session, own in zip(workload, sessions, options, strict=True):
        graph = session.model.graph
        for option in own:
            used = {name: share for name, share in use(option, entry).items() if share > 0}  # not where requests arrive
            if len(used) == 1 and not option.plain:
                place = entry.name, next(iter(used))
                single[place], busy[place] = option, used[place[1]]
                traffic[place] = float(graph.bytes_once.sum() + graph.tensor_bytes.sum()) / option.seconds
    machines = {device.name: node_of(device) for device in cluster.devices}
    named = {entry.name: session for entry, session in zip(workload, sessions, strict=True)}
    order = pairs_by_load(busy, machines, conflicts)
    return Interference(tuple(slowdowns(named, single, order, until=until, progress=progress)), machines, traffic)


def _devices(sessions: Sequence[Session]) -> Cluster:
    """Return the devices that models may be placed on, without links."""
    clusters = (cluster for session in sessions for cluster in (*session.setup.elsewhere, session.cluster))
    return Cluster(tuple({device.name: device for cluster in clusters for device in cluster.devices}.values()))


def _conflicts(cluster: Cluster) -> set[tuple[str, str]]:
    """Return the pairs of devices that share hardware."""
    return {(cluster.names[a], cluster.names[b]) for a, b in np.argwhere(cluster.conflicts()) if a < b}


def _check_fits(predict: Predictor, choice: Choice) -> None:
    """Raise WorkloadError if the weights of a choice do not fit, which is the best there is."""
    over = predict.overfull(choice)
    if not over:
        return
    device, size = next(iter(over.items()))
    held = {
        entry.name: one.held[device]
        for entry, one in zip(predict.workload, predict.chosen(choice), strict=True)
        if device in one.held
    }
    lack = size - predict.memory[device]
    out = min((name for name, each in held.items() if each >= lack), key=held.__getitem__, default="some of them")
    raise WorkloadError(
        f"The models do not fit together: {', '.join(held)} would have {about_bytes(size)} of weights on {device}, which may "
        f"hold {about_bytes(predict.memory[device])}. Give it {about_bytes(lack)} more, add a device, or leave out {out}."
    )


def _too_tight(workload: Workload, options: Sequence[Sequence[Option]]) -> dict[str, float]:
    """Return the least seconds of models whose limit no option keeps, even for a single request."""
    least = {entry.name: min(one.seconds for one in own) for entry, own in zip(workload, options, strict=True)}
    return {entry.name: least[entry.name] for entry in workload if least[entry.name] > entry.limited.seconds < math.inf}
