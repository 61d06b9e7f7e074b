"""The queue of a server: what leaves it and when, and that nothing costs more the more requests wait."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from placeit.core.errors import QueueFullError
from placeit.serving.answers import Pending
from placeit.serving.server import Server
from placeit.serving.waiting import Waiting
from tests.runtime.test_faults import Bench, bench, inputs_of, models  # noqa: F401 (fixtures)
from tests.serving.test_serving import in_flight, stuck  # noqa: F401 (a fixture)

pytestmark = pytest.mark.timeout(120, method="thread")


class Compared(float):
    """A time that counts how often it is compared."""

    count = 0

    def _counted(compare: Callable[[float, float], bool]) -> Callable[[Compared, float], bool]:  # type: ignore[misc] # noqa: N805
        def counted(self: Compared, other: float) -> bool:
            Compared.count += 1
            return compare(self, other)

        return counted

    __lt__ = _counted(float.__lt__)
    __le__ = _counted(float.__le__)
    __gt__ = _counted(float.__gt__)
    __ge__ = _counted(float.__ge__)
    __eq__ = _counted(float.__eq__)  # type: ignore[assignment]
    __hash__ = float.__hash__

    def __radd__(self, other: float) -> Compared:
        return Compared(float(self) + other)


def steps(action: Callable[[], object]) -> int:
    """Count the instructions of Python and the comparisons of times that an action takes on this thread."""
    count, compared = 0, Compared.count

    def trace(frame: FrameType, event: str, what: Any) -> Any:
        nonlocal count
        if frame.f_code.co_name == "counted":
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count + Compared.count - compared


def filled(count: int) -> tuple[Waiting, list[Pending]]:
    """Make a queue of ``count`` requests, with deadlines from the latest to the soonest."""
    waiting = Waiting(lambda: None, Counter())
    requests = [Pending({}, Compared(count - i)) for i in range(count)]
    for request in requests:
        waiting.add(request)
    return waiting, requests


def test_requests_leave_in_order_when_they_begin_are_given_up_or_come_too_late() -> None:
    waiting, (first, second, third, fourth) = filled(4)
    assert waiting.soonest == 1
    assert third.future.cancel()
    second.future.set_exception(TimeoutError("its owner gave up"))
    waiting.expire(1)
    assert list(waiting.over) == [third, second, fourth]
    assert (len(waiting), waiting.first(), waiting.soonest) == (1, first, 4)
    waiting.remove(first)
    waiting.add(last := Pending({}, math.inf))
    waiting.add_first(first)  # as it has to begin again, and then without a deadline
    waiting.expire(1000)
    assert waiting.first() is first
    assert waiting.clear() == [first, last]
    assert len(waiting) == 0


OPERATIONS: dict[str, Callable[[Waiting, list[Pending]], object]] = {
    "adding": lambda waiting, _: waiting.add(Pending({}, Compared(1e6))),
    "adding the soonest": lambda waiting, _: waiting.add(Pending({}, Compared(0.5))),
    "adding first": lambda waiting, _: waiting.add_first(Pending({}, math.inf)),
    "taking the first": lambda waiting, _: waiting.remove(waiting.first()),  # type: ignore[arg-type]
    "taking one from the middle": lambda waiting, requests: waiting.remove(requests[len(requests) // 2]),
    "expiring none": lambda waiting, _: waiting.expire(0.5),
    "expiring one": lambda waiting, _: waiting.expire(1.5),
    "cancelling": lambda waiting, requests: (requests[len(requests) // 2].future.cancel(), waiting.expire(0.5)),
    "looking": lambda waiting, _: (len(waiting), waiting.first(), waiting.soonest),
}


def cost(operation: Callable[[Waiting, list[Pending]], object], count: int) -> int:
    waiting, requests = filled(count)
    return steps(lambda: operation(waiting, requests))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_costs_the_same_however_many_wait(operation: str) -> None:
    """But for comparisons in a heap that has 8 levels more: of times and numbers, on the way down and up."""
    assert cost(OPERATIONS[operation], 4096) <= cost(OPERATIONS[operation], 16) + 8 * 8


def test_nothing_is_kept_of_requests_that_have_left() -> None:
    waiting, _ = filled(8)
    left: list[weakref.ref[Pending]] = []

    def come_and_go() -> None:
        for _ in range(1000):
            waiting.add(request := Pending({}, Compared(1e6)))
            waiting.remove(request)
            left.append(weakref.ref(request))

    assert steps(come_and_go) < 600 * 1000  # making and tidying up included
    gc.collect()
    assert sum(request() is not None for request in left) < 40


def test_submitting_to_a_server_costs_the_same_however_many_wait(
    bench: Callable[..., Bench], stuck: Callable[[Bench], threading.Event]  # noqa: F811
) -> None:  # fmt: skip
    made = bench()
    go_on, inputs = stuck(made), inputs_of(made.model, 1)
    with Server([made.executor()], queue=4000) as server:
        in_flight(server, made)
        costs: dict[str, list[int]] = {"plain": [], "deadline": [], "cancel": []}
        for count in (10, 3900):
            while server.waiting < count:
                server.submit(inputs, start_within_s=1000)
            costs["plain"].append(steps(lambda: server.submit(inputs)))
            costs["deadline"].append(steps(lambda: server.submit(inputs, start_within_s=1)))
            costs["cancel"].append(steps(lambda: server.submit(inputs).cancel()))
        while server.waiting < server.queue:
            server.submit(inputs)

        def refused() -> None:
            with pytest.raises(QueueFullError):
                server.submit(inputs, wait=False)

        refused()  # which imports what pytest needs
        assert steps(refused) < 3000
        for few, many in costs.values():
            assert many < few + 500  # it may have had to end another one that came too late
        server.close(drain=False, timeout=0)
        go_on.set()


def test_requests_of_a_lower_number_wait_before_others() -> None:
    waiting = Waiting(lambda: None, Counter())
    made = [Pending({}, math.inf, priority) for priority in (2, 1, 2, 0, 1)]
    for one in made:
        waiting.add(one)
    assert [*waiting.ordinary()] == [made[at] for at in (3, 1, 4, 0, 2)]
    waiting.remove(made[3])
    waiting.add_first(made[3])
    assert waiting.first() is made[3]
