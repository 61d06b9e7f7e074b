"""Figures of Ni et al. (2020), which stand beside ours."""

from __future__ import annotations

__all__ = ["ABOVE_9700", "LOWEST", "RATES", "TABLE_1"]

RATES = (1e4, 2e4)
"""Source tuples per second: a typical load, and the stress test."""

TABLE_1: dict[str, dict[float, tuple[float, float, float, float | None]]] = {
    "METIS, 5 parts": {1e4: (0.81, 0.70, 0.88, None), 2e4: (0.48, 0.37, 0.46, None)},
    "B": {1e4: (0.82, 0.73, 0.87, 0.51), 2e4: (0.45, 0.37, 0.44, 0.39)},
    "B+F1": {1e4: (0.87, 0.80, 0.91, 0.59), 2e4: (0.48, 0.40, 0.47, 0.47)},
    "B+F1+F2": {1e4: (0.91, 0.87, 0.97, 0.76), 2e4: (0.53, 0.43, 0.50, 0.65)},
}
"""Average, first quartile and median of the relative throughput, and the share of graphs on which it is above METIS'."""

LOWEST = {"fuser, 5 parts": 360.0, "METIS, 5 parts": 2220.0, "B": 2140.0, "B+F1+F2": 4468.0}
ABOVE_9700 = {"fuser, 5 parts": 0.16, "METIS, 5 parts": 0.30, "B": 0.27, "B+F1+F2": 0.5}
"""Fig. 5 (a), at 1e4: the least throughput in tuples per second, and the share of graphs above 9,700."""
