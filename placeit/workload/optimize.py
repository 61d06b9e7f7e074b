"""Place all models of a workload together, and decide by measuring."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.errors import WorkloadError
from placeit.core.jsonable import jsonable_dict
from placeit.core.units import about_bytes, milliseconds
from placeit.devices.clusterfile import discover
from placeit.optimizer.options import Budget
from placeit.profiler.cache import Cache
from placeit.profiler.costs import Progress
from placeit.runtime.device_pool import shared_devices
from placeit.serving.latency import LatencyLimit, OperatingPoint
from placeit.session import Session
from placeit.workbench.options import Constraints, Policy
from placeit.workload.arriving import node_of
from placeit.workload.choosing import Choice, Predictor, choose, device_use, largest_factor, longer_limits, rank
from placeit.workload.entries import Workload
from placeit.workload.interference import Interference, Place, pairs_by_load
from placeit.workload.measuring import measure_choices, measure_corrections, measure_slowdowns
from placeit.workload.options import Option, naming, open_entry, options_of

__all__ = ["PlacedWorkload", "Together", "optimize_workload"]

_SEARCH_SHARE = 0.5  # share of the budget for the searches of the models
_CORRECTIONS_SHARE = 0.08  # share of the budget for measuring how latencies in the mix differ from simulated ones
_PAIRS_SHARE = 0.1  # share of the budget for measuring how models slow each other
_CHOICE_SHARE = 0.1  # share of the budget for choosing an option for each model
_MAX_MODELS = 64  # models of a workload that is placed by measuring
_JOINT, _ALONE, _PLAIN, _NOW = "joint", "each alone", "plain", "now"


@dataclass(frozen=True, eq=False)
class Together:
    """A placement of all models of a workload.

    Attributes:
        name: ``joint`` for the answer of the joint search; ``each alone`` if each model is where a search for it alone puts it;
            ``plain`` if each model uses the whole CPU as it does without placeit; ``now`` for the plan that serves now. Several
            names, separated by commas, if these are the same.
        options: the option of each model.
        predicted: simulated latencies of each model, with requests to all models.
        measured: measured latencies of each model, with requests to all models; None if nothing was measured.
        moves: names of the models that leave the placement that serves them now.
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
        workload: the workload, with the slowdowns and the corrections that were measured, or else known.
        every: the placements that were compared, the best first.
        chosen: the best placement that keeps all limits; None if no placement does.
        factor: the largest factor on all rates, 8 at most, at which the joint placement is predicted to keep all limits.
        too_tight: least seconds of a single request, by name, of models whose limit is shorter than that with every option.
        longer: longer limits, by model, with which the joint placement is predicted to keep all limits; empty if it keeps them
            anyway, or longer limits do not help.
        turns: number of turns in which each placement was measured; 0 if nothing was measured.
        cluster: the devices.
        interrupted: whether Ctrl-C ended the measurement early.
        start: the plan that serves now; None if nothing serves.
        interference: the factors by which models on different devices slow each other.
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
        """Why this placement was chosen, or which limits cannot be kept, in a sentence."""
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
        """The chosen placement, or the best one that does not keep the limits."""
        return self.every[0] if self.chosen is None else self.chosen

    def save(self, path: str | Path) -> None:
        """Write the workload with its placements as a file for ``placeit serve``, and the placements beside it.

        Raises:
            FileError: a file cannot be written.
        """
        files = self.workload.placements(Path(path))
        for file, option in zip(files, self.best.options, strict=True):
            option.placement.save(file)
        entries = (replace(entry, placement=file) for entry, file in zip(self.workload, files, strict=True))
        replace(self.workload, entries=tuple(entries)).save(Path(path))

    def error(self, way: Together, model: int) -> float | None:
        """Return the relative error of the predicted percentile of a model; None if it was not measured."""
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
    file of the workload, or from ``start``. In a twelfth, all models get requests at a light load, and predictions are
    corrected by their latencies. The search among choices takes at most another tenth. The best choice is then measured by
    requests to all models at once, against each model where a search for it alone puts it, and against each model on the whole
    CPU as its runtime uses it without placeit. The measurement decides.

    Args:
        workload: the workload, or the path of its file.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        budget: seconds, or a text such as ``2m``.
        seed: seed of the searches and of the arrivals.
        start: the placed workload that serves now, or its file: it is measured as well, and a model moves only if that keeps
            more limits, or saves 5 % of the weighted latency for each model that moves. If it is the file of the workload
            itself, its placements are not kept, but where to start from. None if nothing serves.
        measure: whether to measure with requests to all models; if not, as while something else uses the devices, the
            prediction decides.
        progress: called with the current step and the share of it that is done.
        precision: inference precision of every device.
        constraints: rules for the placements of each model; the memory of a device holds for the sum of all models.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        policy: guards against measurements that mislead.

    Returns:
        The result. With a described device in the cluster nothing is measured, and the prediction decides.

    Raises:
        WorkloadError: the file is wrong, there are more than 64 models, or their weights do not fit on the devices together.
        PlaceitError: an error of :func:`placeit.optimize` for a model, which it names.
        KeyboardInterrupt: Ctrl-C before each placement has had its first turn. A later Ctrl-C ends the measurement.
    """
    workload = Workload.of(workload)
    before = None if start is None else Workload.of(start).placed()
    if before is not None and _same_file(before.path, workload.path):
        workload = replace(workload, entries=tuple(replace(entry, placement=None) for entry in workload))
    served = {} if before is None else {entry.name: entry.placement for entry in before}
    if len(workload) > _MAX_MODELS:
        raise WorkloadError(
            f"{_MAX_MODELS} models at most are placed by measuring; the workload has {len(workload)}. Divide it."
        )
    seconds = Budget.of(budget).seconds
    begin, cluster = clock.now(), discover(devices, precision=precision)
    session_options: dict[str, Any] = {
        "precision": precision,
        "constraints": constraints,
        "cache": cache,
        "policy": policy,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(shared_devices())
        sessions: list[Session] = []
        for entry in workload:
            with naming(entry):
                sessions.append(stack.enter_context(open_entry(entry, cluster, served.get(entry.name), **session_options)))
        options, now = [], []
        for entry, session in zip(workload, sessions, strict=True):
            with naming(entry):
                share_s = _SEARCH_SHARE * seconds / len(workload)
                of_model, index = options_of(session, entry, share_s, seed, progress, served.get(entry.name))
            options.append(of_model)
            now.append(index)
        every_device = _devices(sessions)
        memory = {device.name: device.memory_bytes for device in every_device.devices}
        until = clock.now() + _PAIRS_SHARE * seconds if cluster.executable and measure else 0.0
        interference = _interference(sessions, workload, options, every_device, until, progress)
        models, previous = {entry.name for entry in workload}, before or workload
        if not interference.pairs:
            known = workload.slowdowns or previous.slowdowns
            interference = replace(interference, pairs=tuple(pair for pair in known if models.issuperset(pair.models)))
        corrections = {**previous.corrections, **workload.corrections}
        if cluster.executable and measure:
            until = clock.now() + _CORRECTIONS_SHARE * seconds
            corrections |= measure_corrections(sessions, workload, options, interference, until=until, seed=seed)
        corrections = {name: each for name, each in corrections.items() if name in models}
        workload = replace(workload, slowdowns=interference.pairs, corrections=corrections)
        predict = Predictor(workload, options, memory, seed, now if served else None, interference)
        ways = _ways(predict, clock.now() + _CHOICE_SHARE * seconds)
        joint = next(iter(ways.values()))
        _check_fits(predict, joint)
        points: dict[str, tuple[OperatingPoint, ...]] = {}
        turns, interrupted = 0, False
        if cluster.executable and measure:
            points, turns, interrupted = measure_choices(
                sessions, workload, options, ways, until=begin + seconds, seed=seed, progress=progress
            )
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
            interference,
        )


def _same_file(one: Path | None, other: Path | None) -> bool:
    return one is not None and other is not None and one.resolve() == other.resolve()


def _ways(predict: Predictor, until: float) -> dict[str, Choice]:
    """Return the choices to compare, by name, the joint one first. Others are left out if their weights do not fit."""
    alone: Choice = (0,) * len(predict.options)
    now = tuple(number or 0 for number in predict.now or alone)
    ways = {_JOINT: choose(predict, [alone, now], until), _ALONE: alone}
    if predict.now is not None:
        ways[_NOW] = now
    # for a model that may use one device only, its first option is the plain one
    plain = [
        next((k for k, option in enumerate(own) if option.plain), 0 if len(entry.devices) == 1 else None)
        for own, entry in zip(predict.options, predict.workload, strict=True)
    ]
    found = tuple(k for k in plain if k is not None)
    if len(found) == len(plain):
        ways[_PLAIN] = found
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
    until: float,
    progress: Progress | None,
) -> Interference:
    """Measure how models slow each other on the single devices that run them whole."""
    names = cluster.names
    overlapping = {frozenset((names[a], names[b])) for a, b in np.argwhere(cluster.conflicts())}
    single: dict[Place, Option] = {}
    busy: dict[Place, float] = {}
    for entry, own in zip(workload, options, strict=True):
        for option in own:
            used = {name: share for name, share in device_use(option, entry).items() if share > 0}  # not where inputs arrive
            overlapping |= set() if option.replicas[0].shared else {frozenset((name,)) for name in used}
            if len(used) == 1:
                place = entry.name, next(iter(used))
                single[place], busy[place] = option, used[place[1]]
    machines = {device.name: node_of(device) for device in cluster.devices}
    by_name = {entry.name: session for entry, session in zip(workload, sessions, strict=True)}
    pairs = pairs_by_load(busy, machines, overlapping)
    measured = measure_slowdowns(by_name, single, pairs, until=until, progress=progress)
    return Interference(tuple(measured), machines, overlapping)


def _devices(sessions: Sequence[Session]) -> Cluster:
    """Return a cluster of all devices that models may be placed on, without links."""
    clusters = (cluster for session in sessions for cluster in (*session.setup.elsewhere, session.cluster))
    return Cluster(tuple({device.name: device for cluster in clusters for device in cluster.devices}.values()))


def _check_fits(predict: Predictor, choice: Choice) -> None:
    """Raise WorkloadError if the weights of the best choice do not fit on its devices."""
    over = predict.overfull(choice)
    if not over:
        return
    device, size = next(iter(over.items()))
    held = {
        entry.name: option.weight_bytes[device]
        for entry, option in zip(predict.workload, predict.chosen(choice), strict=True)
        if device in option.weight_bytes
    }
    lacking = size - predict.memory[device]
    out = min((name for name, each in held.items() if each >= lacking), key=held.__getitem__, default="some of them")
    raise WorkloadError(
        f"The models do not fit together: {', '.join(held)} would have {about_bytes(size)} of weights on {device}, which may "
        f"hold {about_bytes(predict.memory[device])}. Give it {about_bytes(lacking)} more, add a device, or leave out {out}."
    )


def _too_tight(workload: Workload, options: Sequence[Sequence[Option]]) -> dict[str, float]:
    """Return the least seconds of a single request, by name, of models whose limit is shorter than that."""
    least = {entry.name: min(option.seconds for option in own) for entry, own in zip(workload, options, strict=True)}
    return {entry.name: least[entry.name] for entry in workload if least[entry.name] > entry.limited.seconds < math.inf}
