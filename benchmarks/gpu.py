"""GPUs: the speed of copies, the host's part of a launch, and models and tensor graphs on one or more GPUs.

It needs NVIDIA GPUs and a PyTorch built with CUDA. If something is missing, it says what and ends without an error.

Each graph is optimized for the first GPU, for the first two, and so on, as ``placeit optimize`` does; then all answers run in
one race, interleaved. Every ratio is to plain PyTorch on the first GPU, which runs the uncut program. Utilisation is measured
by the driver: the share of time in which some kernel ran, as a mean over GPUs.

The networks are the networks of the examples, exported by PyTorch, each optimized for the first GPU and for the first GPU
beside all CPU cores. Their baselines are plain PyTorch, launching op by op, and the same launches as one CUDA graph. Networks
read their inputs from the host's pinned memory; inputs of graphs are on the devices before. All candidates leave outputs in
pinned memory.

The host overhead of an op is the time of an op in a chain of ops that compute next to nothing, each launched separately: all of
it is spent on the host. It includes PyTorch's part, which is also given separately.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

import torch

from benchmarks._harness import Args, Report, main, timed
from benchmarks._models import progress
from examples.models import MODELS, build_model, example_inputs
from placeit.backends.torch.model import load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.nvml import GpuSampler, gpu_use
from placeit.learning.workloads.tensor_graphs import TENSOR_GRAPHS
from placeit.learning.workloads.tensor_program import tensor_model
from placeit.measuring.measure import Race
from placeit.measuring.statistics import Measurement, faster
from placeit.optimizer.result import Candidate
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from placeit.runtime.accelerators.torch_library import open_torch, torch_streams
from placeit.runtime.devices.accelerator import HOST, Memory
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.runtime import Runtime
from placeit.session import Session, optimize

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
"""Sizes of the copies from which a link's latency and bandwidth are computed."""

_HOPS, _REPEATS, _SAMPLED_S, _BUDGET_S = 64, 11, 2.0, 40.0
_PLAIN = "PyTorch, uncut"


def missing() -> str | None:
    """Return what is missing: the driver or a GPU, or a PyTorch with CUDA; None if nothing is missing."""
    try:
        open_torch([Device("cuda:0", address=Address("cuda:0"))]).close()
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
    measure(discover([f"cuda:{number}" for number in range(torch.cuda.device_count())]), args, report)


def measure(cluster: Cluster, args: Args, report: Report) -> None:
    """Measure devices that PyTorch drives through streams."""
    for device in cluster.devices:
        report.row(device=device.name, card=device.full_name, memory_gb=device.memory_bytes / 1e9, driver=device.driver)
    with contextlib.closing(open_torch(cluster.devices)) as accelerator:
        progress("copying")
        copies(accelerator, report)
        progress("launching chains")
        overhead(cluster, accelerator, report)
    for name in args.models or (*MODELS, *TENSOR_GRAPHS):
        (_network if name in MODELS else _graph)(name, cluster, args, report)


def copies(accelerator: StreamAccelerator, report: Report) -> None:
    """Measure copies between pinned memory of the host and each device, and between devices.

    A pair of devices that cannot reach each other's memory copies through the host, as the executor does: one step after the
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
    for src, dst in itertools.permutations(ends, 2):
        quick, slow = seconds[src, dst, small], seconds[src, dst, large]
        rate = (large - small) / (slow - quick) if slow > quick else math.inf
        peer = HOST not in (src, dst) and accelerator.can_peer(src, dst)
        report.row(copy=f"{ends[src]} -> {ends[dst]}", gb_per_s=rate / 1e9, latency_us=quick * 1e6, peer_access=peer)


def _copy_seconds(accelerator: StreamAccelerator, src: int, dst: int, size: int) -> float:
    """Return the median seconds of a copy that the host launches and waits for."""
    spec = BufferSpec((size,), "uint8")
    ends: list[Memory] = []
    streams = [accelerator.open_stream(device) for device in ((dst,) if src == HOST else (src,) if dst == HOST else (src, dst))]
    try:
        ends.extend(accelerator.allocate(device, size) for device in (src, dst))
        source, destination = (accelerator.view(memory, spec) for memory in ends)
        beside = streams[1] if len(streams) > 1 else None

        def once() -> None:
            accelerator.copy(streams[0], source, destination, beside)
            accelerator.finish(streams[0])

        return median([timed(once)() for _ in range(_REPEATS)][1:])  # the first one may include initialisation
    finally:
        for memory in ends:
            accelerator.free(memory)
        for stream in streams:
            accelerator.close_stream(stream)


def overhead(cluster: Cluster, accelerator: StreamAccelerator, report: Report) -> None:
    """Measure the time of an op that computes next to nothing, launched by placeit and by plain PyTorch."""
    model = tensor_model("chain-mm", size=1).chain(1, _HOPS)
    values = {name: value.to(accelerator.place(0)) for name, value in model.values.items()}
    grouping, first = Grouping.singletons(model.graph), Cluster(cluster.devices[:1])
    groups = len(grouping.groups)
    runtime = Runtime(model, grouping, first, streams=torch_streams(accelerator))  # the caller closes the accelerator
    plan = Segmenter(grouping, Costs.zero(groups, first)).plan([0] * groups, merge=False)

    def plain() -> None:
        model.program.run(values)
        _synchronize(accelerator.place(0))

    with runtime.executor(plan) as executor:
        candidates = {"plain PyTorch": timed(plain), "placeit": executor.time}
        for who, measured in Race(candidates).run(rounds=_REPEATS, drop_losers=False).items():
            report.row(launches=who, us_per_op=measured.median / _HOPS * 1e6)
            if who == "placeit":
                report.claim("host overhead per op launched, median", measured.median / _HOPS * 1e6, "us", at_most=15)


def _graph(name: str, cluster: Cluster, args: Args, report: Report) -> None:
    """Optimize a graph for the first device, the first two, and so on, and race the answers against plain PyTorch."""
    devices = len(cluster)
    model = tensor_model(name, shards=max(4, 2 * devices), seed=args.seed, **({} if args.quick else LARGE[name]))
    place = torch.device(cluster.devices[0].where.hardware)
    values = {key: value.to(place) for key, value in model.values.items()}

    def whole() -> list[torch.Tensor]:
        return list(model.whole.run(values).values())

    candidates: dict[str, Callable[[], float]] = {_PLAIN: timed(_eager(whole, {}, place))}
    answers: dict[str, Candidate] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cache = Cache(Path(folder), runs=False)
        for count in range(1, devices + 1):
            who, part = f"placeit on {count}", Cluster(cluster.devices[:count])
            budget = _BUDGET_S / 4 if args.quick else _BUDGET_S
            found = optimize(model, part, budget=budget, seed=args.seed, cache=cache, progress=progress)
            report.note(f"  {name} on {count}: {found.chosen.name}; {found.reason}")
            answers[who] = found.chosen
            session = stack.enter_context(Session(model, part, cache=cache))
            candidates[who] = stack.enter_context(session.executor(found.chosen.plan)).time
        progress(f"{name}: racing {len(candidates)} candidates")
        results = Race(candidates, seed=args.seed).run(rounds=8 if args.quick else 20, drop_losers=False)
        for who, measured in results.items():
            busy, peak = _use(candidates[who], measured, 0.2 if args.quick else _SAMPLED_S)
            report.row(
                graph=name,
                candidate=who,
                **_figures(measured, results[_PLAIN], answers.get(who)),
                utilization=busy,
                peak_memory_gb=peak,
                output_error=_error(answers.get(who)),
            )


def _network(name: str, cluster: Cluster, args: Args, report: Report) -> None:
    """Optimize a network for the first device, alone and beside all cores, and race the answers against PyTorch."""
    module, inputs = build_model(name, seed=args.seed), example_inputs(name)
    model, first = load(module, tuple(inputs.values()), name=name), Cluster(cluster.devices[:1])
    place = torch.device(first.devices[0].where.hardware)
    cores = discover([f"CPU@{min(allowed_cores())}-{max(allowed_cores())}"]).devices
    clusters = {"placeit": first, "placeit, with the CPU": Cluster((*first.devices, *cores))}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cache = Cache(Path(folder), runs=False)
        candidates: dict[str, Callable[[], float]] = {}
        answers: dict[str, Candidate] = {}
        for who, devices in clusters.items():
            found = optimize(
                model, devices, budget=_BUDGET_S / (4 if args.quick else 2), seed=args.seed, cache=cache, progress=progress
            )
            report.note(f"  {name} on {', '.join(devices.names)}: {found.chosen.name}; {found.reason}; {found.simulator_error}")
            answers[who] = found.chosen
            session = stack.enter_context(Session(model, devices, cache=cache))
            candidates[who] = stack.enter_context(session.executor(found.chosen.plan)).time
        candidates |= {_PLAIN: timed(_eager(module, inputs, place))}  # here, float32 is not rounded, as in placeit
        if place.type == "cuda":
            candidates["PyTorch, as a CUDA graph"] = timed(_eager(_graphed(module, inputs, place), inputs, place))
        progress(f"{name}: racing {len(candidates)} candidates")
        results = Race(candidates, seed=args.seed).run(rounds=20 if args.quick else 60, drop_losers=False)
        for who, measured in results.items():
            report.row(
                network=name,
                candidate=who,
                **_figures(measured, results[_PLAIN], answers.get(who)),
                output_error=_error(answers.get(who)),
            )


def _figures(measured: Measurement, plain: Measurement, answer: Candidate | None) -> dict[str, float | None]:
    """Return columns about the time of a candidate; ``answer`` is None if the candidate is not placeit's."""
    ratio = faster(measured, plain)
    return {
        "median_ms": measured.median * 1e3,
        "ratio_to_plain": ratio.ratio,
        "ratio_low": ratio.ci_low,
        "ratio_high": ratio.ci_high,
        "simulated_ms": None if answer is None or answer.simulated_s is None else answer.simulated_s * 1e3,
    }


def _error(answer: Candidate | None) -> float | None:
    return None if answer is None or answer.output_error is None else answer.output_error.max_rel


def _eager(module: Callable[..., Any], inputs: Mapping[str, torch.Tensor], place: torch.device) -> Callable[[], object]:
    """Run a module from inputs in pinned memory to outputs there; it is moved to the device."""
    there = module.to(place) if isinstance(module, torch.nn.Module) else module
    pinned = [value.pin_memory() if place.type == "cuda" else value for value in inputs.values()]
    kept: list[torch.Tensor] = []

    def run() -> None:
        with torch.inference_mode():
            made = there(*(value.to(place, non_blocking=True) for value in pinned))
            outputs = [made] if isinstance(made, torch.Tensor) else list(made)
            if not kept:
                kept.extend(torch.empty_like(value, device="cpu", pin_memory=place.type == "cuda") for value in outputs)
            for mine, value in zip(kept, outputs, strict=True):
                mine.copy_(value, non_blocking=True)
            _synchronize(place)

    return run


def _graphed(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], place: torch.device) -> Callable[..., Any]:
    """Record a module as a CUDA graph, as PyTorch's documentation does."""
    cuda: Any = torch.cuda
    module.to(place)
    fixed = [value.to(place) for value in inputs.values()]
    with torch.inference_mode():
        beside = cuda.Stream()
        with cuda.stream(beside):
            for _ in range(3):
                module(*fixed)
        beside.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            made = module(*fixed)

    def run(*values: torch.Tensor) -> Any:
        for mine, value in zip(fixed, values, strict=True):
            mine.copy_(value, non_blocking=True)
        graph.replay()
        return made

    return run


def _use(candidate: Callable[[], float], measured: Measurement, seconds: float) -> tuple[float | None, float | None]:
    """Return the mean utilisation of the GPUs while a candidate runs repeatedly, and the most memory in use, in gigabytes."""
    with GpuSampler() as sampler:
        for _ in range(max(1, math.ceil(seconds / measured.median))):
            candidate()
    uses = gpu_use(sampler.samples).values()
    busy = [use.utilization for use in uses if use.utilization is not None]
    peak = [use.peak_memory_bytes for use in uses if use.peak_memory_bytes is not None]
    return fmean(busy) if busy else None, max(peak) / 1e9 if peak else None


def _synchronize(place: torch.device) -> None:
    """Wait for work that PyTorch launched outside of the accelerator's streams."""
    if place.type != "cpu":
        torch.get_device_module(place.type).synchronize(place)


if __name__ == "__main__":
    main("gpu", run, models=(*MODELS, *TENSOR_GRAPHS))
