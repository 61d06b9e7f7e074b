"""Servers that adapt: devices that are lost and come back, and devices that become slow."""

from __future__ import annotations

import ctypes
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.backends import load
from placeit.backends.base import Model
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError, PlaceitError
from placeit.placers.best_list import BestList
from placeit.placers.local_search import starts
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.devices.base import Instance, Program, RuntimeDevice, SegmentSource, Transport
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.runtime import Runtime
from placeit.runtime.spans import Event, Span
from placeit.serving.server import Replacement, Server
from placeit.workbench import adapting
from placeit.workbench import recovery as recovering
from placeit.workbench.adapting import Adapter, Pace
from placeit.workbench.recovery import Recovery
from tests.beside import beside
from tests.runtime.test_faults import CORES, Troubled, expected, inputs_of, save_mixing

pytestmark = pytest.mark.timeout(280, method="thread")


class Losable(Troubled):
    """A core set that can be lost, and comes back when it is told to."""

    def __init__(self, device: Device) -> None:
        super().__init__(device_kind(device).open(device, "f32"))
        self.gone: DeviceError | None = None
        self.cut: dict[str, DeviceError] = {}
        self.silent_s = 0.0
        self._device, self.there = device, True
        self.program_key += device.name
        self.full = self.full_for_instances = ""

    def compile(self, segment: SegmentSource) -> Program:
        if self.full:
            raise DeviceError(self.full)
        return super().compile(segment)

    def instance(self, program: Program) -> Instance:
        if self.full_for_instances:
            raise DeviceError(self.full_for_instances)
        return super().instance(program)

    def lose(self) -> None:
        self.there, self.gone = False, DeviceError(f"{self._device.name} is lost: it was told to be.")

        def fail() -> None:
            raise RuntimeError("lost")

        self.trouble = fail

    def reopened(self) -> RuntimeDevice:
        if not self.there:
            raise DeviceError(f"{self._device.name} is not there.")
        return Losable(self._device)

    def link(self, source: RuntimeDevice, destination: RuntimeDevice) -> Transport:
        raise NotImplementedError

    def mend(self, other: RuntimeDevice) -> None:
        assert isinstance(other, Losable)
        self.cut.clear()
        other.cut.clear()


class Bench:
    """A model on devices, of which the second takes three times as long as the first by the costs, and a third one more."""

    def __init__(self, model: Model, count: int = 2, kind: type[Losable] = Losable) -> None:
        cores = CORES[0], CORES[-1], CORES[0]
        devices = [Device(name, address=Address("CPU", (core,))) for name, core in zip("abc"[:count], cores, strict=False)]
        self.model, grouping = model, coarsen(model.graph, keep_together=model.together, co_locate=False)
        groups, cluster = len(grouping.groups), Cluster(tuple(devices))
        self.runtime = Runtime(model, grouping, cluster, devices=[kind(device) for device in devices])
        apart = Cluster(cluster.devices, dict.fromkeys(permutations(cluster.names, 2), Link(1e9, 1.0)))  # no plan uses two
        self.costs = replace(Costs.zero(groups, apart), core=np.outer(np.ones(groups), [2e-4, 6e-4, 9e-4][:count]))
        self.segmenter = Segmenter(grouping, self.costs)

    def plan(self, device: int) -> Plan:
        return self.segmenter.plan(np.full(len(self.runtime.grouping.groups), device))

    def device(self, number: int) -> Losable:
        device = self.runtime.devices[number]
        assert isinstance(device, Losable)
        return device


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Bench]:
    for module, name, value in (
        (adapting, "_POLL_S", 0.02),
        (adapting, "_PAUSE_S", 0.02),
        (adapting, "_RETRY_S", 0.2),
        (recovering, "_MIN_PRICE_S", 0.05),
    ):
        monkeypatch.setattr(module, name, value)
    made = Bench(load(save_mixing(tmp_path / "mixing.onnx")), kind=getattr(request, "param", Losable))
    yield made
    made.runtime.close()


@pytest.fixture
def server(bench: Bench) -> Iterator[Server]:
    """Serves on the first device, and is asked for answers all the time, each of which has to be right."""
    over = threading.Event()

    def ask() -> int:
        count = 0
        while not over.is_set():
            answered = threading.Event()  # a thread that waits for the result may run a segment itself, and hang there
            answer = made.submit(inputs_of(bench.model, 1 + count % 2), timeout=60)
            answer.add_done_callback(lambda _, answered=answered: answered.set())
            assert answered.wait(60)
            (output,) = answer.result().values()
            np.testing.assert_allclose(output, expected(1 + count % 2), rtol=1e-5)
            count += 1
        return count

    with ExitStack() as stack:
        recovery = Recovery(bench.runtime, bench.costs, None)
        made = stack.enter_context(Server([bench.runtime.executor(bench.plan(0), priority=-3)], replace=recovery))
        made.attend(Adapter(made, recovery))
        asked = stack.enter_context(beside(ask))
        stack.callback(over.set)
        yield made
    assert isinstance(asked[0], int), asked
    assert asked[0] > 0


def until(true: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_device_that_is_lost_and_comes_back_is_used_again_without_a_request_lost(bench: Bench, server: Server) -> None:
    lost, executor = bench.device(0), bench.runtime.executor(bench.plan(0))
    lost.lose()
    until(lambda: server.replacements)
    assert server.replacements[0].devices == ("b",)
    assert "a is lost" in server.replacements[0].why
    assert [one.priority for one in server.executors] == [-3]
    lost.there = True
    until(lambda: len(server.replacements) == 2)
    assert server.replacements[1].devices == ("a",)
    assert server.replacements[1].why == "a is back."
    assert [one.priority for one in server.executors] == [-3]
    assert bench.device(0) is not lost
    assert bench.runtime.pool.lost() == {}
    assert [(device.name, device.up, device.returns) for device in server.stats().devices] == [("a", True, 1), ("b", True, 0)]
    assert [event.why for event in server.stats().events if event.name == "news"] == ["a is back."]
    assert "a is lost" in str(executor.gone)  # as long as it lives
    executor.close()


@pytest.mark.parametrize("opened_anew", [False, True])
def test_a_device_that_fails_at_run_time_is_left_until_it_works_again(bench: Bench, server: Server, opened_anew: bool) -> None:
    failing, working = bench.device(0), threading.Event()
    if not opened_anew:
        del failing.gone  # as of devices of this process, which are not lost by themselves

    def fail() -> None:
        if not working.is_set():
            raise RuntimeError("its driver is gone")

    failing.trouble = fail
    until(lambda: server.replacements)
    assert server.replacements[0].devices == ("b",)
    assert re.search("a is lost: The segment .* failed on a: .*its driver is gone", server.replacements[0].why)
    if not opened_anew:
        assert bench.runtime.pool.reopen() == []
    working.set()
    until(lambda: len(server.replacements) == 2)
    assert server.replacements[1].devices == ("a",)
    assert server.replacements[1].why == "a is back."
    assert (bench.device(0) is not failing) == opened_anew
    assert [(device.up, device.returns) for device in server.stats().devices] == [(True, 1), (True, 0)]


class Natively(Losable):
    """A core set whose segments run without Python, by a C function."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._entries: list[object] = []  # which have to stay

    def instance(self, program: Program) -> Instance:
        instance: Any = super().instance(program)
        compute = instance.run

        def run(_: object) -> int:
            compute()
            return 0

        entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(run)
        self._entries.append(entry)
        native = ctypes.cast(entry, ctypes.c_void_p).value, 0
        instance.__class__ = type("Native", (type(instance),), {"native": native})
        return instance


@pytest.mark.parametrize("bench", [Losable, Natively], indirect=True)
def test_a_device_that_hangs_is_left_until_it_goes_on(bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.executors[0].native == isinstance(bench.device(0), Natively)
    hanging, hangs, goes_on = bench.device(0), threading.Event(), threading.Event()
    del hanging.gone  # as of devices of this process
    monkeypatch.setattr(Recovery, "timeout", lambda _, name, __: 0.0 if name == "a" and hangs.is_set() else math.inf)

    def hang() -> None:
        hangs.set()
        goes_on.wait()

    hanging.trouble = hang
    try:
        until(lambda: server.replacements)  # whose first answer is to the request that hangs
        assert server.replacements[0].devices == ("b",)
        assert "a is lost: a segment has been running there for" in server.replacements[0].why
        assert [(device.up, device.returns) for device in server.stats().devices] == [(False, 0), (True, 0)]
    finally:
        goes_on.set()
    until(lambda: len(server.replacements) == 2)
    assert server.replacements[1].why == "a is back."
    assert server.repeated == 0


def test_a_segment_may_take_far_longer_than_its_costs_and_waits_for_its_lane_without_harm(bench: Bench) -> None:
    recovery, device = Recovery(bench.runtime, bench.costs, None), bench.device(0)
    assert recovery.timeout("a", 1.0) == math.inf  # it gives signs of life
    del device.gone
    assert recovery.timeout("a", 0.001) == 30.0
    assert recovery.timeout("a", 1.0) == 100.0
    recovery.slow = {"a": 2.0}
    assert recovery.timeout("a", 1.0) == 200.0
    begun, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        goes_on.wait()

    device.trouble = wait
    with bench.runtime.executor(bench.plan(0)) as busy, bench.runtime.executor(bench.plan(0)) as executor:
        with beside(lambda: busy.run(inputs_of(bench.model, 1))):
            begun.wait()
            with beside(lambda: executor.run(inputs_of(bench.model, 1))):
                until(executor.at_work)
                (before,) = executor.at_work()
                assert executor.at_work() == [before]
                device.trouble = int
                goes_on.set()
        assert executor.at_work() == []


def test_a_request_that_fails_by_its_own_fault_costs_no_device(bench: Bench, server: Server) -> None:
    with pytest.raises(PlaceitError, match="failed on a"):
        server.submit(inputs_of(bench.model, 9)).result(60)  # an index out of range
    assert bench.runtime.pool.lost() == {}
    assert server.replacements == []


def test_a_trace_has_requests_and_what_happened_to_the_server(bench: Bench, server: Server) -> None:
    bench.device(0).lose()
    until(lambda: server.replacements)
    bench.device(0).there = True
    until(lambda: len(server.replacements) == 2)
    until(lambda: server.history.trace()[-1].name == "first answer")
    trace = server.history.trace()
    events = [event for event in trace if isinstance(event, Event)]
    lost, silence, decision, compiling, *_ = events
    assert [event.name for event in events[:4]] == ["lost", "silence", "decision", "compiling and loading"]
    assert "a is lost" in lost.why
    assert silence.start <= silence.finish == lost.start <= decision.start <= decision.finish == compiling.start
    first, second = (event for event in events if event.name == "first answer")
    assert [first.why, second.why] == [str(one) for one in server.replacements]
    assert compiling.finish <= first.start <= first.finish
    between = {event.name for event in events if first.finish <= event.finish <= second.start}
    assert between >= {"news", "decision", "compiling and loading"}
    assert "a is back." in [event.why for event in events]
    assert {span.track for span in trace if isinstance(span, Span)} <= {"a", "b"}


@pytest.mark.parametrize("what", ["full", "full_for_instances"])
def test_a_device_that_cannot_load_the_model_is_passed_over_for_what_is_left(tmp_path: Path, what: str) -> None:
    bench = Bench(load(save_mixing(tmp_path / "mixing.onnx")), 3)
    with bench.runtime:
        executor, recovery = bench.runtime.executor(bench.plan(0)), Recovery(bench.runtime, bench.costs, None)
        setattr(bench.device(1), what, "b has run out of memory.")
        with Server([executor], replace=recovery) as server:
            answers = [server.submit(inputs_of(bench.model, 1)) for _ in range(20)]
            bench.device(0).lose()
            answers += [server.submit(inputs_of(bench.model, 1)) for _ in range(20)]
            for answer in answers:
                (output,) = answer.result(60).values()
                np.testing.assert_allclose(output, expected(1), rtol=1e-5)
        assert [one.devices for one in server.replacements] == [("c",)]


def test_where_nothing_that_is_left_can_load_the_model_requests_fail_with_all_reasons(tmp_path: Path) -> None:
    bench = Bench(load(save_mixing(tmp_path / "mixing.onnx")), 3)
    with bench.runtime:
        executor, recovery = bench.runtime.executor(bench.plan(0)), Recovery(bench.runtime, bench.costs, None)
        for number, name in ((1, "b"), (2, "c")):
            bench.device(number).full = f"{name} has run out of memory."
        bench.device(0).lose()
        why = r"a is lost.* b has run out of memory\. c has run out of memory\. The model cannot be placed on the remaining"
        with Server([executor], replace=recovery) as server, pytest.raises(PlaceitError, match=why):
            server.submit(inputs_of(bench.model, 1)).result(60)


def test_a_device_that_becomes_slow_is_left_and_used_again_when_it_is_not(
    bench: Bench, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    slow = bench.device(0)
    slow.trouble = lambda: time.sleep(0.03)
    until(lambda: server.replacements)
    assert server.replacements[0].devices == ("b",)
    assert "a takes " in server.replacements[0].why
    until(lambda: caplog.text.count("a takes ") >= 2)  # it was tried once more
    assert all(one.devices == ("b",) for one in server.replacements)
    slow.trouble = int
    until(lambda: len(server.replacements) == 2)
    assert server.replacements[1].devices == ("a",)
    assert "was tried again" in server.replacements[1].why


def test_a_link_that_is_back_is_said_to_be(bench: Bench) -> None:
    why = DeviceError("The link between a and b is lost.")
    for number, far in ((0, "b"), (1, "a")):
        bench.device(number).cut[far] = why
    assert bench.runtime.pool.lost() == {frozenset("ab"): why}
    assert bench.runtime.pool.reopen() == [frozenset("ab")]
    assert bench.runtime.pool.lost() == {}


def test_what_is_opened_after_the_runtime_was_closed_is_closed_as_well(bench: Bench) -> None:
    bench.device(0).lose()
    bench.device(0).there = True
    bench.runtime.close()
    assert bench.runtime.pool.reopen() == []


def test_an_executor_takes_the_place_of_another_unless_that_serves_no_more(bench: Bench) -> None:
    first, second, third = (bench.runtime.executor(bench.plan(number)) for number in (0, 1, 1))
    replacement = Replacement("It was told to.", ("b",), 0.0, 0.0, 0.0)
    with Server([first], queue=1000) as server, third:
        answers = [server.submit(inputs_of(bench.model, 1)) for _ in range(100)]
        assert server.exchange([first], [second], replacement)
        assert not server.exchange([first], [third], replacement)
        assert server.executors == [second]
        answers += [server.submit(inputs_of(bench.model, 1)) for _ in range(100)]
        for answer in answers:
            (output,) = answer.result(60).values()
            np.testing.assert_allclose(output, expected(1), rtol=1e-5)
        server.close()
        assert not server.exchange([second], [third], replacement)
    assert server.replacements == [replacement]


def test_a_decision_is_at_least_as_good_as_list_schedulers_and_single_devices(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the simulated seconds of plans, without a search."""
    monkeypatch.setattr(recovering, "_STEPS", 1)
    random = np.random.default_rng(0)
    bench.costs = replace(bench.costs, core=random.uniform(1e-4, 1e-3, bench.costs.core.shape))
    segmenter = Segmenter(bench.runtime.grouping, bench.costs)
    problem = segmenter.problem()
    listed = BestList().place(problem, segmenter.seconds, seed=0, evaluations=None)
    with bench.runtime.executor(bench.plan(1)) as executor:
        better = Recovery(bench.runtime, bench.costs, None).better(executor, [])
        assert better is not None
        assert better.plan.schedule.makespan <= segmenter.seconds(np.stack([listed, *starts(problem)])).min() * (1 + 1e-9)


# ---------------------------------------------------------------------------------------------------------------- the pace


def looks(pace: Pace, *ratios: float, known: float = 1.0) -> list[dict[str, float]]:
    """What is found at each look, of which each is about six requests."""
    found = []
    for ratio in ratios:
        for noise in (0.9, 1.0, 1.1, 1.0, 1.0, 20.0):
            pace.add("a", ratio * noise)
        found.append(pace.changes({"a": known}))
    return found


def test_a_pace_that_persists_is_found_and_a_slow_moment_is_not() -> None:
    assert looks(Pace(), 1, 3, 1, 3, 3, 1, 3, 3) == [{}] * 8
    assert looks(Pace(), 1, 3, 3, 3) == [{}, {}, {}, {"a": 3.0}]
    assert looks(Pace(), 1.9, 1.9, 1.9) == [{}] * 3


def test_a_slow_device_that_is_fast_again_is_found_as_well() -> None:
    assert looks(Pace(), 3, 3, 3, known=3.0) == [{}] * 3
    assert looks(Pace(), 1.2, 1.2, 1.2, known=3.0) == [{}, {}, {"a": 1.2}]
    assert looks(Pace(), 0.3, 0.3, 0.3) == [{}] * 3


def test_a_look_waits_for_enough_requests() -> None:
    pace = Pace()
    for _ in range(12):
        pace.add("a", 5.0)
        assert pace.changes({}) == {}
    for _ in range(3):
        pace.add("a", 5.0)
    assert pace.changes({}) == {"a": 5.0}
