"""The overhead of a call, by the clock of the caller: alone, under load, and with large tensors.

Each case makes blocks of consecutive calls, which the calling thread times from outside. Blocks of all cases of a part are
interleaved over many rounds. A figure is the median over the blocks of the mean call of a block. Differences and ratios of two
cases are paired by round. Plain OpenVINO runs the same models with as many threads beside placeit. The models are built here:
MLPs of 4 layers of 128, and of 4 layers of 512 on 32 rows. CPU time is the time of all threads of the process.

- alone: one call after the other. "run, one segment" has the whole model on one core. "run, two segments" has half of it on
  each of two cores, in a chain. Their *work* is the sum of the times that OpenVINO reports for both halves on the calling
  thread (``InferRequest.latency``), without any Python. Threads that spin wait awake for 50 us before they sleep. Plain
  OpenVINO has a stream of one thread, its fastest mode.
- beside a Python thread: a thread of the process computes in Python all the time, at the interpreter's default switch interval.
- full: a server whose client keeps 16 requests in flight, against ``openvino.AsyncInferQueue`` with two streams. Both give the
  client a copy of each output, and neither copies inputs before a request begins. "Two replicas" have the whole model on each
  of two cores.
- large: one addition on tensors of 1, 12 and 50 MiB, against a request of OpenVINO whose tensors are not copied. Inputs are
  arrays as NumPy allocates them.
- branches: two segments that keep a core busy for a given time each and compute nothing, side by side on two cores, and one
  after the other on one core. ``Executor.time`` and the caller of ``Executor.run`` should see the same ratio of the two.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._blocks import Block, Blocks, each, interleaved, over, reported
from benchmarks._harness import Args, Report, main
from benchmarks._lanes import python_computing
from benchmarks._models import progress
from benchmarks._plain import openvino_options
from benchmarks._timed import TimedDevice
from placeit.backends.openvino.model import describe
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.telemetry import import_openvino
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.measuring.statistics import faster
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.runtime import Runtime
from placeit.serving.server import Server

_SPIN_S = 5e-5
INFER, AS_OURS = "OpenVINO, infer, nothing copied", "OpenVINO, the same, compiled as by placeit"
COMPILED, WORK = "OpenVINO, compiled(inputs)", "OpenVINO, both halves, its own clock"
RUN_1, RUN_2, SPINNING = "run, one segment", "run, two segments", "run, two segments, spinning"
SERVER_1, SERVER_2 = "server, one segment", "server, two segments"
QUEUE_4, QUEUE_16 = "AsyncInferQueue, 4 requests", "AsyncInferQueue, 16 requests"
REPLICAS, CHAIN, TIMES = "server, two replicas", SERVER_2, "Executor.times, two segments"
RUN_OUT = "run, one segment, out="
TIME_ONE, TIME_SPLIT = "Executor.time, one device", "Executor.time, two devices"
RUN_ONE, RUN_SPLIT = "run, one device", "run, two devices"

MIB = (1, 12, 50)
BRANCHES_US = (60.0, 100.0, 400.0)
_IN_FLIGHT, _KEPT = 4, 16
_CLAIMED_MIB = 12

Values = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Sizes:
    """The number of calls and rounds.

    Attributes:
        calls: calls in a block.
        slow: calls in a block of calls that take milliseconds.
        rounds: rounds of each part.
    """

    calls: int
    slow: int
    rounds: int


FULL, QUICK = Sizes(calls=300, slow=20, rounds=40), Sizes(calls=30, slow=3, rounds=7)


@dataclass(frozen=True)
class _Layers:
    """An MLP: ``float32[rows, width]`` through ``layers`` products, each followed by a ReLU."""

    name: str
    rows: int
    width: int
    layers: int

    def model(self) -> Any:
        ops, random = import_openvino().opset13, np.random.default_rng(0)
        first = ops.parameter([self.rows, self.width], np.float32, name="in")
        value = first
        for _ in range(self.layers):
            weights = random.standard_normal((self.width, self.width), np.float32) / self.width**0.5
            value = ops.relu(ops.matmul(value, ops.constant(weights), False, False))
        return import_openvino().Model([ops.result(value)], [first], "mlp")


SMALL, LARGER = _Layers("4 layers of 128", 1, 128, 4), _Layers("4 layers of 512, 32 rows", 32, 512, 4)


def run(args: Args, report: Report) -> None:
    """Fill the report."""
    sizes, cores = QUICK if args.quick else FULL, allowed_cores()[:2]
    if (load := os.getloadavg()[0]) > 1:
        report.note(
            f"  Other work is running (load {load:.1f}): a call that wakes a thread waits for it, and figures are too large."
        )
    if len(cores) < 2:
        report.note(
            "  This process may use one core: two segments, full servers and two branches need two cores, and are left out."
        )
    progress("calls alone, and beside a Python thread")
    _alone(cores, sizes, args.seed, report)
    for layers in (SMALL, LARGER):
        progress(f"a full server, {layers.name}")
        _full(layers, cores, sizes, args.seed, report)
    for mib in MIB:
        progress(f"tensors of {mib} MiB")
        _large(mib, cores[0], sizes, args.seed, report)
    for branch_us in BRANCHES_US:
        progress(f"branches of {branch_us:.0f} us")
        _clocks(branch_us, cores, sizes, args.seed, report)


class _Opened:
    """A model that is open on cores.

    Args:
        stack: closes it.
        ov_model: the model.
        cores: one for each device.
        options: options of the runtime.

    Attributes:
        runtime: the devices.
        whole: for each device, a plan of one segment there.
        split: a plan of a segment for each device, in a chain.
        inputs: random ones.
    """

    def __init__(self, stack: ExitStack, ov_model: Any, cores: Sequence[int], **options: Any) -> None:
        model = describe(ov_model, Path("calls"))
        grouping, cluster = Grouping.singletons(model.graph), discover([f"CPU@{core}" for core in cores])
        groups, segmenter = len(grouping.groups), Segmenter(grouping, Costs.zero(len(grouping.groups), cluster))
        self.whole: list[Plan] = [segmenter.plan(np.full(groups, device)) for device in range(len(cores))]
        self.split: Plan = segmenter.plan(np.arange(groups) * len(cores) // groups)
        assert [len(plan.programs) for plan in (*self.whole, self.split)] == [*(1 for _ in cores), len(cores)]
        self.runtime = stack.enter_context(Runtime(model, grouping, cluster, **options))
        self.inputs: Values = model.random_inputs()


def _alone(cores: Sequence[int], sizes: Sizes, seed: int, report: Report) -> None:
    references = {
        RUN_1: COMPILED,
        RUN_2: WORK,
        SPINNING: WORK,
        SERVER_1: RUN_1,
        SERVER_2: RUN_2,
    }
    with ExitStack() as stack:
        opened = _Opened(stack, SMALL.model(), cores)
        inputs = opened.inputs
        compiled = _compiled(SMALL.model())
        request = _in_place(compiled, inputs)
        as_ours = _in_place(openvino_core().compile_model(SMALL.model(), "CPU", openvino_options(1)), inputs)
        plain: dict[str, Block] = {
            INFER: each(lambda: request.infer(share_outputs=True)),
            AS_OURS: each(lambda: as_ours.infer(share_outputs=True)),
            COMPILED: each(lambda: compiled(inputs)),
        }
        ours = _run_and_server(stack, opened, opened.whole[0], RUN_1, SERVER_1, request)
        if len(cores) > 1:
            ours |= _run_and_server(stack, opened, opened.split, RUN_2, SERVER_2, request)
        others: dict[str, Block] = {}
        if len(cores) > 1:
            spinning = _Opened(stack, SMALL.model(), cores, spin_s=_SPIN_S)
            others[SPINNING] = each(functools.partial(spinning.runtime.executor(spinning.split).run, inputs))
            others[WORK] = reported(_halves(inputs))
        alone = interleaved(plain | ours | others, calls=sizes.calls, rounds=sizes.rounds, seed=seed)
        _rows(report, "alone", alone, references)
        with python_computing():
            busy = interleaved(plain | ours, calls=sizes.slow, rounds=sizes.rounds, seed=seed)
        _rows(report, "beside a Python thread", busy, dict.fromkeys(ours, INFER))
    for name, case, reference, times, most in (
        ("one segment: run over 1.1 times compiled(inputs)", RUN_1, COMPILED, 1.1, 5),
        ("two segments: run over the work", RUN_2, WORK, 1.0, 40),
        ("two segments: run over the work, spinning", SPINNING, WORK, 1.0, 15),
        ("one segment: server over run", SERVER_1, RUN_1, 1.0, 30),
        ("two segments: server over run", SERVER_2, RUN_2, 1.0, 30),
    ):
        value = over(alone[case], alone[reference], times=times) * 1e6 if {case, reference} <= alone.keys() else None
        report.claim(f"alone, {name}", value, "us", at_most=most)
    report.claim(
        f"beside a Python thread, switch interval {sys.getswitchinterval() * 1e3:g} ms: run, two segments",
        busy[RUN_2].wall.median * 1e3 if RUN_2 in busy else None,
        "ms",
        at_most=6,
    )


def _compiled(model: Any, *, streams: int = 1) -> Any:
    """Compile a model by OpenVINO with a thread for each stream, which is faster than one thread without a stream."""
    hint = "LATENCY" if streams == 1 else "THROUGHPUT"
    return openvino_core().compile_model(
        model, "CPU", {**openvino_options(streams), "NUM_STREAMS": streams, "PERFORMANCE_HINT": hint}
    )


def _in_place(compiled: Any, inputs: Values) -> Any:
    """Return an OpenVINO request that reads an array without a copy."""
    request = compiled.create_infer_request()
    (value,) = inputs.values()
    request.set_input_tensor(import_openvino().Tensor(value, shared_memory=True))
    return request


def _run_and_server(
    stack: ExitStack, opened: _Opened, plan: Plan, run_name: str, server_name: str, request: Any
) -> dict[str, Block]:
    """Return blocks that run a plan and that send it to a server, after a check that outputs equal OpenVINO's."""
    inputs = opened.inputs
    call = opened.runtime.executor(plan).run
    server = stack.enter_context(Server([opened.runtime.executor(plan)]))
    request.infer()
    for outputs in (call(inputs), server.submit(inputs).result()):
        (value,) = outputs.values()
        np.testing.assert_allclose(value, request.get_output_tensor().data, rtol=1e-4, atol=1e-5)
    return {run_name: each(lambda: call(inputs)), server_name: each(lambda: server.submit(inputs).result())}


def _halves(inputs: Values) -> Callable[[], float]:
    """Run both halves of the small model by OpenVINO on this thread, and return the seconds by its own clock."""
    half = replace(SMALL, layers=SMALL.layers // 2).model()
    first = _in_place(_compiled(half), inputs)
    second = _compiled(half).create_infer_request()
    second.set_input_tensor(first.get_output_tensor())

    def call() -> float:
        first.infer(share_outputs=True)
        second.infer(share_outputs=True)
        return float(first.latency + second.latency) / 1e3

    return call


def _full(layers: _Layers, cores: Sequence[int], sizes: Sizes, seed: int, report: Report) -> None:
    what, names = f"full, {layers.name}", (REPLICAS, CHAIN)
    if len(cores) < 2:
        _claim_full(report, what, None, names)
        return
    with ExitStack() as stack:
        opened = _Opened(stack, layers.model(), cores)
        runtime, inputs = opened.runtime, opened.inputs
        replicas = Server([runtime.executor(plan, in_flight=_IN_FLIGHT) for plan in opened.whole])
        chain = Server([runtime.executor(opened.split, in_flight=_IN_FLIGHT)])
        in_flight = stack.enter_context(runtime.executor(opened.split, in_flight=_IN_FLIGHT))
        compiled = _compiled(layers.model(), streams=len(cores))
        cases: dict[str, Block] = {
            QUEUE_4: _queued(compiled, _IN_FLIGHT, inputs),
            QUEUE_16: _queued(compiled, _KEPT, inputs),
            REPLICAS: functools.partial(_kept_full, stack.enter_context(replicas), inputs),
            CHAIN: functools.partial(_kept_full, stack.enter_context(chain), inputs),
            TIMES: lambda calls: in_flight.times(calls) / calls,
        }
        in_flight.set_inputs(inputs)
        found = interleaved(cases, calls=sizes.calls, rounds=sizes.rounds, seed=seed)
    fastest = min((QUEUE_4, QUEUE_16), key=lambda name: found[name].wall.median)
    _rows(report, what, found, dict.fromkeys((*names, TIMES), fastest))
    _claim_full(report, what, found, names)


def _claim_full(report: Report, what: str, found: Mapping[str, Blocks] | None, names: Sequence[str]) -> None:
    for name in names:
        wall = cpu = None
        if found is not None:
            queues = found[QUEUE_4], found[QUEUE_16]
            wall = faster(found[name].wall, min((queue.wall for queue in queues), key=lambda one: one.median)).ratio
            cpu = found[name].cpu / min(queue.cpu for queue in queues)
        report.claim(f"{what}: {name} over the faster AsyncInferQueue, time", wall, "", at_most=1.0)
        report.claim(f"{what}: {name} over the cheaper AsyncInferQueue, CPU time", cpu, "", at_most=1.0)


def _queued(compiled: Any, jobs: int, inputs: Values) -> Block:
    """Return a block that keeps OpenVINO's own queue of requests full and gets a copy of each output."""
    queue, answers = import_openvino().AsyncInferQueue(compiled, jobs), list[NDArray[np.generic]]()
    queue.set_callback(lambda request, _: answers.append(request.get_output_tensor().data.copy()))

    def block(calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            queue.start_async(inputs, share_inputs=True)
        queue.wait_all()
        seconds = time.perf_counter() - begin
        assert len(answers) == calls
        answers.clear()
        return seconds / calls

    return block


def _kept_full(server: Server, inputs: Values, calls: int) -> float:
    begin = time.perf_counter()
    answers = deque(server.submit(inputs) for _ in range(min(calls, _KEPT)))
    for _ in range(calls - len(answers)):
        answers.popleft().result()
        answers.append(server.submit(inputs))
    for answer in answers:
        answer.result()
    return (time.perf_counter() - begin) / calls


def _large(mib: int, core: int, sizes: Sizes, seed: int, report: Report) -> None:
    ops = import_openvino().opset13
    first = ops.parameter([1, mib * 2**18], np.float32, name="in")
    model = import_openvino().Model([ops.result(ops.add(first, ops.constant(np.float32(1))))], [first], "sum")
    with ExitStack() as stack:
        opened = _Opened(stack, model, [core])
        inputs = opened.inputs
        compiled = _compiled(model)
        request = _in_place(compiled, inputs)
        cases: dict[str, Block] = {
            INFER: each(lambda: request.infer(share_outputs=True)),
            COMPILED: each(lambda: compiled(inputs)),
            **_run_and_server(stack, opened, opened.whole[0], RUN_1, SERVER_1, request),
        }
        call: Any = opened.runtime.executor(opened.whole[0]).run
        out = {name: np.empty_like(value) for name, value in call(inputs).items()}
        cases[RUN_OUT] = each(lambda: call(inputs, out=out))
        found = interleaved(cases, calls=sizes.slow, rounds=sizes.rounds, seed=seed)
    what = f"large, {mib} MiB in and out"
    _rows(report, what, found, dict.fromkeys(found.keys() - {INFER}, INFER))
    for name, most in ((RUN_1, 1.1), (SERVER_1, 1.3)):
        ratio = faster(found[name].wall, found[INFER].wall).ratio
        report.claim(f"{what}: {name} over plain infer", ratio, "", at_most=most if mib == _CLAIMED_MIB else None)


def _clocks(branch_us: float, cores: Sequence[int], sizes: Sizes, seed: int, report: Report) -> None:
    what, error = f"branches of {branch_us:.0f} us", None
    if len(cores) > 1:
        found = _raced_branches(branch_us * 1e-6, cores, sizes, seed)
        _rows(report, what, found, {TIME_SPLIT: TIME_ONE, RUN_SPLIT: RUN_ONE})
        ours, callers = (faster(found[a].wall, found[b].wall).ratio for a, b in ((TIME_SPLIT, TIME_ONE), (RUN_SPLIT, RUN_ONE)))
        error = abs(ours / callers - 1) * 100
    report.claim(f"{what}: split over one device, placeit's clock beside the caller's", error, "%", at_most=5)


def _raced_branches(seconds: float, cores: Sequence[int], sizes: Sizes, seed: int) -> dict[str, Blocks]:
    ops = import_openvino().opset13
    first = ops.parameter([1], np.float32, name="in")
    ends = [ops.result(ops.relu(first)), ops.result(ops.sigmoid(first))]
    model = describe(import_openvino().Model(ends, [first], "branches"), Path("branches"))
    grouping = Grouping.singletons(model.graph)
    cluster = Cluster((Device("a"), Device("b")), {pair: Link(1e9, 1e-6) for pair in (("a", "b"), ("b", "a"))})
    segmenter = Segmenter(grouping, Costs.zero(len(grouping.groups), cluster))
    second = np.array([kind == "Sigmoid" for kind in grouping.groups.kinds], np.int32)
    devices = [TimedDevice(name, lambda _: seconds, cores=(core,)) for name, core in zip("ab", cores, strict=True)]
    with Runtime(model, grouping, cluster, devices=devices, transports={}) as runtime:
        inputs, cases = model.random_inputs(), dict[str, Block]()
        for time_name, run_name, place in ((TIME_ONE, RUN_ONE, np.zeros_like(second)), (TIME_SPLIT, RUN_SPLIT, second)):
            executor = runtime.executor(segmenter.plan(place, merge=False))
            executor.set_inputs(inputs)
            cases[time_name] = reported(executor.time)
            cases[run_name] = each(functools.partial(executor.run, inputs))
        return interleaved(cases, calls=sizes.calls, rounds=sizes.rounds, seed=seed)


def _rows(report: Report, calls: str, found: Mapping[str, Blocks], references: Mapping[str, str]) -> None:
    """Add a row for each case; some of them are compared with another one."""
    for name, blocks in found.items():
        reference = found.get(references.get(name, ""))
        ratio = None if reference is None else faster(blocks.wall, reference.wall)
        report.row(
            calls=calls,
            case=name,
            us=blocks.wall.median * 1e6,
            low_us=blocks.wall.ci_low * 1e6,
            high_us=blocks.wall.ci_high * 1e6,
            cpu_us=blocks.cpu * 1e6,
            beside=None if reference is None else references[name],
            over_us=None if reference is None else over(blocks, reference) * 1e6,
            ratio=None if ratio is None else ratio.ratio,
            ratio_low=None if ratio is None else ratio.ci_low,
            ratio_high=None if ratio is None else ratio.ci_high,
        )


if __name__ == "__main__":
    main("calls", run)
