"""Requests of a server that need no Python from their submission to their end, and the compiled queue in which they wait."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import math
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from placeit import _core
from placeit.runtime.executor import Executor
from placeit.runtime.feed import Bell
from placeit.serving.server import Answer, Server
from tests.runtime.test_faults import Bench, bench, expected, inputs_of, models  # noqa: F401 (fixtures)

pytestmark = pytest.mark.timeout(280, method="thread")


def check(answer: Answer, index: int) -> None:
    (output,) = answer.result(60).values()
    np.testing.assert_allclose(output, expected(index), rtol=1e-5)


def until(condition: Callable[[], object]) -> None:
    """Wait for what other threads do; a test that waits in vain runs into its time-out."""
    while not condition():
        time.sleep(0.005)


@pytest.fixture
def joined(bench: Callable[..., Bench]) -> Iterator[tuple[_core.RequestQueue, Executor, int]]:  # noqa: F811
    """A queue, and an executor that is its only replica and has two slots."""
    with ExitStack() as stack:
        made = bench()
        executor: Any = stack.enter_context(made.executor(in_flight=2))
        queue, bell = _core.RequestQueue(), Bell()
        stack.callback(bell.close)
        number = executor.join(queue, bell, 0).number
        assert number == 0
        yield queue, executor, number


def submission(executor: Executor, deadline: float = math.inf, priority: int = 0) -> tuple[_core.Submission, list[Any]]:
    inputs = [np.arange(-2, 2, dtype=np.float32), np.full(4, 1)]
    outputs = [np.empty(spec.shape, spec.dtype) for spec in executor.output_specs.values()]
    return _core.Submission(inputs, outputs, deadline, priority), [inputs, outputs]


def test_a_queue_refuses_what_is_none_of_its_requests(joined: tuple[_core.RequestQueue, Executor, int]) -> None:
    queue, executor, number = joined
    made, _arrays = submission(executor)
    with pytest.raises(ValueError, match="was not put into this queue"):
        queue.cancel(made)
    queue.put(made)
    with pytest.raises(ValueError, match="is submitted once"):
        queue.put(made)
    for ask in (queue.cancel, queue.watch, queue.acknowledge):
        other = _core.RequestQueue()
        with pytest.raises(ValueError, match="was not put into this queue"):
            getattr(other, ask.__name__)(made)
    with pytest.raises(ValueError, match="other inputs and outputs than the model"):
        queue.put(_core.Submission([np.zeros(3)], [np.zeros(3)], math.inf))
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _core.Submission([], [frozen], math.inf)
    with pytest.raises(ValueError, match="NaN"):
        _core.Submission([], [], math.nan)
    with pytest.raises(ValueError, match="NaN"):
        queue.wait(made, math.nan)
    for replica in (-1, number + 1):
        with pytest.raises(IndexError):
            queue.open(replica)
    assert queue.in_slot(number, 7) is None
    assert queue.waiting == 1
    assert queue.withdraw() == [made]


def test_what_waits_is_cancelled_expires_or_is_taken_out_in_order(joined: tuple[_core.RequestQueue, Executor, int]) -> None:
    queue, executor, _ = joined  # which takes nothing before it is opened
    kept = [submission(executor, deadline) for deadline in (math.inf, time.perf_counter() + 1e-3, math.inf)]
    first, late, last = (one for one, _ in kept)
    for one in (first, late, last):
        queue.put(one)
    room = queue.room
    assert queue.cancel(first)
    assert queue.cancel(first)
    assert queue.room > room
    until(lambda: queue.expire() == math.inf)
    assert (first.state, late.state, last.state) == (_core.State.cancelled, _core.State.expired, _core.State.waiting)
    assert queue.wait(late, math.inf)
    assert not queue.wait(last, time.perf_counter() + 1e-3)
    assert queue.over(due=False) == [first, late]
    queue.acknowledge(first)
    assert queue.over(due=False) == [late]
    assert queue.withdraw() == [last]
    assert last.state == _core.State.outside
    assert not queue.cancel(last)


def test_of_requests_that_wait_those_of_the_lowest_number_come_first(joined: tuple[_core.RequestQueue, Executor, int]) -> None:
    queue, executor, _ = joined
    kept = [submission(executor, priority=priority) for priority in (2, 1, 2, 0, 1)]
    made = [one for one, _ in kept]
    for one in made:
        queue.put(one)
    assert queue.withdraw() == [made[at] for at in (3, 1, 4, 0, 2)]


def test_what_flies_on_a_replica_that_is_closed_begins_again_when_it_is_opened(
    joined: tuple[_core.RequestQueue, Executor, int],
) -> None:
    queue, executor, number = joined
    kept = [submission(executor) for _ in range(4)]
    for one, _ in kept:
        queue.put(one)
    queue.open(number)
    engine: Any = executor._engine
    engine.stop()
    queue.close(number)
    assert engine.wait(math.inf) == _core.Waited.over
    queue.again(number)
    assert not queue.flying()
    queue.open(number)
    for one, (_, outputs) in kept:
        assert queue.wait(one, math.inf)
        np.testing.assert_allclose(outputs[0], expected(1), rtol=1e-5)
        assert one.begun <= one.ended
    assert sorted(one.number for one, _ in kept) == sorted({one.number for one, _ in kept})
    until(lambda: queue.retire(number))
    engine.admit_no_more()
    assert engine.wait(math.inf) == _core.Waited.over


def test_inputs_in_any_order_of_memory_are_read_and_each_answer_has_its_outputs(bench: Callable[..., Bench]) -> None:  # noqa: F811
    made = bench()
    with Server([made.executor(in_flight=2)]) as server:
        answers = []
        for index in range(4):
            inputs = {name: np.repeat(value, 2)[::2] for name, value in inputs_of(made.model, index).items()}
            assert not any(value.flags.c_contiguous for value in inputs.values())
            answers.append(server.submit(inputs))
        for index, answer in enumerate(answers):
            check(answer, index)
        arrays = [output for answer in answers for output in answer.result().values()]
        assert not any(np.may_share_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_futures_are_resolved_however_they_are_waited_for(bench: Callable[..., Bench]) -> None:  # noqa: F811
    made = bench()

    async def ask(server: Server) -> dict[str, Any]:
        return await asyncio.wrap_future(server.submit(inputs_of(made.model, 2)))

    with Server([made.executor(in_flight=2)]) as server:
        polled, called = server.submit(inputs_of(made.model, 0)), list[object]()
        until(polled.done)
        check(polled, 0)
        several = [server.submit(inputs_of(made.model, index)) for index in range(3)]
        assert concurrent.futures.wait(several, timeout=60).done == set(several)
        assert {id(one) for one in concurrent.futures.as_completed(several, timeout=60)} == {id(one) for one in several}
        several[0].add_done_callback(called.append)
        assert called == [several[0]]
        server.submit(inputs_of(made.model, 1)).add_done_callback(called.append)
        until(lambda: len(called) == 2)
        (output,) = asyncio.run(ask(server)).values()
        np.testing.assert_allclose(output, expected(2), rtol=1e-5)
        for _ in range(5):
            server.submit(inputs_of(made.model, 3))  # without waiting for the answer
        until(lambda: server.stats().outcomes["succeeded"] == 11)


def test_nothing_is_kept_of_a_request_whose_future_is_resolved(bench: Callable[..., Bench]) -> None:  # noqa: F811
    made = bench()
    gc.disable()
    try:
        with Server([made.executor(in_flight=2)]) as server:
            answers = [server.submit(inputs_of(made.model, 1)) for _ in range(10)]
            for answer in answers:
                check(answer, 1)
            left = [weakref.ref(output) for answer in answers for output in answer.result().values()]
            assert all(one() is not None for one in left)
            del answer, answers
            until(lambda: not any(one() is not None for one in left))
    finally:
        gc.enable()
