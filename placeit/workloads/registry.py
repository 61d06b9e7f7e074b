"""Data sets of problems by name: those of placeit, and those that plug-ins declare as ``placeit.problems`` entry points."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.core.registry import entry_table, load_entry
from placeit.workloads.parameters import Choices

__all__ = ["GROUP", "Case", "Dataset", "Split", "dataset_names", "find_dataset", "some_problems"]

GROUP = "placeit.problems"
"""The entry-point group in which a plug-in names its sets of problems."""

Split: TypeAlias = Literal["train", "test"]

_BUILTIN = {
    "any": "placeit.workloads.mixture:ANY",
    "churn": "placeit.workloads.datasets:CHURN",
    "multi": "placeit.workloads.datasets:MULTI",
    "random": "placeit.workloads.datasets:RANDOM",
    "recurrent": "placeit.workloads.datasets:RECURRENT",
    "sensor-fusion": "placeit.workloads.datasets:SENSOR_FUSION",
    "single": "placeit.workloads.datasets:SINGLE",
    "streams": "placeit.workloads.stream_graphs:STREAMS",
}


@dataclass(frozen=True, eq=False)
class Case:
    """A problem and what it was generated from.

    Attributes:
        problem: the problem.
        parameters: what was drawn for it, as JSON can hold it.
    """

    problem: Problem
    parameters: Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Problems, as many as there are or without end, as ``placeit generate`` and ``placeit train`` take it by name.

    Attributes:
        cases: ``cases(split, seed)`` generates problems one by one; the same split and seed give the same ones in any process.
            ``split`` is ``train`` or ``test``, and None if there are no such parts. With usual values (below) it also takes
            ``graphs``, ``networks`` and ``max_tasks`` by name.
        parts: whether there are problems to train on and others to test on.
        size: how many to train on; None for all, which must end then.
        draw: ``draw(rng, max_tasks)`` makes a fresh problem, for training on problems that never come twice; None if it is
            trained on its parts. Without parts and this, it is not for training.
        mixed: whether problems are so different that a training starts with small ones, and measures costs in multiples of
            HEFT's makespan rather than of critical paths.
        throughput: whether costs of training are seconds per request, in multiples of the least that could be hoped for.
        graphs: values that parameters of task graphs are drawn from unless told otherwise; None if they cannot be chosen.
        networks: the same for device networks; None exactly if ``graphs`` is.
    """

    cases: Callable[..., Iterator[Case]]
    parts: bool = True
    size: int | None = None
    draw: Callable[[np.random.Generator, int], Problem] | None = None
    mixed: bool = False
    throughput: bool = False
    graphs: Choices | None = None
    networks: Choices | None = None


def dataset_names() -> tuple[str, ...]:
    """Names of all sets, sorted; nothing is imported. Raises UsageError if two packages use the same name."""
    return tuple(sorted(_table()))


def find_dataset(name: str) -> Dataset:
    """Return a set by name.

    Raises:
        UsageError: there is no such set, its package cannot be imported, or what it names is not a data set.
    """
    table = _table()
    found = load_entry("data set", table, name)
    if not isinstance(found, Dataset):
        raise UsageError(f"The data set '{name}' ({table[name].value}) is not a placeit.workloads.registry.Dataset.")
    return found


def some_problems(cases: Iterator[Case], name: str, split: Split | None, count: int | None) -> list[Problem]:
    """Return as many problems as are asked for, or all; ``name`` and ``split`` are for messages.

    Raises:
        UsageError: there are fewer.
    """
    found = [case.problem for case in islice(cases, count)]
    if count is not None and len(found) < count:
        purpose = f" to {split} with" if split else ""
        raise UsageError(f"There are {len(found)} problems of kind '{name}'{purpose}, fewer than {count}.")
    return found


@functools.cache
def _table() -> dict[str, EntryPoint]:
    return entry_table("data set", GROUP, _BUILTIN)
