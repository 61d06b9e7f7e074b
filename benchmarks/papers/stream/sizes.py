"""The amount of work."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """Numbers of graphs, updates, samples and evaluations.

    Attributes:
        tests: test graphs; None for all.
        calibration: graphs for the calibration of communication; None for all.
        updates: updates of the trainings of the ablations.
        train: graphs to train on, at most.
        samples: placements drawn from a policy, beside its likeliest one.
        evaluations: evaluations of simulated annealing, in each of four searches.
        exact: graphs whose optimum is found.
        operators: most operators of these graphs.
    """

    tests: int | None = None
    calibration: int | None = None
    updates: int = 4000
    train: int | None = None
    samples: int = 16
    evaluations: int = 25_000
    exact: int = 200
    operators: int = 16


FULL = Sizes()

QUICK = Sizes(tests=60, calibration=200, updates=60, train=64, samples=8, evaluations=2500, exact=10, operators=10)
