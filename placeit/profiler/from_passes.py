"""Derive the costs of groups from timed passes over the whole model and over the model cut into groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.lines import nonnegative_fit
from placeit.profiler.cutting import Cutting
from placeit.profiler.links import LinkCosts
from placeit.profiler.passes import Passes

__all__ = ["Evaluation", "line"]

_TINY = 1e-12


class Evaluation:
    """The times of passes over one model, from which the costs of its groups follow.

    Args:
        cutting: the groups that were cut off.
        links: costs of links and of empty segments.
        of: segment of each group, ``int32[G]``.
        cut: for each device, passes with cut groups on this device.
        whole: for each device, passes over the whole model; None where it cannot run.
        apart: passes with cut groups on other devices than the groups that they read from; empty if there were none.
    """

    def __init__(
        self,
        cutting: Cutting,
        links: LinkCosts,
        of: NDArray[np.int32],
        cut: Sequence[Passes],
        whole: Sequence[Passes | None],
        apart: Sequence[Passes],
    ) -> None:
        self.cutting, self.links, self.of, self.cut, self.whole, self.apart = cutting, links, of, cut, whole, apart
        self.devices = len(cut)

    def costs(self, shares: Sequence[NDArray[np.float64] | None], *, alone: bool) -> dict[str, Any]:
        """Return the costs in the form in which the cache keeps them (:mod:`placeit.profiler.kept`).

        Args:
            shares: for each device that runs the whole model, the share of each group in its time, ``float64[G]``.
            alone: whether each device ran only while the others did nothing, so that costs of working beside them are unknown.
        """
        can, empty, marked, several = self.cutting.can, self.links.empty, self.cutting.cut, self.devices > 1 and not alone
        core, cuts, load = np.full(can.shape, np.inf), np.zeros(can.shape), np.zeros(can.shape)
        of, read, errors = self.of, np.zeros(self.devices), []
        seconds = np.stack([timed.seconds for timed in self.cut], axis=1)
        # a segment between cut groups is divided by the groups' shares, on a device that tells them apart
        like = next((share for share in shares if share is not None), np.ones(len(can)))
        for d, (timed, share) in enumerate(zip(self.whole, shares, strict=True)):
            there = can[:, d] & (self.cutting.on(of, d)[of] == d)
            known = there & marked
            beyond = np.maximum(seconds[:, d] - empty[d], 0.0)
            if timed is None or share is None:
                core[there, d] = np.where(marked, beyond, beyond * _parts(like, of))[there]
                rate = float(core[known, d].sum()) / max(float(like[known].sum()), _TINY)
                core[can[:, d] & ~there, d] = (like * rate)[can[:, d] & ~there]
            else:
                # the time of a model that takes little more than an empty segment cannot be resolved
                total = float(timed.seconds.max())
                core[:, d] = share * max(0.1 * total, total - empty[d])
                beyond_share = self.cut[d].beyond(timed, share) + share * min(empty[d], 0.9 * total) - empty[d]
                cuts[known, d] = np.maximum(beyond_share, 0.0)[known]
                if known.any():
                    cuts[:, d] = self.cutting.predicted(cuts[:, d], known)
                    errors += self._left_out(cuts[:, d], known & self.cutting.computes, beyond)
            if several:
                load[there, d] = (self.cut[d].load * np.where(marked, 1.0, _parts(core[:, d], of)))[there]
                rest, sums = can[:, d] & ~there, (float(load[known, d].sum()), float((core + cuts)[known, d].sum()))
                load[rest, d] = core[rest, d] * (sums[0] / sums[1] if sums[1] > 0 else 0.0)
        dispatch, latency = self._handovers([*self.cut, *self.apart])
        if several:
            cold, read = self._far()
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
                int((marked & self.cutting.computes).sum()),
                int(self.cutting.computes.sum()),
                float(np.mean(errors)) if errors and not marked.all() else None,
            ],
            "blocks": [*np.sum([timed.disturbed for timed in every], axis=0).tolist(), any(timed.unsure for timed in every)],
        }

    def _left_out(self, cut: NDArray[np.float64], known: NDArray[np.bool_], seconds: NDArray[np.float64]) -> list[float]:
        """Predict the cut of each known group from the other ones; return the errors as shares of the groups' times."""
        found = []
        for g in np.flatnonzero(known & (seconds > 0)).tolist():
            others = known.copy()
            others[g] = False
            if others.any():
                found.append(abs(self.cutting.predicted(cut, others)[g] - cut[g]) / float(seconds[g]))
        return found

    def _handovers(self, timed: Sequence[Passes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return seconds to start a segment, ``float64[D]``, and what handing over to another device adds, ``float64[D, D]``.

        They are from between the segments of this model; where nothing was handed over, from the probe of links.
        """
        dispatch, latency = self.links.dispatch.copy(), self.links.cluster.latency().copy()
        found: dict[tuple[int, int], list[float]] = {}
        for passes in timed:
            for route, seconds in passes.handovers.items():
                found.setdefault(route, []).append(seconds)
        here = {route: float(np.mean(gaps)) for route, gaps in found.items()}
        for d in range(self.devices):
            dispatch[d] = self.links.empty[d] + here.get((d, d), dispatch[d] - self.links.empty[d])
        for (src, dst), gap in here.items():
            if src != dst:
                latency[src, dst] = max(0.0, gap - (dispatch[dst] - self.links.empty[dst]))
        return dispatch, latency

    def _host(self, dispatch: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds of a request outside its segments and the gaps between them, ``float64[D + 1]``.

        The caller waits for them before the first segment begins and after the last has ended. The time to start a segment is
        subtracted, as it is part of each segment's costs. If nothing ran on several devices, the last entry is the largest of
        the others.
        """
        start = dispatch - self.links.empty
        alone = [timed if timed is not None else self.cut[d] for d, timed in enumerate(self.whole)]
        host = np.maximum([timed.host for timed in alone] - start, 0.0)
        several = max(float(np.median([timed.host for timed in self.apart]) - start.mean()), 0.0) if self.apart else host.max()
        return np.append(host, several)

    def _far(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the seconds that reading from another device adds to a cut group, and those per byte: ``float64[D]`` each."""
        groups, of = self.cutting.grouping.groups, self.of
        points: list[list[tuple[float, float]]] = [[] for _ in range(self.devices)]
        for turn, timed in enumerate(self.apart):
            place = self.cutting.apart(of, turn)[of]
            writers, readers = groups.edges.T
            # no segment writes the inputs of the model
            remote = (place[writers] != place[readers]) & (timed.seconds[writers] > 0)
            entering = np.bincount(readers[remote], groups.tensor_bytes[groups.edge_tensor[remote]], minlength=len(of))
            more = np.stack([timed.beyond(alone) for alone in self.cut])
            for g in np.flatnonzero(self.cutting.cut & (entering > 0) & (timed.seconds > 0)).tolist():
                points[place[g]].append((entering[g], more[place[g], g]))
        each, per_byte = np.zeros(self.devices), np.zeros(self.devices)
        for d, found in enumerate(points):
            if found:
                each[d], per_byte[d] = line(*np.array(found).T)
        return each, per_byte


def _parts(weight: NDArray[np.float64], of: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return each group's part of its segment by weight: ``float64[G]``, which sums to one in each segment."""
    weight = np.where(np.isfinite(weight), weight, 0.0) + _TINY
    return np.asarray(weight / np.bincount(of, weight)[of], np.float64)


def line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Fit y = a + b x with a, b >= 0 by least squares; return a and b, which is 0 where all x are equal."""
    a, b = nonnegative_fit(np.column_stack([np.ones_like(x), x if np.ptp(x) else np.zeros_like(x)]), y).tolist()
    return a, b
