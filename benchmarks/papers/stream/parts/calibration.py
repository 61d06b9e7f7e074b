"""The size of a payload, and the time of communication: models of both, compared with METIS' figures in the paper.

The paper states neither. Each model gives the seconds for which a tuple keeps the busiest resource busy; METIS divides the
graphs into 5 parts; and the size of a payload (or the overhead) is chosen, for each model, so that the average, the first
quartile and the median at 1e4 and 2e4 tuples per second come closest to the paper's. ``payload of 1`` is that size, as a share
of a link of 1000 Mbit/s (for overheads, of a device's time) at 1e4 tuples per second; ``off by`` is the greatest difference of
the six figures. ``table 3`` tells whether the model ranks the allocations of the paper's Table 3, which differ in the direction
of their traffic, as the paper does. METIS divides by its k-way scheme, as in the other parts, or by recursive bisection, the
default of its binding to Python for this number of parts.

placeit uses the first model with a payload of 1 of 100 kB, which would keep a link busy for 8 times the available time. Of the
models that rank Table 3 as the paper does, it is the simplest: a link each way between any two devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Job, Lab, Outcome
from benchmarks.papers.stream.jobs import Setup
from benchmarks.papers.stream.paper import RATES, TABLE_1
from placeit.bench.streams import DEVICES, PAYLOAD_BYTES, RATE, StreamGraph
from placeit.placers.metis import Metis, partition
from placeit.simulator.throughput_bound import ThroughputCost, relative_throughput

__all__ = ["MODELS", "jobs", "tell"]

Figure: TypeAlias = NDArray[np.float64]
Model: TypeAlias = Callable[[Figure, Figure, Figure, float], Figure]
"""Seconds of the busiest resource, at a rate of 1 and per payload of 1: ``model(load[G, D], sent[G, D, D], tuples, size)``."""

_LINK_BYTES = 1000e6 / 8 / RATE
"""Bytes of a payload that fills a link at the usual rate."""

_SIZES = np.concatenate([np.arange(0.02, 2, 0.02), np.arange(2, 12.01, 0.1)])


def _ends(sent: Figure) -> Figure:
    return sent.sum(axis=1) + sent.sum(axis=2)


def _beside(load: Figure, links: Figure) -> Figure:
    return np.maximum(load.max(axis=1), links.reshape(len(load), -1).max(axis=1))


MODELS: dict[str, Model] = {
    "a link each way between two devices": lambda load, sent, _, size: _beside(load, size * sent),
    "a link between two devices": lambda load, sent, _, size: _beside(load, size * (sent + sent.swapaxes(1, 2))),
    "a link out of and one into each device": lambda load, sent, _, size: _beside(
        load, size * np.stack([sent.sum(axis=1), sent.sum(axis=2)])[:, :, None].swapaxes(0, 1)
    ),
    "a link of each device": lambda load, sent, _, size: _beside(load, size * _ends(sent)),
    "one link for all": lambda load, sent, _, size: _beside(load, size * sent.sum(axis=(1, 2))),
    "overhead per byte, both ends": lambda load, sent, _, size: (load + size * _ends(sent)).max(axis=1),
    "overhead per byte, sender": lambda load, sent, _, size: (load + size * sent.sum(axis=2)).max(axis=1),
    "overhead per tuple, both ends": lambda load, _, tuples, size: (load + size * _ends(tuples)).max(axis=1),
}


def _figures(graph: StreamGraph, placement: NDArray[np.int32]) -> tuple[Figure, Figure, Figure]:
    """Return the load of each device, the payload sent between devices, and the number of tuples."""
    source, target = placement[graph.edges].T
    away = source != target
    pair, shape = (source * DEVICES + target)[away], (DEVICES, DEVICES)
    load = np.bincount(placement, graph.load, DEVICES)
    sent = np.bincount(pair, (graph.bytes / PAYLOAD_BYTES)[away], DEVICES**2).reshape(shape)
    return load, sent, np.bincount(pair, graph.flow[away], DEVICES**2).reshape(shape)


def _ranks_table_3(model: Model) -> bool:
    """Return whether a model ranks branches on separate devices best, and traffic in both directions above traffic in one."""
    edges = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [3, 5], [4, 5]], np.int32)
    work, payload = np.array([1.0, *[2.5e5] * 4, 1.0]), np.array([0.0, 1, 1, 0, 0, 0])
    graph = StreamGraph(work, payload, edges, np.array([0.5, 0.5, 1, 1, 1, 1]))
    placements = ([2, 0, 1, 0, 1, 3], [2, 0, 1, 1, 0, 3], [2, 0, 0, 1, 1, 3])
    parts = [_figures(graph, np.array(placement, np.int32)) for placement in placements]
    best, both_ways, one_way = model(*(np.stack(one) for one in zip(*parts, strict=True)), 4.0)
    return bool(best < both_ways * 0.9 and both_ways < one_way * 0.9)


@dataclass(frozen=True)
class Divided(Job):
    """Divides the graphs into 5 parts by METIS; the outcome holds :func:`_figures` of all graphs."""

    recursive: bool

    @property
    def name(self) -> str:
        return "calibration-recursive" if self.recursive else "calibration"

    def run(self, setup: Setup) -> Outcome:
        found = []
        for graph in setup.graphs[: setup.sizes.calibration]:
            problem = graph.problem()
            if self.recursive:
                placement = Metis(ways=1).place(problem, ThroughputCost(problem), seed=0, evaluations=None)
            else:
                placement = partition(problem, DEVICES)
            found.append(_figures(graph, placement))
        load, sent, tuples = (np.stack(one) for one in zip(*found, strict=True))
        return {"load": load, "sent": sent, "tuples": tuples}


def jobs(setup: Setup) -> Sequence[Divided]:  # noqa: ARG001
    return [Divided(recursive=False), Divided(recursive=True)]


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    paper = np.array([TABLE_1["METIS, 5 parts"][rate][:3] for rate in RATES]).ravel()
    off: dict[str, Figure] = {}
    for job in jobs(lab.setup):
        load, sent, tuples = (lab[job][name] for name in ("load", "sent", "tuples"))
        for name, model in MODELS.items():
            found = np.array([_summary(model(load, sent, tuples, size)) for size in _SIZES.tolist()])
            away = np.abs(found - paper).max(axis=1)
            at = int(away.argmin())
            report.row(
                part="calibration",
                **_row("recursive" if job.recursive else "k-way", name, float(_SIZES[at]), found[at], paper),
                table_3=_ranks_table_3(model),
            )
            if not job.recursive:
                off[name] = away
    first = next(iter(MODELS))
    frozen = PAYLOAD_BYTES / _LINK_BYTES
    load, sent, tuples = (lab[jobs(lab.setup)[0]][name] for name in ("load", "sent", "tuples"))
    found = _summary(MODELS[first](load, sent, tuples, frozen))
    report.row(part="calibration", **_row("k-way, frozen", first, frozen, found, paper), table_3=_ranks_table_3(MODELS[first]))
    report.claim(
        "METIS with 5 parts: greatest difference from the paper's figures", np.abs(found - paper).max(), "", at_most=0.03
    )
    axes = ("payload of 1, shares of a link at 1e4 tuples/s", "greatest difference from the paper")
    figures.lines("calibration", "calibration", "", axes, {name: (_SIZES, away) for name, away in off.items()}, log="x")


def _summary(seconds: Figure) -> Figure:
    """Return average, first quartile and median of the relative throughput at both rates, from seconds per tuple."""
    shares = [relative_throughput(seconds / RATE, rate) for rate in RATES]
    return np.array([figure for share in shares for figure in (share.mean(), *np.quantile(share, [0.25, 0.5]))])


def _row(scheme: str, model: str, size: float, found: Figure, paper: Figure) -> dict[str, float | str]:
    names = [f"{figure}_{rate:.0e}".replace("+0", "") for rate in RATES for figure in ("average", "quartile", "median")]
    figures = dict(zip(names, found.tolist(), strict=True))
    return {"metis": scheme, "model": model, "payload_of_1": size, **figures, "off_by": float(np.abs(found - paper).max())}
