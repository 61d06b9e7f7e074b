"""Options of a search, in groups, and the goal that they define."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.units import parse_duration
from placeit.optimizer.portfolio import DEFAULT_PLACERS
from placeit.optimizer.search import Explores
from placeit.optimizer.starts import Start, read_starts
from placeit.placers.asking import check_able
from placeit.placers.base import Placer
from placeit.placers.registry import placers_by_name
from placeit.runtime.calls import check_requests
from placeit.simulator.load import check_rate
from placeit.simulator.objectives.energy import Energy
from placeit.simulator.objectives.registry import get_objective, objective_kind

__all__ = ["Budget", "Candidates", "Goal"]


@dataclass(frozen=True)
class Budget:
    """Time limit of a search, and the file of measurements that it resumes from.

    Attributes:
        seconds: time limit, profiling and compiling included. A search takes at most 1.2 times that, plus half a second, plus
            loading, and for each device compiling the whole model and one run of it. If that is too short to compare placements
            over several devices, a warning estimates how long that takes, and only the single devices are timed, as far as time
            allows. If no time is left to decide between a single device and a placement, the single device is the answer. The
            search ends earlier when it finds nothing new.
        resume: a file of measurements. If it exists, its measurements are taken over; new ones are added to it as they are
            made. A known placement is not measured again before the deciding races, which always run. None for a file in the
            folder of the cost cache, if there is one.

    Raises:
        UsageError: the seconds are not positive and finite.
    """

    seconds: float = 60.0
    resume: str | Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"The budget is {self.seconds:g} seconds; it must be positive and finite.")

    @classmethod
    def of(cls, budget: float | str | Budget) -> Budget:
        """Return the budget of a number of seconds, or of a text such as ``2m``. Raises UsageError."""
        if isinstance(budget, Budget):
            return budget
        return cls(parse_duration(budget) if isinstance(budget, str) else budget)


@dataclass(frozen=True)
class Candidates:
    """Candidates that a search compares.

    Attributes:
        placers: placers that propose placements, by name, with options if needed (``annealing:evaluations=100000``), or
            ``surrogate`` to learn from runs what to measure next; None for
            :data:`placeit.optimizer.portfolio.DEFAULT_PLACERS`. A placer may also be an object, named after its class.
        start: placements of the model on the devices, or files of them; they are candidates, and the search starts from them.
        plain: whether plain devices are candidates: the whole CPU where devices are parts of it, as one would use it without
            placeit (:func:`placeit.devices.plain.plain_devices`). False where core sets stand for devices that share nothing.
        compare_precisions: whether to measure single devices in another precision as well: bfloat16 or float16 where the device
            has it, float32 if another precision was requested. They cannot be chosen.
        pareto: whether to search for the front of latency and energy as well, in 0.3 of the budget (``Optimized.pareto``). The
            answer is the best placement by the objective nevertheless.
    """

    placers: Sequence[str | Placer] | str | None = None
    start: Start | Sequence[Start] | None = None
    plain: bool = True
    compare_precisions: bool = False
    pareto: bool = False


class Goal:
    """The checked options of a search. The arguments after the cluster are options of :func:`placeit.optimize`.

    Args:
        cluster: the devices.

    Attributes:
        begin: when the search was requested, by :func:`placeit.core.clock.now`; the budget counts from then.
        asked: names of the placers that propose placements, as the caller gave them.
        exploring: placers that choose which placements are measured, by name.
        names: names of all placers.
        placers: the placers, by these names.
        named: whether the caller named the placers; False for the default ones.
        starts: starting placements, by their names as candidates.
        energy: power model for the front of latency and energy; None if no front was requested.

    Raises:
        As :func:`placeit.optimize` does.
    """

    def __init__(
        self,
        cluster: Cluster,
        objective: str,
        budget: float | str | Budget,
        candidates: Candidates | Sequence[str | Placer],
        seed: int,
        rate: float | None,
        in_flight: int | None = None,
    ) -> None:
        kind = objective_kind(objective)
        if rate is not None:
            check_rate(rate)
            if not (kind.paced or kind.steady):
                raise UsageError(
                    f"A rate says which requests arrive, which the objective '{objective}' has no use for: leave it out."
                )
        self.budget = budget = Budget.of(budget)
        if seed < 0:
            raise UsageError(f"The seed is {seed}; it must not be negative.")
        self.begin = clock.now()
        candidates = candidates if isinstance(candidates, Candidates) else Candidates(candidates)
        self.candidates, self.seed, self.rate = candidates, seed, rate
        self.named = candidates.placers is not None
        placers = DEFAULT_PLACERS if candidates.placers is None else candidates.placers
        listed = [placers] if isinstance(placers, str) else placers
        self.placers = placers_by_name(listed)
        self.names = list(self.placers)
        self.exploring = {name: placer for name, placer in self.placers.items() if isinstance(placer, Explores)}
        self.asked = [name for name in self.names if name not in self.exploring]
        self.starts = read_starts(candidates.start)
        self.objective = get_objective(objective, cluster, rate=rate)
        if in_flight is not None:
            check_requests(in_flight)
            self.objective = self.objective.at_depth(in_flight)
        if candidates.pareto and self.objective.steady:
            raise UsageError(
                f"A front is of the latency and the energy of single requests, which the objective '{objective}' does not "
                "measure: choose another objective with it, such as latency or energy."
            )
        self.energy = Energy.of_cluster(cluster) if candidates.pareto else None
        for name, placer in self.placers.items() if self.named else ():  # default ones need nothing that may be missing
            check_able(name, placer, len(cluster))
