"""Streams that the host paces beside threads: nothing reads what is not there yet, and each of the host's waits is needed.

The accelerator is the fake one, with its checker. The checker knows what each thread of the host has learned: what it has done
itself, what had been reported of the tensors that it reads, and what was over before the run.
"""

import contextlib
import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from placeit.core.errors import ExecutionError
from placeit.core.threads import Gate, Worker
from placeit.runtime.accelerators.stream_device import StreamDevice
from placeit.runtime.devices.accelerator import Streams
from placeit.runtime.devices.hand_over import HandOver
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.worker import perform
from placeit.runtime.runtime import Runtime
from tests.fake_accelerator import FakeAccelerator
from tests.runtime.stream_cases import Program, random_case


class Told:
    """What threads of the host learn from each other through what is reported to the executor."""

    def __init__(self, accelerator):
        self._accelerator, self._of_buffer, self._before = accelerator, {}, {}

    def tell(self, buffers):
        """Report buffers as written: who learns of them knows what this thread does."""
        with self._accelerator._lock:
            mark = self._accelerator.order.mark(threading.get_ident())
            for buffer in buffers:
                self._of_buffer[id(buffer)] = buffer, mark  # which keeps its number from being used again

    def learn(self, buffers=()):
        """Learn of what is read, and of the runs before."""
        with self._accelerator._lock:
            for mark in (self._before, *(self._of_buffer[id(b)][1] for b in buffers if id(b) in self._of_buffer)):
                self._accelerator.order.after(threading.get_ident(), mark)

    def all_over(self):
        """Learn of everything, and have every thread know it from here on."""
        with self._accelerator._lock:
            for _, mark in self._of_buffer.values():
                self._accelerator.order.after(threading.get_ident(), mark)
            self._before = self._accelerator.order.mark(threading.get_ident())

    def forget(self):
        self._of_buffer.clear()


def watched(told, made, outputs, done, device):
    """Start an instance on a device, with what its thread learns before and tells afterwards."""

    def reported(*report):
        told.tell(outputs)
        done(*report)

    device.worker.submit(lambda: told.learn(made.reads.values()))
    return reported


class Paced(StreamDevice):
    """A device of the accelerator; the end of one of its segments is perhaps not waited for."""

    def __init__(self, streams, number, told, forgets):
        super().__init__(streams, number)
        self.told, self.forgets = told, forgets

    def instance(self, program):
        made = super().instance(program)
        made.reads, bind, run = {}, made.bind, made.run
        made.bind = lambda index, buffer: (made.reads.__setitem__(index, buffer), bind(index, buffer))

        def forgetful():
            self.accelerator.forgets.add(threading.get_ident())
            try:
                run()
            finally:
                self.accelerator.forgets.clear()

        if self.forgets is not None and program.program.ops == self.forgets:
            made.run = forgetful
        made.all = [made.output(i) for i in range(len(program.outputs))]
        return made

    def start(self, instance, done):
        outputs = [*instance.all, *(made.delivered for made in instance.all if made.delivered is not None)]
        super().start(instance, watched(self.told, instance, outputs, done, self))


class Compiled(SimpleNamespace):
    """A program, to which there may be weak references."""


class OnHost:
    """A thread that computes in the host's memory."""

    space = "host"

    def __init__(self, name, told, compile_one):
        self.name = self.program_key = name
        self.told, self._compile, self.worker = told, compile_one, Worker(name)

    def compile(self, segment):
        return Compiled(inputs=segment.inputs, outputs=segment.outputs, program=self._compile(segment))

    def instance(self, program):
        reads, outputs = {}, [HostBuffer(spec) for spec in program.outputs]
        loaded = program.program.load(None)

        def run():
            loaded.launch([reads[i].array() for i in range(len(reads))], [made.array() for made in outputs])

        return SimpleNamespace(reads=reads, bind=reads.__setitem__, output=outputs.__getitem__, run=run, all=outputs)

    def allocate(self, spec):
        return HostBuffer(spec)

    def start(self, instance, done):
        reported = watched(self.told, instance, instance.all, done, self)
        self.worker.submit(lambda: perform(instance.run, str, reported))

    def close(self):
        self.worker.close()


class Link(HandOver):
    """A hand-over; one of its waits for a copy, by number, is perhaps forgotten."""

    def __init__(self, name, told, accelerator, forgets):
        super().__init__(name)
        self.told, self.waits = told, 0
        accelerator.links[name] = self
        self.forgets = forgets

    def start(self, source, destination, done):
        def reported(*report):
            self.told.tell([destination])
            done(*report)

        self.worker.submit(lambda: self.told.learn([source]))
        super().start(source, destination, reported)


class Forgetful(FakeAccelerator):
    """The fake accelerator, with waits of the host that may be left out."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.forgets, self.links = set(), {}

    def finish(self, stream):
        link = self.links.get(threading.current_thread().name)
        if link is not None:
            link.waits += 1
            if link.waits - 1 == link.forgets:
                return
        if threading.get_ident() not in self.forgets:
            super().finish(stream)


def run_paced(seed, *, in_flight=1, rounds=1, segment=None, wait=(None, None), **options):
    """Run a random plan; return the accelerator, whether every output was right, and how often each link waited.

    ``segment`` is one whose end is not waited for, and ``wait`` a link and the number of a wait of it that is left out.
    """
    case = random_case(seed, **options)
    count = len(case.runtime.cluster)
    on_host = {d for d in range(count) if (seed >> d) & 1} if seed % 3 else set()
    accelerator = Forgetful(count, seed, patience=(0.0, 0.5, 2.0)[seed % 3])
    told = Told(accelerator)
    ops = None if segment is None else case.runtime.book.ops(case.plan.segments[segment])

    def compile_one(source):
        return Program(source.book, source.segment)

    streams = Streams(accelerator, compile_one)
    devices = [
        OnHost(name, told, compile_one) if d in on_host else Paced(streams, d, told, ops)
        for d, name in enumerate(case.runtime.cluster.names)
    ]
    links = {}
    for src in range(count):
        for dst in range(count):
            if devices[src].space != devices[dst].space:
                name = f"{src} -> {dst}"
                links[src, dst] = Link(name, told, accelerator, wait[1] if wait[0] == name else None)
    runtime = Runtime(case.runtime.model, case.runtime.grouping, case.runtime.cluster, devices=devices, transports=links)
    right = True
    with runtime, contextlib.suppress(ExecutionError):
        with runtime.executor(case.plan, in_flight=in_flight) as executor:
            times = executor._execute

            def told_times(*args):  # between the copies of inputs and the copies of outputs
                told.all_over()
                times(*args)
                told.all_over()

            executor._execute = told_times
            for number in range(rounds):
                for request in range(in_flight):
                    executor.set_inputs(case.inputs(number + request), request=request)
                executor.times(in_flight, timeout=60)
                for request in range(in_flight):
                    want, got = case.expected(case.inputs(number + request)), executor.outputs(request=request)
                    right &= got.keys() == want.keys() and all(np.array_equal(got[name], want[name]) for name in want)
            for lane in (*devices, *links.values()):  # or its thread might be the last to let go of a buffer
                let_go = Gate()
                lane.worker.submit(let_go.open)
                let_go.wait(30)
            told.forget()
        del executor
        gc.collect()
    return SimpleNamespace(
        accelerator=accelerator,
        right=right,
        waits={name: link.waits for name, link in accelerator.links.items()},
        moved=[s for s, segment in enumerate(case.plan.segments) if segment.device not in on_host and moved(case.plan, s)],
    )


def moved(plan, s):
    """Whether a link moves what a segment makes; what only its stream and, in the end, the host read, later ends imply."""
    segment = plan.segments[s]
    others = [reader for reader in plan.segments if reader.device != segment.device]
    return not segment.passthrough and any(set(reader.inputs) & set(segment.outputs) for reader in others)


@pytest.mark.slow
def test_every_run_of_random_plans_is_ordered_and_right():
    waits = 0
    for seed in range(16):
        ran = run_paced(seed, in_flight=1 + seed % 2, rounds=2)
        assert ran.accelerator.order.faults == [], seed
        assert ran.right, seed
        assert not any(ran.accelerator.allocated.values()), seed
        waits += sum(ran.waits.values())
    assert waits > 150


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (3, 10))])
def test_leaving_out_any_one_wait_of_the_host_is_found(seed):
    """That for the end of each segment whose outputs a link moves, and those for both copies of each hand-over.

    Threads are real: a link may by chance be told of a later end of the same stream before it comes to a tensor. Then nothing
    is wrong in that run, so a fault is looked for in a few.
    """
    whole = run_paced(seed, ops=7, devices=3)
    assert whole.accelerator.order.faults == []
    left_out = 0
    for segment in whole.moved:
        assert any(run_paced(seed, ops=7, devices=3, segment=segment).accelerator.order.faults for _ in range(6)), segment
        left_out += 1
    for name, waits in whole.waits.items():
        for number in range(waits):
            left = name, number
            assert any(run_paced(seed, ops=7, devices=3, wait=left).accelerator.order.faults for _ in range(6)), left
            left_out += 1
    assert left_out > 3
