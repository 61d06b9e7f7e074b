"""Problems to learn from and to evaluate on: files in a folder, generated data sets, or an endless stream of new problems."""

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
"""Default number of problems that are held out; at most a fifth of the files in a folder."""

_MAX_HELD_OUT = 10_000


@dataclass(frozen=True, eq=False)
class Source:
    """A source of problems.

    Attributes:
        draw: function by which a stage of training draws problems.
        held_out: problems for evaluation, which are never drawn.
        size: number of different problems to draw from; None if each problem is new.
        unit: unit of costs, in words.
    """

    draw: Draw
    held_out: Sequence[ProblemInstance]
    size: int | None
    unit: str = "critical path"


def simulated(problem: Problem) -> ProblemInstance:
    """Return a problem whose cost is the simulated makespan, in multiples of the critical path (the schedule length ratio).

    Raises:
        ProblemError: the critical path takes no time, so costs cannot be compared between problems.
    """
    if not problem.critical_path > 0:
        raise ProblemError(
            f"A problem of {len(problem)} ops takes no time on its fastest devices, so nothing can be learned from it. Leave "
            "it out."
        )
    return ProblemInstance(problem, SimulatedCost(problem, rules=GIPH_RULES), problem.critical_path)


def served(problem: Problem) -> ProblemInstance:
    """Return a problem whose cost is the seconds per request, in multiples of their lower bound."""
    return ProblemInstance(problem, ThroughputCost(problem), min_seconds(problem))


def draw_from(instances: Sequence[ProblemInstance]) -> Draw:
    """Return a function that draws from the given instances, each at most once per update if there are enough."""

    def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:  # noqa: ARG001
        rounds = [rng.permutation(len(instances)) for _ in range(0, count, len(instances))]
        return [instances[i] for i in np.concatenate(rounds)[:count].tolist()]

    return draw


def find_source(name: str, *, seed: int = 0, held_out: int | None = None) -> Source:
    """Return a source of problems by name.

    Args:
        name: one of :func:`placeit.learning.workloads.registry.dataset_names`, such as ``random`` for new problems at every
            update, ``any`` for new problems of every kind, with costs in multiples of HEFT's makespan, or ``multi`` for one of
            GiPH's data sets; else a folder of problems as JSON (:meth:`placeit.core.problem.Problem.to_json`).
        seed: seed of generated problems, and of the choice of files that are held out.
        held_out: number of problems to hold out, zero included; None for the default.

    Raises:
        UsageError: the source does not exist, is not for training, or has too few problems.
        ProblemError, InfeasibleError, FileError: a file does not hold a valid problem.
    """
    if held_out is not None and held_out > _MAX_HELD_OUT:
        raise UsageError(f"At most {_MAX_HELD_OUT:,} problems can be held out; more were asked for.")
    if name not in dataset_names():
        if not Path(name).exists() and "/" not in name:
            raise UsageError(
                f"'{name}' is neither a folder of problems nor a set of them; the sets are {', '.join(dataset_names())}"
                f"{nearest(name, dataset_names())}."
            )
        instances, evaluated = _split(Path(name), seed, held_out)
        return Source(draw_from(instances), evaluated, len(instances))
    dataset, count = find_dataset(name), HELD_OUT if held_out is None else held_out
    if not dataset.parts and dataset.draw is None:
        raise UsageError(f"The problems '{name}' are not for training: they neither have parts nor are drawn one by one.")
    instance_of = _relative_to_heft if dataset.mixed else served if dataset.throughput else simulated
    unit = "HEFT's makespan" if dataset.mixed else "least seconds per request" if dataset.throughput else "critical path"
    part: Split | None = "train" if dataset.parts else None  # the test part is never used, not even to select weights
    cases = dataset.cases(part, seed)
    if dataset.draw is not None:
        evaluated = [instance_of(problem) for problem in some_problems(cases, name, part, count)]
        return Source(_draw_new(dataset.draw, instance_of, grow=dataset.mixed), evaluated, None, unit)
    instances = [instance_of(problem) for problem in some_problems(cases, name, part, dataset.size)]
    if count >= len(instances):
        raise UsageError(f"There are {len(instances)} problems of kind '{name}' to train with; hold out fewer than {count}.")
    learned = instances[: len(instances) - count]
    return Source(draw_from(learned), instances[len(learned) :], len(learned), unit)


def _draw_new(
    make: Callable[[np.random.Generator, int], Problem], instance_of: Callable[[Problem], ProblemInstance], *, grow: bool
) -> Draw:
    """Return a function that generates new problems; with ``grow``, their size increases during the first half of a stage."""

    def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:
        max_tasks = round(30 + (MAX_TASKS - 30) * min(1.0, 2 * progress)) if grow else MAX_TASKS
        return [instance_of(make(rng, max_tasks)) for _ in range(count)]

    return draw


def _relative_to_heft(problem: Problem) -> ProblemInstance:
    """Return a problem whose cost is the simulated makespan in multiples of HEFT's.

    It suits problems in which transfers dominate, where schedule length ratios say little.
    """
    cost = SimulatedCost(problem, rules=GIPH_RULES)
    return ProblemInstance(problem, cost, float(cost(Heft().plan(problem).placement[None])[0]))


def read_folder(folder: Path) -> list[ProblemInstance]:
    """Return the problems of a folder (``*.json``, as ``placeit generate`` writes them), in the order of their file names.

    Raises:
        UsageError: the folder does not exist, or it has no problems.
        ProblemError, InfeasibleError, FileError: a file does not hold a valid problem.
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
    """Return the problems of a folder to learn from, and the problems that are held out."""
    instances = read_folder(folder)
    count = min(HELD_OUT, max(1, len(instances) // 5)) if held_out is None else held_out
    if len(instances) <= count:
        raise UsageError(
            f"The folder {folder} has {len(instances)} problems (*.json); to hold out {count} of them for evaluation, it needs "
            f"{count + 1} at least."
        )
    order = np.random.default_rng(seed).permutation(len(instances)).tolist()
    return [instances[i] for i in sorted(order[count:])], [instances[i] for i in sorted(order[:count])]
