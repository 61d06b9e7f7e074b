"""Costs of devices that are not there yet."""

from __future__ import annotations

import numpy as np

from placeit.core.cluster import Cluster, Device, Link
from placeit.planning.segments import Costs
from placeit.profiler.expected_costs import as_expected


def test_an_expected_device_costs_what_the_one_does_that_it_is_like() -> None:
    there = Cluster((Device("a"), Device("b")), {("a", "b"): Link(1e9, 1e-3), ("b", "a"): Link(2e9, 3e-3)})
    core = np.array([[1.0, 2.0], [3.0, np.inf]])
    costs = Costs(core, np.zeros_like(core), np.array([0.1, 0.2]), there)
    found = as_expected(costs, Cluster((*there.devices, Device("c"), Device("d"))), {"c": "b", "d": "b"})
    np.testing.assert_array_equal(found.core, core[:, [0, 1, 1, 1]])
    assert (found.cut.shape, found.load.shape, found.read.shape) == ((2, 4), (2, 4), (4,))
    assert found.dispatch.tolist() == [0.1, 0.2, 0.2, 0.2]
    links = found.cluster.links
    assert links["a", "c"] == links["a", "d"] == links["a", "b"] == Link(1e9, 1e-3)
    assert links["c", "a"] == links["b", "a"] == Link(2e9, 3e-3)
    assert links["b", "c"] == links["c", "b"] == links["c", "d"] == Link(1e9, 3e-3)
    assert not found.cluster.missing_links()
