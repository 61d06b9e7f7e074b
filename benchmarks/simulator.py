"""The speed of simulation: evaluations a second on one core, growth with the graph, and the same model in SimPy."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any, get_args

import numpy as np
import simpy
from numpy.typing import NDArray

from benchmarks._harness import Args, Report, main
from placeit.core.problem import Problem
from placeit.simulator.scheduler import GIPH_RULES, LinkModel, Queue, Rules, Scheduler, b_level
from placeit.simulator.simulate import SimulatedCost, schedule

_DEVICES = 8


def random_problem(ops: int, inputs: float, rng: np.random.Generator) -> Problem:
    """Draw ops that read ``inputs`` of the twenty ops before them on average; computing and moving cost alike."""
    edges = sorted({(int(u), v) for v in range(1, ops) for u in rng.integers(max(0, v - 20), v, 1 + rng.poisson(inputs - 1))})
    return Problem.from_arrays(
        compute=rng.uniform(1, 10, (ops, _DEVICES)),
        edges=edges,
        edge_bytes=rng.uniform(1, 10, len(edges)),
        bandwidth=rng.uniform(1, 2, (_DEVICES, _DEVICES)),
        latency=rng.uniform(0, 1, (_DEVICES, _DEVICES)),
    )


def in_simpy(problem: Problem, place: list[int], links: LinkModel, queue: Queue) -> float:
    """Return the makespan of one placement by the same model, as processes of SimPy; no two edges may share a tensor."""
    env = simpy.Environment()
    urgency: Any = [0] * len(place) if queue == "fifo" else [-rank for rank in b_level(problem, place)]
    devices = [simpy.PriorityResource(env) for _ in range(problem.devices)]
    channels = {(s, d): simpy.PriorityResource(env) for s in range(problem.devices) for d in range(problem.devices)}
    edges = list(enumerate(problem.edges.tolist()))
    ready = [env.event() for _ in edges]
    into = [[e for e, (_, w) in edges if w == v] for v in range(len(place))]
    # an idle channel serves requests in order of arrival, so the most urgent has to arrive first
    out = [sorted([(e, w) for e, (u, w) in edges if u == v], key=lambda edge: urgency[edge[1]]) for v in range(len(place))]

    def move(e: int, src: int, w: int) -> Generator[simpy.Event, Any, None]:
        dst = place[w]
        seconds = problem.latency[src, dst] + problem.edge_bytes[e] / problem.bandwidth[src, dst]
        if links == "channel":
            with channels[src, dst].request(priority=urgency[w]) as turn:
                yield turn
                yield env.timeout(seconds)
        else:
            yield env.timeout(seconds)
        ready[e].succeed()

    def compute(v: int) -> Generator[simpy.Event, Any, None]:
        yield env.all_of([ready[e] for e in into[v]])
        with devices[place[v]].request(priority=urgency[v]) as turn:
            yield turn
            yield env.timeout(problem.compute[v, place[v]])
            for e, w in out[v]:
                if place[w] == place[v]:
                    ready[e].succeed()
                else:
                    env.process(move(e, place[v], w))
            if queue == "priority":  # let what has become ready queue up before the device is free to choose
                for _ in range(3):
                    yield env.timeout(0)

    for v in range(len(place)):
        env.process(compute(v))
    env.run()
    return float(env.now)


def best(work: Callable[[], object], seconds: float) -> float:
    """Return the seconds of the work when least disturbed: the shortest of as many runs as fit into a time, at least three."""
    work()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        begin = perf_counter()
        work()
        times.append(perf_counter() - begin)
    return min(times)


def placements_of(problem: Problem, count: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Draw uniformly random placements, most of whose edges cross devices, which is the slow case."""
    return rng.integers(0, problem.devices, (count, len(problem)), np.int32)


def run(args: Args, report: Report) -> None:
    rng = np.random.default_rng(args.seed)
    seconds = 0.3 if args.quick else 1.0
    problem = random_problem(100, 2, rng)
    placements = placements_of(problem, 1000, rng)
    few = placements[: 2 if args.quick else 10]

    worst = 0.0
    queues: tuple[Queue, ...] = ("fifo", "priority")
    for links, queue in product(get_args(LinkModel), queues):
        cost = SimulatedCost(problem, rules=Rules(links, queue))
        ours = best(partial(cost, placements), seconds) / len(placements)
        makespans = [in_simpy(problem, place, links, queue) for place in few.tolist()]
        theirs = best(partial(in_simpy, problem, few[0].tolist(), links, queue), 0)
        difference = float(np.max(np.abs(np.array(makespans) / cost(few) - 1)))
        worst = max(worst, difference)
        report.row(
            links=links,
            queue=queue,
            tasks=len(problem),
            edges=len(problem.edges),
            evaluations_per_s=1 / ours,
            simpy_per_s=1 / theirs,
            speed_up=theirs / ours,
            difference=difference,
        )
        if links == "contention-free" and queue == "fifo":
            report.claim("evaluations a second on one core: 100 tasks, 8 devices", 1 / ours, "1/s", at_least=100_000)
            report.claim("speed-up over SimPy", theirs / ours, "")
    report.claim("largest relative difference of a makespan from SimPy", worst, "", at_most=1e-9)

    sizes = [100, 1000, 10_000] if args.quick else [100, 300, 1000, 3000, 10_000]
    times = []
    for size in sizes:
        large = random_problem(size, 2, rng)
        many = placements_of(large, max(3, 100_000 // size), rng)
        times.append(best(partial(SimulatedCost(large, rules=GIPH_RULES), many), seconds) / len(many))
        report.row(tasks=size, edges=len(large.edges), us_each=times[-1] * 1e6, ns_per_task=times[-1] / size * 1e9)
    exponent = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    report.claim("growth from 100 to 10,000 tasks: exponent of time over tasks", exponent, "", at_most=1.2)

    dense = random_problem(100, 4, rng)
    single = SimulatedCost(problem, rules=GIPH_RULES)
    variants: dict[str, tuple[Callable[[], object], int]] = {
        "4 inputs an op": (partial(SimulatedCost(dense, rules=GIPH_RULES), placements), len(placements)),
        "memory limit": (partial(SimulatedCost(problem, rules=GIPH_RULES, memory=True), placements), len(placements)),
        "noise": (partial(SimulatedCost(problem, rules=GIPH_RULES, noise=0.2), placements), len(placements)),
        "all cores": (partial(SimulatedCost(problem, rules=GIPH_RULES, threads=None), placements), len(placements)),
        "batches of one": (lambda: [single(place) for place in placements[:100]], 100),
        "full schedules": (lambda: [schedule(problem, place, rules=GIPH_RULES) for place in placements[:100]], 100),
    }
    for name, (work, count) in variants.items():
        report.row(variant=name, us_each=best(work, seconds) / count * 1e6)

    report.row(scheduler="channels, priority", us_per_event=_scheduler_seconds(problem, few[0], seconds) * 1e6)


def _scheduler_seconds(problem: Problem, place: NDArray[np.int32], seconds: float) -> float:
    """Return the seconds of the executor's scheduler for each event, in the order of a simulated run."""
    plan = schedule(problem, place, rules=Rules("channel", "priority"))
    moved = plan.transfers
    events = sorted(
        [(t, True, v, 0) for v, t in enumerate(plan.finish.tolist())]
        + [(t, False, n, d) for t, n, d in zip(moved.finish.tolist(), moved.tensor.tolist(), moved.dst.tolist(), strict=True)]
    )
    scheduler = Scheduler(problem, place)

    def once() -> None:
        scheduler.begin(0)
        for _, op, number, dst in events:
            if op:
                scheduler.op_finished(0, number)
            else:
                scheduler.transfer_finished(0, number, dst)

    return best(once, seconds) / len(events)


if __name__ == "__main__":
    main("simulator", run)
