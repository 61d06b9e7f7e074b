"""Run placers on PlaceBench, and write, read and check submissions, which are placements with their values."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from placeit.bench.problems import IN_FLIGHT, VERSION, VERSIONS, BenchProblem, known, load, names, stated
from placeit.core import clock
from placeit.core.errors import FileError, PlaceitError, PlacementError, UsageError
from placeit.core.files import write_text
from placeit.core.nearest import nearest
from placeit.core.records import RecordError, read_json, record
from placeit.core.units import about_bytes
from placeit.placers.asking import ask, check_able
from placeit.placers.base import Placer
from placeit.placers.registry import placers_by_name
from placeit.simulator.scheduler import EXECUTED_RULES, Rules
from placeit.testing import oracle

__all__ = ["Listed", "Solution", "Verdict", "best", "better", "check", "listed", "read", "run", "solutions", "write"]

_FORMAT = "placeit-bench"
_ROUNDING = 1e-9  # relative tolerance of stated values, for rounding by other programs


@dataclass(frozen=True)
class Solution:
    """A placement of a problem.

    Attributes:
        problem: name of the problem.
        placer: name of the placer, with its options, or of another program or a person.
        value: its value in seconds; ``inf`` without a placement.
        seconds: seconds to find the placement.
        placement: the device of each op, by name, in the order of the problem's ops; empty if the placer gave none.
        gap: share by which the value is above the lower bound; None without a placement, or if it was read from a file.
        failure: reason why there is no placement; None if there is one.
    """

    problem: str
    placer: str
    value: float
    seconds: float
    placement: tuple[str, ...]
    gap: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Listed:
    """A problem, its lower bound, and the best known placement. Times are in seconds.

    Attributes:
        problem: name of the problem.
        bound: lower bound of all values.
        best: best known value.
        gap: share by which the best known value is above the bound.
        placer: placer or program that found it.
        seconds: seconds to find it.
    """

    problem: str
    bound: float
    best: float | None
    gap: float | None
    placer: str | None
    seconds: float | None


@dataclass(frozen=True)
class Verdict:
    """The check of one placement of a submission. Values are in seconds.

    Attributes:
        problem: name of the problem.
        placer: placer or program that found it.
        stated: value that the submission states.
        value: true value, on which two implementations agree; None if the placement is invalid.
        best: best known value; None if there is no known value.
        fault: error in the placement or in its value; None if it is correct.
    """

    problem: str
    placer: str
    stated: float
    value: float | None
    best: float | None
    fault: str | None


def run(
    problems: str | Sequence[str | BenchProblem],
    placers: Sequence[str | Placer],
    seconds: float,
    *,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> list[Solution]:
    """Run each placer on each problem, and evaluate its placements.

    If a placer fails or returns no valid placement, its solution has no placement, and the others continue.

    Args:
        problems: problems, or names of problems of PlaceBench; or a pattern that names match.
        placers: placers, or their names with options, as in ``annealing:evaluations=1000000``.
        seconds: time limit for each placement. A placer that ignores it is stopped a second later.
        seed: seed of the placers.
        progress: receives the current step and the completed share of all work.

    Raises:
        UsageError: a problem or a placer does not exist, or a package that a placer needs is not installed.
    """
    return [one for found in solutions(problems, placers, seconds, seed=seed, progress=progress) for one in found]


def solutions(
    problems: str | Sequence[str | BenchProblem],
    placers: Sequence[str | Placer],
    seconds: float,
    *,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> Iterator[list[Solution]]:
    """Yield the solutions of each problem as soon as all placers have run on it; see :func:`run`."""
    asked, every = placers_by_name(placers), names(problems) if isinstance(problems, str) else problems
    for placer_name, placer in asked.items():
        check_able(placer_name, placer, 2)
    for number, given in enumerate(every):
        problem = load(given) if isinstance(given, str) else given
        found = list[Solution]()
        for placer_name, placer in asked.items():
            if progress is not None:
                progress(f"{problem.name} by {placer_name}", (number + len(found) / len(asked)) / len(every))
            found.append(_solution(problem, placer_name, placer, seconds, seed))
        yield found


def _solution(problem: BenchProblem, placer_name: str, placer: Placer, seconds: float, seed: int) -> Solution:
    cost, begin = problem.cost(), clock.now()
    try:
        place = ask(placer, problem.problem, cost, seed=seed, deadline=begin + seconds)
    except PlaceitError as error:
        return Solution(problem.name, placer_name, math.inf, clock.now() - begin, (), failure=str(error).rstrip("."))
    taken, value, bound = clock.now() - begin, problem.value(place), _bound(problem)
    devices = tuple(problem.problem.device_names[d] for d in place.tolist())
    return Solution(problem.name, placer_name, value, taken, devices, value / bound - 1 if bound else None)


def write(path: str | Path, solutions: Iterable[Solution], rules: Rules = EXECUTED_RULES) -> None:
    """Write a submission with the best placement of each problem. ``rules`` are the rules of the problems."""
    lines = [
        f"{json.dumps(name)}: "
        + json.dumps({"value": one.value, "placer": one.placer, "seconds": round(one.seconds, 3), "placement": one.placement})
        for name, one in better({}, solutions).items()
        if math.isfinite(one.value)
    ]
    head = json.dumps({"format": _FORMAT, "version": VERSION, "rules": stated(rules)})
    write_text(Path(path), head[:-1] + ', "problems": {\n' + ",\n".join(lines) + "\n}}\n")


def read(path: str | Path, rules: Rules = EXECUTED_RULES, *, versions: Sequence[int] = VERSIONS) -> dict[str, Solution]:
    """Read the placements of a submission by problem, without checking them.

    Args:
        path: the submission.
        rules: the rules of the problems.
        versions: accepted versions of PlaceBench.

    Raises:
        FileError: the file cannot be read, is no submission, is of another version, or states other rules.
    """
    return _read(path, rules, versions)[1]


def _read(path: str | Path, rules: Rules, versions: Sequence[int] = VERSIONS) -> tuple[int, dict[str, Solution]]:
    """Read the version and the placements of a submission, as :func:`read` does."""
    try:
        found = record(_File, read_json(Path(path), _FORMAT, versions))
    except RecordError as error:
        raise FileError(f"{path} is not a submission to PlaceBench: {error}.") from None
    wanted, of = stated(rules), f"PlaceBench {found.version}" if rules == EXECUTED_RULES else "the problems"
    for rule in {**found.rules, **wanted}:
        is_now, has_to_be = found.rules.get(rule, "absent"), wanted.get(rule, "absent")
        if is_now != has_to_be:
            raise FileError(
                f"{path} was made by other rules than {of}: '{rule}' is {is_now}, and has to be {has_to_be}. "
                "Value its placements by these rules."
            )
    solutions = {n: Solution(n, one.placer, one.value, one.seconds, one.placement) for n, one in found.problems.items()}
    return found.version, solutions


def check(path: str | Path, problems: Mapping[str, BenchProblem] | None = None) -> list[Verdict]:
    """Check all placements of a submission with the simulator and with :mod:`placeit.testing.oracle`.

    A submission to an earlier version is checked with the problems of that version.

    Args:
        path: the submission.
        problems: problems that :func:`placeit.bench.read_problems` has read; None for PlaceBench.

    Raises:
        FileError: the file cannot be read, is no submission, is of a newer version, states other rules, or has no placements.
    """
    rules = EXECUTED_RULES if problems is None else next(iter(problems.values())).rules
    version, solutions = _read(path, rules)
    if not solutions:
        raise FileError(f"{path} has no placements, so there is nothing to check.")
    return [_checked(one, problems, version) for one in solutions.values()]


def better(known: Mapping[str, Solution], others: Iterable[Solution]) -> dict[str, Solution]:
    """Return the best solution of each problem. If two have the same value, known solutions are preferred."""
    found = dict(known)
    for one in others:
        if one.problem not in found or one.value < found[one.problem].value:
            found[one.problem] = one
    return found


@functools.cache
def best() -> dict[str, Solution]:
    """Return the best known placements of the current version, by problem."""
    with resources.as_file(resources.files("placeit.bench").joinpath("best.json")) as path:
        return read(path)


def listed(pattern: str = "*") -> list[Listed]:
    """Return the problems that match a pattern. Raises UsageError if none does."""
    found = []
    for name in names(pattern):
        bound, one = float(known()[name]["bound"]), best()[name]
        found.append(Listed(name, bound, one.value, one.value / bound - 1, one.placer, one.seconds))
    return found


def _bound(problem: BenchProblem) -> float:
    """Return the published bound of a problem of PlaceBench; compute the bound of any other problem."""
    published = known().get(problem.name)
    return problem.bound() if published is None else float(published["bound"])


@dataclass(frozen=True)
class _Entry:
    value: float
    placer: str
    seconds: float
    placement: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    version: int
    rules: Mapping[str, str | int]
    problems: Mapping[str, _Entry]


def _checked(one: Solution, problems: Mapping[str, BenchProblem] | None, version: int) -> Verdict:
    value, best_known, fault = None, None, None
    try:
        if problems is not None and one.problem not in problems:
            raise UsageError(f"There is no problem '{one.problem}' in the file{nearest(one.problem, problems)}.")
        published = known(version).get(one.problem) if problems is None else None
        if published is not None and published == known().get(one.problem):
            best_known = best()[one.problem].value
        problem = load(one.problem, version) if problems is None else problems[one.problem]
        value = _valued(problem, one.placement)
        if abs(value - one.value) > _ROUNDING * value:
            fault = f"its value is {value!r} {problem.unit}".rstrip() + f", and the submission states {one.value!r}"
    except (PlacementError, UsageError) as error:
        fault = str(error).rstrip(".")
    return Verdict(one.problem, one.placer, one.value, value, best_known, fault)


def _valued(problem: BenchProblem, placement: Sequence[str]) -> float:
    """Return the value of a placement, computed by two implementations.

    Raises:
        PlacementError: a wrong number of ops, an unknown device, or weights that exceed the memory of a device.
        PlaceitError: the implementations disagree.
    """
    p = problem.problem
    if len(placement) != len(p):
        raise PlacementError(f"it places {len(placement)} ops, and the problem has {len(p)}")
    number = {name: d for d, name in enumerate(p.device_names)}
    for op, name in zip(p.op_names, placement, strict=True):
        if name not in number:
            raise PlacementError(f"op '{op}' is on the device '{name}', which the problem does not have{nearest(name, number)}")
    place = [number[name] for name in placement]
    for name, used, memory in zip(p.device_names, oracle.held(p, place), p.memory.tolist(), strict=True):
        if used > memory:
            raise PlacementError(f"{name} holds {about_bytes(memory)}, and the weights placed there are {about_bytes(used)}")
    if problem.objective == "bottleneck":
        second = oracle.busiest(p, place)
    elif problem.objective == "throughput":
        second = oracle.seconds_per_request(p, place, IN_FLIGHT)
    else:
        second = oracle.makespan(p, place, problem.rules) + float(p.host[place[0] if len({*place}) == 1 else -1])
    value = problem.value(np.array(place, np.int32))
    if abs(value - second) > _ROUNDING * value:
        raise PlaceitError(
            f"Two implementations of the rules value a placement of {problem.name} differently: {value!r} s and {second!r} s. "
            "Please report it, with the file."
        )
    return value
