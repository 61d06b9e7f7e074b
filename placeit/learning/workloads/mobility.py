"""A traffic simulation on a grid of streets, in place of the simulator that GiPH uses (section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sighting", "grid_points", "traffic"]

_TURNS = (0.5, 0.25, 0.25)  # probabilities: straight on, left, right
_RED, _MAX_RED_S = 0.5, 30.0  # probability of a red light; maximum seconds of waiting there
_QUEUE_M = (5.0, 50.0)  # distance from the intersection at which a vehicle waits
_SPEEDS = (8.0, 14.0)  # metres per second


@dataclass(frozen=True)
class Sighting:
    """A vehicle at a moment.

    Attributes:
        time_s: seconds since the start.
        vehicle: number of the vehicle.
        x: metres east of the south-western intersection.
        y: metres north of it.
    """

    time_s: float
    vehicle: int
    x: float
    y: float


def grid_points(side: int, block_m: float) -> NDArray[np.float64]:
    """Return the positions of the intersections, ``float64[side * side, 2]``, in metres, row by row from the south-west."""
    y, x = np.divmod(np.arange(side * side), side)
    return np.stack([x, y], axis=1) * np.float64(block_m)


def traffic(
    rng: np.random.Generator,
    *,
    side: int,
    block_m: float,
    vehicles: int,
    duration_s: float = 3600.0,
    interval_s: float = 10.0,
) -> list[Sighting]:
    """Simulate vehicles on a square grid of streets, and record their positions at regular intervals.

    A vehicle enters at a time drawn uniformly, at an intersection on the border, heading inwards. Its speed is drawn from 8 to
    14 m/s (29 to 50 km/h). At an intersection it goes straight on (probability 1/2), left or right (1/4 each), until it leaves
    the grid. With probability 1/2 it first waits for up to 30 s at a red light, 5 to 50 m before the intersection.

    Args:
        rng: random generator.
        side: number of intersections in a row, and of rows; at least 2.
        block_m: metres from one intersection to the next.
        vehicles: number of vehicles that enter.
        duration_s: seconds of the simulation.
        interval_s: seconds between two recorded positions.

    Returns:
        Sightings, by time, then by vehicle.
    """
    moments = np.arange(0.0, duration_s, interval_s)
    sightings: list[Sighting] = []
    for vehicle in range(vehicles):
        times, points = _drive(rng, side, block_m)
        times += rng.uniform(0, duration_s)
        seen = moments[(moments >= times[0]) & (moments <= times[-1])]
        x = block_m * np.interp(seen, times, points[:, 0])
        y = block_m * np.interp(seen, times, points[:, 1])
        sightings += [Sighting(*at) for at in zip(seen.tolist(), [vehicle] * len(seen), x.tolist(), y.tolist(), strict=True)]
    return sorted(sightings, key=lambda sighting: (sighting.time_s, sighting.vehicle))


def _drive(rng: np.random.Generator, side: int, block_m: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the path of one vehicle: seconds since it entered ``float64[N]``, and points in blocks ``float64[N, 2]``."""
    per_block = block_m / rng.uniform(*_SPEEDS)
    along, turns = int(rng.integers(side)), int(rng.integers(4))
    at, heading = np.array([along, 0]), np.array([0, 1])
    for _ in range(turns):  # turn the path by quarters, from the southern border to a random one
        at, heading = np.array([side - 1 - at[1], at[0]]), np.array([-heading[1], heading[0]])
    times, points = [0.0], [at]
    while True:
        at = at + heading
        if at.min() < 0 or at.max() >= side:
            return np.array(times), np.array(points, np.float64)
        distance = 1.0  # to the intersection, in blocks
        if rng.random() < _RED:
            queue = min(0.5, rng.uniform(*_QUEUE_M) / block_m)
            times.append(times[-1] + (distance - queue) * per_block)
            times.append(times[-1] + rng.uniform(0, _MAX_RED_S))
            points += [at - queue * heading] * 2
            distance = queue
        times.append(times[-1] + distance * per_block)
        points.append(at)
        left = np.array([-heading[1], heading[0]])
        heading = (heading, left, -left)[int(rng.choice(3, p=_TURNS))]
