"""GPUs: what copies achieve, what the host adds to a launch, and tensor graphs on one and more of them, through streams.

Needs NVIDIA GPUs, a PyTorch built with CUDA, and CuPy; where something is missing, it says what and ends without an error.

Costs of ops are measured on the first GPU, one op at a time; those of links are the copies'; the placement is simulated
annealing's; and every candidate of a graph runs in one race, interleaved. Every ratio is to plain PyTorch on the first GPU,
which runs the uncut program. Utilisation is the driver's: the share of time in which some kernel ran, as a mean over GPUs.

The host overhead of an op is what an op takes in a chain of ops that compute next to nothing, each launched by itself: all of
it is the host's, PyTorch's own part included, which is also given.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._harness import Args, Report, main
from benchmarks._models import progress
from placeit.backends.coarsen import Grouping, coarsen
from placeit.backends.tensor_program import TensorProgram, load
from placeit.cluster import Cluster, Device, Link
from placeit.errors import DeviceError
from placeit.placers.api import place
from placeit.profiler.nvml import GpuSampler, gpu_use
from placeit.runtime.devices.base import TensorSpec
from placeit.runtime.measure import Measurement, faster, race, timed
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Costs, Plan, Segmenter
from placeit.runtime.streams.accelerator import HOST, Memory
from placeit.runtime.streams.executor import Order, StreamExecutor
from placeit.runtime.streams.module_program import ModuleProgram, work_of
from placeit.runtime.streams.torch_accelerator import TorchAccelerator
from placeit.session import OutputError
from placeit.workloads.tensor_graphs import TENSOR_GRAPHS

LARGE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "chain-mm": {"size": 8192},
        "ffnn": {"batch": 2**14, "hidden": 2**14},
        "llama-block": {"tokens": 2048, "width": 4096, "heads": 32, "hidden": 11008},
        "llama-layer": {"tokens": 2048, "width": 4096, "heads": 32, "hidden": 11008, "vocabulary": 32000},
    }
)
"""Sizes that keep a GPU busy for milliseconds; with ``--quick``, the graphs' own."""

COPY_BYTES = (1 << 12, 1 << 27)
"""Of the copies that say what a link's latency and bandwidth are."""

_HOPS, _REPEATS, _SAMPLED_S = 64, 11, 2.0
_PLAIN = "PyTorch, uncut"


def missing() -> str | None:
    """Say what there is not: the driver or a GPU, a PyTorch with CUDA, or CuPy; None if all is there."""
    try:
        TorchAccelerator(["cuda:0"]).close()
    except DeviceError as error:
        return str(error)
    return None


def run(args: Args, report: Report) -> None:
    """Fill the report, if there is a GPU."""
    lack = missing()
    if lack is not None:
        report.note(f"  No GPU was measured. {lack}")
        report.row(measured=False, missing=lack)
        return
    accelerator = TorchAccelerator([f"cuda:{number}" for number in range(torch.cuda.device_count())])
    with contextlib.closing(accelerator):
        measure(accelerator, args, report)


def measure(accelerator: TorchAccelerator, args: Args, report: Report) -> None:
    """Measure the devices of an accelerator."""
    progress("copying")
    links = copies(accelerator, report)
    progress("launching chains")
    overhead(accelerator, report)
    for name in args.models or TENSOR_GRAPHS:
        _graph(name, accelerator, links, args, report)


def copies(accelerator: TorchAccelerator, report: Report) -> dict[tuple[str, str], Link]:
    """Measure copies between pinned memory of the host and each device, and between devices; returns the latter as links.

    A pair of devices that cannot reach each other's memory copies through the host, as the executor does: one leg after the
    other.
    """
    names = accelerator.names
    ends = {HOST: "host", **dict(enumerate(names))}
    small, large = COPY_BYTES
    seconds: dict[tuple[int, int, int], float] = {}
    for src, dst in itertools.permutations(ends, 2):
        if HOST in (src, dst) or accelerator.can_peer(src, dst):
            seconds |= {(src, dst, size): _copy_seconds(accelerator, src, dst, size) for size in COPY_BYTES}
    for src, dst in itertools.permutations(range(len(names)), 2):
        for size in COPY_BYTES:
            seconds.setdefault((src, dst, size), seconds[src, HOST, size] + seconds[HOST, dst, size])
    links = {}
    for src, dst in itertools.permutations(ends, 2):
        quick, slow = seconds[src, dst, small], seconds[src, dst, large]
        rate = (large - small) / (slow - quick) if slow > quick else math.inf
        peer = HOST not in (src, dst) and accelerator.can_peer(src, dst)
        report.row(copy=f"{ends[src]} -> {ends[dst]}", gb_per_s=rate / 1e9, latency_us=quick * 1e6, peer_access=peer)
        if HOST not in (src, dst):
            links[names[src], names[dst]] = Link(rate, quick)
    return links


def _copy_seconds(accelerator: TorchAccelerator, src: int, dst: int, size: int) -> float:
    """Median seconds of a copy that the host launches and waits for."""
    spec = TensorSpec((size,), "uint8")
    ends: list[Memory] = []
    try:
        ends.extend(accelerator.allocate(device, size) for device in (src, dst))
        source, destination = (accelerator.view(memory, spec) for memory in ends)
        stream = accelerator.stream(dst if src == HOST else src, 1)

        def once() -> None:
            accelerator.copy(stream, source, destination)
            accelerator.finish([stream])

        return median([timed(once)() for _ in range(_REPEATS)][1:])  # the first one may set things up
    finally:
        for memory in ends:
            accelerator.free(memory)


def overhead(accelerator: TorchAccelerator, report: Report) -> None:
    """Measure what an op takes that computes next to nothing, in each order of launches and in plain PyTorch."""
    model = load("chain-mm", size=1).chain(1, _HOPS)
    values = {name: value.to(accelerator.place(0)) for name, value in model.values.items()}

    def plain() -> None:
        model.program.run(values)
        _synchronize(accelerator)

    candidates: dict[str, Callable[[], float]] = {"plain PyTorch": timed(plain)}
    with contextlib.ExitStack() as stack:
        orders: tuple[Order, ...] = ("dynamic", "static", "graph")
        for order in orders:
            runtime = _runtime(model, Grouping.singletons(model.graph), _cluster(accelerator, 1, {}))
            plan = Segmenter(runtime.grouping, Costs.free(len(runtime.grouping.groups), runtime.cluster)).plan(
                [0] * len(runtime.grouping.groups), merge=False
            )
            try:
                executor = StreamExecutor(work_of(runtime, plan), accelerator, order=order)
            except DeviceError as error:
                report.note(f"  order '{order}': {error}")
                continue
            candidates[order] = stack.enter_context(executor).time
        for who, measured in race(candidates, rounds=_REPEATS, drop_losers=False).items():
            report.row(launches=who, us_per_op=measured.median / _HOPS * 1e6)
            if who == "dynamic":
                report.claim("host overhead per op launched, median", measured.median / _HOPS * 1e6, "us", at_most=15)


def _graph(name: str, accelerator: TorchAccelerator, links: Mapping[tuple[str, str], Link], args: Args, report: Report) -> None:
    devices = len(accelerator.names)
    progress(f"{name}: timing ops")
    model = load(name, shards=max(4, 2 * devices), seed=args.seed, **({} if args.quick else LARGE[name]))
    grouping = coarsen(model.graph, max_groups=256)
    core = _group_seconds(model, grouping, accelerator)
    values = {key: value.to(accelerator.place(0)) for key, value in model.values.items()}
    reference = model.cut(model.whole.run(values))

    def plain() -> None:
        model.whole.run(values)
        _synchronize(accelerator)

    executors: dict[str, StreamExecutor] = {}
    predicted: dict[str, Plan] = {}
    errors: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        for count in range(1, devices + 1):
            who = f"placeit on {count}"
            cluster = _cluster(accelerator, count, links)
            groups = len(grouping.groups)
            segmenter = Segmenter(
                grouping, Costs(np.tile(core[:, None], count), np.zeros((groups, count)), np.zeros(count), cluster)
            )
            placement = place(segmenter.problem(), "annealing", seed=args.seed)
            plan = predicted[who] = segmenter.plan(placement.devices)
            work = work_of(_runtime(model, grouping, cluster), plan)
            progress(f"{name}: making the plan for {count} of {devices} devices")
            executors[who] = stack.enter_context(StreamExecutor(work, accelerator))
            errors[who] = OutputError.between(executors[who].run({}), reference).max_rel
        candidates = {who: executor.time for who, executor in executors.items()} | {_PLAIN: timed(plain)}
        progress(f"{name}: racing {len(candidates)} candidates")
        results = race(candidates, rounds=8 if args.quick else 20, seed=args.seed, drop_losers=False)
        for who, measured in results.items():
            busy, peak = _use(candidates[who], measured, 0.2 if args.quick else _SAMPLED_S)
            ratio = faster(measured, results[_PLAIN])
            report.row(
                graph=name,
                candidate=who,
                median_ms=measured.median * 1e3,
                ratio_to_plain=ratio.ratio,
                ratio_low=ratio.ci_low,
                ratio_high=ratio.ci_high,
                simulated_ms=predicted[who].schedule.makespan * 1e3 if who in predicted else None,
                utilization=busy,
                peak_memory_gb=peak,
                output_error=errors.get(who),
            )


def _group_seconds(model: TensorProgram, grouping: Grouping, accelerator: TorchAccelerator) -> NDArray[np.float64]:
    """Seconds of each group on the first device, ``float64[G]``: the median of a few runs that the host waits for."""
    cluster = _cluster(accelerator, 1, {})
    groups = len(grouping.groups)
    plan = Segmenter(grouping, Costs.free(groups, cluster)).plan([0] * groups, merge=False)
    runtime, seconds = _runtime(model, grouping, cluster), np.zeros(groups)
    stream = accelerator.stream(0, 0)
    for segment in plan.segments:
        if segment.free:
            continue
        source = runtime.source(segment)
        program = ModuleProgram(cast("torch.nn.Module", source.torch_module()))
        program.load(accelerator.place(0))
        memory: list[Memory] = []
        try:
            views = []
            for spec in (*source.inputs, *source.outputs):
                memory.append(accelerator.allocate(0, math.prod(spec.shape) * np.dtype(spec.dtype).itemsize))
                views.append(accelerator.view(memory[-1], spec))
                views[-1].zero_()
            inputs, outputs = views[: len(source.inputs)], views[len(source.inputs) :]
            _synchronize(accelerator)  # zeros come by another stream

            def once(
                program: ModuleProgram = program,
                inputs: Sequence[torch.Tensor] = inputs,
                outputs: Sequence[torch.Tensor] = outputs,
            ) -> None:
                accelerator.launch(stream, program, inputs, outputs)
                accelerator.finish([stream])

            seconds[segment.groups[0]] = median([timed(once)() for _ in range(5)][2:])
        finally:
            program.unload()
            for piece in memory:
                accelerator.free(piece)
    return seconds


def _use(candidate: Callable[[], float], measured: Measurement, seconds: float) -> tuple[float | None, float | None]:
    """Mean utilisation of the GPUs while a candidate runs again and again, and most memory in use, in gigabytes."""
    with GpuSampler() as sampler:
        for _ in range(max(1, math.ceil(seconds / measured.median))):
            candidate()
    uses = gpu_use(sampler.samples).values()
    busy = [use.utilization for use in uses if use.utilization is not None]
    peak = [use.peak_memory_bytes for use in uses if use.peak_memory_bytes is not None]
    return fmean(busy) if busy else None, max(peak) / 1e9 if peak else None


def _cluster(accelerator: TorchAccelerator, count: int, links: Mapping[tuple[str, str], Link]) -> Cluster:
    names = accelerator.names[:count]
    devices = tuple(
        Device(name, kind="cuda", runs_on=name, memory_bytes=accelerator.free_bytes(number))
        for number, name in enumerate(names)
    )
    return Cluster(devices, {ends: link for ends, link in links.items() if names.count(ends[0]) and names.count(ends[1])})


def _runtime(model: TensorProgram, grouping: Grouping, cluster: Cluster) -> Runtime:
    return Runtime(model, grouping, cluster, devices=(), transports={})


def _synchronize(accelerator: TorchAccelerator) -> None:
    """Wait for what PyTorch was asked outside of the accelerator's streams."""
    if accelerator.type != "cpu":
        for number in range(len(accelerator.names)):
            torch.get_device_module(accelerator.type).synchronize(accelerator.place(number))


if __name__ == "__main__":
    main("gpu", run, models=tuple(TENSOR_GRAPHS))
