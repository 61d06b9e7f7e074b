"""A placement of one block, repeated (Appendix K): twelve feed-forward blocks in a row on four described GPUs, simulated.

Annealing gets the same number of evaluations for the whole graph and for one block that is repeated. DOPPLER learns to place
the block, valued by the time of the whole graph, in the same number of episodes as for the whole graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._harness import Report
from benchmarks.papers._lab import Job, Lab
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.jobs import Placed, Setup
from placeit.placers.repeated import repeated_blocks

__all__ = ["jobs", "tell"]

_CASE = Case("feed-forward", "stack")
_EVALUATIONS = 1000
_WHOLE = "the whole graph"


def _pairs(setup: Setup) -> dict[str, tuple[str, str]]:
    """Return placers of the whole graph, and of one block that is repeated."""
    updates = max(1, setup.sizes.few[0] // 16)
    return {
        "enumerative": ("enumerative", "repeated:placer=enumerative"),
        "critical-path": ("critical-path", "repeated:placer=critical-path"),
        "annealing": (f"annealing:evaluations={_EVALUATIONS}", f"repeated:placer=annealing:evaluations={_EVALUATIONS}"),
        "doppler": (f"doppler:updates={updates}", f"repeated:placer=doppler:updates={updates}"),
    }


def jobs(setup: Setup) -> Sequence[Job]:
    return [Placed(_CASE, placer) for pair in _pairs(setup).values() for placer in pair]


def tell(lab: Lab, report: Report) -> None:
    blocks = repeated_blocks(_CASE.problem)
    count = len(_CASE.problem)
    for name, placers in _pairs(lab.setup).items():
        for placed, placer in zip((_WHOLE, "one block, repeated"), placers, strict=True):
            found = lab[Placed(_CASE, placer)]
            report.row(
                part="repeated",
                placer=name,
                placed=placed,
                ops=count,
                ops_to_place=count if placed == _WHOLE else count - blocks[1:].size,
                blocks=len(blocks),
                simulated_ms=float(found["cost"]) * 1e3,
                seconds=float(found["seconds"]),
            )
