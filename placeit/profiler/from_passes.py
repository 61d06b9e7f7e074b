"""Compute the costs of groups from measured runs of the whole model and of the model cut into groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.lines import nonnegative_fit
from placeit.profiler.cutting import Cutting
from placeit.profiler.links import LinkCosts
from placeit.profiler.passes import Passes

__all__ = ["Evaluation", "fit_line"]

_TINY = 1e-12


class Evaluation:
    """Measured times of one model, from which the costs of its groups are computed.

    Args:
        cutting: the groups that were cut off.
        links: costs of links and of empty segments.
        segment_of: segment of each group, ``int32[G]``.
        cut: for each device, times with cut-off groups on this device.
        whole: for each device, times of the whole model; None if it cannot run there.
        apart: times with cut-off groups on other devices than the groups that they read from; may be empty.
    """

    def __init__(
        self,
        cutting: Cutting,
        links: LinkCosts,
        segment_of: NDArray[np.int32],
        cut: Sequence[Passes],
        whole: Sequence[Passes | None],
        apart: Sequence[Passes],
    ) -> None:
        self.cutting, self.links, self.segment_of = cutting, links, segment_of
        self.cut, self.whole, self.apart, self.devices = cut, whole, apart, len(cut)

    def costs(self, shares: Sequence[NDArray[np.float64] | None], *, alone: bool) -> dict[str, Any]:
        """Return the costs in the form in which the cache keeps them (:mod:`placeit.profiler.cached_costs`).

        Args:
            shares: for each device that runs the whole model, the share of each group in its time, ``float64[G]``.
            alone: whether the devices never ran at the same time, so that the costs of load are unknown.
        """
        can, empty, cut_off, several = self.cutting.can, self.links.empty, self.cutting.cut, self.devices > 1 and not alone
        core, cuts, load = np.full(can.shape, np.inf), np.zeros(can.shape), np.zeros(can.shape)
        segment_of, read, errors = self.segment_of, np.zeros(self.devices), []
        seconds = np.stack([timed.seconds for timed in self.cut], axis=1)
        # the time of a segment of several groups is divided by their shares on the first device that has them
        typical = next((share for share in shares if share is not None), np.ones(len(can)))
        for d, (timed, share) in enumerate(zip(self.whole, shares, strict=True)):
            here = can[:, d] & (self.cutting.on(segment_of, d)[segment_of] == d)
            known = here & cut_off
            beyond = np.maximum(seconds[:, d] - empty[d], 0.0)
            if timed is None or share is None:
                core[here, d] = np.where(cut_off, beyond, beyond * _shares_of_segment(typical, segment_of))[here]
                rate = float(core[known, d].sum()) / max(float(typical[known].sum()), _TINY)
                core[can[:, d] & ~here, d] = (typical * rate)[can[:, d] & ~here]
            else:
                # the time of a model cannot be resolved if it is hardly longer than the time of an empty segment
                total = float(timed.seconds.max())
                core[:, d] = share * max(0.1 * total, total - empty[d])
                beyond_share = self.cut[d].beyond(timed, share) + share * min(empty[d], 0.9 * total) - empty[d]
                cuts[known, d] = np.maximum(beyond_share, 0.0)[known]
                if known.any():
                    cuts[:, d] = self.cutting.predicted(cuts[:, d], known)
                    errors += self._left_out(cuts[:, d], known & self.cutting.computes, beyond)
            if several:
                load[here, d] = (self.cut[d].load * np.where(cut_off, 1.0, _shares_of_segment(core[:, d], segment_of)))[here]
                rest, sums = can[:, d] & ~here, (float(load[known, d].sum()), float((core + cuts)[known, d].sum()))
                load[rest, d] = core[rest, d] * (sums[0] / sums[1] if sums[1] > 0 else 0.0)
        dispatch, latency = self._handovers([*self.cut, *self.apart])
        if several:
            cold, read = self._remote_reads()
            latency += np.where(np.eye(self.devices), 0.0, cold)
        every = [*self.cut, *(timed for timed in self.whole if timed is not None), *self.apart]
        return {
            "core": [[None if np.isinf(x) else x for x in row] for row in core.tolist()],
            "cut": cuts.tolist(),
            "dispatch": dispatch.tolist(),
            "latency": latency.tolist(),
            "load": load.tolist(),
            "read": read.tolist(),
            "host": self._host(dispatch).tolist(),
            "whole": [None if timed is None else list(timed.interval) for timed in self.whole],
            "sampling": [
                int((cut_off & self.cutting.computes).sum()),
                int(self.cutting.computes.sum()),
                float(np.mean(errors)) if errors and not cut_off.all() else None,
            ],
            "blocks": [*np.sum([timed.disturbed for timed in every], axis=0).tolist(), any(timed.unsure for timed in every)],
        }

    def _left_out(self, cut: NDArray[np.float64], known: NDArray[np.bool_], seconds: NDArray[np.float64]) -> list[float]:
        """Return the leave-one-out errors of predicted cut costs, as shares of the times of the groups."""
        found = []
        for g in np.flatnonzero(known & (seconds > 0)).tolist():
            others = known.copy()
            others[g] = False
            if others.any():
                found.append(abs(self.cutting.predicted(cut, others)[g] - cut[g]) / float(seconds[g]))
        return found

    def _handovers(self, timed: Sequence[Passes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the seconds to start a segment, ``float64[D]``, and the latencies of hand-overs, ``float64[D, D]``.

        They are measured between the segments of this model, or if there were no hand-overs, by probing links.
        """
        dispatch, latency = self.links.dispatch.copy(), self.links.cluster.latency().copy()
        found: dict[tuple[int, int], list[float]] = {}
        for passes in timed:
            for route, seconds in passes.handovers.items():
                found.setdefault(route, []).append(seconds)
        measured = {route: float(np.mean(gaps)) for route, gaps in found.items()}
        for d in range(self.devices):
            dispatch[d] = self.links.empty[d] + measured.get((d, d), dispatch[d] - self.links.empty[d])
        for (src, dst), gap in measured.items():
            if src != dst:
                latency[src, dst] = max(0.0, gap - (dispatch[dst] - self.links.empty[dst]))
        return dispatch, latency

    def _host(self, dispatch: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds of a request before its first and after its last segment, ``float64[D + 1]``.

        The last entry is for placements on several devices; if there were none, it is the maximum of the others. The time to
        start a segment is subtracted, since it is part of the costs of each segment.
        """
        start = dispatch - self.links.empty
        alone = [timed if timed is not None else self.cut[d] for d, timed in enumerate(self.whole)]
        host = np.maximum([timed.host for timed in alone] - start, 0.0)
        several = max(float(np.median([timed.host for timed in self.apart]) - start.mean()), 0.0) if self.apart else host.max()
        return np.append(host, several)

    def _remote_reads(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the seconds that a cut-off group needs if it reads from another device, and per byte: ``float64[D]`` each."""
        groups, segment_of = self.cutting.grouping.groups, self.segment_of
        points: list[list[tuple[float, float]]] = [[] for _ in range(self.devices)]
        for turn, timed in enumerate(self.apart):
            place = self.cutting.apart(segment_of, turn)[segment_of]
            writers, readers = groups.edges.T
            # no segment writes the inputs of the model
            remote = (place[writers] != place[readers]) & (timed.seconds[writers] > 0)
            entering = np.bincount(readers[remote], groups.tensor_bytes[groups.edge_tensor[remote]], minlength=len(segment_of))
            more = np.stack([timed.beyond(alone) for alone in self.cut])
            for g in np.flatnonzero(self.cutting.cut & (entering > 0) & (timed.seconds > 0)).tolist():
                points[place[g]].append((entering[g], more[place[g], g]))
        each, per_byte = np.zeros(self.devices), np.zeros(self.devices)
        for d, found in enumerate(points):
            if found:
                each[d], per_byte[d] = fit_line(*np.array(found).T)
        return each, per_byte


def _shares_of_segment(weight: NDArray[np.float64], segment_of: NDArray[np.int32]) -> NDArray[np.float64]:
    """Normalise the weights of groups to a sum of 1 in each segment: ``float64[G]``."""
    weight = np.where(np.isfinite(weight), weight, 0.0) + _TINY
    return np.asarray(weight / np.bincount(segment_of, weight)[segment_of], np.float64)


def fit_line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Fit y = a + b x with a, b >= 0 by least squares, and return a and b. If all x are equal, b is 0."""
    a, b = nonnegative_fit(np.column_stack([np.ones_like(x), x if np.ptp(x) else np.zeros_like(x)]), y).tolist()
    return a, b
