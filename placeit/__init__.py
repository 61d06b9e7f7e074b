"""placeit finds, by measuring, which part of a neural network should run on which device, and runs it that way."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from placeit.core.version import __version__ as __version__

if TYPE_CHECKING:
    from placeit.application import Application, load
    from placeit.backends.base import Model
    from placeit.core.cluster import Cluster, Device, Link
    from placeit.core.errors import PlaceitError
    from placeit.core.graph import OpGraph
    from placeit.core.placement import Placement
    from placeit.core.problem import Problem
    from placeit.devices.clusterfile import discover, read_cluster, write_cluster
    from placeit.measuring.check import OutputDifference
    from placeit.measuring.run_report import RunReport
    from placeit.optimizer.candidates import Candidate
    from placeit.optimizer.compare import Comparison, compare
    from placeit.optimizer.measured_cost import MeasuredCost
    from placeit.optimizer.model_chain import ModelStage, PlacedStages, place_stages
    from placeit.optimizer.options import Budget, Candidates
    from placeit.optimizer.result import Optimized, Unplanned
    from placeit.placers.api import place
    from placeit.placers.registry import placer_names
    from placeit.planning.coarsen import Grouping, coarsen
    from placeit.profiler.cache import Cache
    from placeit.serving.latency import LatencyLimit
    from placeit.serving.sequence import Sequence
    from placeit.serving.server import Server
    from placeit.session import Session, optimize
    from placeit.simulator.scheduler import Rules
    from placeit.simulator.simulate import schedule, simulate
    from placeit.text.optimized import TextsOptimized
    from placeit.text.optimizing import optimize_texts
    from placeit.tuning import Tuned, tune
    from placeit.workbench.options import Constraints, Inputs, Policy, Traffic
    from placeit.workload.entries import Workload
    from placeit.workload.optimize import PlacedWorkload, optimize_workload

__all__ = [
    "Application",
    "Budget",
    "Cache",
    "Candidate",
    "Candidates",
    "Cluster",
    "Comparison",
    "Constraints",
    "Device",
    "Grouping",
    "Inputs",
    "LatencyLimit",
    "Link",
    "MeasuredCost",
    "Model",
    "ModelStage",
    "OpGraph",
    "Optimized",
    "OutputDifference",
    "PlacedStages",
    "PlacedWorkload",
    "PlaceitError",
    "Placement",
    "Policy",
    "Problem",
    "Rules",
    "RunReport",
    "Sequence",
    "Server",
    "Session",
    "TextsOptimized",
    "Traffic",
    "Tuned",
    "Unplanned",
    "Workload",
    "coarsen",
    "compare",
    "discover",
    "load",
    "optimize",
    "optimize_texts",
    "optimize_workload",
    "place",
    "place_stages",
    "placer_names",
    "read_cluster",
    "schedule",
    "simulate",
    "tune",
    "write_cluster",
]

_NAMES = {
    "placeit.application": "Application load",
    "placeit.backends.base": "Model",
    "placeit.core.cluster": "Cluster Device Link",
    "placeit.core.errors": "PlaceitError",
    "placeit.core.graph": "OpGraph",
    "placeit.core.placement": "Placement",
    "placeit.core.problem": "Problem",
    "placeit.devices.clusterfile": "discover read_cluster write_cluster",
    "placeit.optimizer.candidates": "Candidate",
    "placeit.optimizer.compare": "Comparison compare",
    "placeit.optimizer.measured_cost": "MeasuredCost",
    "placeit.optimizer.options": "Budget Candidates",
    "placeit.optimizer.result": "Optimized Unplanned",
    "placeit.optimizer.model_chain": "ModelStage PlacedStages place_stages",
    "placeit.placers.api": "place",
    "placeit.placers.registry": "placer_names",
    "placeit.planning.coarsen": "Grouping coarsen",
    "placeit.profiler.cache": "Cache",
    "placeit.measuring.check": "OutputDifference",
    "placeit.measuring.run_report": "RunReport",
    "placeit.serving.latency": "LatencyLimit",
    "placeit.serving.sequence": "Sequence",
    "placeit.serving.server": "Server",
    "placeit.session": "Session optimize",
    "placeit.simulator.scheduler": "Rules",
    "placeit.simulator.simulate": "schedule simulate",
    "placeit.text.optimized": "TextsOptimized",
    "placeit.text.optimizing": "optimize_texts",
    "placeit.tuning": "Tuned tune",
    "placeit.workbench.options": "Constraints Inputs Policy Traffic",
    "placeit.workload.entries": "Workload",
    "placeit.workload.optimize": "PlacedWorkload optimize_workload",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Where each public name lives. Modules are imported when a name of theirs is first used: some take seconds."""


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str) -> Any:
        if name == "_core":
            return import_module("placeit.core.extension").load_extension()
        if name not in _HOME:
            raise AttributeError(f"module 'placeit' has no attribute '{name}'")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
