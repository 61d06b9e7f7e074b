"""No launch reads what is not there yet, and nothing is overwritten or freed that may still be read: on a fake accelerator."""

import contextlib
import re
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placeit.core.errors import ExecutionError
from placeit.runtime.accelerators.clocks import Clocks
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.launcher import Launcher
from placeit.runtime.accelerators.layout import RequestLayout
from placeit.runtime.devices.accelerator import HOST, Inbox
from placeit.runtime.devices.base import BufferSpec
from tests.fake_accelerator import FakeAccelerator
from tests.happens_before import HOST_THREAD, Access, HappensBefore
from tests.runtime.stream_cases import random_case, run_case

PATIENCE = (0.0, 0.5, 2.0, 20.0)  # from a host that launches everything before anything happens, to one that comes late


def options(seed):
    return {"in_flight": 1 + seed % 2, "ahead": 1 + seed % 3, "patience": PATIENCE[seed % 4]}


def test_every_run_of_random_plans_is_ordered_and_right():
    plans, waits, shared = 60, 0, 0
    for seed in range(plans):  # two runs each, of one or two requests
        case = random_case(seed)
        accelerator, right = run_case(case, **options(seed))
        assert accelerator.order.faults == [], seed
        assert right, seed
        assert not any(accelerator.allocated.values())
        waits += accelerator.waits
        layout = RequestLayout(case.work(), accelerator)
        shared += len(layout.specs) - len(layout.slots)
    assert waits > 5 * plans  # or the test would show little
    assert shared > plans / 2


def some_on_host(seed, devices):
    """Devices that compute in the host's memory."""
    return {device for device in range(devices) if (seed >> device) & 1}


def test_devices_in_the_memory_of_the_host_hold_up_no_others_and_copy_nothing_to_each_other():
    copies = waits = 0
    for seed in range(70):
        case = random_case(seed)
        hosts = some_on_host(seed, len(case.runtime.cluster))
        accelerator, right = run_case(case, on_host=hosts, **options(seed))  # the fake refuses waits for these
        assert accelerator.order.faults == [], seed
        assert right, seed
        assert not any(accelerator.allocated.values())
        waits += accelerator.waits
        for run in accelerator.trace:
            if run.program is None:
                ends = {HOST if end in hosts else end for end in (run.src, run.dst)}
                assert len(ends) == 2
                copies += HOST in ends
    assert waits > 150
    assert copies > 150


def some_parts(seed, devices):
    """Devices that are parts of one GPU, each with the first of them."""
    parts = [device for device in range(devices) if (seed >> device) & 1] or [0]
    return dict.fromkeys(parts, parts[0])


def test_parts_of_a_gpu_are_ordered_and_right_and_copy_nothing_to_each_other():
    shared = waits = 0
    for seed in range(40):
        case = random_case(seed)
        parts = some_parts(seed, len(case.runtime.cluster))
        accelerator, right = run_case(case, parts=parts, **options(seed))
        assert accelerator.order.faults == [], seed
        assert right, seed
        assert not any(accelerator.allocated.values())
        assert all(run.src != run.dst for run in accelerator.trace if run.program is None)
        shared += len(parts) > 1
        waits += accelerator.waits
    assert shared > 10
    assert waits > 80


def test_leaving_out_any_one_wait_between_parts_of_a_gpu_is_found(monkeypatch):
    monkeypatch.setattr(FakeAccelerator, "elapsed", lambda *_: 0.0)  # it would be asked for times of what has not ended yet
    left_out = 0
    for seed in range(6):
        case = random_case(seed, ops=10, devices=2)
        waits = run_case(case, parts={1: 0}, rounds=1, **options(seed))[0].waits
        for wait in range(waits):
            accelerator, _ = run_case(case, parts={1: 0}, rounds=1, skip_wait=wait, **options(seed))
            assert accelerator.order.faults, (seed, wait)
            left_out += 1
    assert left_out > 10


def test_devices_that_share_hardware_never_run_at_the_same_time():
    for seed in range(20):
        case = random_case(seed, ops=10, devices=3, shared=True)
        accelerator, right = run_case(case, in_flight=2, ahead=3, patience=0.0)
        assert right
        assert accelerator.order.faults == []
        ran = sorted((run.start, run.finish) for run in accelerator.trace if run.program is not None)
        assert all(before[1] <= after[0] for before, after in pairwise(ran)), seed


def test_leaving_out_any_one_wait_is_found(monkeypatch):
    monkeypatch.setattr(FakeAccelerator, "elapsed", lambda *_: 0.0)  # it would be asked for times of what has not ended yet
    left_out = wrong = 0
    for seed in range(10):
        case = random_case(seed)
        waits = run_case(case, rounds=1, **options(seed))[0].waits
        for wait in range(waits):
            accelerator, right = run_case(case, rounds=1, skip_wait=wait, **options(seed))
            assert accelerator.order.faults, (seed, wait)
            left_out += 1
            wrong += not right
    assert left_out > 60
    assert wrong > left_out / 20  # the data shows it as well, whenever time happens to pass that way


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**31),
    ops=st.integers(1, 12),
    devices=st.integers(1, 4),
    merge=st.booleans(),
    requests=st.integers(1, 3),
    ahead=st.integers(1, 4),
    patience=st.sampled_from(PATIENCE),
    mixed=st.booleans(),
)
def test_any_plan_with_any_timing_is_ordered_and_right(seed, ops, devices, merge, requests, ahead, patience, mixed):
    case = random_case(seed, ops=ops, devices=devices, merge=merge)
    hosts = some_on_host(seed, devices) if mixed else ()
    accelerator, right = run_case(case, in_flight=requests, ahead=ahead, patience=patience, on_host=hosts)
    assert accelerator.order.faults == []
    assert right
    assert not any(accelerator.allocated.values())


def test_sharing_memory_too_early_is_found(monkeypatch):
    def careless(self, ancestors):
        return share(self, [~0] * len(ancestors))  # as if every launch had ended before every other

    share = RequestLayout._share
    monkeypatch.setattr(RequestLayout, "_share", careless)
    found = sum(bool(run_case(random_case(seed))[0].order.faults) for seed in range(20))
    assert found > 10


def test_memory_that_is_freed_while_launches_use_it_is_found(monkeypatch):
    monkeypatch.setattr(FakeAccelerator, "finish", lambda self, stream: None)
    found = 0
    for seed in range(30):
        case = random_case(seed, ops=8, devices=3)
        accelerator = case.accelerator(fail_at=2, patience=0.0)
        with contextlib.suppress(ExecutionError), StreamExecutor(case.work(), accelerator) as executor:
            executor.run(case.inputs())
        found += bool(accelerator.order.faults)
    assert found > 5


def failing_case(seed):
    """A case with some devices in the host's memory, and numbers of the launches there that fail: one, two or more."""
    case = random_case(seed, ops=10, devices=3)
    hosts = some_on_host(seed, 3) or {0, 1, 2}
    jobs = np.random.default_rng([seed, 4]).integers(0, 12, 1 + seed % 3).tolist()
    return case, {"on_host": hosts, "fail_job": jobs}


def test_jobs_that_fail_on_threads_are_told_and_waited_for():
    failed = left = 0
    for seed in range(90):
        case, faults = failing_case(seed)
        accelerator = case.accelerator(patience=PATIENCE[seed % 4], **faults)
        with contextlib.ExitStack() as stack:
            executor = stack.enter_context(StreamExecutor(case.work(), accelerator, in_flight=1 + seed % 2))
            try:
                for request in range(1 + seed % 2):
                    executor.set_inputs(case.inputs(request), request=request)
                executor.times(1 + seed % 2)
            except ExecutionError as error:
                failed += bool(re.search(r"starts with 'op\d+' failed on fake:\d: RuntimeError: this job fails", str(error)))
            else:
                for request in range(1 + seed % 2):
                    got, want = executor.outputs(request=request), case.expected(case.inputs(request))
                    assert all(np.array_equal(got[name], want[name]) for name in want)
                left += 1
        assert accelerator.order.faults == [], seed
        assert not any(accelerator.allocated.values())
    assert failed + left == 90
    assert failed > 18
    assert left > 6


def test_whatever_breaks_while_others_run_is_waited_for():
    broken = 0
    for seed in range(120):
        case = random_case(seed, ops=10, devices=3)
        accelerator = case.accelerator(patience=PATIENCE[seed % 4], die_at=seed % 5)
        with contextlib.suppress(ExecutionError), StreamExecutor(case.work(), accelerator, ahead=3) as executor:
            executor.run(case.inputs())
        assert accelerator.order.faults == [], seed
        assert not any(accelerator.allocated.values())
        broken += accelerator._broken is not None
    assert broken > 50


def test_waiting_that_ends_at_the_first_failure_is_found(monkeypatch):
    def careless(self):
        for stream in self.streams:
            self.accelerator.finish(stream)

    monkeypatch.setattr(Launcher, "finish", careless)
    found = 0
    for seed in range(60):
        case = random_case(seed, ops=10, devices=3)
        accelerator = case.accelerator(patience=0.0, die_at=seed % 5)
        with contextlib.suppress(ExecutionError), StreamExecutor(case.work(), accelerator, ahead=3) as executor:
            executor.run(case.inputs())
        found += bool(accelerator.order.faults)
    assert found > 5


def several_callers(seed, callers, runs):
    """Some threads, each with its own executor on one accelerator; jobs of some of them fail. How many runs were right."""
    case, faults = failing_case(seed)
    accelerator = case.accelerator(patience=PATIENCE[seed % 4], **faults)
    outcomes = []

    def call():
        for number in range(runs):
            try:
                with StreamExecutor(case.work(), accelerator) as executor:
                    got, want = executor.run(case.inputs(number)), case.expected(case.inputs(number))
                    outcomes.append(all(np.array_equal(got[name], want[name]) for name in want))
            except ExecutionError as error:
                outcomes.append(None if "this job fails" in str(error) else error)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == callers * runs
    assert accelerator.order.faults == [], seed
    assert not any(accelerator.allocated.values())
    assert {outcome for outcome in outcomes if outcome is not None} <= {True}
    return outcomes.count(True), outcomes.count(None)


@pytest.mark.parametrize(
    ("seeds", "callers", "runs", "least"), [(24, 3, 4, 200), pytest.param(200, 6, 6, 5000, marks=pytest.mark.nightly)]
)
def test_of_several_callers_each_has_its_own_failures_and_right_outputs(seeds, callers, runs, least):
    right, failed = map(sum, zip(*(several_callers(seed, callers, runs) for seed in range(seeds)), strict=True))
    assert right > least
    assert failed > 10


@pytest.mark.parametrize("careful", [True, False])
def test_a_run_of_another_thread_is_waited_for_before_its_memory_is_freed(careful, monkeypatch):
    if not careful:
        monkeypatch.setattr(FakeAccelerator, "usage_lock", lambda self: contextlib.nullcontext())
    found = 0
    for seed in range(10):
        case = random_case(seed, ops=10, devices=2)
        accelerator = case.accelerator(patience=0.0)
        began, go = threading.Event(), threading.Event()
        executor = StreamExecutor(case.work(), accelerator)
        take = accelerator.take

        def late(inbox, take=take, began=began, go=go):
            began.set()
            assert go.wait(30)
            return take(inbox)

        accelerator.take = late

        def run(executor=executor, case=case):
            with contextlib.suppress(Exception):  # without a turn anything may happen
                executor.run(case.inputs())

        runner, closer = threading.Thread(target=run), threading.Thread(target=executor.close)
        runner.start()
        assert began.wait(30)
        closer.start()
        closer.join(0.02)
        go.set()
        for thread in (runner, closer):
            thread.join(60)
        found += bool(accelerator.order.faults)
    assert (found == 0) if careful else (found > 5)


def test_a_host_function_that_calls_the_accelerator_is_found(monkeypatch):
    case = random_case(3, ops=8, devices=2)
    accelerator = case.accelerator()
    put = Inbox.put

    def careless(self, token):
        accelerator.event(0)
        put(self, token)

    monkeypatch.setattr(Inbox, "put", careless)
    with StreamExecutor(case.work(), accelerator) as executor:
        executor.run(case.inputs())
    assert set(accelerator.order.faults) == {"a host function calls 'event'"}


def test_what_runs_for_too_long_is_given_up_and_its_memory_kept_until_it_ends():
    for seed in range(3):
        case = random_case(seed, ops=8, devices=2)
        accelerator = case.accelerator(hang_at=0)
        with StreamExecutor(case.work(), accelerator) as executor:
            for _ in range(2):
                with pytest.raises(ExecutionError, match=r"time-out is over.*still running: the segment .*'op\d+' on fake:\d"):
                    executor.run(case.inputs(), timeout=0.3)
        assert any(accelerator.allocated.values())
        accelerator.hang_no_more()
        while any(thread.name == "placeit launches" for thread in threading.enumerate()):
            time.sleep(0.001)
        assert not any(accelerator.allocated.values())
        assert accelerator.order.faults == []


def test_a_closed_fake_refuses_new_executors():
    case = random_case(1, ops=4, devices=2)
    accelerator = case.accelerator()
    executor = StreamExecutor(case.work(), accelerator)
    accelerator.close()
    with pytest.raises(ExecutionError, match="closed"):
        StreamExecutor(case.work(), accelerator)
    with pytest.raises(ExecutionError, match="closed"):
        executor.run(case.inputs())
    executor.close()
    assert not any(accelerator.allocated.values())


def chain_of_marks(clocks):
    first, _ = clocks.launch(0, 0, [])
    second, waits = clocks.launch(1, 1, [first])
    assert [mark.launch for mark in waits] == [0]
    return first, second


def test_a_wait_that_another_implies_is_not_asked_for():
    clocks = Clocks(3)
    first, second = chain_of_marks(clocks)
    _, waits = clocks.launch(2, 2, [first, second])
    assert [mark.launch for mark in waits] == [1]
    assert clocks.launch(3, 2, [first, second])[1] == []  # the stream has waited before
    assert clocks.launch(4, 1, [second])[1] == []  # its own stream


def test_what_the_host_has_seen_to_end_is_not_waited_for():
    clocks = Clocks(3)
    first, second = chain_of_marks(clocks)
    clocks.ended(second)
    assert clocks.launch(2, 2, [first, second])[1] == []


A, B = Access("m", "a"), Access("m", "b")


def test_the_checker_wants_reads_after_writes_and_writes_after_reads():
    order = HappensBefore()
    order.use(1, "w", writes=[A])
    order.use(2, "r", reads=[A])
    assert order.faults == ["r reads a, which w may still be writing"]
    order.use(3, "x", writes=[A])
    assert order.faults[1:] == ["x writes a where w may still be writing", "x writes a where r may still be reading"]


def test_the_checker_is_content_with_events_and_reports():
    order = HappensBefore()
    order.use(1, "w", writes=[A])
    order.after(2, order.mark(1))
    order.use(2, "r", reads=[A])
    order.after(HOST_THREAD, order.mark(2))
    order.use(3, "x", writes=[B])  # the host launches it after it has learned of both
    order.after(HOST_THREAD, order.mark(3))
    order.free("m")
    assert order.faults == []


def test_an_event_marks_only_what_was_launched_before_it():
    order = HappensBefore()
    early = order.mark(1)
    order.use(1, "w", writes=[A])
    order.after(2, early)
    order.use(2, "r", reads=[A])
    assert order.faults == ["r reads a, which w may still be writing"]


def test_the_checker_finds_what_was_never_written_written_as_something_else_or_freed():
    order = HappensBefore()
    order.use(1, "r", reads=[A])
    order.use(1, "w", writes=[A])
    order.use(1, "s", reads=[B])
    order.free("m")
    order.use(1, "t", reads=[A])
    assert order.faults == [
        "r reads a, which nothing has written",
        "s reads b, but w has written a there",
        "the host frees m where w may still be writing",
        "the host frees m where s may still be reading",
        "t uses m, which was freed",
    ]


class Adder:
    def launch(self, inputs, outputs):
        outputs[0][...] = inputs[0] + 1


def test_the_fake_gives_wrong_data_to_what_reads_too_early():
    seen = set()
    for seed in range(30):
        fake = FakeAccelerator(1, seed, patience=0.0)
        memory = [fake.allocate(place, 8) for place in (HOST, 0, 0)]
        views = [fake.view(m, BufferSpec((1,), "float64")) for m in memory]
        fake.write(views[0], [1.0])
        first, second = fake.open_stream(0), fake.open_stream(0)
        fake.copy(first, views[0], views[1])
        fake.launch(second, Adder(), [views[1]], [views[2]], Inbox(), (0, 0))  # no wait
        for stream in (first, second, first):
            fake.finish(stream)
        fake.copy(first, views[2], views[0])
        fake.finish(first)
        seen.add(float(fake.read(views[0])[0]))
        assert fake.order.faults == [f"launch 0 reads {views[1]}, which the copy of {views[0]} may still be writing"]
    assert len(seen) > 1
