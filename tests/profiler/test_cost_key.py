"""Measured costs are found again for the same thing on the same devices, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import openvino
import pytest
from onnx import TensorProto, helper

import placeit
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core import memory
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.profiler import cache as cache_file
from placeit.profiler import links
from placeit.profiler.cache import Cache
from placeit.profiler.costs import profile
from placeit.runtime.drivers import drive
from placeit.runtime.runtime import Runtime
from tests.small_models import inception_like, random_model

FIRST = allowed_cores()[0]


class _Asked(Exception):  # noqa: N818 (it is an answer)
    pass


class _Cache(Cache):
    """Tells in an exception where it would look for the costs of groups."""

    def find(self, key: Mapping[str, Any], valid: Callable[[Any], bool] = lambda _: True) -> Any:
        assert callable(valid)
        raise _Asked(self._path(key).name)


def entry(model: OpenVinoModel, cluster: Cluster, *, max_groups: int = 96, precision: str = "f32") -> str:
    """Where the costs of a model on a cluster are looked for."""
    names = cluster.names
    cluster = replace(cluster, links={(a, b): Link(1e9, 0.0) for a in names for b in names if a != b})
    cluster = drive(cluster, model)
    model = model.prepared(cluster)
    grouping = coarsen(model.graph, max_groups=max_groups, keep_together=model.together)
    with Runtime(model, grouping, cluster, precision=precision) as runtime, pytest.raises(_Asked) as asked:
        profile(model, grouping, cluster, runtime, cache=_Cache(Path("nowhere")))
    return str(asked.value)


def two(**changes: Any) -> Cluster:
    second = Device("b", address=Address("CPU", (FIRST,)), full_name="some CPU", driver="OpenVINO 1")
    return Cluster((replace(second, name="a"), replace(second, **changes)))


@pytest.mark.parametrize(
    "change",
    [
        {"address": Address("CPU"), "all_cores": allowed_cores()},
        {"driver": "OpenVINO 2"},
        {"full_name": "another CPU"},
        {"slowdown": 2.0},
    ],
)
def test_another_device_beside_the_first_is_another_entry(change: dict[str, Any]) -> None:
    if len(change.get("all_cores", (0, 0))) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    assert entry(inception_like(), two(**change)) != entry(inception_like(), two())


def test_names_of_devices_and_loading_again_are_the_same_entry() -> None:
    inception_like.cache_clear()
    assert entry(inception_like(), two(name="c")) == entry(inception_like(), two())


def test_another_model_grouping_or_precision_is_another_entry() -> None:
    found = {
        entry(inception_like(), two()),
        entry(inception_like(), two(), max_groups=4),
        entry(inception_like(), two(), precision="bf16"),
        entry(inception_like(), Cluster(two().devices[:1])),
        entry(random_model(0, 9), two()),
        entry(random_model(1, 9), two()),
    }
    assert len(found) == 6


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (openvino, "get_version", lambda: "another version"),
        (links, "cpu_name", lambda: "another machine"),
        (cache_file, "__version__", "another version"),
    ],
    ids=["OpenVINO", "CPU", "placeit"],
)
def test_other_versions_and_another_machine_are_another_entry(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, value: object
) -> None:
    before = entry(inception_like(), two())
    monkeypatch.setattr(where, name, value)
    assert entry(inception_like(), two()) != before


def test_costs_with_freed_memory_kept_and_given_back_are_two_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    before = entry(inception_like(), two())
    monkeypatch.setattr(memory, "_contexts", [] if memory.freed_memory_is_kept() else [True])
    assert entry(inception_like(), two()) != before


@pytest.mark.two_cores
def test_a_core_beside_one_of_the_same_runtime_and_of_another_are_two_entries(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("MaxPool", ["h"], ["y"], kernel_shape=[2, 2])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 7, 7])],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    one, other = allowed_cores()[:2]
    clusters = ([f"CPU@{one}", f"CPU@{other}"], [f"CPU@{one}", f"ort:CPU@{other}"], [f"ort:CPU@{one}", f"CPU@{other}"])
    assert len({entry(placeit.load(path), discover(names)) for names in clusters}) == 3
