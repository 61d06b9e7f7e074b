import contextlib
import itertools
import threading

import numpy as np
import pytest

from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError, ExecutionError, UsageError
from placeit.core.graph import OpGraph
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.layout import RequestLayout
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.devices.accelerator import HOST
from placeit.runtime.runtime import Runtime
from placeit.simulator.scheduler import Scheduler, Transfer
from tests.fake_accelerator import FakeAccelerator
from tests.runtime.stream_cases import Case, Model, Program, random_case


def case_of(kinds, edges, devices, seconds=1.0, *, nbytes=400):
    """A model whose every op makes one tensor of float32, cut into one segment per op."""
    edges = np.array(edges, np.int32).reshape(-1, 2)
    ops, places = len(kinds), max(devices) + 1
    makers = sorted(set(edges[:, 0].tolist()))
    graph = OpGraph(
        tuple(f"op{v}" for v in range(ops)),
        tuple(kinds),
        np.ones(ops),
        np.zeros(ops),
        np.array(makers, np.int32),
        np.zeros(len(makers), np.int32),
        np.full(len(makers), float(nbytes)),
        ((nbytes // 4,),) * len(makers),
        ("float32",) * len(makers),
        edges,
        np.array([makers.index(u) for u in edges[:, 0]], np.int32),
    ).verify()
    names = [f"fake:{d}" for d in range(places)]
    links = {pair: Link(1e3, 0.0) for pair in itertools.permutations(names, 2)}
    cluster = Cluster(tuple(Device(name, "fake") for name in names), links)
    grouping = Grouping.singletons(graph)
    core = np.broadcast_to(np.reshape(np.asarray(seconds, float), (-1, 1)), (ops, places)).copy()
    plan = Segmenter(grouping, Costs(core, np.zeros_like(core), np.zeros(places), cluster)).plan(devices, merge=False)
    runtime = Runtime(Model(graph), grouping, cluster, devices=[None] * places, transports={})
    pairs = frozenset(itertools.permutations(range(places), 2))
    return Case(runtime, plan, pairs, 0)


def chain(ops, devices, **options):
    kinds = ["Parameter", *["Op"] * ops, "Result"]
    return case_of(kinds, list(itertools.pairwise(range(ops + 2))), [devices[0], *devices, devices[-1]], **options)


def simulated(case, work):
    """Return the durations of the simulator, with ends of the model that cost nothing."""
    schedule, problem = case.plan.schedule, case.plan.problem
    seconds = {id(task.program): schedule.finish[s] - schedule.start[s] for s, task in enumerate(work.tasks)}

    def of(program, src, dst, nbytes):
        if program is not None:
            return seconds[id(program.program)]
        return 0.0 if HOST in (src, dst) else problem.latency[src, dst] + nbytes / problem.bandwidth[src, dst]

    return of


def traced(case, **options):
    work = case.work()
    accelerator = FakeAccelerator(len(case.runtime.cluster), seconds=simulated(case, work))
    with StreamExecutor(work, accelerator, **options) as executor:
        executor.run(case.inputs())
    return work, accelerator.trace


@pytest.mark.parametrize("seed", range(25))
def test_without_launching_ahead_it_keeps_the_simulated_schedule(seed):
    case = random_case(seed, ops=12, devices=3, closed=True)
    work, trace = traced(case, ahead=1)
    begin = {id(run.program.program): run.start for run in trace if run.program is not None}
    for s, task in enumerate(work.tasks):
        if task.program is not None:
            assert begin[id(task.program)] == pytest.approx(case.plan.schedule.start[s])
    sent = sorted((run.src, run.dst, run.start) for run in trace if run.program is None and run.dst != HOST)
    moved = case.plan.schedule.transfers
    want = sorted(zip(moved.src.tolist(), moved.dst.tolist(), moved.start.tolist(), strict=True))
    assert [run[:2] for run in sent] == [run[:2] for run in want]
    assert [run[2] for run in sent] == pytest.approx([run[2] for run in want])


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_no_device_is_idle_while_one_of_its_segments_is_ready(ahead):
    gaps = 0
    for seed in range(25):
        _, trace = traced(random_case(seed, ops=14, devices=3, closed=True), ahead=ahead)
        written = {view: run.finish for run in trace for view in run.outputs}
        for device in range(3):
            runs = [run for run in trace if run.program is not None and run.src == device]
            runs.sort(key=lambda run: (run.start, run.finish))
            free = 0.0
            for i, run in enumerate(runs):
                if run.start > free + 1e-9:
                    gaps += 1
                    for later in runs[i:]:
                        assert max((written[view] for view in later.inputs), default=0.0) > run.start - 1e-9
                free = run.finish
    assert gaps > 10


def test_a_device_does_not_wait_for_the_host_between_its_segments():
    case = chain(6, [0] * 6, seconds=10.0)
    work = case.work()

    class Late(FakeAccelerator):
        """Reports come two seconds late."""

        def _after(self, call, run=None):
            if run is None:
                self._clock.at(self._clock.now + 2.0, call)
            else:
                super()._after(call, run)

    makespan = {}
    for ahead in (1, 2):
        accelerator = Late(1, seconds=simulated(case, work))
        with StreamExecutor(work, accelerator, ahead=ahead) as executor:
            executor.run(case.inputs())
        runs = [run for run in accelerator.trace if run.program is not None]
        makespan[ahead] = runs[-1].finish - runs[0].start
    assert makespan[2] == pytest.approx(60.0)
    assert makespan[1] == pytest.approx(60.0 + 5 * 2.0)


def test_outputs_are_those_of_the_model_run_after_run():
    case = random_case(7, ops=12, devices=3)
    accelerator = case.accelerator()
    with StreamExecutor(case.work(), accelerator) as executor:
        for number in range(3):
            got, want = executor.run(case.inputs(number)), case.expected(case.inputs(number))
            assert got.keys() == want.keys()
            for name in want:
                np.testing.assert_array_equal(got[name], want[name])
                assert got[name].dtype == want[name].dtype


def test_requests_in_flight_have_their_own_inputs_and_outputs():
    case = random_case(11, ops=10, devices=2)
    with StreamExecutor(case.work(), case.accelerator(), in_flight=3) as executor:
        for request in range(3):
            executor.set_inputs(case.inputs(request), request=request)
        assert executor.times(8) >= 0  # more than fit: a request begins again as soon as it has ended
        for request in range(3):
            want = case.expected(case.inputs(request))
            for name, value in executor.outputs(request=request).items():
                np.testing.assert_array_equal(value, want[name])


def test_a_tensor_goes_through_pinned_memory_where_a_device_cannot_write_the_others():
    case = chain(2, [0, 1])
    legs = {}
    for peers in (frozenset(), case.peers):
        accelerator = FakeAccelerator(2, peers=set(peers))
        with StreamExecutor(case.work(), accelerator) as executor:
            got = executor.run(case.inputs())
        np.testing.assert_array_equal(got["out_op3"], case.expected(case.inputs())["out_op3"])
        legs[len(peers)] = [(run.src, run.dst) for run in accelerator.trace if run.program is None]
    assert legs[2] == [(HOST, 0), (0, 1), (1, HOST)]
    assert legs[0] == [(HOST, 0), (0, HOST), (HOST, 1), (1, HOST)]


def test_a_tensor_read_twice_on_a_device_goes_there_once():
    edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)]
    case = case_of(["Parameter", "Op", "Op", "Op", "Op", "Result"], edges, [0, 0, 1, 1, 1, 1])
    _, trace = traced(case)
    assert [(run.src, run.dst) for run in trace if run.program is None] == [(HOST, 0), (0, 1), (1, HOST)]


def test_of_two_ready_segments_the_one_on_the_longer_path_goes_first():
    # op1 and op2 are ready at once; op4 after op2 takes long
    case = case_of(["Parameter", "Op", "Op", "Op", "Op"], [(0, 1), (0, 2), (1, 3), (2, 4)], [0] * 5, [0, 1, 1, 1, 9])
    work, trace = traced(case)
    names = {id(task.program): task.name for task in work.tasks}
    assert [names[id(run.program.program)] for run in trace if run.program is not None] == ["op2", "op4", "op1", "op3"]


def test_copies_run_beside_segments():
    # while op1 is sent to the other device, op2 runs
    case = case_of(["Op", "Op", "Op"], [(0, 2)], [0, 0, 1], [1, 5, 9], nbytes=2000)
    _, trace = traced(case)
    copy = next(run for run in trace if run.program is None)
    assert (copy.start, copy.finish) == (1.0, 3.0)
    assert [(run.start, run.finish) for run in trace if run.program is not None and run.src == 0] == [(0, 1), (1, 6)]


def fan_in():
    """Two devices that compute as long, and send to a third."""
    return case_of(["Op", "Op", "Op", "Op"], [(0, 2), (1, 3)], [0, 1, 2, 2], [1, 1, 1, 1], nbytes=2000)


def copies_between_devices(trace):
    return sorted((run.start, run.finish) for run in trace if run.program is None and HOST not in (run.src, run.dst))


def test_copies_into_one_device_do_not_wait_for_each_other(monkeypatch):
    _, trace = traced(fan_in())
    assert copies_between_devices(trace) == [(1.0, 3.0), (1.0, 3.0)]

    def on_the_default_stream(self, stream, source, destination, beside=None):
        return copy(self, stream, source, destination)

    copy = FakeAccelerator.copy
    monkeypatch.setattr(FakeAccelerator, "copy", on_the_default_stream)  # as PyTorch does by itself
    _, trace = traced(fan_in())
    assert copies_between_devices(trace) == [(1.0, 3.0), (3.0, 5.0)]


def test_a_forgotten_wait_where_two_copies_meet_is_found(monkeypatch):
    monkeypatch.setattr(FakeAccelerator, "elapsed", lambda *_: 0.0)  # it would be asked for times of what has not ended yet
    case = fan_in()
    with StreamExecutor(case.work(), accelerator := case.accelerator(patience=0.0)) as executor:
        executor.run({})
    assert accelerator.order.faults == []
    assert accelerator.waits == 2  # of each copy, for what makes it; the host launches what reads it
    for wait in range(2):
        with StreamExecutor(case.work(), accelerator := case.accelerator(patience=0.0, skip_wait=wait)) as executor:
            executor.run({})
        assert any("may still be writing" in fault for fault in accelerator.order.faults)


def side_by_side(accelerator, executors):
    """Run executors at once: none goes on before all have launched."""
    take, launched = accelerator.take, threading.Barrier(len(executors))
    begun = threading.local()

    def late(inbox):
        if not getattr(begun, "already", False):
            begun.already = True
            launched.wait(30)
        return take(inbox)

    accelerator.take = late
    threads = [threading.Thread(target=executor.run, args=({},)) for executor in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    del accelerator.take


def test_executors_of_one_device_have_streams_of_their_own_and_run_at_once():
    case = case_of(["Op"] * 3, [(0, 1), (1, 2)], [0, 0, 0], [5, 5, 5])
    works = [case.work(), case.work()]
    accelerator = FakeAccelerator(1, seconds=lambda program, src, dst, nbytes: 5.0)
    with contextlib.ExitStack() as stack:
        executors = [stack.enter_context(StreamExecutor(work, accelerator)) for work in works]
        side_by_side(accelerator, executors)
    ran = [(run.start, run.finish) for run in accelerator.trace if run.program is not None]
    assert sorted(ran) == [(0, 5), (0, 5), (5, 10), (5, 10), (10, 15), (10, 15)]
    assert accelerator.order.faults == []
    assert accelerator.streams == 0  # they are returned


@pytest.mark.parametrize("priority", [0, -1])
def test_streams_have_the_priority_of_their_executor(priority):
    case = fan_in()
    accelerator = case.accelerator()
    StreamExecutor(case.work(), accelerator, priority=priority).close()
    assert set(accelerator.priorities) == {priority}
    assert len(accelerator.priorities) == 3 + 2 * 2  # one for segments on each device, and two for each link
    assert accelerator.streams == 0


@pytest.mark.parametrize("in_flight", [1, 2])
def test_segments_on_one_device_are_launched_at_once_and_reported_once(in_flight):
    case = case_of(["Parameter", "Op", "Op", "Op", "Result"], [(0, 1), (1, 2), (1, 3), (2, 3), (3, 4)], [0] * 5)
    accelerator = case.accelerator(patience=0.0)
    reports = []
    notify = accelerator.notify

    def counted(stream, event, inbox, token):
        assert accelerator.launches == 3 * (len(reports) + 1)  # everything is launched by then
        reports.append(token)
        notify(stream, event, inbox, token)

    accelerator.notify = counted
    with StreamExecutor(case.work(), accelerator, in_flight=in_flight) as executor:
        for number in range(3):
            got = executor.run(case.inputs(number))
            np.testing.assert_array_equal(got["out_op4"], case.expected(case.inputs(number))["out_op4"])
        assert [span.name for span in executor.spans() if span.kind == "compute"] == ["op1", "op2", "op3"]
    assert len(reports) == 3
    assert accelerator.order.faults == []


def test_copies_of_one_request_run_beside_segments_of_another_on_one_device():
    case = chain(1, [0], seconds=3.0)
    accelerator = FakeAccelerator(1, seconds=lambda program, src, dst, nbytes: 3.0 if program else 2.0)
    with StreamExecutor(case.work(), accelerator, in_flight=2) as executor:
        for request in range(2):
            executor.set_inputs(case.inputs(), request=request)
        executor.times(2)
    at = {"in": [], "run": [], "out": []}
    for run in accelerator.trace:
        at["run" if run.program else "in" if run.src == HOST else "out"].append((run.start, run.finish))
    assert at == {"in": [(0, 2), (2, 4)], "run": [(2, 5), (5, 8)], "out": [(5, 7), (8, 10)]}


def test_parts_of_a_gpu_pass_tensors_without_a_copy():
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]
    case = case_of(["Parameter", "Op", "Op", "Op", "Result"], edges, [0, 0, 1, 1, 1], [0, 4, 4, 1, 0])
    accelerator = FakeAccelerator(2, parts={1: 0}, seconds=lambda program, src, dst, nbytes: 4.0 if program else 1.0)
    with StreamExecutor(case.work(), accelerator) as executor:
        allocated = dict(accelerator.allocated)
        got = executor.run(case.inputs())
        assert executor.layout.bytes_on(0) == allocated[0] > allocated[1] == 0
    np.testing.assert_array_equal(got["out_op4"], case.expected(case.inputs())["out_op4"])
    assert [(run.src, run.dst) for run in accelerator.trace if run.program is None] == [(HOST, 0), (0, HOST)]
    runs = sorted((run.start, run.src) for run in accelerator.trace if run.program is not None)
    assert runs == [(1.0, 0), (1.0, 1), (5.0, 1)]  # the first two at the same time
    assert accelerator.order.faults == []


def test_a_plan_on_parts_of_a_gpu_has_to_fit_into_its_memory_once():
    case = chain(2, [0, 1])
    work = case.work(weight_bytes=10_000, workspace_bytes=500)
    with pytest.raises(DeviceError, match=r"does not fit on fake:0 and fake:1: it needs 19.5.* for weights"):
        StreamExecutor(work, FakeAccelerator(2, parts={1: 0}, memory_bytes=21_000))
    StreamExecutor(work, FakeAccelerator(2, parts={1: 0}, memory_bytes=23_000)).close()


def test_a_chain_takes_the_memory_of_the_two_tensors_that_are_alive():
    case = chain(10, [0] * 10)
    layout = RequestLayout(case.work(), FakeAccelerator(1))
    assert layout.bytes_on(0) == 2 * 400
    assert layout.bytes_on(HOST) == 2 * 400  # input and output keep theirs


def test_a_plan_that_does_not_fit_is_refused_before_it_runs():
    case = chain(3, [0, 0, 1])
    work = case.work(weight_bytes=10_000, workspace_bytes=500)
    accelerator = FakeAccelerator(2, memory_bytes=20_000)
    with pytest.raises(DeviceError, match=r"does not fit on fake:0: it needs .* weights, .* free\. Place fewer ops there"):
        StreamExecutor(work, accelerator)
    assert accelerator.launches == 0
    assert not any(accelerator.allocated.values())
    assert not any(task.program.loaded for task in work.tasks if task.program)
    StreamExecutor(work, FakeAccelerator(2, memory_bytes=22_000)).close()
    with pytest.raises(DeviceError, match="3 request"):
        StreamExecutor(work, FakeAccelerator(2, memory_bytes=22_000), in_flight=3)


@pytest.mark.parametrize("at", [0, 2, 5])
def test_memory_that_runs_out_half_way_names_the_segment_and_the_next_run_is_right(at):
    case = chain(6, [0, 1, 0, 1, 0, 1])
    accelerator = case.accelerator(fail_at=at)
    work = case.work()
    with StreamExecutor(work, accelerator) as executor:
        allocated = dict(accelerator.allocated)
        message = rf"segment that starts with 'op{at + 1}' failed on fake:{at % 2}: .* out of memory"
        with pytest.raises(ExecutionError, match=message) as caught:
            executor.run(case.inputs())
        assert isinstance(caught.value.__cause__, DeviceError)
        assert accelerator.allocated == allocated
        got = executor.run(case.inputs())
        np.testing.assert_array_equal(got["out_op7"], case.expected(case.inputs())["out_op7"])
    assert not any(accelerator.allocated.values())
    accelerator.trace.clear()  # which remembers what ran
    assert not any(task.program.loaded for task in work.tasks if task.program)
    assert accelerator.order.faults == []


def test_a_device_that_dies_is_an_error_and_not_a_wait_for_ever():
    case = chain(4, [0, 1, 0, 1])
    with StreamExecutor(case.work(), case.accelerator(die_at=2)) as executor:
        for _ in range(2):
            with pytest.raises(ExecutionError, match=r"fake:0 has failed"):
                executor.run(case.inputs())


def test_whatever_is_raised_where_reports_are_read_waits_for_what_runs_and_the_next_run_is_right():
    case = chain(4, [0, 1, 0, 1])
    accelerator = case.accelerator(patience=0.0)

    def take(inbox):
        raise SystemExit("somebody ends threads")

    accelerator.take = take
    with StreamExecutor(case.work(), accelerator) as executor:
        with pytest.raises(ExecutionError, match="somebody ends threads"):
            executor.run(case.inputs())
        del accelerator.take
        got = executor.run(case.inputs())
    np.testing.assert_array_equal(got["out_op5"], case.expected(case.inputs())["out_op5"])
    assert not any(accelerator.allocated.values())
    assert accelerator.order.faults == []


def test_spans_are_what_ran_when_on_devices_and_between_them():
    for seed in range(12):
        case = random_case(seed, ops=10, devices=3)
        accelerator = FakeAccelerator(3, seed, patience=0.0)  # or a device would wait for the host between event and launch
        with StreamExecutor(case.work(), accelerator, in_flight=2) as executor:
            for request in range(2):
                executor.set_inputs(case.inputs(), request=request)
            executor.times(1)
            accelerator.trace.clear()
            executor.times(3)
            spans = executor.spans()
            last = executor.segment_seconds(last=True)
        assert len(spans) == len(accelerator.trace)
        names = ["host", *accelerator.names]
        ran = [
            ((names[run.src + 1],) if run.program else (names[run.src + 1], names[run.dst + 1]), run.finish - run.start)
            for run in accelerator.trace
        ]
        took = [(span.where, span.seconds) for span in spans]
        assert sorted(where for where, _ in took) == sorted(where for where, _ in ran)
        for (where, seconds), (same, expected) in zip(sorted(took), sorted(ran), strict=True):
            assert where == same
            assert seconds == pytest.approx(expected)
        tasks = executor.work.tasks
        computed = [(span.segment, span.ops) for span in spans if span.kind == "compute"]
        assert set(computed) == {(s, tuple(task.ops)) for s, task in enumerate(tasks) if task.program}
        assert [span.segment for span in spans if span.kind == "copy"] == [None] * (len(spans) - len(computed))
        assert {span.request for span in spans} == {0, 1}
        inputs, outputs = list(executor.work.inputs), list(executor.work.outputs)
        ended: dict[tuple[int, int], list[float]] = {}  # of three requests, two have the same number
        for span in spans:
            if span.kind == "compute":
                ended.setdefault((span.request, span.segment), []).append(span.finish)
        for span in spans:
            if span.tensor is None:
                continue
            made, name = len(executor.plan.tensors), executor.labels.tensors[span.tensor]
            if span.tensor < made:  # whose maker has ended before it moved
                maker = executor.plan.makers[span.tensor]
                assert name == tasks[maker].name
                assert min(ended.get((span.request, maker), [0.0])) <= span.start + 1e-9
            elif span.tensor < made + len(inputs):
                assert (span.where[0], name) == ("host", inputs[span.tensor - made])
            else:
                assert (span.where[1], name) == ("host", outputs[span.tensor - made - len(inputs)])
        assert all(span.tensor is not None for span in spans if span.kind == "copy")
        for s, task in enumerate(executor.work.tasks):
            assert (last[s] > 0) <= (task.program is not None)


def test_segments_of_virtual_devices_take_what_was_simulated():
    case = random_case(5, ops=12, devices=3, closed=True)
    work = case.work()
    with StreamExecutor(work, FakeAccelerator(3, seconds=simulated(case, work))) as executor:
        executor.run({})
        simulated_s = case.plan.schedule.finish - case.plan.schedule.start
        np.testing.assert_allclose(executor.segment_seconds(), simulated_s * [task.program is not None for task in work.tasks])


def test_weights_that_cannot_be_loaded_name_the_segment():
    class Heavy(Program):
        def load(self, place):
            raise DeviceError(f"{place} is out of memory.")

    case = chain(2, [0, 0])
    programs = [Heavy(case.runtime.book, s) for s in case.plan.programs]
    accelerator = case.accelerator()
    with pytest.raises(DeviceError, match=r"segment that starts with 'op1' cannot be loaded onto fake:0: .*out of memory"):
        StreamExecutor(PlanTasks.of(case.runtime.book, case.plan, programs), accelerator)
    assert not any(accelerator.allocated.values())


def test_a_model_that_computes_nothing_hands_its_input_through():
    case = case_of(["Parameter", "Result"], [(0, 1)], [0, 0])
    with StreamExecutor(case.work(), case.accelerator()) as executor:
        np.testing.assert_array_equal(executor.run(case.inputs())["out_op1"], case.inputs()["in_op0"])


def test_wrong_arguments_are_refused():
    case = chain(1, [0])
    with pytest.raises(UsageError):
        StreamExecutor(case.work(), case.accelerator(), in_flight=0)
    with StreamExecutor(case.work(), case.accelerator()) as executor:
        with pytest.raises(UsageError, match="at least one request"):
            executor.times(0)
        with pytest.raises(UsageError, match="'in_op0' is missing"):
            executor.set_inputs({})
        with pytest.raises(UsageError, match="has no input 'x'"):
            executor.set_inputs(case.inputs() | {"x": np.zeros(1)})
        with pytest.raises(UsageError, match=r"is float32 \[7\]; the model expects float32 \[100\]"):
            executor.set_inputs({"in_op0": np.zeros(7, np.float32)})
        with pytest.raises(UsageError, match="complex"):
            executor.set_inputs({"in_op0": np.zeros(100, complex)})


def test_a_scheduler_is_told_of_each_tensor_that_leaves_once():
    scheduler = Scheduler(case_of(["Op", "Op", "Op"], [(0, 1), (0, 2)], [0, 1, 1]).plan.problem, [0, 1, 1])
    scheduler.begin(0)
    (first,) = [step for step in scheduler.op_finished(0, 0) if isinstance(step, Transfer)]
    assert scheduler.transfer_sent(0, first.tensor, 1) == []
    with pytest.raises(ExecutionError, match="was not to be sent"):
        scheduler.transfer_sent(0, first.tensor, 1)
    assert len(scheduler.transfer_finished(0, first.tensor, 1)) == 1  # the more urgent of the readers; the channel was free
