"""What goes wrong on streams, and at what time: whose error it is, what is waited for, and what works afterwards."""

import contextlib
import itertools
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from placeit import runtime
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, ExecutionError, UsageError
from placeit.devices.host import allowed_cores
from placeit.runtime.accelerators import torch_library
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.module_program import ModuleProgram
from placeit.runtime.accelerators.torch_library import open_torch
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.devices.accelerator import Inbox
from tests.alarms import alarm
from tests.beside import beside
from tests.eager_streams import devices, run_at_once, run_late
from tests.overdue import overdue
from tests.runtime.test_streams import case_of, chain

CORES = allowed_cores()[:2]
RUNTIME = str(Path(runtime.__file__).parent)


LOST = []  # modules whose memory was not there any more


class Add(torch.nn.Module):
    """``x -> x + 1``, if its memory is still there."""

    def forward(self, x):
        if not x.untyped_storage().nbytes():
            LOST.append(self)
            raise RuntimeError("the memory is gone")
        return (x + 1.0,)


class Fail(Add):
    """Raises what it was given."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


class Hold(Add):
    """Computes once it is let go."""

    def __init__(self, error=None):
        super().__init__()
        self.began, self.go, self.error = threading.Event(), threading.Event(), error
        self.gone = None  # whether the memory was there in the end

    def forward(self, x):
        self.began.set()
        assert self.go.wait(30)
        self.gone = not x.untyped_storage().nbytes()
        if self.error is not None:
            raise self.error
        return super().forward(x)

    def __deepcopy__(self, memo):
        return self


def work_of(*modules, places=None):
    """A chain of modules, and what its output has to be."""
    case = chain(len(modules), places or [0] * len(modules))
    programs = iter(map(ModuleProgram, modules))
    return case, PlanTasks.of(case.runtime.book, case.plan, [next(programs) for s in case.plan.programs])


def right(case, outputs, steps):
    (got,) = outputs.values()
    return np.array_equal(got, case.inputs()["in_op0"] + np.float32(steps))


def core_sets(count):
    on = [CORES[d % len(CORES)] for d in range(count)]
    return [Device(f"set{d}", kind="torch", address=Address("CPU", (core,))) for d, core in enumerate(on)]


@pytest.fixture
def cores():
    """Two core sets; all tests below leave them as good as they were."""
    accelerator = open_torch(core_sets(2))
    LOST.clear()
    yield accelerator
    case, work = work_of(Add(), Add(), places=[0, 1])
    if not accelerator.closed:
        with StreamExecutor(work, accelerator) as executor:
            assert right(case, executor.run(case.inputs()), 2)
    accelerator.close()
    assert not LOST


# -- whose failure it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [30, pytest.param(1000, marks=pytest.mark.nightly)])
def test_a_failure_is_told_to_the_executor_whose_segment_failed_and_to_no_other(cores, trials):
    case, good = work_of(*(Add() for _ in range(6)))
    failing, bad = work_of(Add(), Fail(RuntimeError("this op failed")), Add())
    stop = threading.Event()

    def others():
        wrong, runs = 0, 0
        with StreamExecutor(good, cores) as executor:
            while not stop.is_set():
                wrong += not right(case, executor.run(case.inputs()), 6)
                runs += 1
        return wrong, runs

    with beside(others) as other:
        for _ in range(trials):
            with (
                StreamExecutor(bad, cores) as executor,
                pytest.raises(ExecutionError, match=r"segment that starts with 'op2' failed on set0: .*this op failed"),
            ):
                executor.run(failing.inputs())
        stop.set()
    assert other[0][0] == 0
    assert other[0][1] > 0


def test_two_executors_that_fail_at_once_have_their_own_errors(cores):
    holds = [Hold(ValueError(f"number {d}")) for d in range(2)]
    cases = [work_of(Add(), hold, places=[d, d]) for d, hold in enumerate(holds)]
    executors = [StreamExecutor(work, cores) for _, work in cases]
    with (
        beside(lambda: executors[0].run(cases[0][0].inputs())) as first,
        beside(lambda: executors[1].run(cases[1][0].inputs())) as second,
    ):
        for hold in holds:
            assert hold.began.wait(30)
        for hold in holds:
            hold.go.set()
    for number, results in enumerate((first, second)):
        with pytest.raises(ExecutionError, match=rf"failed on set{number}: .*number {number}"):
            raise results[0]
        executors[number].close()


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [RuntimeError("odd"), AssertionError("odd"), OSError("odd"), SystemExit("odd"), Odd("odd")])
def test_whatever_a_kernel_raises_is_an_execution_error_and_its_thread_lives_on(cores, error):
    case, work = work_of(Add(), Fail(error), places=[0, 1])
    with StreamExecutor(work, cores) as executor, pytest.raises(ExecutionError, match=r"'op2' failed on set1: .*odd"):
        executor.run(case.inputs())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("odd"), ArithmeticError("odd"), TypeError("odd")])
def test_whatever_a_kernel_raises_as_it_is_launched_is_an_execution_error(monkeypatch, error, late):
    driver = run_late(monkeypatch) if late else run_at_once(monkeypatch)
    accelerator = open_torch(devices("cpu", "cpu:0"))
    case, work = work_of(Add(), Fail(error), places=[0, 1])
    with StreamExecutor(work, accelerator) as executor, pytest.raises(ExecutionError, match=r"'op2' failed on cpu:0: .*odd"):
        executor.run(case.inputs())
    case, work = work_of(Add(), Add(), places=[0, 1])
    with StreamExecutor(work, accelerator) as executor:
        assert right(case, executor.run(case.inputs()), 2)
    accelerator.close()
    if late:
        driver.close()


# -- what is waited for ------------------------------------------------------------------------------------------------


def three_beside_each_other(modules):
    """Make three segments that read one input, each on a different device."""
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6)]
    case = case_of(["Parameter", "Op", "Op", "Op", "Result", "Result", "Result"], edges, [0, 0, 1, 2, 0, 1, 2])
    programs = iter(map(ModuleProgram, modules))
    return PlanTasks.of(case.runtime.book, case.plan, [next(programs) for s in case.plan.programs])


@pytest.mark.parametrize("failing", [1, 2])
def test_after_failures_every_device_is_waited_for(failing):
    accelerator = open_torch(core_sets(3))
    first, second, last = (Hold(RuntimeError(f"failure {d}") if d < failing else None) for d in range(3))
    work = three_beside_each_other([first, second, last])
    executor = StreamExecutor(work, accelerator)
    with beside(executor.time) as result:
        for hold in (first, second, last):
            assert hold.began.wait(30)
        first.go.set()
        second.go.set()
        time.sleep(0.2)
        assert not result  # who waits is told when nothing runs any more
        last.go.set()
    assert last.gone is False
    with pytest.raises(ExecutionError, match="failure 0" if failing == 1 else r"failure [01]"):
        raise result[0]
    executor.close()
    accelerator.close()


# -- closing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["executor", "accelerator"])
def test_close_waits_for_a_run_of_another_thread(cores, what):
    hold = Hold()
    case, work = work_of(Add(), hold, Add(), places=[0, 1, 0])
    executor = StreamExecutor(work, cores)
    closing = executor if what == "executor" else cores
    with beside(lambda: executor.run(case.inputs())) as ran:
        assert hold.began.wait(30)
        with beside(lambda: closing.close() or time.perf_counter()) as closed:
            time.sleep(0.1)
            assert not closed
            hold.go.set()
    assert hold.gone is False
    if what == "executor":
        assert right(case, ran[0], 3)
    else:  # what has started ends, and nothing more starts
        with pytest.raises(ExecutionError, match="set0, set1 is closed"):
            raise ran[0]
    assert isinstance(closed[0], float)
    with pytest.raises(ExecutionError, match="closed"):
        executor.run(case.inputs())
    for closer in (executor, executor, closing):
        closer.close()


@pytest.mark.parametrize("what", ["executor", "accelerator"])
def test_closing_ends_runs_that_follow_each_other_without_a_pause(cores, what):
    _, work = work_of(*(Add() for _ in range(4)), places=[0, 1, 0, 1])
    for _ in range(4):
        executor = StreamExecutor(work, cores, in_flight=2)
        runs = itertools.count()

        def run_on(executor=executor, runs=runs):
            while next(runs) < 1_000_000:
                executor.times(20)

        with beside(run_on) as result:
            while next(runs) < 5:
                time.sleep(0.001)
            (executor if what == "executor" else cores).close()
        with pytest.raises(ExecutionError, match="closed"):
            raise result[0]
        executor.close()
        if what == "accelerator":
            break


def test_an_accelerator_that_is_closed_while_an_executor_is_made_waits_for_that(cores):
    made, go = threading.Event(), threading.Event()

    class Slow(ModuleProgram):
        def load(self, place):
            made.set()
            assert go.wait(30)
            return super().load(place)

    case = chain(1, [0])
    work = PlanTasks.of(case.runtime.book, case.plan, [Slow(Add())])
    with beside(lambda: StreamExecutor(work, cores)) as executor:
        assert made.wait(30)
        with beside(cores.close) as closed:
            time.sleep(0.05)
            assert not closed
            go.set()
    with pytest.raises(ExecutionError, match="closed"):
        executor[0].run(case.inputs())
    executor[0].close()
    with pytest.raises(ExecutionError, match="set0, set1 is closed"):
        StreamExecutor(work, cores)


def test_cores_that_are_not_there_leave_no_thread_behind():
    missing = Device("missing", kind="torch", address=Address("CPU", (4000,)))
    with pytest.raises(DeviceError, match="CPU cores 4000"):
        open_torch([*core_sets(1), missing])
    while any(thread.name.startswith("placeit set") for thread in threading.enumerate()):
        time.sleep(0.001)


# -- time-outs ---------------------------------------------------------------------------------------------------------


def test_a_run_that_takes_too_long_is_an_error_that_says_what_still_runs(cores):
    hold = Hold()
    case, work = work_of(Add(), hold, places=[0, 1])
    with StreamExecutor(work, cores) as executor:
        for _ in range(2):
            overdue(lambda seconds: executor.run(case.inputs(), timeout=seconds), "'op2' on set1")
    assert hold.began.is_set()  # and what is above did not wait for it
    assert hold.gone is None
    other, beside_it = work_of(Add(), places=[0])
    with StreamExecutor(beside_it, cores) as executor:
        assert right(other, executor.run(other.inputs(), timeout=30), 1)
        assert executor.time(timeout=30) > 0
        assert executor.times(3, timeout=30) > 0
        with pytest.raises(UsageError, match="positive number of seconds"):
            executor.time(timeout=0)
    hold.go.set()
    while hold.gone is None:
        time.sleep(0.001)
    assert hold.gone is False


# -- interrupts --------------------------------------------------------------------------------------------------------


class Alarm:
    """Raises errors in the main thread at random times, wherever it is in the runtime."""

    def __init__(self, kinds, seed):
        self.kinds, self.random, self.left = kinds, random.Random(seed), 0

    def __enter__(self):
        self.set = alarm(self.ring)
        self.set.__enter__()
        return self

    def __exit__(self, *error):
        self.left = 0
        self.set.__exit__(*error)

    def on(self, times, longest):
        self.left = times
        signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, longest))

    def off(self):
        self.left = 0
        signal.setitimer(signal.ITIMER_REAL, 0)

    def ring(self, number, frame):
        while frame is not None and f"{RUNTIME}/" not in frame.f_code.co_filename:
            # pytest tells what Python ignores, and does not survive if it raises there itself
            frame = None if "unraisable" in frame.f_code.co_filename else frame.f_back
        if self.left and frame is not None:
            self.left -= 1
        if self.left:
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, 3e-4))
        if frame is not None:
            raise self.random.choice(self.kinds)("interrupted")


KINDS = (KeyboardInterrupt, TimeoutError, Odd)


def interrupted(accelerator, trials, *, places, times=1, seed=0):
    """Interrupt runs at random moments, ``times`` each, clean-up included, and check whether the next run is right."""
    case, work = work_of(*(Add() for _ in places), places=places)
    hit = 0
    with Alarm(KINDS, seed) as alarm:
        for _ in range(trials):
            executor = StreamExecutor(work, accelerator, in_flight=2)
            executor.run(case.inputs())
            try:
                alarm.on(times, 3e-3)
                while alarm.left:
                    executor.times(4)
            except (*KINDS, ExecutionError):
                hit += 1
            while alarm.left:  # what is left hits the waiting for what still runs
                with contextlib.suppress(*KINDS):
                    executor.times(1)
            alarm.off()
            assert right(case, executor.run(case.inputs(), timeout=30), len(places))  # it survives
            try:  # the clean-up does not, but goes on at the next call
                alarm.on(times, 1e-3)
                executor.times(1)
                executor.close()
            except (*KINDS, ExecutionError):
                pass
            while alarm.left:
                with contextlib.suppress(*KINDS):
                    executor.close()
            executor.close()
            with StreamExecutor(work, accelerator) as again:
                assert right(case, again.run(case.inputs(), timeout=30), len(places))
    assert hit > 0.9 * trials  # Python ignores what is raised while it calls back from a weak reference


@pytest.mark.parametrize("trials", [25, pytest.param(500, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_after_an_interrupt_at_any_moment_nothing_hangs_and_the_next_run_is_right(cores, times, trials):
    interrupted(cores, trials, places=[0, 1, 1, 0, 1], times=times)


@pytest.mark.parametrize("trials", [10, pytest.param(300, marks=pytest.mark.nightly)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_while_an_accelerator_reports(monkeypatch, trials):
    driver = run_late(monkeypatch)
    accelerator = open_torch([*devices("cpu"), *core_sets(1)])
    interrupted(accelerator, trials, places=[0, 1, 1, 0, 1])
    interrupted(accelerator, trials, places=[0, 1, 1, 0, 1], times=3, seed=2)
    accelerator.close()
    driver.close()


# -- reports of accelerators -------------------------------------------------------------------------------------------


def test_no_python_runs_on_the_drivers_thread(monkeypatch):
    driver = run_late(monkeypatch)
    accelerator = open_torch(devices("cpu", "cpu:0"))
    case, work = work_of(*(Add() for _ in range(5)), places=[0, 1, 0, 1, 1])
    with StreamExecutor(work, accelerator, in_flight=2) as executor:
        for _ in range(5):
            assert right(case, executor.run(case.inputs(), timeout=30), 5)
            executor.times(4)
    accelerator.close()
    driver.close()
    assert driver.told > 50
    assert driver.calls == []


def test_an_event_that_fails_is_told_to_the_executor_that_waits_for_it(monkeypatch):
    driver = run_late(monkeypatch)
    accelerator = open_torch(devices("cpu", "cpu:0"))
    case, work = work_of(Add(), Add(), places=[0, 1])
    with StreamExecutor(work, accelerator) as executor:
        executor.run(case.inputs())
        driver.fail = RuntimeError("CUDA error: an illegal memory access was encountered")
        with pytest.raises(ExecutionError, match="illegal memory access"):
            executor.run(case.inputs(), timeout=30)
        driver.fail = None
    with StreamExecutor(work, accelerator) as executor:
        assert right(case, executor.run(case.inputs()), 2)
    accelerator.close()
    driver.close()


def test_a_device_that_has_failed_is_told_by_its_own_error_and_can_be_closed(monkeypatch):
    driver = run_late(monkeypatch)
    accelerator = open_torch(devices("cpu"))
    case, work = work_of(Add(), places=[0])
    executor = StreamExecutor(work, accelerator)
    executor.run(case.inputs())
    driver.fail = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    def empty_cache():
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered, again")

    monkeypatch.setattr(torch.cpu, "empty_cache", empty_cache, raising=False)
    with pytest.raises(ExecutionError, match=r"an illegal memory access was encountered$"):
        executor.run(case.inputs(), timeout=30)
    executor.close()
    accelerator.close()
    driver.close()


def test_reports_that_are_closed_start_no_thread(monkeypatch):
    run_at_once(monkeypatch)
    accelerator = open_torch(devices("cpu"))
    stream, event = accelerator.open_stream(0), accelerator.event(0)
    accelerator.record(event, stream)
    accelerator.close()
    with pytest.raises(ExecutionError, match="closed"):
        accelerator.notify(stream, event, Inbox(), (0, 0))


# -- a setting of the whole process ------------------------------------------------------------------------------------


class Gpus:
    @staticmethod
    def device_count():
        return 1


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_rounding_is_forbidden_until_the_last_accelerator_closes_and_then_as_before(monkeypatch, wanted, order):
    monkeypatch.setattr(torch_library, "_module", lambda kind: Gpus)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", wanted)
    opened = [open_torch(devices("cuda:0")) for _ in range(3)]
    for number in order:
        assert torch.backends.cudnn.allow_tf32 is False
        opened[number].close()
        opened[number].close()
    assert torch.backends.cudnn.allow_tf32 is wanted
    one = open_torch(devices("cuda:0"))
    opened[0].close()  # once more, while another is open
    assert torch.backends.cudnn.allow_tf32 is False
    one.close()
    assert torch.backends.cudnn.allow_tf32 is wanted


def test_what_the_user_allows_meanwhile_holds_in_the_end(monkeypatch):
    monkeypatch.setattr(torch_library, "_module", lambda kind: Gpus)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    first = open_torch(devices("cuda:0"))
    torch.backends.cudnn.allow_tf32 = True
    second = open_torch(devices("cuda:0"))
    assert torch.backends.cudnn.allow_tf32 is False
    first.close()
    second.close()
    assert torch.backends.cudnn.allow_tf32 is True


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="needs PyTorch 2.9 or later")
@pytest.mark.parametrize("conv", ["tf32", "ieee", "none"])
@pytest.mark.parametrize("rnn", ["tf32", "ieee", "none"])
@pytest.mark.parametrize("everywhere", ["tf32", "none"])
def test_rounding_is_forbidden_by_whatever_name_of_pytorchs_it_was_allowed(monkeypatch, conv, rnn, everywhere):
    monkeypatch.setattr(torch_library, "_module", lambda kind: Gpus)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # after the test, this makes all names agree again
    monkeypatch.setattr(torch.backends, "fp32_precision", everywhere)
    layers = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    for layer, precision in zip(layers, (conv, rnn), strict=True):
        layer.fp32_precision = precision
    before = [layer.fp32_precision for layer in layers]
    accelerator = open_torch(devices("cuda:0"))
    assert [layer.fp32_precision for layer in layers] == ["ieee", "ieee"]
    assert torch.backends.cudnn.allow_tf32 is False  # it can be read: PyTorch itself does, in torch.backends.cudnn.flags
    accelerator.close()
    assert [layer.fp32_precision for layer in layers] == before


def test_an_accelerator_that_was_refused_forbids_nothing(monkeypatch):
    monkeypatch.setattr(torch_library, "_module", lambda kind: Gpus)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    missing = Device("missing", kind="torch", address=Address("CPU", (4000,)))
    for refused in ([*devices("cuda:0", "cuda:3")], [*devices("cuda:0"), missing]):
        with pytest.raises(DeviceError):
            open_torch(refused)
        assert torch.backends.cudnn.allow_tf32 is True
