"""Relocation cost against pipeline frequency (Fig. 11, left), in the case study.

A vehicle moves on for 10 s. Tasks stay where they are if their device is still in reach; new tasks, and tasks whose device is
gone, begin on a random one. From there GiPH searches for 2 |V| steps, and of the placements on its way the one with the least
makespan plus relocation cost over frequency is chosen. The relocation cost is the time to migrate data and to start up
(Table 2). HEFT places anew, at any relocation cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab
from benchmarks.papers.giph.jobs import Job, Outcome, Setup, Training, load_policy, starts
from benchmarks.papers.giph.policies import search
from benchmarks.papers.giph.problems import instance
from placeit.learning.workloads.churn import carry_placement
from placeit.learning.workloads.datasets import sensor_fusion_cases
from placeit.learning.workloads.sensor_fusion import SensorFusionCase
from placeit.placers.heft import Heft
from placeit.simulator.cost_functions import AmortisedCost, RelocationCost
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import SimulatedCost

__all__ = ["FREQUENCIES_HZ", "Relocations", "jobs", "tell"]

FREQUENCIES_HZ = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_INTERVAL_S = 10.0


@dataclass(frozen=True)
class Relocations(Job):
    """Costs of placing anew after vehicles moved on: ``float64[cases, frequencies, 3]`` for ``giph`` and ``heft``.

    The three are the relocation cost in seconds, the number of tasks that moved or started, and the makespan in seconds.
    """

    policy: Training

    @property
    def name(self) -> str:
        return f"relocations-{self.policy.name}"

    @property
    def needs(self) -> Sequence[Job]:
        return [self.policy]

    def run(self, setup: Setup) -> Outcome:
        rng = np.random.default_rng([setup.seed, 11])
        pairs = _successions(setup)
        policy = load_policy(self.policy, setup)
        problems = [before.problem for before, _ in pairs]
        placed = []
        for problem, path in zip(problems, search(policy, problems, starts(problems, setup.seed), rng), strict=True):
            placed.append(path[int(np.argmin(instance(problem).cost(path)))])
        begin = [
            carry_placement(was, before.problem, after.problem, rng) for was, (before, after) in zip(placed, pairs, strict=True)
        ]
        paths = search(policy, [after.problem for _, after in pairs], begin, rng)
        giph = np.empty((len(pairs), len(FREQUENCIES_HZ), 3))
        heft = np.empty_like(giph)
        for i, ((before, after), was, path) in enumerate(zip(pairs, placed, paths, strict=True)):
            now = _where(before, after, was)
            makespan = SimulatedCost(after.problem, rules=GIPH_RULES)
            startup = np.where(np.isfinite(after.startup_s), after.startup_s, 0.0)
            relocation = RelocationCost(after.problem, now, startup, after.migration_bytes)
            anew = Heft().plan(after.problem).placement
            for f, frequency in enumerate(FREQUENCIES_HZ):
                best = path[int(np.argmin(AmortisedCost(makespan, relocation, frequency_hz=frequency)(path)))]
                for into, chosen in ((giph, best), (heft, anew)):
                    into[i, f] = relocation(chosen[None])[0], (chosen != now).sum(), makespan(chosen[None])[0]
        return {"giph": giph, "heft": heft}


def _successions(setup: Setup) -> list[tuple[SensorFusionCase, SensorFusionCase]]:
    """Return pairs of test cases of the same vehicle, 10 s apart."""
    by_vehicle: dict[int, dict[float, SensorFusionCase]] = defaultdict(dict)
    found = []
    for case in sensor_fusion_cases("test", setup.seed):
        times = by_vehicle[case.sighting.vehicle]
        at = case.sighting.time_s
        times[at] = case
        if at - _INTERVAL_S in times:
            found.append((times[at - _INTERVAL_S], case))
        elif at + _INTERVAL_S in times:
            found.append((case, times[at + _INTERVAL_S]))
        if len(found) == setup.sizes.relocations:
            break
    return found


def _where(before: SensorFusionCase, after: SensorFusionCase, placement: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the device of each task of ``after`` in ``before``'s placement; -1 if the task is new or the device is gone."""
    devices = {name: d for d, name in enumerate(after.problem.device_names)}
    was = {
        name: devices.get(before.problem.device_names[d], -1)
        for name, d in zip(before.problem.op_names, placement.tolist(), strict=True)
    }
    return np.array([was.get(name, -1) for name in after.problem.op_names], np.int32)


_JOB = Relocations(Training("giph", "sensor-fusion"))


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [_JOB]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    means = {name: found.mean(axis=0) for name, found in lab[_JOB].items()}
    for f, frequency in enumerate(FREQUENCIES_HZ):
        columns = {}
        for name, mean in means.items():
            relocation, moved, makespan = mean[f]
            columns[f"{name}_relocation_s"], columns[f"{name}_tasks_moved"] = relocation, moved
            columns[f"{name}_makespan_ms"] = 1e3 * makespan
            columns[f"{name}_per_run_ms"] = 1e3 * (makespan + relocation / frequency)
        report.row(part="relocation", frequency_hz=frequency, cases=len(lab[_JOB]["giph"]), **columns)
    series = {name: (FREQUENCIES_HZ, mean[:, 0]) for name, mean in means.items()}
    axes = ("pipeline frequency, Hz", "mean relocation cost, s")
    figures.lines("relocation", "relocation", "", axes, series, log="x", marked=True)
    rises = means["giph"][-1, 0] / means["giph"][0, 0]
    report.claim(f"relocation cost at {FREQUENCIES_HZ[-1]:g} Hz over that at {FREQUENCIES_HZ[0]:g} Hz", rises, "", at_least=1.0)
