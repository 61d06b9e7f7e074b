"""Problems to learn from and to evaluate on: files in a folder, generated sets, or fresh ones without end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placeit.core.errors import ProblemError, UsageError
from placeit.core.nearest import nearest
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.training.stages import Draw
from placeit.learning.workloads.datasets import MAX_TASKS
from placeit.learning.workloads.export import INDEX
from placeit.learning.workloads.registry import Split, dataset_names, find_dataset, some_problems
from placeit.placers.heft import Heft
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput_bound import ThroughputCost, min_seconds

__all__ = ["HELD_OUT", "Source", "draw_from", "find_source", "read_folder", "served", "simulated"]

HELD_OUT = 32
"""Problems that are held out unless told otherwise; of the files in a folder, a fifth at most."""


_MAX_HELD_OUT = 10_000


@dataclass(frozen=True, eq=False)
class Source:
    """A source of problems.

    Attributes:
        draw: function by which a stage of training draws problems.
        held_out: problems for evaluation; none of them is drawn.
        size: number of different problems to draw from; None if fresh ones are made without end.
        unit: unit of costs, in words.
    """

    draw: Draw
    held_out: Sequence[ProblemInstance]
    size: int | None
    unit: str = "critical path"


def simulated(problem: Problem) -> ProblemInstance:
    """Return a problem with its simulated makespan, in multiples of its critical path (the schedule length ratio).

    Raises:
        ProblemError: nothing takes time, so costs cannot be compared between problems.
    """
    if not problem.critical_path > 0:
        raise ProblemError(
            f"A problem of {len(problem)} ops takes no time on its fastest devices, so nothing can be learned from it. Leave "
            "it out."
        )
    return ProblemInstance(problem, SimulatedCost(problem, rules=GIPH_RULES), problem.critical_path)


def served(problem: Problem) -> ProblemInstance:
    """Return a problem with its seconds per request, in multiples of their lower bound."""
    return ProblemInstance(problem, ThroughputCost(problem), min_seconds(problem))


def draw_from(instances: Sequence[ProblemInstance]) -> Draw:
    """Return a function that draws from given instances, each at most once per update if there are enough."""

    def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:  # noqa: ARG001
        rounds = [rng.permutation(len(instances)) for _ in range(0, count, len(instances))]
        return [instances[i] for i in np.concatenate(rounds)[:count].tolist()]

    return draw


def find_source(name: str, *, seed: int = 0, held_out: int | None = None) -> Source:
    """Return a source of problems whose cost is the simulated makespan.

    Args:
        name: one of :func:`placeit.learning.workloads.registry.dataset_names`, such as ``random`` for fresh problems at every
            update, ``any`` for fresh problems of every kind, in multiples of HEFT's makespan, or ``multi``, one of GiPH's sets;
            else a folder of problems as JSON (:meth:`placeit.core.problem.Problem.to_json`).
        seed: seed of generated problems, and of the choice of files that are held out.
        held_out: how many problems to hold out, zero included; None for the default.

    Raises:
        UsageError: no such source, one that is not for training, or one with too few problems.
        ProblemError, InfeasibleError, FileError: a file holds no problem.
    """
    if held_out is not None and held_out > _MAX_HELD_OUT:
        raise UsageError(f"At most {_MAX_HELD_OUT:,} problems can be held out; more were asked for.")
    if name not in dataset_names():
        if not Path(name).exists() and "/" not in name:
            raise UsageError(
                f"'{name}' is neither a folder of problems nor a set of them; the sets are {', '.join(dataset_names())}"
                f"{nearest(name, dataset_names())}."
            )
        instances, kept = _split(Path(name), seed, held_out)
        return Source(draw_from(instances), kept, len(instances))
    dataset, kept_out = find_dataset(name), HELD_OUT if held_out is None else held_out
    if not dataset.parts and dataset.draw is None:
        raise UsageError(f"The problems '{name}' are not for training: they neither have parts nor are drawn one by one.")
    priced = _against_heft if dataset.mixed else served if dataset.throughput else simulated
    unit = "HEFT's makespan" if dataset.mixed else "least seconds per request" if dataset.throughput else "critical path"
    part: Split | None = "train" if dataset.parts else None  # the other one is for tests: no weights are chosen by it
    cases = dataset.cases(part, seed)
    if dataset.draw is not None:
        kept = [priced(problem) for problem in some_problems(cases, name, part, kept_out)]
        return Source(_fresh(dataset.draw, priced, grow=dataset.mixed), kept, None, unit)
    every = [priced(problem) for problem in some_problems(cases, name, part, dataset.size)]
    if kept_out >= len(every):
        raise UsageError(f"There are {len(every)} problems of kind '{name}' to train with; hold out fewer than {kept_out}.")
    learned = every[: len(every) - kept_out]
    return Source(draw_from(learned), every[len(learned) :], len(learned), unit)


def _fresh(
    make: Callable[[np.random.Generator, int], Problem], priced: Callable[[Problem], ProblemInstance], *, grow: bool
) -> Draw:
    def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:
        most = round(30 + (MAX_TASKS - 30) * min(1.0, 2 * progress)) if grow else MAX_TASKS
        return [priced(make(rng, most)) for _ in range(count)]

    return draw


def _against_heft(problem: Problem) -> ProblemInstance:
    """Return a problem with its simulated makespan over HEFT's; where transfers dominate, schedule length ratios say little."""
    cost = SimulatedCost(problem, rules=GIPH_RULES)
    return ProblemInstance(problem, cost, float(cost(Heft().plan(problem).placement[None])[0]))


def read_folder(folder: Path) -> list[ProblemInstance]:
    """Return the problems of a folder (``*.json``, as ``placeit generate`` writes them), by name.

    Raises:
        UsageError: there is no such folder, or it has no problems.
        ProblemError, InfeasibleError, FileError: a file holds no problem.
    """
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {state}: name a folder of problems as JSON, such as 'placeit generate' writes.")
    instances = []
    for path in sorted(folder.glob("*.json")):
        if path.name == INDEX:
            continue
        problem = Problem.from_json(path)
        try:
            instances.append(simulated(problem))
        except ProblemError as error:
            raise ProblemError(f"{path}: {error}") from None
    if not instances:
        raise UsageError(f"The folder {folder} has no problems (*.json): 'placeit generate' writes some.")
    return instances


def _split(folder: Path, seed: int, held_out: int | None) -> tuple[list[ProblemInstance], list[ProblemInstance]]:
    instances = read_folder(folder)
    count = min(HELD_OUT, max(1, len(instances) // 5)) if held_out is None else held_out
    if len(instances) <= count:
        raise UsageError(
            f"The folder {folder} has {len(instances)} problems (*.json); to hold out {count} of them for evaluation, it needs "
            f"{count + 1} at least."
        )
    order = np.random.default_rng(seed).permutation(len(instances)).tolist()
    return [instances[i] for i in sorted(order[count:])], [instances[i] for i in sorted(order[:count])]
