"""No launch reads what is not there yet, and nothing is overwritten or freed that may still be read: on a fake accelerator."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_cases import random_case, run_case

from placeit.errors import DeviceError, ExecutionError
from placeit.runtime.devices.base import TensorSpec
from placeit.runtime.streams.accelerator import HOST
from placeit.runtime.streams.clocks import Clocks
from placeit.runtime.streams.executor import StreamExecutor
from placeit.runtime.streams.layout import Layout
from placeit.testing.fake_accelerator import FakeAccelerator
from placeit.testing.happens_before import HOST_THREAD, Access, HappensBefore

ORDERS = ("dynamic", "static", "graph")
PATIENCE = (0.0, 0.5, 2.0, 20.0)  # from a host that launches everything before anything happens, to one that comes late


def options(seed):
    return {"requests": 1 + seed % 2, "ahead": 1 + seed % 3, "patience": PATIENCE[seed % 4]}


@pytest.mark.parametrize(("order", "plans"), [("dynamic", 200), ("static", 100), ("graph", 40)])
def test_every_run_of_random_plans_is_ordered_and_right(order, plans):
    waits = shared = 0
    for seed in range(plans):  # two runs each, of one or two requests
        case = random_case(seed)
        accelerator, right = run_case(case, order=order, **options(seed))
        assert accelerator.order.faults == [], (seed, order)
        assert right, (seed, order)
        assert not any(accelerator.allocated.values())
        waits += accelerator.waits
        layout = Layout(case.work(), accelerator, fixed=order != "dynamic")
        shared += len(layout.specs) - len(layout.slots)
    assert waits > 5 * plans  # or the test would show little
    assert shared > plans / 2


def some_on_host(seed, devices):
    """Devices that compute in the host's memory."""
    return {device for device in range(devices) if (seed >> device) & 1}


def test_devices_in_the_memory_of_the_host_hold_up_no_others_and_copy_nothing_to_each_other():
    copies = waits = 0
    for seed in range(120):
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
    assert waits > 300
    assert copies > 300


@pytest.mark.parametrize("order", ["static", "graph"])
def test_launching_everything_ahead_is_refused_where_a_device_would_have_to_wait_for_a_thread(order):
    case = random_case(3, ops=8, devices=2)
    with pytest.raises(DeviceError, match=rf"order='{order}'.* fake:1 cannot be made to wait for fake:0"):
        StreamExecutor(case.work(), case.accelerator(on_host={0}), order=order)
    accelerator, right = run_case(case, order=order, on_host={0, 1})
    assert right
    assert accelerator.order.faults == []


@pytest.mark.parametrize("order", ["dynamic", "static"])
def test_leaving_out_any_one_wait_is_found(order):
    left_out = wrong = 0
    for seed in range(16):
        case = random_case(seed)
        waits = run_case(case, order=order, rounds=1, **options(seed))[0].waits
        for wait in range(waits):
            accelerator, right = run_case(case, order=order, rounds=1, skip_wait=wait, **options(seed))
            assert accelerator.order.faults, (seed, order, wait)
            left_out += 1
            wrong += not right
    assert left_out > 100
    assert wrong > left_out / 20  # the data shows it as well, whenever time happens to pass that way


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**31),
    ops=st.integers(1, 12),
    devices=st.integers(1, 4),
    merge=st.booleans(),
    order=st.sampled_from(ORDERS),
    requests=st.integers(1, 3),
    ahead=st.integers(1, 4),
    patience=st.sampled_from(PATIENCE),
    mixed=st.booleans(),
)
def test_any_plan_with_any_timing_is_ordered_and_right(seed, ops, devices, merge, order, requests, ahead, patience, mixed):
    case = random_case(seed, ops=ops, devices=devices, merge=merge)
    hosts = some_on_host(seed, devices) if mixed and order == "dynamic" else ()
    accelerator, right = run_case(case, order=order, requests=requests, ahead=ahead, patience=patience, on_host=hosts)
    assert accelerator.order.faults == []
    assert right
    assert not any(accelerator.allocated.values())


@pytest.mark.parametrize("order", ["dynamic", "static"])
def test_sharing_memory_too_early_is_found(order, monkeypatch):
    def careless(self, ancestors):
        return share(self, [~0] * len(ancestors))  # as if every launch had ended before every other

    share = Layout._share
    monkeypatch.setattr(Layout, "_share", careless)
    found = sum(bool(run_case(random_case(seed), order=order)[0].order.faults) for seed in range(20))
    assert found > 10


@pytest.mark.parametrize("order", ["dynamic", "static"])
def test_memory_that_is_freed_while_launches_use_it_is_found(order, monkeypatch):
    monkeypatch.setattr(FakeAccelerator, "finish", lambda self, streams: None)
    found = 0
    for seed in range(30):
        case = random_case(seed, ops=8, devices=3)
        accelerator = case.accelerator(fail_at=2, patience=0.0)
        with contextlib.suppress(ExecutionError), StreamExecutor(case.work(), accelerator, order=order) as executor:
            executor.run(case.inputs())
        found += bool(accelerator.order.faults)
    assert found > 5


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
        views = [fake.view(m, TensorSpec((1,), "float64")) for m in memory]
        fake.write(views[0], [1.0])
        first, second = fake.stream(0, 0), fake.stream(0, 1)
        fake.copy(first, views[0], views[1])
        fake.launch(second, Adder(), [views[1]], [views[2]])  # no wait
        fake.finish([first, second])
        fake.copy(first, views[2], views[0])
        fake.finish([first])
        seen.add(float(fake.read(views[0])[0]))
        assert fake.order.faults == [f"launch 0 reads {views[1]}, which the copy of {views[0]} may still be writing"]
    assert len(seen) > 1
