"""Measure the costs of groups on devices, in runs of the whole model and of the model cut into groups."""

from __future__ import annotations

import contextlib
import functools
import math
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
from placeit.profiler.cache import Cache, CachedValue
from placeit.profiler.cached_costs import cost_key, costs_of, find_costs, outdated
from placeit.profiler.cutting import Cutting
from placeit.profiler.from_passes import Evaluation, fit_line
from placeit.profiler.kernel_history import History, Overheads, history_key
from placeit.profiler.kernel_times import profiled_model
from placeit.profiler.links import LinkCosts, probe
from placeit.profiler.machine_load import MachineLoad, Watch
from placeit.profiler.passes import Passes, Progress, without_emulated_links
from placeit.profiler.support import supported
from placeit.runtime.devices.kernels import Kernel, group_shares
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.group_times import groups_as_kernels
from placeit.runtime.runtime import Runtime

__all__ = ["Certain", "Progress", "Worth", "cached_costs", "profile"]

Worth = Callable[[NDArray[np.float64]], bool]
"""``worth(seconds: float64[D])``: returns whether to profile, given the seconds of one run of the whole model on each device.

The seconds are ``inf`` on devices that cannot run the whole model.
"""

Certain = Callable[[NDArray[np.float64]], bool]
"""``certain(core: float64[G, D])``: returns whether to stop, given the minimum seconds of each group in the whole model."""

_FULL_RUNS, _FULL_RUNS_ALONE = 15, 8  # time of a full profile, in runs of the whole model: on several devices, and on one
_GOLDEN = 0.618  # step of the phase between blocks (golden ratio), so that phases are spread evenly
_MIN_BLOCKS, _MAX_BLOCKS = 3, 12  # minimum and maximum number of blocks of each program
_MIN_RUNS, _MIN_S = 12, 1.0  # runs of a program and total seconds of all blocks after which no further blocks are needed
_COUNTER_RUNS = 12  # maximum runs of the whole model over which a runtime's counters are averaged; at least `_MIN_BLOCKS`
_LEAST_TIME_BLOCKS, _LEAST_TIME_RUNS = 3, 60  # blocks to find the minimum time of the whole model, and time they need, in runs
_MIN_PROGRAMS, _GROUPS_PER_PROGRAM = 12, 3  # limit on programs: 12, or a third of the groups if that is more
_SLOW_S, _SLOW_RATIO = 2.0, 4.0  # compiling is slow if it takes longer than 2 s, and 4 times as long as on the fastest device
_MIN_SLOW_GROUPS, _COMPILING_SHARE = 2, 0.4  # if compiling is slow: least groups to cut off, share of the time to compile them
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
    """Measure the costs of all groups on all devices that can run them.

    Programs run in blocks of consecutive runs, as in normal use, and the warm-up runs of each block are discarded
    (:mod:`placeit.profiler.passes`). Blocks of all programs take turns in random order, so that other work on the machine
    affects them equally:

    - The whole model on each device. Its time is divided among the groups by the per-op counters of the runtime: ``core``.
    - The model with some of its groups cut off, on each device. The time of such a group in excess of its ``core`` is its
      ``cut``. These groups are chosen so that each group is similar to one of them, and the ``cut`` of the other groups is
      predicted (:mod:`placeit.profiler.sampling`). The groups between them run as one segment, on the same device, or on
      another device if that compiles much faster.
    - These programs, while as many other devices as possible run theirs. The additional time is ``load``.
    - These groups, with each cut-off group on another device than the groups it reads from. The additional time is the cost of
      handing over to another device (the link's latency), and of reading tensors that another device wrote (``read``).

    Each time is a median over blocks, and each difference a median over the differences within turns. The blocks also give the
    remaining time of a request: ``host``. A block that other processes disturbed is repeated while there is time, and is
    ignored if there are three undisturbed blocks. On a device that cannot run the whole model, the cost of a group is its time
    as a separate segment, or its share of the time of a segment of several groups.

    Args:
        model: the model.
        grouping: its groups.
        cluster: real devices; links without figures are probed.
        runtime: runs the measurements.
        budget_s: seconds to spend, including compilation. 3 to 12 blocks of each program are run, until their times are steady.
            The longer devices compile, the fewer groups are cut off. If the time ends before three blocks, fewer count, and the
            result is not cached. If it is shorter still, each device runs the model with groups cut off one to three times,
            without load: the costs of load and of reading from other devices are then zero. The first run of a program counts
            only if there is no time for another.
        cache: cache for results; None for no cache.
        check: whether to run the whole model briefly on each device if costs are cached, and to profile again, with a warning,
            if its time has changed.
        watch: creates the monitor that detects disturbed blocks.
        progress: called between turns.
        worth: called with the seconds of one run of the whole model, unless costs are cached. If it returns False, profiling
            stops, and the costs are these seconds, divided equally among all groups
            (:attr:`placeit.planning.segments.Costs.shared`).
        certain: called with the minimum time of each group in the whole model, unless costs are cached. It is only called if
            there are several devices, all driven by OpenVINO, that can all run the whole model. If it returns True, profiling
            stops: the costs are these times, and cut costs are zero.
    """
    begin = clock.now()
    can = supported(model, grouping, cluster)
    key = cost_key(grouping, cluster, runtime)
    found = find_costs(cache, key, can) if cache is not None else None
    stale = found is not None and check and outdated(found, grouping, runtime, can, budget_s * _CHECK_SHARE, watch(), progress)
    if progress is not None:
        progress("probing links", 0.0)
    links = probe(
        cluster,
        chain=model.chain,
        precision=runtime.precision,
        cache=cache,
        refresh=stale,
        deadline=begin + budget_s / 2,
        compiling=runtime.compiler.compiling,
    )
    cached = found is not None and not stale
    if found is None or stale:
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
            found = CachedValue(measured, time.time(), load.cores())
    return costs_of(found, links, cluster, cached=cached)


def cached_costs(model: Model, grouping: Grouping, cluster: Cluster, runtime: Runtime, cache: Cache) -> Costs | None:
    """Return the costs that :func:`profile` has cached, or None. Links that are not cached are probed."""
    can = supported(model, grouping, cluster)
    found = find_costs(cache, cost_key(grouping, cluster, runtime), can)
    if found is None:
        return None
    links = probe(cluster, chain=model.chain, precision=runtime.precision, cache=cache, compiling=runtime.compiler.compiling)
    return costs_of(found, links, cluster, cached=True)


class _Profile:
    """Measurements of :func:`profile` for one model on one cluster."""

    def __init__(self, grouping: Grouping, runtime: Runtime, can: NDArray[np.bool_], links: LinkCosts, watch: Watching) -> None:
        self.grouping, self.runtime, self.can, self.links, self.watch = grouping, runtime, can, links, watch
        self.groups, self.devices = can.shape
        self.first_run_s = np.full(self.devices, np.inf)  # seconds of the whole model in its first warm run
        self.time_is_short = False  # there is no time for a full profile
        self.complete = False  # a full profile was measured
        self.run_s, self.deadline = 0.0, math.inf  # seconds of the whole model on all devices; end of the profile
        free = Costs.zero(self.groups, replace(links.cluster, links=_measured(links.cluster)))
        self.segmenter = Segmenter(grouping, free)
        self.computes = self.segmenter.computes
        self.cutting = Cutting(grouping, can, self.computes, runtime.book.channels_last)
        self.kernels: dict[int, Sequence[Kernel]] = {}  # by number of a device that runs the whole model

    def shared(self) -> Costs:
        """Divide the times of the first runs equally among all groups, and return them as costs."""
        nothing, none = np.zeros(self.can.shape), np.zeros(self.devices)
        core = np.where(self.can, self.first_run_s / self.groups, np.inf)
        return Costs(core, nothing, none, self.links.cluster, nothing, none, shared=True)

    def least(self, whole: Sequence[Passes]) -> Costs:
        """Return the minimum time of each group in the whole model as costs, with cut costs of zero."""
        for turn in range(_LEAST_TIME_BLOCKS):
            for timed in whole:
                timed.block(turn)
        seconds = [min(timed.interval) for timed in whole]
        core = np.stack([self._shares(d) * each for d, each in enumerate(seconds)], axis=1)
        nothing, none = np.zeros(self.can.shape), np.zeros(self.devices)
        return Costs(core, nothing, self.links.dispatch, self.links.cluster, nothing, none)

    def measure(
        self, deadline: float, progress: Progress | None, worth: Worth | None, certain: Certain | None
    ) -> dict[str, Any] | Costs | None:
        """Measure costs until the deadline.

        Returns:
            The costs in the format of the cache; the minimum costs if ``certain`` stopped profiling; None if ``worth`` did.
        """
        devices = range(self.devices)
        with contextlib.ExitStack() as stack:
            runtime = without_emulated_links(self.runtime, self.grouping, stack)

            def passes(plan: Plan, *, alone: bool = False) -> Passes:
                executor = stack.enter_context(runtime.executor(plan, alone=alone))
                return Passes(executor, runtime.model.sample_requests(), self.watch, runtime.reached)

            def undivided(d: int) -> Passes | None:
                if self.can[:, d].all():
                    with contextlib.suppress(NoRoomError):  # there may be room for parts of the model
                        return passes(self.segmenter.plan(np.full(self.groups, d, np.int32)), alone=True)
                return None

            whole = [undivided(d) for d in devices]
            for d, timed in enumerate(whole):
                if timed is not None:
                    timed.run_warm(deadline)
                    self.first_run_s[d] = timed.seconds.max()
            first_run_s = float(self.first_run_s[np.isfinite(self.first_run_s)].sum())
            if worth is not None and first_run_s > 0 and not worth(self.first_run_s):
                return None
            able = [timed for timed in whole if timed is not None]
            counted = all(map(driven_by_openvino, self.runtime.cluster.devices))  # counters give the times of groups
            quick = _LEAST_TIME_RUNS * first_run_s < deadline - clock.now()
            if certain is not None and quick and len(able) == self.devices > 1 and counted:
                least = self.least(able)
                if certain(least.core):
                    return least
            self.run_s, self.deadline = first_run_s, deadline
            if able and not self.kernels:  # the whole model is compiled and run again, with counters
                able_devices = (self.runtime.cluster.devices[d] for d in devices if whole[d] is not None)
                deadline -= sum(map(self.runtime.compiler.expected_whole_s, able_devices)) + _MIN_BLOCKS * first_run_s
            left = max(deadline - clock.now(), STEP_S)
            self.time_is_short = left < first_run_s * (_FULL_RUNS if self.devices > 1 else _FULL_RUNS_ALONE)
            if able:  # the time of a segment of several groups is divided by their shares of the whole model
                self._choose(left, np.array([timed is not None for timed in whole]) | ~self.can.all(axis=0))
            of = self.cutting.segments()

            def placed(segments: NDArray[np.int32]) -> Passes:
                return passes(self.segmenter.merged(of, segments[of]))

            cut = [placed(self.cutting.on(of, d)) for d in devices]
            apart: list[Passes] = []
            if self.devices > 1 and not self.time_is_short:
                apart = [placed(self.cutting.apart(of, turn)) for turn in devices]
            deadline = max(deadline, clock.now() + STEP_S)
            self._repeat(cut, [] if self.time_is_short else [*able, *apart], deadline, progress)
        self.runtime.compiler.make_room()  # to compile the whole model again, with counters, for the shares
        shares = [None if timed is None else self._shares(d) for d, timed in enumerate(whole)]
        return Evaluation(self.cutting, self.links, of, cut, whole, apart).costs(shares, alone=self.time_is_short)

    def remember(self, history: History, measured: dict[str, Any]) -> None:
        """Add the times of ops on each device that runs the whole model to the history."""
        runtime, core, cut, load = self.runtime, *(np.array(measured[what], float) for what in ("core", "cut", "load"))
        known = self.cutting.cut & self.computes
        for d, kernels in self.kernels.items():
            device, inside = runtime.cluster.devices[d], float(core[:, d].sum())
            if not any(kernel.seconds > 0 for kernel in kernels) or inside <= 0:
                continue
            each, per_byte = fit_line(self.cutting.bytes[known], cut[known, d]) if known.any() else (0.0, 0.0)
            alone = inside + float(cut[:, d].sum())
            under_load = max(0.0, float(load[:, d].sum()) / alone)
            beyond = Overheads(measured["dispatch"][d], each, per_byte, under_load, measured["read"][d])
            model, name = runtime.model, Path(str(runtime.model.path)).name
            profiled = profiled_model(str(model.identity), name, model.graph, kernels, inside, beyond)
            history.add(history_key(device, runtime.precision), profiled)

    def _choose(self, left: float, roomy: NDArray[np.bool_]) -> None:
        """Choose the groups that are cut off, and the devices that run the segments between them.

        Args:
            left: remaining seconds of the budget.
            roomy: ``bool[D]``, False for devices that can run all groups, but have no memory for the whole model.
        """
        compiled, ops = self.runtime.compiler.compiling, len(self.grouping.graph)
        compiling = np.array([compiled.expected_s(compiled.kind(device), ops) for device in self.runtime.cluster.devices])
        slow = compiling > max(_SLOW_S, _SLOW_RATIO * float(compiling.min()))
        if (~slow & roomy).any():
            self.cutting.quick = ~slow & roomy
        between = int(self.cutting.quick.sum())
        max_programs = max(_MIN_PROGRAMS, self.computes.sum() / _GROUPS_PER_PROGRAM)
        if slow.any():
            # the time to compile all groups is about the time to compile the model
            each = float(compiling[slow].sum()) / max(1, int(self.computes.sum()))
            max_programs = min(max_programs, max(_MIN_SLOW_GROUPS, left * _COMPILING_SHARE / each) + between)
        if max_programs < self.computes.sum():
            self.cutting.choose(max_programs)

    def _repeat(self, cut: Sequence[Passes], others: Sequence[Passes], deadline: float, progress: Progress | None) -> None:
        names, every = ", ".join(self.runtime.cluster.names), [*cut, *others]
        if self.time_is_short:
            self._run_briefly(every, deadline)
            return
        at_once = [[cut[other] for other in beside(self.runtime.cluster.conflicts(), d)] for d in range(len(cut))]
        for timed in every:
            timed.run()
            timed.forget()
        random, done, spent, repeating = np.random.default_rng(0), 0, 0.0, 0.0
        while done < _MAX_BLOCKS and not all(timed.steady for timed in every):
            now, each = clock.now(), spent / max(done, 1)
            enough = spent >= _MIN_S and max(timed.runs for timed in every) >= _MIN_RUNS
            if (enough and done >= _MIN_BLOCKS) or (done > 0 and now + each >= deadline):
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
            while disturbed and repeating < spent and ended < deadline:  # repeating takes at most as long as the blocks
                disturbed.pop()()
                repeating, ended = repeating + clock.now() - ended, clock.now()
            done += 1
            self.complete = done >= _MIN_BLOCKS
            if progress is not None:
                progress(f"profiling {self.groups} groups on {names}", done / _MAX_BLOCKS)

    def _run_briefly(self, every: Sequence[Passes], deadline: float) -> None:
        """Run each program one to three times without load. The first run counts only if there is no time for another."""
        last = 0.0
        for turn in range(_MIN_BLOCKS):
            now = clock.now()
            if turn > 0 and now + last >= deadline:
                break
            for timed in every:
                if turn == 1:
                    timed.forget()
                timed.run(turn)
            last = clock.now() - now

    def _shares(self, d: int) -> NDArray[np.float64]:
        """Return the share of each group in the time of the whole model, ``float64[G]``, by counters that are read once."""
        if d not in self.kernels:
            runtime, device = self.runtime, self.runtime.cluster.devices[d]
            passes = int(np.clip((self.deadline - clock.now()) / max(self.run_s, 1e-9), _MIN_BLOCKS, _COUNTER_RUNS))
            kind = device_kind(device)
            found = kind.kernels(runtime.model, self.grouping, device, runtime.precision, passes)
            if found is None:
                eager = replace(device, kind=kind.compiles or device.kind)
                found = groups_as_kernels(runtime.model, self.grouping, eager, runtime.precision, passes=passes)
            self.kernels[d] = found
        return group_shares(self.kernels[d], self.grouping)


def _measured(cluster: Cluster) -> dict[tuple[str, str], Link]:
    return {pair: link for pair, link in cluster.links.items() if link.origin == "measured"}
