"""A model on a cluster, open to be measured, optimised, run and served; and the search in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from placeit.backends.base import Arrays, Model
from placeit.core.cluster import Cluster
from placeit.core.placement import Placement
from placeit.devices.clusterfile import discover
from placeit.optimizer.optimize import find
from placeit.optimizer.options import Budget, Candidates, Goal
from placeit.optimizer.result import Optimized
from placeit.profiler.cache import Cache
from placeit.profiler.costs import Progress
from placeit.workbench import Workbench
from placeit.workbench.options import Constraints, Inputs

if TYPE_CHECKING:
    from placeit.backends.bundle.manifest import Manifest

__all__ = ["Session", "optimize"]


class Session(Workbench):
    """A model, its groups, a cluster, and threads and compiled segments to run it. A context manager.

    Placements with segments of their own, as :meth:`optimize` finds them, run at once (:meth:`run`). To plan others, it has to
    be known what groups cost: call :meth:`profile`.

    Args:
        model: a model, or the path of one.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        precision: inference precision of every device.
        inputs: arrays by name, or :class:`placeit.Inputs`; None for random ones.
        constraints: what every placement has to keep to.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        expected: devices of nodes that need not be there yet, each with the device on another node that it is taken to be like
            (``{"edge2/CPU": "edge1/CPU"}``). They count as lost until their node is there, and are used by servers that place
            anew (:meth:`serve`).
        graph: hash of the task graph of the placements that are to be run; empty for none in particular. It matters where
            ONNX Runtime can have the file's own graph or OpenVINO's.
        spin_s: seconds, 0.001 at most, that threads of devices wait awake for the next segment before they sleep, while cores
            are idle. Waking a thread takes 5 to 50 us; spinning takes a core meanwhile, which reports print.

    Raises:
        ModelError, FileError, DeviceError, ClusterError: the model or the devices are not what they should be.
        UsageError: an input is missing, unknown, or has another shape or type than the model wants; a limit is no size or names
            no device; a pin names no device, matches no op, or contradicts another one; what is expected is not on a node, or
            like nothing that is there.
        PlacementError: ops that need one device are pinned to several.
    """

    def optimize(
        self,
        objective: str = "latency",
        *,
        budget: float | Budget = 60.0,
        candidates: Candidates = Candidates(),
        seed: int = 0,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> Optimized:
        """Find the placement that is best by an objective, by measuring: :func:`placeit.optimize` in an open session.

        The session can be used as before in the end, and searched again. Costs are taken from the session's cache, if they
        still hold; a session without one measures them again in each search.

        Raises:
            UsageError: also if a placement to start with divides groups, and something was measured or run before.
        """
        return find(self, Goal(self.cluster, objective, budget, candidates, seed, rate), progress)

    def build(self, placement: Placement, path: str | Path, *, name: str | None = None) -> Manifest:
        """Write a bundle: all that is needed to run a placement elsewhere, with :func:`placeit.load` or ``placeit run``.

        It holds the segments as they are cut, so that they need no model, no conversion and no profiling there. Before anything
        is written to the path, the bundle is run here and its outputs are compared with the reference.

        Args:
            placement: of the model's ops, with its replicas.
            path: where: an archive if it ends in ``.placeit``, else a folder. Nothing may be there.
            name: of the model, for people; None for that of its file.

        Returns:
            What the bundle says of itself.

        Raises:
            FileError: something is there, or it cannot be written.
            PlacementError: the placement does not fit the model, the devices or their memory.
            UsageError: it is not known how to plan it (:meth:`plan_of`).
            DeviceError: segments for a device cannot be in a bundle.
            ModelError: a segment cannot be written.
            ExecutionError: the bundle does not compute what the model does, or a device failed.
        """
        from placeit.workbench.building import build

        return build(self, placement, Path(path), name=name)


def optimize(
    model: str | Path | Model,
    devices: str | Sequence[str] | Path | Cluster | None = None,
    *,
    objective: str = "latency",
    budget: float | Budget = 60.0,
    candidates: Candidates = Candidates(),
    seed: int = 0,
    rate: float | None = None,
    progress: Progress | None = None,
    precision: str = "f32",
    inputs: Inputs | Arrays | None = None,
    constraints: Constraints = Constraints(),
    cache: Cache | Literal["default"] | None = "default",
) -> Optimized:
    """Find the placement of a model that is best by an objective, by measuring.

    Args:
        model: a model, or the path of one.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        objective: what to minimise: ``latency``; ``throughput``, seconds per request with many in flight, for which replicas
            and OpenVINO's throughput mode are candidates, too (:mod:`placeit.optimizer.replicas`); ``total-cost``, seconds
            that devices and links are busy, in sum; or ``energy``, joules by meters if each device has one
            (:mod:`placeit.devices.energy`), else by a power model from measured times.
        budget: seconds, or :class:`placeit.Budget`.
        candidates: what is compared.
        seed: of everything random.
        rate: requests per second that arrive. For ``latency``, runs are measured at that pace, as pauses cool caches and lower
            clocks. For ``throughput``, to know which share of them the answer serves, and how long they wait in simulation
            (``Optimized.service``).
        progress: told what is being done and how far it is.
        precision: inference precision of every device.
        inputs: arrays by name, or :class:`placeit.Inputs`; None for random ones.
        constraints: what every placement has to keep to.
        cache: where measured costs are kept; None to measure afresh and keep nothing.

    Returns:
        What was found. With a described device in the cluster nothing is measured, and the simulator decides.

    Raises:
        UsageError: an unknown placer or objective, a rate that is not positive or not of use, energy of devices whose power is
            not known, a budget that is not positive, a negative seed or tolerance, or inputs that do not fit the model.
        InfeasibleError: there is no placement at all, or a device cannot run what is pinned there.
        ExecutionError: every placement that was tried failed; says why each did.
        PlaceitError: the model, the devices or a file are not what they should be.
        PlacementError: a placement to start with does not fit the model, the devices, their memory or a pin.
        KeyboardInterrupt: Ctrl-C before there was any placement; afterwards it ends the search.
    """
    cluster = discover(devices, precision=precision)
    goal = Goal(cluster, objective, budget, candidates, seed, rate)  # whose faults should not cost the time to load a model
    with Session(model, cluster, precision=precision, inputs=inputs, constraints=constraints, cache=cache) as session:
        return find(session, goal, progress)
