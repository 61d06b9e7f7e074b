"""Measures the costs of groups on devices, in passes over whole models and over models cut into groups."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.core import clock
from placeit.core.cluster import Cluster, Link
from placeit.core.conflicts import beside
from placeit.core.errors import NoRoomError
from placeit.core.lines import nonnegative_fit
from placeit.measuring.budget import STEP_S
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache, Kept
from placeit.profiler.kept import contradicted, cost_key, costs_of, find
from placeit.profiler.kernel_history import Beyond, History, history_key
from placeit.profiler.kernel_times import profiled
from placeit.profiler.links import LinkCosts, probe
from placeit.profiler.load import MachineLoad, Watch
from placeit.profiler.passes import Passes, Progress, unslowed
from placeit.profiler.sampling import alike, choose, predict
from placeit.profiler.support import supported
from placeit.runtime.devices.kernels import Kernel, group_shares
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.runtime import Runtime

__all__ = ["Certain", "Progress", "Worth", "kept_costs", "profile"]

Worth = Callable[[NDArray[np.float64]], bool]
"""``worth(seconds: float64[D])``: whether to profile, by one run of the whole model on each device; ``inf`` where it cannot."""

Certain = Callable[[NDArray[np.float64]], bool]
"""``certain(core: float64[G, D])``: whether the least seconds of groups inside the whole model say enough to stop there."""

_FULL, _FULL_ALONE = 15, 8  # runs of the whole model that a full profile takes about, of several devices and of one
_GOLDEN = 0.618  # steps of this share of a circle never come near to where they were
_FEWEST, _MOST = 3, 12  # blocks of each kind, unless all have settled before; of runs where time is short
_RUNS, _SHORT_S = 12, 1.0  # runs of each kind from which on there are no further blocks, and seconds that all may take
_COUNTED = 12  # passes over the whole model that a runtime's counters are means of
_LEAST_BLOCKS, _SHORTLY = 3, 60  # of the whole model on each device, for the least that it takes; if 60 runs are possible
_FEWEST_PROGRAMS, _SHARE_CUT = 12, 3  # of groups cut off and runs between them: so many, or one for so many groups
_SLOW_S, _SLOWER = 2.0, 4.0  # a device compiles slowly if the whole model takes so long there, and so many times the quickest
_FEWEST_SLOW, _COMPILING_SHARE = 2, 0.4  # of groups cut off there; what compiling them may take of the time that is left
_TINY = 1e-12
_CHECK_SHARE = 0.2  # of the budget, to tell whether cached costs still hold


def profile(
    model: Model,
    grouping: Grouping,
    cluster: Cluster,
    runtime: Runtime,
    *,
    budget_s: float = 30.0,
    cache: Cache | None = None,
    check: bool = False,
    progress: Progress | None = None,
    worth: Worth | None = None,
    certain: Certain | None = None,
) -> Costs:
    """Measure every group on every device that can run it.

    These are run in blocks of consecutive runs, as a user runs a model, without the first runs of each block
    (:mod:`placeit.profiler.passes`). Blocks of all programs take turns in random order, so that what the machine does meanwhile
    happens to all of them:

    - the whole model on each device. Its time is divided among the groups by the runtime's own per-op counters: ``core``;
    - the model with some of its groups cut off, on each device: what such a group takes beyond its share is its ``cut``. These
      groups are chosen so that every group is like one of them; the cuts of the others are predicted
      (:mod:`placeit.profiler.sampling`). What lies between them runs as one segment: on the same device, or on another one if
      that compiles much faster;
    - the same while other devices run theirs, as many as can at the same time: what that adds is ``load``;
    - the same, with cut groups on other devices than those that they read from: what that adds is what it costs to hand over to
      another device (the link's latency), and to read what another one wrote (``read``).

    Every time is a median over blocks, and of differences over those of the same turn. The same blocks say what a request takes
    beside all that: ``host``. A block that other processes disturbed is repeated while there is time, and does not count if
    there are three others. On a device that cannot run the whole model, a group takes what it takes as a segment of its own, or
    its share of a segment between these.

    Args:
        model: the model.
        grouping: its groups.
        cluster: real devices; links without figures are probed.
        runtime: runs the measurements.
        budget_s: seconds to spend, compiling included; between 3 and 12 blocks of each kind are run, until their times have
            settled. The longer devices compile, the fewer groups are cut off. Where there is no time for three blocks, one to
            three runs are made with groups cut off, alone, and the rest is taken to be zero; what is found so is not kept. The
            first run of anything counts only where there is no time for another.
        cache: where to look for earlier results and keep new ones.
        check: whether to run the whole model for a moment on each device, and to profile again, with a warning, what is in
            the cache if that takes another time than it took then.
        progress: called between turns.
        worth: asked once what a run takes is known, unless the costs were kept. If it says no, nothing else is measured: the
            costs then are those runs, in equal shares for all groups (:attr:`placeit.planning.segments.Costs.shared`).
        certain: asked once the least is known that each group takes inside the whole model, on each of several devices of
            OpenVINO that all run the whole model, unless the costs were kept. If it says yes, nothing else is measured: cut
            groups then cost nothing beyond that.
    """
    begin = clock.now()
    can = supported(model, grouping, cluster)
    key = cost_key(grouping, cluster, runtime)
    found = find(cache, key, can) if cache is not None else None
    afresh = found is not None and check and contradicted(found, grouping, runtime, can, budget_s * _CHECK_SHARE, progress)
    if progress is not None:
        progress("probing links", 0.0)
    links = probe(
        cluster,
        chain=model.chain,
        precision=runtime.precision,
        cache=cache,
        afresh=afresh,
        deadline=begin + budget_s / 2,
        compiling=runtime.compiler.compiling,
    )
    cached = found is not None and not afresh
    if found is None or afresh:
        load, profiling = MachineLoad(), _Profile(grouping, runtime, can, links)
        measured = profiling.measure(begin + budget_s, progress, worth, certain)
        if measured is None:
            return profiling.shared()
        if isinstance(measured, Costs):
            return measured
        if cache is not None and profiling.complete:
            found = cache.put(key, measured, load=load.cores())
            if cache.works:
                profiling.remember(History(cache.folder), measured)
        else:
            found = Kept(measured, time.time(), load.cores())
    return costs_of(found, links, cluster, cached=cached)


def kept_costs(model: Model, grouping: Grouping, cluster: Cluster, runtime: Runtime, cache: Cache) -> Costs | None:
    """Return what :func:`profile` has kept in a cache, None if nothing; links that are not kept there are probed."""
    can = supported(model, grouping, cluster)
    found = find(cache, cost_key(grouping, cluster, runtime), can)
    if found is None:
        return None
    links = probe(cluster, chain=model.chain, precision=runtime.precision, cache=cache, compiling=runtime.compiler.compiling)
    return costs_of(found, links, cluster, cached=True)


class _Profile:
    """The passes of :func:`profile` over one model on one cluster.

    Attributes:
        cut: ``bool[G]``, the groups that are segments of their own; the runs of other groups between them are segments, too.
    """

    def __init__(self, grouping: Grouping, runtime: Runtime, can: NDArray[np.bool_], links: LinkCosts) -> None:
        self.grouping, self.runtime, self.can, self.links = grouping, runtime, can, links
        self.groups, self.devices = can.shape
        self.once = np.full(self.devices, np.inf)  # seconds of the whole model in its first warm run
        self.watch = Watch()
        self.short = self.complete = False  # whether there was no time for all of it; whether all of it was done
        free = Costs.zero(self.groups, replace(links.cluster, links=_measured(links.cluster)))
        self.segmenter = Segmenter(grouping, free)
        self.computes = self.segmenter.computes
        self.distance, self.bytes = alike(grouping, runtime.book.channels_last)
        self.cut = np.ones(self.groups, bool)
        self._known_shares: dict[int, NDArray[np.float64]] = {}
        self.kernels: dict[int, Sequence[Kernel]] = {}  # of devices that run the whole model
        self.quick = np.ones(self.devices, bool)  # which devices compile what runs between cut groups

    def shared(self) -> Costs:
        """The first runs, in equal shares for all groups."""
        nothing = np.zeros(self.can.shape)
        core = np.where(self.can, self.once / self.groups, np.inf)
        dispatch = np.zeros(self.devices)
        return Costs(core, nothing, dispatch, self.links.cluster, nothing, dispatch, shared=True)

    def least(self, whole: Sequence[Passes]) -> Costs:
        """The least that each group takes inside the whole model, and nothing for all else."""
        for turn in range(_LEAST_BLOCKS):
            for timed in whole:
                timed.block(turn)
        seconds = [min(timed.interval) for timed in whole]
        core = np.stack([self._shares(d) * each for d, each in enumerate(seconds)], axis=1)
        nothing, none = np.zeros(self.can.shape), np.zeros(self.devices)
        return Costs(core, nothing, self.links.dispatch, self.links.cluster, nothing, none)

    def measure(
        self, deadline: float, progress: Progress | None, worth: Worth | None, certain: Certain | None
    ) -> dict[str, Any] | Costs | None:
        """Return the costs as the cache keeps them; None if profiling is not worth it, or the least if that is certain."""
        devices = range(self.devices)
        with contextlib.ExitStack() as stack:
            runtime = unslowed(self.runtime, self.grouping, stack)

            def passes(plan: Plan) -> Passes:
                executor = stack.enter_context(runtime.executor(plan))
                return Passes(executor, runtime.model.sample_requests(), self.watch)

            def undivided(d: int) -> Passes | None:
                if self.can[:, d].all():
                    with contextlib.suppress(NoRoomError):  # there may be room for parts of the model
                        return passes(self.segmenter.plan(np.full(self.groups, d, np.int32)))
                return None

            whole = [undivided(d) for d in devices]
            for d, timed in enumerate(whole):
                if timed is not None:
                    timed.run_warm(deadline)
                    self.once[d] = timed.seconds.max()
            once = float(self.once[np.isfinite(self.once)].sum())
            if worth is not None and once > 0 and not worth(self.once):
                return None
            able = [timed for timed in whole if timed is not None]
            kinds = {device.kind for device in self.runtime.cluster.devices}
            quick = _SHORTLY * once < deadline - clock.now()
            if certain is not None and quick and len(able) == self.devices > 1 and kinds == {"openvino"}:
                least = self.least(able)
                if certain(least.core):
                    return least
            left = max(deadline - clock.now(), STEP_S)
            self.short = left < once * (_FULL if self.devices > 1 else _FULL_ALONE)
            if any(timed is not None for timed in whole):  # what is between cut groups gets shares of the whole model
                self._choose(left, np.array([timed is not None for timed in whole]) | ~self.can.all(axis=0))
            of = self._segments()

            def placed(segments: NDArray[np.int32]) -> Passes:
                return passes(self.segmenter.merged(of, segments[of]))

            cut = [placed(self._on(of, d)) for d in devices]
            apart = [placed(self._apart(of, turn)) for turn in devices] if self.devices > 1 and not self.short else []
            others = [*(timed for timed in whole if timed is not None), *apart]
            deadline = max(deadline, clock.now() + STEP_S)
            self._repeat(cut, [] if self.short else others, deadline, progress)
            return self._costs(of, cut, whole, apart)

    def remember(self, history: History, measured: dict[str, Any]) -> None:
        """Add what the ops took on each device that runs the whole model to the history."""
        runtime, core, cut, load = self.runtime, *(np.array(measured[what], float) for what in ("core", "cut", "load"))
        known = self.cut & self.computes
        for d, kernels in self.kernels.items():
            device, inside = runtime.cluster.devices[d], float(core[:, d].sum())
            if not any(kernel.seconds > 0 for kernel in kernels) or inside <= 0:
                continue
            each, per_byte = _line(self.bytes[known], cut[known, d]) if known.any() else (0.0, 0.0)
            alone = inside + float(cut[:, d].sum())
            beyond = Beyond(
                measured["dispatch"][d], each, per_byte, max(0.0, float(load[:, d].sum()) / alone), measured["read"][d]
            )
            model = runtime.model
            name = Path(str(model.path)).name
            history.add(
                history_key(device, runtime.precision),
                profiled(str(model.identity), name, model.graph, kernels, inside, beyond),
            )

    def _choose(self, left: float, roomy: NDArray[np.bool_]) -> None:
        """Choose the groups that are cut off, and the devices that run what is between them.

        Args:
            left: seconds that profiling may still take.
            roomy: ``bool[D]``, false for devices that have no room for all of what they can run.
        """
        compiled, ops = self.runtime.compiler.compiling, len(self.grouping.graph)
        compiling = np.array([compiled.takes(compiled.kind(device), ops) for device in self.runtime.cluster.devices])
        slow = compiling > max(_SLOW_S, _SLOWER * float(compiling.min()))
        if (~slow & roomy).any():
            self.quick = ~slow & roomy
        between = int(self.quick.sum())
        most = max(_FEWEST_PROGRAMS, self.computes.sum() / _SHARE_CUT)
        if slow.any():
            # a group takes about its share of the ops to compile
            each = float(compiling[slow].sum()) / max(1, int(self.computes.sum()))
            most = min(most, max(_FEWEST_SLOW, left * _COMPILING_SHARE / each) + between)
        if most < self.computes.sum():
            these = np.flatnonzero(self.computes)
            self.cut = np.zeros(self.groups, bool)
            self.cut[these] = choose(self.distance[np.ix_(these, these)], self.bytes[these], most=most, gap=between)

    def _segments(self) -> NDArray[np.int32]:
        """Number the segments of groups, ``int32[G]``: cut groups, and runs of others that the same devices can run."""
        other = (self.can[1:] != self.can[:-1]).any(axis=1)
        return np.concatenate([[0], np.cumsum(self.cut[1:] | self.cut[:-1] | other)]).astype(np.int32)

    def _able(self, of: NDArray[np.int32]) -> NDArray[np.bool_]:
        """``bool[S, D]``, the devices that run each segment: those that can, and that compile quickly if it is no cut group."""
        can = np.ones((int(of.max()) + 1, self.devices), bool)
        np.logical_and.at(can, of, self.can)
        single = np.zeros(len(can), bool)
        single[of[self.cut]] = True
        able = can & (single[:, None] | self.quick)
        return np.where(able.any(axis=1, keepdims=True), able, can)

    def _on(self, of: NDArray[np.int32], d: int) -> NDArray[np.int32]:
        """Place each segment on ``d``, or on the first device that runs it, so that those of ``d`` are still timed in place."""
        able = self._able(of)
        return np.array(np.where(able[:, d], d, able.argmax(axis=1)), np.int32)

    def _apart(self, of: NDArray[np.int32], turn: int) -> NDArray[np.int32]:
        """Place each segment on another device than those that it reads from, as far as it can; on each device in one turn."""
        able = self._able(of)
        level = np.zeros(len(able), np.int64)
        for u, v in sorted({(u, v) for u, v in of[self.grouping.groups.edges].tolist() if u != v}):  # in a topological order
            level[v] = max(level[v], level[u] + 1)
        order = (level[:, None] + turn + np.arange(self.devices)) % self.devices
        first = np.take_along_axis(able, order, axis=1).argmax(axis=1)
        return np.array(order[np.arange(len(able)), first], np.int32)

    def _repeat(self, cut: Sequence[Passes], others: Sequence[Passes], deadline: float, progress: Progress | None) -> None:
        names, every = ", ".join(self.runtime.cluster.names), [*cut, *others]
        if self.short:
            self._run_shortly(every, deadline)
            return
        at_once = [[cut[other] for other in beside(self.runtime.cluster.conflicts(), d)] for d in range(len(cut))]
        for timed in every:
            timed.run()
            timed.forget()
        random, done, spent, repeating = np.random.default_rng(0), 0, 0.0, 0.0
        while done < _MOST and not all(timed.settled for timed in every):
            now, each = clock.now(), spent / max(done, 1)
            enough = spent >= _SHORT_S and max(timed.runs for timed in every) >= _RUNS
            over = enough or now + each >= deadline
            if (over and done >= _FEWEST) or (done > 0 and now >= deadline):
                break
            phase = (0.5 + done * _GOLDEN) % 1
            blocks = [functools.partial(every[i].block, done) for i in random.permutation(len(every))]
            blocks += [
                functools.partial(timed.block_beside, others, done, phase)
                for timed, others in zip(cut, at_once, strict=True)
                if others
            ]
            disturbed = [block for block in blocks if block().disturbed]
            spent += (ended := clock.now()) - now
            while disturbed and repeating < spent and ended < deadline:  # in as much time as all else takes
                disturbed.pop()()
                repeating, ended = repeating + clock.now() - ended, clock.now()
            done += 1
            self.complete = done >= _FEWEST
            if progress is not None:
                progress(f"profiling {self.groups} groups on {names}", done / _MOST)

    def _run_shortly(self, every: Sequence[Passes], deadline: float) -> None:
        """Run everything one to three times, alone; the first runs count only if there is no time for others."""
        last = 0.0
        for turn in range(_FEWEST):
            now = clock.now()
            if turn > 0 and now + last >= deadline:
                break
            for timed in every:
                if turn == 1:
                    timed.forget()
                timed.run(turn)
            last = clock.now() - now

    def _costs(
        self, of: NDArray[np.int32], cut: Sequence[Passes], whole: Sequence[Passes | None], apart: Sequence[Passes]
    ) -> dict[str, Any]:
        can, empty = self.can, self.links.empty
        core, cuts, load = np.full(can.shape, np.inf), np.zeros(can.shape), np.zeros(can.shape)
        read, errors = np.zeros(self.devices), []
        alone = np.stack([timed.seconds for timed in cut], axis=1)
        # of what runs between cut groups, each group has a part by what it takes where all of them can be told apart
        shares = [np.ones(self.groups) if timed is None else self._shares(d) for d, timed in enumerate(whole)]
        like = next((share for share, timed in zip(shares, whole, strict=True) if timed is not None), shares[0])
        for d, timed in enumerate(whole):
            there = can[:, d] & (self._on(of, d)[of] == d)
            known = there & self.cut
            beyond = np.maximum(alone[:, d] - empty[d], 0.0)
            if timed is None:
                core[there, d] = np.where(self.cut, beyond, beyond * _parts(like, of))[there]
                rate = float(core[known, d].sum()) / max(float(like[known].sum()), _TINY)
                core[can[:, d] & ~there, d] = (like * rate)[can[:, d] & ~there]
            else:
                # a model that takes little more than an empty segment is below what can be told apart
                total = float(timed.seconds.max())
                core[:, d] = shares[d] * max(0.1 * total, total - empty[d])
                beyond_share = cut[d].beyond(timed, shares[d]) + shares[d] * min(empty[d], 0.9 * total) - empty[d]
                cuts[known, d] = np.maximum(beyond_share, 0.0)[known]
                if known.any():
                    cuts[:, d] = predict(cuts[:, d], known, self.distance, self.bytes)
                    errors += self._left_out(cuts[:, d], known & self.computes, beyond)
            if self.devices > 1 and not self.short:
                load[there, d] = (cut[d].load * np.where(self.cut, 1.0, _parts(core[:, d], of)))[there]
                rest, sums = can[:, d] & ~there, (float(load[known, d].sum()), float((core + cuts)[known, d].sum()))
                load[rest, d] = core[rest, d] * (sums[0] / sums[1] if sums[1] > 0 else 0.0)
        dispatch, latency = self._handovers([*cut, *apart])
        if self.devices > 1 and not self.short:
            cold, read = self._far(of, cut, apart)
            latency += np.where(np.eye(self.devices), 0.0, cold)
        every = [*cut, *(timed for timed in whole if timed is not None), *apart]
        return {
            "core": [[None if np.isinf(x) else x for x in row] for row in core.tolist()],
            "cut": cuts.tolist(),
            "dispatch": dispatch.tolist(),
            "latency": latency.tolist(),
            "load": load.tolist(),
            "read": read.tolist(),
            "host": self._host(cut, whole, apart, dispatch).tolist(),
            "whole": [None if timed is None else list(timed.interval) for timed in whole],
            "sampling": [
                int((self.cut & self.computes).sum()),
                int(self.computes.sum()),
                float(np.mean(errors)) if errors and not self.cut.all() else None,
            ],
            "blocks": [*np.sum([timed.disturbed for timed in every], axis=0).tolist(), any(timed.unsure for timed in every)],
        }

    def _shares(self, d: int) -> NDArray[np.float64]:
        if d not in self._known_shares:
            self._known_shares[d] = self._measured_shares(d)
        return self._known_shares[d]

    def _measured_shares(self, d: int) -> NDArray[np.float64]:
        runtime, device = self.runtime, self.runtime.cluster.devices[d]
        passes = _FEWEST if self.short else _COUNTED
        self.kernels[d] = device_kind(device).kernels(runtime.model, self.grouping, device, runtime.precision, passes)
        return group_shares(self.kernels[d], self.grouping)

    def _left_out(self, cut: NDArray[np.float64], known: NDArray[np.bool_], seconds: NDArray[np.float64]) -> list[float]:
        """Predict the cut of each known group from the other ones; return by which share of its time that is off."""
        found = []
        for g in np.flatnonzero(known & (seconds > 0)).tolist():
            others = known.copy()
            others[g] = False
            if others.any():
                found.append(abs(predict(cut, others, self.distance, self.bytes)[g] - cut[g]) / float(seconds[g]))
        return found

    def _handovers(self, timed: Sequence[Passes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ``float64[D]``, what starting a segment takes, and ``float64[D, D]``, what handing over to another one adds.

        As it was between the segments of this model; as the links' probe found it where nothing was handed over.
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

    def _host(
        self, cut: Sequence[Passes], whole: Sequence[Passes | None], apart: Sequence[Passes], dispatch: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return ``float64[D + 1]``, what a request takes beside its segments and what lies between them.

        That is for how long the caller waits before the first segment begins and after the last has ended, less what starting a
        segment takes, which is part of each segment's costs. Where nothing ran on several devices, it is the most of one.
        """
        start = dispatch - self.links.empty
        alone = [timed if timed is not None else cut[d] for d, timed in enumerate(whole)]
        host = np.maximum([timed.host for timed in alone] - start, 0.0)
        several = max(float(np.median([timed.host for timed in apart]) - start.mean()), 0.0) if apart else host.max()
        return np.append(host, several)

    def _far(
        self, of: NDArray[np.int32], cut: Sequence[Passes], apart: Sequence[Passes]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ``float64[D]`` twice, what cut groups take more that read from another device: each, and for each byte."""
        groups = self.grouping.groups
        points: list[list[tuple[float, float]]] = [[] for _ in range(self.devices)]
        for turn, timed in enumerate(apart):
            place = self._apart(of, turn)[of]
            writers, readers = groups.edges.T
            # inputs of the model are written by nobody
            remote = (place[writers] != place[readers]) & (timed.seconds[writers] > 0)
            entering = np.bincount(readers[remote], groups.tensor_bytes[groups.edge_tensor[remote]], minlength=self.groups)
            more = np.stack([timed.beyond(alone) for alone in cut])
            for g in np.flatnonzero(self.cut & (entering > 0) & (timed.seconds > 0)).tolist():
                points[place[g]].append((entering[g], more[place[g], g]))
        each, per_byte = np.zeros(self.devices), np.zeros(self.devices)
        for d, found in enumerate(points):
            if found:
                each[d], per_byte[d] = _line(*np.array(found).T)
        return each, per_byte


def _parts(weight: NDArray[np.float64], of: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return each group's part of its segment by weight: ``float64[G]``, which sums to one in each segment."""
    weight = np.where(np.isfinite(weight), weight, 0.0) + _TINY
    return np.asarray(weight / np.bincount(of, weight)[of], np.float64)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Fit y = a + b x with a, b >= 0 by least squares; return a and b, which is 0 where all x are equal."""
    a, b = nonnegative_fit(np.column_stack([np.ones_like(x), x if np.ptp(x) else np.zeros_like(x)]), y).tolist()
    return a, b


def _measured(cluster: Cluster) -> dict[tuple[str, str], Link]:
    return {pair: link for pair, link in cluster.links.items() if link.origin == "measured"}
