"""A formula gives the share of late requests that a simulation finds."""

from __future__ import annotations

import numpy as np
import pytest

from placeit.simulator.waiting import late_share, most_busy


def refused(busy: float, wait: float, services: np.ndarray, seed: int = 0) -> float:
    """Simulate one server in the order of arrival, which refuses what would wait longer than ``wait`` mean remaining times."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(services.mean() / busy, len(services))
    longest = wait * (services**2).mean() / (2 * services.mean())
    work, count = 0.0, 0
    for gap, service in zip(gaps, services, strict=True):
        work = max(0.0, work - gap)
        if work > longest:
            count += 1
        else:
            work += service
    return count / len(services)


@pytest.mark.parametrize("busy", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("wait", [0.0, 2.0, 6.0])
def test_the_share_of_late_requests_is_that_of_a_simulation_with_exponential_times(busy: float, wait: float) -> None:
    services = np.random.default_rng(1).exponential(1.0, 40_000)
    assert float(late_share(busy, wait)) == pytest.approx(refused(busy, wait, services), abs=0.01)


@pytest.mark.parametrize(("busy", "wait"), [(0.5, 4.0), (0.8, 8.0), (0.9, 20.0), (1.3, 10.0)])
@pytest.mark.parametrize("services", [[1.0], [0.2, 0.2, 0.2, 2.0]])
def test_it_is_near_a_simulation_with_other_times(busy: float, wait: float, services: list[float]) -> None:
    drawn = np.random.default_rng(1).choice(services, 40_000)
    assert float(late_share(busy, wait)) == pytest.approx(refused(busy, wait, drawn), abs=0.03)


def test_what_is_late_without_waiting_is_late_and_without_a_limit_only_what_there_is_no_time_for() -> None:
    assert late_share([0.0, 0.5, 2.0], [-0.1, -1.0, -np.inf]).tolist() == [1.0, 1.0, 1.0]
    assert late_share([0.0, 0.9, 2.0, 4.0], np.inf) == pytest.approx([0.0, 0.0, 0.5, 0.75])


@pytest.mark.parametrize("late", [0.5, 0.01, 0.0005])
def test_the_largest_load_is_the_one_with_that_share_of_late_requests(late: float) -> None:
    waits = np.array([0.1, 1.0, 5.0, 100.0])
    busy = most_busy(waits, late)
    assert late_share(busy, waits) == pytest.approx(np.minimum(late, late_share(1.0, waits)), rel=0.05)
    assert (np.diff(busy) >= 0).all()
    assert most_busy(-1.0, late) == 0.0
