"""The compiled rules against the readable ones, call for call, and the loops that simulate by them."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from placeit.core.errors import ExecutionError, UsageError
from placeit.simulator.scheduler import RequestDone, Rules, Scheduler, Start, Transfer
from placeit.simulator.simulate import schedule, simulate
from placeit.testing.oracle import ReferenceScheduler, pipelined
from tests.simulator import slow_simulator as slow
from tests.simulator.slow_simulator import holds_for

seeds = st.integers(0, 2**32 - 1)
links_ = st.sampled_from(["contention-free", "channel"])
queues = st.sampled_from(["fifo", "priority", "planned"])


def some_case(seed, ops, devices, cut=False, conflicts=False):
    problem = slow.random_problem(seed, ops, devices, cut=cut, conflicts=conflicts)
    return problem, np.random.default_rng([seed, 1]).integers(0, devices, ops).tolist()


@holds_for(
    seed=seeds,
    ops=st.integers(1, 14),
    devices=st.integers(1, 4),
    links=links_,
    queue=queues,
    own=st.booleans(),
    conflicts=st.booleans(),
    max_examples=200,
)
def test_every_call_answers_what_the_readable_rules_answer(seed, ops, devices, links, queue, own, conflicts):
    problem, place = some_case(seed, ops, devices, conflicts=conflicts)
    rng = np.random.default_rng([seed, 3])
    priority = None
    if own and queue != "fifo":
        priority = -np.argsort(problem.order) // 2 if queue == "planned" else rng.integers(0, 3, ops)
    options = {"rules": Rules(links, queue), "priority": priority}
    ours, theirs = Scheduler(problem, place, **options), ReferenceScheduler(problem, place, **options)
    running, sent, in_flight, begun = [], set(), set(), 0
    for _ in range(400):
        choice = rng.random()
        if begun < 7 and (choice < 0.15 or not running):
            answers = [scheduler.begin(begun) for scheduler in (ours, theirs)]
            in_flight.add(begun)
            begun += 1
        elif in_flight and choice < 0.19:
            request = int(rng.choice(sorted(in_flight)))
            answers = [scheduler.abort(request) for scheduler in (ours, theirs)]
        elif running:
            step = running[rng.integers(len(running))]
            unsent = isinstance(step, Transfer) and step not in sent
            if unsent and rng.random() < 0.3:
                sent.add(step)
                answers = [scheduler.transfer_sent(step.request, step.tensor, step.dst) for scheduler in (ours, theirs)]
            else:
                running.remove(step)
                sent.discard(step)
                if isinstance(step, Start):
                    answers = [scheduler.op_finished(step.request, step.op) for scheduler in (ours, theirs)]
                else:
                    answers = [scheduler.transfer_finished(step.request, step.tensor, step.dst) for scheduler in (ours, theirs)]
        else:
            break
        assert answers[0] == answers[1]
        running += [step for step in answers[0] if not isinstance(step, RequestDone)]
        in_flight -= {step.request for step in answers[0] if isinstance(step, RequestDone)}
        assert sorted(ours.running()) == sorted(running)
    assert begun == 7
    assert not running
    assert not in_flight


@holds_for(
    seed=seeds,
    ops=st.integers(1, 10),
    devices=st.integers(1, 3),
    cut=st.booleans(),
    links=links_,
    queue=queues,
    requests=st.integers(1, 6),
    interval=st.sampled_from([0.0, 1.0, 2.5, 7.0, None]),
    in_flight=st.sampled_from([None, 1, 2, 3]),
    conflicts=st.booleans(),
)
def test_requests_in_flight_are_simulated_by_the_readable_rules(
    seed, ops, devices, cut, links, queue, requests, interval, in_flight, conflicts
):
    problem, place = some_case(seed, ops, devices, cut, conflicts)
    options = {"rules": Rules(links, queue), "in_flight": in_flight}
    if interval is None:  # any times
        arrivals = np.random.default_rng([seed, 5]).integers(0, 8, requests).cumsum().astype(float).tolist()
    else:
        arrivals = [r * interval for r in range(requests)]
    options |= {"requests": requests} if interval == 0 else {"arrivals": arrivals}
    begun, ended, started = pipelined(problem, place, Rules(links, queue), arrivals, in_flight or math.inf)
    found = schedule(problem, place, **options)
    flights = found.requests
    assert flights.arrived.tolist() == arrivals
    assert flights.begun.tolist() == [begun[r] for r in range(requests)]
    assert flights.ended.tolist() == [ended[r] for r in range(requests)]
    for step, when in started.items():
        if isinstance(step, Start):
            assert flights.start[step.request, step.op] == when
    moved = found.transfers
    keys = zip(moved.request.tolist(), moved.tensor.tolist(), moved.src.tolist(), moved.dst.tolist(), strict=True)
    transfers = {step: when for step, when in started.items() if isinstance(step, Transfer)}
    assert {Transfer(*key): when for key, when in zip(keys, moved.start.tolist(), strict=True)} == transfers
    assert found.makespan == max(ended.values())
    assert simulate(problem, [place], **options).tolist() == [found.makespan]


@holds_for(
    seed=seeds,
    ops=st.integers(1, 16),
    devices=st.integers(1, 4),
    cut=st.booleans(),
    links=links_,
    queue=st.sampled_from(["fifo", "priority"]),
    noise=st.sampled_from([0.0, 0.2]),
    own=st.booleans(),
    conflicts=st.booleans(),
    max_examples=300,
)
def test_the_faster_loop_for_one_request_says_what_the_rules_say(seed, ops, devices, cut, links, queue, noise, own, conflicts):
    problem = slow.random_problem(seed, ops, devices, cut=cut, conflicts=conflicts)
    rng = np.random.default_rng([seed, 1])
    placements = rng.integers(0, devices, (20, ops))
    priority = rng.integers(0, 3, ops) if own and queue == "priority" else None
    options = {"rules": Rules(links, queue), "noise": noise, "seed": seed, "priority": priority}
    by_rules = simulate(problem, placements, memory=True, **options)  # memory is unlimited, and only the rules track it
    assert simulate(problem, placements, **options).tolist() == by_rules.tolist()


@holds_for(seed=seeds, links=links_, queue=queues, after=st.integers(0, 25), lost=st.integers(0, 2), conflicts=st.booleans())
def test_only_requests_that_need_a_lost_device_are_aborted(seed, links, queue, after, lost, conflicts):
    problem, place = some_case(seed, 8, 3, conflicts=conflicts)
    scheduler, readable = (of(problem, place, rules=Rules(links, queue)) for of in (Scheduler, ReferenceScheduler))
    rng = np.random.default_rng([seed, 4])
    running, finished, arrived, done = [], set(), set(), set()

    def take(steps):
        for step in steps:
            if isinstance(step, RequestDone):
                done.add(step.request)
            else:
                running.append(step)

    def ask(call):
        answer = call(scheduler)
        assert answer == call(readable)
        take(answer)

    def report():
        step = running.pop(rng.integers(len(running)))
        if isinstance(step, Start):
            finished.add((step.request, step.op))
            ask(lambda rules: rules.op_finished(step.request, step.op))
        else:
            arrived.add((step.request, step.tensor, step.dst))
            ask(lambda rules: rules.transfer_finished(step.request, step.tensor, step.dst))

    for request in range(3):
        ask(lambda rules, request=request: rules.begin(request))
    for _ in range(after):
        if running:
            report()
    gone = {r for r in range(3) if r not in done}
    edges = [(u, w, int(t)) for (u, w), t in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), strict=True)]
    needy = {
        r
        for r in gone
        if any(d == lost and (r, v) not in finished for v, d in enumerate(place))
        or any(place[u] == lost != place[w] and (r, t, place[w]) not in arrived for u, w, t in edges)
    }
    aborted, steps = scheduler.device_lost(lost)
    assert aborted == sorted(needy)
    aborted_too, steps_too = readable.device_lost(lost)
    assert aborted_too == aborted
    over = [[step for step in answer if isinstance(step, RequestDone)] for answer in (steps, steps_too)]
    assert sorted(over[0]) == sorted(over[1])
    started = [step for step in steps if isinstance(step, Start)]
    assert steps == over[0] + started
    assert started == [step for step in steps_too if isinstance(step, Start)]

    def there(step):
        return step.device == lost if isinstance(step, Start) else lost in (step.src, step.dst)

    running[:] = [step for step in running if not there(step)]
    assert {step.request for step in over[0]} == {r for r in needy if all(step.request != r for step in running)}
    take(steps)
    assert sorted(scheduler.running()) == sorted(running)
    before = {step for step in running if step.request in needy}
    while running:
        report()
        assert not any(there(step) for step in running)
        assert {step for step in running if step.request in needy} <= before
    assert done == {0, 1, 2}
    assert {r for r in range(3) if sum(key[0] == r for key in finished) == 8} >= {0, 1, 2} - needy
    if lost in place:
        with pytest.raises(ExecutionError, match="on a device that is lost"):
            scheduler.begin(9)
    else:
        ask(lambda rules: rules.begin(9))
        while running:
            report()
        assert 9 in done


@pytest.mark.parametrize("options", [{"requests": 0}, {"in_flight": 0}])
def test_requests_that_make_no_sense_are_refused(options):
    problem, place = some_case(1, 4, 2)
    with pytest.raises(UsageError, match=f"'{list(options)[-1]}' is"):
        simulate(problem, [place], **options)


def test_the_time_between_requests_decides_whether_they_wait_for_each_other():
    # two ops of 1 s each on two devices, and 1 s from one to the other: 3 s, of which 1 s on each device and on the link
    problem, place = slow.Problem.from_arrays(np.ones((2, 2)), [(0, 1)], [1.0], np.ones((2, 2)), np.zeros((2, 2))), [0, 1]
    apart = schedule(problem, place, rules=Rules(queue="fifo"), arrivals=np.arange(5) * 3.0)
    assert apart.requests.latency.tolist() == [3.0] * 5
    close = schedule(problem, place, rules=Rules(queue="fifo"), requests=5)
    assert close.requests.ended.tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
    one = schedule(problem, place, rules=Rules(queue="fifo"), requests=5, in_flight=1)
    assert one.requests.ended.tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert one.busy.tolist() == [5.0, 5.0]
