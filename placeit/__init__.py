"""placeit finds, by measuring, which part of a neural network should run on which device, and runs it that way."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeit.backends import load
    from placeit.backends.base import Model
    from placeit.backends.coarsen import Grouping, coarsen
    from placeit.cluster import Cluster, Device, Link
    from placeit.clusterfile import find_cluster, read_cluster, write_cluster
    from placeit.devices import available, discover
    from placeit.errors import PlaceitError
    from placeit.graph import OpGraph
    from placeit.optimize import Candidate, Optimized, Unplanned, optimize
    from placeit.placers.api import place
    from placeit.placers.registry import placer_names
    from placeit.problem import Placement, Problem
    from placeit.profiler.cache import Cache
    from placeit.runtime.simulator import schedule, simulate
    from placeit.session import OutputError, RunReport, Session

__all__ = [
    "Cache",
    "Candidate",
    "Cluster",
    "Device",
    "Grouping",
    "Link",
    "Model",
    "OpGraph",
    "Optimized",
    "OutputError",
    "PlaceitError",
    "Placement",
    "Problem",
    "RunReport",
    "Session",
    "Unplanned",
    "available",
    "coarsen",
    "discover",
    "find_cluster",
    "load",
    "optimize",
    "place",
    "placer_names",
    "read_cluster",
    "schedule",
    "simulate",
    "write_cluster",
]

__version__ = "0.1.0"

# importing OpenVINO reports it over the network wherever this package can be imported; placeit never does that
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

_HOME = {
    "Cache": "placeit.profiler.cache",
    "Candidate": "placeit.optimize",
    "Cluster": "placeit.cluster",
    "Device": "placeit.cluster",
    "Grouping": "placeit.backends.coarsen",
    "Link": "placeit.cluster",
    "Model": "placeit.backends.base",
    "OpGraph": "placeit.graph",
    "Optimized": "placeit.optimize",
    "OutputError": "placeit.session",
    "Placement": "placeit.problem",
    "PlaceitError": "placeit.errors",
    "Problem": "placeit.problem",
    "RunReport": "placeit.session",
    "Session": "placeit.session",
    "Unplanned": "placeit.optimize",
    "available": "placeit.devices",
    "coarsen": "placeit.backends.coarsen",
    "discover": "placeit.devices",
    "find_cluster": "placeit.clusterfile",
    "load": "placeit.backends",
    "optimize": "placeit.optimize",
    "place": "placeit.placers.api",
    "placer_names": "placeit.placers.registry",
    "read_cluster": "placeit.clusterfile",
    "schedule": "placeit.runtime.simulator",
    "simulate": "placeit.runtime.simulator",
    "write_cluster": "placeit.clusterfile",
}
"""Where each public name lives. Modules are imported when a name of theirs is first used: some take seconds."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placeit' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``placeit.optimize`` the function: importing the module of that name would put the module there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and value.__name__ == _HOME.get(name):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
