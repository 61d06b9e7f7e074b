"""Transfer (Table 4): training on FFNN or ChainMM, continued on a Llama graph; four described GPUs, simulated.

``zero`` is the better one of the policies' likeliest placement and the best of 64 placements drawn from them, without training
on the graph. Other figures are the best placements met in a number of episodes on the graph, without imitation. ``full`` is a
training from the start.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab, column
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Placed, Setup, Training, same_moves
from benchmarks.papers.doppler.paper import TABLE_2, TABLE_4
from benchmarks.papers.doppler.statistics import least_of

__all__ = ["jobs", "tell"]

_HEURISTICS = {"critical_path": "critical-path", "enumerative": "enumerative"}


def _pairs(setup: Setup) -> list[tuple[str, str]]:
    """Return pairs of a graph to train on first and a graph to continue with."""
    graphs = setup.sizes.graphs
    pairs = [(source, target) for source, target in TABLE_4 if source in graphs and target in graphs]
    return pairs or [(graph, graph) for graph in graphs[:1]]


def _source(setup: Setup, graph: str) -> Training:
    return Training(Case(graph, "four"), 0, setup.sizes.episodes_of(graph))


def _after(setup: Setup, source: str, target: str, episodes: int) -> Training:
    return Training(Case(target, "four"), 0, episodes, imitation=False, begin=_source(setup, source))


def _searches(setup: Setup, target: str) -> dict[str, Training]:
    return same_moves(Training(Case(target, "four"), 0, setup.sizes.few[1]))


def jobs(setup: Setup) -> Sequence[Job]:
    found: list[Job] = []
    for source, target in _pairs(setup):
        found += [_after(setup, source, target, episodes) for episodes in (0, *setup.sizes.few)]
        found += _searches(setup, target).values()
        found += [_source(setup, target), *(Placed(Case(target, "four"), placer) for placer in _HEURISTICS.values())]
    return found


def tell(lab: Lab, report: Report) -> None:
    few, many = lab.setup.sizes.few
    ratios = []
    for source, target in _pairs(lab.setup):
        zero = lab[_after(lab.setup, source, target, 0)]
        after = {episodes: float(lab[_after(lab.setup, source, target, episodes)]["best"]) for episodes in (few, many)}
        heuristics = {name: float(lab[Placed(Case(target, "four"), of)]["cost"]) * 1e3 for name, of in _HEURISTICS.items()}
        paper = TABLE_4.get((source, target), {})
        report.row(
            part="table4",
            learned_on=source,
            graph=target,
            zero_ms=min(least_of(zero["samples"]), float(zero["greedy"])) * 1e3,
            fewer_episodes=few,
            fewer_ms=after[few] * 1e3,
            more_episodes=many,
            more_ms=after[many] * 1e3,
            **{f"{column(name)}_ms": float(lab[job]["best"]) * 1e3 for name, job in _searches(lab.setup, target).items()},
            full_ms=float(lab[_source(lab.setup, target)]["best"]) * 1e3,
            **heuristics,
            paper_zero_ms=paper.get("zero"),
            paper_fewer_ms=paper.get("2000"),
            paper_more_ms=paper.get("4000"),
            paper_critical_path=TABLE_2[target]["critical path"],
        )
        ratios.append(after[few] * 1e3 / heuristics["critical_path"])
    name = f"after a transfer and {few} episodes: best placement over critical path's, worst pair of graphs"
    report.claim(name, max(ratios), "", at_most=1.0)
