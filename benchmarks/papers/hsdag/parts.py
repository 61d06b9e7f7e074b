"""The tables of the paper, on a core and a slowed core."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks._harness import Report
from benchmarks._models import load_model
from benchmarks.papers.hsdag.bench import Bench
from benchmarks.papers.hsdag.learners import ABLATIONS, SAME_MOVES, SCRATCH
from benchmarks.papers.hsdag.paper import ABLATIONS_MS, GRAPHS, LATENCY_MS, SEARCH_S
from benchmarks.papers.hsdag.placebench import unequal
from benchmarks.papers.hsdag.races import AUTOMATIC, Entry, Raced, Ratios, race
from placeit.core.placement import Placement
from placeit.planning.coarsen import coarsen
from placeit.session import Session

__all__ = ["PARTS"]

_DEFAULT = "placeit optimize"
_LEARNED = ("Placeto", "RNN-based", "HSDAG", SCRATCH, *SAME_MOVES)
_PAPER = {"fast": "CPU", "slow": "GPU"} | {name: name for name in LATENCY_MS}
_SPREAD = 1.5


def graphs(bench: Bench, report: Report) -> None:
    """Table 1. Computation graphs.

    The paper counts layers with constants and their conversions, of models with weights in float16 (here: float32). The units
    of placement are groups of ops.
    """
    for name in bench.models:
        model, (nodes, edges, degree) = load_model(name), GRAPHS[name]
        counted = model.statistics()
        report.row(
            part="table1",
            model=name,
            nodes=counted["layers"],
            nodes_paper=nodes,
            edges=counted["layer_edges"],
            edges_paper=edges,
            degree=counted["layer_edges"] / counted["layers"],
            degree_paper=degree,
            ops=counted["ops"],
            op_edges=counted["edges"],
            groups=len(coarsen(model.graph).groups),
        )


def latency(bench: Bench, report: Report) -> None:
    """Table 2. Latency.

    All placements of a model are raced interleaved; ratios are to the best single device in the same rounds; ``ops on slow`` is
    the share of the ops that run on the slowed core. The fast core stands in the row of the paper's CPU, the slowed one in the
    row of its GPU. OpenVINO's automatic modes have one thread on the fast core; as there is only a CPU, they have nothing to
    choose. Error, L2 norm, mean square and cosine (Table 4) compare with the outputs of the uncut model.
    """
    worst, errors = [], []
    for model, slowdown in bench.cases:
        answer = Entry(_DEFAULT, bench.optimized(model, slowdown)[0])
        with bench.session(model, slowdown) as session:
            learned = [Entry(name, bench.learned(session, model, slowdown, name)[0]) for name in _LEARNED]
            others = [*_singles(session), *(Entry(*mode) for mode in AUTOMATIC.items()), *learned]
            raced, ratios = _race(bench, session, [answer, *others], others[0].name)
        _rows("table2", model, slowdown, [answer, *others], raced, LATENCY_MS, report)
        worst.append(max(ratios[_DEFAULT, entry.name].ci_low for entry in others))
        errors += [one.max_rel for one in raced.values()]
        medians = [one.measured.median for one in raced.values()]
        report.claim(
            f"{model}, slowed {slowdown:g} times: slowest over fastest", max(medians) / min(medians), "", at_least=_SPREAD
        )
    _claim(report, f"time of {_DEFAULT} over each baseline's, low end of the interval, worst case", max(worst), 1.0)
    _claim(report, "relative difference of outputs, worst case", max(errors), 1e-4)


def ablations(bench: Bench, report: Report) -> None:
    """Table 3. Ablations of features.

    Each variant is trained like HSDAG in Table 2, in simulation and then by measured runs, and all are raced interleaved, on
    the most unequal cores only.
    """
    errors = []
    slowdown = max(bench.slowdowns)
    for model in bench.models:
        with bench.session(model, slowdown) as session:
            names = {"original": "HSDAG"} | {name: name for name in (*ABLATIONS, *SAME_MOVES)}
            variants = [Entry(row, bench.learned(session, model, slowdown, name)[0]) for row, name in names.items()]
            entries = [*_singles(session), *variants]
            raced, _ = _race(bench, session, entries, entries[0].name)
        _rows("table3", model, slowdown, entries, raced, ABLATIONS_MS, report)
        errors += [one.max_rel for one in raced.values()]
    _claim(report, "relative difference of outputs, worst case", max(errors), 1e-4)


def search(bench: Bench, report: Report) -> None:
    """Table 5. Time of the search.

    Training in simulation, and what follows it: compiling, runs, updates, and a last race of the best three.
    """
    for model, slowdown in bench.cases:
        found = {_DEFAULT: bench.optimized(model, slowdown)[1]}
        with bench.session(model, slowdown) as session:
            found |= {name: bench.learned(session, model, slowdown, name)[1] for name in _LEARNED}
        for name, one in found.items():
            report.row(
                part="table5",
                model=model,
                slowdown=slowdown,
                search=name,
                simulated_s=one.simulated_s,
                measured_s=one.measured_s,
                compile_s=one.compile_s,
                plans=one.plans,
                samples=one.samples,
                paper_s=SEARCH_S.get(name, {}).get(model),
            )


PARTS: Mapping[str, Callable[[Bench, Report], None]] = {
    "table1": graphs,
    "table2": latency,
    "table3": ablations,
    "table5": search,
    "placebench": unequal,
}
"""Parts in the order in which they are reported."""


def _race(bench: Bench, session: Session, entries: list[Entry], anchor: str) -> tuple[Mapping[str, Raced], Ratios]:
    return race(session, entries, anchor, bench.cores[0], rounds=bench.sizes.rounds, seed=bench.seed)


def _singles(session: Session) -> list[Entry]:
    """Return the single devices, the fastest in simulation first."""
    problem = session.segmenter.problem()
    rows = [np.full(len(problem), d, np.int32) for d in problem.single_devices]
    plans = {session.cluster.names[row[0]]: session.segmenter.plan(row) for row in rows}
    order = sorted(plans, key=lambda name: plans[name].schedule.makespan)
    return [Entry(name, session.placement(rows[session.cluster.names.index(name)], plans[name])) for name in order]


def _rows(
    part: str,
    model: str,
    slowdown: float,
    entries: list[Entry],
    raced: Mapping[str, Raced],
    paper: Mapping[str, Mapping[str, float | None]],
    report: Report,
) -> None:
    for entry in entries:
        one, placement = raced[entry.name], entry.placement
        report.row(
            part=part,
            model=model,
            slowdown=slowdown,
            what=entry.name,
            ops_on_slow=placement.counts()["slow"] / len(placement) if isinstance(placement, Placement) else 0.0,
            median_ms=one.measured.median * 1e3,
            low_ms=one.measured.ci_low * 1e3,
            high_ms=one.measured.ci_high * 1e3,
            over_best_single=one.ratio.ratio,
            ratio_low=one.ratio.ci_low,
            ratio_high=one.ratio.ci_high,
            error=one.max_rel,
            l2=one.l2,
            mse=one.mse,
            cosine=one.cosine,
            paper_ms=paper.get(_PAPER.get(entry.name, entry.name), {}).get(model),
        )


def _claim(report: Report, name: str, value: float, at_most: float) -> None:
    report.claim(name, value, "", at_most=at_most)
