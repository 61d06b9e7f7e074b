"""A profile cuts a few groups off, and predicts from these what cutting off the others costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.devices import kinds
from placeit.planning.coarsen import Grouping
from placeit.planning.profiled import Profiled
from placeit.planning.segments import Costs, Segment
from placeit.profiler.costs import profile
from placeit.profiler.sampling import border_distances, choose, predict
from placeit.runtime.compiling import Compiling
from placeit.runtime.runtime import Runtime
from tests.known_devices import Truth, truth
from tests.small_models import inception_like, random_model

FREE = {"Parameter", "Result"}
MODEL = inception_like()


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(kinds.KINDS, "known", "tests.known_devices:KIND")
    yield
    truth.clear()


class SlowCompiling(Compiling):
    """Reports a given number of seconds for compiling an op for a device."""

    def __init__(self, slow: dict[str, float]) -> None:
        super().__init__()
        self.slow = slow

    def expected_s(self, kind: str, ops: int, *, on_disk: bool = False) -> float:
        return self.slow.get(kind, 0.0) * ops


def profiled(
    model: OpenVinoModel, devices: int, *, slow: dict[str, float] | None = None, budget: float = 1e4
) -> tuple[Costs, Profiled, list[int], set[Segment]]:
    cluster = Cluster(tuple(Device(f"d{d}", "known", Address(f"d{d}")) for d in range(devices)))
    grouping = Grouping.singletons(model.graph)
    compiled = set[Segment]()
    with Runtime(model, grouping, cluster, compiling=SlowCompiling(slow or {})) as runtime:
        compile_all = runtime.compiler.compile

        def remember(segments: Sequence[Segment], *, alone: bool = False) -> list:
            compiled.update(segments)
            return compile_all(segments, alone=alone)

        runtime.compiler.compile = remember  # type: ignore[method-assign]
        found = profile(model, grouping, cluster, runtime, budget_s=budget)
    assert found.profiled is not None
    return found, found.profiled, [g for g, kind in enumerate(grouping.groups.kinds) if kind not in FREE], compiled


def computing(model: OpenVinoModel) -> list[str]:
    return [name for name, kind in zip(model.graph.names, model.graph.kinds, strict=True) if kind not in FREE]


def by_bytes(model: OpenVinoModel, rate: float) -> dict[str, tuple[float, ...]]:
    """Cut costs of each op on three devices, in proportion to the bytes that it reads and writes."""
    grouping = Grouping.singletons(model.graph)
    _, sizes = border_distances(grouping, model.channels_last)
    return {name: tuple(rate * size * k for k in (1, 2, 3)) for name, size in zip(model.graph.names, sizes, strict=True)}


def test_cut_costs_in_proportion_to_the_bytes_at_the_border_are_predicted_exactly() -> None:
    rng, names = np.random.default_rng(1), computing(MODEL)
    core = dict(zip(names, map(tuple, rng.uniform(1e-3, 2e-3, (len(names), 3))), strict=True))
    truth.append(Truth(core, by_bytes(MODEL, 1e-9)))
    found, how, groups, _ = profiled(MODEL, 3)
    assert 0 < how.cut < how.groups == len(groups)
    assert how.error == pytest.approx(0.0, abs=1e-9)
    for g in groups:
        name = MODEL.graph.names[g]
        np.testing.assert_allclose(found.core[g], truth[0].core[name], rtol=1e-6, err_msg=f"core of {name}")
        np.testing.assert_allclose(found.cut[g], truth[0].cut[name], rtol=1e-5, err_msg=f"cut of {name}")


def test_cut_costs_that_nothing_explains_are_told_by_the_error_of_predictions() -> None:
    rng, names = np.random.default_rng(1), computing(MODEL)
    core = dict.fromkeys(names, (1e-3,))
    truth.append(Truth(core, {name: (float(rng.uniform(0, 1e-3)),) for name in names}))
    _, how, _, _ = profiled(MODEL, 1)
    assert how.error is not None
    assert how.error > 0.1


def test_a_device_that_lacks_an_op_gets_the_times_of_segments_between_cut_groups() -> None:
    names = computing(MODEL)
    core = {name: (1e-3 * (i + 1), 3e-3 * (i + 1)) for i, name in enumerate(names)}
    truth.append(Truth(core, dict.fromkeys(names, (0.0, 0.0)), lacking={1: {names[len(names) // 2]}}))
    found, how, groups, _ = profiled(MODEL, 2)
    assert how.cut < how.groups
    for g in groups:
        name = MODEL.graph.names[g]
        there = np.inf if name in truth[0].lacking[1] else core[name][1]
        np.testing.assert_allclose(found.core[g], [core[name][0], there], rtol=1e-6, err_msg=f"core of {name}")


def test_a_device_that_compiles_slowly_compiles_the_whole_model_and_a_few_single_groups() -> None:
    names = computing(MODEL)
    truth.append(Truth(dict.fromkeys(names, (1e-3, 2e-3)), by_bytes(MODEL, 1e-9)))
    found, how, groups, compiled = profiled(
        MODEL, 2, slow={Compiling.kind(Device("d1", "known", Address("d1"))): 100.0}, budget=300.0
    )
    of_slow = sorted(len(segment.groups) for segment in compiled if segment.device == 1 and not segment.passthrough)
    assert of_slow[-1] == len(MODEL.graph), "the whole model"
    assert of_slow[:-1] == [1] * how.cut
    assert how.cut <= 2
    np.testing.assert_allclose(found.core[groups], [[1e-3, 2e-3]] * len(groups), rtol=1e-6)
    for g in groups:
        np.testing.assert_allclose(found.cut[g], truth[0].cut[MODEL.graph.names[g]][:2], rtol=1e-5)


def test_equal_parts_of_a_chain_are_compiled_once() -> None:
    model = MODEL.chain(16, 12)
    cluster = Cluster((Device("CPU", address=Address("CPU")),))
    grouping = Grouping.singletons(model.graph)
    with Runtime(model, grouping, cluster) as runtime:
        segments = [Segment(0, (g,), (), (), passthrough=False) for g in range(1, 13)]
        assert len({runtime.compiler._key(segment) for segment in segments}) == 1
        assert len({runtime.compiler._key(Segment(0, tuple(range(1, n)), (), (), passthrough=False)) for n in (3, 4)}) == 2


@pytest.mark.parametrize("model", [MODEL, random_model(3, 9)], ids=["inception-like", "random"])
def test_groups_are_most_like_themselves_and_equally_like_each_other(model: OpenVinoModel) -> None:
    distance, sizes = border_distances(Grouping.singletons(model.graph), model.channels_last)
    assert (np.diag(distance) == 0).all()
    assert (distance + np.eye(len(distance)) > 0).all()
    np.testing.assert_array_equal(distance, distance.T)
    assert (sizes > 0).all()


@given(st.integers(1, 30), st.integers(1, 3), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_chosen_groups_and_the_runs_between_them_are_as_few_as_asked(count: int, gap: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = rng.uniform(0, 3, count)
    distance, weight = np.abs(places[:, None] - places), rng.uniform(0.1, 1, count)
    chosen = choose(distance, weight, max_programs=most, gap=gap)
    runs = sum(now and not before for before, now in pairwise([False, *(~chosen).tolist()]))
    assert chosen.any()
    assert chosen.sum() == 1 or chosen.sum() + gap * runs <= most
    if most >= count * (1 + gap):
        assert chosen.all(), "there was room for every group"


@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_a_prediction_keeps_what_is_known_and_lies_between_the_known_costs_per_byte(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = rng.uniform(0, 3, count)
    distance, sizes, cut = np.abs(places[:, None] - places), rng.uniform(1, 1e6, count), rng.uniform(0, 1e-3, count)
    known = rng.random(count) < 0.5
    known[0] = True
    found = predict(cut, known, distance, sizes)
    np.testing.assert_array_equal(found[known], cut[known])
    rates = cut[known] / sizes[known]
    assert (found / sizes >= rates.min() * (1 - 1e-9)).all()
    assert (found / sizes <= rates.max() * (1 + 1e-9)).all()
