"""The paper's own training: REINFORCE alone, with one graph in each update, beside the policy that ships with placeit.

``docs/streams.md`` has the command that trains the policy, which takes hours. Write its weights to ``own.safetensors`` in the
folder that ``--work`` names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.stream.jobs import OWN, Divided, Learned, Setup
from benchmarks.papers.stream.paper import RATES
from placeit.simulator.throughput_bound import relative_throughput

__all__ = ["jobs", "tell"]

_POLICIES = (OWN, "shipped")


def jobs(setup: Setup) -> Sequence[Job]:  # noqa: ARG001
    return [Divided("metis"), *map(Learned, _POLICIES)]


def tell(lab: Lab, report: Report, figures: Figures) -> None:  # noqa: ARG001
    for rate in RATES:
        metis = relative_throughput(lab[Divided("metis")]["cost"][-1], rate)
        for policy in _POLICIES:
            for which, cost in zip(("likeliest", "best of that and samples"), lab[Learned(policy)]["cost"], strict=True):
                found = relative_throughput(cost, rate)
                report.row(
                    part="own",
                    rate=rate,
                    policy=policy,
                    placement=which,
                    graphs=len(found),
                    average=found.mean(),
                    first_quartile=np.quantile(found, 0.25),
                    median=np.median(found),
                    over_metis=found.mean() / metis.mean(),
                )
