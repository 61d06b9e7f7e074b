"""Probing dispatch and links, and what of it is kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices.host import allowed_cores
from placeit.profiler import links
from placeit.profiler.cache import Cache
from placeit.profiler.links import probe
from placeit.runtime.compiling import Compiling

CORES = allowed_cores()[:1]


def on_one_core(*names: str, known: dict[tuple[str, str], Link] | None = None) -> Cluster:
    return Cluster(tuple(Device(name, address=Address("CPU", CORES)) for name in names), known or {})


@pytest.mark.parametrize("kinds", [("ort", "openvino"), ("ort", "ort"), ("torch", "torch")])
def test_links_are_measured_whatever_runs_the_devices(kinds: tuple[str, str]) -> None:
    devices = tuple(
        Device(name, kind, Address("CPU", CORES, runtime="ort" if kind == "ort" else ""))
        for name, kind in zip("ab", kinds, strict=True)
    )
    found = probe(Cluster(devices))
    assert {pair for pair, link in found.cluster.links.items() if link.latency >= 0} == {("a", "b"), ("b", "a")}
    assert (found.dispatch > 0).all()


@pytest.mark.parametrize(
    ("beside", "driver"),
    [
        (Device("b", "openvino", Address("CPU", (0,))), "torch"),
        (Device("b", "openvino", Address("GPU.0")), "ort"),
    ],
)
def test_links_of_a_gpu_are_measured_with_what_runs_on_all_devices(
    beside: Device, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Cluster] = []

    def measured(cluster: Cluster, precision: str, chain: Any, deadline: float, compiling: object) -> Any:
        asked.append(cluster)
        assert len(chain(4, 3).graph) == 5
        return {"dispatch": [1e-6, 1e-6], "empty": [1e-7, 1e-7], "links": [[0, 1, None, 0.0], [1, 0, None, 0.0]]}, 11

    monkeypatch.setattr(links, "_measure", measured)
    probe(Cluster((Device("cuda:0", "cuda", Address("cuda:0"), driver="NVIDIA 1"), beside)))
    assert asked[0].devices[0].kind == driver


def test_every_link_is_there_afterwards_and_known_ones_are_left_alone() -> None:
    known = Link(1e6, 0.1, "emulated")
    found = probe(on_one_core("a", "b", known={("a", "b"): known}))
    assert found.cluster.links["a", "b"] is known
    measured = found.cluster.links["b", "a"]
    assert measured.origin == "measured"
    assert measured.bandwidth > 0
    # microseconds: the emulated link that goes the other way has no part in it
    assert 0 <= measured.latency < known.latency / 4
    assert found.cluster.missing_links() == []
    assert found.dispatch.shape == (2,)
    assert (found.dispatch > 0).all()
    assert np.isfinite(found.dispatch).all()


class _Measuring:
    """Stands in for the measurement and counts how often it is asked for."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(
        self, cluster: Cluster, precision: str, chain: object, deadline: float, compiling: object
    ) -> tuple[dict[str, Any], int]:
        self.times += 1
        number = {name: i for i, name in enumerate(cluster.names)}
        found = {
            "dispatch": [self.times * 1e-6] * len(cluster),
            "empty": [self.times * 1e-7] * len(cluster),
            "links": [[number[a], number[b], None if number[a] else 1e9, 1e-6 * number[b]] for a, b in cluster.missing_links()],
        }
        return found, 11


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> _Measuring:
    stand_in = _Measuring()
    monkeypatch.setattr(links, "_measure", stand_in)
    return stand_in


def test_one_device_has_a_dispatch_and_no_links(measuring: _Measuring, tmp_path: Path) -> None:
    for _ in range(2):
        found = probe(on_one_core("a"), cache=Cache(tmp_path))
        assert found.dispatch.tolist() == [1e-6]
        assert not found.cluster.links
    assert measuring.times == 1


def test_compiling_chains_is_counted_once(tmp_path: Path) -> None:
    compiling = Compiling()
    for _ in range(2):
        probe(on_one_core("a"), cache=Cache(tmp_path), compiling=compiling)
    assert compiling.kinds["CPU"].compiled == 1, "all ops of a chain are the same"
    assert compiling.seconds > 0


def test_what_was_measured_is_kept_for_devices_of_any_name(measuring: _Measuring, tmp_path: Path) -> None:
    first = probe(on_one_core("a", "b", "c"), cache=Cache(tmp_path))
    second = probe(on_one_core("x", "y", "z"), cache=Cache(tmp_path))
    assert measuring.times == 1
    assert second.cluster.links["x", "y"] == first.cluster.links["a", "b"]
    assert second.cluster.links["z", "x"] == first.cluster.links["c", "a"]
    assert first.cluster.links["c", "a"].bandwidth == np.inf


@pytest.mark.parametrize(
    "change",
    [
        lambda cluster: dataclasses.replace(cluster, links={("a", "b"): Link(1e6, 0.0)}),
        lambda cluster: dataclasses.replace(
            cluster, devices=(cluster.devices[0], dataclasses.replace(cluster.devices[1], slowdown=2.0))
        ),
        lambda cluster: dataclasses.replace(
            cluster, devices=(cluster.devices[0], dataclasses.replace(cluster.devices[1], driver="other"))
        ),
    ],
)
def test_other_devices_and_other_known_links_are_measured_anew(
    measuring: _Measuring, tmp_path: Path, change: Callable[[Cluster], Cluster]
) -> None:
    probe(on_one_core("a", "b"), cache=Cache(tmp_path))
    probe(change(on_one_core("a", "b")), cache=Cache(tmp_path))
    assert measuring.times == 2


def test_which_links_are_known_counts_by_place_and_not_by_name(measuring: _Measuring, tmp_path: Path) -> None:
    known = {("a", "b"): Link(1e6, 1e-3, "emulated")}
    for names in (("a", "b", "c"), ("c", "a", "b")):
        found = probe(on_one_core(*names, known=known), cache=Cache(tmp_path))
        assert found.cluster.missing_links() == []
    assert measuring.times == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value["dispatch"].append(1e-6),
        lambda value: value["dispatch"].__setitem__(1, float("nan")),
        lambda value: value["dispatch"].__setitem__(1, -1e-6),
        lambda value: value["links"].pop(),
        lambda value: value["links"].__setitem__(0, value["links"][1]),
        lambda value: value["links"][0].__setitem__(2, 0.0),
        lambda value: value["links"][0].__setitem__(3, float("inf")),
        lambda value: value.pop("links"),
    ],
)
def test_a_damaged_entry_is_measured_again(
    measuring: _Measuring, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Any], object]
) -> None:
    probe(on_one_core("a", "b"), cache=Cache(tmp_path))
    (entry,) = tmp_path.iterdir()
    data = json.loads(entry.read_text())
    damage(data["value"])
    entry.write_text(json.dumps(data))
    assert probe(on_one_core("a", "b"), cache=Cache(tmp_path)).dispatch.tolist() == [2e-6, 2e-6]
    assert "is damaged" in caplog.text
