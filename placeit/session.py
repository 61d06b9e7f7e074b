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

    Placements that include their segments, as :meth:`optimize` finds them, run at once (:meth:`run`). To plan other placements,
    the session needs the costs of groups: call :meth:`profile`.

    Args:
        model: a model, or the path of one.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        precision: inference precision of every device.
        inputs: arrays by name, or :class:`placeit.Inputs`; None for random ones.
        constraints: rules for every placement.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        expected: devices of nodes that need not be there yet, each with the device on another node that it is taken to be like
            (``{"edge2/CPU": "edge1/CPU"}``). They count as lost until their node is there. A server that places the model anew
            may use them from then on (:meth:`serve`).
        graph: hash of the task graph of the placements to run; empty for any graph. It matters if ONNX Runtime can run the
            graph of the file or OpenVINO's graph.
        spin_s: seconds, 0.001 at most, that threads of devices wait awake for the next segment before they sleep, while cores
            are idle. Waking a thread takes 5 to 50 us; spinning keeps a core busy, and reports print how much.

    Raises:
        ModelError, FileError, DeviceError, ClusterError: the model, a file, a device or the cluster cannot be used.
        UsageError: an input is missing, unknown, or has another shape or type than the model wants; a limit is no size or names
            no device; a pin names no device, matches no op, or contradicts another one; an expected device is not on a node, or
            is like no device that is there.
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

        Afterwards, the session can be used as before, and searched again. Costs are taken from the session's cache, if they
        still hold; a session without a cache measures them again in each search.

        Raises:
            UsageError: also if a placement to start from divides groups, and something was measured or run before.
        """
        return find(self, Goal(self.cluster, objective, budget, candidates, seed, rate), progress)

    def build(self, placement: Placement, path: str | Path, *, name: str | None = None) -> Manifest:
        """Write a bundle: all that is needed to run a placement elsewhere, with :func:`placeit.load` or ``placeit run``.

        It has the segments as files, so running them needs no model, no conversion and no profiling. Before anything is written
        to the path, the bundle is run here and its outputs are compared with the reference.

        Args:
            placement: of the model's ops, with its replicas.
            path: path of the bundle: an archive if it ends in ``.placeit``, else a folder. Nothing may exist there.
            name: name of the model for people; None for the name of its file.

        Returns:
            The manifest of the bundle.

        Raises:
            FileError: the path exists, or cannot be written.
            PlacementError: the placement does not fit the model, the devices or their memory.
            UsageError: the placement cannot be planned (:meth:`plan_of`).
            DeviceError: segments for a device cannot be in a bundle.
            ModelError: a segment cannot be written.
            ExecutionError: the bundle does not compute what the model does, or a device failed.
        """
        from placeit.workbench.building import build, check_target

        check_target(Path(path))
        return build([self.prepare(one) for one in placement.every], Path(path), name=name or self.model.name)


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
        candidates: which placements are compared.
        seed: of everything random.
        rate: requests per second that arrive. For ``latency``, runs are measured at that pace, as pauses cool caches and lower
            clocks. For ``throughput``, the result tells which share of them the placement serves, and how long they wait in
            simulation (``Optimized.service``).
        progress: told the current activity, and how far it is.
        precision: inference precision of every device.
        inputs: arrays by name, or :class:`placeit.Inputs`; None for random ones.
        constraints: rules for every placement.
        cache: where measured costs are kept; None to measure afresh and keep nothing.

    Returns:
        The result. With a described device in the cluster nothing is measured, and the simulator decides.

    Raises:
        UsageError: an unknown placer or objective, a rate that is not positive or not of use, energy of devices whose power is
            not known, a budget that is not positive, a negative seed or tolerance, or inputs that do not fit the model.
        InfeasibleError: there is no placement at all, or a device cannot run an op that is pinned there.
        ExecutionError: every placement that was tried failed; says why each did.
        PlaceitError: the model, a device or a file cannot be used.
        PlacementError: a placement to start from does not fit the model, the devices, their memory or a pin.
        KeyboardInterrupt: Ctrl-C before there was any placement; afterwards it ends the search.
    """
    cluster = discover(devices, precision=precision)
    goal = Goal(cluster, objective, budget, candidates, seed, rate)  # first, as its checks are faster than loading a model
    with Session(model, cluster, precision=precision, inputs=inputs, constraints=constraints, cache=cache) as session:
        return find(session, goal, progress)
