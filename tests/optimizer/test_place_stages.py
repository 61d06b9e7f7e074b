"""Several models in a row as one application graph: where each runs, and that every item gives its result."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from examples import read_text
from placeit.backends.base import Model
from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.devices.clusterfile import discover
from placeit.devices.host import allowed_cores
from placeit.optimizer import model_chain
from placeit.optimizer.model_chain import ModelStage, place_stages
from placeit.serving.server import Server
from placeit.session import Session
from placeit.simulator.load import poisson_arrivals
from placeit.simulator.throughput_bound import ThroughputCost
from tests.small_models import inception_like, random_model

CORES = [f"CPU@{core}" for core in allowed_cores()[:2]]
pytestmark = pytest.mark.two_cores


def stage(name: str, session: Session, count: int) -> ModelStage:
    """As many requests for each number of an item as is said; an item keeps the sum of all outputs."""

    def split(item: Any) -> list[Any]:
        return [session.model.random_inputs(seed) for seed in item[0] for _ in range(count)]

    def join(item: Any, outputs: Sequence[Any]) -> Any:
        return item[0], item[1] + sum(float(value.sum()) for one in outputs for value in one.values())

    return ModelStage(name, session, split, join)


@contextlib.contextmanager
def two_stages(slowdown: float) -> Iterator[list[ModelStage]]:
    """Open two stages on two devices, the second of which is slowed by a factor."""
    fast, slow = discover(CORES).devices
    cluster = Cluster((fast, replace(slow, slowdown=slowdown)))
    models: list[tuple[Model, int]] = [(inception_like(), 1), (random_model(0, 8), 2)]
    with contextlib.ExitStack() as stack:
        opened = [(stack.enter_context(Session(model, cluster, cache=None)), count) for model, count in models]
        yield [stage(f"stage {number}", session, count) for number, (session, count) in enumerate(opened)]


@pytest.mark.parametrize("slowdown", [1.0, 50.0])
def test_stages_are_where_they_serve_the_most_items_and_all_items_come_out(
    slowdown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = model_chain._seconds

    def seconds(server: Server, every: Sequence[Any]) -> float:
        """Return the seconds of the requests on two cores without other work."""
        assert run(server, every) > 0
        return len(every) * 1e-3 * (slowdown if server.plan.segments[0].device else 1.0)

    monkeypatch.setattr(model_chain, "_seconds", seconds)
    choose = random.Random(0)
    items = [([choose.randrange(4) for _ in range(choose.choice([0, 1, 3]))], 0.0) for _ in range(30)]
    with two_stages(slowdown) as stages:
        placed = place_stages(stages, [([0, 1], 0.0), ([2], 0.0)], rounds=2)
        assert placed.requests.tolist() == [1.5, 3.0]
        cost = ThroughputCost(placed.problem)
        best = min(float(cost(np.array(row, np.int32))[0]) for row in itertools.product(range(2), repeat=4))
        assert best <= 1 / placed.capacity <= best / 0.98 * (1 + 1e-9)
        assert placed.problem.compute[:2].sum(axis=0) == pytest.approx(1.5 * placed.seconds[0])
        assert placed.problem.edge_bytes.sum() == pytest.approx(
            3 * sum(value.nbytes for value in stages[1].session.model.sample_inputs().values())
        )
        for name, devices in placed.where.items():
            assert {one.device_names[int(one.devices[0])] for one in placed.placements[name].every} == set(devices)
        if slowdown > 1:
            assert placed.where["stage 0"] == (CORES[0],)
        expected = []
        for item in items:
            for one in stages:
                item = one.join(item, [one.session.reference(inputs) for inputs in one.split(item)])
            expected.append(item)
        with placed.open() as servers, ThreadPoolExecutor(5) as pool:
            found = list(pool.map(functools.partial(placed.run, servers), items, timeout=60))
        assert [one[0] for one in found] == [one[0] for one in items]
        assert [one[1] for one in found] == pytest.approx([one[1] for one in expected], rel=1e-3, abs=1e-3)
        count = sum(len(indices) for indices, _ in items)
        assert _succeeded(servers) == {"stage 0": count, "stage 1": 2 * count}


def _succeeded(servers: Mapping[str, Server]) -> dict[str, int]:
    return {name: server.stats().outcomes["succeeded"] for name, server in servers.items()}


def test_what_cannot_be_placed_is_said() -> None:
    with two_stages(1.0) as stages, Session(random_model(0, 8), CORES[:1], cache=None) as elsewhere:
        for wrong, items in (([], [([0], 0.0)]), (stages, [])):
            with pytest.raises(UsageError, match="one stage and one item"):
                place_stages(wrong, items)
        with pytest.raises(UsageError, match="'stage 0' and 'other' have different devices"):
            place_stages([stages[0], stage("other", elsewhere, 1)], [([0], 0.0)])
        with pytest.raises(UsageError, match="request of the stage 'stage 0'"):
            place_stages(stages, [([], 0.0)])


@pytest.mark.slow
def test_three_real_models_read_all_pictures_that_come_in_at_a_rate_once_each_and_in_order() -> None:
    pytest.importorskip("rapidocr_onnxruntime")
    pages = [read_text.texts_of(number % 12) for number in range(60)]  # which the models read well
    with read_text.open_reader(CORES) as placed:
        assert len(placed.problem) == 6
        with placed.open() as servers, ThreadPoolExecutor(8) as pool:
            begin, futures = time.perf_counter(), list[Future[list[str]]]()
            for number, due in enumerate(poisson_arrivals(20.0, len(pages), seed=0).tolist()):
                time.sleep(max(0.0, begin + due - time.perf_counter()))
                futures.append(pool.submit(placed.run, servers, read_text.draw_page(pages[number])))
            assert [future.result(60) for future in futures] == pages
    lines = sum(map(len, pages))
    assert _succeeded(servers) == {"detector": 60, "classifier": lines, "recogniser": lines}
