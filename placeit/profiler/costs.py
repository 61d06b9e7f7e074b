"""Measure the costs of groups on devices, in passes over whole models and over models cut into groups."""

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
from placeit.devices.kinds import driven_by_openvino
from placeit.measuring.budget import STEP_S
from placeit.measuring.measure import Watching
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
"""``worth(seconds: float64[D])``: whether to profile, by one run of the whole model on each device (``inf``: cannot run)."""

Certain = Callable[[NDArray[np.float64]], bool]
"""``certain(core: float64[G, D])``: whether to stop, given the least seconds of each group inside the whole model."""

_FULL, _FULL_ALONE = 15, 8  # runs of the whole model that a full profile takes, about: of several devices, and of one
_GOLDEN = 0.618  # step of the phase from block to block, as a share of a circle: it never comes near an earlier phase
_FEWEST, _MOST_BLOCKS = (
    3,
    12,
)  # blocks of each kind, unless all are steady before; where time is short, _FEWEST is the most runs
_RUNS, _SHORT_S = 12, 1.0  # runs of each kind, and seconds of all blocks, from which on there are no further blocks
_COUNTED = 12  # passes over the whole model that a runtime's counters are means of
_LEAST_BLOCKS, _SHORTLY = 3, 60  # blocks of the whole model on each device, for its least time, if there is time for 60 runs
_FEWEST_PROGRAMS, _SHARE_CUT = 12, 3  # most programs (groups cut off, and runs between them): 12, or a third of the groups
_SLOW_S, _SLOWER = 2.0, 4.0  # compiling the whole model is slow if it takes more seconds, and more times the quickest device's
_FEWEST_SLOW, _COMPILING_SHARE = 2, 0.4  # least groups cut off where compiling is slow; share of the time left to compile them
_TINY = 1e-12
_CHECK_SHARE = 0.2  # share of the budget to check whether cached costs still hold


def profile(
    model: Model,
    grouping: Grouping,
    cluster: Cluster,
    runtime: Runtime,
    *,
    budget_s: float = 30.0,
    cache: Cache | None = None,
    check: bool = False,
    watch: Callable[[], Watching] = Watch,
    progress: Progress | None = None,
    worth: Worth | None = None,
    certain: Certain | None = None,
) -> Costs:
    """Measure every group on every device that can run it.

    Programs run in blocks of consecutive runs, as a user runs a model, without the first runs of each block
    (:mod:`placeit.profiler.passes`). Blocks of all programs take turns in random order, so that other work on the machine
    affects all of them alike:

    - The whole model on each device. Its time is divided among the groups by the runtime's own per-op counters: ``core``.
    - The model with some of its groups cut off, on each device. The time of such a group beyond its share is its ``cut``. These
      groups are chosen so that every group is like one of them; the cuts of the others are predicted
      (:mod:`placeit.profiler.sampling`). The groups between them run as one segment: on the same device, or on another one if
      that compiles much faster.
    - The same programs while other devices run theirs, as many as can at the same time. The additional time is ``load``.
    - The same groups, with cut ones on other devices than the groups that they read from. The additional time is the cost of
      handing over to another device (the link's latency), and of reading what another device wrote (``read``).

    Every time is a median over blocks, and every difference a median over the differences within turns. The same blocks give
    the rest of a request's time: ``host``. A block that other processes disturbed is repeated while there is time, and does not
    count if there are three undisturbed ones. On a device that cannot run the whole model, the cost of a group is its time as a
    separate segment, or its share of a segment between these.

    Args:
        model: the model.
        grouping: its groups.
        cluster: real devices; links without figures are probed.
        runtime: runs the measurements.
        budget_s: seconds to spend, compiling included. Between 3 and 12 blocks of each kind are run, until their times are
            steady. The longer devices compile, the fewer groups are cut off. If there is no time for three blocks, one to three
            runs are made with groups cut off, on each device alone. Costs that need more are then zero, and the result is not
            cached. The first run of a program counts only if there is no time for another.
        cache: where to look for earlier results and keep new ones.
        check: whether to run the whole model for a moment on each device, and to profile again, with a warning, if its time
            differs from the cached one.
        watch: returns the monitor that tells which blocks were disturbed.
        progress: called between turns.
        worth: called with the seconds of one run of the whole model, unless costs were cached. If it returns False, nothing
            else is measured: the costs are these runs, in equal shares for all groups
            (:attr:`placeit.planning.segments.Costs.shared`).
        certain: called with the least time of each group inside the whole model, if there are several devices, all driven by
            OpenVINO, that all run the whole model, unless costs were cached. If it returns True, nothing else is measured: the
            costs have these times, and cutting groups off adds nothing.
    """
    begin = clock.now()
    can = supported(model, grouping, cluster)
    key = cost_key(grouping, cluster, runtime)
    found = find(cache, key, can) if cache is not None else None
    afresh = (
        found is not None and check and contradicted(found, grouping, runtime, can, budget_s * _CHECK_SHARE, watch(), progress)
    )
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
        load, profiling = MachineLoad(), _Profile(grouping, runtime, can, links, watch())
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
    """Return the costs that :func:`profile` has cached, None if there are none; links that are not cached are probed."""
    can = supported(model, grouping, cluster)
    found = find(cache, cost_key(grouping, cluster, runtime), can)
    if found is None:
        return None
    links = probe(cluster, chain=model.chain, precision=runtime.precision, cache=cache, compiling=runtime.compiler.compiling)
    return costs_of(found, links, cluster, cached=True)


class _Profile:
    """The passes of :func:`profile` over one model on one cluster.

    Attributes:
        cut: ``bool[G]``, the groups that are separate segments. The runs of other groups between them are segments, too.
    """

    def __init__(self, grouping: Grouping, runtime: Runtime, can: NDArray[np.bool_], links: LinkCosts, watch: Watching) -> None:
        self.grouping, self.runtime, self.can, self.links, self.watch = grouping, runtime, can, links, watch
        self.groups, self.devices = can.shape
        self.once = np.full(self.devices, np.inf)  # seconds of the whole model in its first warm run
        self.short = self.complete = False  # whether time is too short for all of it; whether all of it was done
        free = Costs.zero(self.groups, replace(links.cluster, links=_measured(links.cluster)))
        self.segmenter = Segmenter(grouping, free)
        self.computes = self.segmenter.computes
        self.distance, self.bytes = alike(grouping, runtime.book.channels_last)
        self.cut = np.ones(self.groups, bool)
        self._known_shares: dict[int, NDArray[np.float64]] = {}
        self.kernels: dict[int, Sequence[Kernel]] = {}  # by number of a device that runs the whole model
        self.quick = np.ones(self.devices, bool)  # devices that compile the segments between cut groups

    def shared(self) -> Costs:
        """Return the first runs as costs, in equal shares for all groups."""
        nothing = np.zeros(self.can.shape)
        core = np.where(self.can, self.once / self.groups, np.inf)
        dispatch = np.zeros(self.devices)
        return Costs(core, nothing, dispatch, self.links.cluster, nothing, dispatch, shared=True)

    def least(self, whole: Sequence[Passes]) -> Costs:
        """Return the least time of each group inside the whole model as costs; cutting groups off adds nothing."""
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
        """Return the costs as the cache keeps them; None if profiling is not worth it; only the least ones if ``certain``."""
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
            counted = all(map(driven_by_openvino, self.runtime.cluster.devices))  # the times of groups take no further runs
            quick = _SHORTLY * once < deadline - clock.now()
            if certain is not None and quick and len(able) == self.devices > 1 and counted:
                least = self.least(able)
                if certain(least.core):
                    return least
            left = max(deadline - clock.now(), STEP_S)
            self.short = left < once * (_FULL if self.devices > 1 else _FULL_ALONE)
            if any(timed is not None for timed in whole):  # shares of the whole model divide the segments between cut groups
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
        """Add the times of ops on each device that runs the whole model to the history."""
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
        """Choose the groups that are cut off, and the devices that run the segments between them.

        Args:
            left: seconds that profiling may still take.
            roomy: ``bool[D]``, False for devices that have no room for all groups that they can run.
        """
        compiled, ops = self.runtime.compiler.compiling, len(self.grouping.graph)
        compiling = np.array([compiled.takes(compiled.kind(device), ops) for device in self.runtime.cluster.devices])
        slow = compiling > max(_SLOW_S, _SLOWER * float(compiling.min()))
        if (~slow & roomy).any():
            self.quick = ~slow & roomy
        between = int(self.quick.sum())
        most = max(_FEWEST_PROGRAMS, self.computes.sum() / _SHARE_CUT)
        if slow.any():
            # compiling a group takes about its share of the time for all ops
            each = float(compiling[slow].sum()) / max(1, int(self.computes.sum()))
            most = min(most, max(_FEWEST_SLOW, left * _COMPILING_SHARE / each) + between)
        if most < self.computes.sum():
            these = np.flatnonzero(self.computes)
            self.cut = np.zeros(self.groups, bool)
            self.cut[these] = choose(self.distance[np.ix_(these, these)], self.bytes[these], most=most, gap=between)

    def _segments(self) -> NDArray[np.int32]:
        """Return the segment of each group, ``int32[G]``: cut groups, and runs of others that the same devices can run."""
        other = (self.can[1:] != self.can[:-1]).any(axis=1)
        return np.concatenate([[0], np.cumsum(self.cut[1:] | self.cut[:-1] | other)]).astype(np.int32)

    def _able(self, of: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return the devices that run each segment, ``bool[S, D]``: all that can, between cut groups only quick compilers."""
        can = np.ones((int(of.max()) + 1, self.devices), bool)
        np.logical_and.at(can, of, self.can)
        single = np.zeros(len(can), bool)
        single[of[self.cut]] = True
        able = can & (single[:, None] | self.quick)
        return np.where(able.any(axis=1, keepdims=True), able, can)

    def _on(self, of: NDArray[np.int32], d: int) -> NDArray[np.int32]:
        """Place each segment on ``d`` if it runs there, else on the first device that runs it: ``int32[S]``."""
        able = self._able(of)
        return np.array(np.where(able[:, d], d, able.argmax(axis=1)), np.int32)

    def _apart(self, of: NDArray[np.int32], turn: int) -> NDArray[np.int32]:
        """Place each segment on another device than its inputs' segments, if it can; on each device in one of the turns."""
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
        while done < _MOST_BLOCKS and not all(timed.settled for timed in every):
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
            while disturbed and repeating < spent and ended < deadline:  # for at most as long as all blocks took
                disturbed.pop()()
                repeating, ended = repeating + clock.now() - ended, clock.now()
            done += 1
            self.complete = done >= _FEWEST
            if progress is not None:
                progress(f"profiling {self.groups} groups on {names}", done / _MOST_BLOCKS)

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
        # a segment between cut groups is divided by the groups' shares, on a device that tells them apart
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
                # the time of a model that takes little more than an empty segment cannot be resolved
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
        """Predict the cut of each known group from the other ones; return the errors as shares of the groups' times."""
        found = []
        for g in np.flatnonzero(known & (seconds > 0)).tolist():
            others = known.copy()
            others[g] = False
            if others.any():
                found.append(abs(predict(cut, others, self.distance, self.bytes)[g] - cut[g]) / float(seconds[g]))
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

    def _host(
        self, cut: Sequence[Passes], whole: Sequence[Passes | None], apart: Sequence[Passes], dispatch: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the seconds of a request outside its segments and the gaps between them, ``float64[D + 1]``.

        The caller waits for them before the first segment begins and after the last has ended. The time to start a segment is
        subtracted, as it is part of each segment's costs. If nothing ran on several devices, the last entry is the largest of
        the others.
        """
        start = dispatch - self.links.empty
        alone = [timed if timed is not None else cut[d] for d, timed in enumerate(whole)]
        host = np.maximum([timed.host for timed in alone] - start, 0.0)
        several = max(float(np.median([timed.host for timed in apart]) - start.mean()), 0.0) if apart else host.max()
        return np.append(host, several)

    def _far(
        self, of: NDArray[np.int32], cut: Sequence[Passes], apart: Sequence[Passes]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the seconds that reading from another device adds to a cut group, and those per byte: ``float64[D]`` each."""
        groups = self.grouping.groups
        points: list[list[tuple[float, float]]] = [[] for _ in range(self.devices)]
        for turn, timed in enumerate(apart):
            place = self._apart(of, turn)[of]
            writers, readers = groups.edges.T
            # no segment writes the inputs of the model
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
