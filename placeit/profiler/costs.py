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
from placeit.devices.kinds import driven_by_openvino
from placeit.measuring.budget import STEP_S
from placeit.measuring.measure import Watching
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache, Kept
from placeit.profiler.cutting import Cutting
from placeit.profiler.from_passes import Evaluation, line
from placeit.profiler.kept import contradicted, cost_key, costs_of, find
from placeit.profiler.kernel_history import Beyond, History, history_key
from placeit.profiler.kernel_times import profiled
from placeit.profiler.links import LinkCosts, probe
from placeit.profiler.machine_load import MachineLoad, Watch
from placeit.profiler.passes import Passes, Progress, unslowed
from placeit.profiler.support import supported
from placeit.runtime.devices.kernels import Kernel, group_shares
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.group_times import groups_as_kernels
from placeit.runtime.runtime import Runtime

__all__ = ["Certain", "Progress", "Worth", "kept_costs", "profile"]

Worth = Callable[[NDArray[np.float64]], bool]
"""``worth(seconds: float64[D])``: whether to profile, by one run of the whole model on each device (``inf``: cannot run)."""

Certain = Callable[[NDArray[np.float64]], bool]
"""``certain(core: float64[G, D])``: whether to stop, given the least seconds of each group inside the whole model."""

_FULL, _FULL_ALONE = 15, 8  # runs of the whole model that a full profile takes, about: of several devices, and of one
_GOLDEN = 0.618  # step of the phase from block to block, as a share of a circle: it never comes near an earlier phase
_FEWEST, _MAX_BLOCKS = 3, 12  # blocks of each kind, unless all are steady before; most runs of each where time is short: 3
_RUNS, _SHORT_S = 12, 1.0  # runs of each kind, and seconds of all blocks, from which on there are no further blocks
_COUNTED = 12  # passes over the whole model that a runtime's counters are means of
_MIN_BLOCKS, _SHORTLY = 3, 60  # blocks of the whole model on each device, for its least time, if there is time for 60 runs
_FEWEST_PROGRAMS, _SHARE_CUT = 12, 3  # most programs (groups cut off, and runs between them): 12, or a third of the groups
_SLOW_S, _SLOWER = 2.0, 4.0  # compiling the whole model is slow if it takes more seconds, and more times the quickest device's
_FEWEST_SLOW, _COMPILING_SHARE = 2, 0.4  # least groups cut off where compiling is slow; share of the time left to compile them
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
    """The passes of :func:`profile` over one model on one cluster."""

    def __init__(self, grouping: Grouping, runtime: Runtime, can: NDArray[np.bool_], links: LinkCosts, watch: Watching) -> None:
        self.grouping, self.runtime, self.can, self.links, self.watch = grouping, runtime, can, links, watch
        self.groups, self.devices = can.shape
        self.once = np.full(self.devices, np.inf)  # seconds of the whole model in its first warm run
        self.short = self.complete = False  # whether time is too short for all of it; whether all of it was done
        free = Costs.zero(self.groups, replace(links.cluster, links=_measured(links.cluster)))
        self.segmenter = Segmenter(grouping, free)
        self.computes = self.segmenter.computes
        self.cutting = Cutting(grouping, can, self.computes, runtime.book.channels_last)
        self._known_shares: dict[int, NDArray[np.float64]] = {}
        self.kernels: dict[int, Sequence[Kernel]] = {}  # by number of a device that runs the whole model

    def shared(self) -> Costs:
        """Return the first runs as costs, in equal shares for all groups."""
        nothing = np.zeros(self.can.shape)
        core = np.where(self.can, self.once / self.groups, np.inf)
        dispatch = np.zeros(self.devices)
        return Costs(core, nothing, dispatch, self.links.cluster, nothing, dispatch, shared=True)

    def least(self, whole: Sequence[Passes]) -> Costs:
        """Return the least time of each group inside the whole model as costs; cutting groups off adds nothing."""
        for turn in range(_MIN_BLOCKS):
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

            def passes(plan: Plan, *, alone: bool = False) -> Passes:
                executor = stack.enter_context(runtime.executor(plan, alone=alone))
                return Passes(executor, runtime.model.sample_requests(), self.watch)

            def undivided(d: int) -> Passes | None:
                if self.can[:, d].all():
                    with contextlib.suppress(NoRoomError):  # there may be room for parts of the model
                        return passes(self.segmenter.plan(np.full(self.groups, d, np.int32)), alone=True)
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
            of = self.cutting.segments()

            def placed(segments: NDArray[np.int32]) -> Passes:
                return passes(self.segmenter.merged(of, segments[of]))

            cut = [placed(self.cutting.on(of, d)) for d in devices]
            apart = [placed(self.cutting.apart(of, turn)) for turn in devices] if self.devices > 1 and not self.short else []
            others = [*(timed for timed in whole if timed is not None), *apart]
            deadline = max(deadline, clock.now() + STEP_S)
            self._repeat(cut, [] if self.short else others, deadline, progress)
        self.runtime.compiler.make_room()  # the shares need the whole model, compiled with counters
        shares = [None if timed is None else self._shares(d) for d, timed in enumerate(whole)]
        return Evaluation(self.cutting, self.links, of, cut, whole, apart).costs(shares, alone=self.short)

    def remember(self, history: History, measured: dict[str, Any]) -> None:
        """Add the times of ops on each device that runs the whole model to the history."""
        runtime, core, cut, load = self.runtime, *(np.array(measured[what], float) for what in ("core", "cut", "load"))
        known = self.cutting.cut & self.computes
        for d, kernels in self.kernels.items():
            device, inside = runtime.cluster.devices[d], float(core[:, d].sum())
            if not any(kernel.seconds > 0 for kernel in kernels) or inside <= 0:
                continue
            each, per_byte = line(self.cutting.bytes[known], cut[known, d]) if known.any() else (0.0, 0.0)
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
        compiling = np.array([compiled.expected_s(compiled.kind(device), ops) for device in self.runtime.cluster.devices])
        slow = compiling > max(_SLOW_S, _SLOWER * float(compiling.min()))
        if (~slow & roomy).any():
            self.cutting.quick = ~slow & roomy
        between = int(self.cutting.quick.sum())
        most = max(_FEWEST_PROGRAMS, self.computes.sum() / _SHARE_CUT)
        if slow.any():
            # compiling a group takes about its share of the time for all ops
            each = float(compiling[slow].sum()) / max(1, int(self.computes.sum()))
            most = min(most, max(_FEWEST_SLOW, left * _COMPILING_SHARE / each) + between)
        if most < self.computes.sum():
            self.cutting.choose(most)

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
        while done < _MAX_BLOCKS and not all(timed.settled for timed in every):
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
                progress(f"profiling {self.groups} groups on {names}", done / _MAX_BLOCKS)

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

    def _shares(self, d: int) -> NDArray[np.float64]:
        if d not in self._known_shares:
            self._known_shares[d] = self._measured_shares(d)
        return self._known_shares[d]

    def _measured_shares(self, d: int) -> NDArray[np.float64]:
        runtime, device = self.runtime, self.runtime.cluster.devices[d]
        passes = _FEWEST if self.short else _COUNTED
        kind = device_kind(device)
        found = kind.kernels(runtime.model, self.grouping, device, runtime.precision, passes)
        if found is None:
            eager = replace(device, kind=kind.compiles or device.kind)
            found = groups_as_kernels(runtime.model, self.grouping, eager, runtime.precision, passes=passes)
        self.kernels[d] = found
        return group_shares(found, self.grouping)


def _measured(cluster: Cluster) -> dict[tuple[str, str], Link]:
    return {pair: link for pair, link in cluster.links.items() if link.origin == "measured"}
