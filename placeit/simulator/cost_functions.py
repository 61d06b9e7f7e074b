"""Cost functions other than the makespan: total cost, energy, and seconds that include the cost of moving ops.

Each is a :data:`placeit.core.problem.CostFunction`. An infeasible placement (an op where it cannot run, weights that exceed a
device's memory) costs ``inf``, as it does in the simulator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core.errors import PlacementError, UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.simulator.tables import as_batch

__all__ = ["AmortisedCost", "EnergyCost", "RelocationCost", "TotalCost"]

_ELEMENTS = 1 << 17  # (ops + edges) * placements of one batch, so that a batch stays in the cache


class _Sum:
    """A sum over ops, cut tensors and transfers, whose terms depend on the devices of their ends.

    Args:
        problem: says which placements are feasible, which tensors cross devices and how often a tensor counts.
        op: ``float64[V, D]``, term of an op on a device; ignored where the op cannot run.
        cut: ``float64[E, D]``, term of a tensor at either end if it crosses, counted as in the simulator; None for zero.
        fixed: ``float64[D, D]``, term of a tensor that goes from one device to another, counted once; zero on the diagonal;
            None for zero.
        per_byte: ``float64[D, D]``, term of each byte of that tensor; zero on the diagonal; None for zero.
    """

    def __init__(
        self,
        problem: Problem,
        op: NDArray[np.float64],
        *,
        cut: NDArray[np.float64] | None = None,
        fixed: NDArray[np.float64] | None = None,
        per_byte: NDArray[np.float64] | None = None,
    ) -> None:
        self.problem = problem
        self._op = np.where(problem.feasible, op, np.inf).ravel()
        zeros = np.zeros((problem.devices, problem.devices))
        self._fixed, self._per_byte = (zeros if link is None else link for link in (fixed, per_byte))
        self._moves = bool(self._fixed.any() or self._per_byte.any())
        self._cut = np.zeros(0) if cut is None else cut.ravel()
        self._tail, self._head = problem.edges.T.astype(np.intp)
        tensor = problem.edge_tensor.astype(np.int64)
        self._by_tensor = np.argsort(tensor, kind="stable")
        _, self._begin = np.unique(tensor[self._by_tensor], return_index=True)
        self._first_edges = self._by_tensor[self._begin]  # of each tensor
        self._reads = np.sort(np.unique(tensor * len(problem) + self._head, return_index=True)[1])  # of each tensor and reader
        self._shared = [edges for edges in np.split(self._by_tensor, self._begin[1:]) if len(edges) > 1]

    def __call__(self, placements: ArrayLike) -> NDArray[np.float64]:
        batch = as_batch(self.problem, placements)
        rows = max(1, _ELEMENTS // (len(self.problem) + len(self.problem.edges)))
        parts = [self._part(batch[first : first + rows]) for first in range(0, len(batch), rows)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _part(self, placements: NDArray[np.integer]) -> NDArray[np.float64]:
        width, count = self.problem.devices, len(placements)
        place = np.ascontiguousarray(placements.T, dtype=np.intp)
        ops = np.arange(len(place))[:, None]
        total: NDArray[np.float64] = self._op.take(ops * width + place).sum(axis=0)
        if self._moves or self._cut.any():
            src, dst = place[self._tail], place[self._head]
        if self._moves:
            pair = src * width + dst
            moved = self._fixed.take(pair) + self.problem.edge_bytes[:, None] * self._per_byte.take(pair)
            columns = np.arange(count)
            for edges in self._shared:  # a tensor goes to a device once, however many ops read it there
                present = np.zeros((width, count), bool)
                for e in edges.tolist():
                    moved[e, present[dst[e], columns]] = 0.0
                    present[dst[e], columns] = True
            total += moved.sum(axis=0)
        if self._cut.any():
            crosses = src != dst
            leaves = np.logical_or.reduceat(crosses[self._by_tensor], self._begin, axis=0)
            for edges, ends, counts in ((self._first_edges, src, leaves), (self._reads, dst, crosses[self._reads])):
                total += (self._cut.take(edges[:, None] * width + ends[edges]) * counts).sum(axis=0)
        if np.isfinite(self.problem.memory).any():
            total[(self.problem.held(placements) > self.problem.memory).any(axis=1)] = np.inf
        return total


class TotalCost(_Sum):
    """Busy seconds of all devices and links in one run, summed: the second objective of GiPH (Appendix B.8).

    It sums the costs of the simulator: ``compute`` of every op where it is placed; ``cut`` of every tensor that crosses, once
    for its producer and once for each op that reads it elsewhere; and ``latency + bytes / bandwidth`` of every transfer. It
    does not depend on queues.

    Differs from the paper, which adds a communication cost for every data link (edge): a tensor that several ops read on one
    device goes there once, and so counts once. The two are equal if each edge carries another tensor, as in the paper's graphs,
    and ``cut`` is zero.

    Args:
        problem: the problem whose placements are valued.

    Raises:
        PlacementError: when called with placements of the wrong shape, or a device number that does not exist.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, problem.compute, cut=problem.cut, fixed=problem.latency, per_byte=1.0 / problem.bandwidth)


class EnergyCost:
    """Joules of one run, by a power model: busy seconds at busy power, the rest of the makespan at idle power, bytes on links.

    ``sum over d of busy[d] * power_w[d] + (makespan - busy[d]) * idle_w[d]``, plus ``joules_per_byte`` of every transfer, where
    ``busy`` counts compute and cutting as in the simulator. Every device of the problem is switched on for the whole
    makespan, used or not. GiPH (section 6, Fig. 11) minimises an energy cost and does not say how it is modelled.

    Args:
        problem: the problem whose placements are valued.
        power_w: ``float[D]``, or one for all: watts of a device that computes.
        idle_w: ``float[D]``, or one for all: watts of a device that does not compute.
        joules_per_byte: ``float[D, D]``, or one for all links: joules to move a byte; nothing within a device.
        makespan: cost function that gives the seconds of placements; None for the simulator by the rules of executors.

    Raises:
        UsageError: power has the wrong shape, is NaN, infinite or negative, or is higher for an idle device than a busy one.
    """

    def __init__(
        self,
        problem: Problem,
        power_w: ArrayLike,
        idle_w: ArrayLike = 0.0,
        *,
        joules_per_byte: ArrayLike = 0.0,
        makespan: CostFunction | None = None,
    ) -> None:
        if makespan is None:
            from placeit.simulator.simulate import SimulatedCost

            makespan = SimulatedCost(problem)
        devices = problem.devices
        busy = _figures("power_w", power_w, (devices,))
        idle = _figures("idle_w", idle_w, (devices,))
        if (busy < idle).any():
            d = int(np.argmax(busy < idle))
            raise UsageError(
                f"{problem.device_names[d]} would draw {idle[d]:g} W when idle and {busy[d]:g} W when busy; a busy device "
                "draws no less than an idle one."
            )
        per_byte = _figures("joules_per_byte", joules_per_byte, (devices, devices))
        np.fill_diagonal(per_byte, 0.0)
        compute = np.where(problem.feasible, problem.compute, 0.0)
        above_idle = busy - idle
        self._makespan, self._idle = makespan, float(idle.sum())
        self._work = _Sum(problem, compute * above_idle, cut=problem.cut * above_idle, per_byte=per_byte)

    def __call__(self, placements: ArrayLike) -> NDArray[np.float64]:
        """Return joules, ``float64[B]``. Raises PlacementError, and the errors of ``makespan``."""
        batch = as_batch(self._work.problem, placements)
        seconds = self._makespan(batch)
        possible = np.isfinite(seconds)
        joules = self._work(batch) + self._idle * np.where(possible, seconds, 0.0)
        return np.where(possible, joules, np.inf)


class RelocationCost(_Sum):
    """Seconds to change over once from one placement to another.

    For every op on another device than before: its startup on the new device, and ``latency + bytes / bandwidth`` from the old
    device to the new one. Source: GiPH, section 5.3 ("the sum of the data migration time and startup time") and Table 2.

    Args:
        problem: gives the links.
        current: ``int[V]``, present device of each op; -1 for an op whose device is gone, which only has to start up.
        startup_s: ``float[V, D]``, or an array that broadcasts to it: seconds until an op runs on a device.
        migration_bytes: ``float[V]``, or one for all: bytes that move with an op.

    Raises:
        PlacementError: ``current`` has the wrong shape, or a device number that does not exist.
        UsageError: startup times or bytes of the wrong shape, NaN, infinite or negative.
    """

    def __init__(self, problem: Problem, current: ArrayLike, startup_s: ArrayLike, migration_bytes: ArrayLike = 0.0) -> None:
        size, width = len(problem), problem.devices
        source = np.asarray(current)
        if source.shape != (size,) or source.dtype.kind not in "iu" or source.min() < -1 or source.max() >= width:
            raise PlacementError(
                f"The placement to move from is {size} device numbers from 0 to {width - 1}, or -1 where the device is gone; "
                f"got {source.dtype} of shape {source.shape}."
            )
        present = source >= 0
        startup = _figures("startup_s", startup_s, (size, width))
        moved = _figures("migration_bytes", migration_bytes, (size,))[:, None]
        seconds = startup + np.where(present[:, None], problem.latency[source] + moved / problem.bandwidth[source], 0.0)
        seconds[present, source[present]] = 0.0
        super().__init__(problem, seconds)


class AmortisedCost:
    """Seconds per run, including a share of the cost of changing over, which is divided among the runs until the next change.

    ``base + relocation / (frequency_hz * interval_s)``. GiPH (section 5.3) divides the relocation cost by the frequency of
    pipeline runs; that is an interval of one unit of the frequency, the default here.

    Args:
        base: seconds of one run: a makespan or a total cost. (Joules cannot be added to seconds.)
        relocation: seconds of changing over, usually a :class:`RelocationCost`.
        frequency_hz: runs per second.
        interval_s: seconds until the placement may change again.

    Raises:
        UsageError: a frequency or an interval that is not positive and finite.
    """

    def __init__(self, base: CostFunction, relocation: CostFunction, *, frequency_hz: float, interval_s: float = 1.0) -> None:
        for what, value in (("frequency_hz", frequency_hz), ("interval_s", interval_s)):
            if not 0 < value < float("inf"):
                raise UsageError(f"'{what}' is {value}; it must be positive and finite.")
        self._base, self._relocation, self._runs = base, relocation, frequency_hz * interval_s

    def __call__(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return seconds per run. Raises the errors of both cost functions."""
        return self._base(placements) + self._relocation(placements) / self._runs


def _figures(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return figures as a new array of the given shape. Raises UsageError if one is negative, infinite or NaN."""
    try:
        array = np.array(np.broadcast_to(np.asarray(value, np.float64), shape))
    except ValueError:
        raise UsageError(f"'{name}' has shape {np.shape(value)}; expected numbers of shape {shape}.") from None
    if not (np.isfinite(array) & (array >= 0)).all():
        raise UsageError(f"'{name}' holds a value that is negative, infinite or NaN.")
    return array
