"""The chosen placement of a PyTorch model as a module: it opens its devices when it is first called, and can be pickled."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import IsCalled
from placeit.core.cluster import Cluster
from placeit.core.placement import Conditions, Placement
from placeit.devices.clusterfile import cluster_text, read_cluster
from placeit.planning.segments import Plan
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.workbench import Workbench
from placeit.workbench.prepared import Prepared
from placeit.workbench.setup import Setup

__all__ = ["Execution", "execution", "placed_module", "unpickled"]

_WHAT = "A pickled placed module"


class Execution:
    """An executor of a plan that the first run opens. It is closed with the last object that runs it.

    It does not refer to the result of a search, whose module refers to it, so that no cycle keeps the executor alive.
    """

    def __init__(self, open_runtime: Callable[[], Runtime], plan: Plan) -> None:
        self._open, self._plan = open_runtime, plan

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run the plan once, on inputs by name, and return the outputs by name."""
        return self._opened[0].run(inputs)

    @functools.cached_property
    def _opened(self) -> tuple[PlanExecutor, Callable[[], object]]:
        runtime = self._open()
        close = weakref.finalize(self, runtime.close)
        return runtime.executor(self._plan), close

    def close(self) -> None:
        """Close the executor, if a run has opened it; a later run opens it again."""
        if "_opened" in self.__dict__:
            _, close = self.__dict__.pop("_opened")
            close()


def placed_module(model: IsCalled, cluster: Cluster, placement: Placement, execution: Execution) -> Callable[..., Any]:
    """Return a module that is called as a model is in its framework.

    Args:
        model: the model.
        cluster: the devices on which it was placed.
        placement: of its ops, with its conditions.
        execution: runs the placement.
    """
    return model.called(execution.run, functools.partial(_pickled, model, cluster, placement))


def _pickled(model: Any, cluster: Cluster, placement: Placement) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    from placeit.backends.torch.stored import stored  # late, as below: it imports PyTorch

    return unpickled, (*stored(model), placement.to_dict(), cluster_text(cluster))


def unpickled(path: str, digest: str, placement: Mapping[str, Any], cluster: str) -> Callable[..., Any]:
    """Return the module that a pickle stands for. Its devices are opened when it is first called.

    Args:
        path: path of the file with its program and weights.
        digest: SHA-256 of that file.
        placement: as by :meth:`placeit.Placement.to_dict`.
        cluster: the devices, as in a cluster file.

    Raises:
        FileError: the file is missing or has changed.
        DeviceError: a device does not exist on this machine.
        PlacementError: the placement does not fit the model or the devices, as in a process with another PyTorch.
    """
    from placeit.backends.torch.stored import read_stored

    found = Placement.from_dict(placement, _WHAT)
    conditions = found.conditions or Conditions()
    model = read_stored(path, digest, conditions.shapes)
    setup = Setup.of(model, read_cluster(_WHAT, text=cluster), precision=conditions.precision, cache=None)
    with Workbench(setup) as session:
        one = Prepared.of(session, found)
        return placed_module(model, session.cluster, found, execution(one.home, one.plan))


def execution(home: Workbench, plan: Plan) -> Execution:
    """Return the execution of a plan on the devices of its session, which may be closed then."""
    return Execution(functools.partial(Runtime, home.model, home.grouping, home.cluster, precision=home.precision), plan)
