"""Segments on their way to a node, and the weights that it keeps."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from small_models import inception_like

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.core.telemetry import import_openvino
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.nodes.package import Unpacked, WeightStore, pack
from placeit.runtime.runtime import Runtime


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "weights")


def test_a_segment_is_the_same_model_after_its_way_and_its_weights_travel_once(store: WeightStore) -> None:
    model = inception_like()
    with Runtime(model, coarsen(model.graph), Cluster((Device("CPU", address=Address("CPU")),))) as runtime:
        groups = len(runtime.grouping.groups)
        segmenter = Segmenter(runtime.grouping, Costs.zero(groups, runtime.cluster))
        (whole,) = segmenter.plan([0] * groups).programs
        package, pieces = pack(runtime.source(whole))
        names = runtime.outputs_of(whole)
        assert store.missing(package.pieces) == list(pieces)
        store.put(pieces)
        assert store.missing(package.pieces) == []
        assert pack(runtime.source(whole))[0].pieces == package.pieces
    weights = store.join(package.pieces)
    assert weights is not None
    unpacked = Unpacked(package, weights)
    assert (unpacked.inputs, unpacked.outputs) == (package.inputs, package.outputs)
    inputs = model.random_inputs()
    made = import_openvino().Core().compile_model(unpacked.in_format("openvino"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    expected = model.reference(None, "f32")(inputs)
    for name, value in zip(names, made(list(inputs.values())).values(), strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4)
    with pytest.raises(DeviceError, match="not as 'onnx'"):
        unpacked.in_format("onnx")


def test_weights_that_are_not_what_they_are_called_are_not_used(store: WeightStore, tmp_path: Path) -> None:
    name = "ab" * 32
    (tmp_path / "weights" / name).write_bytes(b"something else")
    assert store.join((name,)) is None
    assert store.missing((name,)) == [name]


def test_the_least_recently_used_weights_make_room(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights", most=25)
    parts = {hashlib.sha256(data).hexdigest(): data for data in (b"a" * 10, b"b" * 10, b"c" * 10)}
    for name, data in parts.items():
        store.put({name: data})
    assert len(store.missing(tuple(parts))) == 1
    assert list(parts)[2] not in store.missing(tuple(parts))


def test_files_that_others_delete_meanwhile_are_no_obstacle(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights")
    (tmp_path / "weights" / "listed").symlink_to("gone")
    name = hashlib.sha256(b"a").hexdigest()
    store.put({name: b"a"})
    assert store.join((name,)) == b"a"


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "AB" * 32, "ab" * 31])
def test_what_is_no_digest_names_no_file(store: WeightStore, name: str) -> None:
    with pytest.raises(DeviceError, match="not a digest"):
        store.join((name,))


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(DeviceError, match="others may write"):
        WeightStore(folder)
