"""Find data sets of problems by name: placeit's, and the ones that plug-ins declare as ``placeit.problems`` entry points."""

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
from placeit.learning.workloads.parameters import Choices

__all__ = ["GROUP", "Case", "Dataset", "Split", "dataset_names", "find_dataset", "some_problems"]

GROUP = "placeit.problems"
"""Entry-point group in which plug-ins declare data sets of problems."""

Split: TypeAlias = Literal["train", "test"]

_BUILTIN = {
    "any": "placeit.learning.workloads.mixture:ANY",
    "churn": "placeit.learning.workloads.datasets:CHURN",
    "multi": "placeit.learning.workloads.datasets:MULTI",
    "random": "placeit.learning.workloads.datasets:RANDOM",
    "recurrent": "placeit.learning.workloads.datasets:RECURRENT",
    "sensor-fusion": "placeit.learning.workloads.datasets:SENSOR_FUSION",
    "single": "placeit.learning.workloads.datasets:SINGLE",
    "streams": "placeit.learning.workloads.stream_graphs:STREAMS",
}


@dataclass(frozen=True, eq=False)
class Case:
    """A problem and the parameters that it was generated from.

    Attributes:
        problem: the problem.
        parameters: values drawn for it, in JSON-compatible form.
    """

    problem: Problem
    parameters: Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A finite or endless set of problems for ``placeit generate`` and ``placeit train``.

    Attributes:
        cases: ``cases(split, seed)`` yields problems; the same split and seed give the same problems in any process. ``split``
            is ``train`` or ``test``, or None if the set has no parts. If ``graphs`` is given, ``cases`` also takes ``graphs``,
            ``networks`` and ``max_tasks`` by name.
        parts: whether the set has a part for training and a part for testing.
        size: number of problems for training; None for all problems of a finite set.
        draw: ``draw(rng, max_tasks)`` generates a new problem, for training in which no problem occurs twice; None to train on
            the training part. A set without parts and without ``draw`` is not for training.
        mixed: whether problems are so different that training starts with small ones, and costs are in multiples of HEFT's
            makespan rather than of the critical path.
        throughput: whether the costs of training are seconds per request, in multiples of their lower bound.
        graphs: default values from which parameters of task graphs are drawn; None if they cannot be chosen.
        networks: default values from which parameters of device networks are drawn; None exactly if ``graphs`` is.
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
    """Return the names of all data sets, sorted, without importing them. Raises UsageError if two packages use one name."""
    return tuple(sorted(_table()))


def find_dataset(name: str) -> Dataset:
    """Return a data set by name.

    Raises:
        UsageError: the data set does not exist, its package cannot be imported, or the entry point is not a data set.
    """
    table = _table()
    found = load_entry("data set", table, name)
    if not isinstance(found, Dataset):
        raise UsageError(f"The data set '{name}' ({table[name].value}) is not a placeit.learning.workloads.registry.Dataset.")
    return found


def some_problems(cases: Iterator[Case], name: str, split: Split | None, count: int | None) -> list[Problem]:
    """Return the first ``count`` problems, or all if ``count`` is None; ``name`` and ``split`` are for messages.

    Raises:
        UsageError: there are fewer than ``count`` problems.
    """
    found = [case.problem for case in islice(cases, count)]
    if count is not None and len(found) < count:
        purpose = f" to {split} with" if split else ""
        raise UsageError(f"There are {len(found)} problems of kind '{name}'{purpose}, fewer than {count}.")
    return found


@functools.cache
def _table() -> dict[str, EntryPoint]:
    return entry_table("data set", GROUP, _BUILTIN)
