"""Relative throughput of all methods (Table 1).

``better`` is the share of graphs on which a method is above METIS with 5 parts, and ``equal`` the share on which the two are
the same, most often because both sustain the whole rate: no method can be better if METIS does. B, B+F1 and B+F1+F2 are the
ablations of the paper: LSTM encoder-decoder, graph encoding, and graph-aware decoding; all are trained on generated graphs, by
imitation of simulated annealing. The figures are for a policy's likeliest placement, or for the best one of that and samples,
by the simulator. Annealing is our own search.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.stream.jobs import ABLATIONS, Setup, Training, costs, methods
from benchmarks.papers.stream.paper import RATES, TABLE_1
from placeit.simulator.throughput_bound import relative_throughput

__all__ = ["jobs", "tell"]

_SAME = 1e-6
_OURS = "shipped, best of samples"


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [job for job, _ in methods().values()]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    for ablation in ABLATIONS:
        seconds = float(lab[Training(ablation)]["seconds"])
        report.claim(f"{ablation}: training, on one core", seconds / 60, "min", at_most=30)
    for rate in RATES:
        share = {method: relative_throughput(costs(lab, method)[0], rate) for method in methods()}
        metis, best = share["METIS, 5 parts"], share["METIS, best of 2-5"]
        for method, found in share.items():
            average, quartile, median, better = TABLE_1.get(method, {}).get(rate, (None,) * 4)
            report.row(
                part="table1",
                rate=rate,
                method=method,
                graphs=len(found),
                average=found.mean(),
                paper_average=average,
                first_quartile=np.quantile(found, 0.25),
                paper_quartile=quartile,
                median=np.median(found),
                paper_median=median,
                better=np.mean(found > metis * (1 + _SAME)),
                paper_better=better,
                equal=np.mean(np.abs(found - metis) <= metis * _SAME),
                over_metis=found.mean() / metis.mean(),
            )
        report.claim(f"METIS with 5 parts: sustains all of the rate on, at {rate:g}", np.mean(metis > 1 - _SAME), "")
        for ours in ("shipped", _OURS):
            found, wanted = share[ours], ours == _OURS
            above = np.mean(found > metis * (1 + _SAME))
            report.claim(
                f"{ours}: over METIS with 5 parts, at {rate:g}",
                found.mean() / metis.mean(),
                "",
                at_least=1.12 if wanted and rate == RATES[0] else None,
            )
            least = (0.76 if rate == RATES[0] else 0.65) if wanted else None
            report.claim(f"{ours}: better than METIS with 5 parts on, at {rate:g}", above, "", at_least=least)
            missed = np.mean(metis < 1 - _SAME)
            report.claim(f"{ours}: the same, of those where METIS does not sustain all, at {rate:g}", above / missed, "")
            below = np.mean(found < metis * (1 - _SAME))
            report.claim(f"{ours}: worse than METIS with 5 parts on, at {rate:g}", below, "")
            report.claim(
                f"{ours}: over METIS' best of 2-5, at {rate:g}",
                found.mean() / best.mean(),
                "",
                at_least=1.0 if wanted else None,
            )
        names = [method for method in share if not method.endswith("samples") or method == _OURS]
        figures.bars(
            "table1",
            f"table1-{rate:.0e}".replace("+0", ""),
            f"{rate:g} tuples/s",
            ("", "average relative throughput"),
            names,
            {"average": [share[name].mean() for name in names]},
        )
