"""Search efficiency (Fig. 4): mean SLR of the best placement so far against search steps.

In the single-network case all problems share one device network; in the multi-network case test problems have other graphs and
other networks than the training problems. With noise 0.2 every evaluation in a search multiplies all durations by fresh factors
from [0.8, 1.2]: placements are chosen by noisy values, and the figures show their SLR without noise. The same policies are used
with and without noise. Differs from the paper, which also trains under noise: a simulator knows the expected times. All
policies start from the same random placements; ``random`` draws a new placement at every step; ``same moves`` are GiPH's moves,
made by an untrained policy or drawn uniformly. HEFT's placement is run first in, first out (``heft``), or as planned. Further
seeds have other device networks, graphs and weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab, column
from benchmarks.papers.giph.compare import over_heft
from benchmarks.papers.giph.jobs import POINTS, Evaluation, Job, Policy, Setup, Training
from benchmarks.papers.giph.policies import SAME_MOVES, STEPS_PER_OP, UNTRAINED
from benchmarks.papers.giph.problems import heft_slr
from placeit.learning.workloads.datasets import DatasetKind

__all__ = ["NOISE", "curve_rows", "jobs", "policies", "tell"]

NOISE = 0.2
_KINDS: tuple[DatasetKind, ...] = ("single", "multi")
_TRAINED = ("giph", "giph-task-eft", "placeto")


def policies(data: DatasetKind) -> dict[str, Policy]:
    """Return the policies of the paper's figures, by name."""
    trained = {name: _training(name, data, 0) for name in _TRAINED}
    return trained | {name: name for name in (*UNTRAINED, *SAME_MOVES)}


def _training(policy: str, data: DatasetKind, number: int) -> Training:
    return Training(policy, data, number, "reinforce" if policy == "placeto" else "imitation")


def _of_seed(data: DatasetKind, number: int) -> dict[str, Policy]:
    """Return the policies that are trained and tested for each seed."""
    return {name: _training(name, data, number) for name in ("giph", "placeto")} | {"random-task-eft": "random-task-eft"}


def jobs(setup: Setup) -> Sequence[Job]:
    wanted: list[Job] = []
    for data in _KINDS:
        for noise in (0.0, NOISE):
            wanted += [Evaluation(policy, data, noise=noise) for policy in policies(data).values()]
        for number in range(1, setup.sizes.seeds):
            wanted += [Evaluation(policy, data, number) for policy in _of_seed(data, number).values()]
    return wanted


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    for data in _KINDS:
        for noise in (0.0, NOISE):
            found = {name: Evaluation(policy, data, noise=noise) for name, policy in policies(data).items()}
            curve_rows(lab, report, figures, "search", f"{data}, noise {noise:g}", found)
    ratios: dict[str, list[float]] = {"placeto": [], "random-task-eft": []}
    for data in _KINDS:
        for number in range(lab.setup.sizes.seeds):
            run, planned = (float(slr.mean()) for slr in heft_slr(lab.setup.dataset(data, number).test))
            final = {
                name: float(lab[Evaluation(policy, data, number)]["curve"][:, -1].mean())
                for name, policy in _of_seed(data, number).items()
            }
            seed = lab.setup.seed + number
            columns = {column(name): slr for name, slr in final.items()}
            over = {f"giph_{name}": ratio for name, ratio in over_heft(final["giph"], run, planned).items()}
            report.row(part="search", problems=data, seed=seed, **columns, heft=run, heft_planned=planned, **over)
            for how, slr in (("run first in, first out", run), ("as planned", planned)):
                report.claim(f"{data}, seed {seed}: SLR of GiPH over HEFT's, {how}", final["giph"] / slr, "", at_most=1.0)
            for name, ratio in ratios.items():
                ratio.append(final["giph"] / final[name])
    for name, ratio in ratios.items():
        report.claim(f"SLR of GiPH over {name}, worst of all seeds and both cases", max(ratio), "", at_most=1.0)


def curve_rows(
    lab: Lab, report: Report, figures: Figures, part: str, title: str, found: dict[str, Evaluation], *, log: str = ""
) -> None:
    """Add a row for each policy and one for HEFT, and draw the curves."""
    first = next(iter(found.values()))
    problems = lab.setup.dataset(first.data, first.number).test
    run, planned = (float(slr.mean()) for slr in heft_slr(problems))
    steps = np.linspace(0, STEPS_PER_OP, POINTS)
    curves = {}
    for name, evaluation in found.items():
        mean = lab[evaluation]["curve"].mean(axis=0)
        curves[name] = (steps, mean)
        at = {f"slr_at_{share:g}_V": mean[round(share / STEPS_PER_OP * (POINTS - 1))] for share in (0, 0.5, 1, 2)}
        report.row(part=part, problems=title, cases=len(problems), policy=name, **at, **over_heft(mean[-1], run, planned))
    for name, slr in (("heft", run), ("heft, planned", planned)):
        at = {f"slr_at_{share:g}_V": slr for share in (0, 0.5, 1, 2)}
        report.row(part=part, problems=title, cases=len(problems), policy=name, **at, **over_heft(slr, run, planned))
    levels = {"heft": run, "heft, planned": planned}
    file = f"{part}-{title}".replace(", noise 0.2", "-noise").replace(", noise 0", "").replace(" ", "-")
    figures.lines(part, file, title, ("search steps / |V|", "mean SLR of the best so far"), curves, levels=levels, log=log)
