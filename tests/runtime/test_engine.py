"""Plans on lanes: what ran when, and whatever goes wrong at any time.

The devices have real threads and native entries that spin for a given time, so that it is known what each segment takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks._timed import TimedDevice
from placeit import _core
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ExecutionError
from placeit.core.problem import Problem
from placeit.core.threads import Worker
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.devices.base import Instance, Program, RuntimeDevice
from placeit.runtime.devices.emulated import EmulatedLink, slowed
from placeit.runtime.executor import Executor
from placeit.runtime.feed import Bell
from placeit.runtime.runtime import Runtime
from placeit.serving.server import Server
from placeit.simulator.scheduler import Scheduler
from tests.alarms import alarm
from tests.beside import beside
from tests.small_models import random_model

pytestmark = pytest.mark.timeout(120, method="thread")

BANDWIDTH, LATENCY = 1e6, 2e-4


class Bench:
    """A random model on two devices of one thread each, its ops in random places.

    Args:
        wide: whether there is a third device, which is both of them.
        mixed: whether segments on the second device run in Python.
    """

    def __init__(
        self,
        seed: int = 0,
        ops: int = 12,
        *,
        seconds: float = 2e-4,
        links: bool = False,
        slowdown: float = 1.0,
        native: bool = True,
        wide: bool = False,
        mixed: bool = False,
    ) -> None:
        model = random_model(seed, ops)
        self.grouping = Grouping.singletons(model.graph)
        groups = len(self.grouping.groups)
        where = {"a": Address("CPU", (0,)), "b": Address("CPU", (1,)), "w": Address("CPU", (0, 1))}
        names = "abw" if wide else "ab"
        pairs = list(permutations(range(len(names)), 2))
        cluster = Cluster(
            tuple(Device(name, address=where[name]) for name in names),
            {(names[i], names[j]): Link(BANDWIDTH, LATENCY) for i, j in pairs},
        )
        segmenter = Segmenter(self.grouping, Costs.zero(groups, cluster))
        self.plan = segmenter.plan(np.random.default_rng(seed).integers(0, len(names), groups), merge=False)
        self.timed = [TimedDevice(name, lambda _: seconds, native=native and not (mixed and name == "b")) for name in names]
        devices: list[RuntimeDevice] = [*self.timed]
        if slowdown > 1:
            devices[1] = slowed(self.timed[1], slowdown)
        transports = {(i, j): EmulatedLink(f"placeit link {i}{j}", BANDWIDTH, LATENCY) for i, j in pairs} if links else {}
        self.runtime = Runtime(model, self.grouping, cluster, devices=devices, transports=transports)

    def executor(self, in_flight: int = 1) -> Executor:
        executor = self.runtime.executor(self.plan, in_flight=in_flight)
        assert isinstance(executor, Executor)
        return executor


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    with contextlib.ExitStack() as stack:

        def make(*args: int, **options: bool | float) -> Bench:
            made = Bench(*args, **options)  # type: ignore[arg-type]
            stack.callback(made.runtime.close)
            return made

        yield make


def check_spans(made: Bench, executor: Executor, requests: int = 1) -> None:
    """Every segment ran once in each request, after all that it reads; no two at once on a device, a link, or shared cores."""
    spans, plan = executor.spans(), made.plan
    names = {made.runtime.book.op_names(segment)[0]: s for s, segment in enumerate(plan.segments)}
    computed = [span for span in spans if span.kind == "compute"]
    assert sorted(names[span.name] for span in computed) == sorted(
        s for s, segment in enumerate(plan.segments) if not segment.passthrough for _ in range(requests)
    )
    for track in {span.track for span in spans}:
        own = sorted((span.start, span.finish) for span in spans if span.track == track)
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    device_names = made.runtime.cluster.names
    for i, j in np.argwhere(np.triu(plan.problem.conflicts)):
        tracks = (device_names[i], device_names[j])
        own = sorted((span.start, span.finish) for span in computed if span.track in tracks)
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    if requests > 1:
        return
    start = {names[span.name]: span.start for span in computed}
    finish = {names[span.name]: span.finish for span in computed}
    for u, v in plan.problem.edges.tolist():
        if u in finish and v in start:
            assert finish[u] <= start[v]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    ops=st.integers(1, 25),
    links=st.booleans(),
    native=st.booleans(),
    requests=st.integers(1, 3),
    wide=st.booleans(),
)
@example(seed=55, ops=1, links=True, native=True, requests=1, wide=False)  # an output that is an input, on another device
def test_lanes_of_both_kinds_run_every_segment_once_and_in_order(
    seed: int, ops: int, links: bool, native: bool, requests: int, wide: bool
) -> None:
    made = Bench(seed, ops, seconds=1e-5, links=links, native=native, wide=wide)
    with made.runtime, made.executor(requests) as executor:
        assert executor.native == native
        for _ in range(3):
            assert executor.times(requests) > 0
            check_spans(made, executor, requests)


def test_executors_on_different_devices_run_side_by_side(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits, in its first native entry, for the other one to be in its own."""
    made, meeting = bench(0, 6, seconds=1e-5), threading.Barrier(2)

    def meet(_: int) -> int:
        meeting.wait(120)
        return 0

    entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(meet)
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    segmenter = Segmenter(made.grouping, Costs.zero(len(made.grouping.groups), made.runtime.cluster))
    with contextlib.ExitStack() as stack:
        executors = []
        for device in (0, 1):
            plan = segmenter.plan(np.full(len(made.grouping.groups), device), merge=False)
            instance_of = made.timed[device].instance

            def first_meets(
                program: Program, made: TimedDevice = made.timed[device], instance_of: Any = instance_of
            ) -> Instance:
                instance = instance_of(program)
                if len(made.instances) == 1:
                    instance.native = address, 0
                return instance

            monkeypatch.setattr(made.timed[device], "instance", first_meets)
            executors.append(stack.enter_context(made.runtime.executor(plan)))
        with beside(lambda: executors[0].times(3, timeout=60)) as seconds:
            executors[1].times(3, timeout=60)
        assert isinstance(seconds[0], float)
        one, other = (executor.spans() for executor in executors)
        assert one[0].start < other[-1].finish
        assert other[0].start < one[-1].finish


def test_many_requests_run_with_few_in_flight(bench: Callable[..., Bench]) -> None:
    made = bench(3, 15, seconds=1e-5)
    with made.executor(in_flight=4) as executor:
        alone = sum(device.calls for device in made.timed)
        executor.times(50)
        computing = sum(not segment.passthrough for segment in made.plan.segments)
        assert sum(device.calls for device in made.timed) - alone == 50 * computing


def test_a_transfer_takes_what_the_link_says_and_a_slowed_device_its_multiple(bench: Callable[..., Bench]) -> None:
    made = bench(5, 15, seconds=1e-3, links=True, slowdown=3.0)
    with made.executor() as executor:
        executor.time()
        spans = executor.spans()
    moved = [span for span in spans if " -> " in span.track]
    sizes = {made.grouping.tensor_name(t): made.grouping.groups.tensor_bytes[t] for t in made.plan.tensors}
    assert moved
    for span in moved:
        assert span.finish - span.start == pytest.approx(LATENCY + sizes[span.name] / BANDWIDTH, rel=1e-6)
    for span in spans:
        if span.track == "b":
            assert span.finish - span.start >= 3e-3
        elif span.track == "a":
            assert span.finish - span.start >= 1e-3


def test_a_run_needs_no_interpreter_from_its_begin_to_its_end(bench: Callable[..., Bench]) -> None:
    """While this thread keeps the interpreter for itself, all segments of a run are run."""
    made = bench(1, 20, seconds=2e-3)
    keep_gil = ctypes.PyDLL(None).usleep  # unlike CDLL, which would release it

    def calls() -> int:
        return sum(device.calls for device in made.timed)

    with made.executor() as executor:
        executor.time()
        each = calls()
        runner, interval = threading.Thread(target=executor.time), sys.getswitchinterval()
        runner.start()
        while calls() == each:  # until the first segment has begun
            time.sleep(0)
        sys.setswitchinterval(1e3)  # no other thread gets the interpreter unless this one waits
        try:
            while calls() < 2 * each:
                keep_gil(1000)
        finally:
            sys.setswitchinterval(interval)
        runner.join()
    assert calls() == 2 * each > 10


@pytest.mark.parametrize("device", [0, 1])
def test_an_entry_that_fails_is_an_execution_error_and_the_next_run_works(bench: Callable[..., Bench], device: int) -> None:
    made = bench(2, 20)
    with made.executor(in_flight=2) as executor:
        for turn in range(6):
            failing = made.timed[device].instances[turn]
            failing.work[-1] = 7
            name = "ab"[device]
            with pytest.raises(ExecutionError, match=f"A timed segment failed on {name}"):
                executor.times(4)
            failing.work[-1] = 0
            executor.times(2)
            check_spans(made, executor, 2)


def test_lanes_run_segments_that_need_python_beside_others(bench: Callable[..., Bench]) -> None:
    made = bench(8, 20, seconds=1e-5, links=True, mixed=True)
    with made.executor(in_flight=2) as executor:
        assert not executor.native
        for turn in range(6):
            executor.times(5, timeout=60)
            check_spans(made, executor, 2)
            failing = made.timed[1].instances[turn]
            failing.work[-1] = 7
            with pytest.raises(ExecutionError, match="failed on b: A timed segment failed on b: status 7") as caught:
                executor.times(4, timeout=60)
            assert isinstance(caught.value.__cause__, RuntimeError)
            failing.work[-1] = 0


def test_whatever_a_segment_raises_in_python_is_the_failure_of_that_segment(bench: Callable[..., Bench]) -> None:
    made, raised = bench(8, 12, seconds=1e-5, mixed=True), list[BaseException]()
    instance_of = made.timed[1].instance

    def troubled(program: Program) -> Instance:
        instance: Any = instance_of(program)

        def run() -> None:
            if raised:
                raise raised.pop()

        instance.run = run
        return instance

    made.timed[1].instance = troubled  # type: ignore[method-assign]
    with made.executor(in_flight=2) as executor:
        for error in (ValueError("no"), SystemExit("no"), KeyboardInterrupt("no"), MemoryError("no")):
            raised.append(error)
            with pytest.raises(ExecutionError, match=r"failed on b: .*no"):
                executor.times(4, timeout=60)
            executor.times(3, timeout=60)
            check_spans(made, executor, 2)


@pytest.mark.parametrize("kind", ["native", "mixed", "Python"])
def test_a_run_that_takes_too_long_says_what_runs_and_the_next_one_waits_for_it(bench: Callable[..., Bench], kind: str) -> None:
    made = bench(2, 8, native=kind != "Python", mixed=kind == "mixed")
    for device in made.timed:
        device.worker.lane.lends = 0.0  # or the thread that waits would be the one that runs
    with made.executor() as executor:
        executor.time()
        for timeout in (0.1, 1.0, 10.0):  # until it has come so far, however busy the machine is
            made.timed[1].instances[0].work[0] = round(6e9 * timeout)
            with pytest.raises(ExecutionError, match="The time-out is over, and the run is not: ") as caught:
                executor.time(timeout=timeout)
            made.timed[1].instances[0].work[0] = 1000
            if " on b" in str(caught.value):
                break
        assert re.search(r"is not: still running: the segment that starts with '\w+' on b\. The executor", str(caught.value))
        executor.time(timeout=80)
        check_spans(made, executor)


def test_a_run_stops_at_its_deadline_without_the_interpreter(bench: Callable[..., Bench]) -> None:
    made = bench(2, 8, seconds=1e-3, links=True)
    keep_gil, interval = ctypes.PyDLL(None).usleep, sys.getswitchinterval()
    with made.executor(in_flight=2) as executor:
        engine = executor._engine
        executor.time()
        with beside(lambda: executor.times(10**9, timeout=0.2)) as outcome:
            while engine.over:
                time.sleep(0)
            sys.setswitchinterval(1e3)  # no other thread gets the interpreter unless this one waits
            try:
                until = time.monotonic() + 60
                while not engine.stopped and time.monotonic() < until:
                    keep_gil(1000)
                stopped = engine.stopped
            finally:
                sys.setswitchinterval(interval)
        assert stopped
        assert isinstance(outcome[0], ExecutionError)
        assert "The time-out is over, and the run is not: still running: " in str(outcome[0])
        executor.times(2, timeout=60)
        check_spans(made, executor, 2)


def test_threads_with_executors_of_their_own_all_finish(bench: Callable[..., Bench]) -> None:
    """Executors share the lanes of devices, segment by segment."""
    made = bench(4, 15, seconds=1e-5, links=True)
    failures: list[BaseException] = []

    def work(executor: Executor) -> None:
        try:
            for _ in range(60):
                executor.times(3)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with contextlib.ExitStack() as stack:
        executors = [stack.enter_context(made.executor(in_flight=1 + i % 2)) for i in range(4)]
        threads = [threading.Thread(target=work, args=(executors[i % 4],)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert not any(thread.is_alive() for thread in threads)
        assert not failures
        for executor in executors:
            executor.time()
            check_spans(made, executor)


def test_runs_survive_interrupts_at_random_moments(bench: Callable[..., Bench]) -> None:
    made = bench(6, 12, seconds=5e-5, links=True)
    rng = random.Random(0)

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    interrupted = 0
    with made.executor(in_flight=2) as executor, alarm(interrupt):
        for _ in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 8e-3))
                executor.times(3)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        assert interrupted > 20
        executor.times(2, timeout=120)
        check_spans(made, executor, 2)


def test_closing_during_a_run_ends_it_or_fails_it_and_hangs_nobody() -> None:
    for turn in range(10):
        made = Bench(7, 12, seconds=1e-3, links=turn % 2 > 0)
        executor = made.executor()
        executor.time()
        seen: list[object] = []

        def run(executor: Executor = executor, seen: list[object] = seen) -> None:
            try:
                while True:
                    executor.time()
            except ExecutionError as error:
                seen.append(error)

        runner = threading.Thread(target=run)
        runner.start()
        time.sleep(0.002 * turn)
        (executor if turn % 3 else made.runtime).close()
        runner.join(60)
        assert not runner.is_alive()
        assert len(seen) == 1
        made.runtime.close()


class Troubled:
    """A feed of ``count`` requests that raises when the first of them has ended."""

    slots, on = None, "host"

    def __init__(self, made: Bench, count: int, trouble: BaseException) -> None:
        self.bell, self._left, self._trouble = Bell(), count, trouble
        self.inputs, self.slot = made.runtime.model.random_inputs(), None

    def take(self, *, room: bool) -> Troubled | None:
        self._left -= room
        return self if room and self._left >= 0 else None

    def patience(self) -> float:
        return 1.0

    def at(self, number: int) -> None: ...

    def stays(self) -> bool:
        return False

    def ended(self, item: object, outputs: object, ran: object, moved: object) -> None:
        raise self._trouble

    def failed(self, item: object, error: Exception, *, begun: bool = True) -> None:
        raise error.__cause__ or error


@pytest.mark.parametrize(
    "trouble", [MemoryError("no memory"), SystemExit("a callback")], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("native", [True, False])
def test_lanes_are_free_after_serving_has_ended_by_an_exception(
    bench: Callable[..., Bench], native: bool, trouble: BaseException
) -> None:
    made = bench(2, 12, seconds=1e-4, links=True, native=native)
    with made.executor(in_flight=3) as executor, made.executor() as other:
        for _ in range(3):
            feed = Troubled(made, 5, trouble)
            with pytest.raises(type(trouble)):
                executor.serve(feed)
            other.times(2, timeout=120)
            check_spans(made, other)
            executor.times(3, timeout=120)
            check_spans(made, executor, 3)
            feed.bell.close()


def test_a_bell_that_is_closed_while_a_lane_runs_is_nobody_elses_file(bench: Callable[..., Bench], tmp_path: Path) -> None:
    made = bench(0, 1, seconds=1e-4)
    with made.executor(in_flight=2) as executor:
        made.timed[0].instances[1].work[0] = 500_000_000
        made.timed[1].instances[-1].work[0] = 500_000_000
        feed = Troubled(made, 2, MemoryError())
        with pytest.raises(MemoryError):
            executor.serve(feed)
        assert not executor._run.over.is_open  # type: ignore[union-attr]
        feed.bell.close()
        files = [(tmp_path / f"{i}").open("wb") for i in range(8)]
        executor.time(timeout=120)
        for file in files:
            file.close()
        assert not any((tmp_path / f"{i}").stat().st_size for i in range(8))


def test_a_server_that_is_closed_while_a_lane_runs_writes_into_nobody_elses_file(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    made = bench(0, 1, seconds=1e-4)
    server = Server([made.executor(in_flight=1)])
    for device in made.timed:
        for instance in device.instances:
            instance.work[0] = 500_000_000
    answer = server.submit(made.runtime.model.random_inputs())
    while not answer.running():
        time.sleep(0.001)
    server.close(drain=False, timeout=0.01)
    with pytest.raises(ExecutionError, match="had not ended in time"):
        answer.result(0)
    files = [(tmp_path / f"{i}").open("wb") for i in range(8)]
    made.runtime.close()  # which waits for the lanes
    for file in files:
        file.close()
    assert not any((tmp_path / f"{i}").stat().st_size for i in range(8))


def machine(requests: int = 2) -> _core.Machine:
    problem = Problem.from_arrays(np.ones((3, 2)), [[0, 1], [1, 2]], [1, 1], np.ones((2, 2)), np.zeros((2, 2)))
    return Scheduler(problem, [0, 1, 0], in_flight=requests).machine


@pytest.fixture
def engine_of() -> Iterator[Callable[..., _core.Executor]]:
    with contextlib.ExitStack() as stack:

        def make(requests: int = 2) -> _core.Executor:
            workers = [stack.enter_context(contextlib.closing(Worker(f"placeit lane {k}"))) for k in range(2)]
            return _core.Executor(machine(requests), [worker.lane for worker in workers], np.ones(2))

        yield make


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda engine: engine.set_entry(10, 0, 1, 0), IndexError, "node"),
        (lambda engine: engine.set_entry(-1, 0, 1, 0), IndexError, "node"),
        (lambda engine: engine.set_entry(0, 0, 0, 0), ValueError, "function"),
        (lambda engine: engine.set_call(0, 2, int), IndexError, "lane"),
        (lambda engine: engine.set_call(0, -2, int), IndexError, "lane"),
        (lambda engine: engine.set_start(10, 0, int), IndexError, "node"),
        (lambda engine: engine.set_transfer(3, 0, -1.0), ValueError, "seconds"),
        (lambda engine: engine.set_transfer(3, 0, float("nan")), ValueError, "seconds"),
        (lambda engine: engine.set_transfer(3, -1, 1.0), IndexError, "lane"),
        (lambda engine: engine.run(3, 0, np.inf), ValueError, "requests"),
        (lambda engine: engine.run(-1, 0, np.inf), ValueError, "requests"),
        (lambda engine: engine.run(1, -1, np.inf), ValueError, "waiting"),
        (lambda engine: engine.run(1, 0, np.nan), ValueError, "deadline"),
        (lambda engine: engine.wait(np.nan), ValueError, "deadline"),
        (lambda engine: engine.admit(-1), IndexError, "slot"),
        (lambda engine: engine.ran(2), IndexError, "slot"),
        (lambda engine: engine.error(10), IndexError, "node"),
        (lambda engine: engine.seconds(True, np.zeros(2)), ValueError, "found"),
        (lambda _: _core.Executor(machine(), [_core.Lane()], np.ones(0)), ValueError, "slowdown"),
        (lambda _: _core.Executor(machine(), [_core.Lane()], np.array([np.nan])), ValueError, "slowdown"),
    ],
)
def test_an_engine_names_the_argument_that_it_cannot_take(
    engine_of: Callable[..., _core.Executor], call: Callable[[_core.Executor], object], error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=f"'{name}'"):
        call(engine_of())


def test_a_deadline_ends_a_run_that_nobody_stops(engine_of: Callable[..., _core.Executor]) -> None:
    engine = engine_of(1)
    engine.set_call(0, 0, lambda: time.sleep(0.05))
    engine.set_call(1, 1, lambda: time.sleep(0.05))
    assert engine.run(1, 10**9, time.perf_counter() + 0.2) == _core.Waited.late
    (event,) = engine.incidents()
    assert isinstance(event, _core.Late)
    assert event.running in ([0], [1])
    assert engine.wait(np.inf) == _core.Waited.over
    assert engine.running() == []


def test_a_run_whose_deadline_is_over_does_not_begin(engine_of: Callable[..., _core.Executor]) -> None:
    engine, calls = engine_of(1), list[int]()
    engine.set_call(0, 0, lambda: calls.append(0))
    assert engine.run(1, 0, time.perf_counter()) == _core.Waited.late
    (event,) = engine.incidents()
    assert isinstance(event, _core.Late)
    assert (event.running, calls, engine.over) == ([], [], True)


def test_a_lane_runs_what_waits_by_priority_and_then_in_order() -> None:
    one_op = Problem.from_arrays([[1.0]], np.empty((0, 2), int), [], [[1.0]], [[0.0]])
    ran, gate, engines = list[int](), threading.Event(), list[_core.Executor]()
    with contextlib.closing(Worker("placeit lane")) as worker:
        worker.submit(gate.wait)
        for number, priority in enumerate((0, -2, -1, 0, -2, -1)):
            engine = _core.Executor(Scheduler(one_op, [0]).machine, [worker.lane], np.ones(1))
            engine.set_call(0, 0, functools.partial(ran.append, number))
            engine.priority = priority
            engine.begin(1, 0, time.perf_counter())
            engines.append(engine)
        gate.set()
        assert [engine.wait(np.inf) for engine in engines] == [_core.Waited.over] * 6
    assert ran == [1, 4, 2, 5, 0, 3]


def test_a_run_of_no_request_is_over_at_once(engine_of: Callable[..., _core.Executor]) -> None:
    assert engine_of().run(0, 3, np.inf) == _core.Waited.over


def test_a_lane_whose_thread_has_ended_ends_the_wait(engine_of: Callable[..., _core.Executor]) -> None:
    engine = engine_of(1)

    def leave() -> None:
        raise SystemExit

    engine.set_call(0, 0, int)
    dying = Worker("placeit dying")
    doomed = _core.Executor(machine(1), [dying.lane], np.ones(1))
    doomed.set_call(0, 0, int)
    dying.submit(leave)
    assert doomed.run(1, 0, np.inf) == _core.Waited.gone
    assert engine.run(1, 0, np.inf) == _core.Waited.over


Start = Callable[[_core.Report], object]


def drop(_: _core.Report) -> None:
    """Never report, and forget what could be reported to."""


def twice(report: _core.Report) -> None:
    assert report(1.0, 2.0, None)
    assert not report(1.0, 3.0, None)


def from_a_thread_that_ends(report: _core.Report) -> None:
    threading.Thread(target=report, args=(1.0, 2.0, None)).start()


def by_a_thread_that_forgets(report: _core.Report) -> None:
    threading.Thread(target=drop, args=(report,)).start()


def with_an_exception(report: _core.Report) -> None:
    report(1.0, 2.0, ValueError("no"))


def by_raising(_: _core.Report) -> None:
    raise SystemExit("no")


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (twice, None),
        (from_a_thread_that_ends, None),
        (drop, "never reported"),
        (by_a_thread_that_forgets, "never reported"),
        (with_an_exception, "no"),
        (by_raising, "no"),
    ],
)
@pytest.mark.parametrize("lane", [0, -1])
def test_what_asynchronous_nodes_report_is_the_outcome(
    engine_of: Callable[..., _core.Executor], start: Start, error: str | None, lane: int
) -> None:
    engine, ran = engine_of(1), list[int]()
    engine.set_start(0, lane, start)
    engine.set_call(1, 1, lambda: ran.append(1))
    for _ in range(3):
        assert engine.run(1, 0, time.perf_counter() + 60) == _core.Waited.over
        incidents = engine.incidents()
        if error is None:
            assert not incidents
            assert ran.pop() == 1
        else:
            assert [type(incident) for incident in incidents] == [_core.Failed]
            assert error in str(engine.error(0))
            assert not ran


def test_a_report_of_an_earlier_run_changes_nothing(engine_of: Callable[..., _core.Executor]) -> None:
    engine, reports = engine_of(1), list[_core.Report]()
    engine.set_start(0, 0, reports.append)
    assert engine.run(1, 0, time.perf_counter() + 0.05) == _core.Waited.late
    first = reports.pop()
    assert not engine.over
    assert first(1.0, 2.0, None)
    assert engine.over
    with beside(lambda: engine.run(1, 0, time.perf_counter() + 60)) as waited:
        while not reports:
            time.sleep(1e-3)
        assert not first(1.0, 2.0, None)
        assert engine.running() == [0]
        assert reports.pop()(1.0, 2.0, None)
    assert waited == [_core.Waited.over]


def test_a_caller_runs_short_segments_of_free_lanes_itself(bench: Callable[..., Bench]) -> None:
    """And the lane does where something else runs there, or the segment may be long."""
    model = random_model(0, 1)
    grouping = Grouping.singletons(model.graph)
    cluster = Cluster((Device("a"),))
    device = TimedDevice("a", lambda _: 1e-5)
    plan = Segmenter(grouping, Costs.zero(len(grouping.groups), cluster)).plan(np.zeros(len(grouping.groups), int))
    lane = Path(f"/proc/self/task/{device.worker._thread.native_id}")

    def computed() -> int:
        """The nanoseconds that the thread of the lane has computed, once it sleeps."""
        while (lane / "stat").read_text().rsplit(")", 1)[1].split()[0] != "S":
            time.sleep(1e-3)
        return int((lane / "schedstat").read_text().split()[0])

    took: list[int] = []
    with Runtime(model, grouping, cluster, devices=[device], transports={}) as runtime, runtime.executor(plan) as executor:
        executor.time()
        for lends in (1.0, 0.0):
            device.worker.lane.lends = lends
            before = computed()
            for _ in range(50):
                executor.time()
            took.append(computed() - before)
    assert took[0] == 0
    assert took[1] > 0


@pytest.mark.parametrize("lendable", [True, False])
def test_a_caller_runs_functions_itself_that_may_be_lent(lendable: bool) -> None:
    with contextlib.closing(Worker("placeit lane")) as worker:
        worker.lane.lends = 1.0
        engine, ran = _core.Executor(machine(1), [worker.lane], np.ones(1)), list[int]()
        engine.set_call(0, 0, lambda: ran.append(threading.get_ident()), lendable=lendable)
        here, runs = threading.get_ident(), 10_000 if lendable else 10
        for _ in range(runs):
            assert engine.run(1, 0, np.inf) == _core.Waited.over
            if here in ran:  # sooner or later, as the lane does not lend while its thread is still awake
                break
    assert ran[0] != here  # which tells how long it takes
    assert (ran[-1] == here) is lendable


@pytest.mark.parametrize("mixed", [False, True])
def test_python_exits_while_a_run_is_under_way(mixed: bool) -> None:
    program = f"""
import sys, threading, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.runtime.test_engine import Bench
executor = Bench(1, 20, seconds=1e-3, mixed={mixed}).executor()
threading.Thread(target=lambda: executor.times(10**6), daemon=True).start()
time.sleep(0.2)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
