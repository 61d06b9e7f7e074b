"""Objects of the extension that run without the interpreter's lock refuse a second caller while they do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from placeit import _core
from placeit.core.problem import Problem
from placeit.simulator.scheduler import Scheduler
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import compiled

OPS, DEVICES = 60, 3


def chain(ops: int = OPS) -> Problem:
    compute = np.random.default_rng(0).random((ops, DEVICES))
    edges = [(v, v + 1) for v in range(ops - 1)]
    pairs = np.ones((DEVICES, DEVICES))
    return Problem.from_arrays(compute, edges, np.ones(ops - 1), pairs, pairs)


def annealing() -> tuple[Callable[[], object], list[Callable[[], object]]]:
    model = SimulatedCost(chain()).model
    assert model is not None
    search, best = _core.Annealing(model, np.zeros(OPS, np.int32), 1.0, 1), np.empty(OPS, np.int32)
    return lambda: search.run(0, 20_000, 20_000), [
        lambda: search.run(0, 1, 1),
        lambda: search.seconds,
        lambda: search.best(best),
    ]


def exact_search() -> tuple[Callable[[], object], list[Callable[[], object]]]:
    devices = np.arange(DEVICES, dtype=np.int32)
    nothing, share = np.zeros((0, DEVICES), np.bool_), np.full(DEVICES, 1 / DEVICES)
    search = _core.ExactSearch(compiled(chain()), np.zeros(OPS), devices, nothing, share, False)
    many, few = np.empty((100_000, OPS), np.int32), np.empty((1, OPS), np.int32)
    return lambda: search.next(many, np.inf, 10**9), [lambda: search.next(few, np.inf, 1), lambda: search.over]


def segment_search() -> tuple[Callable[[], object], list[Callable[[], object]]]:
    pairs, zeros = np.ones((DEVICES, DEVICES)), np.zeros((OPS, DEVICES))
    groups = _core.Groups(
        edges=np.array([(g, g + 1, g) for g in range(OPS - 1)], np.int32),
        tensor_bytes=np.ones(OPS - 1),
        core=zeros + 1.0,
        cut_per_byte=zeros,
        dispatch=np.zeros(DEVICES),
        load=zeros,
        beside=pairs,
        conflicts=np.zeros((DEVICES, DEVICES), np.bool_),
        read=np.zeros(DEVICES),
        latency=pairs,
        bandwidth=pairs,
        passthrough=np.zeros(OPS, np.bool_),
        cliques=np.zeros((0, DEVICES), np.bool_),
        host=np.zeros(DEVICES + 1),
        in_flight=0,
        outside=np.zeros(DEVICES),
    )
    place, able = np.zeros(OPS, np.int32), np.ones((OPS, DEVICES), np.bool_)
    generator = np.random.default_rng(0).bit_generator
    search = _core.SegmentSearch(groups, place, able, np.ones(OPS), np.full(DEVICES, np.inf), 10**9, 0.1, generator)
    return lambda: search.advance(300), [lambda: search.advance(1), lambda: search.over, lambda: search.write_best(place)]


@pytest.mark.parametrize("make", [annealing, exact_search, segment_search])
def test_a_search_refuses_a_second_thread_while_it_runs(make: Callable[[], tuple[Callable[[], object], list]]) -> None:
    run, others = make()
    for other in others:
        said = ""
        while not said:  # a run may be over before this thread goes on
            thread = threading.Thread(target=run)
            thread.start()
            while thread.is_alive() and not said:
                try:
                    other()
                except RuntimeError as error:
                    said = str(error)
            thread.join()
        assert said == "The search is running in another thread."
        other()


def test_rules_that_an_executor_drives_refuse_everybody_else() -> None:
    machine = Scheduler(chain(2), [0, 0], in_flight=1).machine
    executor = _core.Executor(machine, [_core.Lane()], np.ones(1))
    for call in (
        lambda: machine.begin(0),
        lambda: machine.op_finished(0),
        lambda: machine.abort(0),
        lambda: machine.rank(np.zeros(2)),
        lambda: machine.grow(2),
        lambda: machine.share(0),
        lambda: machine.device_lost(0),
        lambda: machine.running(0),
        lambda: _core.Executor(machine, [_core.Lane()], np.ones(1)),
    ):
        with pytest.raises(RuntimeError, match="The machine is running in another thread"):
            call()
    assert executor.run(1, 0, np.inf) == _core.Waited.over
    del executor
    assert machine.begin(0) == [0]
