from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from placeit.backends.openvino.model import describe
from placeit.core.cluster import Cluster, Device, Link
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter


def _costs(groups: int, scale: float) -> Costs:
    names = ("a", "b")
    links = {(x, y): Link(1e6, 1e-3, "described") for x in names for y in names if x != y}
    cluster = Cluster(tuple(Device(name, kind="described") for name in names), links)
    core = scale * np.linspace(1e-3, 2e-3, groups * 2).reshape(groups, 2)
    return Costs(core, np.full((groups, 2), scale * 1e-4), np.full(2, 1e-4), cluster)


@pytest.fixture(scope="module")
def grouping() -> Grouping:
    parameter = ov.opset13.parameter([1, 64], ov.Type.f32, "in")
    values = [parameter.output(0)] * 2
    for _ in range(6):  # two chains that meet at the end
        values = [ov.opset13.tanh(value).output(0) for value in values]
    end = ov.opset13.result(ov.opset13.add(*values).output(0))
    return Grouping.singletons(describe(ov.Model([end], [parameter], "two"), Path("two")).graph)


def test_a_plan_priced_by_the_segmenter_that_made_it_is_the_same_plan(grouping):
    segmenter = Segmenter(grouping, _costs(len(grouping.groups), 1.0))
    plan = segmenter.plan(np.arange(len(grouping.groups)) % 2)
    again = segmenter.priced(plan)
    assert again.segments == plan.segments
    assert again.schedule.makespan == plan.schedule.makespan


def test_a_plan_priced_at_other_costs_keeps_its_segments(grouping):
    groups = len(grouping.groups)
    plan = Segmenter(grouping, _costs(groups, 1.0)).plan(np.arange(groups) // 4 % 2)
    dear = Segmenter(grouping, _costs(groups, 50.0)).priced(plan)
    assert sorted(dear.segments, key=lambda s: s.groups) == sorted(plan.segments, key=lambda s: s.groups)
    assert dear.schedule.makespan > 20 * plan.schedule.makespan
