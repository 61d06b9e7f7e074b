"""A work-conserving system against a bulk-synchronous one (Table 1, Appendix G), simulated on four described GPUs.

The bulk-synchronous system runs the ops of the uncut expression one after the other, each in steps: all transfers that a step
needs begin together and end before any of its kernels begins, and the next step begins when all kernels have ended. Both
systems run the same placements. The paper compares its runtime with ScaLAPACK (ChainMM) and PyTorch Lightning (FFNN).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab, Outcome, column
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Setup
from benchmarks.papers.doppler.paper import TABLE_1
from placeit.core.problem import Problem
from placeit.learning.workloads.tensors import BlockProgram
from placeit.placers.registry import parse_placer

__all__ = ["Lockstep", "jobs", "synchronous_seconds", "tell"]

_PLACERS = {"enumerative": "enumerative", "critical path": "critical-path"}


def synchronous_seconds(program: BlockProgram, problem: Problem, placement: NDArray[np.int32]) -> float:
    """Return the seconds of a placement if every step waits for all devices.

    Args:
        program: the program to run.
        problem: the same program's costs on ``D`` devices.
        placement: device of each op, ``int32[V]``.
    """
    number = {op.name: v for v, op in enumerate(program.ops)}
    maker = {op.output: v for v, op in enumerate(program.ops)}
    there: set[tuple[int, int]] = set()  # pairs of a tensor that was copied and a device that has it
    total = 0.0
    for step in (ops for meta in program.meta_ops for ops in (meta.shard_ops, meta.reduce_ops)):
        links, busy = np.zeros((problem.devices, problem.devices)), np.zeros(problem.devices)
        for v in (number[name] for name in step):
            busy[placement[v]] += problem.compute[v, placement[v]]
            for tensor in dict.fromkeys(program.ops[v].inputs):
                if tensor in maker and (tensor, int(placement[v])) not in there:
                    there.add((tensor, int(placement[v])))
                    link = placement[maker[tensor]], placement[v]
                    if link[0] != link[1]:
                        links[link] += problem.latency[link] + program.tensors[tensor].nbytes / problem.bandwidth[link]
        total += float(links.max() + busy.max())
    return total


@dataclass(frozen=True)
class Lockstep(Job):
    """Runs a placer's placement both ways; the outcome is ``conserving`` and ``synchronous``, in seconds."""

    graph: str
    placer: str

    @property
    def name(self) -> str:
        return f"{self.graph}-{self.placer}-lockstep"

    def run(self, setup: Setup) -> Outcome:
        case = Case(self.graph, "four")
        placement = parse_placer(self.placer).place(case.problem, case.cost(), seed=setup.seed, evaluations=None)
        synchronous = synchronous_seconds(case.program, case.problem, placement)
        return {"conserving": case.cost()(placement[None])[0], "synchronous": np.array(synchronous)}


def jobs(setup: Setup) -> Sequence[Job]:
    return [Lockstep(graph, placer) for graph in setup.sizes.graphs for placer in _PLACERS.values()]


def tell(lab: Lab, report: Report) -> None:
    for graph in lab.setup.sizes.graphs:
        paper = TABLE_1.get(graph, {})
        for name, placer in _PLACERS.items():
            outcome = lab[Lockstep(graph, placer)]
            conserving, synchronous = (float(outcome[way]) for way in ("conserving", "synchronous"))
            report.row(
                part="table1",
                graph=graph,
                placed_by=name,
                work_conserving_ms=conserving * 1e3,
                synchronous_ms=synchronous * 1e3,
                times_as_long=synchronous / conserving,
                **{f"paper_{column(way)}": paper.get(way) for way in ("work conserving", "synchronous")},
            )
            report.claim(f"{graph}, {name}: synchronous over work-conserving", synchronous / conserving, "")
