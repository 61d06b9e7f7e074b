import heapq

import numpy as np
import pytest
from hypothesis import strategies as st

from placeit.core.errors import ExecutionError, PlacementError, ProblemError, UsageError
from placeit.core.problem import Problem
from placeit.simulator.scheduler import GIPH_RULES, RequestDone, Rules, Scheduler, Start, Transfer
from placeit.simulator.simulate import schedule
from tests.simulator import slow_simulator as slow
from tests.simulator.slow_simulator import holds_for

seeds = st.integers(0, 2**32 - 1)
links_ = st.sampled_from(["contention-free", "channel"])
queues = st.sampled_from(["fifo", "priority", "planned"])


class Clock:
    """Carries out what a scheduler asks for in virtual time, and notes when."""

    def __init__(self, scheduler, problem, place):
        self.scheduler = scheduler
        self.seconds, self.moves = slow.durations(problem, place)
        self.events, self.sequence, self.now = [], 0, 0.0
        self.start, self.finish, self.sent, self.arrived, self.done = {}, {}, {}, {}, {}
        self.running = set()  # devices
        self.conflicts = problem.conflicts
        self.log = []

    def carry_out(self, instructions):
        for step in instructions:
            self.log.append(step)
            if isinstance(step, Start):
                assert step.device not in self.running
                assert not self.conflicts[step.device, list(self.running)].any()
                self.running.add(step.device)
                self.start[step.request, step.op] = self.now
                self.push(self.seconds[step.op], step)
            elif isinstance(step, Transfer):
                assert step.src != step.dst
                self.sent[step.request, step.tensor, step.dst] = self.now
                self.push(self.moves[step.tensor, step.dst], step)
            else:
                self.done[step.request] = self.now

    def push(self, seconds, step):
        heapq.heappush(self.events, (self.now + seconds, self.sequence, step))
        self.sequence += 1

    def advance(self):
        """Report what finishes next."""
        self.now, _, step = heapq.heappop(self.events)
        if isinstance(step, Start):
            self.running.remove(step.device)
            self.finish[step.request, step.op] = self.now
            self.carry_out(self.scheduler.op_finished(step.request, step.op))
        else:
            self.arrived[step.request, step.tensor, step.dst] = self.now
            self.carry_out(self.scheduler.transfer_finished(step.request, step.tensor, step.dst))
        return step

    def run(self):
        while self.events:
            self.advance()


def two_device_problem(ops, edges, **costs):
    values = {"edge_bytes": np.ones(len(edges)), "bandwidth": np.ones((2, 2)), "latency": np.zeros((2, 2))} | costs
    return Problem.from_arrays(np.ones((ops, 2)), edges, **values)


def some_case(seed, ops, devices, cut=False, conflicts=False):
    problem = slow.random_problem(seed, ops, devices, cut=cut, conflicts=conflicts)
    return problem, np.random.default_rng([seed, 1]).integers(0, devices, ops).tolist()


@holds_for(
    seed=seeds,
    ops=st.integers(1, 16),
    devices=st.integers(1, 4),
    cut=st.booleans(),
    links=links_,
    queue=queues,
    own=st.booleans(),
    conflicts=st.booleans(),
)
def test_the_scheduler_does_what_the_simulator_says_event_for_event(seed, ops, devices, cut, links, queue, own, conflicts):
    problem, place = some_case(seed, ops, devices, cut, conflicts)
    priority = None
    if own and queue != "fifo":  # ties and inversions, but none that a planned device waits for for ever
        priority = np.random.default_rng([seed, 2]).integers(0, 3, ops)
        if queue == "planned":
            priority = -np.argsort(problem.order) // 2
    expected = schedule(problem, place, rules=Rules(links, queue), priority=priority)
    clock = Clock(Scheduler(problem, place, rules=Rules(links, queue), priority=priority), problem, place)
    clock.carry_out(clock.scheduler.begin(5))
    clock.run()
    assert clock.start == {(5, v): t for v, t in enumerate(expected.start.tolist())}
    assert clock.finish == {(5, v): t for v, t in enumerate(expected.finish.tolist())}
    moved = expected.transfers
    keys = [(5, tensor, dst) for tensor, dst in zip(moved.tensor.tolist(), moved.dst.tolist(), strict=True)]
    assert clock.sent == dict(zip(keys, moved.start.tolist(), strict=True))
    assert clock.arrived == dict(zip(keys, moved.finish.tolist(), strict=True))
    assert clock.done == {5: expected.makespan}
    assert clock.log[-1] == RequestDone(5)


@holds_for(seed=seeds, links=links_, queue=queues, requests=st.integers(2, 4), conflicts=st.booleans())
def test_every_request_in_flight_runs_each_op_once_and_ends(seed, links, queue, requests, conflicts):
    problem, place = some_case(seed, 10, 3, conflicts=conflicts)
    clock = Clock(Scheduler(problem, place, rules=Rules(links, queue)), problem, place)
    for request in range(requests):
        clock.carry_out(clock.scheduler.begin(request))
    clock.run()
    started = [(step.request, step.op) for step in clock.log if isinstance(step, Start)]
    assert sorted(started) == [(request, v) for request in range(requests) for v in range(10)]
    assert sorted(clock.done) == list(range(requests))
    arrivals = {(request, *key) for request in range(requests) for key in slow.durations(problem, place)[1]}
    assert set(clock.arrived) == arrivals
    for request, v in started:
        for u, w in problem.edges.tolist():
            if w == v:
                assert clock.finish[request, u] <= clock.start[request, v]


@holds_for(
    seed=seeds, links=links_, queue=st.sampled_from(["fifo", "priority"]), requests=st.integers(1, 3), conflicts=st.booleans()
)
def test_no_device_and_no_channel_is_idle_while_something_is_ready_for_it(seed, links, queue, requests, conflicts):
    problem, place = some_case(seed, 10, 4, conflicts=conflicts)
    tensors = problem.edge_tensor.tolist()
    clock = Clock(Scheduler(problem, place, rules=Rules(links, queue)), problem, place)
    for request in range(requests):
        clock.carry_out(clock.scheduler.begin(request))
    while clock.events:
        clock.advance()
        moving = {(step.src, step.dst) for _, _, step in clock.events if isinstance(step, Transfer)}
        for request in range(requests):
            for v in range(10):
                inputs = [
                    (request, u) in clock.finish if place[u] == place[v] else (request, t, place[v]) in clock.arrived
                    for (u, w), t in zip(problem.edges.tolist(), tensors, strict=True)
                    if w == v
                ]
                if all(inputs) and (request, v) not in clock.start:
                    rivals = np.flatnonzero(problem.conflicts[place[v]])
                    assert not clock.running.isdisjoint({place[v], *rivals.tolist()})
            for (u, w), t in zip(problem.edges.tolist(), tensors, strict=True):
                asked = place[u] != place[w] and (request, u) in clock.finish
                if asked and (request, t, place[w]) not in clock.sent:
                    assert links == "channel"
                    assert (place[u], place[w]) in moving


def test_an_earlier_request_goes_first_whatever_its_number():
    problem = two_device_problem(3, [(0, 1), (1, 2)])
    clock = Clock(Scheduler(problem, [0, 0, 0]), problem, [0, 0, 0])
    clock.carry_out(clock.scheduler.begin(7))
    clock.carry_out(clock.scheduler.begin(3))
    clock.run()
    assert [(step.request, step.op) for step in clock.log if isinstance(step, Start)] == [
        (7, 0),
        (7, 1),
        (7, 2),
        (3, 0),
        (3, 1),
        (3, 2),
    ]


def test_fifo_serves_requests_in_the_order_of_queueing():
    problem = two_device_problem(3, [(0, 1), (1, 2)])
    clock = Clock(Scheduler(problem, [0, 0, 0], rules=Rules(queue="fifo")), problem, [0, 0, 0])
    clock.carry_out(clock.scheduler.begin(0))
    clock.carry_out(clock.scheduler.begin(1))
    clock.run()
    assert [step.request for step in clock.log if isinstance(step, Start)] == [0, 1, 0, 1, 0, 1]


def test_the_most_urgent_of_several_tensors_takes_an_idle_channel():
    problem = two_device_problem(3, [(0, 1), (0, 2)])
    for queue, priority, first in (("priority", [3, 1, 2], 1), ("priority", None, 0), ("fifo", None, 0)):
        scheduler = Scheduler(problem, [0, 1, 1], rules=Rules(queue=queue), priority=priority)
        scheduler.begin(0)
        assert scheduler.op_finished(0, 0) == [Transfer(0, first, 0, 1)]
        assert scheduler.transfer_finished(0, first, 1) == [Transfer(0, 1 - first, 0, 1), Start(0, first + 1, 1)]


def test_a_planned_device_takes_another_request_rather_than_wait():
    # op 1 is ready at once, but planned after op 2, which waits for a transfer
    problem = two_device_problem(3, [(0, 2)])
    scheduler = Scheduler(problem, [0, 1, 1], rules=Rules(queue="planned"), priority=[3, 1, 2])
    assert scheduler.begin(0) == [Start(0, 0, 0)]
    assert scheduler.begin(1) == []
    assert scheduler.op_finished(0, 0) == [Transfer(0, 0, 0, 1), Start(1, 0, 0)]
    assert scheduler.op_finished(1, 0) == []
    assert scheduler.transfer_finished(0, 0, 1) == [Transfer(1, 0, 0, 1), Start(0, 2, 1)]
    assert scheduler.transfer_finished(1, 0, 1) == []
    assert scheduler.op_finished(0, 2) == [Start(0, 1, 1)]
    assert scheduler.op_finished(0, 1) == [Start(1, 2, 1), RequestDone(0)]


@holds_for(seed=seeds, links=links_, queue=queues, after=st.integers(0, 12), conflicts=st.booleans())
def test_an_aborted_request_starts_nothing_more_and_the_others_end(seed, links, queue, after, conflicts):
    problem, place = some_case(seed, 8, 3, conflicts=conflicts)
    clock = Clock(Scheduler(problem, place, rules=Rules(links, queue)), problem, place)
    for request in range(3):
        clock.carry_out(clock.scheduler.begin(request))
    for _ in range(after):
        if clock.events:
            clock.advance()
    ended, before = 1 in clock.done, len(clock.log)
    clock.carry_out(clock.scheduler.abort(1))
    assert clock.scheduler.abort(1) == []
    clock.run()
    later = [step for step in clock.log[before:] if step.request == 1]
    assert later == ([] if ended else [RequestDone(1)])
    assert sorted(clock.done) == [0, 1, 2]
    for request in (0, 2):
        assert sum(key[0] == request for key in clock.finish) == 8
    clock.carry_out(clock.scheduler.begin(1))  # the number is free again
    clock.run()
    assert clock.log[-1] == RequestDone(1)


def test_an_aborted_request_is_done_once_what_runs_has_been_reported():
    problem = two_device_problem(3, [(0, 1), (0, 2)])
    scheduler = Scheduler(problem, [0, 1, 0])
    scheduler.begin(0)
    assert scheduler.op_finished(0, 0) == [Transfer(0, 0, 0, 1), Start(0, 2, 0)]
    assert scheduler.abort(0) == []
    assert scheduler.op_finished(0, 2) == []
    assert scheduler.transfer_finished(0, 0, 1) == [RequestDone(0)]
    assert scheduler.abort(0) == []


def test_reports_of_what_did_not_run_are_refused():
    problem = two_device_problem(2, [(0, 1)])
    scheduler = Scheduler(problem, [0, 1])
    with pytest.raises(ExecutionError, match="Op 'op0' of request 0 was reported as finished, but was not running"):
        scheduler.op_finished(0, 0)
    scheduler.begin(0)
    with pytest.raises(ExecutionError, match="Op 'op1' of request 0"):
        scheduler.op_finished(0, 1)
    for tensor, dst in ((0, 1), (0, 0), (5, 1)):
        with pytest.raises(ExecutionError, match=f"Tensor {tensor} of request 0 arrived on device {dst}"):
            scheduler.transfer_finished(0, tensor, dst)
    with pytest.raises(ExecutionError, match="Request 0 was begun while"):
        scheduler.begin(0)
    assert scheduler.op_finished(0, 0) == [Transfer(0, 0, 0, 1)]
    with pytest.raises(ExecutionError, match="Op 'op0'"):
        scheduler.op_finished(0, 0)


def test_a_planned_order_that_waits_for_itself_is_refused_at_once():
    problem = two_device_problem(2, [(0, 1)])
    with pytest.raises(ProblemError, match="waits for itself"):
        Scheduler(problem, [0, 0], rules=Rules(queue="planned"), priority=[1, 2])
    crossed = two_device_problem(4, [(0, 3), (1, 2)])  # each device first waits for what the other does last
    with pytest.raises(ProblemError, match="waits for itself"):
        Scheduler(crossed, [0, 1, 0, 1], rules=Rules(queue="planned"), priority=[1, 1, 2, 2])
    beside = {"rules": Rules("contention-free", "planned"), "priority": [1, 2]}
    Scheduler(problem, [0, 1], **beside)
    shared = two_device_problem(2, [(0, 1)], conflicts=~np.eye(2, dtype=bool))  # one order for both devices
    with pytest.raises(ProblemError, match="waits for itself"):
        Scheduler(shared, [0, 1], **beside)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (UsageError, {"rules": GIPH_RULES, "priority": [1, 2]}),
        (ProblemError, {"priority": [1]}),
        (ProblemError, {"priority": [1, float("nan")]}),
    ],
)
def test_bad_options_are_refused(error, options):
    with pytest.raises(error):
        Scheduler(two_device_problem(2, [(0, 1)]), [0, 1], **options)


def test_an_infeasible_placement_is_refused():
    problem = Problem.from_arrays([[1, np.inf]], [], [], np.ones((2, 2)), np.zeros((2, 2)))
    with pytest.raises(PlacementError, match="'op0' cannot run on dev1"):
        Scheduler(problem, [1])
