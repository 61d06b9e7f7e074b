"""Latencies in turns are summed up to percentiles."""

from __future__ import annotations

import numpy as np
import pytest

from placeit.serving.latency import LatencyLimit, OperatingPoint


@pytest.mark.parametrize("requests", [20, 100])
def test_the_95th_percentile_of_turns_with_few_requests_is_not_too_low(requests: int) -> None:
    turns = [(latencies, True) for latencies in np.random.default_rng(0).exponential(size=(4000, requests))]
    assert OperatingPoint.of(1.0, turns, LatencyLimit(95, 9.0)).p95 == pytest.approx(-np.log(0.05), rel=0.06)
