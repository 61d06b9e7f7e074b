"""Find objectives by name: placeit's, and entry points of the group ``placeit.objectives`` of plug-ins."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from placeit.core.errors import UsageError
from placeit.core.nearest import nearest
from placeit.core.registry import entry_table, load_entry

if TYPE_CHECKING:
    from placeit.core.cluster import Cluster
    from placeit.simulator.objectives.base import Objective

__all__ = ["GROUP", "check_objective", "get_objective", "objective_kind", "objective_names", "objectives_that"]

GROUP = "placeit.objectives"
"""The entry-point group in which a plug-in names its objectives."""

_BUILTIN = {
    "latency": "placeit.simulator.objectives.latency:Latency",
    "throughput": "placeit.simulator.objectives.throughput:Throughput",
    "total-cost": "placeit.simulator.objectives.total_cost:BusyTime",
    "energy": "placeit.simulator.objectives.energy:Energy",
}


def objective_names() -> tuple[str, ...]:
    """Return the names of all objectives, placeit's first, without importing any of them.

    Raises:
        UsageError: two packages use the same name.
    """
    return tuple(_table())


def check_objective(name: str) -> None:
    """Raise UsageError if no objective has this name."""
    if name not in _table():
        if name == "tokens":
            raise UsageError(
                "The objective 'tokens' is for decoders that generate texts: use `placeit optimize FOLDER --context N --texts "
                "M --objective tokens`, or placeit.optimize_texts(session) in Python."
            )
        known = ", ".join(_table())
        raise UsageError(f"The objective '{name}' is not known; there are {known}{nearest(name, _table())}.")


def objective_kind(name: str) -> type[Objective]:
    """Return the class of an objective.

    Raises:
        UsageError: the objective does not exist, its package cannot be imported, or its entry point is no objective.
    """
    from placeit.simulator.objectives.base import Objective

    check_objective(name)
    kind = load_entry("objective", _table(), name)
    if not (isinstance(kind, type) and issubclass(kind, Objective) and kind.name == name):
        raise UsageError(f"The objective '{name}' ({_table()[name].value}) is not a subclass of Objective with that name.")
    return kind


def objectives_that(hold: Callable[[type[Objective]], bool]) -> str:
    """Return the names of the objectives for which a condition holds, as text, without objectives that cannot be imported."""
    names = []
    for name in _table():
        with contextlib.suppress(UsageError):
            names += [name] if hold(objective_kind(name)) else []
    return " or ".join(names)


def get_objective(name: str, cluster: Cluster, *, rate: float | None = None) -> Objective:
    """Return an objective for the devices of a cluster.

    Args:
        name: name of the objective.
        cluster: the devices.
        rate: requests per second at which runs are measured, if the objective is ``paced``.

    Raises:
        UsageError: the objective does not exist, or it needs the power of devices whose power is unknown (names the devices).
    """
    return objective_kind(name).of_cluster(cluster, rate)


@functools.cache
def _table() -> dict[str, EntryPoint]:
    return entry_table("objective", GROUP, _BUILTIN)
