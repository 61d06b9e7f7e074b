"""Segments on their way to a node, and the weights that it keeps."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.nodes import remote_calls
from placeit.runtime.nodes.formats import encode
from placeit.runtime.nodes.package import Unpacked, pack
from placeit.runtime.nodes.weights import WeightStore
from placeit.runtime.runtime import Runtime
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.open_models import OPEN, TWO, attention, divided
from tests.small_models import inception_like


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "weights")


def test_a_segment_is_the_same_model_after_its_way_and_its_weights_travel_once(store: WeightStore) -> None:
    model = inception_like()
    with Runtime(model, coarsen(model.graph), Cluster((Device("CPU", address=Address("CPU")),))) as runtime:
        groups = len(runtime.grouping.groups)
        segmenter = Segmenter(runtime.grouping, Costs.zero(groups, runtime.cluster))
        (whole,) = segmenter.plan([0] * groups).programs
        package, pieces = pack(runtime.compiler.source(whole), ["openvino"])
        names = runtime.book.outputs_of(whole)
        assert store.missing(package.pieces) == list(pieces)
        store.put(pieces)
        assert store.missing(package.pieces) == []
        assert pack(runtime.compiler.source(whole), ["openvino"])[0].pieces == package.pieces
    weights = store.get(package.pieces)
    assert weights is not None
    unpacked = Unpacked(package, weights)
    assert (unpacked.inputs, unpacked.outputs) == (package.inputs, package.outputs)
    inputs = model.random_inputs()
    made = openvino_core().compile_model(unpacked.in_format("openvino"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    expected = model.reference(None, "f32")(inputs)
    for name, value in zip(names, made(list(inputs.values())).values(), strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4)
    with pytest.raises(DeviceError, match="not as 'onnx'"):
        unpacked.in_format("onnx")


def test_a_segment_of_open_sizes_keeps_their_limits_on_its_way(store: WeightStore, tmp_path: Path) -> None:
    with Session(attention(tmp_path), TWO[0], inputs=Inputs(shapes=OPEN), cache=None) as session:
        plan = session.plan_of(divided(session, 2))
        for segment in plan.programs:
            source = session.runtime.compiler.source(segment)
            package, pieces = pack(source, ["openvino"])
            store.put(pieces)
            unpacked = Unpacked(package, store.get(package.pieces) or {})
            model, arrived = source.in_format("openvino"), unpacked.in_format("openvino")
            shapes = [port.partial_shape for port in arrived.inputs]
            assert shapes == [port.partial_shape for port in model.inputs]
            assert any(shape.is_dynamic for shape in shapes)
            assert [spec.limits for spec in unpacked.inputs] == [spec.limits for spec in source.inputs]


def inputs_of(model: Any, device: Device) -> tuple[int, str]:
    return len(model.inputs), device.where.node


def test_a_call_goes_on_when_another_process_stores_the_weights_between_two_looks(
    store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = inception_like().ov_model
    pieces = encode("openvino", program)[1]
    assert pieces
    get = store.get

    def late(names: tuple[str, ...]) -> None:
        store.put(pieces)
        monkeypatch.setattr(store, "get", get)

    monkeypatch.setattr(store, "get", late)
    monkeypatch.setattr(WeightStore, "of_user", lambda: store)
    monkeypatch.setattr(remote_calls, "connected", lambda: SimpleNamespace(call=lambda name, job, timeout: job()))
    device = Device("far/CPU", address=Address("CPU", node="far"))
    assert remote_calls.call_with_program(inputs_of, "openvino", program, device) == (1, "")


def test_weights_that_are_not_what_they_are_called_are_not_used(store: WeightStore, tmp_path: Path) -> None:
    name = "ab" * 32
    (tmp_path / "weights" / name).write_bytes(b"something else")
    assert store.get((name,)) is None
    assert store.missing((name,)) == [name]


def test_the_least_recently_used_weights_make_room(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights", max_bytes=25)
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
    assert store.get((name,)) == {name: b"a"}


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "AB" * 32, "ab" * 31])
def test_what_is_no_digest_names_no_file(store: WeightStore, name: str) -> None:
    with pytest.raises(DeviceError, match="not a digest"):
        store.get((name,))


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(DeviceError, match="others may write"):
        WeightStore(folder)


def pieces(*datas: bytes) -> dict[str, bytes]:
    return {hashlib.sha256(data).hexdigest(): data for data in datas}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a folder for temporary files that other users write to as well."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_store_of_a_user_is_for_nobody_else(shared: Path) -> None:
    WeightStore.of_user().put(pieces(b"data"))
    (folder,) = shared.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())] == [0o700, 0o600]


@pytest.mark.parametrize("kind", ["link", "link to nothing", "file", "pipe", "open to all"])
def test_a_store_that_somebody_else_has_prepared_is_refused_and_nothing_is_touched(
    kind: str, shared: Path, tmp_path: Path
) -> None:
    home, squatted = tmp_path / "home", shared / f"placeit-weights-{os.geteuid()}"
    home.mkdir()
    (home / "thesis").write_text("of years")
    match kind:
        case "link":
            squatted.symlink_to(home)
        case "link to nothing":
            squatted.symlink_to(home / "new")
        case "file":
            squatted.write_text("")
        case "pipe":
            os.mkfifo(squatted)
        case _:
            squatted.mkdir()
            squatted.chmod(0o777)
    with pytest.raises(DeviceError, match=r"Weights cannot be kept.*placeit-weights-.*Remove it"):
        WeightStore.of_user()
    assert [path.name for path in home.iterdir()] == ["thesis"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_store_of_another_user_is_refused(shared: Path) -> None:
    folder = shared / f"placeit-weights-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(DeviceError, match="belongs to another user"):
        WeightStore.of_user()


def test_only_weights_are_ever_deleted_and_links_are_not_followed(tmp_path: Path) -> None:
    folder, mine = tmp_path / "weights", tmp_path / "mine"
    mine.write_text("mine")
    store = WeightStore(folder, max_bytes=10)
    for name in ("notes.txt", "f" * 63):
        (folder / name).write_text("kept")
    (new,), old = pieces(b"x" * 10), "0" * 64
    for name in (old, new):
        (folder / name).symlink_to(mine)
    store.put(pieces(b"x" * 10))
    assert store.get((new,)) == {new: b"x" * 10}
    assert sorted(path.name for path in folder.iterdir()) == sorted(["notes.txt", "f" * 63, new])
    (folder / old).symlink_to(mine)
    assert store.get((old,)) is None
    assert mine.read_text() == "mine"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small disk takes root's rights")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_costs_the_least_recently_used_weights_only(full_disk: Path) -> None:
    store = WeightStore(full_disk / "weights")
    small, large = pieces(*(bytes([i]) * 10_000 for i in range(5))), pieces(b"l" * 30_000)
    for number, (name, data) in enumerate(small.items()):
        store.put({name: data})
        os.utime(full_disk / "weights" / name, (number, number))
    store.put(large)
    (name,) = large
    assert store.get((name,)) == large
    assert store.missing(tuple(small)) == list(small)[: len(store.missing(tuple(small)))]
    too_large = pieces(b"t" * 100_000)
    for _ in range(2):
        with pytest.raises(DeviceError, match="No space left"):
            store.put(too_large)
        assert all(len(path.name) == 64 for path in (full_disk / "weights").iterdir())
        store.put(large)


def test_what_a_killed_process_was_writing_is_deleted(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights")
    (tmp_path / "weights" / f".{'0' * 64}.01234567").write_bytes(b"half")
    store.put(pieces(b"whole"))
    assert [path.name for path in (tmp_path / "weights").iterdir()] == list(pieces(b"whole"))


def test_any_number_of_damaged_weights_is_sent_again_at_once(store: WeightStore, tmp_path: Path) -> None:
    parts = pieces(*(bytes([i]) * 100 for i in range(12)))
    names = tuple(parts)
    store.put(parts)
    for name in names[:10]:
        (tmp_path / "weights" / name).write_bytes(b"")
    assert store.get(names) is None
    assert store.missing(names) == list(names[:10])
    store.put({name: parts[name] for name in names[:10]})
    assert store.get(names) == parts


def test_a_store_that_was_deleted_is_made_anew(store: WeightStore, tmp_path: Path) -> None:
    (tmp_path / "weights").rmdir()
    (name,) = part = pieces(b"data")
    store.put(part)
    assert store.get((name,)) == {name: b"data"}
