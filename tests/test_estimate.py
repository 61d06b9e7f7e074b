"""What a model takes, predicted from models that were profiled before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.errors import DeviceError, InfeasibleError, UsageError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.profiler.kernel_history import History, history_key
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.small_models import convolution

ops = ov.opset13
ONE = f"CPU@{allowed_cores()[0]}"
CORES = ",".join(f"CPU@{core}" for core in allowed_cores()[:2])


def _model(channels: int) -> OpenVinoModel:
    """Two branches of convolutions, added."""
    rng = np.random.default_rng(0)
    image = ops.parameter([1, 3, 32, 32], ov.Type.f32, name="image")
    stem = convolution(image.output(0), channels, 3, rng)
    left, right = (convolution(convolution(stem, channels, 3, rng), channels, size, rng) for size in (3, 1))
    name = f"channels{channels}"
    return describe(ov.Model([ops.result(ops.add(left, right))], [image], name), Path(f"{name}.xml"))


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """A cache beside which models of 8 and 24 channels are in the history of the cores."""
    cache = Cache(tmp_path_factory.mktemp("cache"))
    for channels in (8, 24):
        with Session(_model(channels), CORES, cache=cache) as session:
            session.profile()
    return cache


def test_a_model_is_estimated_from_others_without_being_run(profiled: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(*_: object) -> None:
        raise AssertionError("the model is run")

    with Session(_model(16), CORES, cache=profiled) as session:
        monkeypatch.setattr("placeit.profiler.costs.profile", runs)
        monkeypatch.setattr("placeit.runtime.plan_executor.PlanExecutor.time", runs)
        found = session.estimate()
        assert [answer.name for answer in found.devices] == list(session.cluster.names)
        assert {error.models for error in found.errors.values() if error is not None} == {2}
        assert set(found.errors) == set(session.cluster.names)
        for answer in found.devices:
            assert answer.seconds is not None
            assert answer.seconds > 0
            assert answer.memory.keys() == {answer.name}
            assert answer.memory[answer.name] >= session.model.graph.param_bytes.sum()
        assert found.best.seconds == min(
            answer.seconds for answer in (*found.devices, found.split) if answer is not None and answer.seconds is not None
        )
        data = found.to_dict()
    assert data["best"] == found.best.name
    assert [row["predicted_s"] for row in data["devices"]] == [answer.seconds for answer in found.devices]


def test_what_was_profiled_is_estimated_as_it_was(profiled: Cache) -> None:
    with Session(_model(24), ONE, cache=profiled) as session:
        [one] = [m for m in History(profiled.folder).of(history_key(session.cluster.devices[0], "f32")) if "24" in m.name]
        [answer] = session.estimate().devices
        assert answer.seconds is not None
        # one other model of the same kinds of ops is in the history, so an op that was seen counts as itself
        assert answer.seconds - one.overheads.dispatch == pytest.approx(one.seconds, rel=0.5)


@pytest.mark.two_cores
def test_a_placement_of_the_split_can_be_run(profiled: Cache) -> None:
    with Session(_model(16), CORES, cache=profiled) as session:
        split = session.estimate().split
        if split is not None:
            assert split.placement is not None
            assert session.run(split.placement, runs=1).output_error.fault is None
        singles = [one.seconds for one in session.estimate().devices if one.seconds is not None]
        assert session.estimate().best.seconds <= min(singles)


def test_a_device_on_which_nothing_was_profiled_is_named(tmp_path: Path) -> None:
    with (
        Session(_model(8), ONE, cache=Cache(tmp_path)) as session,
        pytest.raises(DeviceError, match=rf"on {ONE}.*placeit profile"),
    ):
        session.estimate()


def test_another_precision_is_not_known_from_f32(profiled: Cache) -> None:
    with (
        Session(_model(8), ONE, precision="bf16", cache=profiled) as session,
        pytest.raises(DeviceError, match=r"was profiled on .* in bf16"),
    ):
        session.estimate()


def test_an_estimate_needs_a_cache() -> None:
    with Session(_model(8), ONE, cache=None) as session, pytest.raises(UsageError, match="estimated from the cost cache"):
        session.estimate()


def test_a_model_that_fits_nowhere_is_infeasible(profiled: Cache) -> None:
    limits = Constraints(memory={ONE: 10.0})
    with Session(_model(8), discover([ONE]), constraints=limits, cache=profiled) as session, pytest.raises(InfeasibleError):
        session.estimate()
