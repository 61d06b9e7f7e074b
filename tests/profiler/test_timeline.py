"""States of devices, use of links and critical paths, of spans whose answers are known."""

from __future__ import annotations

import pytest

from placeit.profiler.recorded import LinkUse, RecordedPlan, RecordedRequest, RecordedSegment, RecordedSpan, RecordedTensor
from placeit.profiler.timeline import critical_path, dependencies, link_use, states

ALONE = {"a": (), "b": ()}


def segments(*devices: str, cut: float | None = None) -> tuple[RecordedSegment, ...]:
    return tuple(RecordedSegment(device, 0, (s,), True, None, None, cut) for s, device in enumerate(devices))


def ran(segment: int, device: str, start: float, finish: float, request: int = 0) -> RecordedSpan:
    return RecordedSpan("compute", (device,), request, segment, None, start, finish)


def moved(tensor: int, src: str, dst: str, start: float, finish: float, request: int = 0) -> RecordedSpan:
    return RecordedSpan("copy", (src, dst), request, None, tensor, start, finish)


CHAIN = RecordedPlan(segments("a", "b", cut=0.25), (RecordedTensor("x", 0, (1,), 100.0), RecordedTensor("in", None, (0,), 8.0)))
ONE = (RecordedRequest(0, 0.0, 1.0, 12.0),)
SPANS = (ran(0, "a", 2, 5), moved(0, "a", "b", 6, 8), ran(1, "b", 9, 11))


def test_a_segment_waits_for_the_transfer_of_what_it_reads_and_that_for_who_made_it() -> None:
    assert dependencies(CHAIN, SPANS) == [(), (0,), (1,)]
    assert dependencies(CHAIN, (SPANS[0], SPANS[2])) == [(), (0,)]  # memory that both can read
    legs = (SPANS[0], moved(0, "a", "b", 5, 6), moved(0, "a", "b", 6, 7), ran(1, "b", 7, 8))
    assert dependencies(CHAIN, legs) == [(), (0,), (1,), (2,)]
    assert dependencies(CHAIN, (moved(1, "host", "a", 0, 1), ran(0, "a", 1, 2))) == [(), (0,)]  # an input of the model
    others = (ran(0, "a", 0, 1, 0), ran(0, "a", 1, 2, 1), ran(1, "b", 2, 3, 1), ran(1, "b", 3, 4, 0))
    assert dependencies(CHAIN, others) == [(), (), (1,), (0,)]


def test_the_time_of_a_device_is_divided_among_its_states() -> None:
    a, b = states(CHAIN, ONE, SPANS, ALONE, 12.0)
    assert (a.executing_s, a.sending_s, a.waiting_data_s, a.waiting_scheduler_s, a.idle_s) == (3, 2, 0, 1, 6)
    assert (b.executing_s, b.sending_s, b.waiting_data_s, b.waiting_scheduler_s, b.idle_s) == (2, 0, 7, 1, 2)
    assert a.waiting_conflict_s == b.waiting_conflict_s == 0


def test_a_device_whose_cores_another_one_uses_waits_for_it() -> None:
    plan = RecordedPlan(segments("a", "b"), ())
    _, b = states(plan, (RecordedRequest(0, 0, 0, 6),), (ran(0, "a", 1, 4), ran(1, "b", 5, 6)), {"a": ("b",), "b": ("a",)}, 6)
    assert (b.executing_s, b.waiting_conflict_s, b.waiting_scheduler_s, b.idle_s) == (1, 3, 2, 0)


def test_a_device_that_is_ready_for_one_request_does_not_wait_for_data_of_another() -> None:
    requests = (RecordedRequest(0, 0, 0, 4), RecordedRequest(0, 0, 0, 8))
    spans = (ran(0, "a", 0, 1), ran(0, "a", 1, 5, 1), ran(1, "b", 3, 4), ran(1, "b", 6, 8, 1))
    _, b = states(CHAIN, requests, spans, ALONE, 8.0)
    assert (b.executing_s, b.waiting_data_s, b.waiting_scheduler_s) == (3, 2, 3)


def test_a_device_without_work_is_idle() -> None:
    *_, c = states(CHAIN, ONE, SPANS, ALONE | {"c": ()}, 12.0)
    assert c.idle_s == 12.0


def test_a_tensor_on_its_way_in_two_steps_is_counted_once() -> None:
    spans = (moved(0, "a", "b", 1, 3), moved(0, "a", "b", 2, 5), moved(0, "a", "b", 7, 8, 1))
    assert link_use(CHAIN, spans) == (LinkUse("a", "b", 5.0, 200.0, 2),)


def test_the_critical_path_explains_all_of_the_latency() -> None:
    path = critical_path(CHAIN, ONE, SPANS, ALONE)
    assert path is not None
    assert (path.latency_s, path.computing_s, path.cuts_s, path.transfers_s, path.waiting_s) == (12, 3.75, 1.25, 2, 5)
    found = [(step.what, step.span, step.start_s, step.finish_s) for step in path.steps]
    assert found == [
        ("waiting", None, 0, 2),
        ("computing", 0, 2, 5),
        ("waiting", None, 5, 6),
        ("transfer", 1, 6, 8),
        ("waiting", None, 8, 9),
        ("computing", 2, 9, 11),
        ("waiting", None, 11, 12),
    ]


def test_the_critical_path_goes_through_what_had_the_device_before() -> None:
    plan = RecordedPlan(segments("a", "a", "b"), (RecordedTensor("x", 0, (1,), 1.0),))
    request = (RecordedRequest(0, 0, 0, 10),)
    spans = (ran(0, "a", 0, 4), ran(1, "a", 4, 7), ran(2, "b", 7, 10))
    alone, shared = (critical_path(plan, request, spans, {"a": on, "b": of}) for on, of in (((), ()), (("b",), ("a",))))
    assert alone is not None
    assert shared is not None
    assert [step.span for step in alone.steps] == [None, 2]
    assert [step.span for step in shared.steps] == [0, 1, 2]
    assert alone.cuts_s is None


def test_what_other_requests_took_is_waiting_and_means_are_over_all_requests() -> None:
    requests = (RecordedRequest(0, 0, 0, 4), RecordedRequest(0, 0, 4, 8), RecordedRequest(0, 0, 8, 12))
    plan = RecordedPlan(segments("a"), ())
    path = critical_path(plan, requests, tuple(ran(0, "a", 4 * r, 4 * r + 4, r) for r in range(3)), {"a": ()})
    assert path is not None
    assert (path.latency_s, path.computing_s, path.waiting_s, path.request) == (8, 4, 4, 1)
    assert [(step.what, step.finish_s - step.start_s) for step in path.steps] == [("waiting", 4), ("computing", 4)]


def test_clocks_that_are_a_little_apart_make_no_path_longer_than_the_request() -> None:
    early = (ran(0, "a", -1, 5), moved(0, "a", "b", 4, 8), ran(1, "b", 7, 13))
    path = critical_path(CHAIN, ONE, early, ALONE)
    assert path is not None
    assert sum(step.finish_s - step.start_s for step in path.steps) == pytest.approx(12)
    assert all(step.start_s <= step.finish_s for step in path.steps)
    assert all(sum(list(vars(one).values())[1:]) == pytest.approx(12) for one in states(CHAIN, ONE, early, ALONE, 12.0))


def test_without_requests_there_is_no_path() -> None:
    assert critical_path(CHAIN, (), (), ALONE) is None
