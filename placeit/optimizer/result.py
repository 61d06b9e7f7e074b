"""Results of a search for a placement."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import IsCalled, Model
from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Conditions, Placement
from placeit.core.views import Drawn
from placeit.devices.energy import EnergyMeters
from placeit.measuring.incumbent import compared
from placeit.measuring.measure import WARMUP
from placeit.measuring.run_report import RunReport
from placeit.measuring.statistics import Ratio
from placeit.optimizer.candidates import NOT_RUN, Beside, Candidate, RaceResult, interval
from placeit.optimizer.capacity import Service
from placeit.optimizer.pareto import Point
from placeit.optimizer.placed_module import Execution, placed_module
from placeit.optimizer.story import Event
from placeit.planning.profiled import Profiled
from placeit.profiler.recording import Recording
from placeit.runtime.compiling import Compiled
from placeit.serving.load_run import RateReport
from placeit.simulator.objectives.base import Objective
from placeit.workbench import Workbench
from placeit.workbench.options import Traffic
from placeit.workbench.prepared import Prepared

__all__ = ["Optimized", "Spent", "Unplanned"]

_RUNS, _REQUESTS = 30, 100  # of a recording: single runs, and requests with several in flight
_SHOWN = 10  # maximum number of candidates in a repr


@dataclass(frozen=True, eq=False)
class Unplanned:
    """A candidate without a plan: its placer found no placement, or its placement could not be planned.

    Attributes:
        name: unique among the candidates.
        placer: the placer that was to propose it.
        failed: why the placer gave no placement.
    """

    name: str
    placer: str
    failed: str


@dataclass(frozen=True, eq=False)
class Spent:
    """Time of a step of the search or of a placer, with the placer's proposals.

    Attributes:
        what: the step, or the placer's name.
        placer: whether it is a placer.
        seconds: seconds of this item alone; time inside another item counts for the inner one only.
        proposed: number of proposed placements; 0 for a step, which has none of the following.
        new: number of them that were not candidates before.
        simulated_value: their lowest objective as simulated when they were proposed; None if none was simulated.
        measured_value: their lowest measured objective, comparable across races; None if none was measured.
        role: ``answer`` if the answer is among them; ``start`` if the search for the answer started from one of them; else
            None. A single device does not count, since it needs no placer.
        note: further information; None for nothing.
    """

    what: str
    placer: bool
    seconds: float
    proposed: int = 0
    new: int = 0
    simulated_value: float | None = None
    measured_value: float | None = None
    role: Literal["answer", "start"] | None = None
    note: str | None = None


@dataclass(frozen=True, eq=False)
class Optimized(Drawn):
    """Result of :func:`optimize`; a context manager that closes the executor that :meth:`run` has opened.

    Attributes:
        model: path of the model.
        ops: ops of the task graph.
        edges: its edges.
        groups: groups that were placed.
        objective: the objective that was minimised.
        candidates: candidates of the deciding race, then other measured ones by race, the latest first, then the rest; best
            first in each part. The ones that failed come last.
        races: in the order in which they were run.
        unplanned: candidates for which no plan could be made.
        precisions: single devices in another precision, each beside the same device in the requested one; empty unless this
            comparison was requested.
        without_precisions: single devices that have no other precision, and why, a sentence each.
        references: OpenVINO's own ways to run the model on these devices (:mod:`placeit.optimizer.references`), beside the
            answer.
        chosen: the answer. A placement over several devices is chosen only if a separate race showed it to be better by the
            objective than the best single device; if it is not better, that happens in 2.5 % of all decisions at most.
        best_single: the best whole model on one device, None if no device can run it whole.
        speedup: time of the best single device over the time of the chosen one, with its interval; None if not measured.
        reason: why the chosen one was chosen, in a sentence.
        bound_s: simulated lower bound of any placement: critical path and work over devices, without any cost of cutting;
            NaN if the budget was too short to profile, and for throughput.
        service: capacity and load of the chosen one, for throughput; None for other objectives.
        simulator_error: ``mape``, ``pearson`` and ``spearman`` of the simulator on the measured candidates, each None where
            it is not defined, correlations also below five candidates; None if nothing was measured.
        asked_s: budget in seconds.
        spent_s: seconds that the whole search took.
        spending: steps and placers that ``spent_s`` went into; their seconds add up to it.
        compiling: programs that were compiled, by kind of device (:class:`placeit.runtime.compiling.Compiled`).
        least_s: approximate seconds that comparing placements over several devices takes at least; None if nothing was to be
            run.
        interrupted: whether Ctrl-C ended the search early.
        cluster: the devices.
        pins: device names by op names or globs of them that held for every candidate.
        memory: limits of the bytes of weights, by device that has a limit.
        profiled: when the costs were measured, and how busy the machine was; None if they were not measured.
        conditions: precision and other conditions that the placement was found for.
        energy: energy meters of the devices; if they are complete, joules were measured by them. None unless energy is the
            objective or a front was requested.
        pareto: the front of latency and energy, the fastest first (:mod:`placeit.optimizer.pareto`); None if it was not
            requested.
        curves: for each placer that learned from runs: the objective of each placement that it measured, in that order.
        story: the events of the search (:mod:`placeit.optimizer.story`).
    """

    model: str
    ops: int
    edges: int
    groups: int
    objective: Objective
    candidates: tuple[Candidate, ...]
    races: tuple[RaceResult, ...]
    unplanned: tuple[Unplanned, ...]
    precisions: tuple[Beside, ...]
    without_precisions: tuple[str, ...]
    references: tuple[Beside, ...]
    chosen: Candidate
    best_single: Candidate | None
    speedup: Ratio | None
    reason: str
    bound_s: float
    service: Service | None
    simulator_error: Mapping[str, float | None] | None
    asked_s: float
    spent_s: float
    spending: tuple[Spent, ...]
    compiling: Mapping[str, Compiled]
    least_s: float | None
    interrupted: bool
    cluster: Cluster
    pins: Mapping[str, str]
    memory: Mapping[str, float]
    profiled: Profiled | None
    conditions: Conditions
    energy: EnergyMeters | None
    pareto: tuple[Point, ...] | None
    curves: Mapping[str, Sequence[float]]
    story: tuple[Event, ...]
    _model: Model = field(repr=False)
    _again: Callable[[], Workbench] = field(repr=False)
    _execution: Execution = field(repr=False)

    def __repr__(self) -> str:
        shown = [self.chosen, *(one for one in self.candidates if one.name != self.chosen.name)]
        graph, devices = f"{self.ops} ops in {self.groups} groups", ", ".join(self.cluster.names)
        lines = [f"<Optimized {self.model}: {graph} on {devices}, objective {self.objective.name}"]
        lines += [f"  {one!r}" for one in shown[:_SHOWN]]
        if len(shown) > _SHOWN:
            lines.append(f"  and {len(shown) - _SHOWN} more in .candidates")
        return "\n".join([*lines, f"  chosen: {self.chosen.name}: {self.reason}>"])

    @property
    def verdict(self) -> str:
        """The gain of the answer over one device, or over other runtimes on it, in a sentence that other people understand."""
        chosen, best = self.chosen, self.best_single
        if chosen.measured is None:
            return "Nothing was measured, so a gain is not known."
        if self.speedup is not None and chosen is not best and best is not None:
            return f"You gain {_factor(self.speedup)} over {best.name}, the best single device."
        sentences = [f"Keep what you have if {chosen.name} runs the whole model: no other way was measured to be better."]
        for other in (one.name for one in self.candidates if one.plain and one is not chosen):
            both = [race.measured for race in self.races if {chosen.name, other} <= race.measured.keys()]
            ratio = compared(both[-1][other], both[-1][chosen.name]) if both else None
            if ratio is not None and ratio.ci_low > 1:
                sentences.append(f"In a race with {other}, you gain {_factor(ratio)} by it.")
        return " ".join(sentences)

    @property
    def compiling_s(self) -> float:
        """Seconds of :attr:`spent_s` in which programs were compiled, or loaded from disk."""
        return sum(one.seconds for one in self.compiling.values())

    @property
    def rate(self) -> float | None:
        """Requests per second at which latency was measured; None if each run started when the previous one had ended."""
        return self.objective.rate

    @property
    def placement(self) -> Placement:
        """Device and segment of every op, with the conditions; for throughput there may be replicas."""
        return replace(self.chosen.placement, conditions=self.conditions)

    def speedup_over(self, other: Candidate, candidate: Candidate) -> Ratio | None:
        """Return the time of ``other`` over the time of ``candidate``, in the last race of ``candidate``.

        The ratio is paired by round and has an interval. None if ``other`` did not take part in that race: times of different
        races do not compare.
        """
        if candidate.race is None:
            return None
        return compared(self.races[candidate.race].measured.get(other.name), candidate.measured)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, as ``placeit optimize --json`` prints it."""
        return jsonable_dict(
            {
                "model": self.model,
                "graph": {"ops": self.ops, "edges": self.edges, "groups": self.groups},
                "objective": self.objective.name,
                "objective_unit": self.objective.unit,
                "chosen": self.chosen.to_dict(),
                "candidates": [candidate.to_dict() for candidate in self.candidates],
                "rate": self.rate,
                "races": [
                    {
                        "what": race.what,
                        "rounds": race.rounds,
                        "disturbed": race.disturbed,
                        "left_out": race.left_out,
                        "candidates": list(race.measured),
                    }
                    for race in self.races
                ],
                "unplanned": [vars(one) for one in self.unplanned],
                "precisions": [one.to_dict(of=one.row.of) for one in self.precisions],
                "without_precisions": list(self.without_precisions),
                "references": [
                    one.to_dict(target=None if one.row.reference is None else one.row.reference.target, used=list(one.row.used))
                    for one in self.references
                ],
                "best_single": None if self.best_single is None else self.best_single.to_dict(),
                "speedup": None if self.speedup is None else self.speedup.ratio,
                "speedup_ci": None if self.speedup is None else interval(self.speedup),
                "reason": self.reason,
                "bound_s": self.bound_s,
                "throughput": None if self.service is None else self.service.to_dict(),
                "energy": None if self.energy is None else self.energy.to_dict(),
                "pareto": None if self.pareto is None else [one.to_dict() for one in self.pareto],
                "output_error": (self.chosen.output_error or NOT_RUN).to_dict(),
                "simulator": {name: (self.simulator_error or {}).get(name) for name in ("mape", "pearson", "spearman")},
                "budget": {
                    "asked_s": self.asked_s,
                    "spent_s": self.spent_s,
                    "compiling_s": self.compiling_s,
                    "least_s": self.least_s,
                },
                "compiling": {kind: vars(one) for kind, one in self.compiling.items()},
                "spending": [vars(one) for one in self.spending],
                "interrupted": self.interrupted,
                "pins": dict(self.pins),
                "memory_limits": dict(self.memory),
                "profiled": None if self.profiled is None else self.profiled.to_dict(),
                "emulated": self.cluster.emulated_names,
                "verdict": self.verdict,
            }
        )

    def save(self, path: str | Path) -> None:
        """Write the chosen placement with :meth:`to_dict`; :meth:`placeit.Placement.load` reads both. Raises FileError."""
        replace(self.placement, result=self.to_dict()).save(path)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise UsageError, since its executor cannot be copied or pickled."""
        raise UsageError(
            "The result of a search cannot be copied or pickled: save its placement (found.save('p.json')), or pickle its "
            "module (found.module)."
        )

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run the model once with the chosen placement, and return its outputs by name.

        The first call compiles and opens an executor. It stays open until :meth:`close`, or until this object and its
        :attr:`module` are deleted.

        Args:
            inputs: arrays by name.

        Raises:
            UsageError: an input is missing, unknown, or of the wrong shape or type.
            DeviceError: a device exists in simulation only.
            ExecutionError: a device failed.
        """
        return self._execution.run(inputs)

    @functools.cached_property
    def module(self) -> Callable[..., Any]:
        """A ``torch.nn.Module`` that runs the chosen placement, with the arguments and results of the placed module.

        Its other attributes are the placed module's. Calls open an executor as :meth:`run` does.

        Raises:
            UsageError: the model is not a PyTorch module or program.
        """
        if not isinstance(self._model, IsCalled):
            raise UsageError(f"{self.model} is not a PyTorch module, and has no signature: call run(), with arrays by name.")
        placement = replace(self.placement, replicas=(), serving=None)
        return placed_module(self._model, self.cluster, placement, self._execution)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call :attr:`module`."""
        return self.module(*args, **kwargs)

    @functools.cached_property
    def recorded(self) -> Recording:
        """Recording of the answer: of a few runs, made on first access, or of its plan if its devices are only described.

        Raises:
            ExecutionError: a device failed.
        """
        from placeit.workbench import recording_runs, running, serving

        report: RunReport | RateReport
        with self._again() as session:
            first, *others = (Prepared.of(session, one) for one in self.placement.every)
            if not first.home.cluster.executable:
                return recording_runs.of_plan([first, *others])
            try:
                if others:
                    traffic = Traffic(requests=_REQUESTS)
                    report = serving.measure([first, *others], traffic, warmup=WARMUP, inputs=None)
                else:
                    report = running.measure(first, runs=_RUNS, duration=None, warmup=WARMUP, inputs=None)
                return recording_runs.of_run(first.home, report)
            except KeyboardInterrupt:
                session.hurry()
                raise

    @functools.cached_property
    def described(self) -> Recording:
        """Recording of the model and the devices alone, without a run."""
        from placeit.workbench.recording_runs import of_model

        with self._again() as session:
            return of_model(session)

    def close(self) -> None:
        """Close the executor that :meth:`run` has opened; a later run opens it again."""
        self._execution.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _factor(ratio: Ratio) -> str:
    ends = f" (95 % interval {ratio.ci_low:.2f} to {ratio.ci_high:.2f})" if math.isfinite(ratio.ci_high) else ""
    return f"a factor of {ratio.ratio:.2f}{ends}"
